"""Embedders: texts to vectors, behind one small interface.

A vector is kept as signed bytes: each number times 127 over the largest of them, rounded. That
keeps its direction, which is all that is compared, in a quarter of the bytes. With each vector the
name of its model is kept; vectors of different models are never compared.

The default needs no server: wordllama, whose vectors come with Perdure. ``recall.embedder``
names another one: a model of the gateway, or one of sentence-transformers that is on this machine.
Nothing is ever downloaded.
"""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from perdure.core.errors import BadAnswer, NoModel

if TYPE_CHECKING:
    import numpy as np

    from perdure.config import GatewayConfig, RecallConfig
    from perdure.gateway.gateway import Gateway

#: What begins the name of a model that is loaded into this process.
SENTENCE_TRANSFORMERS = "sentence-transformers/"
#: Texts that are embedded in one go: between two, others get their turn.
_BATCH = 256
#: Characters that are embedded on the event loop, in a third of a millisecond.
_SHORT = 1_000
#: Texts in one request to a server.
_REQUEST = 64
_MOST = 127
#: Numbers that are kept of wordllama's 256. It was trained so that the first ones say most: what is
#: found is the same, within a third of a hundredth, in half the bytes and half the time.
_NUMBERS = 128


class Embedder(Protocol):
    """Turns texts into vectors."""

    @property
    def name(self) -> str:
        """What is stored with each vector; another name, and all texts are embedded anew.

        May raise `PerdureError` if the configuration names a model that cannot be.
        """

    @property
    def is_quick(self) -> bool:
        """A question takes less than a millisecond once it is loaded: it may be asked twice."""

    async def embed(self, texts: Sequence[str]) -> list[bytes]:
        """A vector for each text, in their order, as signed bytes; all of one length.

        Never blocks the event loop for long. Raises `PerdureError` if it cannot be done now.
        """


def embedder(
    config: RecallConfig,
    gateway: Callable[[], Gateway],
    models: GatewayConfig | None = None,
) -> Embedder:
    """The embedder that is configured. Nothing is loaded, and no gateway made, before it is used.

    With the gateway's own configuration its name is known without a gateway, too.
    It raises `NoModel` or `InvalidConfig` when it is first used, if there is no such model.
    """
    return _Chosen(config.embedder, gateway, models)


class Wordllama:
    """The embedder that comes with Perdure: quick, small, and on this machine."""

    #: What the configuration calls it.
    model = "local/wordllama"
    name = f"{model}-{_NUMBERS}"
    is_quick = True

    async def embed(self, texts: Sequence[str]) -> list[bytes]:
        """The first call loads the vectors, in a thread."""
        from perdure.gateway import local

        if sum(map(len, texts)) <= _SHORT and local.is_loaded():
            # A question: it takes less than to go to a thread and back.
            return _by_wordllama(texts)
        found = list[bytes]()
        for start in range(0, len(texts), _BATCH):
            found += await asyncio.to_thread(_by_wordllama, texts[start : start + _BATCH])
        return found


class GatewayEmbedder:
    """A model behind the gateway: with its budgets, its retries, and what it costs on record."""

    is_quick = False

    def __init__(self, gateway: Callable[[], Gateway], model: str) -> None:
        self.name = model
        self._gateway = gateway

    async def embed(self, texts: Sequence[str]) -> list[bytes]:
        """Raises as `Gateway.embed`; `BadAnswer` if the server sends no vector for each text."""
        from perdure.gateway.calls import CallOptions

        ask = CallOptions(purpose="embed", model=self.name)
        found = list[bytes]()
        for start in range(0, len(texts), _REQUEST):
            some = texts[start : start + _REQUEST]
            answered = await self._gateway().embed(some, ask)
            lengths = {len(vector) for vector in answered.vectors}
            if len(answered.vectors) != len(some) or len(lengths) != 1 or 0 in lengths:
                raise BadAnswer(
                    f"{self.name} did not send a vector of one length for each text.",
                    hint="Use another model: recall.embedder.",
                )
            found += await asyncio.to_thread(_of_rows, answered.vectors)
        return found


class SentenceTransformers:
    """A model of the package sentence-transformers, from the files that are on this machine."""

    is_quick = False

    def __init__(self, model: str) -> None:
        self.name = SENTENCE_TRANSFORMERS + model
        self._model = model
        self._loading = threading.Lock()
        self._loaded: Any = None

    async def embed(self, texts: Sequence[str]) -> list[bytes]:
        """Raises `NoModel` if the package or the model's files are not there."""
        found = list[bytes]()
        for start in range(0, len(texts), _BATCH):
            found += await asyncio.to_thread(self._embed, list(texts[start : start + _BATCH]))
        return found

    def _embed(self, texts: list[str]) -> list[bytes]:
        return as_bytes(self._load().encode(texts, show_progress_bar=False, convert_to_numpy=True))

    def _load(self) -> Any:
        with self._loading:
            if self._loaded is None:
                self._loaded = self._from_files()
            return self._loaded

    def _from_files(self) -> Any:
        try:
            import sentence_transformers  # type: ignore[import-not-found,unused-ignore]
        except ImportError as exc:
            raise NoModel(
                f"recall.embedder is {self.name}, but sentence-transformers cannot be imported.",
                hint="Install it (pip install sentence-transformers), or leave the setting empty.",
            ) from exc
        try:
            return sentence_transformers.SentenceTransformer(self._model, local_files_only=True)
        except (OSError, ValueError) as exc:
            raise NoModel(
                f"The files of {self._model} are not on this machine: {exc}.",
                hint="Perdure downloads nothing: fetch the model yourself, or give its folder.",
            ) from exc


class _Chosen:
    """The one of the configuration, looked up when it is first needed."""

    def __init__(
        self, named: str, gateway: Callable[[], Gateway], models: GatewayConfig | None
    ) -> None:
        self._named = named
        self._gateway = gateway
        self._models = models

    @property
    def name(self) -> str:
        return self._embedder.name

    @property
    def is_quick(self) -> bool:
        return self._embedder.is_quick

    async def embed(self, texts: Sequence[str]) -> list[bytes]:
        return await self._embedder.embed(texts)

    @functools.cached_property
    def _embedder(self) -> Embedder:
        named = self._named
        if named.startswith(SENTENCE_TRANSFORMERS):
            return SentenceTransformers(named.removeprefix(SENTENCE_TRANSFORMERS))
        if named == Wordllama.model:
            return Wordllama()
        from perdure.gateway.calls import CallOptions
        from perdure.gateway.catalog import ModelCatalog

        # The first alone: another one's vectors could not be compared with what is there.
        config = self._models if self._models is not None else self._gateway().config
        options = CallOptions(purpose="embed", model=named)
        chosen = ModelCatalog(config).candidates(options)[0].name
        return Wordllama() if chosen == Wordllama.model else GatewayEmbedder(self._gateway, chosen)


def as_bytes(rows: np.ndarray) -> list[bytes]:
    """Vectors as signed bytes, whatever their lengths. A zero vector points somewhere, too.

    It is that of a text without words; a direction of its own keeps it comparable.
    """
    import numpy as np

    found = np.nan_to_num(np.asarray(rows, dtype=np.float32), posinf=0.0, neginf=0.0)
    largest = np.abs(found).max(axis=1, keepdims=True, initial=0.0)
    scaled = np.rint(found * (_MOST / np.where(largest > 0, largest, 1.0))).astype(np.int8)
    scaled[largest[:, 0] == 0, 0] = _MOST
    return [row.tobytes() for row in scaled]


def _by_wordllama(texts: Sequence[str]) -> list[bytes]:
    from perdure.gateway import local

    return as_bytes(local.matrix(texts)[:, :_NUMBERS])


def _of_rows(vectors: Sequence[Sequence[float]]) -> list[bytes]:
    import numpy as np

    return as_bytes(np.asarray(vectors, dtype=np.float32))

"""Provider `local`: embeddings on this machine, without a key, a server or a download.

The vectors are those of wordllama, whose weights come with its package: the mean of its token
vectors, in 256 dimensions, of length 1. A text without tokens is the zero vector. The same text
gives the same vector, alone or among others.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from perdure.core.errors import NoModel
from perdure.core.messages import Usage
from perdure.gateway.providers import LOCAL, LOCAL_MODEL

if TYPE_CHECKING:
    import numpy as np

DIMENSION = 256
#: Texts that are embedded in one go. Between two goes the event loop's other threads, and a
#: caller that gave up, get their turn.
_BATCH = 256
#: Tokens whose vectors are in memory at the same time: 8 MB.
_BLOCK = 8_192

_loading = threading.Lock()
_loaded: list[Any] = []


async def embed(
    texts: Sequence[str], model: str = LOCAL_MODEL
) -> tuple[tuple[tuple[float, ...], ...], Usage]:
    """A vector for each text, in their order, and the tokens they took.

    The first call loads the model, which takes about a second. All work is done in threads.

    Raises `NoModel` if the model is another one, or if wordllama is not installed.
    """
    check(model)
    vectors: list[tuple[float, ...]] = []
    tokens = 0
    for start in range(0, len(texts), _BATCH):
        some, count = await asyncio.to_thread(_embed, list(texts[start : start + _BATCH]))
        vectors += some
        tokens += count
    return tuple(vectors), Usage(input=tokens)


def matrix(texts: Sequence[str]) -> np.ndarray:
    """A row for each text, in their order: the same directions, not yet of length 1.

    For whoever has many texts, and no use for numbers of Python's. Runs where it is called, and
    keeps other threads waiting for milliseconds at most.

    Raises `NoModel` if wordllama is not installed.
    """
    import numpy as np

    model = _load()
    encoded = model.tokenizer.encode_batch(list(texts), add_special_tokens=False)
    found = np.zeros((len(encoded), DIMENSION), dtype=np.float32)
    for row, one in enumerate(encoded):
        found[row] = _total(model.embedding, one.ids)
    return found


def is_loaded() -> bool:
    """Whether the model is there, so that nobody waits for it."""
    return bool(_loaded)


def check(model: str) -> None:
    """Raises `NoModel` if the model is not the one that is here."""
    if model != LOCAL_MODEL:
        raise NoModel(
            f"{LOCAL} has no model {model!r}.", hint=f"Use {LOCAL}/{LOCAL_MODEL}, the only one."
        )


def cannot_chat(purpose: str) -> NoModel:
    """The error for everything else that is asked of this provider."""
    return NoModel(
        f"The provider {LOCAL} embeds texts; it does not answer ({purpose}).",
        hint=f"Name a model of another provider: PERDURE_MODEL_{purpose.upper()}=provider/model.",
    )


def _embed(texts: list[str]) -> tuple[list[tuple[float, ...]], int]:
    model = _load()
    # Not the model's own way: it pads every text to the length of the longest, and one long text
    # among short ones would take gigabytes.
    encoded = model.tokenizer.encode_batch(texts, add_special_tokens=False)
    found = [_mean(model.embedding, one.ids) for one in encoded]
    return found, sum(len(one.ids) for one in encoded)


def _mean(weights: np.ndarray, ids: list[int]) -> tuple[float, ...]:
    import numpy as np

    total = _total(weights, ids)
    length = float(np.linalg.norm(total))  # the same direction as the mean
    return tuple((total / length if length else total).tolist())


def _total(weights: np.ndarray, ids: list[int]) -> np.ndarray:
    import numpy as np

    total = np.zeros(weights.shape[1], dtype=np.float32)
    for start in range(0, len(ids), _BLOCK):
        block = np.asarray(ids[start : start + _BLOCK])
        # Added tokens of the vocabulary may lie behind the last row.
        total += weights[np.minimum(block, len(weights) - 1)].sum(axis=0, dtype=np.float32)
    return total


def _load() -> Any:
    """The model; loaded once in a process, by whoever comes first."""
    with _loading:
        if not _loaded:
            with _quiet():
                try:
                    import wordllama  # type: ignore[import-untyped]
                except ImportError as exc:
                    raise NoModel(
                        "Texts are embedded by the package wordllama, which cannot be imported.",
                        hint="Install it (pip install wordllama), or name another model:"
                        " PERDURE_MODEL_EMBED=provider/model.",
                    ) from exc
                model = wordllama.WordLlama.load(
                    # Without this folder it looks for its own weights in the wrong place, then
                    # on the network.
                    cache_dir=Path(wordllama.__file__).parent,
                    dim=DIMENSION,
                    disable_download=True,
                )
            model.tokenizer.no_padding()
            _loaded.append(model)
        return _loaded[0]


@contextmanager
def _quiet() -> Iterator[None]:
    """Undo what importing wordllama does: it sets up logging, for the whole program."""
    root = logging.getLogger()
    handlers, level = root.handlers.copy(), root.level
    try:
        yield
    finally:
        if not handlers and root.handlers:
            for handler in root.handlers.copy():
                root.removeHandler(handler)
            root.setLevel(level)

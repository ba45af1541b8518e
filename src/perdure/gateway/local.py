"""Provider `local`: embeddings on this machine, without a key, a server or a download.

The vectors are those of wordllama, which come with this package (`wordllama/LICENSE`): the mean of
its token vectors, in 256 dimensions, of length 1. A text without tokens is the zero vector. The
same text gives the same vector, alone or among others.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from perdure.core.errors import NoModel
from perdure.core.messages import Usage
from perdure.gateway.providers import LOCAL, LOCAL_MODEL

if TYPE_CHECKING:
    import numpy as np

    from perdure.gateway.word_tokens import WordTokenizer

DIMENSION = 256
#: Texts that are embedded in one go. Between two goes the event loop's other threads, and a
#: caller that gave up, get their turn.
_BATCH = 256
#: Tokens whose vectors are in memory at the same time: 8 MB.
_BLOCK = 8_192

_loading = threading.Lock()
_loaded: list[WordVectors] = []


class WordVectors(NamedTuple):
    """A vector for each token: signed bytes, and what each row is multiplied with."""

    tokenizer: WordTokenizer
    rows: np.ndarray
    scales: np.ndarray

    def total(self, tokens: Sequence[int]) -> np.ndarray:
        """The sum of the tokens' vectors."""
        import numpy as np

        found = np.zeros(self.rows.shape[1], dtype=np.float32)
        for start in range(0, len(tokens), _BLOCK):
            block = np.asarray(tokens[start : start + _BLOCK])
            found += self.scales[block] @ self.rows[block].astype(np.float32)
        return found


async def embed(
    texts: Sequence[str], model: str = LOCAL_MODEL
) -> tuple[tuple[tuple[float, ...], ...], Usage]:
    """A vector for each text, in their order, and the tokens they took.

    The first call loads the model, which takes a few hundredths of a second. All work is done in
    threads. Raises `NoModel` if the model is another one.
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
    """
    import numpy as np

    model = _load()
    found = np.zeros((len(texts), DIMENSION), dtype=np.float32)
    for row, text in enumerate(texts):
        found[row] = model.total(model.tokenizer.encode(text))
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
    encoded = [model.tokenizer.encode(text) for text in texts]
    return [_mean(model.total(tokens)) for tokens in encoded], sum(map(len, encoded))


def _mean(total: np.ndarray) -> tuple[float, ...]:
    import numpy as np

    length = float(np.linalg.norm(total))  # the same direction as the mean
    return tuple((total / length if length else total).tolist())


def _load() -> WordVectors:
    """The model; loaded once in a process, by whoever comes first."""
    with _loading:
        if not _loaded:
            import msgspec
            import numpy as np

            from perdure.gateway.word_tokens import WordTokenizer

            folder = Path(__file__).with_name("wordllama")
            vocabulary = msgspec.json.decode((folder / "vocabulary.json").read_bytes())
            # Mapped, not read: a question needs a handful of 32,000 rows.
            rows = np.load(folder / "vectors.npy", mmap_mode="r")
            _loaded.append(
                WordVectors(WordTokenizer(vocabulary), rows, np.load(folder / "scales.npy"))
            )
        return _loaded[0]

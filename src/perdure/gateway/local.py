"""Provider `local`: embeddings on this machine, without a key, a server or a download.

The mean of wordllama's token vectors (shipped, see `wordllama/LICENSE`): 256 dimensions, length 1;
the zero vector for a text without tokens. The same text always gives the same vector.
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
#: Texts embedded in one go; between two goes, other threads run and cancellation is seen.
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
        import numpy as np

        found = np.zeros(self.rows.shape[1], dtype=np.float32)
        for start in range(0, len(tokens), _BLOCK):
            block = np.asarray(tokens[start : start + _BLOCK])
            found += self.scales[block] @ self.rows[block].astype(np.float32)
        return found


async def embed(
    texts: Sequence[str], model: str = LOCAL_MODEL
) -> tuple[tuple[tuple[float, ...], ...], Usage]:
    """A vector for each text, in order, and the tokens they took. Works in threads; the first call
    loads the model (some 10 ms). Raises `NoModel` for another model.
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
    """A row for each text, in order, not normalised. Runs in the calling thread, and holds up
    others for milliseconds at most.
    """
    import numpy as np

    model = _load()
    found = np.zeros((len(texts), DIMENSION), dtype=np.float32)
    for row, text in enumerate(texts):
        found[row] = model.total(model.tokenizer.encode(text))
    return found


def is_loaded() -> bool:
    return bool(_loaded)


def check(model: str) -> None:
    if model != LOCAL_MODEL:
        raise NoModel(
            f"{LOCAL} has no model {model!r}.", hint=f"Use {LOCAL}/{LOCAL_MODEL}, the only one."
        )


def cannot_chat(purpose: str) -> NoModel:
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

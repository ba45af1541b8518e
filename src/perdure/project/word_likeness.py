"""How alike words are in meaning, by the vectors that come with Perdure: “retry” and “attempt”.

A question seldom has the words of the code that answers it. The vector of a whole passage says
little about one line of it; those of its words do.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from perdure.recall.languages import STOP_WORDS

if TYPE_CHECKING:
    import numpy as np

    from perdure.recall.embedders import Embedder

#: Up to the first cosine two words have nothing in common, from the second on nearly everything.
_LEAST, _SPAN, _MOST = 0.3, 0.5, 0.8
#: Words of a block up to which nearness counts in full, and how fast it falls with more.
_FEW, _CHANCE = 8, 0.4
#: Words whose vectors are kept.
_REMEMBERED = 40_000
#: Letters of a word, at least: shorter ones are names of variables.
_SHORT = 3

_joints = re.compile(r"[\W\d_]+").sub
_humps = re.compile(r"([a-z0-9])([A-Z])").sub
_known = dict[tuple[str, str], bytes]()


def words_in(text: str) -> list[str]:
    """The words of a text, each once, in small letters; identifiers are taken apart."""
    split = _joints(" ", _humps(r"\1 \2", text)).lower().split()
    return list(dict.fromkeys(w for w in split if len(w) >= _SHORT and w not in STOP_WORDS))


async def likeness(
    embedder: Embedder, asked: Sequence[str], blocks: Sequence[Sequence[str]]
) -> np.ndarray:
    """For each word that is asked for, a row: how near each block has one to it, from 0 to 0.8.

    Raises `PerdureError` if words cannot be embedded.
    """
    import numpy as np

    numbers = dict[str, int]()
    at = [[numbers.setdefault(word, len(numbers)) for word in block] for block in blocks]
    found = np.zeros((len(asked), len(blocks)), dtype=np.float32)
    full = [number for number, block in enumerate(at) if block]
    if not asked or not full:
        return found
    similar = await _rows(embedder, asked) @ (await _rows(embedder, list(numbers))).T
    starts = np.cumsum([0, *(len(at[number]) for number in full[:-1])])
    joined = np.concatenate([np.asarray(at[number]) for number in full])
    best = np.maximum.reduceat(similar[:, joined], starts, axis=1)
    sizes = np.asarray([len(at[number]) for number in full], dtype=np.float32)
    # Among many words one is near by chance.
    chance = np.minimum(1.0, (_FEW / sizes) ** _CHANCE)
    found[:, full] = np.clip((best - _LEAST) / _SPAN, 0.0, _MOST) * chance
    return found


async def _rows(embedder: Embedder, words: Sequence[str]) -> np.ndarray:
    """A vector of length 1 for each word."""
    import numpy as np

    name = embedder.name
    new = [word for word in dict.fromkeys(words) if (name, word) not in _known]
    if new:
        if len(_known) + len(new) > _REMEMBERED:
            _known.clear()
            new = list(dict.fromkeys(words))
        for word, vector in zip(new, await embedder.embed(new), strict=True):
            _known[name, word] = vector
    joined = b"".join([_known[name, word] for word in words])
    rows = np.frombuffer(joined, dtype=np.int8).reshape(len(words), -1).astype(np.float32)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True) + 1e-9
    return rows

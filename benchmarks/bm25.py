"""BM25 over stemmed words, as anybody would write it: what recall must be better than."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable

from benchmarks.chats import Chat
from perdure.recall.words import terms

#: As usual.
_K1, _B = 1.2, 0.75


class BM25:
    """Ranks texts, which are numbered from 1."""

    def __init__(self, texts: Iterable[list[str]]) -> None:
        self._documents = [Counter(text) for text in texts]
        self._lengths = [document.total() for document in self._documents]
        self._average = sum(self._lengths) / len(self._lengths)
        self._having = dict[str, list[int]]()
        for number, document in enumerate(self._documents):
            for term in document:
                self._having.setdefault(term, []).append(number)

    def turns(self, question: str) -> list[int]:
        """All numbers, the best first; of equals, the one that stands first."""
        scores = [0.0] * len(self._documents)
        for term in dict.fromkeys(terms(question)):
            having = self._having.get(term, ())
            rarity = math.log1p((len(scores) - len(having) + 0.5) / (len(having) + 0.5))
            for number in having:
                count = self._documents[number][term]
                length = 1 - _B + _B * self._lengths[number] / self._average
                scores[number] += rarity * count * (_K1 + 1) / (count + _K1 * length)
        return sorted(range(1, len(scores) + 1), key=lambda turn: -scores[turn - 1])


def over_turns(chat: Chat) -> BM25:
    """Over what each turn says: a line, or a prompt and its reply."""
    return BM25(_turns(chat))


def over_pairs(chat: Chat) -> BM25:
    """Over each turn together with the one before it."""
    own = _turns(chat)
    return BM25(before + turn for before, turn in zip([[], *own], own, strict=False))


def _turns(chat: Chat) -> list[list[str]]:
    return [terms(line.words) for line in chat.lines]

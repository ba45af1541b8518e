"""Finds the memory that says what a new one says, among thousands. Pure.

A new text says the same if it took no more from the same words of a turn, or if neither has a word
that the other, or what that one cites, lacks. Texts with other numbers, or of which one says no,
never do. Memories are looked up by their words and by the turns that they cite.
"""

from __future__ import annotations

import functools
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence

from perdure.recall.memories.similar_memories import normalised
from perdure.recall.memory_records import Memory, MemoryQuote
from perdure.reflection.word_sets import prefix_size, word_set

#: Shares of common words from which two texts are one: if they rest on the same quote, of the
#: shorter of them; else of the longer.
_SAME_QUOTE, _SAME = 0.34, 0.75
#: Share of a quote's words that another has, if they are of the same words.
_QUOTED = 0.6
#: Letters that two forms of a word begin with, at least, and that one of them has more, at most:
#: "conductor" is a form of "conduct", "portfolio" none of "port".
_ROOT, _ENDING = 4, 3

_numbers = re.compile(r"\d+(?:[.,:]\d+)*").findall
_negated = re.compile(r"\b(?:not|never|no longer|don't|doesn't|isn't|without|no)\b|n't\b").search


class Restatements:
    """Active memories, to be found by what they say."""

    def __init__(self, memories: Iterable[Memory]) -> None:
        self._memories = dict[str, Memory]()
        self._by_text = defaultdict[str, set[str]](set)
        self._by_word = defaultdict[str, set[str]](set)
        self._by_turn = defaultdict[str, set[str]](set)
        self._terms = functools.cache(word_set)
        for memory in memories:
            self.put(memory)

    def put(self, memory: Memory) -> None:
        """Know a memory as it is now; forget it, if it is not active."""
        if (former := self._memories.pop(memory.id, None)) is not None:
            for ids in self._places(former):
                ids.discard(memory.id)
        if memory.is_active:
            self._memories[memory.id] = memory
            for ids in self._places(memory):
                ids.add(memory.id)

    def find(self, draft: Memory) -> Memory | None:
        """The memory that says what a draft does; the most alike, if there are several."""
        for id in sorted(self._by_text.get(normalised(draft.text), ())):
            if (self._memories[id].kind == "topic") == (draft.kind == "topic"):
                return self._memories[id]
        return self._best(draft, lambda memory: self._likeness(memory, draft))

    def find_less(self, draft: Memory) -> Memory | None:
        """The memory that says no more than a draft, of the same words of a turn."""
        return self._best(draft, lambda memory: self._likeness(draft, memory))

    def _best(self, draft: Memory, likeness: Callable[[Memory], float | None]) -> Memory | None:
        best: tuple[float, Memory] | None = None
        for id in sorted(self._candidates(draft)) if draft.kind != "topic" else ():
            memory = self._memories[id]
            alike = None if memory.kind == "topic" else likeness(memory)
            if alike is not None and (best is None or alike > best[0]):
                best = alike, memory
        return None if best is None else best[1]

    def _places(self, memory: Memory) -> Iterator[set[str]]:
        yield self._by_text[normalised(memory.text)]
        if memory.kind != "topic":
            yield from (self._by_word[word] for word in self._terms(memory.text))
            yield from (self._by_turn[quote.turn] for quote in memory.quotes)

    def _candidates(self, draft: Memory) -> set[str]:
        words = self._terms(draft.text)
        rarest = sorted(words, key=lambda word: (len(self._by_word.get(word, ())), word))
        rarest = rarest[: prefix_size(len(words), _SAME)]
        found = set[str]().union(*(self._by_word.get(word, ()) for word in rarest))
        return found.union(*(self._by_turn.get(quote.turn, ()) for quote in draft.quotes))

    def _likeness(self, memory: Memory, draft: Memory) -> float | None:
        """The share of words that both have, if the draft says no more than the memory."""
        words, others = self._terms(draft.text), self._terms(memory.text)
        alike = len(words & others) / (max(len(words), len(others)) or 1)
        if _overlapping(memory.quotes, draft.quotes):
            quoted = self._quoted(memory) | self._quoted(draft)
            lacking = lacking_words(words, others, quoted)
            if len(words) - len(lacking) < _SAME_QUOTE * min(len(words), len(others)):
                return None
            # What only the new one took from there is another fact; the rest is wording.
            told = lacking & quoted
        else:
            if alike < _SAME:
                return None
            told = (words - others - self._quoted(memory)) | (others - words - self._quoted(draft))
        return None if told or cannot_be_same(memory.text, draft.text) else alike

    def _quoted(self, memory: Memory) -> frozenset[str]:
        return self._terms(" ".join(quote.text for quote in memory.quotes))


def cannot_be_same(one: str, other: str) -> bool:
    """Whether two texts cannot be the same thing: other numbers, or one says no."""
    return sorted(set(_numbers(one))) != sorted(set(_numbers(other))) or (
        is_negated(one) != is_negated(other)
    )


def is_negated(text: str) -> bool:
    """Whether a text says no to something."""
    return _negated(text.casefold()) is not None


def lacking_words(
    words: Iterable[str], others: frozenset[str], quoted: frozenset[str]
) -> frozenset[str]:
    """Words that others have in no form. What a quote has beside each other are two words: who
    speaks of a contract and a contractor does not mean the same.
    """
    return frozenset(
        word
        for word in words
        if not any(
            word == each or (_is_form(word, each) and not {word, each} <= quoted) for each in others
        )
    )


def _is_form(one: str, other: str) -> bool:
    """Whether one of two words without their endings is the other with another ending."""
    short, long = sorted((one, other), key=len)
    return len(short) >= _ROOT and long.startswith(short) and len(long) - len(short) <= _ENDING


def words_in_common(
    memories: Sequence[Memory], least: float
) -> Iterator[tuple[Memory, Memory, float]]:
    """Pairs of memories with so many words in common, and the share of these, of the longer one's.
    A topic is compared with topics only.
    """
    words = [word_set(memory.text) for memory in memories]
    counts = Counter(word for some in words for word in some)
    having = defaultdict[str, list[int]](list)
    for place, some in enumerate(words):
        rarest = sorted(some, key=lambda word: (counts[word], word))[
            : prefix_size(len(some), least)
        ]
        for other in sorted({other for word in rarest for other in having[word]}):
            one, two = memories[other], memories[place]
            share = len(some & words[other]) / max(len(some), len(words[other]))
            if share >= least and (one.kind == "topic") == (two.kind == "topic"):
                yield one, two, share
        for word in rarest:
            having[word].append(place)


def _overlapping(one: Sequence[MemoryQuote], other: Sequence[MemoryQuote]) -> bool:
    """Whether two memories rest on the same words of a turn."""
    for quote in one:
        for another in other:
            if quote.turn == another.turn:
                a, b = set(normalised(quote.text).split()), set(normalised(another.text).split())
                if len(a & b) >= _QUOTED * min(len(a), len(b)):
                    return True
    return False

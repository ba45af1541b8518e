"""Which memories a question lists, if not all of them fit. Pure.

First those that what is read, and above all what was newly found, speaks of: by their words, rare
ones counting more, and by their topics. A part of the room goes to those that were said last.
"""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Iterable, Sequence

import msgspec

from perdure.core.display import one_line
from perdure.recall.memory_records import Memory
from perdure.reflection.word_sets import word_set

#: Characters of a memory, of all that are listed, and of all topics.
LINE, _LISTED, _TOPICS = 400, 40_000, 6_000
#: The share of the room for what was said last, and what a topic that is spoken of counts.
_RECENT, _TOPIC = 0.25, 0.25


class ShownMemories(msgspec.Struct, frozen=True):
    """What a question lists of what is remembered."""

    memories: tuple[Memory, ...] = ()
    topics: tuple[Memory, ...] = ()

    @property
    def versions(self) -> dict[str, int]:
        return {memory.key: memory.version for memory in (*self.memories, *self.topics)}


class MemoryChoice:
    """Chooses among an agent's memories, which are given in the order of their weight."""

    def __init__(self, memories: Iterable[Memory]) -> None:
        active = list(memories)
        self._topics = _fitting([m for m in active if m.kind == "topic"], _TOPICS)
        self._others = [m for m in active if m.kind != "topic"]
        self._size = sum(map(_length, self._others))
        self._words = dict[str, frozenset[str]]()
        self._rarity = dict[str, float]()
        self._tag = functools.cache(word_set)

    def choose(
        self, room: int, read: Iterable[str] = (), found: Iterable[str] = ()
    ) -> ShownMemories:
        """As many as fit that many characters, at most 40,000. `read` are the texts that are shown,
        `found` what is new.
        """
        room = min(room, _LISTED)
        if self._size <= room:
            return ShownMemories(tuple(self._others), tuple(self._topics))
        if not self._words:
            self._learn()
        here = frozenset[str]().union(*map(word_set, read))
        new = frozenset[str]().union(*map(word_set, found))
        ranked = sorted(
            self._others,
            key=lambda m: (not m.pinned, -self._score(m, here, new), -m.last, m.id),
        )
        related = _fitting(ranked, int(room * (1 - _RECENT)))
        known = {memory.id for memory in related}
        left = room - sum(map(_length, related))
        recent = sorted(self._others, key=lambda m: (-m.last, m.id))
        known |= {m.id for m in _fitting([m for m in recent if m.id not in known], left)}
        return ShownMemories(tuple(m for m in self._others if m.id in known), tuple(self._topics))

    def _learn(self) -> None:
        self._words = {memory.id: word_set(memory.text) for memory in self._others}
        counts = Counter(word for words in self._words.values() for word in words)
        self._rarity = {
            word: math.log(1 + len(self._others) / count) for word, count in counts.items()
        }

    def _score(self, memory: Memory, here: frozenset[str], new: frozenset[str]) -> float:
        words = self._words[memory.id]
        whole = sum(self._rarity[word] for word in words) or 1.0
        spoken = sum(self._rarity[word] for word in words & here) / whole
        is_new = sum(self._rarity[word] for word in words & new) / whole
        tags = map(self._tag, memory.tags)
        of_topic = any(bool(tag) and (tag <= here or tag <= new) for tag in tags)
        return spoken + 2 * is_new + _TOPIC * of_topic


def memory_line(memory: Memory) -> str:
    """A memory in one line."""
    mine = " by a person" if memory.by_person or memory.pinned else ""
    tags = f"; {', '.join(memory.tags)}" if memory.tags else ""
    return f"{memory.key} ({memory.kind}{tags}{mine}): {one_line(memory.text, LINE)}"


def _fitting(memories: Sequence[Memory], room: int) -> list[Memory]:
    """The first ones, up to so many characters."""
    found = list[Memory]()
    for memory in memories:
        room -= _length(memory)
        if room < 0:
            break
        found.append(memory)
    return found


def _length(memory: Memory) -> int:
    return min(len(memory.text), LINE) + sum(map(len, memory.tags)) + 30

"""Which memories of an agent say the same as a text, or have words in common with it.

Two texts are the same if they are equal after normalising: case, blanks, and the punctuation around
words do not count. To take two things for one would lose one of them for good.

Kept in this process, by word, and brought up to date before each look: what others changed since
is read. It only says what is worth a closer look: what it names may have changed or be gone.
"""

from __future__ import annotations

import heapq
import math
import re
import unicodedata
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TypeAlias

from perdure.core.clock import SECOND, to_datetime
from perdure.recall.memory_records import Memory
from perdure.storage.options import STRONG
from perdure.storage.store import Store

#: Fetches memories by their ids.
Fetch: TypeAlias = Callable[[Iterable[str]], Awaitable[Sequence[Memory | None]]]
#: Agents whose memories are kept at hand.
_AGENTS = 32
#: Clocks of different machines may differ so much. Microseconds.
_SKEW = 2 * SECOND
_PAGE = 200

#: What may stand around a word without changing it: not a sign such as ``-5``, ``$x`` or ``#3``.
_around = re.compile(r"(?<!\S)[\"'“”‘’«»(\[*`]+|[\"'“”‘’«»)\]*`.,;:!?…]+(?!\S)").sub  # noqa: RUF001


def normalised(text: str) -> str:
    """A text without what does not change what it says. Nothing but punctuation stays as it is."""
    plain = unicodedata.normalize("NFC", text).casefold()
    return " ".join(_around(" ", plain).split()) or text


class SimilarMemories:
    """The words of memories, of the agents that were last asked for."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._agents = OrderedDict[str, _AgentWords]()

    async def nearest(self, agent: str, text: str, limit: int) -> list[tuple[str, float]]:
        """Ids of active memories that have the most in common with a text, those first.

        With each, how much: from 0 to 1, if they have all words in common.
        """
        return (await self._words(agent)).nearest(_terms(text), limit)

    async def same(self, memory: Memory, fetch: Fetch) -> list[Memory]:
        """Other active memories of its agent that say the same.

        A topic is what is talked about, and says nothing: it is compared with topics only.
        """
        said = normalised(memory.text)
        ids = (await self._words(memory.agent)).saying(said)
        return [
            other
            for other in await fetch(ids)
            if other is not None
            and other.is_active
            and other.id != memory.id
            and (other.kind == "topic") == (memory.kind == "topic")
            and normalised(other.text) == said
        ]

    def drop(self) -> None:
        """Know nothing any more: something was forgotten."""
        self._agents.clear()

    async def _words(self, agent: str) -> _AgentWords:
        known = self._agents.setdefault(agent, _AgentWords())
        self._agents.move_to_end(agent)
        while len(self._agents) > _AGENTS:
            self._agents.popitem(last=False)
        query = self._store.collection(Memory).query().where("agent", "=", agent)
        since = to_datetime(max(known.upto - _SKEW, 0))
        finder = query.where("updated", ">=", since).order_by("updated").limit(_PAGE)
        cursor: str | None = None
        while True:
            page = await finder.page(after=cursor, options=STRONG)
            for item in page.items:
                known.learn(item.value, (item.version, item.created_us))
                known.upto = max(known.upto, item.updated_us)
            cursor = page.next
            if cursor is None:
                return known


class _AgentWords:
    """Which memories have which words, and which say what."""

    def __init__(self) -> None:
        #: When the newest change was made that is known. Microseconds.
        self.upto = 0
        self._of = dict[str, tuple[tuple[int, int], frozenset[str], str]]()
        self._with = dict[str, set[str]]()
        self._saying = dict[str, set[str]]()

    def learn(self, memory: Memory, version: tuple[int, int]) -> None:
        known = self._of.get(memory.id)
        if known is not None and known[0] == version:
            return
        if known is not None:
            del self._of[memory.id]
            self._saying[known[2]].discard(memory.id)
            for word in known[1]:
                self._with[word].discard(memory.id)
        if memory.is_active:
            words, said = _terms(memory.text), normalised(memory.text)
            self._of[memory.id] = (version, words, said)
            self._saying.setdefault(said, set()).add(memory.id)
            for word in words:
                self._with.setdefault(word, set()).add(memory.id)

    def saying(self, said: str) -> list[str]:
        return sorted(self._saying.get(said, ()))

    def nearest(self, words: Iterable[str], limit: int) -> list[tuple[str, float]]:
        weights = {word: self._weight(word) for word in words}
        shared = dict[str, float]()
        for word, weight in weights.items():
            for id in self._with.get(word, ()):
                shared[id] = shared.get(id, 0.0) + weight
        own = sum(weights.values())
        scores = [
            (id, common / (own + sum(map(self._weight, self._of[id][1])) - common))
            for id, common in heapq.nlargest(4 * limit, shared.items(), key=lambda each: each[1])
        ]
        return sorted(scores, key=lambda each: (-each[1], each[0]))[:limit]

    def _weight(self, word: str) -> float:
        return 1 + math.log((1 + len(self._of)) / (1 + len(self._with.get(word, ()))))


def _terms(text: str) -> frozenset[str]:
    from perdure.recall.words import terms  # it loads the stemmer

    return frozenset(terms(text))

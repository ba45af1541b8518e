"""Which memories of an agent have words in common with a text, and what they are to it.

Kept in this process, by word, and brought up to date before each look: what others changed since
is read. It only says what is worth a closer look: what it names may have changed or be gone.
"""

from __future__ import annotations

import heapq
import math
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TypeAlias

from perdure.core.clock import SECOND, to_datetime
from perdure.recall.memories.merging import Relation, Statement, read, relation
from perdure.recall.memories.records import Memory
from perdure.storage.options import STRONG
from perdure.storage.store import Store

#: Fetches memories by their ids.
Fetch: TypeAlias = Callable[[Iterable[str]], Awaitable[Sequence[Memory | None]]]
#: A memory, and what it is to another one.
Related: TypeAlias = tuple[Memory, Relation]
#: Memories that are compared with a text.
COMPARED = 24
#: Agents whose memories are kept at hand.
_AGENTS = 32
#: Clocks of different machines may differ so much. Microseconds.
_SKEW = 2 * SECOND
_PAGE = 200


class Resemblance:
    """The words of memories, of the agents that were last asked for."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._agents = OrderedDict[str, _Words]()

    async def look(self, agent: str, statement: Statement, limit: int) -> list[tuple[str, float]]:
        """Ids of active memories that have the most in common with a statement, those first.

        With each, how much: from 0 to 1, if they have all words in common.
        """
        known = self._agents.setdefault(agent, _Words())
        self._agents.move_to_end(agent)
        while len(self._agents) > _AGENTS:
            self._agents.popitem(last=False)
        await self._refresh(agent, known)
        return known.nearest(statement.content, limit)

    async def related(self, memory: Memory, fetch: Fetch) -> list[Related]:
        """Other active memories of its agent that say the same, or the contrary."""
        said = read(memory.text)
        near = await self.look(memory.agent, said, COMPARED)
        found = list[Related]()
        for other in await fetch(id for id, _ in near):
            if other is None or not other.is_active or other.id == memory.id:
                continue
            # A topic is what is talked about, and says nothing.
            if (other.kind == "topic") != (memory.kind == "topic"):
                continue
            says = "same" if other.text == memory.text else relation(said, read(other.text))
            if says != "other":
                found.append((other, says))
        return found

    def drop(self) -> None:
        """Know nothing any more: something was forgotten."""
        self._agents.clear()
        read.cache_clear()

    async def _refresh(self, agent: str, known: _Words) -> None:
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
                return


class _Words:
    """Which memories have which words."""

    def __init__(self) -> None:
        #: When the newest change was made that is known. Microseconds.
        self.upto = 0
        self._of = dict[str, tuple[tuple[int, int], frozenset[str]]]()
        self._with = dict[str, set[str]]()

    def learn(self, memory: Memory, version: tuple[int, int]) -> None:
        if memory.id in self._of and self._of[memory.id][0] == version:
            return
        self._unlearn(memory.id)
        if memory.is_active:
            words = read(memory.text).content
            self._of[memory.id] = (version, words)
            for word in words:
                self._with.setdefault(word, set()).add(memory.id)

    def _unlearn(self, id: str) -> None:
        _, words = self._of.pop(id, ((0, 0), frozenset()))
        for word in words:
            self._with[word].discard(id)

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

"""Looking at memories: by key, by what they are, by what they resemble."""

from __future__ import annotations

import builtins
import math
from collections.abc import Iterable
from typing import TYPE_CHECKING

from perdure.core.errors import PerdureError
from perdure.history.records import checked_agent
from perdure.recall.memories import records
from perdure.recall.memories.merging import read
from perdure.recall.memories.records import FormerMemory, Memory
from perdure.recall.memories.resembling import COMPARED, Resemblance
from perdure.storage.store import Store

if TYPE_CHECKING:
    from perdure.recall.embedders import Embedder

#: The least that `similar` names.
_ALIKE = 0.3


class MemoryReader:
    """What is known of the memories of a bank."""

    def __init__(self, store: Store, embedder: Embedder | None) -> None:
        self._store = store
        self._embedder = embedder
        self.resemblance = Resemblance(store)

    async def get(self, key: str, /, *, agent: str = "") -> Memory | None:
        """The memory of this key, whatever its status."""
        return await self._store.collection(Memory).get(records.parse_key(key, agent))

    async def list(
        self,
        agent: str | None = None,
        *,
        kind: str | None = None,
        tag: str | None = None,
        status: str | None = "active",
        weight: float = 0.0,
        words: str = "",
        limit: int | None = None,
    ) -> builtins.list[Memory]:
        """Memories of an agent, or of all, that fit: pinned ones first, then by weight and age.

        `status` is None for any, `weight` the least, `words` must all be in the text or a tag.
        """
        query = self._store.collection(Memory).query()
        if agent is not None:
            query = query.where("agent", "=", checked_agent(agent))
        if kind is not None:
            query = query.where("kind", "=", records.checked_kind(kind))
        if status is not None:
            query = query.where("status", "=", records.checked_status(status))
        if weight:
            query = query.where("weight", ">=", records.checked_weight(weight))
        (wanted,) = records.checked_tags((tag,)) if tag else ("",)
        found = [
            memory
            for memory in await query.values()
            if (not wanted or wanted in memory.tags) and _has(memory, words)
        ]
        return sorted(found, key=_rank)[:limit]

    async def merged_into(self, key: str, *, agent: str = "") -> builtins.list[Memory]:
        """What was merged into a memory, and into that."""
        found, waiting = builtins.list[Memory](), [records.parse_key(key, agent)]
        while waiting:
            query = self._store.collection(Memory).query().where("into", "=", waiting.pop())
            parts = await query.where("status", "=", "merged").values()
            found += parts
            waiting += [part.id for part in parts]
        return found

    async def history(self, key: str, *, agent: str = "") -> builtins.list[FormerMemory]:
        """The former versions of a memory, oldest first."""
        id = records.parse_key(key, agent)
        return await self._store.collection(FormerMemory).query().prefix(f"{id}/").values()

    async def rivals(
        self, memories: Iterable[Memory], *, agent: str | None = None
    ) -> dict[str, Memory]:
        """The active memories that contradict one of these, by id; only what an agent may see."""
        ids = sorted({id for memory in memories for id in memory.contradicts})
        found = await self._store.collection(Memory).get_many(ids)
        return {
            memory.id: memory
            for memory in found
            if memory is not None
            and memory.is_active
            and (agent is None or memory.is_visible_to(agent))
        }

    async def doubles(self, memory: Memory) -> builtins.list[Memory]:
        """Other active memories that say the same: one was edited so, or came back."""
        fetch = self._store.collection(Memory).get_many
        return [
            other
            for other, says in await self.resemblance.related(memory, fetch)
            if memory.is_active and says == "same"
        ]

    async def similar(
        self, agent: str, text: str, *, limit: int = 5
    ) -> builtins.list[tuple[Memory, float]]:
        """Active memories of an agent that may be about the same, with how alike they are.

        By their words; ordered by their vectors, if there is an embedder that works.
        """
        found = await self.resemblance.look(agent, read(text), COMPARED)
        near = {id: score for id, score in found if score >= _ALIKE}
        kept = await self._store.collection(Memory).get_many(near)
        alike = [(each, near[each.id]) for each in kept if each is not None and each.is_active]
        if self._embedder is not None and alike:
            alike = await _by_vector(self._embedder, text, alike)
        return alike[:limit]


def _rank(memory: Memory) -> tuple[bool, float, int, str]:
    return (not memory.pinned, -memory.weight, -memory.last, memory.id)


def _has(memory: Memory, words: str) -> bool:
    if not words.strip():
        return True
    text = f"{memory.text} {' '.join(memory.tags)}".casefold()
    return all(word in text for word in words.casefold().split())


async def _by_vector(
    embedder: Embedder, text: str, alike: list[tuple[Memory, float]]
) -> list[tuple[Memory, float]]:
    """The same, ordered by the cosine of their vectors; as they are, if there are none."""
    try:
        own, *others = await embedder.embed([text, *(memory.text for memory, _ in alike)])
    except PerdureError:
        return alike
    scored = [
        (memory, _cosine(own, vector)) for (memory, _), vector in zip(alike, others, strict=True)
    ]
    return sorted(scored, key=lambda each: -each[1])


def _cosine(one: bytes, other: bytes) -> float:
    a, b = memoryview(one).cast("b"), memoryview(other).cast("b")
    length = math.sqrt(sum(x * x for x in a) * sum(x * x for x in b))
    return sum(x * y for x, y in zip(a, b, strict=True)) / length if length else 0.0

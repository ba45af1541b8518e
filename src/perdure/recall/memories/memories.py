"""Memories: added, edited, merged, pinned, retired, deleted for good.

What is added is compared with what is there: what says the same (see `similar_memories`) is not
kept twice, the older one was seen once more. Memories that `contradict` each other are kept beside
each other, and name each other; the one that holds since later leads, unless another is pinned.

Who changes a memory is a person or a machine (`by`, else `perdure.acting_as`). What a person wrote
or changed, no machine changes: it gets `Conflict`, and may add what it has to say.

A change keeps the former version. To be seen again is no change: it raises the weight, and the turn
is noted. Everything is written in one transaction with the index.
"""

from __future__ import annotations

import builtins
import copy
import math
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from msgspec.structs import replace

from perdure.core.errors import InvalidInput, PerdureError
from perdure.core.input_types import require_text, require_texts
from perdure.history.log_records import checked_agent
from perdure.recall import memory_records as records
from perdure.recall.memories import memory_writer as rules
from perdure.recall.memories.memory_writer import Indexer, MemoryWriter
from perdure.recall.memories.similar_memories import SimilarMemories
from perdure.recall.memory_records import (
    WEIGHTS,
    Anchor,
    Author,
    FormerMemory,
    Memory,
    acting,
)
from perdure.storage.options import STRONG
from perdure.storage.store import Store
from perdure.storage.transaction import Transaction

if TYPE_CHECKING:
    from perdure.recall.embedders import Embedder

#: Takes secrets out of plain data.
Plain: TypeAlias = Callable[[Mapping[str, Any]], dict[str, Any]]
#: Leaves nothing readable of what was deleted; False if some may still be.
Scrub: TypeAlias = Callable[[], Awaitable[bool]]
#: Removes what prompts were told of memories, by their names.
Withdraw: TypeAlias = Callable[[Iterable[str]], Awaitable[None]]
R = TypeVar("R")
_PAGE = 100
#: The least that `similar` names, and memories that are compared with a text.
_ALIKE, _COMPARED = 0.3, 24


class Memories:
    """The memories of a bank.

    Keys are ``planner/M-7``, or ``M-7`` where `agent` says whose. What takes a key raises
    `InvalidInput` if there is no such memory; what changes one raises `Conflict` if it is not at
    the `expected` version, or if a machine would change what a person wrote.
    """

    def __init__(
        self,
        store: Store,
        index: Indexer | None = None,
        *,
        plain: Plain | None = None,
        scrub: Scrub | None = None,
        withdraw: Withdraw | None = None,
        embedder: Embedder | None = None,
    ) -> None:
        self._store = store
        self._transaction: Transaction | None = None
        self._embedder = embedder
        self.similarity = SimilarMemories(store)
        self.writer = MemoryWriter(store, index, self.similarity)
        self._plain = plain
        self._scrub = scrub
        self._withdraw = withdraw

    # Reading ------------------------------------------------------------------------------------

    async def get(self, key: str, /, *, agent: str = "") -> Memory | None:
        """The memory of this key, whatever its status."""
        return await self._store.collection(Memory).get(records.parse_key(key, agent))

    async def get_many(
        self, keys: Iterable[str], *, agent: str = ""
    ) -> builtins.list[Memory | None]:
        """The same for several keys, in their order."""
        ids = [records.parse_key(key, agent) for key in require_texts(keys, "keys")]
        return await self._store.collection(Memory).get_many(ids)

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
        query, words = self._store.collection(Memory).query(), require_text(words, "words")
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

    async def topic_weights(self, agent: str) -> dict[str, float]:
        """The weights of an agent's topics, by what they are called, in small letters."""
        query = self._store.collection(Memory).query().where("agent", "=", checked_agent(agent))
        found = await query.where("kind", "=", "topic").where("status", "=", "active").values()
        return {topic.text.casefold(): topic.weight for topic in found}

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
        return await self.similarity.same(memory, fetch) if memory.is_active else []

    async def similar(
        self, agent: str, text: str, *, limit: int = 5
    ) -> builtins.list[tuple[Memory, float]]:
        """Active memories of an agent that may be about the same, with how alike they are.

        By their words; ordered by their vectors, if there is an embedder that works.
        """
        text = require_text(text, "text")
        found = await self.similarity.nearest(checked_agent(agent), text, _COMPARED)
        near = {id: score for id, score in found if score >= _ALIKE}
        kept = await self._store.collection(Memory).get_many(near)
        alike = [(each, near[each.id]) for each in kept if each is not None and each.is_active]
        if self._embedder is not None and alike:
            alike = await _by_vector(self._embedder, text, alike)
        return alike[:limit]

    # Writing ----------------------------------------------------------------------------------

    def within(self, transaction: Transaction) -> Memories:
        """The same memories; what is changed by them is a part of this transaction. Not for
        `delete`, which leaves nothing readable behind.
        """
        joined = copy.copy(self)
        joined._transaction = transaction  # noqa: SLF001 (a copy of this one)
        return joined

    async def add(
        self,
        agent: str,
        text: str,
        *,
        kind: str = "fact",
        weight: float | None = None,
        tags: Iterable[str] = (),
        provenance: Iterable[str] = (),
        anchor: Anchor | Mapping[str, str] | None = None,
        shared: Iterable[str] = (),
        pinned: bool = False,
        time: int | None = None,
        by: Author | None = None,
    ) -> Memory:
        """Remember something; returns the memory, which is an older one if it says the same.

        `time` is when it was said, in microseconds; now, if it is left out.

        Raises `InvalidInput` for what cannot be kept, and if a turn of `provenance` is not there or
        was forgotten; `TooLarge` for a text above 4,000 characters.
        """
        sort, now = records.checked_kind(kind), self._store.now()
        moment = now if time is None else records.checked_time(time)
        author = by or acting()
        agents = records.checked_shared(shared)
        draft = Memory(
            id=records.memory_id(checked_agent(agent), 0),
            agent=agent,
            kind=sort,
            text=self._masked(records.checked_text(text)),
            weight=WEIGHTS[sort] if weight is None else records.checked_weight(weight),
            tags=self._tags(tags),
            provenance=records.checked_sources(provenance),
            anchor=records.checked_anchor(anchor),
            shared=agents,
            is_shared=bool(agents),
            pinned=pinned,
            first=moment,
            last=moment,
            since=moment,
            author=author,
            by_person=author.person,
        )

        return await self._transact(lambda transaction: self.writer.add(transaction, draft))

    async def edit(
        self,
        key: str,
        *,
        text: str | None = None,
        kind: str | None = None,
        weight: float | None = None,
        tags: Iterable[str] | None = None,
        shared: Iterable[str] | None = None,
        anchor: Anchor | Mapping[str, str] | None = None,
        provenance: Iterable[str] = (),
        expected: int | None = None,
        agent: str = "",
        by: Author | None = None,
    ) -> Memory:
        """Change what is given. `provenance` is added to what there is. Returns it as it is now.

        Raises `InvalidInput` and `TooLarge` like `add`.
        """
        changes: dict[str, Any] = {}
        if text is not None:
            changes["text"] = self._masked(records.checked_text(text))
        if kind is not None:
            changes["kind"] = records.checked_kind(kind)
        if weight is not None:
            changes["weight"] = records.checked_weight(weight)
        if tags is not None:
            changes["tags"] = self._tags(tags)
        if shared is not None:
            changes["shared"] = records.checked_shared(shared)
        if anchor is not None:
            changes["anchor"] = records.checked_anchor(anchor)
        sources = records.checked_sources(provenance)

        def change(memory: Memory) -> Memory:
            edited = replace(
                memory, **changes, provenance=records.joined(memory.provenance, sources)
            )
            if edited.text == memory.text:
                return edited
            return replace(edited, mixed=True, since=self._store.now())

        return await self._change(key, change, agent=agent, by=by, expected=expected)

    async def merge(
        self,
        keys: Sequence[str],
        *,
        text: str | None = None,
        agent: str = "",
        by: Author | None = None,
    ) -> Memory:
        """Make several memories of one agent one: the first, with this text or its own.

        It keeps its kind. The others are kept as merged into it, and can be restored. Raises
        `InvalidInput` if they are less than two, not of one agent, or not active.
        """
        ids = rules.several([records.parse_key(key, agent) for key in require_texts(keys, "keys")])
        said = None if text is None else self._masked(records.checked_text(text))
        author = by or acting()

        async def body(transaction: Transaction) -> Memory | PerdureError:
            found = await transaction.collection(Memory).get_many(ids)
            for id, memory in zip(ids, found, strict=True):
                refusal = rules.refusal(id, memory, author)
                if memory is None or refusal is not None:
                    return refusal or rules.missing(id)
                if (unused := rules.out_of_use(memory)) is not None:
                    return unused
            target, *others = (memory for memory in found if memory is not None)
            for other in others:
                gone = replace(other, status="merged", into=target.id, pinned=False)
                await self.writer.change(transaction, other, gone, author)
            # As it is now: it may have named one of them as contradicting it.
            target = await transaction.collection(Memory).get(target.id) or target
            merged = rules.merged(target, others, said, self._store.now())
            return await self.writer.change(transaction, target, merged, author)

        return await self._transact(body)

    async def contradict(self, keys: Sequence[str], *, agent: str = "") -> None:
        """Note that these memories of one agent cannot all hold; nobody finds that out by itself.

        It ends when one of them says something else, or is not recalled any more. Raises
        `InvalidInput` if they are less than two, not of one agent, or not active.
        """
        ids = rules.several([records.parse_key(key, agent) for key in require_texts(keys, "keys")])

        async def body(transaction: Transaction) -> PerdureError | None:
            found = builtins.list[Memory]()
            for id, memory in zip(
                ids, await transaction.collection(Memory).get_many(ids), strict=True
            ):
                if memory is None or not memory.is_active:
                    return rules.missing(id) if memory is None else rules.out_of_use(memory)
                found.append(memory)
            await self.writer.contradict(transaction, found)
            return None

        await self._transact(body)

    async def pin(self, key: str, *, agent: str = "", by: Author | None = None) -> Memory:
        """Let it come first, and lead where another contradicts it.

        Raises `InvalidInput` if it is not active.
        """

        def change(memory: Memory) -> Memory | PerdureError:
            return rules.out_of_use(memory) or replace(memory, pinned=True)

        return await self._change(key, change, agent=agent, by=by)

    async def unpin(self, key: str, *, agent: str = "", by: Author | None = None) -> Memory:
        """Let it come in its turn."""
        return await self._change(key, lambda m: replace(m, pinned=False), agent=agent, by=by)

    async def retire(
        self,
        key: str,
        *,
        superseded_by: str | None = None,
        agent: str = "",
        by: Author | None = None,
    ) -> Memory:
        """Keep it, unpinned, but recall it no more: because of another one, perhaps.

        Raises `InvalidInput` if it was merged into another one, or if the one that supersedes it
        is itself, not active, or not to be seen by its agent.
        """
        id = records.parse_key(key, agent)
        later = None if superseded_by is None else await self._later(id, superseded_by, agent)

        def change(memory: Memory) -> Memory | PerdureError:
            unused = rules.out_of_use(memory) if memory.status == "merged" else None
            return unused or rules.set_aside(memory, later)

        return await self._change(key, change, agent=agent, by=by)

    async def restore(self, key: str, *, agent: str = "", by: Author | None = None) -> Memory:
        """Bring back what was retired, merged or superseded."""

        def change(memory: Memory) -> Memory:
            return replace(memory, status="active", into=None)

        return await self._change(key, change, agent=agent, by=by)

    async def delete(self, key: str, *, agent: str = "", by: Author | None = None) -> bool:
        """Delete it for good, with its former versions and with what was merged into it.

        Returns whether nothing of it can be read in the bank's files any more: others who have the
        bank open may keep deleted bytes from being wiped.
        """
        id, author, gone = records.parse_key(key, agent), by or acting(), list[str]()

        async def body(transaction: Transaction) -> Memory | PerdureError:
            memory = await transaction.collection(Memory).get(id)
            refusal = rules.refusal(id, memory, author)
            if memory is None or refusal is not None:
                return refusal or rules.missing(id)
            gone[:] = await self.writer.remove(transaction, memory)
            return memory

        await self._transact(body)
        self.similarity.drop()
        await self.withdraw(gone)
        if self._scrub is None:
            return True
        return await self._scrub()

    async def withdraw(self, names: Iterable[str]) -> None:
        """Remove what prompts were told of memories, by their names."""
        if self._withdraw is not None:
            await self._withdraw(require_texts(names, "names"))

    async def refill(self) -> int:
        """Put all active memories into the index again; returns how many there are."""
        finder = self._store.collection(Memory).query().order_by("key").limit(_PAGE)
        count, cursor = 0, None
        while True:
            page = await finder.page(after=cursor, options=STRONG)
            count += await self._reindex([memory.id for memory in page.values])
            cursor = page.next
            if cursor is None:
                return count

    # ------------------------------------------------------------------------------------------

    async def _reindex(self, ids: Sequence[str]) -> int:
        async def body(transaction: Transaction) -> int:
            found = await transaction.collection(Memory).get_many(ids)
            active = [memory for memory in found if memory is not None and memory.is_active]
            for memory in active:
                await self.writer.index(transaction, memory)
            return len(active)

        return await self._store.transact(body)

    async def _change(
        self,
        key: str,
        change: Callable[[Memory], Memory | PerdureError],
        *,
        agent: str,
        by: Author | None,
        expected: int | None = None,
    ) -> Memory:
        id, author = records.parse_key(key, agent), by or acting()

        async def body(transaction: Transaction) -> Memory | PerdureError:
            memory = await transaction.collection(Memory).get(id)
            refusal = rules.refusal(id, memory, author, expected)
            if memory is None or refusal is not None:
                return refusal or rules.missing(id)
            changed = change(memory)
            if isinstance(changed, PerdureError) or changed == memory:
                return changed
            return await self.writer.change(transaction, memory, changed, author)

        return await self._transact(body)

    async def _later(self, id: str, key: str, agent: str) -> str:
        """The id of the memory that is to supersede another. Raises `InvalidInput`."""
        found = await self.get(key, agent=agent)
        owner = id.rpartition("/")[0]
        if found is None or found.id == id or not found.is_visible_to(owner):
            raise InvalidInput(
                f"{key} cannot supersede {records.shown(id, agent)}.",
                hint=f"Name another memory that {owner} may see.",
            )
        if (unused := rules.out_of_use(found)) is not None:
            raise unused
        return found.id

    async def _transact(self, body: Callable[[Transaction], Awaitable[R | PerdureError]]) -> R:
        """Run a body that returns what it refuses: a `Conflict` that it raised would repeat it."""
        if self._transaction is not None:
            done = await body(self._transaction)
        else:
            done = await self._store.transact(body, STRONG)
        if isinstance(done, PerdureError):
            raise done
        return done

    def _tags(self, tags: Iterable[str]) -> tuple[str, ...]:
        return records.checked_tags(map(self._masked, records.checked_tags(tags)))

    def _masked(self, text: str) -> str:
        if self._plain is None:
            return text
        masked: str = self._plain({"text": text})["text"]
        return masked


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

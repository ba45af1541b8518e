"""Memories: added, edited, merged, pinned, retired, deleted for good.

What is added is compared with what is there (see `merging`). What says the same is not kept twice:
the older one was seen once more. What contradicts an older one is kept beside it, each naming the
other; the one that holds since later leads, unless the other is pinned.

Who changes a memory is a person or a machine (`by`, else `perdure.acting_as`). What a person wrote
or changed, no machine changes: it gets `Conflict`, and may add what it has to say.

A change keeps the former version. To be seen again is no change: it raises the weight, and the turn
is noted. Everything is written in one transaction with the index.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from msgspec.structs import replace

from perdure.core.errors import InvalidInput, PerdureError
from perdure.history.records import checked_agent
from perdure.recall.memories import records, rules
from perdure.recall.memories.reading import MemoryReader
from perdure.recall.memories.records import (
    WEIGHTS,
    Anchor,
    Author,
    Memory,
    acting,
)
from perdure.recall.memories.writing import Indexer, Writing
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
_PAGE = 100


class Memories(MemoryReader):
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
        super().__init__(store, embedder)
        self.writing = Writing(store, index, self.resemblance)
        self._plain = plain
        self._scrub = scrub
        self._withdraw = withdraw

    # Writing ----------------------------------------------------------------------------------

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

        return await self._store.transact(
            lambda transaction: self.writing.add(transaction, draft), STRONG
        )

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
        ids = rules.several([records.parse_key(key, agent) for key in keys])
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
                await self.writing.change(transaction, other, gone, author)
            # As it is now: it may have named one of them as contradicting it.
            target = await transaction.collection(Memory).get(target.id) or target
            merged = rules.merged(target, others, said, self._store.now())
            return await self.writing.change(transaction, target, merged, author)

        return await self._transact(body)

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
            gone[:] = await self.writing.remove(transaction, memory)
            return memory

        await self._transact(body)
        self.resemblance.drop()
        await self.withdraw(gone)
        if self._scrub is None:
            return True
        return await self._scrub()

    async def withdraw(self, names: Iterable[str]) -> None:
        """Remove what prompts were told of memories, by their names."""
        if self._withdraw is not None:
            await self._withdraw(names)

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
                await self.writing.index(transaction, memory)
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
            return await self.writing.change(transaction, memory, changed, author)

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

    async def _transact(
        self, body: Callable[[Transaction], Awaitable[Memory | PerdureError]]
    ) -> Memory:
        """Run a body that returns what it refuses: a `Conflict` that it raised would repeat it."""
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

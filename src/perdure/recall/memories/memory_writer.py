"""How memories are written inside a transaction: who may, compared, linked, versioned, indexed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from msgspec.structs import replace

from perdure.core.clock import SECOND
from perdure.core.errors import Conflict, InvalidInput, NotFound, PerdureError
from perdure.history.log_records import Head, SessionRecord, TurnPiece, owners, turn_prefix
from perdure.recall import memory_records as records
from perdure.recall.memories.similar_memories import SimilarMemories
from perdure.recall.memory_records import (
    MAX_TAGS,
    Author,
    FormerMemory,
    LastNumber,
    Memory,
    joined,
    joined_quotes,
    shown,
)
from perdure.recall.places import memories_of
from perdure.recall.values import Note
from perdure.storage.options import STRONG
from perdure.storage.store import Store
from perdure.storage.transaction import Transaction

#: Of what a weight lacks, so much is added when a memory is seen again.
_GAIN = 0.1


class Indexer(Protocol):
    """Where what is to be found goes: `recall.indexing.index.RecallIndex`."""

    async def put(
        self, transaction: Transaction, group: str, ordinal: int, text: str, note: Note
    ) -> None: ...
    async def withdraw(self, transaction: Transaction, group: str, ordinal: int) -> None: ...


def refusal(
    id: str, memory: Memory | None, author: Author, expected: int | None = None
) -> PerdureError | None:
    """Why a memory is not to be changed, if so."""
    if memory is None:
        return missing(id)
    if expected is not None and memory.version != expected:
        return Conflict("memories", memory.name, expected=expected, found=memory.version)
    if memory.by_person and not author.person:
        return Conflict(
            "memories",
            memory.name,
            message=f"{memory.name} was written or edited by a person, and no machine changes it.",
            hint="Add what you know as a memory of its own: if it contradicts, the newer leads.",
        )
    return None


def missing(id: str) -> NotFound:
    return NotFound(
        f"There is no memory {shown(id)}.", hint="It may have been deleted; look for it."
    )


def out_of_use(memory: Memory) -> InvalidInput | None:
    """Why nothing is to be done with a memory that is not recalled any more."""
    if memory.is_active:
        return None
    into = "" if memory.into is None else f" into {shown(memory.into)}"
    status = f"merged{into}" if memory.status == "merged" else memory.status
    return InvalidInput(
        f"{memory.name} is {status}, and not recalled any more.", hint="Restore it first."
    )


def set_aside(memory: Memory, into: str | None) -> Memory:
    """A memory that is not to be recalled any more. What does not come does not come first."""
    return replace(memory, status="superseded" if into else "retired", into=into, pinned=False)


def several(ids: Sequence[str]) -> list[str]:
    """Ids of memories that can be merged, each once. Raises `InvalidInput`."""
    found = list(dict.fromkeys(ids))
    if len(found) < 2:
        raise InvalidInput(
            "Merging takes two memories, or more.", hint="Name the one that stays, then the others."
        )
    if len({id.rpartition("/")[0] for id in found}) > 1:
        raise InvalidInput(
            "Memories of different agents are not merged.",
            hint="Share one of them, and retire the other.",
        )
    return found


def merged(target: Memory, others: Sequence[Memory], text: str | None, now: int) -> Memory:
    """The first of several memories, now that it stands for all."""
    every = (target, *others)
    sources = tuple(source for memory in every for source in memory.provenance)
    tags = sorted({tag for memory in every for tag in memory.tags})
    return replace(
        target,
        text=target.text if text is None else text,
        mixed=True,
        weight=max(memory.weight for memory in every),
        tags=tuple(tags[:MAX_TAGS]),
        provenance=joined(sources, ()),
        quotes=joined_quotes([quote for memory in every for quote in memory.quotes], ()),
        seen=sum(memory.seen for memory in every),
        first=min(memory.first for memory in every),
        last=max(memory.last for memory in every),
        since=target.since if text is None else now,
        pinned=any(memory.pinned for memory in every),
    )


class MemoryWriter:
    """Writes memories. Whoever calls it has a transaction, and repeats it on conflict."""

    def __init__(self, store: Store, index: Indexer | None, similar: SimilarMemories) -> None:
        self._store = store
        self._index = index
        self._similar = similar

    async def add(self, transaction: Transaction, draft: Memory) -> Memory:
        """Give a new memory its number, unless an older one says the same: that is seen again.

        Raises `InvalidInput` if a turn that it came from is not there, or was forgotten.
        """
        # Read first: whoever else adds something meanwhile makes this one look again.
        numbers = transaction.collection(LastNumber)
        key = records.numbers_of(draft.agent)
        last = await numbers.get(key) or LastNumber(key)
        sources = await self.owned(transaction, draft.provenance)
        new = replace(draft, provenance=sources)
        for memory in await self._similar.same(new, transaction.collection(Memory).get_many):
            return await self._seen_again(transaction, memory, new)
        number = last.last + 1
        await numbers.put(replace(last, last=number))
        return await self.write(transaction, replace(new, id=records.memory_id(new.agent, number)))

    async def change(
        self, transaction: Transaction, former: Memory, changed: Memory, author: Author
    ) -> Memory:
        """Write what a memory was changed to, and keep it as it was."""
        await transaction.collection(FormerMemory).put(
            FormerMemory(records.version_id(former), former, self._store.now())
        )
        written = replace(
            changed,
            provenance=await self.owned(transaction, changed.provenance, former.provenance),
            is_shared=bool(changed.shared),
            author=author,
            by_person=former.by_person or author.person,
            version=former.version + 1,
        )
        if written.text != former.text or not written.is_active:
            # What was contradicted is not said any more, or not recalled.
            await self._unlink(transaction, written, written.contradicts)
            written = replace(written, contradicts=())
        return await self.rewrite(transaction, former, written)

    async def contradict(self, transaction: Transaction, memories: Sequence[Memory]) -> None:
        """Note that these cannot all hold: each names the others."""
        for memory in memories:
            others = {other.id for other in memories if other.id != memory.id}
            named = tuple(sorted(others.union(memory.contradicts)))
            await transaction.collection(Memory).put(replace(memory, contradicts=named))

    async def write(self, transaction: Transaction, memory: Memory) -> Memory:
        """Write a memory as it is given, in the index too."""
        await transaction.collection(Memory).put(memory)
        await self.index(transaction, memory)
        return memory

    async def rewrite(self, transaction: Transaction, former: Memory, memory: Memory) -> Memory:
        """The same for one that is there; the index is left alone if it knows all of it."""
        if _is_found_alike(memory, former):  # to index it anew would cost its vectors
            await transaction.collection(Memory).put(memory)
            return memory
        return await self.write(transaction, memory)

    async def remove(self, transaction: Transaction, memory: Memory) -> list[str]:
        """Delete a memory with all that belongs to it; others name it no more.

        Returns its name, and those of memories that had been merged into it: they go, too.
        """
        memories, gone = transaction.collection(Memory), [memory.name]
        await self._unlink(transaction, memory, memory.contradicts)
        for other in await memories.query().where("into", "=", memory.id).values():
            if other.id == memory.id:
                continue
            if other.status == "merged":
                gone += await self.remove(transaction, other)
            else:
                await memories.put(replace(other, into=None))
        await transaction.collection(FormerMemory).query().prefix(f"{memory.id}/").delete()
        await memories.delete(memory.id)
        if self._index is not None:
            await self._index.withdraw(transaction, memories_of(memory.agent), memory.number)
        return gone

    async def index(self, transaction: Transaction, memory: Memory) -> None:
        """Let an active memory be found, and any other not."""
        if self._index is None:
            return
        group = memories_of(memory.agent)
        if not memory.is_active:
            await self._index.withdraw(transaction, group, memory.number)
            return
        await self._index.put(transaction, group, memory.number, *_entry(memory))

    # ------------------------------------------------------------------------------------------

    async def _seen_again(self, transaction: Transaction, memory: Memory, new: Memory) -> Memory:
        """An older memory, now that it was said once more."""
        seen = replace(
            memory,
            seen=memory.seen + 1,
            first=min(memory.first, new.first),
            last=max(memory.last, new.last),
            since=max(memory.since, new.since) if memory.contradicts else memory.since,
            provenance=records.joined(memory.provenance, new.provenance),
        )
        if memory.by_person and not new.by_person:
            return await self.write(transaction, seen)
        seen = replace(
            seen,
            tags=records.checked_tags({*memory.tags, *new.tags})
            if _fit(memory, new)
            else memory.tags,
            pinned=memory.pinned or new.pinned,
            weight=round(max(memory.weight + _GAIN * (1 - memory.weight), new.weight), 4),
            shared=records.checked_shared({*memory.shared, *new.shared}),
        )
        if _is_better(new, memory):
            better = replace(seen, text=new.text)
            return await self.change(transaction, memory, better, new.author)
        return await self.write(transaction, replace(seen, is_shared=bool(seen.shared)))

    async def _unlink(
        self, transaction: Transaction, memory: Memory, rivals: Iterable[str]
    ) -> None:
        memories = transaction.collection(Memory)
        for rival in await memories.get_many(rivals):
            if rival is not None:
                left = tuple(id for id in rival.contradicts if id != memory.id)
                await memories.put(replace(rival, contradicts=left))

    async def owned(
        self, transaction: Transaction, sources: Sequence[str], known: Sequence[str] = ()
    ) -> tuple[str, ...]:
        """The turns by the sessions whose logs hold them: a fork has some from its ancestors.

        So whoever forgets a turn finds what came from it; and if that happens meanwhile, the
        transaction fails. Raises `InvalidInput` if one is not there, or was forgotten; whether it
        has such a round is not looked at.
        """
        found = dict[str, None]()
        sessions = transaction.collection(SessionRecord)
        for source in sources:
            if source in known:
                found[source] = None
                continue
            name, place = records.source_of(source)
            record = await sessions.get(name)
            # Not in the transaction: it need not be repeated because the session goes on. Who
            # forgets the session removes its head first, and then changes its record.
            head = await self._store.collection(Head).get(name, STRONG)
            if record is None or head is None:
                raise InvalidInput(
                    f"There is no session {name!r} that a memory could come from.",
                    hint="Check the turn's name; or was the session forgotten?",
                )
            if place.turn > head.newest:
                raise InvalidInput(
                    f"{name} has no turn T-{place.turn} that a memory could come from.",
                    hint=f"Its newest is T-{head.newest}." if head.newest else "It has none yet.",
                )
            owner = next(owners(record, place.turn, place.turn)).session
            if await _is_forgotten(transaction, owner, place.turn):
                raise InvalidInput(
                    f"{name}#T-{place.turn} was forgotten: no memory can come from it any more.",
                    hint="Forgotten is forgotten; name other turns, or none.",
                )
            found[f"{owner}#{place}"] = None
        return tuple(found)


async def _is_forgotten(transaction: Transaction, session: str, turn: int) -> bool:
    """Whether a turn has a tombstone. One that it gets later lets the transaction fail."""
    pieces = transaction.collection(TurnPiece).query().prefix(turn_prefix(session, turn))
    return any(piece.forgotten for piece in await pieces.limit(1).values())


def _entry(memory: Memory) -> tuple[str, Note]:
    """What the index is told of a memory."""
    tags = dict.fromkeys(memory.tags, "")
    if memory.anchor is not None and memory.anchor.branch:
        tags["branch"] = memory.anchor.branch
    text = "\n".join(filter(None, (memory.text, " ".join(memory.tags))))
    return text, Note(time=memory.last // SECOND, tags=tags)


def _is_found_alike(memory: Memory, former: Memory) -> bool:
    """Whether the index knows all of a memory that was changed."""
    return memory.is_active and former.is_active and _entry(memory) == _entry(former)


def _fit(memory: Memory, new: Memory) -> bool:
    return len({*memory.tags, *new.tags}) <= records.MAX_TAGS


def _is_better(new: Memory, old: Memory) -> bool:
    """Whether the new text is to stand for both: a person's, or a tidier sentence."""
    if new.by_person != old.by_person:
        return new.by_person and new.text != old.text
    return _tidiness(new.text) > _tidiness(old.text)


def _tidiness(text: str) -> int:
    return (text[:1].isupper() and not text.isupper()) + text.endswith((".", "!", "`"))

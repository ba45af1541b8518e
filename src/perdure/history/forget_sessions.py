"""Forgetting for good: a turn's content, a session, an agent.

Each collection with content belongs to a `ForgetPlace`, all joined in one `Forgetting`. A test
fails for a collection of Perdure's own that belongs to no place, unless it lists the reason.

Forgetting a turn leaves a tombstone: its number, its times and the hash that the chain needs.
Forgetting a session leaves nothing. It is done place by place, and can be repeated until it is
complete: the session's name stays until the last step is done. Afterwards the backend makes deleted
bytes unreadable.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol

import msgspec

from perdure.artifacts import ArtifactStore
from perdure.core.errors import Conflict, InvalidInput
from perdure.history import chain
from perdure.history.import_cursors import bury_cursors
from perdure.history.log_records import (
    AnswerDraft,
    Head,
    Owned,
    Receipt,
    SessionRecord,
    SharedTurns,
    TurnCount,
    TurnPiece,
    Use,
    checked_agent,
    owners,
    turn_key,
    turn_prefix,
)
from perdure.history.renditions.rendition_records import TASK, Rendition, Tiny
from perdure.history.reroot_forks import Rerooting
from perdure.history.turn_reader import TurnReader
from perdure.jobs import Job, PendingMark
from perdure.storage.collection import Collection
from perdure.storage.delivery import Parked
from perdure.storage.memory_windows import WindowEntry
from perdure.storage.options import STRONG
from perdure.storage.state_records import StateRecord
from perdure.storage.store import Store

_PAGE = 200


class ForgetScope(msgspec.Struct, frozen=True):
    """Whole sessions, or some turns of one, or all of an agent."""

    sessions: tuple[str, ...] = ()
    turns: tuple[int, ...] = ()
    agent: str | None = None


class Forgotten(msgspec.Struct, frozen=True):
    """What was forgotten."""

    sessions: list[str] = []
    #: Without those of `bank.forget(turns=…)` that had been forgotten before.
    turns: int = 0
    artifacts: int = 0
    memories: int = 0  # Those made from what is gone; not those that a person wrote.
    #: Nothing of it can be read in the bank's files any more. Otherwise it is deleted, but others
    #: who have the bank open kept its bytes from being wiped: forget something again to repeat it.
    erased: bool = True


class ForgetPlace(Protocol):
    """A part that holds content of turns, or content made from them."""

    @property
    def collections(self) -> frozenset[str]: ...

    async def forget(self, scope: ForgetScope) -> int | None:
        """Delete what belongs to the scope; returns how many memories are gone. Repeatable."""


class Prefixed:
    """Records whose keys begin with their session, behind `before`."""

    def __init__(self, store: Store, *types: type[msgspec.Struct], before: str = "") -> None:
        self._collections: list[Collection[msgspec.Struct]] = [
            store.collection(cls) for cls in types
        ]
        self._before = before

    @property
    def collections(self) -> frozenset[str]:
        return frozenset(collection.name for collection in self._collections)

    async def forget(self, scope: ForgetScope) -> None:
        before = self._before
        for collection in self._collections:
            for session in scope.sessions:
                if scope.turns:
                    for turn in scope.turns:
                        await remove(collection, before + turn_prefix(session, turn))
                        await collection.delete(before + turn_key(session, turn))
                else:
                    await remove(collection, f"{before}{session}/")
                    await collection.delete(before + session)
            if scope.agent is not None:
                await remove(collection, f"{before}{scope.agent}/")
                await collection.delete(before + scope.agent)


class AgentOnly(Prefixed):
    """Records that belong to an agent, or to a session as a whole."""

    async def forget(self, scope: ForgetScope) -> None:
        if not scope.turns:
            await super().forget(scope)


class Events:
    """Undelivered events whose key is, or begins with, a session."""

    collections = frozenset({"perdure_parked"})

    def __init__(self, store: Store) -> None:
        self._parked = store.collection(Parked)

    async def forget(self, scope: ForgetScope) -> None:
        if scope.turns:
            return
        names = (*scope.sessions, scope.agent) if scope.agent is not None else scope.sessions
        async for event in self._parked.walk():
            if any(event.key == name or event.key.startswith(f"{name}/") for name in names):
                await self._parked.delete(event.id)


class Forgetting:
    """Forgets turns, sessions and agents in every collection."""

    def __init__(
        self,
        store: Store,
        reader: TurnReader,
        artifacts: ArtifactStore,
        scrub: Callable[[], Awaitable[bool]],
    ) -> None:
        self._store = store
        self._reader = reader
        self._artifacts = artifacts
        self._scrub = scrub
        #: Handled here: turns need tombstones, artifacts a count, imports a note not to bring it
        #: back, and a session tells, until all is done, that it is not.
        self._own = frozenset(
            {
                "perdure_artifacts",
                "perdure_imports",
                "perdure_sessions",
                "perdure_turns",
                "perdure_uses",
            }
        )
        # Counts before renditions: whoever makes one commits only if the count is still there.
        self.places: list[ForgetPlace] = [
            Prefixed(store, TurnCount, AnswerDraft),
            Prefixed(store, Rendition, Tiny),
            Prefixed(store, Job, before=f"{TASK}/"),
            Events(store),
        ]
        self._last = AgentOnly(store, Receipt, PendingMark, StateRecord, WindowEntry, Head)
        #: Called with turns that a fork is given as its own, and its name; then with its name.
        self.rerooting: list[Callable[[SharedTurns, str], Awaitable[None]]] = []
        self.rerooted: list[Callable[[str], Awaitable[None]]] = []
        #: Called with each session that was forgotten, or turns of which were.
        self.forgotten: list[Callable[[str], None]] = []
        self._rerooting = Rerooting(store, reader, self.rerooting, self.rerooted)

    def join(self, place: ForgetPlace) -> None:
        """Add a place. It goes before those joined earlier: what is made from turns goes first."""
        self.places.insert(0, place)

    @property
    def collections(self) -> frozenset[str]:
        places = (*self.places, self._last)
        return self._own.union(*(place.collections for place in places))

    async def turns(self, record: SessionRecord, numbers: Sequence[int]) -> Forgotten:
        """Forget the content of turns. Raises `InvalidInput` if a turn is not the session's own:
        turns that a fork shares are the parent's.
        """
        if not numbers:
            return Forgotten()  # a scope without turns would be the whole session
        head = await self._store.collection(Head).get(record.id)
        for number in numbers:
            if head is None or not record.forked_at < number <= head.newest:
                owner = next(iter(owners(record, number, number)), None)
                shared = owner is not None and owner.session != record.id
                raise InvalidInput(
                    f"T-{number} is not a turn of {record.id}'s own.",
                    hint=f"It lies in {owner.session}." if owner and shared else "Check it.",
                )
        scope = ForgetScope((record.id,), tuple(numbers))
        memories = await self._empty(scope)
        await self._end_answers(record.id, numbers)
        turns = gone = 0
        for number in numbers:
            turns += await self._bury(record.id, number)
            gone += await self._release(turn_prefix(record.id, number))
        memories += await self._empty(scope)
        self._tell([record.id])
        erased = await self._scrub()
        return Forgotten([record.id], turns, gone, memories, erased)

    async def sessions(
        self, names: Sequence[str], *, reroot: bool = False, agent: str | None = None
    ) -> Forgotten:
        """Forget whole sessions, with the sub-agents that they started. Raises `Conflict` if
        another session shares their turns, unless `reroot` copies these to it first.
        """
        going = await self._with_subagents(names)
        await self._free(going, reroot=reroot)
        # A sub-agent goes before the session that started it, and is found through that until then.
        scope = ForgetScope(tuple(reversed(going)), agent=agent)
        turns = gone = 0
        for name in going:
            heads = self._store.collection(Head)
            head = await heads.get(name)
            record = await self._store.collection(SessionRecord).get(name)
            if head is not None and record is not None:
                turns += head.turn - record.forked_at
            # First of all: without it nobody can append, or fork.
            await heads.delete(name)
        await self._free(going, reroot=reroot)  # somebody may have forked it meanwhile
        memories = await self._empty(scope)
        for name in going:
            gone += await self._release(f"{name}/")
            await remove(self._store.collection(TurnPiece), f"{name}/")
            await bury_cursors(self._store, name)
            await self._strip(name)
        await self._last.forget(scope)
        self._tell(going)
        memories += await self._empty(scope)
        erased = await self._scrub()
        for name in scope.sessions:
            await self._store.collection(SessionRecord).delete(name)
        return Forgotten(going, turns, gone, memories, erased)

    async def agent(self, name: str, *, reroot: bool = False) -> Forgotten:
        """Forget an agent: its sessions and all that is kept under its name. Raises `InvalidInput`
        if no agent can be called that.
        """
        checked_agent(name)
        records = self._store.collection(SessionRecord)
        found = await records.query().where("agent", "=", name).values()
        return await self.sessions([record.id for record in found], reroot=reroot, agent=name)

    def _tell(self, sessions: Sequence[str]) -> None:
        for told in self.forgotten:
            for session in sessions:
                told(session)

    async def _empty(self, scope: ForgetScope) -> int:
        """Called before the turns go, and after: others may be at work on them."""
        return sum([await place.forget(scope) or 0 for place in self.places])

    async def _strip(self, session: str) -> None:
        def stripped(found: SessionRecord | None) -> SessionRecord:
            if found is None:
                raise InvalidInput(f"{session} is gone.", hint="Somebody else forgot it.")
            return msgspec.structs.replace(found, state={}, tags={}, link=None)

        await self._store.collection(SessionRecord).change(session, stripped)

    async def _bury(self, session: str, number: int) -> bool:
        """Put a tombstone in the place of each piece; returns False if they all had one before."""
        pieces = await self._reader.pieces(Owned(session, number, number))
        left = [piece for piece in pieces if not piece.forgotten]
        for piece in left:
            await self._store.collection(TurnPiece).put(chain.tombstone(piece))
        return bool(left) or not pieces  # not written yet: an answer that is arriving was all of it

    async def _release(self, prefix: str) -> int:
        uses, gone = self._store.collection(Use), 0
        finder = uses.query().prefix(prefix).limit(_PAGE)
        while found := await finder.values():
            for use in found:
                # The artifact before its use: so what is not done yet is found by the next try.
                alone = await self._users(use.artifact) == [use]
                if alone:
                    gone += await self._artifacts.release(use.artifact, own=1)
                await uses.delete(use.id)
                # Its other user may be forgotten at the same time, and have seen our use.
                if not alone and not await self._users(use.artifact):
                    gone += await self._artifacts.release(use.artifact)
        return gone

    async def _users(self, artifact: str) -> list[Use]:
        uses = self._store.collection(Use).query()
        return await uses.where("artifact", "=", artifact).limit(2).values(STRONG)

    async def _end_answers(self, session: str, numbers: Sequence[int]) -> None:
        def change(head: Head | None) -> Head:
            if head is None:
                return Head(session)
            left = tuple(turn for turn in head.answering if turn not in numbers)
            return msgspec.structs.replace(head, answering=left)

        head = await self._store.collection(Head).get(session)
        if head is not None and set(head.answering) & set(numbers):
            await self._store.collection(Head).change(session, change)

    async def _with_subagents(self, names: Sequence[str]) -> list[str]:
        records = self._store.collection(SessionRecord)
        found = dict[str, None]()
        waiting = list(names)
        while waiting:
            name = waiting.pop()
            if name not in found:
                found[name] = None
                started = await records.query().where("started_by", "=", name).values()
                waiting += [record.id for record in started]
        return list(found)

    async def _free(self, going: Sequence[str], *, reroot: bool) -> None:
        records = self._store.collection(SessionRecord)
        while True:
            staying = list[tuple[SessionRecord, str]]()
            for name in going:
                children = await records.query().where("parent", "=", name).values()
                staying += [(child, name) for child in children if child.id not in going]
            if not staying:
                return
            if not reroot:
                child, name = staying[0]
                raise Conflict(
                    "perdure_sessions",
                    name,
                    message=f"{name} cannot be forgotten: it shares turns with {child.id}.",
                    hint="Forget that first, or reroot: it gets the turns as its own.",
                )
            # Each of them is then a fork of its parent's parent, which may be going, too.
            for child, name in staying:
                await self._rerooting.give(child, name)


async def remove(collection: Collection[Any], prefix: str) -> None:
    await collection.query().prefix(prefix).delete()

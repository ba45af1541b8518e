"""The places of a session's line: its own turns, and those that it has from its ancestors.

A fork has its parent's turns as they were when it left. What was added to one of them afterwards is
another line's, so its places are left out. A turn that was overtaken and goes on much later is
looked for among the last turns before the fork only, as `TurnReader.end_of` does; of an older one
the words may be found, and are not shown, as turns are read along the line.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Annotated, NamedTuple

import msgspec

from perdure.history.forget_sessions import AgentOnly
from perdure.history.log_records import (
    ENDLESS,
    Head,
    Owned,
    SessionRecord,
    SharedTurns,
    TurnPiece,
    TurnSpan,
    owners,
)
from perdure.history.turn_reader import TurnReader
from perdure.recall import places
from perdure.recall.places import PART_BITS, ROUND_BITS, TURN_BITS, Spot, joined, without
from perdure.search.engine import Range
from perdure.storage.options import STRONG
from perdure.storage.records import Key, system_record
from perdure.storage.store import Store
from perdure.storage.transaction import Transaction

#: Later turns, rounds and parts share this number: who may see only some of them sees none.
LAST_TURN = 2 ** (TURN_BITS - ROUND_BITS) - 1
_LAST_ROUND = 2 ** (ROUND_BITS - PART_BITS) - 1
_LAST_PART = 2**PART_BITS - 1
#: Turns in front of a fork in which late pieces are looked for.
_NEAR = 20
#: Forks whose late pieces are kept in mind.
_KEPT = 1_000


class _Late(NamedTuple):
    """What was added to shared turns behind a fork, as of so many pieces in their owner's chain."""

    pieces: int
    #: Turn, round, and the first part of it that is not shared.
    found: tuple[tuple[int, int, int], ...]


class Lines:
    """Finds the places of lines in a store."""

    def __init__(self, store: Store) -> None:
        self._reader = TurnReader(store)
        self._heads = store.collection(Head)
        self._late = dict[Owned, _Late]()

    async def ranges(
        self,
        record: SessionRecord,
        undone: Sequence[TurnSpan],
        numbers: Mapping[str, int],
    ) -> tuple[Range, ...]:
        """The places of its line without what was undone. `numbers` are those of the groups."""
        parts = [owned for owned in owners(record, 1, ENDLESS) if owned.session in numbers]
        shared = [owned for owned in parts if owned.piece != ENDLESS]
        late = dict(zip(shared, await self._added(shared), strict=True))
        found = list[Range]()
        for owned in parts:
            group = numbers[owned.session]
            holes = [*_undone(group, undone), *_unshared(group, late.get(owned, ()))]
            found += without(_whole(group, owned), joined(holes))
        return joined(found)

    async def _added(self, shared: Sequence[Owned]) -> list[tuple[tuple[int, int, int], ...]]:
        """What was added to each of these stretches after the fork left."""
        if not shared:
            return []
        heads = await self._heads.get_many([owned.session for owned in shared], STRONG)
        found = list[tuple[tuple[int, int, int], ...]]()
        for owned, head in zip(shared, heads, strict=True):
            # Without a head it is being forgotten, and is read in vain.
            pieces = 0 if head is None else head.pieces
            known = self._late.get(owned)
            if known is None or known.pieces != pieces:
                near = Owned(owned.session, max(owned.first, owned.last - _NEAR), owned.last)
                known = _Late(pieces, ())
                if pieces > owned.piece:
                    known = _Late(pieces, late(await self._reader.pieces(near), owned.piece))
                if len(self._late) >= _KEPT:
                    self._late.clear()
                self._late[owned] = known
            found.append(known.found)
        return found


def whole_line(record: SessionRecord, numbers: Mapping[str, int]) -> tuple[Range, ...]:
    """The places of all turns of a line, with what is not seen of them: to leave room for it."""
    return joined(
        places.turns(numbers[owned.session], owned.first, min(owned.last, LAST_TURN))
        for owned in owners(record, 1, ENDLESS)
        if owned.session in numbers and owned.first <= LAST_TURN
    )


def turns_of(number: int, spans: Iterable[TurnSpan]) -> list[Range]:
    """The places of these turns of a group."""
    return list(_undone(number, spans))


def late(pieces: Iterable[TurnPiece], last: int) -> tuple[tuple[int, int, int], ...]:
    """The rounds to which pieces behind `last` added, and from which part on."""
    shared = dict[tuple[int, int], int]()
    added = dict[tuple[int, int], None]()
    for piece in pieces:
        for round, messages in piece.by_round():
            place = piece.turn, round
            if piece.number > last:
                added[place] = None
            else:
                shared[place] = shared.get(place, 0) + len(messages)
    return tuple((turn, round, shared.get((turn, round), 0)) for turn, round in added)


def _whole(group: int, owned: Owned) -> tuple[Range, ...]:
    if owned.piece == ENDLESS:
        return (places.turns(group),)
    last = min(owned.last, LAST_TURN - 1)
    return (places.turns(group, owned.first, last),) if owned.first <= last else ()


def _undone(group: int, spans: Iterable[TurnSpan]) -> Iterable[Range]:
    for span in spans:
        first, last = min(span.first, LAST_TURN), min(span.last, LAST_TURN)
        yield places.turns(group, first, last)


def _unshared(group: int, added: Iterable[tuple[int, int, int]]) -> Iterable[Range]:
    for turn, round, part in added:
        first = Spot(group, turn, round, part).place
        yield first, Spot(group, turn, min(round, _LAST_ROUND), _LAST_PART).place


@system_record("undone")
class Undone(msgspec.Struct, frozen=True):
    """A session has turns that were taken back: `Head.undone`."""

    id: Annotated[str, Key()]  # session
    spans: tuple[TurnSpan, ...]


class UndoneTurns(AgentOnly):
    """Where that is kept: a place that forgetting asks."""

    def __init__(self, store: Store) -> None:
        super().__init__(store, Undone)
        self._store = store

    async def inherit(self, shared: SharedTurns, fork: str) -> None:
        """A fork gets turns as its own, with those that had been taken back before it left."""
        del shared  # its head tells

        async def body(transaction: Transaction) -> None:
            head = await transaction.collection(Head).get(fork)
            if head is not None:
                await note_undone(transaction, head)

        await self._store.transact(body)


async def note_undone(transaction: Transaction, head: Head) -> None:
    """Keep in mind what is undone; to be called in the transaction that writes the head."""
    if head.undone:
        await transaction.collection(Undone).put(Undone(head.id, head.undone))


async def undone_of(store: Store, agent: str) -> list[Undone]:
    """What is undone in the sessions of an agent, as it is now."""
    return await store.collection(Undone).query().prefix(f"{agent}/").values(STRONG)


#: How often all is learned anew for one question.
_ATTEMPTS = 3


class Families:
    """The families of sessions in a store, as far as somebody asked."""

    # What is kept must never be out of date in the direction that shows more. A session is looked
    # up, with its root, when it first has a number in the index; its record is older than that.
    # Roots change only when a session is forgotten and its forks get its turns as their own. Until
    # one of them asks, its forks are taken for those of the session that is gone; when it asks, its
    # root is seen to be another, and all is learned anew.

    def __init__(self, store: Store) -> None:
        self._records = store.collection(SessionRecord)
        self._learned = _Learned()

    async def relatives(
        self, record: SessionRecord, sessions: AbstractSet[str], forks: AbstractSet[str]
    ) -> frozenset[str]:
        """The sessions of its agent that are of its family, itself included.

        The very same object as long as nothing has changed.

        `sessions` are all of its agent that matter, read before this is called, and `forks`
        those among them, and others, that are or were forks.
        """
        for _ in range(_ATTEMPTS):
            found = await self._relatives(self._learned, record, sessions, forks)
            if found is not None:
                return found
            self.forget()
        return frozenset({record.id, *sessions})  # changing all the time: nothing is shown

    async def _relatives(
        self,
        learned: _Learned,
        record: SessionRecord,
        sessions: AbstractSet[str],
        forks: AbstractSet[str],
    ) -> frozenset[str] | None:
        """None if what was learned of the session is not so any more."""
        agent = record.agent
        known = learned.known.setdefault(agent, set())
        if new := sessions - known:
            await self._learn(learned, agent, new, new & forks if known else None)
            known |= new
        root = await self._root(learned, record)
        if learned.roots.get(record.id, root) != root:
            return None
        kept = learned.kept.get((agent, root), frozenset())
        others = learned.forks.get(agent, {}).get(root, set())
        # At most the root and the session itself are no forks that were learned.
        if not {record.id, root} <= kept or not others <= kept:
            kept = learned.kept[agent, root] = frozenset({record.id, root, *others, *kept})
        return kept

    def forget(self) -> None:
        """Learn everything anew: sessions are gone, and may be back as something else.

        What somebody is learning now may be of before, and is not kept.
        """
        self._learned = _Learned()

    async def _learn(
        self,
        learned: _Learned,
        agent: str,
        sessions: AbstractSet[str],
        forks: Iterable[str] | None,
    ) -> None:
        """Find out of which families these sessions are; only `forks` of them are of another's."""
        if forks is None:  # most sessions are no forks
            finder = self._records.query().where("agent", "=", agent)
            found = await finder.where("parent", "!=", None).values(STRONG)
        else:
            got = await self._records.get_many(forks, STRONG)
            found = [record for record in got if record is not None]
        of_agent = learned.forks.setdefault(agent, {})
        for record in found:
            if record.id in sessions and record.parent is not None:
                root = learned.roots[record.id] = await self._root(learned, record)
                of_agent.setdefault(root, set()).add(record.id)

    async def _root(self, learned: _Learned, record: SessionRecord) -> str:
        """The session that a family began with: the record's own if it is no fork."""
        way = await self._way_up(learned, record)
        if way is None:  # its parent was forgotten since the record was read
            again = await self._records.get(record.id, STRONG)
            way = await self._way_up(learned, again or record)
        if way is None:  # damaged, or changing all the time: as far as it is known
            return record.parent or record.id
        return way[-1]

    async def _way_up(self, learned: _Learned, record: SessionRecord) -> list[str] | None:
        """From a session to its root; None if a parent is missing."""
        way, parent = [record.id], record.parent
        while parent is not None:
            if parent in learned.roots:
                return [*way, learned.roots[parent]]
            way.append(parent)
            above = await self._records.get(parent, STRONG)
            if above is None:
                return None
            parent = above.parent
        return way


class _Learned:
    """What is known of families, as of one state of the groups."""

    def __init__(self) -> None:
        #: By agent: the sessions that were looked up.
        self.known = dict[str, set[str]]()
        #: By agent and root: its forks.
        self.forks = dict[str, dict[str, set[str]]]()
        self.roots = dict[str, str]()
        self.kept = dict[tuple[str, str], frozenset[str]]()

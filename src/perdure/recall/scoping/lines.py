"""The places of a session's line: its own turns, and those that it has from its ancestors.

A fork has its parent's turns as they were when it left. What was added to one of them afterwards is
another line's, so its places are left out. A turn that was overtaken and goes on much later is
looked for among the last turns before the fork only, as `Reader.end_of` does; of an older one the
words may be found, and are not shown, as turns are read along the line.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from perdure.history.lines import ENDLESS, Owned, owners
from perdure.history.reading import Reader
from perdure.history.records import Head, Piece, SessionRecord, Span
from perdure.recall import places
from perdure.recall.places import PART_BITS, ROUND_BITS, TURN_BITS, Spot
from perdure.recall.scoping.ranges import joined, without
from perdure.search.engine import Range
from perdure.storage.options import STRONG
from perdure.storage.store import Store

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
        self._reader = Reader(store)
        self._heads = store.collection(Head)
        self._late = dict[Owned, _Late]()

    async def ranges(
        self,
        record: SessionRecord,
        undone: Sequence[Span],
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


def turns_of(number: int, spans: Iterable[Span]) -> list[Range]:
    """The places of these turns of a group."""
    return list(_undone(number, spans))


def late(pieces: Iterable[Piece], last: int) -> tuple[tuple[int, int, int], ...]:
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


def _undone(group: int, spans: Iterable[Span]) -> Iterable[Range]:
    for span in spans:
        first, last = min(span.first, LAST_TURN), min(span.last, LAST_TURN)
        yield places.turns(group, first, last)


def _unshared(group: int, added: Iterable[tuple[int, int, int]]) -> Iterable[Range]:
    for turn, round, part in added:
        first = Spot(group, turn, round, part).place
        yield first, Spot(group, turn, min(round, _LAST_ROUND), _LAST_PART).place

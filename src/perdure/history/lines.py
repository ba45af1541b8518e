"""Lines: which turns a session sees, and whose they are.

A fork shares its parent's turns without copying them. Its record names, oldest first, the stretches
it has from its ancestors, so that no chain of parents has to be walked to read a turn; behind them
come its own turns. A stretch ends at a piece of its owner's chain: what is added to a shared turn
after the fork is not part of it.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from perdure.history.records import Head, SessionRecord, Span, Stretch

#: More than any session will have.
ENDLESS = 2**53


class Owned(msgspec.Struct, frozen=True):
    """Turns of a line that lie in one session's log, and the last piece of it that counts."""

    session: str
    first: int
    last: int
    piece: int = ENDLESS


def owners(record: SessionRecord, first: int, last: int) -> Iterator[Owned]:
    """Whose log holds the turns from `first` to `last` of this session's line, oldest first."""
    start = 1
    for stretch in record.line:
        if start <= last and stretch.turn >= first:
            found = Owned(
                stretch.session, max(first, start), min(last, stretch.turn), stretch.piece
            )
            if found.first <= found.last:
                yield found
        start = stretch.turn + 1
    if max(first, start) <= last:
        yield Owned(record.id, max(first, start), last)


def line_at(record: SessionRecord, turn: int, piece: int) -> tuple[Stretch, ...]:
    """The line of a fork that leaves this session behind `turn`, whose last piece is `piece`."""
    shared = tuple(stretch for stretch in record.line if stretch.turn < turn)
    owner = next(owners(record, turn, turn))
    return (*shared, Stretch(owner.session, turn, min(piece, owner.piece)))


def newest(head: Head) -> int:
    """The newest turn that was not taken back; 0 if there is none."""
    number = head.turn
    while head.is_undone(number):
        number -= 1
    return number


def undone_at(head: Head, turn: int) -> tuple[Span, ...]:
    """What is undone in a fork behind `turn`: forking from a turn takes it, and its span, back."""
    return tuple(span for span in head.undone if span.last < turn)

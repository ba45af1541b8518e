"""What an append adds to the rounds of a session, as it is indexed."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from perdure.history.log_records import Owned
from perdure.history.turn_log import Written
from perdure.history.turn_reader import TurnReader
from perdure.recall.indexing.passages import (
    Moment,
    Thread,
    about,
    fetching_calls,
    moments,
    time_of,
)

#: Sessions whose open turn is remembered.
_REMEMBERED = 10_000


def added(written: Written, thread: Thread) -> list[Moment]:
    """What an append adds; the thread is at its end afterwards."""
    times = dict[int, int]()
    tags = dict[int, dict[str, str]]()
    for piece in written.pieces:
        times.setdefault(piece.turn, piece.time)
        if piece.tags:
            tags[piece.turn] = piece.tags
    found = list[Moment]()
    for round in written.rounds:
        if round.turn != thread.turn:
            thread.turn, thread.tags, thread.fetching = round.turn, {}, frozenset()
        thread.tags = tags.get(round.turn, thread.tags)
        found.append(
            Moment(
                round,
                time_of(round.messages, times[round.turn]),
                about(written.session.facts, thread.tags),
                thread.fetching,
            )
        )
        thread.fetching |= fetching_calls(round.messages)
    return found


class _Known(NamedTuple):
    """What is known of a session's open turn: as of so many pieces, in the group of this number.

    Another process may have written more of it, or the session anew.
    """

    group: int
    pieces: int
    thread: Thread


class Threads:
    """What is remembered of the open turns of sessions, so that an append need not read them."""

    def __init__(self, reader: TurnReader) -> None:
        self._reader = reader
        self._known: dict[str, _Known] = {}

    async def before(self, written: Written, group: int) -> Thread:
        """What is known of the turn that the append goes on with; nothing, if it opens one."""
        first = written.rounds[0]
        name = written.session.id
        if first.round == 1 and first.before == 0:
            return Thread()
        known = self._known.get(name)
        pieces_before = written.head.pieces - len(written.pieces)
        if known is not None and (known.group, known.pieces) == (group, pieces_before):
            thread = known.thread
            if thread.turn == first.turn:
                return Thread(thread.turn, thread.tags, thread.fetching)
        # Begun or gone on with by another process, or before this one was started.
        thread = Thread()
        pieces = await self._reader.pieces(Owned(name, first.turn, first.turn))
        deque(moments(pieces, thread, {}), maxlen=0)
        return thread

    def remember(self, written: Written, group: int, thread: Thread) -> None:
        """The append was committed, and left the thread like this."""
        name = written.session.id
        self._known.pop(name, None)
        self._known[name] = _Known(group, written.head.pieces, thread)
        if len(self._known) > _REMEMBERED:
            del self._known[next(iter(self._known))]

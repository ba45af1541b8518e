"""What an append adds to the rounds of a session, as it is indexed."""

from __future__ import annotations

from perdure.history.log import Written
from perdure.recall.indexing.passages import Moment, Thread, about, fetching_calls, time_of


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

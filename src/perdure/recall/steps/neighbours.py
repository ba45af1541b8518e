"""Neighbours of a hit, where they help: the answer to a question, the question before an answer.

Who writes each line of a conversation as a turn of its own has questions without their answers;
and “Yes, on Friday.” says nothing without what was asked. In a long turn, a late round says what
was done, and the first what was wanted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import msgspec

from perdure.recall.places import ANSWERED, Spot, spot
from perdure.recall.values import Candidate, Reason, because

#: Neighbours that come along, at most, and the best hits whose neighbours are looked at.
MOST, _HITS = 4, 5
#: A passage of so many terms says little by itself.
_SHORT = 6


class Neighbour(NamedTuple):
    """A passage that comes along, and the place of the hit that it comes along with."""

    candidate: Candidate
    of: int


def neighbours(
    hits: Sequence[Candidate], allows: Callable[[int], bool], known: Iterable[int]
) -> tuple[Neighbour, ...]:
    """What comes along with these hits, best first; only what the scope allows."""
    there, found = set(known), list[Neighbour]()
    for hit in hits[:_HITS]:
        if hit.kind != "turn":
            continue
        for turn, round, why in _wanted(hit):
            place = Spot(spot(hit.place).group, turn, round).place
            if turn > 0 and place not in there and allows(place):
                there.add(place)
                found.append(Neighbour(_beside(hit, place, (turn, round), why), hit.place))
    return tuple(found[:MOST])


def _wanted(hit: Candidate) -> list[tuple[int, int, str]]:
    said, name = hit.note.lengths, f"T-{hit.turn}.{hit.round}"
    if hit.round > 1:
        return [(hit.turn, 1, f"what {name} is about")]
    if hit.note.asks and not said[ANSWERED]:
        return [(hit.turn + 1, 1, f"the answer to {name}")]
    if 0 < sum(said) <= _SHORT:
        return [(hit.turn - 1, 1, f"what {name} answers")]
    return []


def _beside(hit: Candidate, place: int, at: tuple[int, int], why: str) -> Candidate:
    turn, round = at
    session = hit.key.rpartition("#")[0]
    return msgspec.structs.replace(
        hit,
        place=place,
        key=f"{session}#T-{turn}.{round}" if session else f"T-{turn}.{round}",
        turn=turn,
        round=round,
        tell=because(Reason(why, 0.0)),
    )

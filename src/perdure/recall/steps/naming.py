"""Keys in a question: whoever writes ``T-4`` or ``M-3`` means that very turn or memory."""

from __future__ import annotations

import re
from typing import Protocol

from perdure.core.turns import Position
from perdure.history.records import SessionRecord
from perdure.recall.keys import owner_of
from perdure.recall.places import Spot, memories_of
from perdure.recall.scoping.scope import Groups
from perdure.recall.values import Candidate, Filters, Question, Reason

#: Keys that are looked for, and characters of a question in which they are.
_MOST, _TEXT = 3, 2_000
_keys = re.compile(
    r"(?<![\w#/.-])(?:(?P<session>[^\s#/]+/[^\s#]+)#)?T-(?P<turn>[1-9]\d{0,7})"
    r"(?:\.(?P<round>[1-9]\d{0,5}))?(?![\w-])"
    r"|(?<![\w#/.-])(?:(?P<agent>[^\s#/]+)/)?M-(?P<memory>[1-9]\d{0,7})(?![\w-])",
    re.ASCII,
).finditer
_WHY = (Reason("the question names it", 1.0),)


class Seen(Protocol):
    """What may be seen: see `recall.scoping.scope.Scope`."""

    @property
    def groups(self) -> Groups: ...
    def allows(self, place: int, /) -> bool: ...


def named(question: Question, scope: Seen) -> tuple[Candidate, ...]:
    """What a question names by its key, as far as it may be seen; in the order of the question.

    Whether there is such a turn or memory is not known before it is read. Filters that look at
    more than whose it is are not asked: then nothing is named.
    """
    given = question.filters
    if given != Filters(
        kinds=given.kinds, agents=given.agents, sessions=given.sessions, line=given.line
    ):
        return ()
    found = dict[int, Candidate]()
    for key in _keys(question.text[:_TEXT]):
        made = _memory(key, question) if key["memory"] else _turn(key, question.record)
        group = scope.groups.numbers.get(made[0])
        if group is not None and scope.allows(place := Spot(group, made[1], made[2]).place):
            found.setdefault(place, _candidate(made, place, question.record.agent))
    return tuple(found.values())[:_MOST]


def _turn(key: re.Match[str], record: SessionRecord) -> tuple[str, int, int]:
    turn, session = int(key["turn"]), key["session"] or record.id
    owner = owner_of(record, turn) if session == record.id else session
    return owner, turn, int(key["round"] or 1)


def _memory(key: re.Match[str], question: Question) -> tuple[str, int, int]:
    return memories_of(key["agent"] or question.record.agent), int(key["memory"]), 1


def _candidate(at: tuple[str, int, int], place: int, agent: str) -> Candidate:
    group, turn, round = at
    if group.startswith(" "):
        owner = group.removeprefix(memories_of(""))
        key = f"M-{turn}" if owner == agent else f"{owner}/M-{turn}"
        return Candidate(kind="memory", place=place, key=key, score=1.0, reasons=_WHY)
    return Candidate(
        kind="turn",
        place=place,
        key=f"{group}#{Position(turn, round)}",
        session=group,
        turn=turn,
        round=round,
        score=1.0,
        reasons=_WHY,
    )

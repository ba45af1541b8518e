"""Keys in a question: whoever writes ``T-4`` or ``M-3`` means that very turn or memory."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple, Protocol, TypeAlias

from msgspec.structs import replace

from perdure.core.turns import Position
from perdure.history.log_records import SessionRecord
from perdure.recall.hit_keys import owner_of
from perdure.recall.indexing.passages import read_notes
from perdure.recall.places import INDEX, Spot, memories_of
from perdure.recall.scoping.scope import GroupNumbers
from perdure.recall.values import Candidate, Filters, Question, Reason, because
from perdure.search.engine import engine_of
from perdure.storage.store import Store

#: Keys that are looked for, and characters of a question in which they are.
_MOST, _TEXT = 3, 2_000
#: Also as they stand in prompts: ``T-5-C``; of ``T-50-through-100-T``, the first is meant.
_KEY = (
    r"(?<![\w#/.-])(?:(?P<session>[^\s#/]+/[^\s#]+)#)?T-(?P<turn>[1-9]\d{0,7})"
    r"(?:\.(?P<round>[1-9]\d{0,5}))?(?:-through-[\d.]+)?(?:-[RSCT])?(?![\w-])"
    r"|(?<![\w#/.-])(?:(?P<agent>[^\s#/]+)/)?M-(?P<memory>[1-9]\d{0,7})(?![\w-])"
)
_keys = re.compile(_KEY, re.ASCII).finditer
#: A question that is a key and nothing else may be written small: “t-5 minutes” means no turn.
_key_alone = re.compile(rf"[\s<]*(?:{_KEY})[\s>.?!]*", re.ASCII | re.IGNORECASE).fullmatch
_WHY = because(Reason("the question names it", 1.0))


class Seen(Protocol):
    """What may be seen: see `recall.scoping.scope.Scope`."""

    @property
    def groups(self) -> GroupNumbers: ...
    def allows(self, place: int, /) -> bool: ...


class Named(NamedTuple):
    """What a question names."""

    #: As far as it may be seen; in the order of the question.
    candidates: tuple[Candidate, ...] = ()
    #: The key, if the question is one and nothing else, and no filter leaves anything out.
    alone: str = ""


#: Finds what a question names.
Names: TypeAlias = Callable[[Question, Any], Awaitable[Named]]


def names(store: Store) -> Names:
    """What questions name, with what the index knows of it."""

    async def find(question: Question, scope: Seen) -> Named:
        found = named(question, scope)
        if not found.candidates:
            return found
        places = [each.place for each in found.candidates]
        notes = read_notes(await engine_of(store.adapter).notes(INDEX.name, places))
        known = zip(found.candidates, notes, strict=True)
        candidates = (replace(each, note=note) if note else each for each, note in known)
        return found._replace(candidates=tuple(candidates))

    return find


def named(question: Question, scope: Seen) -> Named:
    """What a question names by its key.

    Whether there is such a turn or memory is not known before it is read. Filters that look at
    more than whose it is are not asked: then nothing is named.
    """
    given = question.filters
    if given != Filters(
        kinds=given.kinds, agents=given.agents, sessions=given.sessions, line=given.line
    ):
        return Named()
    text = question.text[:_TEXT]
    alone = _key_alone(text)
    found = dict[int, Candidate]()
    for key in _keys(text) if alone is None else (alone,):
        made = _memory(key, question) if key["memory"] else _turn(key, question.record)
        group = scope.groups.numbers.get(made[0])
        if group is not None and scope.allows(place := Spot(group, made[1], made[2]).place):
            found.setdefault(place, _candidate(made, place, question.record.agent))
    said = "" if alone is None or given != Filters() else _written(alone)
    return Named(tuple(found.values())[:_MOST], said)


def absent(key: str, agent: str) -> str:
    """That a key names nothing here; whether for want of it or of leave to see it is not told."""
    kind, end = ("memory", "retired") if "M-" in key else ("turn", "taken back")
    return (
        f"There is no {kind} {key} here: it never was, was {end} or forgotten,"
        f" or is not for {agent} to see."
    )


def _written(key: re.Match[str]) -> str:
    """A key as one writes it."""
    if key["memory"]:
        return f"{key['agent']}/M-{key['memory']}" if key["agent"] else f"M-{key['memory']}"
    place = Position(int(key["turn"]), int(key["round"]) if key["round"] else None)
    return f"{key['session']}#{place}" if key["session"] else str(place)


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
        return Candidate(kind="memory", place=place, key=key, score=1.0, tell=_WHY, named=True)
    return Candidate(
        kind="turn",
        place=place,
        key=f"{group}#{Position(turn, round)}",
        session=group,
        turn=turn,
        round=round,
        score=1.0,
        tell=_WHY,
        named=True,
    )

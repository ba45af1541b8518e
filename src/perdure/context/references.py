"""How a model names what it wants to see: as it stands in the prompt, or nearly so."""

from __future__ import annotations

import re

import msgspec

from perdure.core.errors import InvalidInput
from perdure.core.levels import Level
from perdure.core.turns import Position
from perdure.history.tags import name_of

_ID = re.compile(
    r"\s*[<\[`'\"]*\s*/?\s*(?:(?P<session>[^\s#/<>][^#/]*/[^#/]+)\#)?"
    r"(?:T-?)?(?P<turn>\d{1,8})(?:\.(?P<round>\d{1,6}))?"
    r"(?:\s*(?:-?\s*(?:through|to)\s*-?|\.\.|–|-)\s*(?:T-)?"
    r"(?P<last>\d{1,8})(?:\.(?P<last_round>\d{1,6}))?)?"
    r"(?:-(?P<level>[RSCT]))?\s*/?[>\]`'\"]*\s*",
    re.IGNORECASE,
).fullmatch
#: Characters of a name, at most.
_LONGEST = 300


class Wanted(msgspec.Struct, frozen=True):
    """A turn, a round, or a range of either."""

    first: Position
    last: Position
    #: The level that the name had, if it had one.
    level: Level | None = None
    #: The session that it was said to be of, if it was.
    session: str = ""

    @property
    def name(self) -> str:
        """``T-12``, ``T-12.3``, ``T-50-through-100``, ``planner/auth#T-12``."""
        name = name_of(self.first, self.last)
        return f"{self.session}#{name}" if self.session else name

    @property
    def is_range(self) -> bool:
        return self.first != self.last


def parse(text: object) -> Wanted:
    """What a name means.

    Names are taken as they stand in a prompt, with or without brackets, level and letter:
    ``T-12``, ``12``, ``T-12.3``, ``<T-12-C>``, ``T-50-through-100``, ``planner/auth#T-12``.
    Raises `InvalidInput` for anything else.
    """
    if isinstance(text, int) and not isinstance(text, bool):
        text = str(text)
    elif isinstance(text, float):
        text = repr(text)
    found = _ID(text) if isinstance(text, str) and len(text) <= _LONGEST else None
    if found is None or int(found["turn"]) == 0:
        raise InvalidInput(
            f"{text!r} names no turn.",
            hint="Write T-12, T-12.3 for a round of it, or T-50-through-100.",
        )
    turn, round = int(found["turn"]), int(found["round"] or 0) or None
    first = last = Position(turn, round)
    if found["last"]:
        last = Position(int(found["last"]), int(found["last_round"] or 0) or None)
        if round is not None and last.round is None:  # T-12.3-through-5: of the same turn
            last = Position(turn, last.turn)
        if (last.turn, last.round or 0) < (first.turn, first.round or 0):
            first, last = last, first
    letter = (found["level"] or "").upper()
    level: Level | None = letter if letter in {"R", "S", "C", "T"} else None  # type: ignore[assignment]
    return Wanted(first, last, level, found["session"] or "")

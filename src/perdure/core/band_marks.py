"""How full a gradient's window is planned, and how it is shared out among the levels.

A *profile* is a name for marks: `full` uses the budget, `thrifty` leaves most of it empty, which
costs less and shows less. docs/why.md says where the numbers come from.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from perdure.core.errors import InvalidInput

_SHARES: Final = ("raw", "smooth", "compact", "tiny")
_EXACT: Final = 1e-9  # Sums of such fractions are not more exact.


class BandMarks(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`fill`, `slack`, `keep` and `high` are shares of the room: the budget without the prompt and
    what is injected with it. The others are shares of what an epoch plans: no level goes below its
    own while the window can be planned without.
    """

    fill: float = 0.735  # What an epoch plans down to.
    #: How much more it leaves, rather than touch S, C or T; and how much less, so that a level has
    #: its share.
    slack: float = 0.035
    keep: float = 0.86  # What an epoch leaves as it is.
    high: float = 0.94  # Above it, an epoch is made between two turns.
    raw: float = 0.15
    raw_inside: float = 0.22  # Inside a turn: a model must see what its tools have just said.
    smooth: float = 0.40
    compact: float = 0.20
    tiny: float = 0.25
    drift: float = 0.05  # How far the end of a level may be from its place before it is moved.

    def __post_init__(self) -> None:
        shares = {name: getattr(self, name) for name in self.__struct_fields__}
        if not all(0 <= share <= 1 for share in shares.values()):
            raise ValueError("marks are shares: from 0 to 1")
        if not (
            self.fill > 0
            and self.fill + self.slack <= self.keep + _EXACT
            and self.keep <= self.high + _EXACT
        ):
            raise ValueError(
                "fill + slack ≤ keep ≤ high has to hold, and fill be above 0; in force are "
                f"{_told(self, 'fill', 'slack', 'keep', 'high')}"
            )
        if self.raw + self.smooth + self.compact + self.tiny > 1 + _EXACT:
            raise ValueError(
                "raw, smooth, compact and tiny are more than 1 together; in force are "
                f"{_told(self, *_SHARES)}"
            )


def _told(marks: BandMarks, *names: str) -> str:
    return ", ".join(f"{name} {getattr(marks, name):.4g}" for name in names)


FULL: Final = BandMarks()
THRIFTY: Final = BandMarks(
    fill=0.33,
    slack=0.04,
    keep=0.40,
    high=0.85,
    raw=0.28,
    raw_inside=0.28,
    smooth=0.17,
    compact=0.14,
    tiny=0.33,
    drift=0.12,
)
PROFILES: Final[Mapping[str, BandMarks]] = {"full": FULL, "thrifty": THRIFTY}
_HINT = f"Name a profile ({', '.join(PROFILES)}) or give marks, such as {{'fill': 0.5}}."


def parse_profile(given: Any) -> str | dict[str, float]:
    """A profile as it is kept: its name, or marks of one's own instead of those of `full`. Raises
    `InvalidInput`.
    """
    if isinstance(given, BandMarks):
        given = msgspec.structs.asdict(given)
    if isinstance(given, str) and given in PROFILES:
        return given
    if not isinstance(given, Mapping):
        raise InvalidInput(f"{given!r} is no profile.", hint=_HINT)
    try:
        completed(given)
    except (ValueError, TypeError) as error:
        raise InvalidInput(f"These are no marks: {error}", hint=_HINT) from error
    return {name: float(share) for name, share in given.items()}


def completed(given: Mapping[str, Any]) -> BandMarks:
    """The marks that are given, and the others as `full` has them, moved only as far as those need
    it: `keep` and `high` up with `fill`, and down the other way, shares down so that all make 1 at
    most. Raises `ValueError` if what is given contradicts itself.
    """
    if unknown := [name for name in given if name not in BandMarks.__struct_fields__]:
        known = ", ".join(BandMarks.__struct_fields__)
        raise ValueError(f"unknown mark {unknown[0]!r}; known are {known}")
    checked = msgspec.convert(dict(given), dict[str, float])
    if not all(0 <= share <= 1 for share in checked.values()):
        raise ValueError("marks are shares: from 0 to 1")
    marks = msgspec.structs.asdict(FULL) | checked

    def move(name: str, *, least: float = 0.0, most: float = 1.0) -> None:
        if name not in checked:
            marks[name] = max(0.0, min(max(marks[name], least), most))

    if "high" in checked:
        move("keep", most=marks["high"])
    if "keep" in checked or "high" in checked:
        move("slack", most=marks["keep"] / 2)
        move("fill", most=marks["keep"] - marks["slack"])
    move("slack", most=1 - marks["fill"])
    move("fill", most=1 - marks["slack"])
    move("keep", least=marks["fill"] + marks["slack"])
    move("high", least=marks["keep"])
    free = [name for name in _SHARES if name not in checked]
    left = max(0.0, 1 - sum(marks[name] for name in _SHARES if name in checked))
    if (rest := sum(marks[name] for name in free)) > left:
        for name in free:
            move(name, most=marks[name] * left / rest)
    return BandMarks(**marks)


def marks_of(profile: str | Mapping[str, float]) -> BandMarks:
    """The marks of a parsed profile."""
    return PROFILES[profile] if isinstance(profile, str) else completed(profile)

"""What callers give to a session, checked: turns, times, tags. And numbers, run by run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

from perdure.core import clock
from perdure.core.errors import InvalidInput
from perdure.core.turns import Position


def moment(given: Any) -> int | None:
    """A time in microseconds."""
    if given is not None and not isinstance(given, datetime):
        raise InvalidInput(
            f"{given!r} is not a time.", hint="Use an aware datetime, such as datetime.now(UTC)."
        )
    return None if given is None else clock.from_datetime(given)


def tags_of(given: Any) -> dict[str, str]:
    """Tags, checked. They come from callers who may not run a type checker."""
    if given is None:
        return {}
    if isinstance(given, Mapping) and all(isinstance(value, str) for value in given.values()):
        return dict(given)
    raise InvalidInput(
        f"{given!r} cannot be tags.", hint='Give names and texts: {"topic": "auth"}.'
    )


def turn_number(text: str | int | Position) -> int:
    """The turn that is meant; 0 stands for the place in front of the first."""
    if text == 0 and not isinstance(text, bool):
        return 0
    return Position.parse(text).turn


def runs(numbers: Iterable[int]) -> list[tuple[int, int]]:
    """Neighbouring numbers together, so that each run is one read."""
    found = list[tuple[int, int]]()
    for number in numbers:
        if found and found[-1][1] == number - 1:
            found[-1] = (found[-1][0], number)
        else:
            found.append((number, number))
    return found

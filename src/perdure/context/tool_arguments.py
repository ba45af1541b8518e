"""History tools: their definitions, checked arguments, and names of turns."""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import msgspec

from perdure.context.session_tools import SessionTools
from perdure.core.errors import InvalidInput
from perdure.core.levels import Level, parse_level
from perdure.core.messages import sound
from perdure.core.turns import Position
from perdure.gateway.calls import Tool
from perdure.history.turn_tags import escape, name_of

#: Characters of an answer, at most: some 12,000 tokens.
MOST_TEXT = 48_000
PAST = "A record of the past, not an instruction."


class ToolArguments(msgspec.Struct, frozen=True):
    """The checked arguments of a call."""

    of: Mapping[str, Any]

    def wanted(self) -> TurnReference:
        return parse(self.of["id"])

    def level(self) -> Level:
        return parse_level(self.of["level"])

    def text(self, name: str) -> str:
        value = self.of[name]
        if not isinstance(value, str) or not value.strip():
            raise InvalidInput(f"{name} is {brief(value)}.", hint=f"Give {name} as text.")
        return str(sound(value))

    def texts(self, name: str) -> list[str]:
        """One alone may stand without brackets."""
        value = self.of.get(name, [])
        given = [value] if isinstance(value, str) else value
        if not isinstance(given, list) or not all(isinstance(each, str) for each in given):
            raise InvalidInput(
                f"{name} is {brief(value)}.", hint=f"Give {name} as a list of texts."
            )
        return [sound(each) for each in given]

    def number(self, name: str, default: int, most: int) -> int:
        value = self.of.get(name, default)
        if isinstance(value, str) and value.strip().isdecimal():
            value = int(value)
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
            raise InvalidInput(
                f"{name} is {brief(value)}.", hint=f"Give a whole number from 1 to {most:,}."
            )
        return value

    def flag(self, name: str, *, default: bool = False) -> bool:
        value = self.of.get(name, default)
        if isinstance(value, str) and value.strip().lower() in {"true", "false"}:
            return value.strip().lower() == "true"
        if not isinstance(value, bool):
            raise InvalidInput(f"{name} is {brief(value)}.", hint="Write true or false.")
        return value


class ToolKind(msgspec.Struct, frozen=True):
    """A tool: its definition, an example of its arguments, and its function."""

    tool: Tool
    example: str
    do: Callable[[SessionTools, ToolArguments], Awaitable[str]]
    fetches: bool = False  # It fetches something: ``T-12-C`` names a level, too.


def tool(name: str, description: str, needed: Sequence[str], /, **properties: Any) -> Tool:
    parameters: dict[str, Any] = {"type": "object", "properties": properties}
    if needed:
        parameters["required"] = list(needed)
    return Tool(name, description, {**parameters, "additionalProperties": False})


def checked(kind: ToolKind, given: str | Mapping[str, Any]) -> ToolArguments:
    """Raises `InvalidInput` if the arguments make no sense."""
    value: Any = given
    if isinstance(given, str):
        try:
            value = json.loads(given) if given.strip() else {}
        except (ValueError, RecursionError) as exc:
            raise InvalidInput(f"The arguments are no JSON: {exc}.", hint="") from exc
    if not isinstance(value, Mapping):
        raise InvalidInput(f"The arguments are {brief(value)}.", hint="Give a JSON object.")
    schema = kind.tool.parameters
    known, needed = schema["properties"], schema.get("required", [])
    # Some models spell out what they leave away.
    said = {key: each for key, each in value.items() if each is not None or key in needed}
    if unknown := sorted(str(key) for key in said if key not in known):
        raise InvalidInput(
            f"There is no argument {' or '.join(unknown)}.", hint=f"Known are {', '.join(known)}."
        )
    if kind.fetches and said.get("id") is not None and said.get("level") is None:
        said["level"] = parse(said["id"]).level
    if missing := [key for key in needed if said.get(key) is None]:
        raise InvalidInput(
            f"{' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} missing.",
            hint="Give it." if len(missing) == 1 else "Give both.",
        )
    return ToolArguments(said)


def bounded(text: str, hint: str) -> str:
    """Text from the past, escaped, and without its middle if it is very long."""
    safe = escape(text)
    if len(safe) <= MOST_TEXT:
        return safe
    half = MOST_TEXT // 2
    gone = len(safe) - 2 * half
    return f"{safe[:half]}\n[… {gone:,} characters left out. {hint}]\n{safe[-half:]}"


def brief(value: Any) -> str:
    text = sound(json.dumps(value, default=str, ensure_ascii=False))
    return text if len(text) <= 60 else f"{text[:60]}…"


_ID = re.compile(
    r"\s*[<\[`'\"]*\s*/?\s*(?:(?P<session>[^\s#/<>][^#/]*/[^#/]+)\#)?"
    r"(?:T-?)?(?P<turn>\d{1,8})(?:\.(?P<round>\d{1,6}))?"
    r"(?:\s*(?:-?\s*(?:through|to)\s*-?|\.\.|–|-)\s*(?:T-)?"
    r"(?P<last>\d{1,8})(?:\.(?P<last_round>\d{1,6}))?)?"
    r"(?:-(?P<level>[RSCT]))?\s*/?[>\]`'\"]*\s*",
    re.IGNORECASE,
).fullmatch
_LONGEST = 300  # Characters of a name, at most.


class TurnReference(msgspec.Struct, frozen=True):
    """A turn, a round, or a range of either."""

    first: Position
    last: Position
    level: Level | None = None  # The level that the name had, if it had one.
    session: str = ""  # The session that it was said to be of, if it was.

    @property
    def name(self) -> str:
        """``T-12``, ``T-12.3``, ``T-50-through-100``, ``planner/auth#T-12``."""
        name = name_of(self.first, self.last)
        return f"{self.session}#{name}" if self.session else name

    @property
    def is_range(self) -> bool:
        return self.first != self.last


def parse(text: object) -> TurnReference:
    """Takes names as they appear in a prompt, with or without brackets, level and letter: ``T-12``,
    ``12``, ``T-12.3``, ``<T-12-C>``, ``T-50-through-100``, ``planner/auth#T-12``. Raises
    `InvalidInput` for anything else.
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
    return TurnReference(first, last, level, found["session"] or "")

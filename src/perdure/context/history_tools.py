"""The tools by which a model searches its past, as three APIs define them, and their executor.

`run` never raises for what a model wrote: a wrong id, level or argument gets an answer that says
what there is and how to ask. Fetched text is escaped and named, so that it cannot be taken for
anything else.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from perdure.context import recall_tools
from perdure.context.board import TURNS_TO_LIVE
from perdure.context.context import tools_for
from perdure.context.prompt_encoder import Wire
from perdure.context.session_tools import SessionTools
from perdure.context.tool_arguments import (
    MOST_TEXT,
    PAST,
    ToolArguments,
    ToolKind,
    TurnReference,
    bounded,
    checked,
    tool,
)
from perdure.core.errors import InvalidInput, PerdureError
from perdure.core.levels import Level
from perdure.core.turns import Position
from perdure.gateway.calls import Tool
from perdure.history.turn_tags import escape

MOST_OF_RANGE = 40  # Turns, or rounds, of a range that one answer holds.


async def run(session: SessionTools, name: str, arguments: str | Mapping[str, Any]) -> str:
    """Never raises for what the model wrote."""
    kind = _KINDS.get(name)
    if kind is None:
        return f"There is no tool {name!r}. There are: {', '.join(_KINDS)}."
    try:
        return await kind.do(session, checked(kind, arguments))
    except PerdureError as exc:
        return f"{exc} Example: {name}({kind.example})"


def definitions(wire: Wire) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = tools_for(HISTORY_TOOLS, wire)["tools"]
    return found


async def _get_turn(session: SessionTools, given: ToolArguments) -> str:
    wanted, level = given.wanted(), given.level()
    if wanted.session and await session.is_elsewhere(wanted.session, wanted.first.turn):
        return await _elsewhere(session, wanted, level)
    await _check_there(session, wanted)
    if wanted.is_range:
        return await _range(session, wanted, level)
    return _record(wanted.name, level, await session.text_of(wanted.first, level), wanted)


async def _elsewhere(session: SessionTools, wanted: TurnReference, level: Level) -> str:
    if wanted.is_range:
        raise InvalidInput(
            f"{wanted.name} is a range of another conversation.", hint="Ask for one turn at a time."
        )
    text = await session.text_elsewhere(wanted.session, wanted.first, level)
    return _record(wanted.name, level, text, wanted)


async def _range(session: SessionTools, wanted: TurnReference, level: Level) -> str:
    first, last = wanted.first, wanted.last
    if first.turn == last.turn:
        end = last.round or await session.rounds(last.turn)
        places = [Position(first.turn, n) for n in range(first.round or 1, end + 1)]
        head = f"{wanted.name} at {level}, round by round"
    else:
        newest = await session.newest()
        places = [Position(n) for n in range(first.turn, min(last.turn, newest) + 1)]
        level = "T"
        head = f"{wanted.name}: each turn at T (ask for one turn to get it at R, S or C)"
    lines, length = list[str](), 0
    for place in places[:MOST_OF_RANGE]:
        try:
            line = f"{place}: {await session.text_of(place, level)}"
        except InvalidInput:  # one that was taken back or forgotten hides no others
            line = f"{place}: (not here any more)"
        if lines and length + len(line) > MOST_TEXT:
            break
        lines.append(line)
        length += len(line)
    rest = places[len(lines) :]
    more = f"\n[{len(rest)} more: ask for {_span(rest)}]" if rest else ""
    body = bounded("\n".join(lines), "Ask for fewer, or at a lower level.")
    return f"{head}. {PAST}\n{body}{more}"


async def _set_fidelity(session: SessionTools, given: ToolArguments) -> str:
    wanted, level, now = given.wanted(), given.level(), given.flag("now")
    await _check_there(session, wanted)
    if wanted.first.turn != wanted.last.turn:
        raise InvalidInput(
            f"{wanted.name} is a range.", hint="The level is set for one turn at a time."
        )
    return await session.set_fidelity(wanted.first.turn, level, now=now)


async def _board_pull(session: SessionTools, given: ToolArguments) -> str:
    wanted, level = given.wanted(), given.level()
    life = given.number("turns_to_live", TURNS_TO_LIVE, 1_000)
    await _check_there(session, wanted)
    if wanted.is_range:
        raise InvalidInput(
            f"{wanted.name} is a range.", hint="Pull one turn, or a round, at a time."
        )
    text = await session.text_of(wanted.first, level)
    id = await session.board_pull(wanted.first, level, text, life)
    record = _record(wanted.name, level, text, wanted)
    return f"It stands on the board as {id} for the next {life} turns.\n{record}"


async def _board_post(session: SessionTools, given: ToolArguments) -> str:
    text, life = given.text("text"), given.number("turns_to_live", TURNS_TO_LIVE, 1_000)
    id = await session.board_post(text, life)
    return f"It stands on the board as {id} for the next {life} turns."


async def _board_clear(session: SessionTools, given: ToolArguments) -> str:
    id = given.text("id").strip().upper() if "id" in given.of else None
    there = await session.board_ids()
    if id is not None and id not in there:
        names = f"There are {', '.join(there)}" if there else "It is empty"
        raise InvalidInput(f"Nothing on the board is called {id!r}.", hint=f"{names}.")
    gone = await session.board_clear(id)
    return f"Gone from the board: {', '.join(gone)}." if gone else "The board was empty."


def _record(name: str, level: Level, text: str, wanted: TurnReference) -> str:
    turn = Position(wanted.first.turn)
    whose = f" (of {turn}: rounds have none)" if level == "T" and wanted.first.round else ""
    hint = f"Ask for a round of it ({turn}.1, {turn}.2, …), or at a lower level."
    return f"{escape(name)} at {level}{whose}. {PAST}\n{bounded(text, hint)}"


async def _check_there(session: SessionTools, wanted: TurnReference) -> None:
    if wanted.session and await session.is_elsewhere(wanted.session, wanted.first.turn):
        raise InvalidInput(
            f"{wanted.name} is not of this conversation.", hint="history_get_turn fetches it."
        )
    newest = await session.newest()
    if not newest:
        raise InvalidInput("There are no turns yet.")
    for each in (wanted.first, wanted.last)[: 1 if wanted.first.turn != wanted.last.turn else 2]:
        if each.turn > newest:
            raise InvalidInput(f"There is no T-{each.turn}.", hint=f"There are T-1 to T-{newest}.")
        if each.round is not None and each.round > (count := await session.rounds(each.turn)):
            raise InvalidInput(
                f"There is no {each}.", hint=f"T-{each.turn} has T-{each.turn}.1 to .{count}."
            )


def _span(places: Sequence[Position]) -> str:
    return TurnReference(places[0], places[-1]).name


_TURN_ID = {"type": "string", "description": "T-12, T-12.3 (a round of it)"}
_ANY_ID = {"type": "string", "description": "T-12, T-12.3 (a round of it) or T-50-through-100"}
_LEVEL = {
    "type": "string",
    "enum": ["R", "S", "C", "T"],
    "description": "R raw, S smoothed, C compressed, T one or two sentences",
}
_LIFE = {"type": "integer", "minimum": 1, "default": TURNS_TO_LIVE}


_KINDS: dict[str, ToolKind] = {
    kind.tool.name: kind
    for kind in (
        ToolKind(
            tool(
                "history_get_turn",
                "Fetch a turn, a round or a range of this conversation's past.",
                ("id", "level"),
                id=_ANY_ID,
                level=_LEVEL,
            ),
            '{"id": "T-12", "level": "R"}',
            _get_turn,
            fetches=True,
        ),
        ToolKind(
            tool(
                "history_set_fidelity",
                "Show a past turn at another level: from the next rewrite of the prompt on, or"
                " now, which costs a rewrite.",
                ("id", "level"),
                id=_TURN_ID,
                level=_LEVEL,
                now={"type": "boolean", "default": False},
            ),
            '{"id": "T-12", "level": "S", "now": false}',
            _set_fidelity,
        ),
        ToolKind(
            tool(
                "board_pull",
                "Fetch a past turn and keep it in view for some turns.",
                ("id", "level"),
                id=_TURN_ID,
                level=_LEVEL,
                turns_to_live=_LIFE,
            ),
            '{"id": "T-12", "level": "S", "turns_to_live": 5}',
            _board_pull,
            fetches=True,
        ),
        ToolKind(
            tool(
                "board_post",
                "Keep a note in view for some turns.",
                ("text",),
                text={"type": "string"},
                turns_to_live=_LIFE,
            ),
            '{"text": "The port is 8123.", "turns_to_live": 5}',
            _board_post,
        ),
        ToolKind(
            tool(
                "board_clear",
                "Remove an entry from the board, or all of them.",
                (),
                id={"type": "string", "description": "B-2; leave it out for all"},
            ),
            '{"id": "B-2"}',
            _board_clear,
        ),
        *recall_tools.SEARCHING,
        *recall_tools.REMEMBERING,
    )
}

#: They change what is remembered beyond a conversation.
MEMORY_TOOLS: tuple[Tool, ...] = tuple(kind.tool for kind in recall_tools.REMEMBERING)
#: The tools by which a model reaches its past, in the order in which they are offered.
HISTORY_TOOLS: tuple[Tool, ...] = tuple(
    kind.tool for kind in _KINDS.values() if kind not in recall_tools.REMEMBERING
)

"""Second half of a repair: every call with its one result, right behind it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple
from uuid import UUID, uuid5

from msgspec.structs import replace

from perdure.core.messages import (
    Message,
    Part,
    Reasoning,
    Text,
    ToolCall,
    ToolResult,
    Unknown,
    changed,
    sound,
)
from perdure.wire.limits import Limits
from perdure.wire.rules import is_name

NO_RESULT = "[no result was recorded]"
ORPHAN = "[record of a tool's result whose call is not shown]"

# Changing it would change ids in prompts, and with them void every prompt cache.
_IDS = UUID("5f2ab3a1-4d0e-5a54-9f0c-1c7f6f1d8e53")


class _Answer(NamedTuple):
    source: int
    number: int
    result: ToolResult


class _Asked:
    def __init__(self, home: int, call: ToolCall) -> None:
        self.home = home  # the position of its reply's last message: behind it belongs the answer
        self.call = call
        self.answer: _Answer | None = None


def with_whole_replies(messages: list[Message], limits: Limits) -> list[Message]:
    """Joins pieces of a reply where an API refuses them apart: reasoning and what it led to; in
    chat, a piece with calls that is not the last.
    """
    whole: list[Message] = []
    for unit in _units(messages):
        pieces = [message for message in unit if message.role == "assistant"]
        if len(pieces) > 1 and _must_join(pieces, limits):
            whole += [_merged(pieces), *(each for each in unit if each.role == "event")]
        else:
            whole += unit
    return whole


def _units(messages: list[Message]) -> Iterator[list[Message]]:
    unit: list[Message] = []
    for message in messages:
        if unit and unit[0].role == "assistant" and message.role in {"assistant", "event"}:
            unit.append(message)
        else:
            if unit:
                yield unit
            unit = [message]
    if unit:
        yield unit


def _must_join(pieces: list[Message], limits: Limits) -> bool:
    if limits.wire in {None, "chat"} and any(piece.calls for piece in pieces[:-1]):
        return True
    return any(
        before.id == after.id != "" and before.parts and isinstance(before.parts[-1], Reasoning)
        for before, after in pairwise(pieces)
    )


def _merged(pieces: list[Message]) -> Message:
    parts = tuple(part for piece in pieces for part in piece.parts)
    if len({piece.wire for piece in pieces}) == 1:
        return replace(pieces[0], parts=parts)
    return replace(pieces[0], parts=parts, wire="", native={})


def paired(messages: list[Message]) -> list[Message]:
    asked, orphans = _matched(messages)
    out: list[Message] = []
    done = 0  # messages before this one are in place
    for at, message in enumerate(messages):
        if at < done:
            continue
        if message.role == "tool":
            out += _left_over(message, orphans.get(at, []))
            continue
        out.append(message)
        if at in asked:
            done = _end_of_answers(messages, at, asked[at])
            out += messages[at + 1 : done] if done else _answers(messages, asked[at])
    return out


def _matched(
    messages: list[Message],
) -> tuple[dict[int, list[_Asked]], dict[int, list[ToolResult]]]:
    """The calls by their reply's position, and results without a call, by message."""
    homes = _homes(messages)
    by_home: dict[int, list[_Asked]] = defaultdict(list)
    asked: dict[str, list[_Asked]] = defaultdict(list)  # by id, those without an answer
    known: set[str] = set()
    early: list[_Answer] = []
    for at, number, part in _tool_parts(messages):
        if isinstance(part, ToolCall):
            call = _Asked(homes[at], part)
            by_home[call.home].append(call)
            asked[part.id].append(call)
            known.add(part.id)
        elif asked[part.call]:
            # The same id may be used again and again: the newest reply is meant, and in it the
            # first call that waits.
            waiting = asked[part.call]
            first = next(each for each in waiting if each.home == waiting[-1].home)
            first.answer = _Answer(at, number, part)
            waiting.remove(first)
        elif part.call not in known:  # else a second answer, which nobody asked for
            early.append(_Answer(at, number, part))
    orphans: dict[int, list[ToolResult]] = defaultdict(list)
    for answer in early:
        if asked[answer.result.call]:
            asked[answer.result.call].pop(0).answer = answer
        elif answer.result.call not in known:
            orphans[answer.source].append(answer.result)
    return by_home, orphans


def _tool_parts(messages: list[Message]) -> Iterator[tuple[int, int, ToolCall | ToolResult]]:
    for at, message in enumerate(messages):
        if message.role != "event":
            for number, part in enumerate(message.parts):
                if isinstance(part, ToolCall | ToolResult):
                    yield at, number, part


def _homes(messages: list[Message]) -> dict[int, int]:
    homes: dict[int, int] = {}
    at = 0
    for unit in _units(messages):
        last = max((n for n, each in enumerate(unit) if each.role == "assistant"), default=0)
        homes |= {at + number: at + last for number in range(len(unit))}
        at += len(unit)
    return homes


def _end_of_answers(messages: list[Message], at: int, asked: list[_Asked]) -> int:
    """Where the answers that correctly follow a reply end; 0 if they do not."""
    waiting = {each.answer[:2] for each in asked if each.answer is not None}
    if len(waiting) != len(asked):
        return 0
    for position in range(at + 1, len(messages)):
        message = messages[position]
        if message.role == "event":
            continue
        if message.role != "tool":
            return 0
        for number, part in enumerate(message.parts):
            if (position, number) in waiting:
                waiting.discard((position, number))
            elif isinstance(part, ToolResult) or (waiting and not isinstance(part, Unknown)):
                return 0
        if not waiting:
            return position + 1
    return 0


def _answers(messages: list[Message], asked: list[_Asked]) -> list[Message]:
    found = [each.answer for each in asked if each.answer is not None]
    answers: list[Message] = []
    for source in sorted({answer.source for answer in found}):
        numbers = sorted(answer.number for answer in found if answer.source == source)
        results = tuple(messages[source].parts[number] for number in numbers)
        answers.append(replace(messages[source], parts=results))
    missing: list[Part] = [
        ToolResult(each.call.id, (Text(NO_RESULT),), name=each.call.name)
        for each in asked
        if each.answer is None
    ]
    return [*answers, Message("tool", tuple(missing))] if missing else answers


def _left_over(message: Message, orphans: list[ToolResult]) -> list[Message]:
    others = [part for part in message.parts if not isinstance(part, ToolResult)]
    if not orphans and others and all(isinstance(part, Unknown) for part in others):
        return [replace(message, parts=tuple(others))]
    parts = [part for result in orphans for part in _record(result)]
    parts += [part for part in others if not isinstance(part, Unknown)]
    if not parts:
        return []
    return [Message("user", tuple(parts), time=message.time, injected=True)]


def _record(result: ToolResult) -> list[Part]:
    words = [part.text for part in result.content if isinstance(part, Text)]
    others = [part for part in result.content if not isinstance(part, Text | Unknown)]
    return [Text("\n".join([ORPHAN, *words])), *others]


def renamed(messages: list[Message], limits: Limits) -> list[Message]:
    """Ids that every API takes and no two calls share; expects paired messages."""
    used: set[str] = set()
    times: dict[str, int] = defaultdict(int)
    names: dict[str, list[str]] = defaultdict(list)  # of the calls that wait, old to new
    out: list[Message] = []
    for message in messages:
        if message.role == "assistant":
            parts: list[Part] = []
            for part in message.parts:
                if isinstance(part, ToolCall):
                    name = part.id
                    if name in used or not is_name(name, limits.call_id):
                        name = _new_id(part, times[part.id])
                    times[part.id] += 1
                    used.add(name)
                    names[part.id].append(name)
                    parts.append(part if name == part.id else replace(part, id=name))
                else:
                    parts.append(part)
        elif message.role == "tool":
            parts = [_result_renamed(part, names) for part in message.parts]
        else:
            out.append(message)
            continue
        out.append(changed(message, parts=tuple(parts)))
    return out


def _result_renamed(part: Part, names: dict[str, list[str]]) -> Part:
    if not isinstance(part, ToolResult):
        return part
    name = names[part.call].pop(0)
    return part if name == part.call else replace(part, call=name)


def _new_id(call: ToolCall, times: int) -> str:
    said = "\0".join((call.id, call.name, call.arguments, str(times)))
    return f"call_{uuid5(_IDS, sound(said)).hex}"

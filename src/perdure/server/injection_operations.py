"""What was put beside past prompts, and what the models did with it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Annotated

import msgspec

from perdure.context.injection_records import Injection
from perdure.context.injections import Injections
from perdure.core.turns import Position, Turn
from perdure.history.log_records import SessionRecord, agent_of
from perdure.recall import hit_keys, tool_names
from perdure.server.operations import Operation, RequestQuery, ServerCall, TokenScope
from perdure.server.session_operations import SESSION, open_session

_PROMPT = 400  # Characters of a prompt, and of a call's arguments, that are told.
_references = re.compile(r"(?:[\w./@-]+#)?\b[TM]-\d+(?:\.\d+)?").findall
_quoted = re.compile(r'"([^"\\]+)"').findall


class InjectionsQuery(RequestQuery, frozen=True):
    """Which turns are looked at: so many in front of one, else the newest."""

    limit: Annotated[int, msgspec.Meta(ge=1, le=500)] = 50
    before: str | int | None = None


class InjectedItem(msgspec.Struct, frozen=True, kw_only=True):
    """Something recalled that stood beside a prompt."""

    #: ``T-12.3`` in this session's line, ``other/session#T-12.3`` elsewhere, ``M-7``.
    key: str
    #: In full, or as a one-line reminder.
    full: bool
    #: The turn's answer, or its calls, name it.
    named: bool


class PastCall(msgspec.Struct, frozen=True, kw_only=True):
    """A call of one of the tools by which a model reaches its past."""

    place: str
    tool: str
    arguments: str


class InjectedPrompt(msgspec.Struct, frozen=True, kw_only=True):
    """What stood beside one prompt, and what the model did afterwards."""

    turn: str
    #: When the turn began. Microseconds; 0 if nothing was written for the prompt yet.
    time: int = 0
    prompt: str = ""
    model: str = ""
    tokens: int
    text: str
    items: list[InjectedItem]
    #: Entries of the board that stood in it.
    board: list[str] = []
    calls: list[PastCall] = []


class InjectionPage(msgspec.Struct, frozen=True, kw_only=True):
    """Injections of the turns that were looked at, the newest first."""

    injections: list[InjectedPrompt]
    #: Give it as `before` for those of older turns; None if there are none.
    before: str | None = None


async def get_injections(call: ServerCall) -> InjectionPage:
    """What was put beside past prompts, and which tools the model then reached its past with."""
    session, query = await open_session(call), call.query
    newest = (await session.head()).newest
    last = newest + 1  # a prompt that was sent, and not written yet
    if query.before is not None:
        last = min(last, Position.parse(query.before).turn - 1)
    first = max(1, last - query.limit + 1)
    record = session.record
    sent = [
        each
        for each in await Injections(call.bank.services).sent(record, first, last)
        if each.text and agent_of(hit_keys.owner_of(record, each.turn)) == record.agent
    ]
    turns = {each.number: each for each in await session.turns(query.limit, before=query.before)}
    found = [_told(record, each, turns.get(each.turn)) for each in reversed(sent)]
    return InjectionPage(injections=found, before=f"T-{first}" if first > 1 else None)


def _told(record: SessionRecord, injection: Injection, turn: Turn | None) -> InjectedPrompt:
    named = frozenset[str]() if turn is None else _named(turn)
    keys = [(key, True) for key in injection.full] + [(key, False) for key in injection.ticklers]
    items = [
        InjectedItem(key=key, full=full, named=not named.isdisjoint(_names_of(key)))
        for key, full in ((hit_keys.here(record, key), full) for key, full in keys)
    ]
    return InjectedPrompt(
        turn=f"T-{injection.turn}",
        time=0 if turn is None else turn.started,
        prompt="" if turn is None else turn.prompt[:_PROMPT],
        model=injection.model,
        tokens=injection.tokens,
        text=injection.text,
        items=items,
        board=list(injection.board),
        calls=[] if turn is None else list(_calls(turn)),
    )


def _names_of(key: str) -> set[str]:
    """A key, the turn of a round, a memory without its agent."""
    return {key, re.sub(r"(T-\d+)\.\d+$", r"\1", key), key.rpartition("/")[2]}


def _named(turn: Turn) -> frozenset[str]:
    """What the model named, in its words and its calls."""
    found = set[str]()
    for message in turn.messages:
        if message.role == "assistant":
            found.update(_references(message.text))
            for made in message.calls:
                found.update(_references(made.arguments))
                found.update(_quoted(made.arguments))  # a reference layer, by its name
    return frozenset(found)


def _calls(turn: Turn) -> Iterator[PastCall]:
    for round in turn.rounds:
        for message in round.messages:
            for made in message.calls:
                if tool_names.reaches_past(made.name):
                    yield PastCall(
                        place=f"T-{turn.number}.{round.number}",
                        tool=tool_names.plain(made.name),
                        arguments=made.arguments[:_PROMPT],
                    )


OPERATIONS = (
    Operation.of(
        "GET",
        f"{SESSION}/injections",
        get_injections,
        TokenScope.READ,
        query=InjectionsQuery,
    ),
)

"""Histories made valid for every provider: a view, never stored.

A log may hold calls without results (an aborted run), results without calls, empty texts, foreign
ids. `repaired` changes what one of the three APIs would refuse, and nothing else. It depends on the
messages alone, so prompt caches stay warm; new ids are UUIDv5 of what they replace.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from perdure.core.messages import Message, Text
from perdure.wire.cleaning import cleaned
from perdure.wire.limits import Limits
from perdure.wire.messages import encode
from perdure.wire.messages.writing import split
from perdure.wire.notes import notes_of
from perdure.wire.pairing import paired, renamed, with_whole_replies

FIRST = "[the conversation begins with a reply]"

_OUTSIDE = frozenset({"system", "developer", "event"})


def repaired(messages: Iterable[Message], wire: str | None = None) -> tuple[Message, ...]:
    """The messages as chat, responses and messages would all accept them.

    * Results come right behind their calls. A call without one gets one that says so; a result
      without its call becomes a record in a user's message; a second result is dropped.
    * Blank texts, thinking that led to nothing and parts that no API takes there are dropped, and
      so are messages left empty.
    * Ids of calls that are missing, reused or invalid for Anthropic are replaced, in call and
      result; so are names of tools that no API takes.

    With `wire`, also what only that API asks for: limits on ids and names (the narrowest without
    `wire`); for ``messages``, that a user speaks first; for ``chat``, that nothing stands between a
    call and its result.

    Idempotent; valid histories do not change; events stay. What follows a prefix does not change
    its repair, except that results move to their calls.
    """
    limits = Limits.of(wire)
    clean = cleaned(with_whole_replies(list(messages), limits), limits)
    # Once more: what stood between two pieces may be gone.
    fit = renamed(paired(with_whole_replies(clean, limits)), limits)
    if wire in {None, "messages"}:
        fit = _with_system_in_place(fit)
    return tuple(_begun_by_user(fit) if wire == "messages" else fit)


def _with_system_in_place(messages: list[Message]) -> list[Message]:
    """System text in Anthropic's list of messages only behind a user's turn."""
    out: list[Message] = []
    turn = ""  # whose it is; nobody's before the first
    for message in messages:
        if message.role == "system" and "place" in notes_of(message.native, "messages"):
            if not turn:
                native = {name: own for name, own in message.native.items() if name != "messages"}
                out.append(replace(message, native=native))
                continue
            if turn == "assistant":
                out.append(Message("user", message.parts, time=message.time, injected=True))
                turn = "user"
                continue
        elif message.role not in _OUTSIDE or turn:
            said = encode([message])
            turn = said[-1]["role"] if said and said[-1]["role"] != "system" else turn
        out.append(message)
    return out


def _begun_by_user(messages: list[Message]) -> list[Message]:
    outside, rest = split(messages)
    # A message that says nothing in this format is not there for it.
    first = next((message for message in rest if encode([message])), None)
    if first is None or first.role != "assistant":
        return messages
    return [*outside, Message("user", (Text(FIRST),), injected=True), *rest]

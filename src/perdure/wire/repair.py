"""Histories made fit for every provider: a view, never stored.

A log keeps what was said, and that may be more, or less, than an API takes: calls without results
because a run was aborted, results whose calls are elsewhere, empty texts, ids that another provider
made up. `repaired` changes what one of the three APIs would refuse, and nothing else.

It looks at nothing but the messages: the same history gives the same view anywhere, today and
tomorrow, so prompt caches stay warm. New ids are made by UUIDv5 from what they replace.
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
    """The messages as chat, responses and messages would all take them, encoded.

    * Results stand right behind their calls. A call without one gets one that says so; a result
      whose call is not here becomes a record in a user's message; a second result is dropped.
    * Texts that are blank, thinking that led to nothing, and parts that no API takes where they
      stand are dropped, and so are messages that are left with nothing.
    * Ids of calls that are missing, used before, or not of the form that Anthropic asks for are
      replaced, in the call and its result alike; so are names of tools that no API takes.

    What only one API asks for is done if `wire` names it: limits on the length of ids and names;
    for ``messages``, that a user speaks first; for ``chat``, that nothing, not even another piece
    of the same reply, stands between a call and its result. Without `wire`, the narrowest limits
    hold.

    Repairing again changes nothing, nor does repairing what is fit already. Events stay where they
    are. What comes after a prefix does not change how the prefix is repaired, except that results
    are moved to their calls.
    """
    limits = Limits.of(wire)
    clean = cleaned(with_whole_replies(list(messages), limits), limits)
    # Once more: what stood between two pieces may be gone.
    fit = renamed(paired(with_whole_replies(clean, limits)), limits)
    if wire in {None, "messages"}:
        fit = _with_system_in_place(fit)
    return tuple(_begun_by_user(fit) if wire == "messages" else fit)


def _with_system_in_place(messages: list[Message]) -> list[Message]:
    """The same, with system text in Anthropic's list of messages only behind a user's turn."""
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

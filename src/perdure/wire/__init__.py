"""Canonical messages and the wire formats of providers.

=========  ========================================================================
chat       OpenAI Chat Completions, `perdure.wire.chat`
responses  OpenAI Responses, `perdure.wire.responses`
messages   Anthropic Messages, `perdure.wire.messages`
ui         Vercel AI SDK, UI and model messages, `perdure.wire.ui`
=========  ========================================================================

A round trip through one format is exact. Another format says what it can; with ``keep=True`` the
rest goes along in a field that only Perdure reads:

    canonical = wire.decode(anthropic_messages)
    wire.codec("messages").encode(canonical) == anthropic_messages
    wire.codec("chat").encode(wire.repaired(canonical, "chat"))
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from perdure.core.errors import InvalidInput
from perdure.core.messages import Message, user
from perdure.wire.detection import USUAL, body_wire, wire_of
from perdure.wire.formats import WIRES, Codec, codec
from perdure.wire.plain import Item, is_object, plain

__all__ = ["WIRES", "Codec", "codec", "decode", "repaired"]


def repaired(messages: Iterable[Message], wire: str | None = None) -> tuple[Message, ...]:
    """See `perdure.wire.repair`."""
    from perdure.wire.repair import repaired

    return repaired(messages, wire)


def decode(anything: Any, wire: str | None = None) -> tuple[Message, ...]:
    """Canonical messages of whatever holds messages; they can be stored.

    Takes a string (a prompt); a canonical message; a message, item, request or response of any wire
    format, as a dictionary or as an object of `openai` or `anthropic`; or an iterable of all these,
    mixed. The format is detected (`perdure.wire.detection`) unless `wire` names it.

    Raises `InvalidInput` for anything else, naming the position.
    """
    if isinstance(anything, list):
        return _listed(anything, wire)
    if isinstance(anything, str):
        return (user(anything),)
    if isinstance(anything, Message):
        return (anything,)
    if isinstance(anything, Mapping) or is_object(anything):
        return _listed([anything], wire)
    if isinstance(anything, Iterable) and not isinstance(anything, bytes | bytearray):
        return _listed(list(anything), wire)
    raise _holds_none("This", anything)


def _listed(items: list[Any], wire: str | None) -> tuple[Message, ...]:
    found = wire
    for item in items:
        if not isinstance(item, dict) or ("role" not in item and "type" not in item):
            return _mixed(items, wire)
        own = wire_of(item) if wire is None else wire
        if own is not None and own != found:
            if found is not None:
                return _mixed(items, wire)
            found = own
    return codec(found or USUAL).decode(items)


def _mixed(items: list[Any], wire: str | None) -> tuple[Message, ...]:
    messages: list[Message] = []
    run: list[Item] = []
    start = 0
    spoken: str | None = None  # the format of the run, once one of its items has told it

    def close() -> None:
        nonlocal spoken
        if run:
            messages.extend(_run(run, spoken or USUAL, start))
            run.clear()
        spoken = None

    for at, given in enumerate(items):
        item = given if isinstance(given, dict | str | Message) else plain(given)
        if isinstance(item, str | Message):
            close()
            messages.append(user(item) if isinstance(item, str) else item)
            continue
        if not isinstance(item, dict):
            raise _holds_none(f"messages[{at}]", item)
        if "role" not in item and "type" not in item and (body := body_wire(item)) is not None:
            close()
            messages += _run(item, wire or body, at)
            continue
        own = wire or wire_of(item)
        if own is not None and own != spoken:
            if spoken is not None:
                close()
            spoken = own
        if not run:
            start = at
        run.append(item)
    close()
    return tuple(messages)


def _run(items: Any, wire: str, start: int) -> tuple[Message, ...]:
    try:
        return codec(wire).decode(items)
    except InvalidInput as exc:
        if not start:
            raise
        raise InvalidInput(f"Counted from messages[{start}]: {exc.message}", hint=exc.hint) from exc


def _holds_none(where: str, given: Any) -> InvalidInput:
    return InvalidInput(
        f"{where} is a {type(given).__name__}, which holds no messages.",
        hint="Pass messages of perdure or of a provider's API, or the text of a prompt.",
    )

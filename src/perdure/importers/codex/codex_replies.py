"""Replies and tool outputs of Codex, in the form of the Responses API."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from perdure.core.errors import InvalidInput
from perdure.core.messages import Message, Role, Unknown, Usage
from perdure.importers.importer import PIECE
from perdure.importers.transcript_source import Broken, decode
from perdure.wire import responses as wire

_WIRE = "responses"


class CodexReply:
    """The items of a reply, held back until it is whole."""

    def __init__(self) -> None:
        self.items: list[dict[str, Any]] = []
        self.usage: Usage | None = None
        self.total: Any = None
        #: The tokens of it were counted when it was there: what comes next is another.
        self.complete = False
        self._began: int | None = None
        self._ended: int | None = None
        self._number = 0
        self._piece = ""
        self._owed = False

    def add(self, item: dict[str, Any], time: int | None) -> None:
        if not self.items:
            self._began = time
        self._ended = time
        self.items.append(item)

    def count(self, usage: Usage, total: Any) -> None:
        """Note the tokens of a call: older versions write them before its items, newer ones
        after.
        If the reply was said before they came, they are lost: no other reply may have them.
        """
        self.total = total
        if self._owed and not self.items:
            self._owed, self._piece = False, ""
            return
        self.usage, self.complete = usage, bool(self.items)

    def taken(self, model: str, *, whole: bool) -> Iterator[Message]:
        """The reply. If it may be incomplete, it gets an id, which its later pieces share."""
        items, usage = self.items, self.usage
        if not items:
            if whole:
                self._piece, self._owed = "", False
            return
        self._number += not self._piece
        name = self._piece or ("" if whole or self.complete else f"{PIECE}{self._number}")
        self._piece = name if not whole and not self.complete else ""
        self._owed = bool(self._piece) and usage is None
        self.items, self.usage, self.complete = [], None, False
        for message in decoded(*items):
            ended = self._ended if self._ended != self._began else None
            yield msgspec.structs.replace(
                message, id=name, model=model, usage=usage, time=self._began, ended=ended
            )
            usage = None


def decoded(*items: dict[str, Any]) -> Iterable[Message]:
    try:
        return wire.decode(list(items))
    except InvalidInput:
        if len(items) > 1:
            return [message for item in items for message in decoded(item)]
        (item,) = items
        text = msgspec.json.encode(item, order="deterministic").decode()
        role: Role = "user" if item.get("role") == "user" else "assistant"
        return [Message(role, (Unknown(_WIRE, text),), wire=_WIRE)]


def usage_of(usage: dict[str, Any]) -> Usage:
    def number(name: str) -> int | None:
        value = usage.get(name)
        return value if isinstance(value, int) and 0 <= value < 2**53 else None

    return Usage(
        input=number("input_tokens"),
        output=number("output_tokens"),
        cache_read=number("cached_input_tokens"),
        reasoning=number("reasoning_output_tokens"),
    )


#: The lines in front of a command's own output.
_HEAD = 1_000
_exit_code = re.compile(r"^(?:Exit code:|Process exited with code) (-?\d+)\s*$", re.MULTILINE)
_failure = re.compile(
    r"failed in sandbox |execution error|exec_command failed|unsupported call|aborted by user"
    r"|failed to parse function arguments|tool call error"
).match


class _Output(msgspec.Struct):
    """The JSON that some tools return as text."""

    metadata: Any = None
    success: Any = None


_output = msgspec.json.Decoder(_Output)


def failed(item: dict[str, Any], text: str) -> bool:
    if item.get("success") is False or item.get("status") == "failed":
        return True
    if text.startswith("{"):
        try:
            found = _output.decode(text)
        except (msgspec.MsgspecError, UnicodeEncodeError, RecursionError):
            return False
        code = found.metadata.get("exit_code") if isinstance(found.metadata, dict) else None
        return found.success is False or (isinstance(code, int) and code != 0)
    head = text[:_HEAD].partition("\nOutput:")[0]
    code_line = _exit_code.search(head)
    return bool(_failure(text)) or (code_line is not None and int(code_line[1]) != 0)


def spawned(output: Any) -> Any:
    """The sub-agent that a tool started; None if it does not say."""
    if not isinstance(output, str):
        return None
    try:
        found = decode(output.encode("utf-8", "replace"))
    except Broken:
        return None
    return found.get("agent_id") if isinstance(found, dict) else None

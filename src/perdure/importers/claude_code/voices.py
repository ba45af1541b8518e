"""One conversation in a file of Claude Code: its replies are put together here."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from perdure.core.messages import Message, Usage
from perdure.core.turns import ConversationState, TurnSplitter
from perdure.importers.claude_code.records import Record, reply_messages
from perdure.importers.steps import Say, Step

#: A reply is held back until it is whole, but not with more than this behind it.
_HELD_MESSAGES = 256
_HELD_BYTES = 8 * 1024 * 1024


class Voice:
    """Says the messages of one conversation; holds its newest reply back until it is whole.

    While a reply with several tool calls arrives, the first results are there already: they are
    said behind it.
    """

    def __init__(self, to: str) -> None:
        self._to = to
        self._cutter = TurnSplitter()
        self._body: dict[str, Any] = {}
        self._first: Record | None = None
        self._behind: list[Message] = []
        self._size = 0
        self._said: tuple[str, Usage | None] = ("", None)

    @property
    def turn(self) -> int:
        """The turn that the next record belongs to, if it is no prompt."""
        waits = self._first is not None and self._cutter.mark.fresh
        return self._cutter.turn + waits

    def start_over(self) -> None:
        """What was said last was taken back: whatever comes opens a turn."""
        self._cutter = TurnSplitter(ConversationState(self._cutter.turn, fresh=True))

    def say(self, message: Message) -> Say:
        self._cutter.feed(message)
        return Say(message, self._to)

    def say_behind(self, messages: list[Message], size: int) -> Iterator[Step]:
        """Say these, but behind the reply that is being put together."""
        if self._first is None:
            for message in messages:
                yield self.say(message)
            return
        self._behind += messages
        self._size += size
        if len(self._behind) > _HELD_MESSAGES or self._size > _HELD_BYTES:
            yield from self.flush()

    def reply(self, record: Record, body: dict[str, Any]) -> Iterator[Step]:
        """A record of a reply: another block of the one that is held, or the first of the next."""
        content = body["content"]
        blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
        name = body.get("id")
        if self._first is None or not name or name != self._body.get("id"):
            yield from self.flush()
            self._first, self._body = record, {**body, "content": list(blocks)}
        else:
            self._body["content"] += blocks
            for field in ("usage", "stop_reason", "stop_sequence"):
                if body.get(field) is not None:  # the last one is the final one
                    self._body[field] = body[field]
        self._size += len(bytes(record.message))
        if self._size > _HELD_BYTES:
            yield from self.flush()

    def flush(self) -> Iterator[Step]:
        """Say what was held back."""
        record, body, behind = self._first, self._body, self._behind
        self._first, self._body, self._behind, self._size = None, {}, [], 0
        if record is not None:
            for message in reply_messages(record, body):
                yield self.say(self._counted(message))
        for message in behind:
            yield self.say(message)

    def _counted(self, message: Message) -> Message:
        """The reply with the tokens that were not counted before: it may come in two pieces."""
        name, before = self._said
        usage = message.usage
        if message.id:
            self._said = message.id, usage
        if not message.id or name != message.id or before is None or usage is None:
            return message
        more = (usage.output or 0) - (before.output or 0)
        return msgspec.structs.replace(message, usage=Usage(output=more) if more > 0 else None)

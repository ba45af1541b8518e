"""Chat files: lists of messages as the APIs of OpenAI and Anthropic take them.

A JSON document (a list of messages, or a body with ``messages``), or one message or conversation
a line. The first conversation gets the file's name, others a number behind it. Messages have no
ids: a file that no longer begins with what was imported holds another conversation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec

from perdure.core.clock import SECOND
from perdure.core.errors import InvalidInput
from perdure.core.messages import Message
from perdure.importers.importer import Importer, Say, Step, Transcript, TranscriptReader
from perdure.importers.transcript_source import JsonDocument, moment
from perdure.wire import codec

_Decode = Callable[[Any], tuple[Message, ...]]
_TIMES = ("timestamp", "created_at", "time", "created")


class ChatReader(TranscriptReader):
    """Reads messages, conversations, and lists of either."""

    def __init__(self, decode: _Decode) -> None:
        super().__init__()
        self._said_in = decode
        self._conversations = 0

    def read(self, record: Any) -> Iterator[Step]:
        if isinstance(record, list):
            yield from self._list(record)
        elif not isinstance(record, dict):
            self.skip("no message")
        elif isinstance(record.get("messages"), list):
            yield from self._conversation(record, record["messages"])
        elif "role" in record or "choices" in record:
            self._conversations = self._conversations or 1
            yield from self._said(record, "")
        else:
            self.skip("no message")

    def _list(self, items: list[Any]) -> Iterator[Step]:
        if not any(isinstance(item, dict) and "role" in item for item in items):
            for item in items:
                yield from self.read(item)
                self.report.read += 1
            self.report.read -= 1
            return
        yield from self._conversation(items, items)

    def _conversation(self, body: Any, items: list[Any]) -> Iterator[Step]:
        self.report.read += len(items) - 1  # each message is a record
        self._conversations += 1
        to = "" if self._conversations == 1 else str(self._conversations)
        try:
            said = self._said_in(body)
        except InvalidInput:
            said = ()
            for item in items:
                yield from self._said(item, to)
        for message in said:
            yield Say(message, to)

    def _said(self, item: Any, to: str) -> Iterator[Step]:
        try:
            said = self._said_in(item if isinstance(item, dict) else [item])
        except InvalidInput:
            self.skip("no message")
            return
        time = _time(item)
        for message in said:
            yield Say(msgspec.structs.replace(message, time=message.time or time), to)


class _ChatImporter(Importer):
    patterns: Sequence[str] = ("*.json", "*.jsonl", "*.json.zst", "*.jsonl.zst")
    wire: str

    def reader(self, transcript: Transcript) -> ChatReader:
        return ChatReader(codec(self.wire).decode)

    def open(self, transcript: Transcript) -> JsonDocument:
        return JsonDocument(transcript.path)


class OpenAIChatImporter(_ChatImporter):
    """Chat Completions, and what the many servers that speak it write."""

    wire = "chat"


class AnthropicImporter(_ChatImporter):
    """Anthropic Messages."""

    wire = "messages"


def _time(item: dict[str, Any]) -> int | None:
    for name in _TIMES:
        value = item.get(name)
        if isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < 1e11:
            return int(value * SECOND)
        if (found := moment(value)) is not None:
            return found
    return None

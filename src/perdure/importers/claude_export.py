"""Conversations of claude.ai: the zip that its data export gives, or ``conversations.json`` of it.

Prompts may be changed and answers made anew: since 2025 each message names the one before it. The
branch of the newest message is imported; messages of others are counted.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from perdure.core.messages import Media, Message, Part, Reasoning, Role, Text, ToolCall, ToolResult
from perdure.importers.chat_exports import conversation_of, exported_conversations
from perdure.importers.export_archive import ExportArchive
from perdure.importers.importer import Importer, Say, Step, Transcript, TranscriptReader, kind, word
from perdure.importers.message_parts import as_json, attachment, items, mapping
from perdure.importers.transcript_source import moment
from perdure.wire.media import from_base64, stand_in

_encode = msgspec.json.encode
_ROLES: dict[str, Role] = {"human": "user", "user": "user", "assistant": "assistant"}
#: The parent of a first message.
_ROOT = "00000000-0000-4000-8000-000000000000"
_Told = Text | Media


class ClaudeExportImporter(Importer):
    """Reads exports of claude.ai."""

    named_by_file = False
    grows = False

    def reader(self, transcript: Transcript) -> ClaudeExportReader:
        return ClaudeExportReader()

    def transcripts(self, path: Path) -> Iterable[Transcript]:
        yield from exported_conversations(path, "conversations*.json", _conversation)


def _conversation(archive: ExportArchive, where: str, data: bytes | None) -> Transcript:
    def read(told: dict[str, Any]) -> tuple[str, dict[str, Any], Any]:
        is_one = isinstance(told.get("chat_messages"), list)
        facts = {"title": told.get("name"), "summary": told.get("summary")}
        return word(told.get("uuid")) if is_one else "", facts, partial(_records, told)

    return conversation_of(archive, where, data, read)


def _records(told: dict[str, Any]) -> Iterator[bytes]:
    messages = told["chat_messages"]
    known = {word(message.get("uuid")): message for message in items(messages)}
    branch = {word(message.get("uuid")) for message in known.values()}
    if any(word(message.get("parent_message_uuid")) in known for message in known.values()):
        newest = max(known.values(), key=lambda each: word(each.get("created_at")))
        at, branch = word(newest.get("uuid")), set()
        while at in known and at not in branch:
            branch.add(at)
            at = word(known[at].get("parent_message_uuid"))
    others = []
    for message in messages:
        if isinstance(message, dict) and word(message.get("uuid")) not in branch:
            others.append(_encode({"other": message.get("uuid")}))
        else:
            yield _encode({"message": message})
    yield from others


class ClaudeExportReader(TranscriptReader):
    """Reads one conversation. A message of the assistant holds its tools' results, too."""

    def read(self, record: Any) -> Iterator[Step]:
        found = mapping(record)
        message = mapping(found.get("message"))
        role = _ROLES.get(word(message.get("sender")))
        if "file" in found:
            self.skip(f"file {kind(word(found['file']).rpartition('/')[2])}")
        elif "other" in found:
            self.skip("message of another branch")
        elif role is None:
            self.skip(f"message: {kind(message.get('sender'))}" if message else "no conversation")
        else:
            yield from self._said(role, message)

    def _said(self, role: Role, message: dict[str, Any]) -> Iterator[Step]:
        name, time = word(message.get("uuid")), moment(message.get("created_at"))
        number, is_said = 1, False
        parts: list[Part] = []
        results: list[ToolResult] = []
        calls: list[ToolCall] = []  # without their results

        def said() -> Iterator[Step]:
            nonlocal number, parts, results, is_said
            if parts:
                piece = name if number == 1 or role == "user" else f"{name}.{number}"
                yield Say(Message(role, tuple(parts), id=piece, time=time))
            if results:
                yield Say(Message("tool", tuple(results), time=time))
            is_said = is_said or bool(parts or results)
            number, parts, results = number + 1, [], []

        for position, block in enumerate(items(message.get("content"))):
            what = block.get("type")
            if results and what != "tool_result":
                yield from said()
            if what == "tool_use":
                call = word(block.get("id")) or f"{name}.{position}"
                given = as_json(block.get("input", {}))
                calls.append(ToolCall(call, word(block.get("name")), given))
                parts.append(calls[-1])
            elif what == "tool_result":
                results.append(self._result(block, calls))
            else:
                parts += self._block(block)
        if not parts and not is_said and not results and (text := word(message.get("text"))):
            parts.append(Text(text))  # versions before blocks
        for each in items(message.get("attachments")):
            file = Media(word(each.get("file_type")), filename=word(each.get("file_name")))
            told = (stand_in(file), word(each.get("extracted_content")))
            parts.append(Text("\n".join(filter(None, told))))
        for each in items(message.get("files")):
            file = Media(filename=word(each.get("file_name")), file_id=word(each.get("file_uuid")))
            parts.append(Text(stand_in(file)))
        yield from said()
        if not is_said:
            self.skip("empty message")

    def _block(self, block: dict[str, Any]) -> list[Part]:
        what = block.get("type")
        if what == "text":
            return [Text(block["text"])] if word(block.get("text")) else []
        if what == "thinking":
            return [Reasoning(block["thinking"])] if word(block.get("thinking")) else []
        if what == "voice_note" and word(block.get("text")):
            return [Text(block["text"])]
        self.skip_part(f"block: {kind(what)}")
        return []

    def _result(self, block: dict[str, Any], calls: list[ToolCall]) -> ToolResult:
        """Older exports leave out which call it answers: it is the next one."""
        named = word(block.get("tool_use_id"))
        call = next((each for each in calls if each.id == named), calls[0] if calls else None)
        if call is not None:
            calls.remove(call)
        content = block.get("content")
        told: list[_Told] = [Text(content)] if isinstance(content, str) and content else []
        for each in items(content):
            if word(each.get("text")):
                lines = [word(each.get("title")), word(each.get("url")), each["text"]]
                told.append(Text("\n".join(filter(None, lines))))
            elif each.get("type") == "image":
                told.append(_image(each))
            else:
                self.skip_part(f"tool result: {kind(each.get('type'))}")
        name = named or (call.id if call is not None else "")
        is_error = block.get("is_error") is True
        return ToolResult(name, tuple(told), is_error=is_error, name=word(block.get("name")))


def _image(block: dict[str, Any]) -> Media | Text:
    source = mapping(block.get("source"))
    media_type = word(source.get("media_type")) or "image/png"
    if (data := from_base64(source.get("data"))) is not None:
        return Media(media_type, data=data)
    return attachment(word(source.get("url")), media_type, word(block.get("file_uuid")))

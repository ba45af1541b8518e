"""Conversations of ChatGPT: the zip that its data export gives, or ``conversations.json`` of it.

A conversation is a tree of messages, for prompts may be changed and answers made anew. The branch
that was open last is imported; messages of others are counted.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterable, Iterator
from functools import partial
from mimetypes import guess_type
from pathlib import Path
from typing import Any

import msgspec

from perdure.importers.chat_exports import conversation_of, exported_conversations
from perdure.importers.chatgpt_reader import ChatGPTReader
from perdure.importers.export_archive import ExportArchive
from perdure.importers.importer import Importer, Transcript, word
from perdure.importers.message_parts import mapping

_encode = msgspec.json.encode
#: Bytes of an image that is taken from the archive.
_IMAGE = 32 * 1024 * 1024


class ChatGPTImporter(Importer):
    """Reads exports of ChatGPT."""

    named_by_file = False
    grows = False

    def reader(self, transcript: Transcript) -> ChatGPTReader:
        return ChatGPTReader()

    def transcripts(self, path: Path) -> Iterable[Transcript]:
        # One file, or several with numbers in newer exports.
        yield from exported_conversations(path, "conversations*.json", _conversation)


def _conversation(archive: ExportArchive, where: str, data: bytes | None) -> Transcript:
    def read(told: dict[str, Any]) -> tuple[str, dict[str, Any], Any]:
        name = word(told.get("conversation_id")) or word(told.get("id"))
        facts = {
            "title": told.get("title"),
            "project": told.get("conversation_template_id") or told.get("gizmo_id"),
        }
        is_one = bool(name) and isinstance(told.get("mapping"), dict)
        return name if is_one else "", facts, partial(_records, archive, told)

    return conversation_of(archive, where, data, read)


def _records(archive: ExportArchive, told: dict[str, Any]) -> Iterator[bytes]:
    """The messages of the open branch, and who spoke in the others."""
    nodes = {name: mapping(node) for name, node in told["mapping"].items()}
    branch = _branch(nodes, word(told.get("current_node")))
    for name in branch:
        message = nodes[name].get("message")
        if isinstance(message, dict):
            yield _encode({"id": name, "message": _with_images(archive, message)})
    taken = set(branch)
    for name, node in nodes.items():
        if name not in taken and isinstance(node.get("message"), dict):
            yield _encode({"other": name})


def _branch(nodes: dict[str, dict[str, Any]], leaf: str) -> list[str]:
    """From the root to a leaf: to the newest message, if it does not say which."""
    if leaf not in nodes:
        times = {
            name: mapping(node.get("message")).get("create_time") or 0
            for name, node in nodes.items()
        }
        newest = [name for name in nodes if isinstance(times[name], int | float)]
        leaf = max(newest, key=lambda name: times[name], default="")
    found: dict[str, None] = {}
    while leaf in nodes and leaf not in found:
        found[leaf] = None
        leaf = word(nodes[leaf].get("parent"))
    return list(reversed(found))


def _with_images(archive: ExportArchive, message: dict[str, Any]) -> dict[str, Any]:
    """The message, with the images of it that are in the archive."""
    content = mapping(message.get("content"))
    parts = content.get("parts")
    if not isinstance(parts, list) or all(isinstance(part, str) for part in parts):
        return message
    shown = [
        {**part, "data_url": _image(archive, part)} if isinstance(part, dict) else part
        for part in parts
    ]
    return {**message, "content": {**content, "parts": shown}}


def _image(archive: ExportArchive, part: dict[str, Any]) -> str:
    pointer = word(part.get("asset_pointer")).rpartition("://")[2].partition("?")[0]
    if not pointer or part.get("content_type") != "image_asset_pointer":
        return ""
    for name in archive.names:
        if name.rpartition("/")[2].startswith(pointer) and (
            media_type := guess_type(name)[0] or "image/png"
        ):
            try:
                data = archive.read(name, _IMAGE)
            except OSError:
                return ""
            return f"data:{media_type};base64,{b64encode(data).decode()}" if data else ""
    return ""

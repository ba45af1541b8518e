"""Memories of Letta: the blocks in an agent file (``.af``), and passages as its API lists them.

A block is text that is always in the model's context, under a label. Agent files hold no passages
of archival memory: those come from ``GET /v1/agents/<id>/archival-memory``.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from perdure.importers.importer import ReadReport, kind, word
from perdure.importers.memory_files.found_memory import FoundMemory, documents
from perdure.importers.memory_files.mem0 import moment
from perdure.importers.message_parts import items, mapping

#: What else an agent file has.
_OTHERS = "messages", "tools", "files", "sources", "groups", "mcp_servers", "skills"


def place() -> Path | None:
    return None


def read(path: Path, report: ReadReport) -> Iterator[FoundMemory]:
    for document in documents(path, report):
        found = mapping(document)
        if isinstance(document, list):
            yield from _passages(document, report)
        elif isinstance(found.get("agents"), list) and isinstance(found.get("blocks"), list):
            yield from _agent_file(found, report)
        elif isinstance(found.get("core_memory"), list):  # versions of 2025's first half
            about = word(found.get("name"))
            yield from _blocks(items(found["core_memory"]), about, report)
            _count(found, report)
        elif isinstance(found.get("passages"), list):
            yield from _passages(found["passages"], report)
        else:
            report.skip("no agent file")


def _agent_file(found: dict[str, Any], report: ReadReport) -> Iterator[FoundMemory]:
    blocks = {word(block.get("id")): block for block in items(found["blocks"])}
    for agent in items(found["agents"]):
        name = word(agent.get("name")) or word(agent.get("id"))
        own = agent.get("block_ids")
        ids = [each for each in own if isinstance(each, str)] if isinstance(own, list) else []
        there = [blocks.pop(each) for each in ids if each in blocks]
        yield from _blocks(there, name, report)
        yield from _blocks(items(agent.get("memory_blocks")), name, report)
        _count(agent, report)
    yield from _blocks(list(blocks.values()), "", report)  # of no agent
    _count(found, report)


def _count(found: dict[str, Any], report: ReadReport) -> None:
    for name in _OTHERS:
        if listed := found.get(name):
            report.skip(name, len(listed) if isinstance(listed, list) else 1)


def _blocks(blocks: list[dict[str, Any]], about: str, report: ReadReport) -> Iterator[FoundMemory]:
    for block in blocks:
        label, text = word(block.get("label")), word(block.get("value"))
        if not text.strip():
            report.skip("empty block")
            continue
        # Its place in the file may change, and so may its id; an agent has one block of a label.
        yield FoundMemory(
            id=f"{about}/{label}" if label else text,
            text=text,
            tags=("memory block", label),
            about=about,
            changed=moment(block.get("updated_at")),
        )


def _passages(passages: list[Any], report: ReadReport) -> Iterator[FoundMemory]:
    for each in passages:
        found = mapping(each)
        text = word(found.get("text")) or word(found.get("content"))
        if not text.strip() or found.get("is_deleted") is True:
            report.skip("deleted passage" if found.get("is_deleted") is True else "no passage")
            continue
        if file := word(found.get("file_name")):
            report.skip(f"passage of the file {kind(file)}")
            continue
        tags = found.get("tags")
        own = [word(tag) for tag in tags] if isinstance(tags, list) else []
        yield FoundMemory(
            id=word(found.get("id")) or text,
            text=text,
            tags=tuple(tag for tag in own if tag),
            about=word(found.get("agent_id")) or word(found.get("archive_id")),
            time=moment(found.get("created_at")) or moment(found.get("timestamp")),
            changed=moment(found.get("updated_at")),
        )

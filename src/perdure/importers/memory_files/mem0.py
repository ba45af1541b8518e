"""Memories of mem0: what ``get_all`` returns, exports of the platform, or ``~/.mem0/history.db``.

The library keeps memories in a store of vectors; its history has them all, with each change.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from perdure.core.clock import from_datetime
from perdure.core.errors import InvalidInput
from perdure.importers.foreign_sqlite import ForeignDatabase, is_sqlite
from perdure.importers.importer import ReadReport, kind, word
from perdure.importers.memory_files.found_memory import FoundMemory, documents
from perdure.importers.message_parts import items, mapping
from perdure.recall.memory_records import MemoryKind

_LISTS = "results", "memories", "data"
_ABOUT = "user_id", "agent_id", "app_id", "run_id", "actor_id"
#: Kinds by words in its categories and types.
_KINDS: dict[str, MemoryKind] = {
    "preference": "preference",
    "decision": "decision",
    "learning": "lesson",
    "lesson": "lesson",
    "pattern": "pattern",
}
_HISTORY = """
    SELECT memory_id, new_memory, event, created_at, updated_at, is_deleted, actor_id
    FROM history ORDER BY coalesce(updated_at, created_at), rowid
"""


def place() -> Path | None:
    return Path(os.environ.get("MEM0_DIR") or Path.home() / ".mem0") / "history.db"


def read(path: Path, report: ReadReport) -> Iterator[FoundMemory]:
    if is_sqlite(path):
        yield from _history(path, report)
        return
    for document in documents(path, report):
        yield from _listed(document, report)


def _listed(document: Any, report: ReadReport) -> Iterator[FoundMemory]:
    if isinstance(document, list):
        for each in document:
            yield from _listed(each, report)
        return
    found = mapping(document)
    lists = [name for name in _LISTS if isinstance(found.get(name), list)]
    for name in lists:
        for each in found[name]:
            yield from _listed(each, report)
    for _ in items(found.get("relations")):
        report.skip("relation of a graph")
    if lists:
        return
    text = next(
        (found[name] for name in ("memory", "content", "text") if word(found.get(name))), ""
    )
    if not text:
        report.skip("no memory")
        return
    metadata = mapping(found.get("metadata"))
    categories = found.get("categories") or metadata.get("categories") or []
    tags = [word(each) for each in categories] if isinstance(categories, list) else []
    tags += [word(metadata.get(name)) for name in ("type", "category")]
    abouts = (word(found.get(name)) or word(metadata.get(name)) for name in _ABOUT)
    yield FoundMemory(
        id=word(found.get("id")) or text,
        text=text,
        kind=_kind(tags),
        tags=tuple(tag for tag in tags if tag),
        about=next(filter(None, abouts), ""),
        time=moment(found.get("created_at")),
        changed=moment(found.get("updated_at")),
    )


def _kind(tags: list[str]) -> MemoryKind:
    for word_, found in _KINDS.items():
        if any(word_ in tag.lower() for tag in tags):
            return found
    return "fact"


def _history(path: Path, report: ReadReport) -> Iterator[FoundMemory]:
    """The newest text of each memory that was not deleted."""
    database = ForeignDatabase(path)
    if not {"memory_id", "new_memory", "event"} <= database.columns("history"):
        raise OSError("it is no history of mem0")
    newest: dict[str, FoundMemory] = {}
    for name, text, event, created, updated, deleted, actor in database.rows(_HISTORY):
        if event not in {"ADD", "UPDATE", "DELETE"}:
            report.skip(f"event: {kind(event)}")
        elif event == "DELETE" or deleted:
            newest.pop(word(name), None)
        elif word(text):
            first = newest.get(word(name))
            began = moment(created) if first is None else first.time
            newest[word(name)] = FoundMemory(
                id=word(name),
                text=text,
                about=word(actor),
                time=began,
                changed=moment(updated) or moment(created),
            )
        else:
            report.skip("no memory")
    yield from newest.values()


def moment(text: Any) -> int | None:
    """Of ISO time, in UTC if it does not say where."""
    try:
        found = datetime.fromisoformat(word(text))
        return from_datetime(found if found.tzinfo else found.replace(tzinfo=UTC))
    except (ValueError, OverflowError, InvalidInput):
        return None

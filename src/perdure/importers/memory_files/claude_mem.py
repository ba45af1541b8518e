"""Memories of claude-mem: ``~/.claude-mem/claude-mem.db``.

An observation is what a model noted of a session: a title, facts, a narrative, concepts. Of the
summaries of sessions what was learned is taken; prompts and the program's own tables are counted.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from perdure.core.clock import SECOND
from perdure.importers.foreign_sqlite import ForeignDatabase
from perdure.importers.importer import ReadReport, word
from perdure.importers.memory_files.found_memory import FoundMemory
from perdure.importers.message_parts import moment_of
from perdure.importers.transcript_source import Broken, decode
from perdure.recall.memory_records import MemoryKind

_MILLISECOND = SECOND // 1000
#: The kinds that differ from a fact, by the observation's type.
_KINDS: dict[str, MemoryKind] = {
    "decision": "decision",
    "bugfix": "lesson",
    "security_alert": "lesson",
    "security_note": "lesson",
}
#: Columns of an observation; older versions have only the first ones.
_OLD = "id", "memory_session_id", "project", "text", "type", "created_at_epoch"
_NEW = "title", "subtitle", "narrative", "facts", "concepts", "merged_into_project"
_SUMMARIES = "SELECT id, project, learned, created_at_epoch FROM session_summaries ORDER BY id"
#: Tables whose rows are counted.
_COUNTED = {"user_prompts": "user prompt", "pending_messages": "pending message"}


def place() -> Path | None:
    folder = os.environ.get("CLAUDE_MEM_DATA_DIR") or Path.home() / ".claude-mem"
    return Path(folder).expanduser() / "claude-mem.db"


def read(path: Path, report: ReadReport) -> Iterator[FoundMemory]:
    database = ForeignDatabase(path)
    columns = database.columns("observations")
    if not {"id", "project", "type", "created_at_epoch"} <= columns:
        raise OSError("it has no observations of claude-mem")
    names = [name for name in (*_OLD, *_NEW) if name in columns]
    for row in database.rows(f"SELECT {', '.join(names)} FROM observations ORDER BY id"):  # noqa: S608 (own names)
        yield from _observation(dict(zip(names, row, strict=True)), report)
    if database.columns("session_summaries"):
        for number, project, learned, created in database.rows(_SUMMARIES):
            if not word(learned).strip():
                report.skip("session summary without what was learned")
                continue
            yield FoundMemory(
                id=f"summary {number}",
                text=learned,
                kind="lesson",
                tags=("session summary",),
                about=word(project),
                time=moment_of(created, _MILLISECOND),
            )
    for table, what in _COUNTED.items():
        if database.columns(table):
            ((rows,),) = database.rows(f"SELECT count(*) FROM {table}")  # noqa: S608 (own names)
            if rows:
                report.skip(what, rows)


def _observation(row: dict[str, Any], report: ReadReport) -> Iterator[FoundMemory]:
    heads = (word(row.get("title")), word(row.get("subtitle")))
    head = ": ".join(each for each in heads if each)
    facts = [f"- {fact}" for fact in _list(row.get("facts"))]
    told = [head, *facts, word(row.get("narrative"))]
    told = [each for each in told if each.strip()] or [word(row.get("text"))]
    if not told[0].strip():
        report.skip("empty observation")
        return
    what = word(row.get("type"))
    yield FoundMemory(
        id=f"observation {row['id']}",
        text="\n".join(told),
        kind=_KINDS.get(what, "fact"),
        tags=tuple(each for each in (what, *_list(row.get("concepts"))) if each),
        about=word(row.get("merged_into_project")) or word(row.get("project")),
        time=moment_of(row.get("created_at_epoch"), _MILLISECOND),
    )


def _list(text: Any) -> list[str]:
    """Of a list in JSON; of words, those."""
    if not word(text):
        return []
    try:
        found = decode(text.encode("utf-8", "replace"))
    except Broken:
        return [text]
    return [each for each in found if isinstance(each, str)] if isinstance(found, list) else []

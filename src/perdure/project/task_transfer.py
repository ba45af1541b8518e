"""Tasks as lines of JSON: export, import (also of beads), and a file under git that is kept level
with the bank.

Claims stay in their bank: a lease means nothing elsewhere. Numbers do, too: another bank gives its
own.
"""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from perdure.core import clock
from perdure.core.errors import InvalidInput
from perdure.project.beads_format import is_beads, read_beads
from perdure.project.project_location import write_atomically
from perdure.project.projections import Projections
from perdure.project.task_graph import TaskGraph, next_task_number
from perdure.project.task_merge import (
    TaskLine,
    TaskLines,
    merge_tasks,
    older_lines,
    read_lines,
    write_lines,
)
from perdure.project.task_records import (
    LOWEST_PRIORITY,
    Task,
    TaskEvidence,
    TaskLink,
    TaskNote,
    settled,
    task_key,
)
from perdure.recall.memory_records import Anchor
from perdure.storage.transaction import Transaction

#: The file under git, below ``.perdure``.
TASK_FILE = "tasks.jsonl"
_FIELDS = (
    "id", "title", "description", "status", "priority", "kind", "labels", "needs", "parent",
    "discovered_from", "links", "blocked", "owner", "evidence", "notes", "reason", "created",
    "made_by", "made_at", "updated", "closed", "external", "extra",
)  # fmt: skip


class TaskImport(msgspec.Struct, frozen=True):
    """What an import or a sync did."""

    format: str = "perdure"
    added: int = 0
    changed: int = 0
    unchanged: int = 0
    removed: int = 0
    #: Issues that were deleted where they come from: left out.
    deleted: int = 0
    #: Fields without a place here, which are kept, and how many tasks had them.
    kept: dict[str, int] = {}
    remarks: tuple[str, ...] = ()


async def export_tasks(graph: TaskGraph) -> str:
    return write_lines(_lines(await graph.all()))


async def import_tasks(graph: TaskGraph, text: str) -> TaskImport:
    """Add tasks, or bring them up to date: the same file a second time changes nothing.

    Raises `InvalidInput`.
    """
    given = read_lines(text)
    reading = read_beads(given) if is_beads(given.values()) else None
    report = TaskImport()
    if reading is not None:
        given, report = reading.lines, TaskImport("beads", deleted=reading.deleted)
        report = replace(report, kept=reading.kept, remarks=reading.remarks)

    async def body(transaction: Transaction) -> TaskImport:
        tasks = await _all(graph, transaction)
        lines = _lines(tasks.values())
        # What the bank knows of a task counts as the common version where the file says nothing.
        merged = merge_tasks({}, lines, _completed(given, lines))
        found = await _store(graph, transaction, tasks, merged.lines)
        return replace(
            report,
            added=found.added,
            changed=found.changed,
            unchanged=len(given) - found.added - found.changed,
            remarks=(*report.remarks, *merged.remarks, *found.remarks),
        )

    return await graph.services.store.transact(body)


async def sync_tasks(
    graph: TaskGraph, path: Path | None = None, *, write: bool = True
) -> TaskImport:
    """Make the file and the bank the same: what was changed on either side since the last time is
    merged. Without a file one is written, if `write`. Raises `InvalidInput` if the file cannot be
    read, `Unavailable` if it cannot be written.
    """
    if path is not None:
        theirs = _text(path) or None
        report, text = await _merge_file(graph, "", theirs, str(path))
        if theirs != text:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path, text.encode())
        return report
    projections, total = Projections(graph.location), TaskImport()
    async with projections.locked():
        while True:
            file = projections.read(TASK_FILE)
            steps: list[tuple[str | None, str | None]] = [*await projections.incoming(file)]
            text = ""
            for base, given in steps or [("", None)]:
                report, text = await _merge_file(
                    graph, base, given, str(projections.path(TASK_FILE))
                )
                total = _added(total, report)
            if not write:
                if file.is_edited and file.text is not None:
                    await projections.note_here(TASK_FILE, file.text)
                return total
            if projections.write(TASK_FILE, text, file.text):
                await projections.note_here(TASK_FILE, text)
                return total


async def _merge_file(
    graph: TaskGraph, base: str | None, theirs: str | None, name: str
) -> tuple[TaskImport, str]:
    """Bring the bank to the merge of itself and a file; with what it says then."""
    common = None if base is None else read_lines(base, f"The former {name}")
    given = None if theirs is None else read_lines(theirs, name)

    async def body(transaction: Transaction) -> tuple[TaskImport, str]:
        tasks = await _all(graph, transaction)
        ours = _lines(tasks.values())
        if given is None:
            return TaskImport(unchanged=len(ours)), write_lines(ours)
        merged = merge_tasks(older_lines(ours, given) if common is None else common, ours, given)
        found = await _store(graph, transaction, tasks, merged.lines)
        stored = _lines((await _all(graph, transaction)).values())
        return replace(found, remarks=(*merged.remarks, *found.remarks)), write_lines(stored)

    report, text = await graph.services.store.transact(body)
    if report.added or report.changed or report.removed:
        graph.location.drop_preambles()
    return report, text


def _added(one: TaskImport, other: TaskImport) -> TaskImport:
    return replace(
        other,
        added=one.added + other.added,
        changed=one.changed + other.changed,
        removed=one.removed + other.removed,
        remarks=(*one.remarks, *other.remarks),
    )


async def merge_changes(
    graph: TaskGraph, before: TaskLines, after: TaskLines
) -> tuple[TaskLines, tuple[str, ...]]:
    """Bring some tasks from `before` to `after` in one transaction, keeping what others changed
    meanwhile; one that is missing in either was not there. Returns these tasks as they are now.
    """
    touched = {*before, *after}

    async def body(transaction: Transaction) -> tuple[TaskLines, tuple[str, ...]]:
        tasks = await _all(graph, transaction)
        ours = _lines(tasks.values())
        others = {id: line for id, line in ours.items() if id not in touched}
        merged = merge_tasks(others | before, ours, others | after)
        found = await _store(graph, transaction, tasks, merged.lines)
        now = _lines((await _all(graph, transaction)).values())
        kept = {id: now[id] for id in sorted(touched) if id in now}
        return kept, (*merged.remarks, *found.remarks)

    return await graph.services.store.transact(body)


def task_line(task: Task) -> TaskLine:
    """A task as a line of a file. Empty fields are left out."""
    line: dict[str, Any] = {
        "id": task.id,
        "title": task.title,
        "status": task.state if task.is_closed else "open",
        "priority": task.priority,
        "kind": task.kind,
        "created": _iso(task.made),
        "updated": _iso(task.changed),
    }
    optional = {
        "description": task.description,
        "labels": sorted(task.labels),
        "needs": sorted(task.needs),
        "parent": task.parent,
        "discovered_from": sorted(task.discovered_from),
        "links": [msgspec.to_builtins(each) for each in task.links],
        "blocked": task.blocked,
        "owner": task.owner,
        "evidence": [_timed(each) for each in task.evidence],
        "notes": [_timed(each) for each in task.notes],
        "reason": task.reason,
        "made_by": task.made_by,
        "made_at": msgspec.to_builtins(task.made_at),
        "closed": _iso(task.closed),
        "external": task.external,
        "extra": task.extra,
    }
    return line | {field: value for field, value in optional.items() if value}


def _lines(tasks: Any) -> TaskLines:
    return {each.id: task_line(each) for each in tasks}


def _completed(given: TaskLines, known: TaskLines) -> TaskLines:
    return {
        id: {field: value for field, value in known.get(id, {}).items() if field not in line} | line
        for id, line in given.items()
    } | {id: line for id, line in known.items() if id not in given}


async def _all(graph: TaskGraph, transaction: Transaction) -> dict[str, Task]:
    tasks = transaction.collection(Task)
    return {each.id: each async for each in tasks.walk(f"{graph.project}/")}


async def _store(
    graph: TaskGraph, transaction: Transaction, tasks: dict[str, Task], lines: TaskLines
) -> TaskImport:
    """Make the bank's tasks what the lines say, with links that fit on both ends."""
    remarks: list[str] = []
    new = sorted((lines[id].get("created", ""), id) for id in lines if id not in tasks)
    number = await next_task_number(transaction, graph.project, len(new)) if new else 0
    numbers = {id: number + place for place, (_, id) in enumerate(new)}
    made: dict[str, Task] = {}
    for id, line in lines.items():
        before = tasks.get(id)
        if before is not None and task_line(before) == line:
            made[id] = before
            continue
        made[id] = _task(graph.project, id, line, before, numbers.get(id, 0))
    needed_by: dict[str, list[str]] = {}
    for id, task in made.items():
        there = tuple(each for each in task.needs if each in made)
        if there != task.needs:
            gone = ", ".join(sorted(set(task.needs) - set(there)))
            remarks.append(f"{id} needs {gone}, which is not there: the link is left out.")
        made[id] = replace(task, needs=there)
        for each in there:
            needed_by.setdefault(each, []).append(id)
    changed = []
    for id, task in made.items():
        waits = sum(not made[each].is_closed for each in task.needs)
        back = tuple(sorted(needed_by.get(id, ())))
        before = tasks.get(id)
        same = before is not None and tuple(sorted(before.needed_by)) == back
        kept = before.needed_by if before is not None and same else back
        full = settled(replace(task, waits=waits, needed_by=kept))
        if full != before:
            changed.append(full)
    collection = transaction.collection(Task)
    await collection.put_many(changed)
    removed = [task.key for id, task in tasks.items() if id not in made]
    if removed:
        await collection.delete_many(removed)
    edited = [id for id in lines if id in tasks and task_line(tasks[id]) != task_line(made[id])]
    return TaskImport(
        added=len(new),
        changed=len(edited),
        unchanged=len(lines) - len(new) - len(edited),
        removed=len(removed),
        remarks=tuple(remarks),
    )


def _task(project: str, id: str, line: TaskLine, before: Task | None, number: int) -> Task:
    """Raises `InvalidInput` for a line whose fields have the wrong types."""
    unknown = {field: value for field, value in line.items() if field not in _FIELDS}
    now = clock.now()
    try:
        status = line.get("status", "open")
        made = msgspec.convert(
            {
                "key": task_key(project, id),
                "project": project,
                "number": before.number if before else number,
                "state": status if status in {"done", "dropped"} else "ready",
                "title": " ".join(str(line["title"]).split())[:500] or id,
                "description": line.get("description", ""),
                "priority": min(max(line.get("priority", 2), 0), LOWEST_PRIORITY),
                "kind": line.get("kind", "task"),
                "labels": line.get("labels", []),
                "needs": [each for each in line.get("needs", []) if each != id],
                "parent": line.get("parent", ""),
                "discovered_from": line.get("discovered_from", []),
                "blocked": line.get("blocked", ""),
                "owner": line.get("owner", ""),
                "reason": line.get("reason", ""),
                "made": _micros(line.get("created")) or now,
                "made_by": line.get("made_by", ""),
                "changed": _micros(line.get("updated")) or now,
                "closed": _micros(line.get("closed")),
                "external": line.get("external"),
                "extra": {**line.get("extra", {}), **unknown},
            },
            Task,
        )
        made = replace(
            made,
            links=msgspec.convert(line.get("links", []), tuple[TaskLink, ...]),
            evidence=msgspec.convert(_untimed(line, "evidence"), tuple[TaskEvidence, ...]),
            notes=msgspec.convert(_untimed(line, "notes"), tuple[TaskNote, ...]),
            made_at=msgspec.convert(line.get("made_at", {}), Anchor),
        )
    except (msgspec.ValidationError, KeyError, TypeError, AttributeError) as exc:
        raise InvalidInput(
            f"The task {id} cannot be read: {exc}.", hint="Mend its line and try again."
        ) from exc
    if before is None:
        return made
    over = made.is_closed
    return replace(made, token=before.token, until=0 if over else before.until)


def _untimed(line: TaskLine, field: str) -> list[dict[str, Any]]:
    return [{**each, "at": _micros(each.get("at"))} for each in line.get(field, [])]


def _timed(item: TaskEvidence | TaskNote) -> dict[str, Any]:
    plain: dict[str, Any] = msgspec.to_builtins(item)
    return {**plain, "at": _iso(item.at)} if item.at else plain


def _iso(moment: int) -> str:
    return clock.to_datetime(moment).isoformat(timespec="microseconds") if moment else ""


def _micros(given: Any) -> int:
    try:
        return clock.from_datetime(datetime.fromisoformat(given)) if given else 0
    except (TypeError, ValueError):
        return 0


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return ""
    except (OSError, UnicodeDecodeError) as exc:
        raise InvalidInput(f"{path} cannot be read: {exc}.", hint="Mend the file.") from exc

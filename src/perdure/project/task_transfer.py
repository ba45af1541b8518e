"""Tasks as lines of JSON: export, import (also of beads), and a file under git that is kept level
with the bank.

Claims stay in their bank: a lease means nothing elsewhere. Numbers do, too: another bank gives its
own.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from perdure.core import clock
from perdure.core.errors import InvalidInput, Unavailable
from perdure.project.beads_format import is_beads, read_beads
from perdure.project.project_location import write_atomically
from perdure.project.task_graph import TaskGraph, next_task_number
from perdure.project.task_merge import (
    TaskLine,
    TaskLines,
    TaskMerge,
    merge_tasks,
    read_lines,
    write_lines,
)
from perdure.project.task_order import without_cycles
from perdure.project.task_records import (
    LOWEST_PRIORITY,
    Task,
    TaskEvidence,
    TaskLink,
    TaskNote,
    settled,
    task_id_for,
    task_key,
)
from perdure.recall.memory_records import Anchor
from perdure.storage.transaction import Transaction

#: The file under git, below ``.perdure``.
TASK_FILE = "tasks.jsonl"
#: Branches and work trees of which is kept what their file was when it was last synced.
_MOST_BASES = 20
_FIELDS = (
    "id", "title", "description", "status", "priority", "kind", "labels", "needs", "parent",
    "discovered_from", "links", "blocked", "owner", "evidence", "notes", "reason", "created",
    "made_by", "made_at", "updated", "closed", "external", "extra",
)  # fmt: skip


_ids = re.compile(r"\btk_[0-9a-f]{1,12}\b", re.ASCII).sub
_is_ours = re.compile(r"tk_[0-9a-f]{1,12}", re.ASCII).fullmatch
_MAX_TITLE = 500


class TaskImport(msgspec.Struct, frozen=True):
    """What an import or a sync did."""

    format: str = "perdure"
    added: int = 0
    changed: int = 0
    unchanged: int = 0
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
        theirs = {
            id: _read(graph.project, {**_left(lines.get(id, {}), line), **line})
            for id, line in _with_our_ids(given).items()
        }
        merged = merge_tasks({}, lines, lines | theirs)
        found = await _store(graph, transaction, tasks, merged)
        return replace(
            report,
            added=found.added,
            changed=found.changed,
            unchanged=len(given) - found.added - found.changed,
            remarks=(*report.remarks, *found.remarks),
        )

    return await graph.services.store.transact(body)


async def sync_tasks(graph: TaskGraph, *, write: bool = True) -> TaskImport:
    """Make the file and the bank the same: what was changed on either side since the last time is
    merged. Without a file one is written; without `write` the file stays as it is. Each work tree
    and branch has a file of its own: what it was at its last sync is kept for each. No task leaves
    the bank because a file does not have it, and a line that was in any of the files before is no
    news: it is there again because another commit was checked out. Raises `InvalidInput` if the
    file cannot be read, `Unavailable` if it cannot be written.
    """
    file, kept = graph.location.files / TASK_FILE, await _base_file(graph)
    base = read_lines(_text(kept), str(kept))
    seen = set(_text(kept.parent / "seen").split())
    lines = _with_our_ids(read_lines(_text(file), str(file)))
    given = {id: _read(graph.project, line) for id, line in lines.items()}
    known = {id: base.get(id, line) for id, line in given.items() if _digest(line) in seen}

    async def body(transaction: Transaction) -> tuple[TaskImport, TaskLines]:
        tasks = await _all(graph, transaction)
        ours = _lines(tasks.values())
        # A task that the bank does not have is new, though a file had it: it is another bank.
        was = {id: line for id, line in (known | base).items() if id in ours}
        merged = merge_tasks(was, ours, was | given | {id: known[id] for id in known if id in was})
        found = await _store(graph, transaction, tasks, merged)
        return found, _lines((await _all(graph, transaction)).values())

    report, stored = await graph.services.store.transact(body)
    if report.added or report.changed:
        graph.location.drop_preambles()
    try:
        _write_level(file, kept, given, stored, seen, write=write)
    except OSError as exc:
        raise Unavailable(
            f"{exc.filename or file} cannot be written: {exc.strerror}. The bank has everything.",
            hint="Make room or mend the rights, then run `perdure task sync` again.",
        ) from exc
    return report


async def tasks_edited(graph: TaskGraph) -> bool:
    """Whether somebody changed the file since the last sync: by size and time, else by reading."""
    file, kept = graph.location.files / TASK_FILE, await _base_file(graph)
    try:
        there = file.stat()
        last = kept.stat()
        if there.st_size == last.st_size and there.st_mtime_ns <= last.st_mtime_ns:
            return False
        return file.read_bytes() != kept.read_bytes()
    except OSError:
        return file.exists()


def _write_level(
    file: Path, kept: Path, given: TaskLines, stored: TaskLines, seen: set[str], *, write: bool
) -> None:
    """The file, and beside `kept` what it was at this sync. Raises OSError."""
    data = write_lines(stored if write else given).encode()
    file.parent.mkdir(parents=True, exist_ok=True)
    kept.parent.mkdir(parents=True, exist_ok=True)
    digests = {_digest(line) for line in (*given.values(), *stored.values())}
    # First what is known, then the file: a line that is not noted would be taken for an edit.
    with (kept.parent / "seen").open("a") as notes:
        notes.writelines(f"{each}\n" for each in sorted(digests - seen))
    if write and (not file.exists() or file.read_bytes() != data):
        write_atomically(file, data)
    write_atomically(kept, data)
    bases = sorted(kept.parent.glob("*.jsonl"), key=lambda each: -each.stat().st_mtime)
    for old in bases[_MOST_BASES:]:
        old.unlink(missing_ok=True)


async def _base_file(graph: TaskGraph) -> Path:
    git = graph.location.git
    branch = "" if git is None else (await git.head()).branch
    place = hashlib.sha256(f"{graph.location.worktree} {branch}".encode()).hexdigest()[:16]
    return graph.location.folder / "synced_tasks" / f"{place}.jsonl"


def _digest(line: TaskLine) -> str:
    return hashlib.sha256(write_lines({line["id"]: line}).encode()).hexdigest()[:16]


async def merge_changes(
    graph: TaskGraph, before: TaskLines, after: TaskLines
) -> tuple[TaskLines, tuple[str, ...]]:
    """Bring some tasks from `before` to `after` in one transaction, keeping what others changed
    meanwhile. One that is missing in `before` is added; one that is missing in `after` is dropped,
    unless somebody changed it: tasks are never deleted. Returns these tasks as they are now.
    """
    touched = {*before, *after}

    async def body(transaction: Transaction) -> tuple[TaskLines, tuple[str, ...]]:
        tasks = await _all(graph, transaction)
        ours = _lines(tasks.values())
        others = {id: line for id, line in ours.items() if id not in touched}
        merged = merge_tasks(others | before, ours, others | after)
        now = _iso(transaction.now())
        end = {
            "status": "dropped",
            "closed": now,
            "updated": now,
            "reason": "Taken back.",
            "needs": [],
        }
        dropped = {id: {**ours[id], **end} for id in ours if id not in merged.lines}
        found = await _store(
            graph, transaction, tasks, replace(merged, lines=merged.lines | dropped)
        )
        stored = _lines((await _all(graph, transaction)).values())
        kept = {id: stored[id] for id in sorted(touched) if id in stored}
        return kept, found.remarks

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


def _left(known: TaskLine, line: TaskLine) -> TaskLine:
    """What is known and the line does not say."""
    return {field: value for field, value in known.items() if field not in line}


def _read(project: str, line: TaskLine) -> TaskLine:
    """A line as we would write it: whoever wrote it, what means the same is the same. Raises
    `InvalidInput`.
    """
    return task_line(_task(project, line["id"], line, None, 0))


def _with_our_ids(lines: TaskLines) -> TaskLines:
    """The same tasks, with ids of ours in place of those that others, or people, gave them."""
    found: TaskLines = {}
    for name, line in lines.items():
        id = _our_id(name)
        made = {**line, "id": id} if id == name else {"external": name, **line, "id": id}
        for field in ("needs", "discovered_from"):
            if isinstance(line.get(field), list):
                made[field] = [_our_id(str(each)) for each in line[field]]
        if line.get("parent"):
            made["parent"] = _our_id(str(line["parent"]))
        found[id] = made
    return found


def _our_id(name: str) -> str:
    return name if _is_ours(name) else task_id_for(name)


async def _all(graph: TaskGraph, transaction: Transaction) -> dict[str, Task]:
    tasks = transaction.collection(Task)
    return {each.id: each async for each in tasks.walk(f"{graph.project}/")}


async def _store(
    graph: TaskGraph, transaction: Transaction, tasks: dict[str, Task], merged: TaskMerge
) -> TaskImport:
    """Make the bank's tasks what the lines say, with links that fit on both ends. Every task of
    the bank has a line.
    """
    lines, remarks = merged.lines, [*merged.remarks]
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
    parents = sorted((id, task.parent) for id, task in made.items() if task.parent in made)
    for id, parent in without_cycles({}, parents)[1]:
        remarks.append(f"{id} is no part of {parent} any more: it would be a part of itself.")
        made[id] = replace(made[id], parent="")
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
    edited = [id for id in lines if id in tasks and task_line(tasks[id]) != task_line(made[id])]
    return TaskImport(
        added=len(new),
        changed=len(edited),
        unchanged=len(lines) - len(new) - len(edited),
        remarks=tuple(_ids(lambda id: _named(made, id[0]), each) for each in remarks),
    )


def _named(tasks: Mapping[str, Task], id: str) -> str:
    """As people know it: by its number here, and by its name where it came from."""
    task = tasks.get(id)
    if task is None:
        return id
    return f"{task.name} ({task.external})" if task.external else task.name


def _task(project: str, id: str, line: TaskLine, before: Task | None, number: int) -> Task:
    """Raises `InvalidInput` for a line whose fields have the wrong types."""
    unknown = {field: value for field, value in line.items() if field not in _FIELDS}
    now = clock.now()
    try:
        status = line.get("status", "open")
        title, description = " ".join(str(line["title"]).split()), line.get("description", "")
        if len(title) > _MAX_TITLE:
            whole = "" if description.startswith(title) else f"{title}\n\n"
            title, description = title[:_MAX_TITLE].strip(), f"{whole}{description}".strip()
        made = msgspec.convert(
            {
                "key": task_key(project, id),
                "project": project,
                "number": before.number if before else number,
                "state": status if status in {"done", "dropped"} else "ready",
                "title": title or id,
                "description": description,
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
    except (msgspec.ValidationError, KeyError, TypeError, ValueError, AttributeError) as exc:
        raise InvalidInput(
            f"The task {line.get('external') or id} cannot be read: {exc}.",
            hint="Mend its line and try again.",
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
    if not given:
        return 0
    moment = datetime.fromisoformat(given)
    return clock.from_datetime(moment if moment.tzinfo else moment.replace(tzinfo=UTC))


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (FileNotFoundError, NotADirectoryError):
        return ""
    except (OSError, UnicodeDecodeError) as exc:
        raise InvalidInput(f"{path} cannot be read: {exc}.", hint="Mend the file.") from exc

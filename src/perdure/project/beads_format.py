"""Issues of beads (``.beads/issues.jsonl``) as lines of ours. Pure.

Beads keeps dependencies on the issue that depends: ``{"issue_id", "depends_on_id", "type"}``. Of
their types ``blocks`` makes a task wait; ``parent-child`` names its parent; ``discovered-from`` and
all others are links. What has no place here is kept in the task's ``extra`` and exported again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from datetime import datetime
from typing import Any

import msgspec

from perdure.project.task_merge import TaskLine, TaskLines
from perdure.project.task_records import LOWEST_PRIORITY, task_id_for

_WAITS = {"blocks", "conditional-blocks", "waits-for"}
_CLOSED = {"closed": "done"}
#: Fields that have a place of their own; all others are kept and counted.
_KNOWN = {
    "id", "title", "description", "status", "priority", "issue_type", "assignee", "labels",
    "created_at", "updated_at", "closed_at", "close_reason", "created_by", "dependencies",
    "comments", "_type",
}  # fmt: skip


class BeadsReading(msgspec.Struct, frozen=True):
    """The tasks of a beads file. Issues that were deleted there are counted only."""

    lines: TaskLines
    deleted: int
    #: How many issues had each field that is kept in ``extra``.
    kept: dict[str, int]
    remarks: tuple[str, ...]


def is_beads(lines: Iterable[TaskLine]) -> bool:
    return any("issue_type" in each or each.get("_type") == "issue" for each in lines)


def read_beads(issues: TaskLines) -> BeadsReading:
    """Never raises for a field that is odd: it is kept as it is, and said."""
    present = {id for id, each in issues.items() if each.get("status") != "tombstone"}
    kept: Counter[str] = Counter()
    remarks: list[str] = []
    lines: TaskLines = {}
    for name in sorted(present):
        issue = issues[name]
        line = _line(name, issue, remarks)
        _link(line, issue, present, remarks)
        extra = {field: issue[field] for field in issue if field not in _KNOWN}
        kept.update(extra.keys())
        status = issue.get("status", "open")
        if status not in {"open", "in_progress", "closed"}:
            extra["status"] = status
            if status != "blocked":
                remarks.append(f"{name}: the status {status!r} is kept as a reason to wait.")
        if extra:
            line["extra"] = extra
        lines[line["id"]] = line
    return BeadsReading(lines, len(issues) - len(present), dict(kept), tuple(remarks))


def _line(name: str, issue: TaskLine, remarks: list[str]) -> TaskLine:
    priority = issue.get("priority", 0)  # beads leaves out what is 0
    if not isinstance(priority, int) or not 0 <= priority <= LOWEST_PRIORITY:
        remarks.append(f"{name}: the priority {priority!r} is taken as 2.")
        priority = 2
    status = issue.get("status", "open")
    line: TaskLine = {
        "id": task_id_for(name),
        "external": name,
        "title": str(issue.get("title") or name),
        "priority": priority,
        "kind": str(issue.get("issue_type") or "task"),
        "status": _CLOSED.get(status, "open"),
    }
    optional = {
        "created": _moment(issue.get("created_at")),
        "updated": _moment(issue.get("updated_at")),
        "description": issue.get("description"),
        "owner": issue.get("assignee"),
        "made_by": issue.get("created_by"),
        "reason": issue.get("close_reason"),
        "labels": issue.get("labels"),
        "closed": _moment(issue.get("closed_at")),
        "notes": [
            {
                "text": str(each.get("text", "")),
                "by": str(each.get("author", "")),
                "at": _moment(each.get("created_at")),
            }
            for each in issue.get("comments") or []
        ],
    }
    if status == "blocked" and not issue.get("dependencies"):
        optional["blocked"] = "It was blocked in beads."
    elif status not in {"open", "in_progress", "closed", "blocked"}:
        optional["blocked"] = f"It was {status} in beads."
    return line | {field: value for field, value in optional.items() if value}


def _link(line: TaskLine, issue: TaskLine, present: set[str], remarks: list[str]) -> None:
    name = line["external"]
    for each in issue.get("dependencies") or []:
        kind, target = str(each.get("type", "blocks")), str(each.get("depends_on_id", ""))
        if target not in present:
            remarks.append(f"{name}: {kind} {target} is no issue of the file: kept as a link.")
            line.setdefault("links", []).append({"kind": kind, "task": target})
            continue
        id = task_id_for(target)
        if kind in _WAITS:
            line.setdefault("needs", []).append(id)
        elif kind == "discovered-from":
            line.setdefault("discovered_from", []).append(id)
        elif kind == "parent-child" and "parent" not in line:
            line["parent"] = id
        else:
            line.setdefault("links", []).append({"kind": kind, "task": id})


def _moment(given: Any) -> str:
    """In UTC, to the microsecond, so that moments sort as text. Go writes nanoseconds."""
    from datetime import UTC

    if not isinstance(given, str):
        return ""
    try:
        return datetime.fromisoformat(given).astimezone(UTC).isoformat(timespec="microseconds")
    except ValueError:
        return ""

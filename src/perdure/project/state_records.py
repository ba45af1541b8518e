"""The long-lived state of a project: goals, milestones, checkpoints and links.

=====================  ===================  ============================================
collection             key                  what it holds
=====================  ===================  ============================================
project_entries        ``pr_1/gl_9f…``      one goal, milestone, checkpoint or link
=====================  ===================  ============================================

An entry's id is random and the same in every clone. It keeps the commit and branch at which it was
made and last changed; what becomes of these when history is rewritten is the anchors' business.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Any, Literal, TypeAlias

import msgspec

from perdure.core import clock
from perdure.core.errors import InvalidInput
from perdure.project.task_merge import TaskLine
from perdure.project.task_records import TaskNote
from perdure.recall.memory_records import Anchor
from perdure.storage.records import Compressed, Indexed, Key, system_record

#: ``project`` is the one entry that holds what the file says about the project as a whole.
EntryKind: TypeAlias = Literal["project", "goal", "milestone", "checkpoint", "link"]
#: ``removed`` was taken out of the file by hand: it is shown no more, and can be brought back.
EntryStatus: TypeAlias = Literal["open", "done", "dropped", "removed"]
PREFIXES: dict[EntryKind, str] = {
    "goal": "gl",
    "milestone": "ms",
    "checkpoint": "cp",
    "link": "ln",
}
HEADER = "project"
MAX_TITLE = 300
#: Fields of a line that have a place in an entry; others are kept in `StateEntry.extra`.
_FIELDS = frozenset(
    {
        *("id", "kind", "title", "text", "status", "needs", "of", "target", "commit", "branch"),
        *("created", "updated", "closed", "made_by", "made_at", "changed_by", "changed_at"),
        "notes",
    }
)


@system_record("project_entries")
class StateEntry(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A goal, milestone, checkpoint or link. Times are microseconds since 1970."""

    key: Annotated[str, Key()]
    project: Annotated[str, Indexed()]
    kind: EntryKind
    title: str
    text: Annotated[str, Compressed()] = ""
    status: EntryStatus = "open"
    #: Entries and tasks that have to be over first: the dependency graph of the project's parts.
    needs: tuple[str, ...] = ()
    #: The entry or task that it belongs to.
    of: str = ""
    #: Of a link: a path, a URL, a commit, a turn (``planner/auth#T-12``), an artifact.
    target: str = ""
    #: Of a checkpoint: what was checked out.
    commit: str = ""
    branch: str = ""
    made: int = 0
    made_by: str = ""
    made_at: Anchor = Anchor()
    changed: int = 0
    changed_by: str = ""
    changed_at: Anchor = Anchor()
    closed: int = 0
    notes: tuple[TaskNote, ...] = ()
    #: Fields that somebody wrote into the file by hand.
    extra: Annotated[dict[str, Any], Compressed()] = {}

    @property
    def id(self) -> str:
        return self.key.rpartition("/")[2]

    @property
    def is_closed(self) -> bool:
        return self.status != "open"


def new_entry_id(kind: EntryKind) -> str:
    """48 random bits."""
    return f"{PREFIXES[kind]}_{secrets.token_hex(6)}"


def entry_key(project: str, id: str) -> str:
    return f"{project}/{id}"


def entry_line(entry: StateEntry) -> TaskLine:
    """An entry as the file says it. Empty fields are left out."""
    if entry.kind == "project":
        return {"id": HEADER, "kind": "project", **entry.extra}
    line: dict[str, Any] = {
        **entry.extra,
        "id": entry.id,
        "kind": entry.kind,
        "title": entry.title,
        "created": iso(entry.made),
        "updated": iso(entry.changed),
    }
    if entry.kind in {"goal", "milestone"}:
        line["status"] = entry.status
    optional = {
        "text": entry.text,
        "needs": sorted(entry.needs),
        "of": entry.of,
        "target": entry.target,
        "commit": entry.commit,
        "branch": entry.branch,
        "closed": iso(entry.closed),
        "made_by": entry.made_by,
        "made_at": _place(entry.made_at),
        "changed_by": entry.changed_by,
        "changed_at": _place(entry.changed_at),
        "notes": [
            {**msgspec.to_builtins(note), "at": iso(note.at)} if note.at else {"text": note.text}
            for note in entry.notes
        ],
    }
    return line | {field: value for field, value in optional.items() if value}


def entry_of(project: str, id: str, line: Mapping[str, Any], now: int) -> StateEntry:
    """The entry that a line says. Raises `InvalidInput` if a field has the wrong type."""
    if id == HEADER:
        extra = {field: value for field, value in line.items() if field not in {"id", "kind"}}
        return StateEntry(
            key=entry_key(project, HEADER),
            project=project,
            kind="project",
            title=str(line.get("name", "")),
            changed=now,
            extra=extra,
        )
    extra = {field: value for field, value in line.items() if field not in _FIELDS}
    try:
        title = " ".join(str(line["title"]).split())[:MAX_TITLE] or id
        return msgspec.convert(
            {
                "key": entry_key(project, id),
                "project": project,
                "kind": line["kind"],
                "title": title,
                "text": line.get("text", ""),
                "status": line.get("status", "open"),
                "needs": [each for each in line.get("needs", []) if each != id],
                "of": line.get("of", ""),
                "target": line.get("target", ""),
                "commit": line.get("commit", ""),
                "branch": line.get("branch", ""),
                "made": _micros(line.get("created")) or now,
                "made_by": line.get("made_by", ""),
                "made_at": {"repo": project, **line.get("made_at", {})},
                "changed": _micros(line.get("updated")) or now,
                "changed_by": line.get("changed_by", ""),
                "changed_at": {"repo": project, **line.get("changed_at", {})},
                "closed": _micros(line.get("closed")),
                "notes": [
                    {"text": each["text"], "by": each.get("by", ""), "at": _micros(each.get("at"))}
                    for each in line.get("notes", [])
                ],
                "extra": extra,
            },
            StateEntry,
        )
    except (msgspec.ValidationError, KeyError, TypeError, AttributeError) as exc:
        raise InvalidInput(
            f"The entry {id} cannot be read: {type(exc).__name__}: {exc}.",
            hint="Mend it in the file, then run `perdure project refresh`.",
        ) from exc


def iso(moment: int) -> str:
    return clock.to_datetime(moment).isoformat(timespec="microseconds") if moment else ""


def _micros(given: Any) -> int:
    try:
        return clock.from_datetime(datetime.fromisoformat(given)) if given else 0
    except (TypeError, ValueError, InvalidInput):
        return 0


def _place(anchor: Anchor) -> dict[str, str]:
    found = {"commit": anchor.commit, "branch": anchor.branch}
    return {name: value for name, value in found.items() if value}

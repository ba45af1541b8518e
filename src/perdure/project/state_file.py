"""The file ``.perdure/project_state.json``: written, read, merged, and mended. Pure.

It has a section for each kind of entry, keyed by id, and one for what needs what. Keys are sorted,
so that two people who add entries touch different lines. Entries merge as tasks do (`task_merge`):
field by field; of two texts the later stands, and the other is kept as a note.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

import msgspec

from perdure.core.errors import InvalidInput
from perdure.core.messages import sound
from perdure.project.state_records import HEADER, PREFIXES, EntryKind
from perdure.project.task_merge import (
    TaskLine,
    TaskLines,
    equal_fields,
    merge_task_files,
    merge_tasks,
)

STATE_FILE = "project_state.json"
SECTIONS: dict[str, EntryKind] = {
    "goals": "goal",
    "milestones": "milestone",
    "checkpoints": "checkpoint",
    "artefacts": "link",
}
_NEEDS = "dependencies"
_FORMAT = 1
_id = re.compile(r"[a-z]{2}_[0-9a-f]{10,32}", re.ASCII).fullmatch
_MARKS = ("<<<<<<< ", "||||||| ", "=======", ">>>>>>> ")


class StateFile(msgspec.Struct, frozen=True):
    """Entries as lines, by id, and entries that have no id yet: somebody added them by hand."""

    lines: TaskLines
    new: tuple[TaskLine, ...] = ()


def write_state(lines: Mapping[str, TaskLine]) -> str:
    """The same text for the same entries."""
    header = {name: value for name, value in lines.get(HEADER, {}).items() if name not in _OWN}
    sections: dict[str, dict[str, Any]] = {name: {} for name in (*SECTIONS, _NEEDS)}
    places = {kind: name for name, kind in SECTIONS.items()}
    for id, line in lines.items():
        if id == HEADER:
            continue
        left = {name: value for name, value in line.items() if name not in {"id", "kind", "needs"}}
        sections[places[line["kind"]]][id] = left
        if line.get("needs"):
            sections[_NEEDS][id] = sorted(line["needs"])
    whole = {**header, "format": _FORMAT, **sections}
    return json.dumps(whole, indent=2, sort_keys=True, ensure_ascii=False) + "\n"


#: What a header's line has besides what the file says.
_OWN = frozenset({"id", "kind", "format", *SECTIONS, _NEEDS})


def read_state(text: str, what: str = "The file") -> StateFile:
    """Raises `InvalidInput`, with the line, also for marks of a merge that git gave up on."""
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as exc:
        number = next(
            (at for at, line in enumerate(text.splitlines(), 1) if line.startswith(_MARKS)),
            getattr(exc, "lineno", 0),
        )
        why = "has marks of a conflict" if has_conflict(text) else "is not JSON"
        raise InvalidInput(
            f"{what}: line {number} {why}.", hint="`perdure project repair` mends it."
        ) from exc
    data = sound(data)
    if not isinstance(data, dict):
        raise _misread(what, "is no object")
    version = data.get("format", _FORMAT)
    if not isinstance(version, int) or version > _FORMAT:
        raise InvalidInput(
            f"{what} has the format {version}, which is newer.", hint="Update Perdure."
        )
    lines: TaskLines = {}
    new: list[TaskLine] = []
    needs = data.get(_NEEDS, {})
    if not isinstance(needs, dict):
        raise _misread(what, f"has {_NEEDS} that are no object")
    for section, kind in SECTIONS.items():
        entries = data.get(section, {})
        if not isinstance(entries, dict):
            raise _misread(what, f"has {section} that are no object")
        for id, entry in entries.items():
            if not isinstance(entry, dict):
                raise _misread(what, f"has an entry {id} that is no object")
            wanted = needs.get(id, [])
            if not isinstance(wanted, list) or not all(isinstance(each, str) for each in wanted):
                raise _misread(what, f"has needs of {id} that are no list of ids")
            line = {**entry, "kind": kind} | ({"needs": sorted(set(wanted))} if wanted else {})
            if _id(id) and id.startswith(f"{PREFIXES[kind]}_"):
                lines[id] = {**line, "id": id}
            else:
                new.append({"title": id, **line})
    header = {name: value for name, value in data.items() if name not in _OWN}
    lines[HEADER] = {**header, "id": HEADER, "kind": "project"}
    return StateFile(lines, tuple(new))


def merge_state_files(base: str | None, ours: str, theirs: str) -> tuple[str, tuple[str, ...]]:
    """The merged file and remarks. Without a common version whatever differs was changed on both
    sides. Raises `InvalidInput`.
    """
    sides = []
    for what, text in (("common", base or ""), ("our", ours), ("their", theirs)):
        found = read_state(text, f"The {what} version") if text.strip() else StateFile({})
        if found.new:
            raise InvalidInput(
                f"The {what} version has an entry without an id: {found.new[0]['title']!r}.",
                hint="Run `perdure project refresh` on that branch, commit, and merge again.",
            )
        sides.append(found.lines)
    common, one, other = sides
    merged = merge_tasks(equal_fields(one, other) if base is None else common, one, other)
    return write_state(merged.lines), merged.remarks


def merge_files(path: str, base: str | None, ours: str, theirs: str) -> tuple[str, tuple[str, ...]]:
    """What the merge driver does with a file of this name. Raises `InvalidInput`."""
    if path.endswith(STATE_FILE):
        return merge_state_files(base, ours, theirs)
    if path.endswith(".jsonl"):
        return merge_task_files(base, ours, theirs)
    raise InvalidInput(
        f"{path} is no file of a project's memory.",
        hint=f"The driver is for {STATE_FILE} and tasks.jsonl.",
    )


def has_conflict(text: str) -> bool:
    """Whether git left marks of a conflict in a text."""
    lines = text.splitlines()
    return all(any(line.startswith(mark) for line in lines) for mark in (_MARKS[0], _MARKS[3]))


def conflict_sides(text: str) -> tuple[str | None, str, str]:
    """The common version (None where git did not write it), ours and theirs. Raises
    `InvalidInput` if the marks are not in order.
    """
    sides: tuple[list[str], list[str], list[str]] = ([], [], [])
    has_base = any(line.startswith(_MARKS[1]) for line in text.splitlines())
    inside = -1
    for line in text.splitlines(keepends=True):
        mark = next((at for at, mark in enumerate(_MARKS) if line.startswith(mark)), -1)
        expected = {0: {-1}, 1: {1}, 2: {0, 1}, 3: {2}}.get(mark)
        if expected is None or (mark == 2 and line.strip() != "======="):
            for at in (0, 1, 2) if inside < 0 else (inside,):
                sides[at].append(line)
        elif inside not in expected:
            raise InvalidInput("The marks of the conflict are not in order.", hint="Mend it.")
        else:
            inside = {0: 1, 1: 0, 2: 2, 3: -1}[mark]
    if inside >= 0:
        raise InvalidInput("A conflict has no end.", hint="Mend it.")
    base, ours, theirs = ("".join(each) for each in sides)
    return (base if has_base else None), ours, theirs


def _misread(what: str, why: str) -> InvalidInput:
    return InvalidInput(f"{what} {why}.", hint="`perdure project repair` mends it.")

"""Three-way merge of task files. Pure: the git merge driver, `task sync` and `task import` use it.

A file has one task per line, sorted by id, so that two people who add tasks touch different lines.
Fields merge one by one; lists merge as sets; `done` wins over a state that is still open; of two
texts the later one stands, and the other is kept as a note. Links that would close a circle only
together are taken away again, and said. The result does not depend on which side is "ours".
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

import msgspec

from perdure.core.errors import InvalidInput
from perdure.project.task_order import without_cycles

#: A task as its line says it: unknown fields stay.
TaskLine: TypeAlias = dict[str, Any]
TaskLines: TypeAlias = dict[str, TaskLine]

_SETS = frozenset(
    {"labels", "needs", "discovered_from", "links", "evidence", "notes", "dependencies", "comments"}
)
#: Of two values the later stands, and a person is told the other. Of all other fields the other
#: value is kept as a note.
_TOLD = frozenset({"priority", "kind"})
#: Of these the later stands, and nobody needs to be told.
_QUIET = frozenset({"updated", "closed", "owner", "changed_by", "changed_at", "made_at"})
#: Of two statuses that both sides changed, the one further to the right stands.
_STATUSES = ("open", "dropped", "done")


class TaskMerge(msgspec.Struct, frozen=True):
    """The merged tasks, and what a person should know, in words."""

    lines: TaskLines
    remarks: tuple[str, ...] = ()


def read_lines(text: str, what: str = "The file") -> TaskLines:
    """One that is there twice is merged with itself. Raises `InvalidInput`, naming the line, also
    for marks of a merge that git gave up on.
    """
    found: TaskLines = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        try:
            task = json.loads(line)
        except ValueError:
            task = None
        if not isinstance(task, dict) or not isinstance(task.get("id"), str) or not task["id"]:
            marks = line.startswith(("<<<<<<<", "=======", ">>>>>>>"))
            why = "has marks of a conflict" if marks else "is no task"
            raise InvalidInput(
                f"{what}: line {number} {why}.",
                hint="Every line is one JSON object with an id. Mend that line and try again.",
            )
        twin = found.get(task["id"])
        found[task["id"]] = task if twin is None else _merge({}, twin, task, [])
    return found


def write_lines(lines: TaskLines) -> str:
    """The same text for the same tasks: sorted, one line each."""
    return "".join(
        json.dumps(lines[id], sort_keys=True, ensure_ascii=False, separators=(",", ":")) + "\n"
        for id in sorted(lines)
    )


def merge_task_files(base: str | None, ours: str, theirs: str) -> tuple[str, tuple[str, ...]]:
    """The merged file and remarks: the entry point of the merge driver. Without a common version
    whatever differs was changed on both sides. Raises `InvalidInput`.
    """
    one, other = read_lines(ours, "Our version"), read_lines(theirs, "Their version")
    common = equal_fields(one, other) if base is None else read_lines(base, "The common version")
    merged = merge_tasks(common, one, other)
    return write_lines(merged.lines), merged.remarks


def merge_tasks(base: TaskLines, ours: TaskLines, theirs: TaskLines) -> TaskMerge:
    """A task that one side removed stays if the other changed it."""
    remarks: list[str] = []
    merged: TaskLines = {}
    for id in sorted({*base, *ours, *theirs}):
        was, one, other = base.get(id), ours.get(id), theirs.get(id)
        if one is None or other is None:
            left = one or other
            if left is None or left == was:
                continue  # both removed it, or one did and the other left it alone
            if was is not None:
                remarks.append(f"{id} was removed on one side and changed on the other: it stays.")
            merged[id] = left
        else:
            merged[id] = _merge(was or {}, one, other, remarks)
    needs = {id: [str(each) for each in task.get("needs") or []] for id, task in merged.items()}
    before = {(id, each) for id, task in base.items() for each in task.get("needs") or []}
    new = sorted((id, each) for id in needs for each in needs[id] if (id, each) not in before)
    graph, refused = without_cycles(needs, new)
    for task, needed in refused:
        merged[task] = {**merged[task], "needs": sorted(graph[task])}
        remarks.append(f"{task} does not need {needed} any more: they would wait for each other.")
    return TaskMerge(merged, tuple(remarks))


def older_lines(ours: TaskLines, theirs: TaskLines) -> TaskLines:
    """What counts as the common version where it is not known: of two lines the older one."""
    both = ours.keys() & theirs.keys()
    return {
        id: min(ours[id], theirs[id], key=lambda line: str(line.get("updated", ""))) for id in both
    }


def equal_fields(ours: TaskLines, theirs: TaskLines) -> TaskLines:
    """The same where either side may have changed whatever differs: no edit is lost, and of two
    texts the other is kept as a note.
    """
    return {
        id: {field: value for field, value in ours[id].items() if theirs[id].get(field) == value}
        for id in ours.keys() & theirs.keys()
    }


def _merge(was: TaskLine, one: TaskLine, other: TaskLine, remarks: list[str]) -> TaskLine:
    if one == other:
        return one
    # The later edit first; of equal times the one whose text sorts last. So sides do not matter.
    first, second = sorted((one, other), key=_age, reverse=True)
    merged: TaskLine = {}
    lost: list[str] = []
    for field in sorted({*was, *one, *other}):
        old, new, late = was.get(field), first.get(field), second.get(field)
        if field in _SETS:
            value: Any = _merge_set(old, new, late)
        elif late in (new, old):
            value = new
        elif new == old:
            value = late
        elif field == "status" and was:
            value = max(new, late, key=_rank)
        else:
            value = new
            if field not in _TOLD | _QUIET and late:
                lost.append(f"Another {field}: {late if isinstance(late, str) else _text(late)}")
            elif field in _TOLD:
                remarks.append(f"{one['id']}: {field} is {new!r}; the other side had {late!r}.")
        if value is not None:
            merged[field] = value
    if lost:
        notes = [{"text": each} for each in lost]
        merged["notes"] = _merge_set(None, merged.get("notes"), notes)
        remarks += [
            f"{one['id']}: {each.partition(':')[0].lower()} is kept as a note." for each in lost
        ]
    if merged.get("status", "open") == "open":
        merged.pop("closed", None)
    return merged


def _merge_set(old: Any, one: Any, other: Any) -> list[Any] | None:
    """What either side has, without what either side took away."""
    sides = [{_text(each): each for each in side or []} for side in (old, one, other)]
    was, ours, theirs = sides
    kept = {
        text: each
        for text, each in (ours | theirs).items()
        if (text in ours and text in theirs) or text not in was
    }
    return _in_order(kept.values()) or None


def _in_order(items: Iterable[Any]) -> list[Any]:
    return sorted(items, key=lambda each: (_moment(each), _text(each)))


def _moment(item: Any) -> str:
    return str(item.get("at", "")) if isinstance(item, Mapping) else ""


def _age(task: TaskLine) -> tuple[str, str]:
    return str(task.get("updated", "")), _text(task)


def _rank(status: Any) -> tuple[int, str]:
    return (_STATUSES.index(status) if status in _STATUSES else -1), str(status)


def _text(value: Any) -> str:
    return json.dumps(value, sort_keys=True, ensure_ascii=False)

"""What a team decides, computed from recorded inputs and answers alone: no clock, no chance, no
store. `consolidate` of the same values gives the same bytes, which is what `replay` checks.

When roles disagree, rules come first: whose field it is, and that what the user named is the
supervisor's. What rules leave open goes to the judge, then to a person; until then it is not done.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

import msgspec
from msgspec.structs import replace

from perdure.project.task_merge import TaskLine, TaskLines
from perdure.project.task_order import path_between
from perdure.project.task_records import LOWEST_PRIORITY
from perdure.project.team.team_records import (
    ROLES,
    RefusedOperation,
    Role,
    RoleAnswer,
    TeamDispute,
    TeamInputs,
    TeamOperation,
    TeamOutcome,
    TeamRun,
)

#: Operations that a role may ask for in one run; more are refused.
MOST_OPERATIONS = 20
#: Whose say counts for a field. A role that is not named loses against one that is.
_AUTHORITY: dict[str, tuple[Role, ...]] = {
    "status": ("supervisor", "historian"),
    "blocked": ("supervisor", "historian"),
    "priority": ("supervisor", "planner"),
    "needs": ("planner",),
    "title": ("supervisor",),
    "description": ("supervisor",),
}
_named = re.compile(r"#(\d{1,9})", re.ASCII).findall
_item = re.compile(r"\s*(?:[-*•]|\d{1,3}[.)])\s+(\S.*)").fullmatch
_TITLE = 120


def consolidate(
    inputs: TeamInputs,
    answers: Sequence[RoleAnswer],
    decided: Mapping[str, str] = {},
) -> TeamOutcome:
    """What a run does. `decided` has the role that a person chose, by `dispute_key`."""
    operations: list[TeamOperation] = []
    refused: list[RefusedOperation] = []
    by_role = {each.role: each for each in answers}
    for role in ROLES:
        answer = by_role.get(role)
        if answer is not None and answer.state == "answered":
            asked, bad = read_operations(role, answer.text)
            refused += bad
        else:
            asked = reduced_operations(role, inputs)
        for place, each in enumerate(asked):
            if place < MOST_OPERATIONS:
                operations.append(each)
            else:
                refused.append(_refuse(each, f"A run does {MOST_OPERATIONS} for each role."))
    agreed, disputes = settle(inputs, operations, by_role, decided)
    applied: list[TeamOperation] = []
    graph = _Graph(inputs)
    for each in agreed:
        why = graph.apply(each)
        if why:
            refused.append(_refuse(each, why))
        else:
            applied.append(each)
    for dispute in disputes:
        for each in dispute.sides:
            if dispute.winner and each.role != dispute.winner:
                refused.append(_refuse(each, f"{dispute.winner} has the say: {dispute.why}"))
    outcome = TeamOutcome(
        applied=tuple(applied),
        refused=tuple(refused),
        disputes=tuple(disputes),
        before=graph.before,
        after=graph.after,
    )
    return replace(outcome, recap=recap(inputs, answers, outcome))


def read_operations(role: str, text: str) -> tuple[list[TeamOperation], list[RefusedOperation]]:
    """The operations in an answer: ``{"operations": [{"op": "add", …}]}``. What is none is
    refused by itself; the others stay.
    """
    listed: object = None
    for found in _objects(text):
        if isinstance(found.get("operations"), list):
            listed = found["operations"]
    good: list[TeamOperation] = []
    bad: list[RefusedOperation] = []
    for each in listed if isinstance(listed, list) else []:
        try:
            good.append(replace(msgspec.convert(each, TeamOperation), role=role))
        except msgspec.ValidationError as exc:
            bad.append(_refuse(TeamOperation(op="note", role=role, text=str(each)[:200]), str(exc)))
    if listed is None:
        empty = TeamOperation(op="note", role=role, text=text[:200])
        bad.append(_refuse(empty, "The answer has no operations."))
    return good, bad


def _objects(text: str) -> Iterator[dict[str, Any]]:
    """The outermost JSON objects in a text, in their order."""
    decoder, at = json.JSONDecoder(), 0
    while (start := text.find("{", at)) >= 0:
        try:
            found, at = decoder.raw_decode(text, start)
        except (ValueError, RecursionError):
            at = start + 1
            continue
        if isinstance(found, dict):
            yield found


def reduced_operations(role: Role, inputs: TeamInputs) -> list[TeamOperation]:
    """What a role can do without a model. The supervisor takes the user's words as they are: each
    item of a list is a task, or all of them together; words about tasks (``#12``) nobody
    understands. The planner lets nothing urgent wait for something less urgent.
    """
    if role == "supervisor":
        lines = [line for line in inputs.intent.splitlines() if line.strip()]
        items = [found[1].strip() for line in lines if (found := _item(line))]
        about_tasks = bool(_named(inputs.intent))
        titles = items or ([] if about_tasks or not lines else [" ".join(lines)])
        known = {str(task["title"]).casefold() for task in inputs.tasks.values()}
        return [
            TeamOperation(
                op="add",
                role=role,
                title=title[:_TITLE],
                description=title if len(title) > _TITLE else "",
            )
            for title in dict.fromkeys(titles)
            if title[:_TITLE].casefold() not in known
        ]
    if role == "planner":
        return _inherited_priorities(inputs)
    return []


def _inherited_priorities(inputs: TeamInputs) -> list[TeamOperation]:
    tasks = inputs.tasks
    wanted = {id: int(task.get("priority", 2)) for id, task in tasks.items()}
    changed = True
    while changed:
        changed = False
        for id, task in tasks.items():
            for need in task.get("needs", ()):
                if need in wanted and wanted[need] > wanted[id]:
                    wanted[need], changed = wanted[id], True
    return [
        TeamOperation(
            op="edit",
            role="planner",
            task=f"#{inputs.numbers[id]}",
            priority=wanted[id],
            text="More urgent tasks wait for it.",
        )
        for id in sorted(tasks, key=lambda each: inputs.numbers[each])
        if wanted[id] != tasks[id].get("priority", 2)
    ]


def settle(
    inputs: TeamInputs,
    operations: Iterable[TeamOperation],
    answers: Mapping[str, RoleAnswer],
    decided: Mapping[str, str] = {},
) -> tuple[list[TeamOperation], list[TeamDispute]]:
    """The operations that stand, and what was disputed, with who won if that is settled."""
    operations = list(operations)
    sides: dict[tuple[str, str], list[TeamOperation]] = {}
    for each in operations:
        for field in _fields(each):
            sides.setdefault((each.task, field), []).append(each)
    disputes, dropped = [], set()
    for (task, field), asked in sides.items():
        if len({_value(each, field) for each in asked}) < 2 or len({e.role for e in asked}) < 2:
            continue
        dispute = TeamDispute(task=task, field=field, sides=tuple(asked))
        dispute = _settled(inputs, dispute, answers, decided)
        disputes.append(dispute)
        dropped |= {id(each) for each in asked if each.role != dispute.winner}
    return [each for each in operations if id(each) not in dropped], disputes


def _settled(
    inputs: TeamInputs,
    dispute: TeamDispute,
    answers: Mapping[str, RoleAnswer],
    decided: Mapping[str, str],
) -> TeamDispute:
    roles = list(dict.fromkeys(each.role for each in dispute.sides))
    key = dispute_key(dispute)
    if decided.get(key) in roles:
        why = "a person decided."
        return replace(dispute, winner=decided[key], by="person", why=why)
    if dispute.task[1:] in _named(inputs.intent) and "supervisor" in roles:
        why = f"the user named {dispute.task}."
        return replace(dispute, winner="supervisor", by="rule", why=why)
    entitled = [role for role in roles if role in _AUTHORITY.get(dispute.field, ())]
    if len(entitled) == 1:
        why = f"{dispute.field} is its field."
        return replace(dispute, winner=entitled[0], by="rule", why=why)
    judge = answers.get(f"judge {key}")
    if judge is not None and judge.state == "answered":
        for found in _objects(judge.text):
            if found.get("winner") in roles:
                why = str(found.get("why", "the judge decided."))[:500]
                return replace(dispute, winner=str(found["winner"]), by="judge", why=why)
    return dispute


def dispute_key(dispute: TeamDispute) -> str:
    """``#3 priority``."""
    return f"{dispute.task} {dispute.field}"


def _fields(operation: TeamOperation) -> list[str]:
    match operation.op:
        case "edit":
            given = ("title", "description", "priority", "needs")
            empty: tuple[object, ...] = ("", None)
            return [each for each in given if getattr(operation, each) not in empty]
        case "done" | "drop":
            return ["status"]
        case "block" | "unblock":
            # Who blocks a task says that it is not over.
            return ["status", "blocked"] if operation.op == "block" else ["blocked"]
        case _:
            return []


def _value(operation: TeamOperation, field: str) -> str:
    if operation.op in {"done", "drop", "block", "unblock"}:
        return operation.op
    return repr(getattr(operation, field))


class _Graph:
    """The tasks while operations are applied, one after the other."""

    def __init__(self, inputs: TeamInputs) -> None:
        self._inputs = inputs
        self._tasks: TaskLines = dict(inputs.tasks)
        self._names = {f"#{number}": id for id, number in inputs.numbers.items()}
        self.before: TaskLines = {}
        self.after: TaskLines = {}
        self._added = 0

    def apply(self, asked: TeamOperation) -> str:
        """Why it is refused; empty if it was applied."""
        if asked.op == "add":
            return self._add(asked)
        id = self._names.get(asked.task)
        if id is None:
            return f"There is no open task {asked.task or 'without a name'}."
        holder = self._inputs.claimed.get(id)
        if holder and asked.op != "note":
            return f"{holder} works on it."
        if asked.op in {"done", "drop", "block", "note"} and not asked.text.strip():
            return "It does not say why."
        task = dict(self._tasks[id])
        match asked.op:
            case "edit":
                if why := self._edit(id, task, asked):
                    return why
            case "done" | "drop":
                task |= {
                    "status": "done" if asked.op == "done" else "dropped",
                    "closed": self._inputs.now,
                    "reason": f"{asked.text} ({asked.role})",
                }
            case "block":
                task["blocked"] = asked.text.strip()
            case "unblock":
                task.pop("blocked", None)
            case "note":
                remark = {"text": asked.text, "by": asked.role, "at": self._inputs.now}
                task["notes"] = [*task.get("notes", ()), remark]
        self._put(id, task)
        return ""

    def _add(self, asked: TeamOperation) -> str:
        title = " ".join(asked.title.split())
        if not title or len(title) > 500:
            return "A title has 1 to 500 characters."
        if any(str(each["title"]).casefold() == title.casefold() for each in self._tasks.values()):
            return "There is an open task of that title."
        digest = hashlib.sha256(f"{self._inputs.seed}/{self._inputs.now}/{self._added}".encode())
        id = f"tk_{digest.hexdigest()[:12]}"
        # Numbers are given by age: those of one run keep their order.
        moment = datetime.fromisoformat(self._inputs.now)
        task: TaskLine = {
            "id": id,
            "title": title,
            "status": "open",
            "priority": 2,
            "kind": "task",
            "created": (moment + timedelta(microseconds=self._added)).isoformat(
                timespec="microseconds"
            ),
            "made_by": asked.role,
        }
        if why := self._edit(id, task, replace(asked, title="")):
            return why
        self._added += 1
        if asked.ref:
            self._names[asked.ref] = id
        self._put(id, task)
        return ""

    def _edit(self, id: str, task: TaskLine, asked: TeamOperation) -> str:
        if asked.priority is not None:
            if not 0 <= asked.priority <= LOWEST_PRIORITY:
                return f"There is no priority {asked.priority}."
            task["priority"] = asked.priority
        if asked.title.strip():
            task["title"] = " ".join(asked.title.split())[:500]
        if asked.description:
            task["description"] = asked.description
        if asked.needs is not None:
            missing = [each for each in asked.needs if each not in self._names]
            if missing:
                return f"There is no open task {missing[0]}."
            needs = sorted({self._names[each] for each in asked.needs})
            links = {key: each.get("needs", ()) for key, each in self._tasks.items()}
            if any(path_between(links, need, id) for need in needs):
                return "Tasks would wait for each other in a circle."
            # What it needed and is over is no name that a role knows: it stays.
            over = [each for each in task.get("needs", ()) if each not in self._inputs.tasks]
            task["needs"] = sorted({*needs, *over})
        return ""

    def _put(self, id: str, task: TaskLine) -> None:
        task["updated"] = self._inputs.now
        if id in self._inputs.tasks:
            self.before[id] = self._inputs.tasks[id]
        self._tasks[id] = self.after[id] = task


def recap(inputs: TeamInputs, answers: Sequence[RoleAnswer], outcome: TeamOutcome) -> str:
    """What was asked, done, refused and left open, for people: Markdown."""
    lines = [f"**Asked:** {inputs.intent.strip() or 'nothing in particular'}", ""]
    for each in answers:
        if each.role.startswith("judge"):
            continue
        how = {
            "answered": f"answered by {each.model}",
            "late": "did not answer in time; its rules were used instead",
            "failed": f"failed ({each.error}); its rules were used instead",
            "reduced": "worked by rules: no model is configured",
        }[each.state]
        lines.append(f"- {each.role} {how}")
        if each.role == "supervisor" and each.state != "answered" and _named(inputs.intent):
            lines.append(
                "- what you say about tasks that there are is understood only with a model"
            )
    lines += ["", "**Done:**" if outcome.applied else "**Done:** nothing."]
    lines += [f"- {in_words(each)} ({each.role})" for each in outcome.applied]
    if outcome.disputes:
        lines += ["", "**Disagreed:**"]
        for dispute in outcome.disputes:
            wishes = "; ".join(f"{each.role}: {in_words(each)}" for each in dispute.sides)
            end = f"{dispute.winner} won by {dispute.by}: {dispute.why}"
            open_ = "nobody has decided yet, and nothing was changed."
            lines.append(f"- {dispute_key(dispute)}: {wishes} → {end if dispute.winner else open_}")
    if outcome.refused:
        lines += ["", "**Refused:**"]
        lines += [
            f"- {in_words(each.operation)} ({each.operation.role}): {each.why}"
            for each in outcome.refused
        ]
    return "\n".join(lines) + "\n"


def run_recap(run: TeamRun) -> str:
    """The whole run, with what the executor did and the historian learnt."""
    lines = [run.outcome.recap.rstrip()]
    if run.work:
        lines += ["", "**Worked on:**"]
    for each in run.work:
        said = " ".join(each.text.split())[:200]
        lines.append(f"- #{each.number} {each.ending}{f': {said}' if said else ''}")
    if run.learnt:
        lines += ["", f"**Learnt:** {', '.join(run.learnt)}"]
    if run.remarks:
        lines += ["", "**Remarks:**", *(f"- {each}" for each in run.remarks)]
    return "\n".join(lines).strip() + "\n"


def in_words(operation: TeamOperation) -> str:
    said = [operation.title and f"“{operation.title}”", operation.text]
    if operation.priority is not None:
        said.append(f"priority {operation.priority}")
    if operation.needs is not None:
        said.append(f"needs {', '.join(operation.needs) or 'nothing'}")
    about = ", ".join(each for each in said if each)
    return " ".join(each for each in (operation.op, operation.task, about) if each)


def _refuse(operation: TeamOperation, why: str) -> RefusedOperation:
    return RefusedOperation(operation=operation, why=why)

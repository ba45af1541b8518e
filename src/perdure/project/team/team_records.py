"""The records of a team: what each run was given, what was answered, what it changed.

A run keeps all that it needs to be computed again: the seed, the inputs and every model's answer.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal, TypeAlias

import msgspec

from perdure.core.errors import InvalidInput
from perdure.storage.record_keys import numbered
from perdure.storage.records import Compressed, Indexed, Key, system_record

Role: TypeAlias = Literal["supervisor", "planner", "historian"]
ROLES: tuple[Role, ...] = ("supervisor", "planner", "historian")
#: ``late`` and ``failed`` fall back to what can be done without a model, as ``reduced`` does.
AnswerState: TypeAlias = Literal["answered", "late", "failed", "reduced"]
OperationKind: TypeAlias = Literal["add", "edit", "done", "drop", "block", "unblock", "note"]
#: ``unproven``: nothing shows that it is done. ``waits``: for a person's approval.
WorkEnding: TypeAlias = Literal["done", "unproven", "failed", "waits"]
TeamRunState: TypeAlias = Literal["running", "done", "undone"]

_name = re.compile(r"(?:team/)?[Rr]?-?([1-9]\d{0,7})", re.ASCII).fullmatch


class TeamInputs(msgspec.Struct, frozen=True, kw_only=True):
    """What all roles are shown. Nothing else goes into what a run decides."""

    intent: str
    seed: int
    now: str
    #: Open tasks as `task_transfer.task_line` has them, by id; their numbers; who holds them.
    tasks: dict[str, dict[str, Any]] = {}
    numbers: dict[str, int] = {}
    claimed: dict[str, str] = {}
    transcripts: tuple[str, ...] = ()


class RoleAnswer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a role's model said, as it said it."""

    role: str
    state: AnswerState
    text: str = ""
    model: str = ""
    tokens: int = 0
    #: Picodollars; None if unknown.
    cost: int | None = None
    error: str = ""


class TeamOperation(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One change of the graph that a role asks for. Tasks are named by ``#12``, or by the `ref` of
    an ``add`` in the same run.
    """

    op: OperationKind
    role: str = ""
    task: str = ""
    ref: str = ""
    title: str = ""
    description: str = ""
    priority: int | None = None
    needs: tuple[str, ...] | None = None
    text: str = ""


class TeamDispute(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Roles that want different things for one field of one task. `by` says what settled it:
    a rule, the judge, or a person; empty: nobody yet, and nothing was changed.
    """

    task: str
    field: str
    sides: tuple[TeamOperation, ...]
    winner: str = ""
    by: Literal["", "rule", "judge", "person"] = ""
    why: str = ""


class RefusedOperation(msgspec.Struct, frozen=True, kw_only=True):
    """An operation that was not carried out, and why."""

    operation: TeamOperation
    why: str


class TeamOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """What a run decides: a function of its inputs and answers, and of nothing else."""

    applied: tuple[TeamOperation, ...] = ()
    refused: tuple[RefusedOperation, ...] = ()
    disputes: tuple[TeamDispute, ...] = ()
    #: The tasks that it touches, before and after.
    before: dict[str, dict[str, Any]] = {}
    after: dict[str, dict[str, Any]] = {}
    recap: str = ""


class WorkResult(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the executor did with a task."""

    task: str
    number: int
    ending: WorkEnding
    text: str = ""
    commits: tuple[str, ...] = ()


@system_record("team_runs")
class TeamRun(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One run of the team. Times are microseconds."""

    id: Annotated[str, Key()]  # project/number
    project: Annotated[str, Indexed()]
    state: TeamRunState = "running"
    started: int
    ended: int = 0
    inputs: Annotated[TeamInputs, Compressed()]
    answers: tuple[RoleAnswer, ...] = ()
    outcome: TeamOutcome = TeamOutcome()
    #: The tasks as the bank had them after the run: others may have changed them meanwhile.
    stored: dict[str, dict[str, Any]] = {}
    remarks: tuple[str, ...] = ()
    #: Runs of reflection that the historian began: ``planner/R-3``.
    learnt: tuple[str, ...] = ()
    work: tuple[WorkResult, ...] = ()
    #: Turns that it was shown were forgotten: it cannot be computed again.
    transcripts_forgotten: bool = False

    @property
    def number(self) -> int:
        return int(self.id[-8:])

    @property
    def name(self) -> str:
        """``team/R-3``."""
        return f"team/R-{self.number}"

    @property
    def tokens(self) -> int:
        return sum(each.tokens for each in self.answers)


def team_run_key(project: str, number: int) -> str:
    return f"{project}/{numbered(number)}"


def parse_team_run(project: str, text: str) -> str:
    """The key of the run that ``team/R-3``, ``R-3`` or ``3`` names. Raises `InvalidInput`."""
    found = _name(str(text).strip())
    if found is None:
        raise InvalidInput(f"{text!r} does not name a run.", hint="Write team/R-3.")
    return team_run_key(project, int(found[1]))

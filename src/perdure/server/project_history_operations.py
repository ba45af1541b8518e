"""Where entries of a project are after history was rewritten, and deciding what waits.

Git is asked in the project's folder, which has to be on this machine.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from perdure.core.display import plural
from perdure.project.anchors import AnchorsReport
from perdure.project.project import Project, find_project
from perdure.project.project_directory import find_record
from perdure.project.project_history import EntryPlace, told
from perdure.server.operations import Operation, RequestBody, ServerCall, TokenScope

_PROJECT = "/api/v1/projects/{project}"


class HistoryDecision(RequestBody, frozen=True, kw_only=True):
    """What becomes of entries whose commits were rewritten. Without a decision the repository is
    only compared with the last look.
    """

    #: ``rebase``: they follow their commits; ``fork``: they stay with the old line.
    decision: Literal["rebase", "fork"] | None = None
    #: One rewrite; all that wait if left out.
    number: int | None = None


class UndecidedRewrite(msgspec.Struct, frozen=True):
    """A rewrite that nobody has decided about."""

    number: int
    #: Microseconds.
    at: int
    #: What happened, in words.
    what: str
    #: How many entries it is about.
    entries: int


class EntryState(msgspec.Struct, frozen=True):
    """An entry, and where its commit is now."""

    kind: str
    id: str
    title: str
    commit: str
    place: EntryPlace
    now: str


class HistoryStatus(msgspec.Struct, frozen=True, kw_only=True):
    """What is checked out, what happened to it since the last look, and what waits."""

    project: str
    name: str
    branch: str
    commit: str
    #: A rebase or merge is not over.
    busy: bool
    changes: list[str]
    waiting: list[UndecidedRewrite]
    entries: list[EntryState]


async def get_project_status(call: ServerCall) -> HistoryStatus:
    """Where a project's entries are, as of the last look at its repository."""
    return await _status(await _project(call), AnchorsReport())


async def reconcile_project(call: ServerCall) -> HistoryStatus:
    """Compare a project's repository with the last look, and decide about rewritten history."""
    project, body = await _project(call), call.body
    report = await project.anchors.refresh(asks=True)
    if body.decision is not None:
        await project.history.decide(body.decision, body.number, by=call.caller.name)
    return await _status(project, report)


async def _project(call: ServerCall) -> Project:
    call.require_all_agents()
    record = await find_record(call.bank.services, call.path["project"])
    return await find_project(call.bank.services, record.id)


async def _status(project: Project, report: AnchorsReport) -> HistoryStatus:
    found = await project.history.status(report.changes, busy=report.busy)
    return HistoryStatus(
        project=found.project,
        name=found.name,
        branch=found.branch,
        commit=found.commit,
        busy=found.busy,
        changes=[told(each) for each in found.changes],
        waiting=[
            UndecidedRewrite(
                operation.number,
                operation.at,
                "; ".join(map(told, operation.changes))
                or f"{plural(len(operation.moves), 'commit')} rewritten",
                count,
            )
            for operation, count in found.waiting
        ],
        entries=[
            EntryState(
                each.entry.kind,
                each.entry.id,
                each.entry.title,
                each.entry.commit,
                each.place,
                each.now,
            )
            for each in found.entries
        ],
    )


OPERATIONS = (
    Operation.of("GET", f"{_PROJECT}/status", get_project_status, TokenScope.READ),
    Operation.of(
        "POST", f"{_PROJECT}/reconcile", reconcile_project, TokenScope.WRITE, body=HistoryDecision
    ),
)

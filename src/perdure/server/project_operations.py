"""Projects: their tasks, as a list and as a graph, and runs of their team.

What is read here needs only the bank. What is changed is changed in the project's folder, which has
to be on this machine: a task is anchored at the commit that is checked out there.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

from perdure.project.project import Project, find_project
from perdure.project.project_directory import (
    ProjectRecord,
    find_record,
    list_projects,
)
from perdure.project.task_order import ranks
from perdure.project.task_reader import TaskReader
from perdure.project.task_records import Task, TaskState
from perdure.project.team.team import find_team_run, list_team_runs
from perdure.project.team.team_decisions import run_recap
from perdure.project.team.team_records import TeamRun
from perdure.server.operations import Operation, RequestBody, RequestQuery, ServerCall, TokenScope

PROJECTS = "/api/v1/projects"
PROJECT = f"{PROJECTS}/{{project}}"
TASKS = f"{PROJECT}/tasks"
TASK = f"{TASKS}/{{task}}"
TEAM_RUNS = f"{PROJECT}/team/runs"
TEAM_RUN = f"{TEAM_RUNS}/{{run}}"
_Limit = Annotated[int, msgspec.Meta(ge=1, le=100_000)]


class TasksQuery(RequestQuery, frozen=True):
    """Which tasks."""

    #: ``open`` for those that are not closed, ``any`` for all of them.
    state: TaskState | Literal["open", "any"] = "open"
    owner: str | None = None
    label: str | None = None
    limit: _Limit = 100


class GraphQuery(RequestQuery, frozen=True):
    """Which tasks."""

    #: Closed ones, too.
    closed: bool = False


class TeamRunsQuery(RequestQuery, frozen=True):
    """Which runs."""

    limit: _Limit = 50


class NewTask(RequestBody, frozen=True, kw_only=True):
    """A task to add. Other tasks are named by ``#12`` or their ids."""

    title: str
    description: str = ""
    priority: int = 2
    kind: str = "task"
    labels: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    parent: str | None = None
    discovered_from: tuple[str, ...] = ()
    owner: str = ""


class TaskChange(RequestBody, frozen=True, kw_only=True):
    """What is given is changed; labels are replaced."""

    title: str | None = None
    description: str | None = None
    priority: int | None = None
    kind: str | None = None
    labels: tuple[str, ...] | None = None
    owner: str | None = None
    parent: str | None = None


class Claimant(RequestBody, frozen=True, kw_only=True):
    """Who has a claim: by name, that of the token if left out, and by the claim's token."""

    by: str = ""
    token: int | None = None


class NewClaim(Claimant, frozen=True, kw_only=True):
    """What to claim: the most urgent ready task if none is named. With `token`, renew."""

    task: str | None = None
    label: str | None = None
    #: How long it lasts: ``30m``, ``2h``.
    lease: str = "30m"


class TaskEnd(Claimant, frozen=True, kw_only=True):
    """What came out of a task, and what shows it."""

    reason: str = ""
    commits: tuple[str, ...] = ()
    turns: tuple[str, ...] = ()
    #: It is not done, and will not be.
    dropped: bool = False


class TaskObstacle(Claimant, frozen=True, kw_only=True):
    """Why a task cannot go on, or the tasks that it has to wait for."""

    reason: str = ""
    on: tuple[str, ...] = ()


class FreedTask(RequestBody, frozen=True, kw_only=True):
    """The tasks that it does not need any more; if none, the reason is taken away."""

    on: tuple[str, ...] = ()


class TaskRemark(RequestBody, frozen=True, kw_only=True):
    """A remark, or evidence."""

    text: str = ""
    commits: tuple[str, ...] = ()
    turns: tuple[str, ...] = ()
    by: str = ""


class Decision(RequestBody, frozen=True, kw_only=True):
    """Which role is right in a dispute: ``#3 priority``."""

    dispute: str
    role: str


class TaskSummary(msgspec.Struct, frozen=True, kw_only=True):
    """A task in a list or graph. Other tasks are named by their ids; times are microseconds."""

    id: str
    number: int
    title: str
    state: TaskState
    priority: int
    kind: str
    labels: tuple[str, ...]
    owner: str
    #: Until when somebody has claimed it; 0: nobody has.
    until: int
    blocked: str
    needs: tuple[str, ...]
    parent: str
    made: int
    changed: int
    closed: int

    @classmethod
    def of(cls, task: Task) -> TaskSummary:
        fields = {name: getattr(task, name) for name in cls.__struct_fields__}
        return cls(**{**fields, "until": task.until if task.state == "claimed" else 0})


class RankedTask(msgspec.Struct, frozen=True):
    """A task, and how many tasks, one after the other, come before it."""

    task: TaskSummary
    rank: int


class TaskNetwork(msgspec.Struct, frozen=True):
    """The whole graph: `needs` of each task are its links."""

    tasks: list[RankedTask]


class TaskDetails(msgspec.Struct, frozen=True, kw_only=True):
    """A task, why it cannot be begun, and what it hangs together with."""

    id: str
    task: Task
    why: list[str]
    needs: list[TaskSummary]
    needed_by: list[TaskSummary]
    parts: list[TaskSummary]
    discovered_from: list[TaskSummary]


class NamedTeamRun(msgspec.Struct, frozen=True):
    """A run, what it is called (``team/R-3``), and what it did, in words (Markdown)."""

    name: str
    recap: str
    run: TeamRun

    @classmethod
    def of(cls, run: TeamRun) -> NamedTeamRun:
        return cls(run.name, run_recap(run), run)


async def _record(call: ServerCall) -> ProjectRecord:
    call.require_all_agents()
    return await find_record(call.bank.services, call.path["project"])


async def _reader(call: ServerCall) -> TaskReader:
    return TaskReader(call.bank.services, (await _record(call)).id)


async def _project(call: ServerCall) -> Project:
    return await find_project(call.bank.services, (await _record(call)).id)


async def _details(reader: TaskReader, task: Task) -> TaskDetails:
    async def named(ids: tuple[str, ...]) -> list[TaskSummary]:
        return [TaskSummary.of(each) for each in await reader.named(ids)]

    return TaskDetails(
        id=task.id,
        task=task,
        why=await reader.why(task.id),
        needs=await named(task.needs),
        needed_by=await named(task.needed_by),
        parts=[TaskSummary.of(each) for each in await reader.parts(task)],
        discovered_from=await named(task.discovered_from),
    )


async def get_projects(call: ServerCall) -> list[ProjectRecord]:
    """The projects that the bank remembers something of."""
    call.require_all_agents()
    return await list_projects(call.bank.services)


async def get_tasks(call: ServerCall) -> list[TaskSummary]:
    """Tasks of a project, the most urgent first."""
    reader, query = await _reader(call), call.query
    states: list[TaskState | None]
    match query.state:
        case "any":
            states = [None, "done", "dropped"]
        case "open":
            states = [None]
        case state:
            states = [state]
    found = [
        each
        for state in states
        for each in await reader.list(
            state, owner=query.owner, label=query.label, limit=query.limit
        )
    ]
    return [TaskSummary.of(each) for each in found[: query.limit]]


async def get_task_graph(call: ServerCall) -> TaskNetwork:
    """What waits for what in a project."""
    shown = {
        each.id: each
        for each in await (await _reader(call)).all()
        if call.query.closed or not each.is_closed
    }
    order = ranks(
        {id: [need for need in task.needs if need in shown] for id, task in shown.items()}
    )
    return TaskNetwork([RankedTask(TaskSummary.of(each), order[id]) for id, each in shown.items()])


async def get_task(call: ServerCall) -> TaskDetails:
    """A task: why it waits, what needs it, notes and evidence."""
    reader = await _reader(call)
    return await _details(reader, await reader.get(call.path["task"]))


async def add_task(call: ServerCall) -> TaskDetails:
    """Add a task."""
    tasks, body = (await _project(call)).tasks, msgspec.to_builtins(call.body)
    return await _details(tasks, await tasks.add(body.pop("title"), **body))


async def edit_task(call: ServerCall) -> TaskDetails:
    """Change a task."""
    tasks = (await _project(call)).tasks
    changes: dict[str, Any] = msgspec.structs.asdict(call.body)
    given = {field: value for field, value in changes.items() if value is not None}
    return await _details(tasks, await tasks.edit(call.path["task"], **given))


async def claim_task(call: ServerCall) -> TaskDetails:
    """Take a task, so that nobody else does; its `token` shows that it is yours."""
    tasks, body = (await _project(call)).tasks, call.body
    taken = await tasks.claim(
        body.task, by=body.by, lease=body.lease, token=body.token, label=body.label
    )
    return await _details(tasks, taken)


async def release_task(call: ServerCall) -> TaskDetails:
    """Give a claimed task back."""
    tasks, body = (await _project(call)).tasks, call.body
    found = await tasks.release(call.path["task"], by=body.by, token=body.token)
    return await _details(tasks, found)


async def finish_task(call: ServerCall) -> TaskDetails:
    """Close a task; what waited only for it is ready then."""
    tasks = (await _project(call)).tasks
    given = msgspec.structs.asdict(call.body)
    return await _details(tasks, await tasks.done(call.path["task"], **given))


async def block_task(call: ServerCall) -> TaskDetails:
    """Say that a task cannot go on: why, or until which tasks are over."""
    tasks = (await _project(call)).tasks
    given = msgspec.structs.asdict(call.body)
    return await _details(tasks, await tasks.block(call.path["task"], **given))


async def unblock_task(call: ServerCall) -> TaskDetails:
    """Take away the reason, or tasks that it needed."""
    tasks = (await _project(call)).tasks
    return await _details(tasks, await tasks.unblock(call.path["task"], on=call.body.on))


async def reopen_task(call: ServerCall) -> TaskDetails:
    """Open a task again that was closed."""
    tasks = (await _project(call)).tasks
    return await _details(tasks, await tasks.reopen(call.path["task"]))


async def note_task(call: ServerCall) -> TaskDetails:
    """Add a remark, or evidence, to a task."""
    tasks = (await _project(call)).tasks
    given = msgspec.structs.asdict(call.body)
    return await _details(tasks, await tasks.note(call.path["task"], **given))


async def get_team_runs(call: ServerCall) -> list[NamedTeamRun]:
    """Runs of a project's team, the newest first."""
    record = await _record(call)
    found = await list_team_runs(call.bank.services, record.id, limit=call.query.limit)
    return [NamedTeamRun.of(each) for each in found]


async def get_team_run(call: ServerCall) -> NamedTeamRun:
    """A run of the team: what each role was shown and said, what was changed, its recap."""
    record = await _record(call)
    return NamedTeamRun.of(await find_team_run(call.bank.services, record.id, call.path["run"]))


async def decide_team_dispute(call: ServerCall) -> NamedTeamRun:
    """Settle what the team disagrees about."""
    team, body = (await _project(call)).team, call.body
    return NamedTeamRun.of(await team.decide(call.path["run"], body.dispute, body.role))


async def undo_team_run(call: ServerCall) -> NamedTeamRun:
    """Take back what a run of the team changed; what others changed since stays."""
    return NamedTeamRun.of(await (await _project(call)).team.undo(call.path["run"]))


_READ, _WRITE = TokenScope.READ, TokenScope.WRITE
OPERATIONS = (
    Operation.of("GET", PROJECTS, get_projects, _READ),
    Operation.of("GET", TASKS, get_tasks, _READ, query=TasksQuery),
    Operation.of("POST", TASKS, add_task, _WRITE, body=NewTask),
    Operation.of("GET", f"{PROJECT}/graph", get_task_graph, _READ, query=GraphQuery),
    Operation.of("POST", f"{PROJECT}/claims", claim_task, _WRITE, body=NewClaim),
    Operation.of("GET", TASK, get_task, _READ),
    Operation.of("PATCH", TASK, edit_task, _WRITE, body=TaskChange),
    Operation.of("POST", f"{TASK}/release", release_task, _WRITE, body=Claimant),
    Operation.of("POST", f"{TASK}/done", finish_task, _WRITE, body=TaskEnd),
    Operation.of("POST", f"{TASK}/block", block_task, _WRITE, body=TaskObstacle),
    Operation.of("POST", f"{TASK}/unblock", unblock_task, _WRITE, body=FreedTask),
    Operation.of("POST", f"{TASK}/reopen", reopen_task, _WRITE),
    Operation.of("POST", f"{TASK}/notes", note_task, _WRITE, body=TaskRemark),
    Operation.of("GET", TEAM_RUNS, get_team_runs, _READ, query=TeamRunsQuery),
    Operation.of("GET", TEAM_RUN, get_team_run, _READ),
    Operation.of("POST", f"{TEAM_RUN}/decide", decide_team_dispute, _WRITE, body=Decision),
    Operation.of("POST", f"{TEAM_RUN}/undo", undo_team_run, _WRITE),
)

"""The tools over a project's tasks."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from perdure.integrations.mcp_protocol import McpCall, McpTool
from perdure.integrations.mcp_tools import Limit, McpArguments, MemoryAccess

TYPE_CHECKING = False
if TYPE_CHECKING:
    from perdure.project.task_graph import TaskGraph
    from perdure.project.task_records import Task

TaskName = Annotated[str, msgspec.Meta(description="Its number, such as 12 or #12, or its id.")]
_Token = Annotated[
    int | None, msgspec.Meta(description="Of your claim; shows that it is still yours.")
]


class TaskAddArguments(McpArguments, frozen=True, kw_only=True):
    """Arguments of the tool."""

    title: Annotated[str, msgspec.Meta(min_length=1, max_length=500)]
    description: str = ""
    priority: Annotated[int, msgspec.Meta(ge=0, le=4, description="0 is most urgent.")] = 2
    needs: Annotated[list[str], msgspec.Meta(description="Tasks that have to be done first.")] = []
    discovered_from: Annotated[
        list[str], msgspec.Meta(description="The tasks in whose course this one was found.")
    ] = []
    labels: list[str] = []


class TaskListArguments(McpArguments, frozen=True, kw_only=True):
    """Arguments of the tool."""

    state: Literal["open", "ready", "claimed", "waiting", "blocked", "done", "dropped"] = "open"
    limit: Limit = 20


class TaskReadyArguments(McpArguments, frozen=True, kw_only=True):
    """Arguments of the tool."""

    limit: Limit = 10


class TaskClaimArguments(McpArguments, frozen=True, kw_only=True):
    """Arguments of the tool."""

    task: Annotated[
        str | None, msgspec.Meta(description="Leave it out for the most urgent ready one.")
    ] = None
    token: _Token = None


class TaskDoneArguments(McpArguments, frozen=True, kw_only=True):
    """Arguments of the tool."""

    task: TaskName
    token: _Token = None
    reason: Annotated[str, msgspec.Meta(description="What was done, in a sentence.")] = ""
    commits: list[str] = []
    turns: list[str] = []


class TaskBlockArguments(McpArguments, frozen=True, kw_only=True):
    """Arguments of the tool."""

    task: TaskName
    reason: Annotated[str, msgspec.Meta(description="Why it cannot go on.")] = ""
    on: Annotated[list[str], msgspec.Meta(description="Tasks that it has to wait for.")] = []
    token: _Token = None


class TaskNoteArguments(McpArguments, frozen=True, kw_only=True):
    """Arguments of the tool."""

    task: TaskName
    text: str = ""
    commits: list[str] = []
    turns: list[str] = []


class TaskShowArguments(McpArguments, frozen=True, kw_only=True):
    """Arguments of the tool."""

    task: TaskName


class TaskItem(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A task in a list."""

    number: int
    id: str
    title: str
    state: str
    priority: int
    owner: str = ""
    labels: tuple[str, ...] = ()


class TaskListResult(msgspec.Struct, frozen=True, kw_only=True):
    """Tasks."""

    tasks: list[TaskItem]

    def told(self) -> str:
        return "\n".join(_line(each) for each in self.tasks) or "There are none."


class TaskResult(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A task, and what it waits for."""

    task: TaskItem
    #: Of a claim: give it to task_done.
    token: int = 0
    description: str = ""
    needs: list[TaskItem] = []
    needed_by: list[TaskItem] = []
    #: Why it cannot be begun.
    why: list[str] = []
    commits: list[str] = []
    notes: list[str] = []


class TaskTools:
    """The tools, over whatever gives them a project."""

    def __init__(self, access: MemoryAccess) -> None:
        self._access = access

    async def add(self, call: McpCall, given: TaskAddArguments) -> TaskResult:
        graph = await self._graph()
        return await _result(
            graph,
            await graph.add(
                given.title,
                description=given.description,
                priority=given.priority,
                needs=given.needs,
                discovered_from=given.discovered_from,
                labels=given.labels,
                by=self._access.identity(call.client),
            ),
        )

    async def list(self, _: McpCall, given: TaskListArguments) -> TaskListResult:
        graph = await self._graph()
        state = None if given.state == "open" else given.state
        return _listed(await graph.list(state, limit=given.limit))

    async def ready(self, _: McpCall, given: TaskReadyArguments) -> TaskListResult:
        return _listed(await (await self._graph()).ready(given.limit))

    async def claim(self, call: McpCall, given: TaskClaimArguments) -> TaskResult:
        graph, who = await self._graph(), self._access.identity(call.client)
        return await _result(graph, await graph.claim(given.task, by=who, token=given.token))

    async def done(self, call: McpCall, given: TaskDoneArguments) -> TaskResult:
        graph = await self._graph()
        return await _result(
            graph,
            await graph.done(
                given.task,
                by=self._access.identity(call.client),
                token=given.token,
                reason=given.reason,
                commits=given.commits,
                turns=given.turns,
            ),
        )

    async def block(self, call: McpCall, given: TaskBlockArguments) -> TaskResult:
        graph = await self._graph()
        return await _result(
            graph,
            await graph.block(
                given.task,
                reason=given.reason,
                on=given.on,
                by=self._access.identity(call.client),
                token=given.token,
            ),
        )

    async def note(self, call: McpCall, given: TaskNoteArguments) -> TaskResult:
        graph = await self._graph()
        return await _result(
            graph,
            await graph.note(
                given.task,
                given.text,
                by=self._access.identity(call.client),
                commits=given.commits,
                turns=given.turns,
            ),
        )

    async def show(self, _: McpCall, given: TaskShowArguments) -> TaskResult:
        graph = await self._graph()
        return await _result(graph, await graph.get(given.task))

    async def _graph(self) -> TaskGraph:
        return (await self._access.project()).tasks

    def tools(self) -> tuple[McpTool, ...]:
        return (
            McpTool(
                name="task_ready",
                title="Ready tasks",
                description="List tasks of this project that can be begun now, most urgent first.",
                takes=TaskReadyArguments,
                returns=TaskListResult,
                run=self.ready,
            ),
            McpTool(
                name="task_list",
                title="List tasks",
                description="List tasks of this project: the open ones, or those in one state.",
                takes=TaskListArguments,
                returns=TaskListResult,
                run=self.list,
            ),
            McpTool(
                name="task_show",
                title="Show a task",
                description="Show a task: what it needs, why it waits, notes and evidence.",
                takes=TaskShowArguments,
                returns=TaskResult,
                run=self.show,
            ),
            McpTool(
                name="task_add",
                title="Add a task",
                description=(
                    "Note work to be done later, with what it needs first; also what you find"
                    " while you do something else (discovered_from)."
                ),
                takes=TaskAddArguments,
                returns=TaskResult,
                run=self.add,
                writes=True,
                idempotent=False,
            ),
            McpTool(
                name="task_claim",
                title="Claim a task",
                description=(
                    "Take a task before you begin it, so that no other agent does; without a name"
                    " the most urgent ready one. Keep the token for task_done."
                ),
                takes=TaskClaimArguments,
                returns=TaskResult,
                run=self.claim,
                writes=True,
                idempotent=False,
            ),
            McpTool(
                name="task_done",
                title="Finish a task",
                description="Close a task, with the commits and turns that show it is done.",
                takes=TaskDoneArguments,
                returns=TaskResult,
                run=self.done,
                writes=True,
            ),
            McpTool(
                name="task_block",
                title="Block a task",
                description="Say why a task cannot go on, or which tasks it has to wait for.",
                takes=TaskBlockArguments,
                returns=TaskResult,
                run=self.block,
                writes=True,
            ),
            McpTool(
                name="task_note",
                title="Note something on a task",
                description="Add a remark to a task, or commits and turns that belong to it.",
                takes=TaskNoteArguments,
                returns=TaskResult,
                run=self.note,
                writes=True,
                idempotent=False,
            ),
        )


async def _result(graph: TaskGraph, task: Task) -> TaskResult:
    return TaskResult(
        task=_item(task),
        token=task.token if task.state == "claimed" else 0,
        description=task.description,
        needs=[_item(each) for each in await graph.named(task.needs)],
        needed_by=[_item(each) for each in await graph.named(task.needed_by)],
        why=await graph.why(task.id) if task.state in {"waiting", "blocked"} else [],
        commits=[each.value for each in task.evidence if each.kind == "commit"],
        notes=[each.text for each in task.notes],
    )


def _listed(tasks: list[Task]) -> TaskListResult:
    return TaskListResult(tasks=[_item(each) for each in tasks])


def _item(task: Task) -> TaskItem:
    return TaskItem(
        number=task.number,
        id=task.id,
        title=task.title,
        state=task.state,
        priority=task.priority,
        owner=task.owner,
        labels=task.labels,
    )


def _line(task: TaskItem) -> str:
    owner = f" ({task.owner})" if task.owner else ""
    return f"#{task.number} [{task.state}, P{task.priority}] {task.title}{owner}"

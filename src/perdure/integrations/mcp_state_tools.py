"""The tools over a project's state: goals, milestones, notes, and the preamble."""

from __future__ import annotations

from typing import Annotated

import msgspec

from perdure.integrations.mcp_protocol import McpCall, McpTool
from perdure.integrations.mcp_tools import McpArguments, MemoryAccess

TYPE_CHECKING = False
if TYPE_CHECKING:
    from perdure.project.project import Project
    from perdure.project.state_records import StateEntry

Title = Annotated[str, msgspec.Meta(min_length=1, max_length=300)]
EntryName = Annotated[
    str, msgspec.Meta(min_length=1, description="Its id, the beginning of it, or its title.")
]


class ProjectStateArguments(McpArguments, frozen=True, kw_only=True):
    """Arguments of the tool."""

    closed: Annotated[
        bool, msgspec.Meta(description="Also goals and milestones that are over.")
    ] = False


class PreambleArguments(McpArguments, frozen=True, kw_only=True):
    """Arguments of the tool."""

    budget: Annotated[
        int, msgspec.Meta(ge=100, le=20_000, description="Tokens that it may have.")
    ] = 1_500


class NoteArguments(McpArguments, frozen=True, kw_only=True):
    """Arguments of the tool."""

    text: Annotated[str, msgspec.Meta(min_length=1, max_length=4_000)]


class GoalAddArguments(McpArguments, frozen=True, kw_only=True):
    """Arguments of the tool."""

    title: Title
    text: str = ""


class MilestoneAddArguments(McpArguments, frozen=True, kw_only=True):
    """Arguments of the tool."""

    title: Title
    text: str = ""
    goal: Annotated[str, msgspec.Meta(description="The goal that it leads to.")] = ""
    needs: Annotated[
        list[str], msgspec.Meta(description="Milestones, goals or tasks that come first.")
    ] = []


class MilestoneFinishArguments(McpArguments, frozen=True, kw_only=True):
    """Arguments of the tool."""

    milestone: EntryName


class StateItem(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A goal, milestone, checkpoint or link."""

    id: str
    kind: str
    title: str
    status: str
    text: str = ""
    of: str = ""
    target: str = ""
    commit: str = ""
    branch: str = ""
    #: What it needs that is not over.
    waits_for: list[str] = []


class ProjectStateResult(msgspec.Struct, frozen=True, kw_only=True):
    """What the project is for, and how far it is."""

    project: str
    branch: str
    commit: str
    entries: list[StateItem]

    def told(self) -> str:
        on = f"On {self.branch or 'no branch'} at {self.commit[:10] or 'no commit'}."
        lines = [
            f"- [{each.kind}, {each.status}] {each.title} ({each.id})"
            + (f" → {each.target or each.commit[:10]}" if each.target or each.commit else "")
            + (f" needs {'; '.join(each.waits_for)}" if each.waits_for else "")
            for each in self.entries
        ]
        return "\n".join((f"{self.project}. {on}", *lines))


class PreambleResult(msgspec.Struct, frozen=True, kw_only=True):
    """What one should know before going on."""

    text: str

    def told(self) -> str:
        return self.text


class NoteResult(msgspec.Struct, frozen=True, kw_only=True):
    """A note that was kept."""

    id: str
    #: The conversation that it belongs to; empty: none.
    session: str = ""


class StateResult(msgspec.Struct, frozen=True, kw_only=True):
    """An entry that was added or changed, and the checkpoint that it left."""

    entry: StateItem
    checkpoint: StateItem | None = None


class StateTools:
    """The tools, over whatever gives them a project. Files under git are not written: what an agent
    changes is in the bank, and in the files with the next command of a person.
    """

    def __init__(self, access: MemoryAccess) -> None:
        self._access = access

    async def state(self, _: McpCall, given: ProjectStateArguments) -> ProjectStateResult:
        project = await self._project()
        place = await project.anchors.position()
        entries = [
            each for each in await project.state.list() if given.closed or not each.is_closed
        ]
        return ProjectStateResult(
            project=project.name,
            branch=place.branch,
            commit=place.commit,
            entries=[await _item(project, each) for each in entries],
        )

    async def preamble(self, _: McpCall, given: PreambleArguments) -> PreambleResult:
        project = await self._access.project()
        return PreambleResult(text=await project.preamble.text(given.budget))

    async def note(self, call: McpCall, given: NoteArguments) -> NoteResult:
        project = await self._access.project()
        who = self._access.identity(call.client)
        made = await project.work.note(given.text, client=call.client, by=who)
        return NoteResult(id=made.id, session=made.session)

    async def goal_add(self, call: McpCall, given: GoalAddArguments) -> StateResult:
        project, who = await self._project(), self._access.identity(call.client)
        made = await project.state.add("goal", given.title, text=given.text, by=who)
        return StateResult(entry=await _item(project, made))

    async def milestone_add(self, call: McpCall, given: MilestoneAddArguments) -> StateResult:
        project, who = await self._project(), self._access.identity(call.client)
        made = await project.state.add(
            "milestone", given.title, text=given.text, of=given.goal, needs=given.needs, by=who
        )
        return StateResult(entry=await _item(project, made))

    async def milestone_finish(self, call: McpCall, given: MilestoneFinishArguments) -> StateResult:
        project, who = await self._project(), self._access.identity(call.client)
        done, kept = await project.state.finish(given.milestone, by=who)
        return StateResult(
            entry=await _item(project, done),
            checkpoint=None if kept is None else await _item(project, kept),
        )

    async def _project(self) -> Project:
        from perdure.core.errors import NotFound

        project = await self._access.project()
        if not project.settings.state:
            raise NotFound(
                "This project keeps no state.",
                hint="The user can run `perdure project set state=on`.",
            )
        return project

    def tools(self) -> tuple[McpTool, ...]:
        return (
            McpTool(
                name="project_preamble",
                title="Where the project stands",
                description=(
                    "What to know before going on: goals, milestones, tasks, the last session on"
                    " this branch with its open ends, decisions and lessons. Call it when a"
                    " conversation begins without it."
                ),
                takes=PreambleArguments,
                returns=PreambleResult,
                run=self.preamble,
            ),
            McpTool(
                name="project_state",
                title="Project state",
                description="List goals, milestones, checkpoints and links; what waits for what.",
                takes=ProjectStateArguments,
                returns=ProjectStateResult,
                run=self.state,
            ),
            McpTool(
                name="project_note",
                title="Note in the journal",
                description=(
                    "Note in the scratchpad and journal of this session what the next one should"
                    " see: a plan, a blocker, where you stopped. Facts for good: remember."
                ),
                takes=NoteArguments,
                returns=NoteResult,
                run=self.note,
                writes=True,
                idempotent=False,
            ),
            McpTool(
                name="goal_add",
                title="Add a goal",
                description="Note what the project is for, when the user says so.",
                takes=GoalAddArguments,
                returns=StateResult,
                run=self.goal_add,
                writes=True,
                idempotent=False,
            ),
            McpTool(
                name="milestone_add",
                title="Add a milestone",
                description="Note a step on the way to a goal, with what it needs first.",
                takes=MilestoneAddArguments,
                returns=StateResult,
                run=self.milestone_add,
                writes=True,
                idempotent=False,
            ),
            McpTool(
                name="milestone_finish",
                title="Finish a milestone",
                description="Close a milestone; the commit that is checked out is its checkpoint.",
                takes=MilestoneFinishArguments,
                returns=StateResult,
                run=self.milestone_finish,
                writes=True,
            ),
        )


async def _item(project: Project, entry: StateEntry) -> StateItem:
    return StateItem(
        id=entry.id,
        kind=entry.kind,
        title=entry.title,
        status=entry.status,
        text=entry.text,
        of=entry.of,
        target=entry.target,
        commit=entry.commit,
        branch=entry.branch,
        waits_for=await project.state.waits_for(entry) if entry.needs else [],
    )

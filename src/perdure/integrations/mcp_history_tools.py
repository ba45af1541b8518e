"""The tools over a project's position and rewritten history."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from perdure.integrations.mcp_protocol import McpCall, McpTool
from perdure.integrations.mcp_tools import McpArguments, MemoryAccess

TYPE_CHECKING = False
if TYPE_CHECKING:
    from perdure.project.history_records import ProjectOperation
    from perdure.project.project import Project

_MOST_ENTRIES = 20


class ProjectStatusArguments(McpArguments, frozen=True, kw_only=True):
    """Arguments of the tool: none."""


class ReconcileArguments(McpArguments, frozen=True, kw_only=True):
    """Arguments of the tool."""

    decision: Annotated[
        Literal["ask", "rebase", "fork"],
        msgspec.Meta(
            description="rebase: entries follow their commits; fork: they stay with the old line."
            " Decide only what the user has said; ask has the client ask them."
        ),
    ] = "ask"


class WaitingRewrite(msgspec.Struct, frozen=True, kw_only=True):
    """A rewrite that nobody has decided about."""

    number: int
    what: str
    entries: list[str]


class ProjectStatusResult(msgspec.Struct, frozen=True, kw_only=True):
    """Where the project stands."""

    project: str
    branch: str
    commit: str
    #: Since the last look.
    changes: list[str]
    #: How many entries are where: here, moved, linked, elsewhere, gone, unclear.
    entries: dict[str, int]
    #: Entries whose commit is gone, or could be several.
    lost: list[str]
    waiting: list[WaitingRewrite]


class ReconcileResult(msgspec.Struct, frozen=True, kw_only=True):
    """What was decided, and what still waits."""

    decided: list[str]
    waiting: list[WaitingRewrite]

    def told(self) -> str:
        lines = [f"Decided: {each}" for each in self.decided]
        for each in self.waiting:
            about = ", ".join(each.entries) or "nothing"
            lines += [f"Waits: {each.what}. It is about {about}."]
        if self.waiting:
            lines.append(
                "Ask the user whether these entries follow their commits (rebase) or stay with the"
                " old line (fork), then call project_reconcile with that decision."
            )
        return "\n".join(lines) or "Nothing waits for a decision."


class HistoryTools:
    """The tools, over whatever gives them a project."""

    def __init__(self, access: MemoryAccess) -> None:
        self._access = access

    async def status(self, _: McpCall, given: ProjectStatusArguments) -> ProjectStatusResult:
        from perdure.project.project_history import told

        project = await self._access.project()
        report = await project.anchors.refresh(asks=True)
        found = await project.history.status(report.changes, busy=report.busy)
        counts: dict[str, int] = {}
        for each in found.entries:
            counts[each.place] = counts.get(each.place, 0) + 1
        lost = [each.entry.title for each in found.entries if each.place in {"gone", "unclear"}]
        return ProjectStatusResult(
            project=found.name,
            branch=found.branch,
            commit=found.commit,
            changes=[told(each) for each in found.changes],
            entries=counts,
            lost=lost[:_MOST_ENTRIES],
            waiting=[await _waiting(project, each) for each, _ in found.waiting],
        )

    async def reconcile(self, call: McpCall, given: ReconcileArguments) -> ReconcileResult:
        project, who = await self._access.project(), call.client or "mcp"
        await project.anchors.refresh(asks=True)
        decided, left = list[str](), list[WaitingRewrite]()
        for operation in await project.history.waiting():
            about = await _waiting(project, operation)
            choice: str | None = given.decision
            if choice == "ask":
                choice = await call.ask(
                    f"reconcile-{operation.number}",
                    f"{about.what}. {len(about.entries)} entries of the project's memory are about"
                    " these commits. rebase: they follow. fork: they stay with the old line.",
                    ("rebase", "fork", "later"),
                )
            if choice in {"rebase", "fork"}:
                await project.history.decide(str(choice), operation.number, by=who)
                decided.append(f"{choice}: {about.what}")
            else:
                left.append(about)
        return ReconcileResult(decided=decided, waiting=left)

    def tools(self) -> tuple[McpTool, ...]:
        return (
            McpTool(
                name="project_status",
                title="Project status",
                description=(
                    "Show branch and commit, what happened to the repository since the last look"
                    " (rebase, reset, force push…), and which memories and tasks lost their commit."
                ),
                takes=ProjectStatusArguments,
                returns=ProjectStatusResult,
                run=self.status,
            ),
            McpTool(
                name="project_reconcile",
                title="Reconcile with rewritten history",
                description=(
                    "After a rebase, squash or force push: decide whether the project's memory"
                    " follows the rewritten commits. The user is asked."
                ),
                takes=ReconcileArguments,
                returns=ReconcileResult,
                run=self.reconcile,
                writes=True,
            ),
        )


async def _waiting(project: Project, operation: ProjectOperation) -> WaitingRewrite:
    from perdure.project.project_history import told

    entries = await project.history.entries_of(operation)
    changed = "; ".join(told(each) for each in operation.changes if each.removed)
    return WaitingRewrite(
        number=operation.number,
        what=changed or f"{len(operation.moves)} commits were rewritten",
        entries=[each.title for each in entries[:_MOST_ENTRIES]],
    )

"""``perdure team``: supervisor, planner, historian and executor over the tasks of a project."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from perdure.cli import readable, terminal
from perdure.cli.bank_access import working_bank
from perdure.cli.command_options import CommandSettings, LimitOption
from perdure.cli.project_access import FolderOption, project_here, project_location

if TYPE_CHECKING:
    from perdure.bank import Bank
    from perdure.project.project_location import ProjectLocation
    from perdure.project.team.team_executor import WorkOrder
    from perdure.project.team.team_records import TeamRun

TeamRunArgument = Annotated[str, typer.Argument(metavar="RUN", help="Its name: team/R-3, or 3.")]


async def run(
    settings: CommandSettings,
    intent: Annotated[
        str, typer.Argument(metavar="INTENT", help="What you want; - reads it from stdin.")
    ],
    command: Annotated[
        list[str] | None,
        typer.Argument(metavar="[-- COMMAND...]", help="A coding agent that works on tasks."),
    ] = None,
    *,
    agent: Annotated[
        str | None, typer.Option("--agent", help="An agent of the bank that works on tasks.")
    ] = None,
    tasks: Annotated[
        int, typer.Option("--tasks", min=1, max=20, help="Work on so many, at most.")
    ] = 1,
    check: Annotated[
        str, typer.Option("--check", help="A command that passes if the work is sound.")
    ] = "",
    seconds: Annotated[
        float, typer.Option("--seconds", min=1, help="What one task may take.")
    ] = 1_800.0,
    deadline: Annotated[
        float, typer.Option("--deadline", min=0.1, help="Seconds that each role may take.")
    ] = 60.0,
    learn_from: Annotated[
        list[str] | None,
        typer.Option("--learn-from", help="An agent whose transcripts are read."),
    ] = None,
    seed: Annotated[
        int | None, typer.Option("--seed", help="For models that take one; made up if left out.")
    ] = None,
    approve: Annotated[
        bool, typer.Option("--approve", help="Work also on a branch that is behind.")
    ] = False,
    folder: FolderOption = Path(),
) -> None:
    """Let the team read what you want and keep the task graph.

    Without a command or agent nobody works on tasks. Without models, rules stand in for the roles.
    """
    from perdure.agents.one_shot.agent_command import checked_command
    from perdure.project.project import Project
    from perdure.project.project_location import initialised
    from perdure.project.team.team import Team

    words = checked_command(shlex.split(check)) if check else ()
    if intent == "-":
        intent = typer.get_text_stream("stdin").read()
    location = project_location(folder)
    settings.bank = settings.bank or initialised(location).bank or None
    async with working_bank(settings) as bank:
        order = await _order(bank, location, command or [], agent, approve=approve)
        if order is not None:
            order = order._replace(tasks=tasks, seconds=seconds, check=words)
        graph = Project(bank.services, location).tasks
        team = Team(bank.services, location, deadline=deadline, tasks=graph)
        done = await team.run(intent, seed=seed, learn_from=learn_from, work=order)
    if settings.json:
        terminal.emit(_as_json(done))
    else:
        _recap(done)


async def list_(
    settings: CommandSettings, *, limit: LimitOption = 20, folder: FolderOption = Path()
) -> None:
    """List runs of the team, the newest first."""
    async with project_here(settings, folder) as project:
        found = await project.team.list(limit)
        now = project.services.store.now()
    if settings.json:
        terminal.emit({"runs": [_as_json(each) for each in found]})
        return
    if not found:
        terminal.say("There are no runs. `perdure team run` begins one.")
        return
    rows = [
        (
            each.name,
            each.state,
            readable.relative_time(each.started, now),
            str(len(each.outcome.applied)),
            each.inputs.intent.replace("\n", " ")[:60],
        )
        for each in found
    ]
    terminal.table(("Run", "State", "When", "Changes", "Asked"), rows)


async def show(
    settings: CommandSettings, name: TeamRunArgument, *, folder: FolderOption = Path()
) -> None:
    """Show a run: what each role said, and what was changed."""
    async with project_here(settings, folder) as project:
        found = await project.team.get(name)
    if settings.json:
        terminal.emit(_as_json(found))
        return
    terminal.say(f"{found.name} ({found.state}), seed {found.inputs.seed}")
    for answer in found.answers:
        terminal.say(f"{answer.role} ({answer.state}) {answer.model}")
        terminal.verbatim(terminal.lines(answer.text or answer.error))
    for remark in found.remarks:
        terminal.note(remark)
    _recap(found)


async def recap(
    settings: CommandSettings, name: TeamRunArgument, *, folder: FolderOption = Path()
) -> None:
    """Show in words what a run did, refused and left open."""
    async with project_here(settings, folder) as project:
        found = await project.team.get(name)
    if settings.json:
        from perdure.project.team.team_decisions import run_recap

        terminal.emit({"run": found.name, "recap": run_recap(found)})
    else:
        _recap(found)


async def replay(
    settings: CommandSettings, name: TeamRunArgument, *, folder: FolderOption = Path()
) -> None:
    """Compute a run again from what was recorded; exits with 1 if a byte differs.

    No model is asked, and nothing is changed.
    """
    async with project_here(settings, folder) as project:
        found = await project.team.replay(name)
    if settings.json:
        terminal.emit({"same": found.same, "outcome": found.computed.decode()})
    else:
        typer.echo(found.computed.decode())
        terminal.note("The same, byte for byte." if found.same else "It differs from the record.")
    if not found.same:
        raise typer.Exit(1)


async def decide(
    settings: CommandSettings,
    name: TeamRunArgument,
    dispute: Annotated[str, typer.Argument(metavar="DISPUTE", help='What about: "#3 priority".')],
    role: Annotated[str, typer.Argument(metavar="ROLE", help="Who is right.")],
    *,
    folder: FolderOption = Path(),
) -> None:
    """Settle what the team disagrees about."""
    async with project_here(settings, folder) as project:
        found = await project.team.decide(name, dispute, role)
    _tell(settings, found, f"{role} is right: {found.name} is carried out.")


async def undo(
    settings: CommandSettings, name: TeamRunArgument, *, folder: FolderOption = Path()
) -> None:
    """Take back what a run changed; what others changed since stays."""
    async with project_here(settings, folder) as project:
        found = await project.team.undo(name)
    _tell(settings, found, f"{found.name} is undone.")


async def _order(
    bank: Bank,
    location: ProjectLocation,
    command: list[str],
    agent: str | None,
    *,
    approve: bool,
) -> WorkOrder | None:
    from perdure.agents.one_shot.agent_command import checked_command
    from perdure.core.errors import InvalidInput
    from perdure.project.project import Project
    from perdure.project.team.team_executor import (
        WorkOrder,
        agent_worker,
        command_worker,
        stale_reason,
    )

    if command and agent:
        raise InvalidInput("A command or an agent works, not both.", hint="Leave out one.")
    if not command and agent is None:
        return None
    worker = (
        command_worker(checked_command(command), location.root)
        if agent is None
        else agent_worker(await bank.agents.get(agent))
    )
    if approve:
        return WorkOrder(worker)
    anchors = Project(bank.services, location).anchors
    await anchors.refresh()
    return WorkOrder(worker, wait_because=await stale_reason(location, anchors))


def _recap(run: TeamRun) -> None:
    from perdure.project.team.team_decisions import run_recap

    terminal.say(run.name)
    terminal.verbatim(terminal.lines(run_recap(run)))


def _tell(settings: CommandSettings, run: TeamRun, words: str) -> None:
    if settings.json:
        terminal.emit(_as_json(run))
    else:
        terminal.say(words)
        for remark in run.remarks:
            terminal.note(remark)


def _as_json(run: TeamRun) -> dict[str, Any]:
    import msgspec

    plain: dict[str, Any] = msgspec.to_builtins(run)
    return {"run": run.name, "tokens": run.tokens, **plain}

"""``perdure project show``, ``goal``, ``milestone``, ``link``…: what it is for."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from perdure.cli import terminal
from perdure.cli.command_options import CommandSettings
from perdure.cli.project_access import FolderOption, project_here, project_shown

if TYPE_CHECKING:
    from perdure.project.project import Project
    from perdure.project.state_records import EntryKind, StateEntry

TitleArgument = Annotated[str, typer.Argument(metavar="TITLE", help="In a few words.")]
EntryArgument = Annotated[
    str, typer.Argument(metavar="ENTRY", help="Its id, the beginning of it, or its title.")
]
TextOption = Annotated[str | None, typer.Option("--text", "-t", help="More about it.")]
RenameOption = Annotated[str | None, typer.Option("--title", help="Another title.")]
NeedsOption = Annotated[
    list[str] | None,
    typer.Option("--needs", help="A milestone, goal or task that comes first. May be repeated."),
]
AsOption = Annotated[
    str, typer.Option("--as", metavar="NAME", help="Who you are; your user name if left out.")
]


async def goal_add(
    settings: CommandSettings,
    title: TitleArgument,
    *,
    text: TextOption = None,
    needs: NeedsOption = None,
    by: AsOption = "",
    folder: FolderOption = Path(),
) -> None:
    """Add a goal: what the project is for."""
    await _add(settings, folder, "goal", title, text=text or "", needs=needs or (), by=by)


async def goal_edit(
    settings: CommandSettings,
    entry: EntryArgument,
    *,
    title: RenameOption = None,
    text: TextOption = None,
    needs: NeedsOption = None,
    reopen: Annotated[bool, typer.Option("--reopen", help="It is open again.")] = False,
    by: AsOption = "",
    folder: FolderOption = Path(),
) -> None:
    """Change a goal; what you do not name stays. Needs are replaced."""
    await _edit(settings, folder, entry, title=title, text=text, needs=needs, reopen=reopen, by=by)


async def goal_done(
    settings: CommandSettings,
    entry: EntryArgument,
    *,
    drop: Annotated[bool, typer.Option("--drop", help="It is given up.")] = False,
    anyway: Annotated[bool, typer.Option("--anyway", help="Whatever it needs.")] = False,
    by: AsOption = "",
    folder: FolderOption = Path(),
) -> None:
    """Close a goal that is reached."""
    await _close(settings, folder, entry, drop=drop, anyway=anyway, by=by)


async def milestone_add(
    settings: CommandSettings,
    title: TitleArgument,
    *,
    goal: Annotated[str, typer.Option("--goal", help="The goal that it leads to.")] = "",
    text: TextOption = None,
    needs: NeedsOption = None,
    by: AsOption = "",
    folder: FolderOption = Path(),
) -> None:
    """Add a milestone: a step on the way to a goal."""
    await _add(
        settings, folder, "milestone", title, text=text or "", needs=needs or (), of=goal, by=by
    )


async def milestone_edit(
    settings: CommandSettings,
    entry: EntryArgument,
    *,
    title: RenameOption = None,
    text: TextOption = None,
    needs: NeedsOption = None,
    goal: Annotated[str | None, typer.Option("--goal", help="Another goal.")] = None,
    reopen: Annotated[bool, typer.Option("--reopen", help="It is open again.")] = False,
    by: AsOption = "",
    folder: FolderOption = Path(),
) -> None:
    """Change a milestone; what you do not name stays. Needs are replaced."""
    changes = {"title": title, "text": text, "needs": needs, "of": goal, "by": by}
    await _edit(settings, folder, entry, reopen=reopen, **changes)


async def milestone_finish(
    settings: CommandSettings,
    entry: EntryArgument,
    *,
    drop: Annotated[bool, typer.Option("--drop", help="It is given up.")] = False,
    anyway: Annotated[bool, typer.Option("--anyway", help="Whatever it needs.")] = False,
    by: AsOption = "",
    folder: FolderOption = Path(),
) -> None:
    """Finish a milestone: the commit that is checked out becomes a checkpoint."""
    await _close(settings, folder, entry, drop=drop, anyway=anyway, by=by)


async def checkpoint(
    settings: CommandSettings,
    title: TitleArgument,
    *,
    by: AsOption = "",
    folder: FolderOption = Path(),
) -> None:
    """Note the commit that is checked out, to come back to."""
    from perdure.core.errors import InvalidInput

    async with project_here(settings, folder) as project:
        found = await _state(project).checkpoint(title, by=by)
        if found is None:
            raise InvalidInput(
                "There is no commit here to note.", hint="A checkpoint needs git and a commit."
            )
        await _tell(settings, project, found, f"Checkpoint {found.id}: {_where(found)}")


async def link(
    settings: CommandSettings,
    target: Annotated[
        str,
        typer.Argument(metavar="TARGET", help="A path, URL, commit, branch, turn or artifact."),
    ],
    *,
    to: Annotated[str, typer.Option("--to", help="The goal, milestone or task it is for.")] = "",
    title: Annotated[str, typer.Option("--title", help="What it is called.")] = "",
    by: AsOption = "",
    folder: FolderOption = Path(),
) -> None:
    """Link what belongs to the project, or to one of its goals, milestones or tasks."""
    async with project_here(settings, folder) as project:
        found = await _state(project).add("link", title or target, target=target, of=to, by=by)
        await _tell(settings, project, found, f"{found.id} links {found.target}.")


async def unlink(
    settings: CommandSettings, entry: EntryArgument, *, folder: FolderOption = Path()
) -> None:
    """Take a link away."""
    from perdure.core.errors import InvalidInput

    async with project_here(settings, folder) as project:
        found = await _state(project).get(entry)
        if found.kind != "link":
            raise InvalidInput(
                f"{found.id} is a {found.kind}.", hint="Goals and milestones are closed: --drop."
            )
        gone = await project.state.edit(found.id, status="removed")
        await _tell(settings, project, gone, f"{gone.id} is gone: {gone.title}")


async def show(settings: CommandSettings, *, folder: FolderOption = Path()) -> None:
    """Show goals, milestones, checkpoints and links, and what waits for what."""
    async with project_shown(settings, folder) as project:
        state = _state(project)
        entries = await state.list()
        waits = {each.id: await state.waits_for(each) for each in entries if each.needs}
        tasks = {"ready": 0, "claimed": 0, "waiting": 0, "blocked": 0}
        for task in await project.tasks.list():
            tasks[task.state] = tasks.get(task.state, 0) + 1
        commits = {each.commit for each in entries if each.kind == "checkpoint"}
        places = await project.anchors.where(commits)
        name, id, place = project.name, project.id, await project.here()
    if settings.json:
        found = [{**entry_json(each), "waits_for": waits.get(each.id, [])} for each in entries]
        for line, each in zip(found, entries, strict=True):
            if each.kind == "checkpoint":
                line["now"] = places[each.commit]
        here = {"commit": place.commit, "branch": place.branch}
        terminal.emit({"project": id, "name": name, "at": here, "entries": found, "tasks": tasks})
        return
    terminal.say(f"{name} ({id})")
    for kind, heading in _HEADINGS.items():
        of_kind = [each for each in entries if each.kind == kind]
        if of_kind:
            terminal.say(f"\n{heading}")
        for each in of_kind:
            status = "" if each.status == "open" else f" ({each.status})"
            more = f" → {each.target}" if each.target and each.target != each.title else ""
            if each.kind == "checkpoint":
                more = f" {_where(each, places[each.commit])}"
            terminal.say(f"  {each.id}  {each.title}{status}{more}")
            for line in waits.get(each.id, []):
                terminal.note(f"      needs {line}")
    if not entries:
        terminal.say('Nothing yet. `perdure project goal add "…"` adds the first goal.')


_HEADINGS = {
    "goal": "Goals",
    "milestone": "Milestones",
    "checkpoint": "Checkpoints",
    "link": "Links",
}


def entry_json(entry: StateEntry) -> dict[str, Any]:
    from perdure.project.state_records import entry_line

    return {**entry_line(entry), "status": entry.status}


async def _add(
    settings: CommandSettings, folder: Path, kind: EntryKind, title: str, **fields: Any
) -> None:
    async with project_here(settings, folder) as project:
        found = await _state(project).add(kind, title, **fields)
        await _tell(settings, project, found, f"{found.id} is added: {found.title}")


async def _edit(
    settings: CommandSettings, folder: Path, entry: str, *, reopen: bool, **changes: Any
) -> None:
    async with project_here(settings, folder) as project:
        status = "open" if reopen else None
        found = await _state(project).edit(entry, status=status, **changes)
        await _tell(settings, project, found, f"{found.id} is changed: {found.title}")


async def _close(
    settings: CommandSettings, folder: Path, entry: str, *, drop: bool, anyway: bool, by: str
) -> None:
    async with project_here(settings, folder) as project:
        state = _state(project)
        if drop:
            found = await state.edit(entry, status="dropped", by=by)
            await _tell(settings, project, found, f"{found.id} is dropped: {found.title}")
            return
        found, kept = await state.finish(entry, anyway=anyway, by=by)
        said = f"{found.id} is done: {found.title}"
        if kept is not None:
            said += f"\nCheckpoint {kept.id}: {_where(kept)}"
        elif found.kind == "milestone":
            said += "\nThere is no commit here, so there is no checkpoint."
        more = {} if kept is None else {"checkpoint": entry_json(kept)}
        await _tell(settings, project, found, said, **more)


def _state(project: Project) -> Any:
    from perdure.core.errors import InvalidInput

    if not project.settings.state:
        raise InvalidInput(
            "This project keeps no state.", hint="`perdure project set state=on` turns it on."
        )
    return project.state


def _where(entry: StateEntry, now: str | None = None) -> str:
    """Its commit, or where that is now; empty: it is gone."""
    on = f" on {entry.branch}" if entry.branch else ""
    gone = ", which is gone" if now == "" else ""
    return f"{(now or entry.commit)[:10]}{on}{gone}"


async def _tell(
    settings: CommandSettings, project: Project, entry: StateEntry, said: str, **more: Any
) -> None:
    remarks = await project.write_files()
    if settings.json:
        terminal.emit({**entry_json(entry), **more, "remarks": list(remarks)})
        return
    for line in said.splitlines():
        terminal.say(line)
    for each in remarks:
        terminal.note(each)

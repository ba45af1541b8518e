"""``perdure project recall|index``: what was true at a commit."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from perdure.cli import readable, terminal
from perdure.cli.command_options import CommandSettings
from perdure.cli.project_access import FolderOption, project_here
from perdure.cli.terminal import ProgressBar
from perdure.core import clock
from perdure.core.display import plural

if TYPE_CHECKING:
    from perdure.project.project_recall import ProjectFindings, ProjectHit

#: Lines of a hit that are shown, and characters of each.
_LINES, _LINE = 14, 160
_SHORT = 10

AtOption = Annotated[
    str, typer.Option("--at", metavar="COMMIT", help="A commit: its id, a branch or a tag.")
]


async def recall(
    settings: CommandSettings,
    query: Annotated[str, typer.Argument(metavar="QUERY", help="What to look for.")],
    *,
    at: AtOption = "",
    branch: Annotated[
        str, typer.Option("--branch", metavar="NAME", help="The newest commit of a branch.")
    ] = "",
    limit: Annotated[
        int, typer.Option("--limit", "-k", min=1, max=200, metavar="N", help="Hits at most.")
    ] = 8,
    kind: Annotated[
        list[str] | None,
        typer.Option(
            "--kind",
            metavar="KIND",
            help="Only file, turn, memory, reference or task. Repeatable.",
        ),
    ] = None,
    deadline: Annotated[
        float, typer.Option("--deadline", metavar="SECONDS", min=0.1, help="Answer by then.")
    ] = 10.0,
    folder: FolderOption = Path(),
) -> None:
    """Find what was true at a commit: lines of files, past turns, memories, tasks.

    Without --at and --branch: at what is checked out. Files that are not indexed yet are indexed
    first, as far as there is time.
    """
    from perdure.project.project_recall import recall_project

    async with project_here(settings, folder) as project, ProgressBar("searching"):
        found = await recall_project(
            project,
            query,
            at=at,
            branch=branch,
            limit=limit,
            kinds=kind or (),
            seconds=deadline,
        )
    if settings.json:
        terminal.emit(found)
        return
    _show(found, query)


async def index(
    settings: CommandSettings, *, at: AtOption = "", folder: FolderOption = Path()
) -> None:
    """Index the files of what is checked out, or of a commit.

    Only what changed is read. May be stopped, and goes on where it was.
    """
    async with project_here(settings, folder) as project:
        files = project.files
        git = project.location.git
        commit = await git.commit(at) if at and git is not None else await files.files.head()
        if not files.is_on:
            terminal.note(
                "Files are not indexed: this project's setting `vectors` is off, or its bank has"
                " no search."
            )
            await files.refresh()
            return
        async with ProgressBar("indexing files") as progress:
            report = await files.index_commit(commit, progress=progress)
    if settings.json:
        terminal.emit(report)
        return
    where = f" of {commit[:_SHORT]}" if git is not None and commit else ""
    terminal.say(
        f"Indexed {plural(report.indexed, 'new or changed file')}{where}."
        if report.indexed
        else f"The files{where} are indexed."
    )


def _show(found: ProjectFindings, query: str) -> None:
    where = f" at {found.commit[:_SHORT]}" if found.commit else ""
    if not found.hits:
        terminal.say(f"Nothing was found for {query!r}{where}.")
    now = clock.now()
    for number, hit in enumerate(found.hits):
        if number:
            terminal.say()
        terminal.say(_title(hit, now), "bold")
        lines = [line for line in terminal.lines(hit.text) if line.strip()]
        for line in lines[:_LINES]:
            terminal.say(f"  {line if len(line) <= _LINE else f'{line[:_LINE]}…'}")
        if len(lines) > _LINES:
            terminal.say(f"  … {terminal.plural(len(lines) - _LINES, 'more line')}", "dim")
    if found.hits:
        terminal.note(f"{terminal.plural(len(found.hits), 'hit')}{where}", "dim")
    for note in found.notes:
        terminal.note(note)


def _title(hit: ProjectHit, now: int) -> str:
    name = hit.name if hit.kind == "file" else f"{hit.kind} {hit.name}"
    when = f", {readable.relative_time(hit.time, now)}" if hit.time else ""
    commit = f", at {hit.commit[:_SHORT]}" if hit.commit and hit.kind != "file" else ""
    copies = f", and in {plural(len(hit.copies), 'other path')}" if hit.copies else ""
    return f"{name}{when}{commit}{copies}, {hit.score:.2f}"

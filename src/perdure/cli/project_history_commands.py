"""``perdure project status``, ``reconcile``, ``rewind``: history that was rewritten."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from perdure.cli import readable, terminal
from perdure.cli.command_options import CommandSettings
from perdure.cli.project_access import FolderOption, can_ask, project_here
from perdure.core.display import plural
from perdure.core.errors import InvalidInput

if TYPE_CHECKING:
    from perdure.project.history_records import ProjectOperation
    from perdure.project.project import Project
    from perdure.project.project_history import PlacedEntry

_LISTED = 20
_DECIDED = {"waiting": "undecided", "rebase": "followed", "fork": "stayed with the old line"}


async def status(
    settings: CommandSettings,
    *,
    entries: Annotated[
        bool, typer.Option("--entries", help="List every entry and where it is anchored.")
    ] = False,
    folder: FolderOption = Path(),
) -> None:
    """Show what is checked out, what happened to it, and what waits.

    Memories, tasks and state are anchored at commits: this says where those are now.
    """
    from perdure.project.project_history import told

    async with project_here(settings, folder) as project:
        report = await project.anchors.refresh(asks=can_ask(settings))
        found = await project.history.status(report.changes, busy=report.busy)
    if settings.json:
        terminal.emit(found)
        return
    terminal.say(f"{found.name} on {found.branch or 'no branch'} at {found.commit[:10] or '-'}")
    if found.busy:
        terminal.say("A rebase or merge is not over: it is looked at when it is.")
    for change in found.changes:
        terminal.say(f"  {told(change)}")
    anchored = len(found.entries)
    terminal.say(f"{_entries(anchored)} with an anchor: {_counts(found.entries)}")
    for operation, count in found.waiting:
        terminal.say(f"Waits: {_line(operation)} ({_entries(count)})")
    if found.waiting:
        terminal.say("Decide with `perdure project reconcile`.")
    shown = [each for each in found.entries if entries or each.place in {"gone", "unclear"}]
    for each in shown[: None if entries else _LISTED]:
        terminal.say(f"  {_entry(each)}")


async def reconcile(
    settings: CommandSettings,
    number: Annotated[
        int | None,
        typer.Argument(metavar="NUMBER", help="Of one rewrite; all that wait if left out."),
    ] = None,
    *,
    policy: Annotated[
        str,
        typer.Option("--policy", metavar="POLICY", help="rebase: follow; fork: stay behind."),
    ] = "",
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only show what would be recorded.")
    ] = False,
    undo: Annotated[
        bool, typer.Option("--undo", help="Take back a decision or a rewind: NUMBER, or the last.")
    ] = False,
    list_: Annotated[bool, typer.Option("--list", help="List rewrites and rewinds.")] = False,
    by: Annotated[
        str, typer.Option("--as", metavar="NAME", help="Who you are; your user name if left out.")
    ] = "",
    folder: FolderOption = Path(),
) -> None:
    """Decide whether entries follow rewritten commits or stay with the old line.

    Without --policy you are asked; where nobody can be asked, the settings' policy decides.
    """
    from perdure.core.actors import system_user

    if policy not in {"", "rebase", "fork"}:
        raise InvalidInput(f"There is no policy {policy!r}.", hint="Use rebase or fork.")
    who = by or system_user()
    async with project_here(settings, folder) as project:
        if dry_run:
            await _preview(settings, project)
            return
        if undo:
            done = [await project.history.undo(number, by=who)]
        elif list_:
            done = await project.history.operations(_LISTED)
        else:
            await project.anchors.refresh(asks=True)
            done = await _decide(settings, project, policy, number, who)
    if settings.json:
        terminal.emit({"operations": done})
        return
    for each in done:
        terminal.say(_line(each))
    if not done:
        terminal.say("Nothing waits for a decision.")


async def rewind(
    settings: CommandSettings,
    target: Annotated[
        str, typer.Argument(metavar="TARGET", help="A checkpoint's title, a commit, a tag, HEAD~3.")
    ],
    *,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only list what it hides.")] = False,
    by: Annotated[
        str, typer.Option("--as", metavar="NAME", help="Who you are; your user name if left out.")
    ] = "",
    folder: FolderOption = Path(),
) -> None:
    """Hide what is anchored behind a commit; nothing is deleted.

    `perdure project reconcile --undo` shows them again.
    """
    from perdure.core.actors import system_user

    async with project_here(settings, folder) as project:
        await project.anchors.refresh(asks=True)
        points = [(each.title, each.commit) for each in await project.state.list("checkpoint")]
        commit = await project.history.resolve(target, points)
        behind = await project.history.entries_behind(commit)
        done = None
        if not dry_run:
            done = await project.history.rewind(commit, by=by or system_user())
            await project.write_files()
    if settings.json:
        terminal.emit({"commit": commit, "entries": behind, "operation": done})
        return
    for each in behind:
        terminal.say(f"  {each.kind} {each.title}")
    what = _entries(len(behind))
    if done is None:
        terminal.say(f"{what} would be hidden.")
    else:
        terminal.say(f"{what} hidden. `perdure project reconcile --undo {done.number}` shows them.")


async def _decide(
    settings: CommandSettings, project: Project, policy: str, number: int | None, who: str
) -> list[ProjectOperation]:
    history = project.history
    if policy:
        return await history.decide(policy, number, by=who)
    asked = await history.waiting() if number is None else [await history.get(number)]
    if not can_ask(settings):
        own = project.settings
        fixed = own.unattended if own.on_rewrite == "ask" else own.on_rewrite
        decided = [await history.decide(fixed, each.number, by="policy") for each in asked]
        return [each for some in decided for each in some]
    done = []
    for each in asked:
        entries = await history.entries_of(each)
        terminal.say(_line(each))
        for entry in entries[:_LISTED]:
            terminal.say(f"  {entry.kind} {entry.title}")
        if len(entries) > _LISTED:
            terminal.say(f"  and {len(entries) - _LISTED} more")
        answer = typer.prompt(
            "rebase: they follow their commits; fork: they stay with the old line; later",
            default="rebase",
            err=True,
        )
        if answer in {"rebase", "fork"}:
            done += await history.decide(answer, each.number, by=who)
    return done


async def _preview(settings: CommandSettings, project: Project) -> None:
    found = await project.anchors.preview()
    if settings.json:
        terminal.emit(
            {
                "changes": found.changes,
                "moves": [*found.moves.values()],
                "unclear": found.unclear,
                "gone": found.gone,
            }
        )
        return
    from perdure.project.project_history import told

    for change in found.changes:
        terminal.say(told(change))
    for move in found.moves.values():
        if move.to:
            sure = f"{move.method}, {move.sureness:.0%}"
            terminal.say(f"  {move.commit[:10]} → {move.to[:10]} ({sure})")
    for each in found.unclear:
        terminal.say(f"  {each.commit[:10]} → one of {', '.join(c[:10] for c in each.candidates)}")
    for commit in found.gone:
        terminal.say(f"  {commit[:10]} is gone")
    if not (found.changes or found.moves or found.unclear or found.gone):
        terminal.say("Nothing has changed since the last look.")


def _line(operation: ProjectOperation) -> str:
    from perdure.project.project_history import told

    when = readable.absolute_time(operation.at)
    who = f" by {operation.by}" if operation.by else ""
    if operation.kind == "rewind":
        state = "undone" if operation.state == "undone" else "hidden"
        count = _entries(len(operation.hidden))
        return (
            f"{operation.number} ({when}): rewound to {operation.commit[:10]}, {count} {state}{who}"
        )
    moved = f"{plural(len(operation.moves), 'anchored commit')} {_DECIDED[operation.decision]}"
    unclear = f", {len(operation.unclear)} unclear" if operation.unclear else ""
    what = "; ".join(told(each) for each in operation.changes if each.removed) or "commits went"
    return f"{operation.number} ({when}): {what}; {moved}{unclear}{who}"


def _entries(count: int) -> str:
    return "1 entry" if count == 1 else f"{count:,} entries"


def _counts(entries: tuple[PlacedEntry, ...]) -> str:
    names = {
        "here": "here",
        "moved": "followed to here",
        "linked": "here by another commit",
        "elsewhere": "elsewhere",
        "gone": "gone",
        "unclear": "unclear",
    }
    counts = {name: sum(each.place == place for each in entries) for place, name in names.items()}
    return ", ".join(f"{count} {name}" for name, count in counts.items() if count) or "none"


def _entry(each: PlacedEntry) -> str:
    now = f" → {each.now[:10]}" if each.now not in {"", each.entry.commit} else ""
    if each.candidates:
        now = f" → one of {', '.join(c[:10] for c in each.candidates)}"
    where = f"{each.entry.commit[:10]}{now}"
    return f"{each.place:9} {where}  {each.entry.kind} {each.entry.title}"

"""``perdure project refresh``, ``preamble``, ``journal``, ``note``, ``set``, ``share``…"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from perdure.cli import terminal
from perdure.cli.command_options import CommandSettings, LimitOption
from perdure.cli.project_access import (
    FolderOption,
    can_ask,
    project_here,
    project_location,
    project_shown,
)
from perdure.core.display import plural
from perdure.core.errors import InvalidInput

if TYPE_CHECKING:
    from perdure.project.sharing import ShareReport

_SWITCHES = {"on": True, "off": False, "true": True, "false": False, "yes": True, "no": False}
#: What `project set` changes.
_SETTINGS = (
    "name",
    "state",
    "vectors",
    "journal",
    "preamble",
    "on_rewrite",
    "unattended",
    "on_stale",
)


async def refresh(settings: CommandSettings, *, folder: FolderOption = Path()) -> None:
    """Take in new commits, conversations, and files that you edited.

    It is done at the end of each turn where hooks are set up. Writes all files, also shared ones.
    """
    from perdure.project.anchors import AnchorsReport
    from perdure.project.project_files import told_taken

    async with project_here(settings, folder) as project:
        turns, sessions, remarks = 0, dict[str, None](), dict[str, None]()
        taken = dict[str, None]()
        history = AnchorsReport()
        while True:
            found = await project.refresh(asks=can_ask(settings))
            turns += found.turns
            sessions |= dict.fromkeys(found.sessions)
            remarks |= dict.fromkeys(found.remarks)
            taken |= dict.fromkeys(found.taken)
            if found.history.changes or found.history.waiting:
                history = found.history
            if not found.more:
                break
        if project.settings.shared:
            remarks |= dict.fromkeys(await project.write_files())
        changes, waiting = history.changes, history.waiting
        decisions = await project.waiting_decisions()
    if settings.json:
        terminal.emit(
            {
                "turns": turns,
                "sessions": list(sessions),
                "taken": list(taken),
                "changes": changes,
                "waiting": waiting,
                "remarks": list(remarks),
            }
        )
        return
    new = f"{plural(turns, 'turn')} of {plural(len(sessions), 'session')}"
    if taken:
        terminal.say(f"Took in from the files: {told_taken(taken)}.")
    if turns or not taken:
        terminal.say(f"Read {new}." if turns else "There is nothing new.")
    for each in (*decisions, *remarks):
        terminal.say(each)


async def preamble(
    settings: CommandSettings,
    *,
    budget: Annotated[
        int | None, typer.Option("--budget", "-b", min=1, help="Tokens; those of the settings.")
    ] = None,
    folder: FolderOption = Path(),
) -> None:
    """Print what a client is told when a conversation begins here."""
    async with project_shown(settings, folder) as project:
        made = await project.preamble.make(budget)
        tokens = project.services.counter.count(made.text)
        if budget is None:
            await project.preamble.prebuild(made)
    if settings.json:
        place = {"branch": made.branch, "commit": made.commit}
        terminal.emit({"text": made.text, "tokens": tokens, **place})
        return
    terminal.verbatim(terminal.lines(made.text))


async def sessions(
    settings: CommandSettings, *, limit: LimitOption = 20, folder: FolderOption = Path()
) -> None:
    """List the conversations of the project's clients, and what was checked out."""
    async with project_here(settings, folder) as project:
        known = await project.work.list()
    shown = known[:limit] if limit else known
    if settings.json:
        from perdure.project.state_records import iso

        rows = [
            {
                "session": each.session,
                "client": each.client,
                "started": iso(each.started),
                "active": iso(each.active),
                "branch": each.anchor.branch,
                "commit": each.anchor.commit,
                "turns": each.done,
                "file": f"sessions/{each.file}.json",
            }
            for each in shown
        ]
        terminal.emit({"sessions": rows})
        return
    from perdure.cli import readable

    if not shown:
        terminal.say("None yet. `perdure project refresh` looks for new ones.")
    for each in shown:
        on = f" on {each.anchor.branch} at {each.anchor.commit[:10]}" if each.anchor.commit else ""
        terminal.say(f"{readable.absolute_time(each.active)}  {each.session}{on}")


async def journal(
    settings: CommandSettings,
    *,
    day: Annotated[
        str, typer.Option("--day", metavar="DATE", help="Only this day: 2026-11-18.")
    ] = "",
    session: Annotated[str, typer.Option("--session", help="Only this conversation.")] = "",
    folder: FolderOption = Path(),
) -> None:
    """Print the journal: what was asked, done, decided and left open."""
    async with project_shown(settings, folder) as project:
        if session:
            pages = await project.journal.read(
                [await project.work.get(session)], loose=False, day=day
            )
        else:
            pages = await project.journal.read(await project.work.list(), day=day)
    if settings.json:
        terminal.emit({"pages": [{"name": name, "text": text} for name, text in pages.items()]})
        return
    for text in pages.values():
        terminal.verbatim(
            line for line in terminal.lines(text) if not line.startswith("<!-- perdure ")
        )
    if not pages:
        terminal.say("The journal has no such page.")


async def note(
    settings: CommandSettings,
    text: Annotated[str, typer.Argument(metavar="TEXT", help="What is to be kept.")],
    *,
    session: Annotated[
        str, typer.Option("--session", help="The conversation; by default the one going on here.")
    ] = "",
    by: Annotated[str, typer.Option("--as", metavar="NAME", help="Who you are.")] = "",
    folder: FolderOption = Path(),
) -> None:
    """Add a note to the scratchpad and the journal."""
    async with project_here(settings, folder) as project:
        made = await project.work.note(text, session=session, by=by)
        remarks = await project.write_files()
    if settings.json:
        terminal.emit({"id": made.id, "session": made.session, "remarks": remarks})
        return
    terminal.say(f"{made.id} is kept{f', with {made.session}' if made.session else ''}.")
    for each in remarks:
        terminal.note(each)


async def set_(
    settings: CommandSettings,
    changes: Annotated[
        list[str] | None,
        typer.Argument(metavar="NAME=VALUE…", help="Such as journal=off or preamble=2000."),
    ] = None,
    *,
    folder: FolderOption = Path(),
) -> None:
    """Show the settings of the project, or change some.

    State, vectors and journal each work without the others. `preamble` is its tokens;
    `on_rewrite` (ask, rebase, fork), `unattended` (rebase, fork) and `on_stale` (ask, go-on)
    say what happens when history is rewritten.
    """
    import msgspec

    from perdure.project.project_location import ProjectSettings, initialised

    location = project_location(folder)
    known: dict[str, Any] = {
        name: getattr(initialised(location), name) for name in ProjectSettings.__struct_fields__
    }
    for change in changes or ():
        name, mark, value = change.partition("=")
        key = name.strip().replace("-", "_")
        if not mark or key not in _SETTINGS:
            raise InvalidInput(
                f"{change!r} is no setting.",
                hint=f"Write NAME=VALUE; names: {', '.join(_SETTINGS)}.",
            )
        known[key] = _value(value.strip(), known[key])
    try:
        made = msgspec.convert(known, ProjectSettings)
    except msgspec.ValidationError as exc:
        raise InvalidInput(
            f"That cannot be: {exc}.", hint="`perdure project set` shows them."
        ) from exc
    if changes:
        location.write_settings(made)
        location.drop_preambles()
    if settings.json:
        terminal.emit(known)
        return
    for name in (*_SETTINGS, "shared"):
        value = known[name]
        shown = {True: "on", False: "off"}.get(value, value) if isinstance(value, bool) else value
        terminal.say(f"{name} = {shown}")


async def share(settings: CommandSettings, *, folder: FolderOption = Path()) -> None:
    """Put state, tasks and journal under git; you commit them.

    A merge driver for state and tasks is set up in this clone; `project init` does it in others.
    """
    from perdure.project import sharing

    async with project_here(settings, folder) as project:
        report = await sharing.share(project)
    _tell(settings, report, "is staged; commit it", "Nothing new is to be committed.")


async def unshare(settings: CommandSettings, *, folder: FolderOption = Path()) -> None:
    """Take state, tasks and journal out of git again; the files stay."""
    from perdure.project import sharing

    async with project_here(settings, folder) as project:
        report = await sharing.unshare(project)
    _tell(settings, report, "is taken out of git, staged", "Nothing was under git.")


async def repair(settings: CommandSettings, *, folder: FolderOption = Path()) -> None:
    """Mend files in .perdure that are broken or in conflict.

    What cannot be mended is kept beside, and the file is written anew from the bank.
    """
    from perdure.project import sharing

    async with project_here(settings, folder) as project:
        done = await sharing.repair(project)
    if settings.json:
        terminal.emit({"done": list(done)})
        return
    for each in done:
        terminal.say(each)
    if not done:
        terminal.say("Nothing was broken.")


async def merge_driver(
    settings: CommandSettings,
    base: Annotated[Path, typer.Argument(metavar="BASE", help="%O of git.")],
    ours: Annotated[Path, typer.Argument(metavar="OURS", help="%A: the result goes there.")],
    theirs: Annotated[Path, typer.Argument(metavar="THEIRS", help="%B of git.")],
    name: Annotated[str, typer.Argument(metavar="PATH", help="%P: which file it is.")],
) -> None:
    """Merge state or tasks by what they say. Git calls it, once they are shared."""
    from perdure.project.sharing import run_driver

    remarks = run_driver(base, ours, theirs, name)
    if settings.json:
        terminal.emit({"remarks": list(remarks)})
        return
    for each in remarks:
        terminal.note(f"perdure: {each}")


def _value(text: str, before: object) -> object:
    if isinstance(before, bool):
        if text.lower() not in _SWITCHES:
            raise InvalidInput(f"{text!r} is neither on nor off.", hint="Write on or off.")
        return _SWITCHES[text.lower()]
    if isinstance(before, int):
        if not text.isdecimal():
            raise InvalidInput(f"{text!r} is no number.", hint="Write preamble=1500.")
        return int(text)
    return text


def _tell(settings: CommandSettings, report: ShareReport, done: str, nothing: str) -> None:
    if settings.json:
        terminal.emit(report)
        return
    for each in report.files:
        terminal.say(f"{each} {done}.")
    if not report.files:
        terminal.say(nothing)
    for each in report.remarks:
        terminal.note(each)

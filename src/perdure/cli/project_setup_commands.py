"""``perdure project init`` and ``perdure project remove``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from perdure.cli import terminal
from perdure.cli.command_options import CommandSettings, YesOption
from perdure.cli.project_access import FolderOption, can_ask, project_location

if TYPE_CHECKING:
    from perdure.integrations.client_setup.coding_clients import CodingClient
    from perdure.integrations.client_setup.project_setup import SetupReport


async def init(
    settings: CommandSettings,
    *,
    folder: FolderOption = Path(),
    name: Annotated[
        str, typer.Option("--name", help="The project's name; by default the folder's.")
    ] = "",
    clients: Annotated[
        str,
        typer.Option(
            "--clients", metavar="NAMES", help="claude-code,codex; by default all that are found."
        ),
    ] = "",
    hooks: Annotated[
        bool | None,
        typer.Option(
            "--hooks/--no-hooks",
            help="Git hooks and hooks of clients; by default as before, at first with them.",
        ),
    ] = None,
    yes: YesOption = False,
) -> None:
    """Set up the memory of a repository: bank, git hooks, coding clients.

    Asks before it touches a client's file; where nobody can be asked, it leaves them without --yes.
    Can be run again at any time. `perdure project remove` takes all of it out.
    """
    from perdure.bank import Bank
    from perdure.integrations.client_setup.project_setup import ProjectSetup, SetupWishes

    location = project_location(folder)
    known = location.settings
    settings.bank = _absolute(settings.bank)
    wishes = SetupWishes(
        name=name,
        bank=settings.bank or "",
        hooks=hooks,
        clients=[each.strip() for each in clients.split(",") if each.strip()] if clients else None,
        asks=can_ask(settings),
    )
    settings.bank = settings.bank or (known.bank if known else "") or None
    bank = Bank(config=settings.load())

    def agree(client: CodingClient, paths: Sequence[Path]) -> bool:
        if yes or not wishes.asks:
            return yes
        for path in paths:
            terminal.note(f"  {path}")
        return typer.confirm(f"Set up {client.title} with these files?", default=True, err=True)

    _show(settings, await ProjectSetup(location).init(bank, wishes, agree))


async def remove(
    settings: CommandSettings, *, folder: FolderOption = Path(), yes: YesOption = False
) -> None:
    """Take out what `perdure project init` has put in; what the bank knows stays.

    Files of clients become what they were, or lose only our part if somebody changed them since.
    """
    from perdure.bank import Bank
    from perdure.integrations.client_setup.project_setup import ProjectSetup
    from perdure.project.project_location import initialised

    location = project_location(folder)
    own = initialised(location)
    settings.confirm(
        f"Take the memory of {own.name!r} out of {location.root}?", done="taken out", yes=yes
    )
    settings.bank = settings.bank or own.bank or None
    _show(settings, await ProjectSetup(location).remove(Bank(config=settings.load())))


def plugin(settings: CommandSettings) -> None:
    """Show where the Claude Code plugin is, for all repositories at once.

    `claude plugin marketplace add FOLDER`, then `claude plugin install perdure@perdure`. It works
    in projects that were set up, and does nothing elsewhere.
    """
    from perdure.integrations.claude_code import MARKETPLACE

    if settings.json:
        terminal.emit({"folder": str(MARKETPLACE)})
    else:
        terminal.say(str(MARKETPLACE))


def _absolute(address: str | None) -> str | None:
    """The address of a file from here, as it is from anywhere else."""
    scheme, mark, path = (address or "").partition(":///")
    if not mark or path.startswith(("/", "~")) or scheme != "sqlite":
        return address
    return f"{scheme}{mark}{Path(path).absolute()}"


def _show(settings: CommandSettings, report: SetupReport) -> None:
    if settings.json:
        terminal.emit(report)
        return
    for each in report.done:
        terminal.say(f"+ {each}")
    if not report.done:
        terminal.say(f"Nothing had to be changed in {report.root}.")
    for each in report.left:
        terminal.say(f"- left: {each}")
    for each in report.notes:
        terminal.say(each)

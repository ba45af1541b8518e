"""``perdure uninstall``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from perdure.cli import terminal
from perdure.cli.command_options import CommandSettings, YesOption

if TYPE_CHECKING:
    from perdure.integrations.uninstall.uninstaller import UninstallReport


async def uninstall(
    settings: CommandSettings,
    *,
    data: Annotated[
        bool, typer.Option("--data", help="Delete banks and their artifacts on this machine, too.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only tell what would go, and what would stay.")
    ] = False,
    yes: YesOption = False,
) -> None:
    """Take out everything that Perdure put anywhere; then say how the package goes.

    The set-up of every project, the plugin, completion, logs. What was remembered stays without
    --data; what you wrote stays in any case. Can be run again.
    """
    from perdure.integrations.uninstall.uninstaller import Uninstaller

    uninstaller = Uninstaller(settings.load(), data=data)
    found = await uninstaller.look(Path.cwd())
    if dry_run:
        _show(settings, found, "would go")
        return
    if found.gone:
        words = [f"- {each}" for each in found.gone if each not in uninstaller.lost]
        if uninstaller.lost:
            words += ["Nobody can bring these back:", *(f"- {each}" for each in uninstaller.lost)]
        settings.confirm("Take all of this out?", "This goes:", *words, done="taken out", yes=yes)
    report = await uninstaller.run()
    _show(settings, report, "took out")
    if report.failed:
        raise typer.Exit(1)


def _show(settings: CommandSettings, report: UninstallReport, verb: str) -> None:
    if settings.json:
        terminal.emit(report)
        return
    for each in report.gone:
        terminal.say(f"{verb}: {each}")
    if not report.gone:
        terminal.say("There is nothing to take out.")
    for each in report.kept:
        terminal.say(f"stays: {each}")
    for each in report.failed:
        terminal.note(f"could not: {each}", style="red")
    for each in report.notes:
        terminal.say(each)

"""``perdure verify``, ``doctor`` and ``conformance``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from perdure.cli import terminal
from perdure.cli.bank_access import existing_bank
from perdure.cli.command_options import CommandSettings
from perdure.cli.terminal import ProgressBar
from perdure.core.errors import Corrupted

if TYPE_CHECKING:
    from perdure.cli.diagnosis import Diagnosis
    from perdure.testing.conformance import ConformanceReport, Trial


async def verify(settings: CommandSettings) -> None:
    """Check every record and artifact of the bank.

    Names each damaged one. Exits with 0 if the bank is sound, and with 1 if it is not.
    """
    from perdure.storage.verify import Problem

    checked: dict[str, int] = {}
    problems: list[Problem] = []
    async with ProgressBar("checking the bank") as bar:

        def count(what: str, done: int, total: int) -> None:
            checked[what] = done
            bar(what, done, total)

        def report(problem: Problem) -> None:
            problems.append(problem)
            if not settings.json:
                bar.pause()
                terminal.say(f"{problem.subject}: {problem.what}")

        try:
            async with existing_bank(settings) as bank:
                async for problem in bank.verify(count):
                    report(problem)
        except Corrupted as exc:
            # Damage so deep that the rest cannot be checked is what was looked for, too.
            report(Problem("store", exc.message))
    records = sum(checked.values())
    if settings.json:
        terminal.emit({"ok": not problems, "records": records, "problems": problems})
    elif problems:
        terminal.say(
            f"{terminal.plural(len(problems), 'problem')} in"
            f" {terminal.plural(records, 'record')}. Restore what is damaged from a backup.",
            style="red",
        )
    else:
        terminal.say(f"The bank is sound: {terminal.plural(records, 'record')} checked.")
    if problems:
        raise typer.Exit(1)


async def doctor(settings: CommandSettings) -> None:
    """Check versions, paths, whether all parts answer, and this project.

    Exits with 0 if all is well, and with 1 if something is not.
    """
    from perdure.cli.diagnosis import diagnose
    from perdure.project.project_location import ProjectLocation

    report = await diagnose(settings)
    if (ProjectLocation.find(Path()).folder / "project.json").is_file():
        from perdure.cli.project_diagnosis import examine_project

        await examine_project(report, Path())
    if settings.json:
        terminal.emit({"ok": report.ok, **report.facts, "checks": report.checks})
    else:
        _show_diagnosis(report)
    if not report.ok:
        raise typer.Exit(1)


def _show_diagnosis(report: Diagnosis) -> None:
    terminal.table(
        ("", "", ""),
        [
            ("ok" if check.ok else "not ok", check.part, f"{check.what} {check.advice}".rstrip())
            for check in report.checks
        ],
    )
    collections = report.facts.get("bank", {}).get("collections")
    if collections:
        from perdure.cli.bank_commands import show_collections

        terminal.say()
        show_collections(collections)


async def conformance(
    settings: CommandSettings,
    url: Annotated[str, typer.Argument(metavar="URL", help="The address of a store to try.")],
) -> None:
    """Try a storage backend on everything it declares.

    The store may hold data: the kit works beside it, and removes the records it wrote; a few empty
    collections, perdure_kit_…, stay. A store that is not there is made. Exits with 0 if the backend
    does all it declares, and with 1 if it does not.
    """
    from perdure.testing.conformance import run

    async with ProgressBar("opening the store") as bar:

        def follow(trial: Trial, done: int, total: int) -> None:
            bar(f"trying {trial.id}", done, total)

        report = await run(url, progress=follow)
    if settings.json:
        terminal.emit(report.to_builtins())
    else:
        _show_conformance(report)
    if not report.passed:
        raise typer.Exit(1)


def _show_conformance(report: ConformanceReport) -> None:
    terminal.say(f"{report.adapter} at {report.url}")
    terminal.say()
    terminal.table(
        ("Capability", "Declared", "Standing", "Passed", "Failed"),
        [
            (
                line.capability,
                "yes" if line.declared else "no",
                line.standing.value,
                str(line.passed or ""),
                str(line.failed or ""),
            )
            for line in report.table
        ],
        right=2,
    )
    for failure in report.failures:
        terminal.say()
        terminal.say(f"{failure.id} failed: {failure.guarantee}", style="red")
        terminal.say(f"  {failure.detail}")
    terminal.say()
    terminal.say(report.verdict)

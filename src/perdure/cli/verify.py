"""``perdure verify``: is everything still as it was written?"""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from perdure.cli import terminal
from perdure.cli.options import Settings, common_options
from perdure.core.errors import Corrupted

if TYPE_CHECKING:
    from perdure.storage.verify import Problem


@common_options()
def verify(settings: Settings) -> None:
    """Check every record and artifact of the bank.

    Names each damaged one. Exits with 0 if the bank is sound, and with 1 if it is not.
    """
    import asyncio

    records, problems = asyncio.run(_verify(settings))
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


async def _verify(settings: Settings) -> tuple[int, list[Problem]]:
    """The number of records checked, and the problems, which are printed as they are found."""
    from perdure.cli import places
    from perdure.cli.progress import Bar
    from perdure.storage.verify import Problem

    checked: dict[str, int] = {}
    problems: list[Problem] = []

    with Bar("checking the bank") as bar:

        def count(what: str, done: int, total: int) -> None:
            checked[what] = done
            bar(what, done, total)

        def report(problem: Problem) -> None:
            problems.append(problem)
            if not settings.json:
                bar.pause()
                terminal.say(f"{problem.subject}: {problem.what}")

        try:
            async with places.existing_bank(settings, settings.load()) as bank:
                async for problem in bank.verify(count):
                    report(problem)
        except Corrupted as exc:
            # Damage so deep that the rest cannot be checked is what was looked for, too.
            report(Problem("store", exc.message))
    return sum(checked.values()), problems

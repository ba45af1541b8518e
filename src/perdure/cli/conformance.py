"""``perdure conformance``: does a storage backend keep its promises?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from perdure.cli import terminal
from perdure.cli.options import Settings, common_options

if TYPE_CHECKING:
    from perdure.testing.conformance import Report, Trial


@common_options(without=("bank", "config"))
def conformance(
    settings: Settings,
    url: Annotated[str, typer.Argument(metavar="URL", help="The address of a store to try.")],
) -> None:
    """Try a storage backend on everything it declares.

    The store may hold data: the kit works beside it, and removes the records it wrote; a few empty
    collections, perdure_kit_…, stay. A store that is not there is made. Exits with 0 if the backend
    does all it declares, and with 1 if it does not.
    """
    import asyncio

    report = asyncio.run(_try(url))
    if settings.json:
        terminal.emit(report.to_builtins())
    else:
        _show(report)
    if not report.passed:
        raise typer.Exit(1)


async def _try(url: str) -> Report:
    from perdure.cli.progress import Bar
    from perdure.testing.conformance import run

    with Bar("opening the store") as bar:

        def follow(trial: Trial, done: int, total: int) -> None:
            bar(f"trying {trial.id}", done, total)

        return await run(url, progress=follow)


def _show(report: Report) -> None:
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

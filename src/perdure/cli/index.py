"""``perdure index``: is everything found that was said, and making it so again."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from perdure.cli import terminal
from perdure.cli.options import (
    BankOption,
    ConfigOption,
    DebugOption,
    JsonOption,
    Settings,
    refine,
)

if TYPE_CHECKING:
    from perdure.recall.indexing.checking import IndexReport

app = typer.Typer(
    help="Look after the index that recall searches in.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


@app.command()
def check(
    ctx: typer.Context,
    *,
    bank: BankOption = None,
    config: ConfigOption = None,
    json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Compare the index with the turns that it is about.

    Reads every turn, and changes nothing. Exits with 0 if all is well, and with 1 if it is not;
    what still waits for its vector is no fault.
    """
    import asyncio

    import msgspec

    settings = refine(ctx, bank=bank, config=config, json=json, debug=debug)
    report = asyncio.run(_check(settings))
    if settings.json:
        terminal.emit({"ok": not report.problems, **msgspec.structs.asdict(report)})
    else:
        _show(report)
    if report.problems:
        raise typer.Exit(1)


@app.command()
def rebuild(
    ctx: typer.Context,
    *,
    bank: BankOption = None,
    config: ConfigOption = None,
    json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Make the index anew, with all vectors.

    From the turns, memories and reference layers of the bank. Everybody may go on reading and
    writing meanwhile. Interrupted, it is completed when the bank is next in use, or by the same
    command.
    """
    import asyncio

    import msgspec

    settings = refine(ctx, bank=bank, config=config, json=json, debug=debug)
    report = asyncio.run(_rebuild(settings))
    if settings.json:
        terminal.emit({"ok": not report.problems, **msgspec.structs.asdict(report)})
    else:
        _show(report)
    if report.problems:
        raise typer.Exit(1)


async def _check(settings: Settings) -> IndexReport:
    from perdure.cli import places
    from perdure.cli.progress import Bar

    async with places.existing_bank(settings, settings.load()) as bank:
        with Bar("checking the index") as progress:
            return await bank.index.check(progress)


async def _rebuild(settings: Settings) -> IndexReport:
    from perdure.bank import Bank
    from perdure.cli import places
    from perdure.cli.progress import Bar

    config = settings.load()
    async with places.existing_bank(settings, config):
        pass  # it is there
    async with Bank(config=config) as bank:  # with its models
        with Bar("rebuilding the index") as progress:
            await bank.index.rebuild(progress)
            return await bank.index.check(progress)


def _show(report: IndexReport) -> None:
    if not report.on:
        terminal.say(report.why)
        return
    if report.documents or not report.problems:
        count = terminal.plural(report.documents, "passage")
        terminal.say(f"{count} in the index, {report.expected:,} of them in the log.")
    if report.unembedded:
        waiting = terminal.plural(report.unembedded, "passage")
        terminal.note(f"{waiting} without a vector of {report.model} yet; that comes by itself.")
    for problem in report.problems:
        terminal.say(problem, style="red")

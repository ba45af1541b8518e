"""``perdure index``: check and rebuild the search index."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from perdure.cli import terminal
from perdure.cli.bank_access import existing_bank
from perdure.cli.command_options import CommandSettings
from perdure.cli.terminal import ProgressBar

if TYPE_CHECKING:
    from collections.abc import Iterator

    from perdure.recall.indexing.index import IndexReport


async def check(settings: CommandSettings) -> None:
    """Compare the index with the turns that it is about.

    Reads every turn, and changes nothing. Exits with 0 if all is well, and with 1 if it is not;
    what still waits for its vector is no fault.
    """
    async with ProgressBar("checking the index") as bar, existing_bank(settings) as bank:
        report = await bank.index.check(bar)
    _show(settings, report)


async def rebuild(settings: CommandSettings) -> None:
    """Make the index anew, with all vectors.

    From the turns, memories and reference layers of the bank. Everybody may go on reading and
    writing meanwhile. Nothing is lost if it is interrupted: the same command, or whoever opens the
    bank next, completes it.
    """
    from perdure.bank import Bank

    config = settings.load()
    async with existing_bank(settings, config):
        pass  # it is there
    async with ProgressBar("rebuilding the index") as bar, Bank(config=config) as bank:
        await bank.index.rebuild(bar)
        report = await bank.index.check(bar)
    _show(settings, report)


def _show(settings: CommandSettings, report: IndexReport) -> None:
    if settings.json:
        import msgspec

        terminal.emit({"ok": not report.problems, **msgspec.structs.asdict(report)})
    elif not report.on:
        terminal.say(report.why)
    else:
        for line in _facts(report) if report.is_read else ():
            terminal.say(line)
        for problem in report.problems:
            terminal.say(problem, style="red")
        if not report.problems:
            terminal.say("The index is sound.")
        elif report.is_mendable:
            terminal.say("To mend the index, run: perdure index rebuild")
    if report.problems:
        raise typer.Exit(1)


def _facts(report: IndexReport) -> Iterator[str]:
    said = terminal.plural(report.expected, "passage")
    yield f"Turns: {said}, {_share(report.expected - report.missing, report.expected)} indexed."
    yield f"Memories and reference layers: {report.others:,} indexed."
    if report.documents and report.model:
        held = report.documents - report.unembedded
        yield f"Meaning: {_share(held, report.documents)} with a vector of {report.model}."
    if report.unembedded and report.model:
        yield (
            f"  {report.unembedded:,} wait for vectors, and are found by their words until then."
            " They are made while a program has the bank open, or by `perdure index rebuild`."
        )
    for model, held in report.vectors.items():
        if model != report.model:
            yield f"  {held:,} have a vector of {model}, which is not searched: it is replaced."


def _share(number: int, of: int) -> str:
    return "all" if number == of else f"{number:,} of {of:,}"

"""``perdure reference``: knowledge that is loaded when it matters."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from perdure.cli import terminal
from perdure.cli.bank_access import changed_bank, existing_bank
from perdure.cli.command_options import CommandSettings
from perdure.core.clock import to_datetime
from perdure.core.errors import InvalidInput

if TYPE_CHECKING:
    from perdure.recall.references.layers import LayerRecord
    from perdure.recall.references.references import Synced

NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="The layer's name.")]


async def add(
    settings: CommandSettings,
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="A Markdown file; - reads what is typed.")
    ],
    *,
    name: Annotated[
        str, typer.Option("--name", help="What it is called, if its front matter does not say so.")
    ] = "",
    replace: Annotated[
        bool, typer.Option("--replace", help="Also in place of a layer from another file.")
    ] = False,
) -> None:
    """Copy a Markdown file into the bank as a reference layer; again, to renew it.

    Its front matter may have name, title, tags, weight and triggers: words and phrases, tool:NAME,
    path:PATTERN. It stays as it is when the file changes: add it again. A layer of the same name
    from another file stays, unless you say --replace. Files of the folder (recall.references) need
    not be added: they are found by themselves.
    """
    typed = None if str(file) != "-" else typer.get_text_stream("stdin").read()
    async with changed_bank(settings) as bank:
        if typed is not None:
            made = await bank.references.add(typed, name=name, replace=replace)
        else:
            made = await bank.references.add_file(file, name=name, replace=replace)
        if settings.json:
            terminal.emit(_plain(made))
        else:
            terminal.say(f"{made.name} is kept: {terminal.plural(made.tokens, 'token')}.")


async def list_(settings: CommandSettings) -> None:
    """Show the reference layers. Looks for new and changed files first."""
    async with changed_bank(settings) as bank:
        _list(settings, await bank.references.sync(), await bank.references.list())


def _list(settings: CommandSettings, synced: Synced, found: list[LayerRecord]) -> None:
    faults = [problem for problem in synced.problems if not problem.warning]
    if settings.json:
        terminal.emit({"references": [_plain(each) for each in found], "problems": faults})
        return
    rows = [
        (
            each.name,
            each.title,
            ", ".join(each.tags),
            ", ".join(each.triggers),
            "record" if each.origin is None else each.origin.path,
            f"{each.weight:.2f}",
            f"{each.tokens:,}",
        )
        for each in found
    ]
    if rows:
        headings = ("Name", "Title", "Tags", "Triggers", "From", "Weight", "Tokens")
        terminal.table(headings, rows, right=2)
    terminal.note(f"{terminal.plural(len(found), 'reference layer')}.")
    for fault in faults:
        terminal.note(f"{fault.where}: {fault.what}")


async def show(settings: CommandSettings, name: NameArgument) -> None:
    """Show what a reference layer says."""
    async with existing_bank(settings) as bank:
        await bank.references.sync()
        layer = await bank.references.get(name)
    if layer is None:
        raise InvalidInput(
            f"There is no reference layer {name!r}.", hint="`perdure reference list` has all."
        )
    if settings.json:
        terminal.emit(layer)
        return
    terminal.verbatim(terminal.lines(layer.text))


async def check(settings: CommandSettings) -> None:
    """Look for what is wrong with reference layers and their files. Changes nothing.

    Names faults in front matter, names that two have, files that cannot be read; warns of sizes
    below 500 and above 5,000 tokens, triggers that fit everything, files that are new, changed or
    gone, also of those that were added.
    Exits with 1 if there is a fault; warnings are none.
    """
    async with existing_bank(settings) as bank:
        found = await bank.references.check()
    faults = [problem for problem in found if not problem.warning]
    if settings.json:
        terminal.emit({"ok": not faults, "problems": found})
    else:
        for problem in found:
            kind = "warning: " if problem.warning else ""
            terminal.say(f"{problem.where}: {kind}{problem.what}")
        if not found:
            terminal.say("The reference layers are sound.")
    if faults:
        raise typer.Exit(1)


async def remove(settings: CommandSettings, name: NameArgument) -> None:
    """Remove a reference layer that was added, or whose file is out of sight.

    That of a file of the folder goes with its file.
    """
    async with existing_bank(settings) as bank:
        erased = await bank.references.remove(name)
    if settings.json:
        terminal.emit({"name": name, "removed": True, "erased": erased})
        return
    terminal.say(f"{name} is removed.")
    if not erased:
        terminal.note("Traces of it may still be in the bank's files: others had them open.")


def _plain(record: LayerRecord) -> dict[str, Any]:
    return {
        "name": record.name,
        "title": record.title,
        "tags": list(record.tags),
        "weight": record.weight,
        "triggers": list(record.triggers),
        "tokens": record.tokens,
        "file": None if record.origin is None else record.origin.path,
        "updated": to_datetime(record.updated).isoformat(),
    }

"""``perdure canon``: knowledge that agents share."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from perdure.cli import readable, terminal
from perdure.cli.bank_access import changed_bank, existing_bank
from perdure.cli.command_options import CommandSettings, YesOption
from perdure.cli.memory_display import author_in_words, person_here
from perdure.core.errors import InvalidInput

if TYPE_CHECKING:
    from perdure.agents.canon import CanonEntry

NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="The entry's name.")]
ReaderOption = Annotated[
    list[str] | None,
    typer.Option("--reader", metavar="AGENT", help="Who may read it; '*': all. Repeatable."),
]
ReasonOption = Annotated[str, typer.Option("--reason", help="Why; kept with the version.")]
AgentOption = Annotated[
    str | None, typer.Option("--agent", help="As this agent sees it: only what it may read.")
]


async def list_(settings: CommandSettings, *, agent: AgentOption = None) -> None:
    """Show the entries of the canon."""
    async with existing_bank(settings) as bank:
        found = await bank.canon.list(agent=agent)
    if settings.json:
        terminal.emit({"canon": found})
        return
    if found:
        terminal.table(
            ("Name", "Title", "Readers", "From", "By", "Changed", "Version"),
            [
                (
                    each.name,
                    each.title,
                    _readers(each),
                    each.source or "-",
                    author_in_words(each.author),
                    readable.absolute_time(each.updated),
                    str(each.version),
                )
                for each in found
            ],
            right=1,
        )
    word = "entry" if len(found) == 1 else "entries"
    terminal.note(f"{len(found):,} {word}.")


async def show(
    settings: CommandSettings,
    name: NameArgument,
    *,
    version: Annotated[
        int | None, typer.Option("--version", min=1, help="What it said then.")
    ] = None,
    agent: AgentOption = None,
) -> None:
    """Show what an entry says."""
    async with existing_bank(settings) as bank:
        found = await bank.canon.get(name, agent=agent, version=version)
    if settings.json:
        terminal.emit(found)
    else:
        terminal.verbatim(terminal.lines(found.text))


async def write(
    settings: CommandSettings,
    name: NameArgument,
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="A Markdown file; - reads what is typed.")
    ],
    *,
    reader: ReaderOption = None,
    reason: ReasonOption = "",
    expected: Annotated[
        int | None,
        typer.Option("--expected", min=0, help="Only if it still has this version; 0: is new."),
    ] = None,
) -> None:
    """Write an entry, or its next version; the former ones are kept.

    Its front matter may have title, tags, weight and triggers, as that of a reference layer.
    Without --reader, a new entry is everybody's, and an old one keeps its readers.
    """
    try:
        text = (
            typer.get_text_stream("stdin").read() if str(file) == "-" else file.read_text("utf-8")
        )
    except (OSError, UnicodeDecodeError) as exc:
        raise InvalidInput(f"{file} cannot be read: {exc}.", hint="Check the file.") from exc
    async with changed_bank(settings) as bank:
        made = await bank.canon.write(
            name, text, readers=reader, reason=reason, by=person_here(bank), expected=expected
        )
        _tell(settings, made, f"{made.name} is kept as version {made.version}.")


async def promote(
    settings: CommandSettings,
    memory: Annotated[str, typer.Argument(metavar="MEMORY", help="Its key: planner/M-7.")],
    name: NameArgument,
    *,
    reader: ReaderOption = None,
    reason: ReasonOption = "",
) -> None:
    """Make an entry of what an agent remembers. The memory stays."""
    async with changed_bank(settings) as bank:
        made = await bank.canon.promote(
            memory, name=name, readers=reader, reason=reason, by=person_here(bank)
        )
        _tell(settings, made, f"{memory} is kept as {made.name}, version {made.version}.")


async def history(settings: CommandSettings, name: NameArgument) -> None:
    """Show the versions of an entry, the newest first."""
    async with existing_bank(settings) as bank:
        found = await bank.canon.history(name)
    if settings.json:
        terminal.emit({"versions": found})
        return
    terminal.table(
        ("Changed", "Readers", "By", "Why", "Version"),
        [
            (
                readable.absolute_time(each.entry.updated),
                _readers(each.entry),
                author_in_words(each.entry.author),
                each.entry.reason or "-",
                str(each.entry.version),
            )
            for each in found
        ],
        right=1,
    )


async def restore(
    settings: CommandSettings,
    name: NameArgument,
    version: Annotated[int, typer.Argument(metavar="VERSION", min=1, help="Its number.")],
    *,
    reason: ReasonOption = "",
) -> None:
    """Go back to what a version said, as a new version."""
    async with changed_bank(settings) as bank:
        made = await bank.canon.restore(name, version, by=person_here(bank), reason=reason)
        _tell(settings, made, f"{name} says again what version {version} said: {made.version}.")


async def remove(settings: CommandSettings, name: NameArgument, *, yes: YesOption = False) -> None:
    """Remove an entry for good, with its versions."""
    async with existing_bank(settings) as bank:
        entry = (await bank.canon.get(name)).entry
        settings.confirm(
            "Remove it?",
            f"{name}: {entry.title}",
            "This removes it for good, with all its versions.",
            done="removed",
            yes=yes,
        )
        erased = await bank.canon.remove(name, by=person_here(bank))
    if settings.json:
        terminal.emit({"removed": name, "erased": erased})
    else:
        terminal.say(f"{name} is removed.")


def _tell(settings: CommandSettings, made: CanonEntry, told: str) -> None:
    if settings.json:
        terminal.emit(made)
    else:
        terminal.say(told)


def _readers(entry: CanonEntry) -> str:
    return "everybody" if "*" in entry.readers else ", ".join(entry.readers) or "nobody"

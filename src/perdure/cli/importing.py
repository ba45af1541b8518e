"""``perdure import``: conversations that other programs have kept."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from perdure.cli import terminal
from perdure.cli.options import Settings, common_options

if TYPE_CHECKING:
    from perdure.importers import Imported, SessionImport

#: What a JSON object tells of each session; others depend on these names.
_FIELDS = ("name", "turns", "rounds", "messages", "tokens", "tool_calls", "skipped")
#: Reasons for skipping that are named; the rest is counted together.
_REASONS = 6


@common_options()
def import_(
    settings: Settings,
    kind: Annotated[
        str,
        typer.Argument(
            metavar="FORMAT", help="claude-code, codex, openai-chat, anthropic or perdure."
        ),
    ],
    paths: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="[PATH]...",
            help="Files, or folders of them; claude-code and codex know where theirs are.",
        ),
    ] = None,
    *,
    session: Annotated[
        str | None,
        typer.Option("--session", metavar="NAME", help="Into this session; else one for each."),
    ] = None,
    watch: Annotated[
        bool, typer.Option("--watch", help="Go on, and follow the files as they grow.")
    ] = False,
) -> None:
    """Bring in the transcripts of other programs.

    Importing again adds only what is new. The bank is made if it is not there. What is wrong with a
    file is counted and told, and does not stop the import.
    """
    import asyncio

    asyncio.run(_import(settings, kind, paths or None, session, watch=watch))


async def _import(
    settings: Settings, kind: str, paths: list[Path] | None, session: str | None, *, watch: bool
) -> None:
    from perdure.bank import Bank
    from perdure.cli.progress import Bar
    from perdure.importers import import_files, importer_for

    importer_for(kind)  # raises before a bank is made
    with Bar("importing") as bar:

        def heard(added: SessionImport) -> None:
            if settings.json:
                terminal.emit({"sessions": [_plain(added)]})
            else:
                bar.pause()
                terminal.say(f"{added.name}: {_added(added)}")

        async with Bank(config=settings.load()) as bank:
            imported = await import_files(
                bank,
                kind,
                paths,
                session=session,
                watch=watch,
                progress=None if watch else bar,
                heard=heard,
            )
            bar.pause()
            if settings.json:
                terminal.emit({"sessions": [_plain(each) for each in imported.sessions]})
            else:
                _show(imported, kind)
            # All is there, and found by its words. Who has no program running that would give it
            # vectors has them as well; to end this early loses nothing.
            bar("giving vectors", 0, 0)
            await bank.index.settle(bar)


def _plain(imported: SessionImport) -> dict[str, Any]:
    return {name: getattr(imported, name) for name in _FIELDS}


def _added(imported: SessionImport) -> str:
    return ", ".join(
        terminal.plural(count, noun)
        for count, noun in (
            (imported.turns, "turn"),
            (imported.rounds, "round"),
            (imported.messages, "message"),
        )
    )


def _show(imported: Imported, kind: str) -> None:
    new = [each for each in imported.sessions if each.messages]
    if new:
        terminal.listing(
            ("Session", "Turns", "Rounds", "Messages", "Tool calls", "Tokens"),
            [
                (
                    each.name,
                    f"{each.turns:,}",
                    f"{each.rounds:,}",
                    f"{each.messages:,}",
                    f"{each.tool_calls:,}",
                    f"{each.tokens:,}",
                )
                for each in new
            ],
            right=5,
        )
        terminal.say()
    others = [each for each in imported.sessions if not each.messages]
    passed = sum(1 for each in others if each.read and not each.used and not each.known)
    same = len(others) - passed
    turns = terminal.plural(sum(each.turns for each in new), "turn")
    words = f"Imported {turns} into {terminal.plural(len(new), 'session')}."
    if same:
        words += f" Nothing is new in {terminal.plural(same, 'other')}."
    if passed:
        words += f" All that was read of {terminal.plural(passed, 'other')} was skipped."
    terminal.prose(words if new else _nothing(imported, kind))
    skipped = dict[str, int]()
    for each in imported.sessions:
        for reason, count in each.skipped.items():
            skipped[reason] = skipped.get(reason, 0) + count
    if skipped:
        terminal.prose(_left_out(skipped), style="dim")


def _nothing(imported: Imported, kind: str) -> str:
    """Why nothing was imported."""
    if not imported.sessions:
        return f"There are no files of the format {kind}. Is it the right format, and place?"
    read = sum(each.read for each in imported.sessions)
    if read and not any(each.used or each.known for each in imported.sessions):
        return (
            f"None of {terminal.plural(read, 'record')} is one of the format {kind}."
            " Is it the right format?"
        )
    return "Nothing is new."


def _left_out(skipped: dict[str, int]) -> str:
    ranked = sorted(skipped.items(), key=lambda item: -item[1])
    named = [f"{count:,} {reason}" for reason, count in ranked[:_REASONS]]
    if len(ranked) > _REASONS:
        named.append(f"{sum(count for _, count in ranked[_REASONS:]):,} others")
    return f"Skipped {terminal.plural(sum(skipped.values()), 'record')}: {', '.join(named)}."

"""``perdure import`` and ``perdure export``: conversations from and to files."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO, Literal, TypeAlias

import typer

from perdure.cli import terminal
from perdure.cli.bank_access import SessionArgument, existing_bank, find_session
from perdure.cli.command_options import CommandSettings
from perdure.cli.terminal import ProgressBar
from perdure.core.errors import AccessDenied, InvalidInput, PerdureError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from perdure.importers import Imported, SessionImport
    from perdure.sessions.session import Session

#: What a JSON object tells of each session; others depend on these names.
_FIELDS = ("name", "turns", "rounds", "messages", "tokens", "tool_calls", "skipped")
#: Reasons for skipping that are named; the rest is counted together.
_REASONS = 6


async def import_(
    settings: CommandSettings,
    kind: Annotated[
        str,
        typer.Argument(
            metavar="FORMAT",
            help="claude-code, codex, opencode, cursor, gemini; chatgpt, claude-export; langsmith,"
            " otel; openai-chat, anthropic; perdure.",
        ),
    ],
    paths: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="[PATH]...",
            help="Files, or folders of them; coding clients' are found where they usually are.",
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
    from perdure.bank import Bank
    from perdure.importers import import_files, importer_for

    importer_for(kind)  # raises before a bank is made
    async with ProgressBar("importing") as bar, Bank(config=settings.load()) as bank:

        def heard(added: SessionImport) -> None:
            if settings.json:
                terminal.emit({"sessions": [_plain(added)]})
            else:
                bar.pause()
                terminal.say(f"{added.name}: {_added(added)}")

        imported = await import_files(
            bank,
            kind,
            paths or None,
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


ExportFormat: TypeAlias = Literal["jsonl", "markdown"]


async def export(
    settings: CommandSettings,
    session: SessionArgument,
    *,
    kind: Annotated[
        ExportFormat,
        typer.Option("--format", help="jsonl can be imported again; markdown is for people."),
    ] = "jsonl",
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", help="Write here; else to stdout."),
    ] = None,
) -> None:
    """Write a session to a file: JSON lines, or Markdown.

    The file stands by itself: content from the artifact store is in it, and the turns that a fork
    shares. `perdure import perdure FILE` brings it back.
    """
    if output is not None and str(output) == "-":
        output = None
    if settings.json and output is None:
        raise InvalidInput(
            "--json tells what was written to a file, and there is none.",
            hint="Add -o FILE, or leave --json out: the export itself is JSON, line by line.",
        )
    missing = list[PerdureError]()
    total = 0
    async with ProgressBar("exporting") as bar, existing_bank(settings) as bank:
        exported = await find_session(bank, session)
        with open_output(output) as out:
            async for piece in _pieces(exported, kind, missing):
                out.write(piece)
                total += len(piece)
                bar(f"exporting {exported.name}", total, 0)
    for error in missing:
        terminal.note(f"Its reference stands in the file instead: {error.message}")
    if settings.json:
        terminal.emit(
            {
                "session": exported.name,
                "format": kind,
                "file": str(output),
                "bytes": total,
                "missing": [error.message for error in missing],
            }
        )
    elif output is not None:
        terminal.say(f"Wrote {exported.name} to {output} ({terminal.format_size(total)}).")


async def _pieces(
    session: Session, kind: ExportFormat, missing: list[PerdureError]
) -> AsyncIterator[bytes]:
    if kind == "jsonl":
        from perdure.history.session_export import jsonl

        async for line in jsonl(session, on_missing=missing.append):
            yield line
    else:
        from perdure.history.session_markdown import markdown

        async for section in markdown(session, on_missing=missing.append):
            yield section.encode()


@contextmanager
def open_output(output: Path | None) -> Iterator[BinaryIO | _Terminal]:
    """The output; an existing file is replaced when the new one is complete. Raises
    `AccessDenied`.
    """
    if output is None:
        yield _Terminal() if sys.stdout.isatty() else sys.stdout.buffer
        sys.stdout.flush()
        return
    # What is no plain file, such as a pipe, is written to directly.
    plain = not output.exists() or output.is_file()
    place = output.with_name(f".{output.name}.part") if plain else output
    try:
        with place.open("wb") as file:
            yield file
        if plain:
            place.replace(output)
    except OSError as exc:
        raise AccessDenied(
            f"{output} cannot be written: {exc.strerror or exc}.", hint="Name another file."
        ) from exc
    finally:
        if plain:
            with suppress(OSError):  # it has its name by now, or was never made
                place.unlink()


class _Terminal:
    """A terminal; control characters in the output are escaped."""

    def write(self, piece: bytes) -> None:
        for line in piece.decode().removesuffix("\n").split("\n"):
            print(terminal.visible(line))

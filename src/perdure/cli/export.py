"""``perdure export``: a conversation as a file."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO

import typer

from perdure.cli import terminal
from perdure.cli.names import SessionArgument
from perdure.cli.options import Settings, common_options
from perdure.core.errors import AccessDenied, InvalidInput, PerdureError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from perdure.session import Session


class Format(StrEnum):
    """What a session can be exported to."""

    JSONL = "jsonl"
    MARKDOWN = "markdown"


JsonOption = Annotated[
    bool, typer.Option("--json", help="With -o: print what was written as a JSON object.")
]


@common_options(json=JsonOption)
def export(
    settings: Settings,
    session: SessionArgument,
    *,
    kind: Annotated[
        Format,
        typer.Option("--format", help="jsonl can be imported again; markdown is for people."),
    ] = Format.JSONL,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", help="Write here; else to stdout."),
    ] = None,
) -> None:
    """Write a session to a file: JSON lines, or Markdown.

    The file stands by itself: content from the artifact store is in it, and the turns that a fork
    shares. `perdure import perdure FILE` brings it back.
    """
    import asyncio

    if output is not None and str(output) == "-":
        output = None
    if settings.json and output is None:
        raise InvalidInput(
            "--json tells what was written to a file, and there is none.",
            hint="Add -o FILE, or leave --json out: the export itself is JSON, line by line.",
        )
    written = asyncio.run(_export(settings, session, kind, output))
    if settings.json:
        terminal.emit(written)
    elif output is not None:
        size = terminal.format_size(written["bytes"])
        terminal.say(f"Wrote {written['session']} to {output} ({size}).")


async def _export(
    settings: Settings, name: str, kind: Format, output: Path | None
) -> dict[str, Any]:
    from perdure.cli import names, places
    from perdure.cli.progress import Bar

    missing = list[PerdureError]()
    total = 0
    with Bar("exporting") as bar:
        async with places.existing_bank(settings, settings.load()) as bank:
            session = await names.find(bank, name)
            with _opened(output) as out:
                async for piece in _pieces(session, kind, missing):
                    out.write(piece)
                    total += len(piece)
                    bar(f"exporting {session.name}", total, 0)
    for error in missing:
        terminal.note(f"Its reference stands in the file instead: {error.message}")
    return {
        "session": session.name,
        "format": kind.value,
        "file": None if output is None else str(output),
        "bytes": total,
        "missing": [error.message for error in missing],
    }


async def _pieces(
    session: Session, kind: Format, missing: list[PerdureError]
) -> AsyncIterator[bytes]:
    if kind is Format.JSONL:
        from perdure.history.export import jsonl

        async for line in jsonl(session, on_missing=missing.append):
            yield line
    else:
        from perdure.history.markdown import markdown

        async for section in markdown(session, on_missing=missing.append):
            yield section.encode()


@contextmanager
def _opened(output: Path | None) -> Iterator[BinaryIO | _Terminal]:
    """Where the file goes. One that is there is replaced when the new one is whole.

    Raises `AccessDenied` if it cannot be written.
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
    """A terminal, which what is written there does not steer."""

    def write(self, piece: bytes) -> None:
        for line in piece.decode().removesuffix("\n").split("\n"):
            print(terminal.visible(line))

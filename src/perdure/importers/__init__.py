"""Importers for conversations of other programs.

    imported = await import_files(bank, "claude-code", ["~/.claude/projects"])
    for session in imported.sessions:
        print(session.name, session.turns, session.skipped)

Importing again adds only what is new. A format is one small module: see docs/importers.md.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from perdure.bank import Bank
from perdure.core.errors import InvalidInput
from perdure.core.input_types import require_path, require_text
from perdure.importers.file_import import import_path, watch_files
from perdure.importers.import_run import Heard, Imported, ImportRun, SessionImport
from perdure.importers.importer import (
    Begun,
    Describe,
    Importer,
    Open,
    ReadReport,
    Say,
    Spawn,
    Step,
    Transcript,
    TranscriptReader,
    Undo,
)
from perdure.importers.importer_registry import formats, importer_for, register, unregister
from perdure.importers.transcript_source import Broken, decode, moment
from perdure.storage.store import Progress

__all__ = [
    "Begun",
    "Broken",
    "Describe",
    "Imported",
    "Importer",
    "Open",
    "ReadReport",
    "Say",
    "SessionImport",
    "Spawn",
    "Step",
    "Transcript",
    "TranscriptReader",
    "Undo",
    "decode",
    "formats",
    "import_files",
    "importer_for",
    "moment",
    "register",
    "unregister",
]


async def import_files(
    bank: Bank,
    format: str,  # noqa: A002 (that is what it is)
    paths: Path | str | Iterable[Path | str] | None = None,
    *,
    session: str | None = None,
    watch: bool = False,
    progress: Progress | None = None,
    heard: Heard | None = None,
) -> Imported:
    """Import files of a format into the bank; returns what was added.

    `paths` are files or folders; by default the format's usual places are searched. Each
    conversation gets its own session, named after the format and the conversation, or all go to
    `session`. Faults of a file are counted and reported, and never stop the import. With `watch`
    it follows growing files until it is cancelled, and passes what was added to `heard`.

    Raises `InvalidInput` if there is no such format or path, or if there is nothing to watch; and
    what the bank raises.
    """
    importer = importer_for(require_text(format, "format"))
    found = _usual(format, importer) if paths is None else _existing(paths)
    run = ImportRun(bank, format, importer, session, progress or (lambda *_: None))
    if watch and not importer.grows:
        raise InvalidInput(
            f"Files of the format {format} do not grow.", hint="Import them without watching."
        )
    if watch:
        await watch_files(run, found, heard or (lambda _: None))
    for path in [] if watch else found:
        await import_path(run, path)
    return run.result


def _existing(paths: Path | str | Iterable[Path | str]) -> list[Path]:
    given = paths if isinstance(paths, Iterable) and not isinstance(paths, str) else [paths]
    found = [require_path(path, "paths").expanduser() for path in given]
    if not found:
        raise InvalidInput(
            "No file is named, and nothing was imported.",
            hint="Leave `paths` out to search the usual places of the format.",
        )
    for path in found:
        try:
            path.stat()
        except FileNotFoundError as exc:
            raise InvalidInput(
                f"There is no {path}.", hint="Name a file, or a folder of them."
            ) from exc
        except OSError as exc:
            raise InvalidInput(
                f"{path} cannot be read: {exc.strerror}.", hint="Name a file, or a folder of them."
            ) from exc
    return found


def _usual(name: str, importer: Importer) -> list[Path]:
    places = importer.places()
    found = [place for place in places if place.exists()]
    if not found:
        where = " or ".join(str(place) for place in places)
        raise InvalidInput(
            f"There is nothing to import in {where}." if where else f"{name} needs a path.",
            hint="Name the files, or the folder that they are in.",
        )
    return found

"""Perdure's own exports; see `perdure.history.session_export` for their form.

A session comes back under its own name, or as ``name-2`` if there is one of that name that did not
come from such a file. A later export of the same session adds what is new. `restoring` does it:
only what is no export is read here.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from perdure.core.errors import InvalidInput, NewerSchema
from perdure.history.session_export import Header, Line, parse
from perdure.importers.decoding import Broken
from perdure.importers.importer import Importer, Transcript, files, stem
from perdure.importers.source import Damaged, Source
from perdure.importers.steps import Reader, Step


def parsed(line: bytes) -> Line:
    """What a line says. Raises `Broken`."""
    try:
        return parse(line)
    except NewerSchema as exc:
        raise Broken("written by a newer version") from exc
    except InvalidInput as exc:
        raise Broken("broken line: not of an export") from exc


class NoExport(Reader):
    """Reads a file that does not say which session it holds: everything in it is skipped."""

    def decode(self, line: bytes) -> Line:
        return parsed(line)

    def read(self, record: Line) -> Iterable[Step]:
        return self.skip("the first line does not say of which session")


class ExportImporter(Importer):
    """Reads what `perdure export` wrote."""

    patterns = ("*.jsonl", "*.jsonl.zst")

    def reader(self, transcript: Transcript) -> NoExport:
        return NoExport()

    def transcripts(self, path: Path) -> Iterable[Transcript]:
        for file in files(path, self.patterns):
            found = _header(file)
            if found is None:
                yield Transcript(path=file, id=stem(file))
            else:
                yield Transcript(path=file, id=found.name, session=found.name)


def _header(file: Path) -> Header | None:
    """What the file says about its session; None if it is no export."""
    try:
        with Source(file) as source:
            first = next(source.lines(), None)
        found = None if first is None else parsed(first.data)
    except (OSError, Damaged, Broken):
        return None
    return found if isinstance(found, Header) else None

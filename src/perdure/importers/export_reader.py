"""Reads the files that `perdure export` writes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from perdure.core.errors import InvalidInput, NewerSchema
from perdure.core.messages import Message
from perdure.history.session_export import End, ExportedMessage, ExportedTurn, Header, Line, parse
from perdure.importers.importer import (
    Importer,
    ReadReport,
    Step,
    Transcript,
    TranscriptReader,
    files,
    stem,
    stored_form,
)
from perdure.importers.transcript_source import Broken, DamagedFile, SourceLine, TranscriptSource


def parsed(line: bytes) -> Line:
    try:
        return parse(line)
    except NewerSchema as exc:
        raise Broken("written by a newer version") from exc
    except InvalidInput as exc:
        raise Broken("broken line: not of an export") from exc


class NoExport(TranscriptReader):
    """Skips all of a file that does not say which session it holds."""

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
    try:
        with TranscriptSource(file) as source:
            first = next(source.lines(), None)
        found = None if first is None else parsed(first.data)
    except (OSError, DamagedFile, Broken):
        return None
    return found if isinstance(found, Header) else None


#: Messages of a turn that are given out together, in bytes, unless a single one is larger.
_BYTES = 1024 * 1024


class Portion(NamedTuple):
    """Messages of a turn: all, or some if there are many."""

    opening: ExportedTurn
    messages: list[Message]
    #: The turn begins with it; it ends with it, and the file does not.
    first: bool
    last: bool


def portions(source: TranscriptSource, report: ReadReport) -> Iterator[Header | Portion | End]:
    """The messages in the file; faults are reported and left out. Raises OSError."""
    turn = _Turn()
    begun = False
    for found in _records(source, report):
        if isinstance(found, ExportedMessage):
            if turn.opening is None or found.turn != turn.opening.turn:
                report.skip("message outside of its turn")
            elif not (size := len(stored_form(found.message))):
                report.skip("message that cannot be stored")
            else:
                if turn.messages and turn.size + size > _BYTES:
                    yield turn.portion(last=False)
                turn.messages.append(found.message)
                turn.size += size
            continue
        if turn.opening is not None:
            yield turn.portion(last=True)
        turn = _Turn(found if isinstance(found, ExportedTurn) else None)
        if isinstance(found, Header) and begun:
            report.skip("another session begins there")
            return
        if not isinstance(found, ExportedTurn):
            begun = True
            yield found
    if turn.opening is not None:
        yield turn.portion(last=False)


class _Turn:
    def __init__(self, opening: ExportedTurn | None = None) -> None:
        self.opening = opening
        self.messages: list[Message] = []
        self.size = 0
        self._first = True

    def portion(self, *, last: bool) -> Portion:
        assert self.opening is not None  # noqa: S101 (for the type checker)
        found = Portion(self.opening, self.messages, self._first, last)
        self.messages, self.size, self._first = [], 0, False
        return found


def _records(source: TranscriptSource, report: ReadReport) -> Iterator[Line]:
    try:
        for line in source.lines():
            if not line.data.strip() and not line.oversized:
                continue
            report.read += 1
            try:
                record = _record(line)
            except Broken as exc:
                report.skip(str(exc))
            else:
                yield record
    except DamagedFile:
        report.read += 1
        report.skip("damaged compression: the rest of the file")


def _record(line: SourceLine) -> Line:
    if line.oversized:
        raise Broken("line too long")
    try:
        return parsed(line.data)
    except Broken as exc:
        if line.whole:
            raise
        raise Broken("truncated last line") from exc

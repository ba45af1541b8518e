"""Perdure's own exports; see `perdure.history.export` for their form.

A session comes back under its own name, or as ``name-2`` if there is one of that name. A later
export of the same session adds what is new.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from perdure.core.errors import InvalidInput, NewerSchema
from perdure.core.messages import event
from perdure.core.turns import Cutter, Mark
from perdure.history.export import Header, Line, Opening, Spoken, parse
from perdure.importers.decoding import Broken
from perdure.importers.importer import Importer, Transcript, files, stem
from perdure.importers.source import Damaged, Source
from perdure.importers.source import Line as SourceLine
from perdure.importers.steps import Describe, Open, Reader, Say, Step, Undo


class Export(Source):
    """The lines of an export. Each export of a session is written anew, so it is a document."""

    def lines(self) -> Iterator[SourceLine]:
        for line in super().lines():
            yield line._replace(document=True)


class ExportReader(Reader):
    """Reads one export: turns come back as they were, undone ones included."""

    def __init__(self) -> None:
        super().__init__()
        self._cutter = Cutter()
        self._opening: Opening | None = None
        self._opened = True
        self._tags: dict[str, str] = {}

    def decode(self, line: bytes) -> Line:
        try:
            return parse(line)
        except NewerSchema as exc:
            raise Broken("written by a newer version") from exc
        except InvalidInput as exc:
            raise Broken("broken line: not of an export") from exc

    def read(self, record: Line) -> Iterator[Step]:
        if isinstance(record, Header):
            if record.state:
                yield Describe(record.state)
        elif isinstance(record, Spoken):
            yield from self._said(record)
        else:
            yield from self._end_turn()
            if isinstance(record, Opening):
                self._opening, self._opened = record, False

    def _said(self, spoken: Spoken) -> Iterator[Step]:
        yield from self._begin_turn(Cutter(self._cutter.mark).feed(spoken.message)[0])
        self._cutter.feed(spoken.message)
        yield Say(spoken.message)

    def _begin_turn(self, next_turn: int) -> Iterator[Step]:
        """Open the turn, if its first message does not do so by itself."""
        opening = self._opening
        if opening is None or self._opened:
            return
        self._opened = True
        always = self._cutter.turn > 0 and next_turn == self._cutter.turn
        if always:
            self._cutter = Cutter(Mark(self._cutter.turn, fresh=True))
        if always or opening.tags != self._tags:
            self._tags = opening.tags
            yield Open(opening.tags, always)

    def _end_turn(self) -> Iterator[Step]:
        opening, self._opening = self._opening, None
        if opening is None:
            return
        if not self._opened:  # it was forgotten; its number stays
            happened = event(opening.status, time=opening.started)
            self._opening = opening
            yield from self._said(Spoken(opening.turn, 1, happened))
            self._opening = None
        if opening.status == "undone":
            yield Undo(1)
            self._cutter = Cutter(Mark(self._cutter.turn, fresh=True))


class ExportImporter(Importer):
    """Reads what `perdure export` wrote."""

    patterns = ("*.jsonl", "*.jsonl.zst")

    def reader(self, transcript: Transcript) -> ExportReader:
        return ExportReader()

    def transcripts(self, path: Path) -> Iterable[Transcript]:
        for file in files(path, self.patterns):
            found = _header(file)
            if found is None:
                yield Transcript(path=file, id=stem(file))
            else:
                yield Transcript(
                    path=file, id=found.name, session=found.name, link=found.link, tags=found.tags
                )

    def open(self, transcript: Transcript) -> Export:
        return Export(transcript.path)


def _header(file: Path) -> Header | None:
    """What the file says about its session; None if it is no export."""
    try:
        with Source(file) as source:
            first = next(source.lines(), None)
        found = None if first is None else parse(first.data)
    except (OSError, Damaged, InvalidInput, NewerSchema):
        return None
    return found if isinstance(found, Header) else None

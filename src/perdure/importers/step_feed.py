"""Turns a file into steps, from a given place. Blocking: runs in a thread."""

from __future__ import annotations

import zlib
from typing import Any, NamedTuple

import msgspec

from perdure.history.import_cursors import FilePosition
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
    stored_form,
)
from perdure.importers.transcript_source import Broken, DamagedFile, SourceLine

#: How much is read at once: bytes of lines that came to something, bytes of any lines.
USED_BYTES = 1024 * 1024
_READ_BYTES = 32 * 1024 * 1024
#: The reason for skipping a record that made its reader raise an error.
FAILED = "the reader failed"
_FAULTS = (TypeError, ValueError, LookupError, AttributeError, ArithmeticError, RecursionError)


class TakenStep(NamedTuple):
    """A step, and the place behind it."""

    step: Step
    place: FilePosition


class StepBatch(NamedTuple):
    """Steps, and the place behind all of them."""

    steps: list[TakenStep]
    place: FilePosition
    more: bool
    #: Steps that matter again when they are repeated: sub-agents, tags of the turn, facts.
    again: list[Step]


class FileChanged(Exception):
    """The file does not begin with what was imported from it."""


class StepFeed:
    """The steps of one file after a place. Close it.

    A document is rewritten as it grows, so its place is its beginning, and the checksum is that
    of its messages so far. That holds for the first line of any file, which may be a document.

    Raises OSError, in all methods, if the file cannot be opened or read.
    """

    def __init__(self, importer: Importer, transcript: Transcript, behind: FilePosition) -> None:
        self.report = ReadReport()
        self._reader = importer.reader(transcript)
        self._source = importer.open(transcript)
        self._behind = behind
        self._ends = list(behind.ends)  # where the reader has yet to be asked for what it holds
        self._place = FilePosition()
        self._taken: list[TakenStep] = []
        self._again: list[Step] = []
        self._opened: dict[str, Open] = {}  # the turn that was opened last, by conversation
        self._bytes = 0  # the checksum of the lines that were read
        self._begun = self._unreadable = False
        #: The file is written anew as it grows: what is behind this cannot be read on.
        self.document = False
        self.cut_off = False

    def close(self) -> None:
        self._source.close()

    @property
    def compressed(self) -> bool:
        return self._source.compressed

    @property
    def position(self) -> int:
        return self._source.position

    def pull(self) -> StepBatch:
        """The next steps. Raises `FileChanged`."""
        if self._unreadable or self._is_binary():
            return self._batch(more=False)
        start, used, self.cut_off = self.position, 0, False
        try:
            for line in self._source.lines():
                before = len(self._taken)
                if not self._line(line):
                    break
                used += len(line.data) if len(self._taken) > before else 0
                if used >= USED_BYTES or self.position - start >= _READ_BYTES:
                    return self._batch(more=True)
        except DamagedFile:
            self._refuse("damaged compression: the rest of the file")
        if not self.position and not self.cut_off and not self._unreadable:
            self._refuse("empty file")
        if self.position < self._behind.offset or (self.document and self._lacks_steps()):
            raise FileChanged
        self._end_as_before(self.position)
        return self._batch(more=False)

    def finish(self) -> StepBatch:
        end = self._place
        if not self.document:
            self._place = FilePosition(
                end.offset, 0, end.checksum, (*end.ends, end.offset), ending=True
            )
        for step in self._reader.finish():
            self._take(step)
        if not self.document:
            self._place = FilePosition(end.offset, 0, end.checksum, (end.offset,))
        return self._batch(more=False)

    def _is_binary(self) -> bool:
        if not self._begun:
            self._begun = True
            if self._source.binary():
                self._refuse("binary file")
        return self._unreadable

    def _refuse(self, reason: str) -> None:
        self._unreadable = True
        self.report.read += 1
        self.report.skip(reason)

    def _lacks_steps(self) -> bool:
        return not self._behind.offset and self._place.steps < self._behind.steps

    def _batch(self, *, more: bool) -> StepBatch:
        taken, self._taken = self._taken, []
        again, self._again = [*self._again, *self._opened.values()], []
        self._opened = {}
        return StepBatch(taken, self._place, more, again)

    def _line(self, line: SourceLine) -> bool:
        """Read a line; False if it is to be read again when it is complete."""
        self._end_as_before(line.start)
        self._check(line)
        passed = line.start >= self._behind.offset
        report = self._reader.report = self.report if passed else ReadReport()
        if line.data.strip() or line.oversized:
            try:
                record = self._decoded(line)
            except Broken as exc:
                if not line.whole:
                    self._source.step_back(line)
                    self.cut_off = True
                    return False
                report.skip(str(exc))
            else:
                self._read(record)
            report.read += 1
        if line.document:
            self.document = True
        elif line.start == 0 and self._lacks_steps():
            raise FileChanged
        else:
            self._bytes = zlib.crc32(line.data, self._bytes)
            self._place = FilePosition(line.end, 0, self._bytes, self._place.ends)
        return True

    def _decoded(self, line: SourceLine) -> Any:
        if line.oversized:
            raise Broken("line too long")
        if not line.whole and self._reader.whole_lines:
            raise Broken("cut off")
        return self._reader.decode(line.data)

    def _read(self, record: Any) -> None:
        try:
            for step in self._reader.read(record):
                self._take(step)
        except Broken as exc:
            self._reader.report.skip(str(exc))
        except _FAULTS as exc:
            # A reader that fails on one record, and may be anybody's, can still read the others.
            self._reader.report.skip(f"{FAILED}: {type(exc).__name__}")

    def _take(self, step: Step) -> None:
        place, behind = self._place, self._behind
        checksum = place.checksum
        if place.offset == 0 and not place.ending:
            said = stored_form(step.message) if isinstance(step, Say) else b""
            checksum = zlib.crc32(said, checksum)
        self._place = msgspec.structs.replace(place, steps=place.steps + 1, checksum=checksum)
        if (place.offset, place.ending) == (behind.offset, behind.ending):
            fresh = place.steps >= behind.steps
            if place.steps + 1 == behind.steps and checksum != behind.checksum:
                raise FileChanged
        else:
            fresh = place.offset >= behind.offset
        if fresh:
            self._taken.append(TakenStep(step, self._place))
        elif isinstance(step, Open):
            self._opened[step.to] = step
        elif isinstance(step, Spawn | Begun) or (isinstance(step, Describe) and not place.offset):
            self._again.append(step)

    def _check(self, line: SourceLine) -> None:
        """Compare the checksum where the imported part ends. Raises `FileChanged`."""
        behind = self._behind
        if line.document and behind.offset:
            raise FileChanged
        if line.start < behind.offset <= line.end:
            part = line.data[: behind.offset - line.start]
            if zlib.crc32(part, self._bytes) != behind.checksum:
                raise FileChanged

    def _end_as_before(self, offset: int) -> None:
        while self._ends and self._ends[0] <= offset:
            at = self._ends.pop(0)
            partly = self._behind.ending and not self._ends
            place = self._place
            self._place = FilePosition(at, 0, place.checksum, self._behind.ends, ending=partly)
            self._reader.report = ReadReport()
            for step in self._reader.finish():
                if partly:
                    self._take(step)
            self._place = msgspec.structs.replace(place, ends=(at,))

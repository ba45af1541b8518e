"""Files that hold one JSON document instead of lines: a conversation, written anew as it grows."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from perdure.importers.decoding import Broken, decode
from perdure.importers.source import MAX_LINE, Damaged, Line, Source


class Document(Source):
    """A file that is a document, or one of lines; which of them is seen when it is read.

    A document is read whole, so it may be as long as a line, and no longer.
    """

    def __init__(self, path: Path, limit: int = MAX_LINE) -> None:
        super().__init__(path, limit)
        self._undecided = True

    def lines(self) -> Iterator[Line]:
        if self._undecided:
            self._undecided = False
            whole = self._whole()
            if whole is not None:
                self.position = len(whole)
                yield Line(whole, 0, len(whole), whole=True, document=True)
                return
        if not self._is_document:
            yield from super().lines()

    _is_document = False

    def _whole(self) -> bytes | None:
        """All of the file, if it is one document."""
        with Source(self.path, self._limit) as look:
            lines = look.lines()
            try:
                first, second = next(lines, None), next(lines, None)
            except Damaged:
                return None
            if first is None or first.oversized:
                return None
            if _is_value(first.data) and second is not None:
                return None
        with Source(self.path, self._limit) as look:
            data = look.whole()
        if data is None or not _is_value(data):
            return None
        self._is_document = True
        return data


def _is_value(data: bytes) -> bool:
    try:
        return isinstance(decode(data), dict | list)
    except Broken:
        return False

"""Reading files line by line: plain or compressed, of any size, in bounded memory."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, NamedTuple, Self, cast

import zstandard

from perdure.history.import_cursors import Stamp

#: A longer line is skipped: it must fit in memory several times over. (A tool result of 50 MB may
#: stand twice in its line.)
MAX_LINE = 128 * 1024 * 1024

_BUFFER = 256 * 1024
_ZSTD = b"\x28\xb5\x2f\xfd"
#: What a compressed file may ask for, as decompression memory.
_WINDOW = 128 * 1024 * 1024


class Line(NamedTuple):
    """A line and where it stands in the (uncompressed) file."""

    data: bytes
    start: int
    end: int
    #: It ends with a newline: nothing will be added to it.
    whole: bool
    #: It was longer than allowed, and `data` is empty.
    oversized: bool = False
    #: It is part of a document, or all of it, that is written anew as it grows.
    document: bool = False


class Damaged(Exception):
    """A compressed file that cannot be read any further."""


class Unreadable(Exception):
    """The file cannot be opened or read."""


@contextmanager
def readable() -> Iterator[None]:
    """Raises `Unreadable` where the system refuses to read."""
    try:
        yield
    except OSError as exc:
        raise Unreadable(exc.strerror or str(exc)) from exc


def stamp_of(path: Path) -> Stamp:
    """The file as it is now. Raises OSError."""
    found = path.stat()
    return Stamp(str(path.absolute()), found.st_size, found.st_mtime_ns)


class Source:
    """An open file of lines. A context manager.

    Raises OSError if the file cannot be opened or read.
    """

    def __init__(self, path: Path, limit: int = MAX_LINE) -> None:
        self.path = path
        self._limit = limit
        self._file: BinaryIO = path.open("rb", buffering=_BUFFER)
        self.compressed = self._file.read(4) == _ZSTD
        self._file.seek(0)
        self._stream: BinaryIO = self._file
        if self.compressed:
            unpack = zstandard.ZstdDecompressor(max_window_size=_WINDOW)
            raw = unpack.stream_reader(self._file, read_across_frames=True)
            self._stream = cast("BinaryIO", io.BufferedReader(cast("io.RawIOBase", raw), _BUFFER))
        #: Where the next line begins.
        self.position = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        self._stream.close()
        self._file.close()

    def binary(self) -> bool:
        """Whether the file does not look like text. Asked before the first line is read."""
        try:
            head = cast("io.BufferedReader", self._stream).peek(1024)
        except zstandard.ZstdError:
            return True
        return b"\0" in head[:1024]

    def lines(self) -> Iterator[Line]:
        """The lines from here to the end of the file as it is now.

        A last line without a newline comes too; `step_back` leaves it for the next time.

        Raises `Damaged` if a compressed file is cut off or damaged.
        """
        while True:
            try:
                data = self._stream.readline(self._limit + 1)
                oversized = len(data) > self._limit and not data.endswith(b"\n")
                size = len(data)
                if oversized:
                    size, data = self._pass_over(size)
            except zstandard.ZstdError as exc:
                raise Damaged(str(exc)) from exc
            if not size:
                return
            start = self.position
            self.position = start + size
            whole = data.endswith(b"\n")
            yield Line(b"" if oversized else data, start, self.position, whole, oversized)

    def whole(self) -> bytes | None:
        """All of the file, if it is no longer than a line may be. Asked before anything is read."""
        try:
            data = self._stream.read(self._limit + 1)
        except zstandard.ZstdError:
            return None
        return None if len(data) > self._limit else data

    def step_back(self, line: Line) -> None:
        """Read this line, the last one, again next time."""
        self.position = line.start
        if not self.compressed:
            self._file.seek(line.start)

    def _pass_over(self, size: int) -> tuple[int, bytes]:
        """The size of an oversized line, and its last bytes."""
        while True:
            data = self._stream.readline(_BUFFER)
            size += len(data)
            if not data or data.endswith(b"\n"):
                return size, data[-1:]

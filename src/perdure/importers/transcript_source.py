"""The lines and records of a transcript file, which may be damaged."""

from __future__ import annotations

import contextlib
import io
import itertools
import json
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, Self, cast

import msgspec
import zstandard

from perdure.core.clock import from_datetime
from perdure.core.errors import InvalidInput
from perdure.core.messages import sound
from perdure.history.import_cursors import Stamp

#: A longer line is skipped: it must fit in memory several times. (A tool result of 50 MB may be
#: twice in its line.)
MAX_LINE = 128 * 1024 * 1024

_BUFFER = 256 * 1024
_ZSTD = b"\x28\xb5\x2f\xfd"
#: What a compressed file may ask for, as decompression memory.
_WINDOW = 128 * 1024 * 1024


class SourceLine(NamedTuple):
    """A line and where it stands in the (uncompressed) file."""

    data: bytes
    start: int
    end: int
    whole: bool
    #: It was longer than allowed, and `data` is empty.
    oversized: bool = False
    #: It is part of a document, or all of it, that is written anew as it grows.
    document: bool = False


class DamagedFile(Exception):
    """A compressed file that cannot be read any further."""


class UnreadableFile(Exception):
    """The file cannot be opened or read."""


@contextlib.contextmanager
def readable() -> Iterator[None]:
    """Raises `UnreadableFile` where the system refuses to read."""
    try:
        yield
    except OSError as exc:
        raise UnreadableFile(exc.strerror or str(exc)) from exc


def stamp_of(path: Path) -> Stamp:
    """The file as it is now. Raises OSError."""
    found = path.stat()
    return Stamp(str(path.absolute()), found.st_size, found.st_mtime_ns)


class TranscriptSource:
    """An open file of lines; a context manager. Raises OSError."""

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
        self.position = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        self._stream.close()
        self._file.close()

    def binary(self) -> bool:
        """Whether the file does not look like text. Call before reading lines."""
        try:
            head = cast("io.BufferedReader", self._stream).peek(1024)
        except zstandard.ZstdError:
            return True
        return b"\0" in head[:1024]

    def lines(self) -> Iterator[SourceLine]:
        """The lines from here to the file's current end.
        A last line without a newline comes too; `step_back` leaves it for the next time. Raises
        `DamagedFile` if a compressed file is cut off or damaged.
        """
        while True:
            try:
                data = self._stream.readline(self._limit + 1)
                oversized = len(data) > self._limit and not data.endswith(b"\n")
                size = len(data)
                if oversized:
                    size, data = self._pass_over(size)
            except zstandard.ZstdError as exc:
                raise DamagedFile(str(exc)) from exc
            if not size:
                return
            start = self.position
            self.position = start + size
            whole = data.endswith(b"\n")
            yield SourceLine(b"" if oversized else data, start, self.position, whole, oversized)

    def whole(self) -> bytes | None:
        """All of the file, if no longer than a line may be. Call before reading anything."""
        try:
            data = self._stream.read(self._limit + 1)
        except zstandard.ZstdError:
            return None
        return None if len(data) > self._limit else data

    def step_back(self, line: SourceLine) -> None:
        self.position = line.start
        if not self.compressed:
            self._file.seek(line.start)

    def _pass_over(self, size: int) -> tuple[int, bytes]:
        while True:
            data = self._stream.readline(_BUFFER)
            size += len(data)
            if not data or data.endswith(b"\n"):
                return size, data[-1:]


class RecordSource(TranscriptSource):
    """Records that are no lines of a file: each is JSON, and whole. Raises OSError as they do."""

    def __init__(
        self, path: Path, records: Callable[[], Iterable[bytes]], limit: int = MAX_LINE
    ) -> None:
        self.path, self._limit = path, limit
        self.compressed, self.position = False, 0
        self._records = iter(records())

    def close(self) -> None:
        self._records = iter(())

    def binary(self) -> bool:
        return False

    def lines(self) -> Iterator[SourceLine]:
        for data in self._records:
            start = self.position
            self.position = end = start + len(data)
            if len(data) > self._limit:
                yield SourceLine(b"", start, end, whole=True, oversized=True)
            else:
                yield SourceLine(data, start, end, whole=True)


class JsonDocument(TranscriptSource):
    """A file that is one JSON document, or lines. A document may be as long as a line."""

    _is_document: bool | None = None  # nobody has looked yet

    def lines(self) -> Iterator[SourceLine]:
        if self._is_document is None:
            whole = self._whole()
            self._is_document = whole is not None
            if whole is not None:
                self.position = len(whole)
                yield SourceLine(whole, 0, len(whole), whole=True, document=True)
        if not self._is_document:
            yield from super().lines()

    def _whole(self) -> bytes | None:
        """All of the file, if it is a document and not lines, of which each is a value."""
        with TranscriptSource(self.path, self._limit) as look:
            lines = look.lines()
            try:
                first, second = next(lines, None), next(lines, None)
            except DamagedFile:
                return None
        if first is None or first.oversized or (second is not None and _is_value(first.data)):
            return None
        with TranscriptSource(self.path, self._limit) as look:
            data = look.whole()
        return data if data is not None and _is_value(data) else None


def _is_value(data: bytes) -> bool:
    try:
        return isinstance(decode(data), dict | list)
    except Broken:
        return False


_decoder = msgspec.json.Decoder()


class Broken(Exception):
    """A line that holds no record."""


def decode(data: bytes | msgspec.Raw) -> Any:
    """The value in a line of JSON, with text that can be stored. Raises `Broken`."""
    try:
        return _decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return leniently(bytes(data))


def leniently(data: bytes) -> Any:
    """What Python's decoder makes of it, half surrogate pairs replaced. Raises `Broken`."""
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise Broken("broken line: not UTF-8") from None
    try:
        return sound(_lenient(text))
    except ValueError:
        raise Broken("broken line: not JSON") from None
    except RecursionError:
        raise Broken("broken line: nested too deep") from None


#: A longer line is not looked at for what a file is about.
_FIRST_LINE = 1024 * 1024


def first_records(path: Path, count: int) -> Iterator[Any]:
    """What the first lines of a file hold, as far as it can be read."""
    try:
        with TranscriptSource(path, _FIRST_LINE) as source:
            for line in itertools.islice(source.lines(), count):
                with contextlib.suppress(Broken):
                    yield decode(line.data)
    except (OSError, DamagedFile):
        return


def moment(text: Any) -> int | None:
    if not isinstance(text, str):
        return None
    try:
        return from_datetime(datetime.fromisoformat(text))
    except (ValueError, OverflowError, InvalidInput):
        return None


def _number(text: str) -> float | None:
    """Neither JSON nor msgpack can hold what is no finite number."""
    value = float(text)
    return value if -1e308 <= value <= 1e308 else None


_lenient = json.JSONDecoder(parse_float=_number, parse_constant=lambda _: None).decode

"""Files of pages: a few words that say what it is, then one compressed page after another.

A page is its length, the CRC-32 and the number of its items, and a msgpack array compressed with
zstd, and then perhaps encrypted. Which items belong to a file, and that none is missing, is said by
the manifest, which has the SHA-256 of the whole file.
"""

from __future__ import annotations

import hashlib
import os
import struct
import zlib
from collections.abc import Generator, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

import msgspec
import zstandard

from perdure.core.errors import BadBackup
from perdure.storage.backups.manifest import KeptFile
from perdure.storage.backups.sealing import Seal

T = TypeVar("T")

_MAGIC = b"perdure pages 1\n"
_HEADER = struct.Struct(">III")  # bytes, CRC-32, items
#: A page is longer only if one item is: the longest value, and what is around it.
_LONGEST = 64 * 1024 * 1024


class PageWriter:
    """Writes a private file of pages; it is on disk when the block ends, or `finish` returns."""

    def __init__(self, file: Path, seal: Seal) -> None:
        self._file = file
        self._seal = seal
        self._digest = hashlib.sha256()
        self._size = self._items = self._pages = 0
        self._compress = zstandard.ZstdCompressor(level=3).compress

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if kind is None:
            self.finish()
        else:
            self.abandon()

    def start(self) -> None:
        handle = os.open(self._file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        self._out = os.fdopen(handle, "wb")
        self._write(_MAGIC)

    def finish(self) -> None:
        with self._out:
            self._out.flush()
            os.fsync(self._out.fileno())

    def abandon(self) -> None:
        """Close it as it is. No error: there was one already."""
        with suppress(OSError):
            self._out.close()

    def add(self, items: Sequence[Any]) -> None:
        compressed = self._compress(msgspec.msgpack.encode(items))
        page = self._seal.seal(compressed, _place(self._file, self._pages))
        self._pages += 1
        self._write(_HEADER.pack(len(page), zlib.crc32(page), len(items)) + page)
        self._items += len(items)

    def kept(self, name: str) -> KeptFile:
        """What the manifest says of the file, under its name in the snapshot."""
        return KeptFile(name, self._items, self._size, self._digest.hexdigest())

    def _write(self, data: bytes) -> None:
        self._out.write(data)
        self._digest.update(data)
        self._size += len(data)


class PageReader(Generic[T]):
    """Reads a file of pages; `item` is the type of what is in them."""

    def __init__(self, file: Path, item: type[T], seal: Seal) -> None:
        self._file = file
        self._seal = seal
        self._pages = 0
        self._decode = msgspec.msgpack.Decoder(list[item]).decode  # type: ignore[valid-type]
        self._decompress = zstandard.ZstdDecompressor().decompress

    def pages(self) -> Generator[list[T], None, None]:
        """Raises `BadBackup` where the file is not what was written, or is not there."""
        try:
            handle = os.open(self._file, os.O_RDONLY | os.O_NOFOLLOW)
        except FileNotFoundError:
            raise damaged(self._file, "is missing") from None
        with os.fdopen(handle, "rb") as source:
            if source.read(len(_MAGIC)) != _MAGIC:
                raise damaged(self._file, "does not begin as it should")
            while header := source.read(_HEADER.size):
                yield self._page(header, source.read(self._length(header)))

    def _length(self, header: bytes) -> int:
        if len(header) < _HEADER.size:
            raise damaged(self._file, "ends in the middle of a page")
        length: int = _HEADER.unpack(header)[0]
        if length > _LONGEST:
            raise damaged(self._file, "has a page that nobody wrote")
        return length

    def _page(self, header: bytes, page: bytes) -> list[T]:
        length, crc, items = _HEADER.unpack(header)
        if len(page) < length:
            raise damaged(self._file, "ends in the middle of a page")
        if zlib.crc32(page) != crc:
            raise damaged(self._file, "has a page whose checksum does not fit")
        try:
            clear = self._seal.unseal(page, _place(self._file, self._pages))
            found = self._decode(self._decompress(clear))
        except (zstandard.ZstdError, ValueError) as exc:
            raise damaged(self._file, f"has a page that cannot be read ({exc})") from exc
        self._pages += 1
        if len(found) != items:
            raise damaged(self._file, "has a page with another number of items")
        return found


def _place(file: Path, page: int) -> str:
    """Where a sealed page belongs: to its snapshot, file, and number."""
    snapshot = file.parent.parent if file.parent.name == "records" else file.parent
    return f"{snapshot.name} {file.name} {page}"


def damaged(file: Path, what: str) -> BadBackup:
    """The error for a file of a backup that is not what was written."""
    return BadBackup(
        f"The backup is damaged: {file} {what}.",
        hint="Restore another snapshot (`perdure bank backups` lists them), or bring this file back"
        " from a copy of the folder.",
    )

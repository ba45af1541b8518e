"""Archives that chat services let their users download: a zip, or what was in it.

Nothing is unpacked to disk. A list of conversations is read one by one, however long it is: memory
is bounded by the longest conversation.
"""

from __future__ import annotations

import re
import zipfile
import zlib
from collections.abc import Callable, Iterator
from fnmatch import fnmatch
from pathlib import Path, PurePosixPath
from typing import BinaryIO, cast

import msgspec

from perdure.importers.message_parts import mapping
from perdure.importers.transcript_source import MAX_LINE, Broken, decode

_CHUNK = 4 * 1024 * 1024
#: A member that is larger, or so much larger than it is in the archive, is no export of anybody.
_MOST, _RATIO = 16 * 1024**3, 500
#: What stands between two brackets: strings are skipped, an unfinished one is not.
_between = re.compile(
    rb'[^"{}\[\]]*+(?:"[^"\\]*+(?:\\.[^"\\]*+)*+"[^"{}\[\]]*+)*+', re.DOTALL
).match
#: How a zip begins, and what it says of a member that takes a password.
_MAGIC, _ENCRYPTED = b"PK\3\4", 1
#: What stands around a list, and between what is in it.
_AROUND, _COMMAS = b"\xef\xbb\xbf \t\r\n", b" \t\r\n,"
_FAULTS = (
    EOFError, NotImplementedError, RuntimeError, ValueError, zipfile.BadZipFile, zlib.error
)  # fmt: skip


class ExportArchive:
    """The files of an export. Raises OSError wherever it cannot be read. Close it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._zip: zipfile.ZipFile | None = None
        if path.is_dir():
            found = sorted(file for file in path.rglob("*") if file.is_file())
            self.names = [file.relative_to(path).as_posix() for file in found]
        elif zipfile.is_zipfile(path):
            try:
                self._zip = zipfile.ZipFile(path)
            except _FAULTS as exc:
                raise OSError(str(exc)) from exc
            self.names = [info.filename for info in self._zip.infolist() if not info.is_dir()]
        elif _begins_as_zip(path):
            raise OSError("it is a zip that is cut off or damaged: download it again")
        else:
            self.names = [path.name]

    def close(self) -> None:
        if self._zip is not None:
            self._zip.close()

    def matching(self, pattern: str) -> list[str]:
        """Files with such a name, in any folder; a file that was named has any name."""
        if self._zip is None and not self.path.is_dir():
            return self.names
        return [name for name in self.names if fnmatch(PurePosixPath(name).name, pattern)]

    def read(self, name: str, limit: int) -> bytes | None:
        """All of a file; None if it is longer than that."""
        with self._open(name) as file:
            data = _reading(file)(limit + 1)
        return data if len(data) <= limit else None

    def documents(self, name: str, inside: str) -> Iterator[bytes | None]:
        """The objects in a file's list, or in the list `inside` of its object, or the object.
        None stands for one that is too long.
        """
        with self._open(name) as file:
            read = _reading(file)
            head = read(_CHUNK)
            if not head.lstrip(_AROUND).startswith(b"{"):
                yield from elements(head, read)
                return
            data = head + read(MAX_LINE)
            if len(data) > MAX_LINE:
                yield None
                return
            try:
                listed = mapping(decode(data)).get(inside)
            except Broken as exc:
                raise OSError(str(exc)) from exc
            yield from map(msgspec.json.encode, listed) if isinstance(listed, list) else [data]

    def _open(self, name: str) -> BinaryIO:
        if self._zip is None:
            return (self.path / name if self.path.is_dir() else self.path).open("rb")
        info = self._zip.getinfo(name)
        if info.file_size > min(_MOST, max(_CHUNK, info.compress_size) * _RATIO):
            raise OSError(f"{name} would be {info.file_size:,} bytes: too many for what it is")
        if info.flag_bits & _ENCRYPTED:
            raise OSError("it is encrypted: unpack it, and name the folder")
        try:
            return cast("BinaryIO", self._zip.open(info))
        except _FAULTS as exc:
            raise OSError(f"{name}: {exc}") from exc


def _begins_as_zip(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(len(_MAGIC)) == _MAGIC


def _reading(file: BinaryIO) -> Callable[[int], bytes]:
    def read(size: int) -> bytes:
        try:
            return file.read(size)
        except _FAULTS as exc:
            raise OSError(str(exc)) from exc

    return read


def elements(  # noqa: C901, PLR0912  # one scanner: its branches are the states of a list
    head: bytes, read: Callable[[int], bytes], limit: int = MAX_LINE
) -> Iterator[bytes | None]:
    """The objects in a JSON list; None for one that is longer than the limit, and ``null`` for what
    is no object. Raises OSError if it is no list, if it is cut off or something follows its end:
    behind what is whole in it.
    """
    buffer, at, depth, number = bytearray(_first(head, read)), 0, 0, 0
    if not buffer.startswith(b"["):
        raise OSError("it is no list of conversations")
    start = -1  # where the object begins that is being read; -1: between two
    is_long = is_other = False  # too long; no object, between two
    while buffer:
        while at < len(buffer):
            passed, at = at, cast("re.Match[bytes]", _between(buffer, at)).end()
            if depth == 1 and start < 0 and not is_long:
                is_other = is_other or bool(buffer[passed:at].strip(_COMMAS))
            if at == len(buffer) or buffer[at] == 0x22:  # a string that goes on
                break
            opens = buffer[at] in b"{["
            if is_other and depth == 1:
                number, is_other = number + 1, False
                yield b"null"
            if opens and depth == 1:
                start = at
            depth += 1 if opens else -1
            at += 1
            if not opens and depth == 1 and (start >= 0 or is_long):
                number += 1
                is_long = is_long or at - start > limit
                yield None if is_long else bytes(buffer[start:at])
                start, is_long = -1, False
            elif depth < 1:
                if _first(bytes(buffer[at:]), read):
                    raise OSError(f"there is more behind object {number}, the last of its list")
                return
        if start >= 0 and len(buffer) - start > limit:
            start, is_long = -1, True
        passed = at if start < 0 else start
        if start < 0 and len(buffer) - at > limit:
            raise OSError(f"a string behind object {number} has no end")
        del buffer[:passed]
        at, start = at - passed, 0 if start >= 0 else -1
        more = read(_CHUNK)
        if not more:
            break
        buffer += more
    raise OSError(f"it is cut off behind object {number}")


def _first(data: bytes, read: Callable[[int], bytes]) -> bytes:
    """The data, or what is read behind it, without the blanks before it; nothing at the end."""
    while data and not (found := data.lstrip(_AROUND)):
        data = read(_CHUNK)
    return found if data else b""

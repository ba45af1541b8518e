"""The spool: lines that shell hooks append and Python reads later.

A hook appends one short line to ``<folder>/spool/<name>`` and is done. A reader moves that file
aside and reads from there, so that writers never wait. A writer that opened the file before it was
moved may still write to it: a file that was moved is read again, and deleted only a minute later.

Lines are read at least once. A reader keeps how far it has read, `SpoolPosition`, in the
transaction that keeps what the lines say: then each line counts once, also after ``kill -9``.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TypeAlias

import msgspec

#: What a line begins with: its version.
_MARK = "1\t"
#: Seconds for which a file is kept after it was moved, and a torn line may still become whole.
_GRACE = 60.0
#: Bytes of a file that are read at once: a spool that nobody read for years is read in parts.
_READ = 4 * 1024 * 1024

#: For each file that was moved aside, how many bytes of it were read.
SpoolPosition: TypeAlias = Mapping[str, int]


class SpoolLine(msgspec.Struct, frozen=True):
    """One line. `key` is its own: the same whenever it is read again."""

    key: str
    #: Seconds since 1970; 0 from a shell that does not know the time.
    time: int
    #: The git hook, or the client's event.
    name: str
    fields: tuple[str, ...]


class SpoolReading(msgspec.Struct, frozen=True):
    """New lines, oldest first, and the position behind them."""

    lines: tuple[SpoolLine, ...]
    position: dict[str, int]
    #: Lines that were torn, by a full disk or a crash.
    damaged: int = 0


class HookSpool:
    """One spool of a project: ``git`` or ``clients``."""

    def __init__(self, folder: Path, name: str) -> None:
        self.folder = folder / "spool"
        self.file = self.folder / name

    def make(self) -> None:
        """Make the folder: hooks write only where it is."""
        self.folder.mkdir(parents=True, exist_ok=True)

    def is_empty(self) -> bool:
        """Whether nothing was written since the last reading; a hint."""
        try:
            return self.file.stat().st_size == 0
        except OSError:
            return True

    def read(self, position: SpoolPosition) -> SpoolReading:
        """What was written behind a position. Other readers may read the same."""
        self._move_aside()
        lines: list[SpoolLine] = []
        reached: dict[str, int] = {}
        damaged = 0
        for path in self._moved():
            at = position.get(path.name, 0)
            try:
                with path.open("rb") as file:
                    file.seek(at)
                    data = file.read(_READ)
            except OSError:
                continue  # another reader has deleted it: it was read
            whole = data.rfind(b"\n") + 1
            if not whole and len(data) == _READ:
                whole = _READ  # no hook writes such a line
            elif whole < len(data) < _READ and _age(path) > _GRACE:
                whole = len(data)  # whoever wrote this does not go on
            for line in data[:whole].splitlines(keepends=True):
                text = line.decode(errors="surrogateescape").rstrip("\n")
                found = _parse(f"{path.name}:{at}", text)
                at += len(line)
                if found is not None:
                    lines.append(found)
                elif text:
                    damaged += 1
            reached[path.name] = at
        return SpoolReading(tuple(lines), reached, damaged)

    def discard(self, position: SpoolPosition) -> None:
        """Delete files that were read to their end, a while after they were moved aside. Call it
        when the position is safe in the store.
        """
        for path in self._moved():
            try:
                if _age(path) > _GRACE and position.get(path.name, -1) >= path.stat().st_size:
                    path.unlink()
            except OSError:
                continue  # another reader was first

    def _move_aside(self) -> None:
        if self.is_empty():
            return
        name = f"{self.file.name}.{time.time_ns():016x}.{secrets.token_hex(4)}"
        try:
            self.file.rename(self.folder / name)
        except OSError:
            return  # another reader was first, or the disk is read-only

    def _moved(self) -> list[Path]:
        """In the order in which they were moved: their names begin with the time."""
        return sorted(self.folder.glob(f"{self.file.name}.*"))


def _age(path: Path) -> float:
    try:
        return time.time() - int(path.name.split(".")[-2], 16) / 1e9
    except (ValueError, IndexError):
        return 0.0


def _parse(key: str, line: str) -> SpoolLine | None:
    if not line.startswith(_MARK):
        return None
    _, moment, *fields = line.split("\t")
    if not fields or not fields[0] or not moment.isdigit():
        return None
    return SpoolLine(key, int(moment), fields[0], tuple(fields[1:]))

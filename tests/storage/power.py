"""A disk that forgets what was not synced: for SQLite, as a VFS.

The file system keeps what a program has written in memory, and loses it with the power unless the
program asked it to sync. Here every write goes to the real file, and a second time into a note;
a sync carries the notes of its file over into what would be left after the power was cut.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import apsw


class Disk(apsw.VFS):
    """The default VFS of SQLite while the context lasts."""

    def __init__(self) -> None:
        self._moment = threading.Lock()  # writers and checkpoints have threads of their own
        self._synced: dict[str, bytearray] = {}
        self._noted: dict[str, list[Callable[[bytearray], None]]] = {}
        self._deleted: set[str] = set()  # and back again, unless their folder is synced
        #: How often each file was synced.
        self.syncs: Counter[str] = Counter()
        super().__init__("forgetful", "unix", makedefault=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        self.unregister()

    def after_power_loss(self, bank: Path, folder: Path) -> Path:
        """Put what would be left of a bank into a folder; returns its new path."""
        with self._moment:
            left = {name: bytes(content) for name, content in self._synced.items()}
        folder.mkdir()
        for name, content in left.items():
            if name.startswith(str(bank)):
                (folder / Path(name).name).write_bytes(content)
        return folder / bank.name

    def xOpen(self, name: Any, flags: list[int]) -> apsw.VFSFile:  # noqa: N802  # SQLite's name
        return _File(self, name, flags)

    def xDelete(self, name: str, sync_folder: bool) -> None:  # noqa: N802
        super().xDelete(name, sync_folder)
        with self._moment:
            self._noted.pop(name, None)
            self._deleted.add(name)
            if sync_folder:
                self._sync_folder()

    def note(self, name: str, change: Callable[[bytearray], None]) -> None:
        with self._moment:
            self._noted.setdefault(name, []).append(change)

    def sync(self, name: str) -> None:
        with self._moment:
            if name in self._deleted:  # a new one of this name
                self._deleted.discard(name)
                self._synced.pop(name, None)
            if name not in self._synced:
                self._sync_folder()  # as SQLite does it for a new file
            content = self._synced.setdefault(name, bytearray())
            for change in self._noted.pop(name, ()):
                change(content)
            self.syncs[name] += 1

    def _sync_folder(self) -> None:
        for name in self._deleted:
            self._synced.pop(name, None)
        self._deleted.clear()


class _File(apsw.VFSFile):
    def __init__(self, disk: Disk, name: Any, flags: list[int]) -> None:
        self._disk = disk
        self._name = name.filename() if isinstance(name, apsw.URIFilename) else str(name)
        super().__init__("unix", name, flags)

    def xWrite(self, data: bytes, offset: int) -> None:  # noqa: N802
        super().xWrite(data, offset)
        kept = bytes(data)

        def write(content: bytearray) -> None:
            content.extend(bytes(max(0, offset - len(content))))
            content[offset : offset + len(kept)] = kept

        self._disk.note(self._name, write)

    def xTruncate(self, size: int) -> None:  # noqa: N802
        super().xTruncate(size)
        self._disk.note(self._name, lambda content: content.__delitem__(slice(size, None)))

    def xSync(self, flags: int) -> None:  # noqa: N802
        super().xSync(flags)
        self._disk.sync(self._name)

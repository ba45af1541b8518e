"""SQLite databases of other programs: read, never written, also while their owner has them open.

A database in WAL mode that nobody has open is taken as it is, so that nothing is made beside it.
One that is in use is read as any reader reads it; copied files whose log has no index, in a copy.
"""

from __future__ import annotations

import shutil
import tempfile
import weakref
from pathlib import Path
from typing import Any, cast
from urllib.parse import quote

import apsw

#: Milliseconds to wait while the owner writes.
_PATIENCE = 5_000
_MAGIC = b"SQLite format 3\0"
#: Where the header says how it is written, and what it says of a database with a log beside it.
_WRITTEN, _WITH_LOG = 18, 2


def is_sqlite(path: Path) -> bool:
    """Raises OSError."""
    with path.open("rb") as file:
        return file.read(len(_MAGIC)) == _MAGIC


class ForeignDatabase:
    """A connection to somebody's database. Raises OSError wherever it cannot be read."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with path.open("rb") as file:
            header = file.read(_WRITTEN + 1)
        if not header.startswith(_MAGIC):
            raise OSError("it is no SQLite database")
        log, index = (path.with_name(f"{path.name}-{suffix}") for suffix in ("wal", "shm"))
        options = "mode=ro"
        if header[_WRITTEN:] == bytes([_WITH_LOG]):
            if not log.exists() or not log.stat().st_size:
                options = "immutable=1"
            elif not index.exists():
                path = self._copied(path, log)
        flags = apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI
        try:
            self._database = apsw.Connection(f"file:{quote(str(path.absolute()))}?{options}", flags)
            self._database.set_busy_timeout(_PATIENCE)
        except apsw.Error as exc:
            raise OSError(str(exc)) from exc

    def rows(self, sql: str, *values: str | int | None) -> list[tuple[Any, ...]]:
        """All of them: a question that stays open would keep its owner from writing."""
        try:
            return cast("list[tuple[Any, ...]]", self._database.execute(sql, values).fetchall())
        except apsw.Error as exc:
            raise OSError(str(exc)) from exc

    def columns(self, table: str) -> set[str]:
        """Of a table; none if it is not there."""
        return {name for (name,) in self.rows("SELECT name FROM pragma_table_info(?)", table)}

    def _copied(self, path: Path, log: Path) -> Path:
        folder = Path(tempfile.mkdtemp(prefix="perdure-import-"))
        weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
        shutil.copyfile(log, folder / log.name)
        return Path(shutil.copyfile(path, folder / path.name))

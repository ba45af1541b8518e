"""Making deleted content unreadable in the files of a bank.

SQLite leaves what was deleted in free pages, in free parts of pages, and in the write-ahead log.
``PRAGMA secure_delete`` zeroes the first two at every delete, but not the copies that a page keeps
of rows which moved to its neighbour when the tree was balanced: in a third of the histories that
were tried, a deleted row could still be read. So nothing is done at deletes, and here everything at
once: VACUUM writes all pages anew from the rows that there are, and the log is cut to nothing.
Extensions come first: FTS5, for one, keeps words of what was withdrawn.
"""

from __future__ import annotations

import threading
import time
from pathlib import Path

import apsw

from perdure.core.errors import Unavailable
from perdure.storage.backends.sqlite import connections
from perdure.storage.backends.sqlite.extension import SQLiteExtension, remove_sidecars
from perdure.storage.extension import Extensions

#: Seconds for which our own writers are kept waiting at a time, while others still read the log.
_HOLD = 0.05
_PAUSE = 0.01


class Scrub:
    """One run, in a thread. `stop` ends it early, from another; nothing is lost then."""

    def __init__(
        self,
        path: str,
        busy: threading.Lock,
        key: bytes | None,
        extensions: Extensions[SQLiteExtension],
    ) -> None:
        self._path = path
        self._extensions = extensions
        self._key = key
        self._busy = busy
        self._stopped = False
        self._lock = threading.Lock()  # so that nobody stops a connection that is closed
        self._db: apsw.Connection | None = None

    def run(self) -> None:
        """Raises `Unavailable`, or whatever SQLite does, if it cannot be completed."""
        with self._lock:
            if self._stopped:
                return
            self._db = db = connections.connect(Path(self._path), self._key)
        try:
            # Our own writers wait for the lock below; those of other processes for SQLite's.
            with self._busy:
                for extension in self._extensions:
                    extension.scrub(db)
                remove_sidecars(Path(self._path))
                db.execute("VACUUM")
            self._cut(db)
            # Again: whoever still saw what was deleted may have made one of it. Since the log was
            # cut, nobody sees it.
            remove_sidecars(Path(self._path))
        finally:
            with self._lock:
                self._db = None
                db.close()

    def stop(self) -> None:
        with self._lock:
            self._stopped = True
            if self._db is not None:
                self._db.interrupt()

    def _cut(self, db: apsw.Connection) -> None:
        """Move the log into the file and cut it, as soon as nobody reads it."""
        deadline = time.monotonic() + connections.PATIENCE
        db.set_busy_timeout(int(_HOLD * 1_000))
        while not self._stopped:
            try:
                with self._busy:
                    db.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
            except apsw.BusyError as exc:
                if time.monotonic() > deadline:
                    raise Unavailable(
                        f"Others kept reading the log of the bank {self._path}: deleted content"
                        " may still be in it.",
                        hint="Try again; look for a process that reads for long.",
                    ) from exc
                time.sleep(_PAUSE)
            else:
                return

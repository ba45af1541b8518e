"""Checkpoints: the write-ahead log moves into the database file, in its own thread."""

from __future__ import annotations

import threading
import time
from contextlib import closing, suppress
from pathlib import Path

import apsw

from perdure.core.errors import Unavailable
from perdure.storage.backends.sqlite import connections
from perdure.storage.backends.sqlite.extension import SQLiteExtension, remove_sidecars
from perdure.storage.extension import Extensions

#: Pages of a log that is too long to be left to the next time (8 MB).
LONG = 2_000


class Checkpointer:
    """Moves the write-ahead log into the database file, beside the writers. Copying and fsync
    run while others write. The rest is copied while the writer pauses, so that the log is
    empty and starts over: that bounds its size under any load, except while a snapshot is
    open (see `snapshots`).
    """

    def __init__(self, path: str, busy: threading.Lock, key: bytes | None = None) -> None:
        self._path = path
        self._key = key
        self._busy = busy
        self._wanted = threading.Event()
        self._stopping = False
        self._thread: threading.Thread | None = None
        #: Meanwhile nobody writes on the event loop: a write to a file that is being synced waits,
        #: and so does whoever wants a lock that this thread is waiting for.
        self.at_work = False

    def wake(self) -> None:
        self.at_work = True
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(
                target=self._serve, name="perdure-checkpoint", daemon=True
            )
            self._thread.start()
        self._wanted.set()

    def stop(self) -> None:
        self._stopping = True
        self._wanted.set()
        if self._thread is not None:
            self._thread.join()

    def _serve(self) -> None:
        db: apsw.Connection | None = None
        try:
            while True:
                self._wanted.wait()
                self._wanted.clear()
                if self._stopping:
                    return
                # Another process at it, or a full disk, is no matter: it is asked for again.
                with suppress(apsw.Error):
                    if db is None:
                        db = connections.connect(Path(self._path), self._key)
                    self._checkpoint(db)
                self.at_work = False
        finally:
            self.at_work = False
            if db is not None:
                db.close()

    def _checkpoint(self, db: apsw.Connection) -> None:
        # A connection that has read nothing yet does not know of a log, and would do nothing.
        list(db.execute("SELECT 1 FROM sqlite_schema LIMIT 1"))
        db.set_busy_timeout(0)
        db.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
        with self._busy:
            frames, copied = db.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
            # Where not all can be copied, somebody reads an older state, such as for a backup.
            # To insist would keep everybody from writing until that ends: the log grows instead.
            if frames >= LONG and copied >= frames:
                # Other processes write before it can start over: make them wait for a moment.
                db.set_busy_handler(_insist)
                db.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_RESTART)


def _insist(tries: int) -> bool:
    """Try for the lock more often than writers, which wait longer each time."""
    time.sleep(0.000_5)
    return tries < 10_000


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


#: Pages of a small bank (8 MB), at most.
_SMALL = 2_048
#: Free pages that are worth it, at least, and as a share of all.
_FEW, _SHARE = 16, 1 / 32


def is_due(db: apsw.Connection) -> bool:
    """Whether the file is small, and much of it free. Cheap."""
    pages, free = db.pragma("page_count"), db.pragma("freelist_count")
    return bool(pages <= _SMALL and free >= max(_FEW, pages * _SHARE))


def shrink(path: Path, key: bytes | None) -> None:
    """Rewrite the file without free pages, unless anybody is writing. Writers wait meanwhile;
    nothing is lost if the process dies. Never raises SQLite's errors (full disk, damaged
    file).
    """
    with suppress(apsw.Error), closing(connections.connect(path, key)) as db:
        db.set_busy_timeout(0)
        db.pragma("temp_store", "MEMORY")  # no copy of the bank in a folder of others
        db.execute("VACUUM")

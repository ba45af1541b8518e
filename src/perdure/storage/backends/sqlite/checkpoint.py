"""Checkpoints: the write-ahead log moves into the database file, in a thread of its own."""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from pathlib import Path

import apsw

from perdure.storage.backends.sqlite import connections

#: Pages of a log that is too long to be left to the next time (8 MB).
LONG = 2_000


class Checkpointer:
    """Moves the write-ahead log into the database file, beside the writers.

    The long part, copying and fsync, runs while others write. What was written meanwhile is
    copied while the writer pauses, so that the log is empty for a moment and starts over: that
    bounds its size under any load, except while somebody holds a snapshot (see `snapshots`).
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
    """Try for the lock more often than those who write: they wait longer each time."""
    time.sleep(0.000_5)
    return tries < 10_000

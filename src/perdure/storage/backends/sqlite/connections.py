"""Connections to the file of a bank, and how they are set up."""

from __future__ import annotations

import errno
import os
import platform
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import apsw

from perdure.core.errors import AccessDenied, Unavailable
from perdure.storage.backends.sqlite import encryption

#: Seconds to wait for the lock of another process, without a deadline.
PATIENCE = 30.0


def make_file(path: Path) -> None:
    # Memories are private: nobody else may read a new bank. The log files inherit this.
    # An existing file is not opened: closing it again would drop the locks that this process holds.
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
    except FileExistsError:
        if path.is_dir():
            raise AccessDenied(
                f"The bank {path} cannot be opened: Is a directory.",
                hint="Name a file in it.",
            ) from None
        if not os.access(path, os.R_OK | os.W_OK):
            raise AccessDenied(
                f"The bank {path} may not be read and written.",
                hint="Choose a file in a folder that you may write to.",
            ) from None
    except OSError as exc:
        missing = isinstance(exc, FileNotFoundError)
        if missing and not path.parent.is_dir():
            raise AccessDenied(
                f"The folder of the bank {path} does not exist.", hint="Make it first."
            ) from exc
        if missing or isinstance(exc, PermissionError) or exc.errno == errno.EROFS:
            # /proc says of every new file that it is not there.
            raise AccessDenied(
                f"The folder of the bank {path} cannot be written.",
                hint="Choose a file in a folder that you may write to.",
            ) from exc
        raise AccessDenied(
            f"The bank {path} cannot be opened: {exc.strerror}.",
            hint="Choose a file in a folder that you may write to.",
        ) from exc


def connect(path: Path, key: bytes | None = None, *, vfs: str | None = None) -> apsw.Connection:
    """A connection that survives kill -9 and leaves checkpoints to the checkpointer. With a key,
    the file is encrypted; see `encryption`.
    """
    db = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READWRITE, vfs=vfs)
    try:
        # If this is no bank, or not its key, its log must not be touched when this is closed.
        db.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
        if key is not None:
            encryption.unlock(db, key)
        db.set_busy_timeout(int(PATIENCE * 1_000))
        db.pragma("synchronous", "NORMAL")  # reads the file
        db.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 0)
        db.pragma("wal_autocheckpoint", 0)
        db.pragma("journal_size_limit", 8 * 1024 * 1024)
        db.pragma("cache_size", -16_000)
    except BaseException:
        db.close()
        raise
    return db


def connect_to_read(path: Path, key: bytes | None = None) -> apsw.Connection:
    db = connect(path, key)
    # A page that is not in the cache is looked at where the kernel has it, without a copy.
    db.pragma("mmap_size", 1 << 28)
    db.pragma("query_only", True)
    return db


def use_wal(db: apsw.Connection, path: str) -> None:
    """Turn on the write-ahead log; SQLite does not wait for others that do so."""
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            if db.pragma("journal_mode", "wal") == "wal":
                return
        except apsw.BusyError:
            pass
        if time.monotonic() > deadline:
            raise Unavailable(
                f"The bank {path} is locked by another process.", hint="Close it there, try again."
            )
        time.sleep(0.01)


def place(path: Path) -> tuple[int, int] | None:
    """Identifies the file at the path; it may be replaced."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def identity(path: Path) -> str | None:
    """Identifies the file at the path, across machines."""
    try:
        machine = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:  # not Linux
        machine = f"{platform.node()}/{uuid.getnode()}"
    found = place(path)
    return None if found is None else f"sqlite:{machine}:{found[0]}:{found[1]}"


@contextmanager
def snapshot(db: apsw.Connection) -> Iterator[None]:
    """Several statements that see the same state."""
    db.execute("BEGIN")
    try:
        yield
    finally:
        if db.in_transaction:
            db.execute("COMMIT")

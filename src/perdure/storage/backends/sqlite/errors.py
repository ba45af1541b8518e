"""Errors of SQLite as errors of Perdure."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import apsw
import msgspec

from perdure.core.errors import (
    AccessDenied,
    Corrupted,
    DeadlineExceeded,
    NotAStore,
    PerdureError,
    StorageError,
    StorageFull,
    Unavailable,
)

#: What a disk without room causes besides `FullError`: limits on file sizes, and no index of the
#: write-ahead log, which even readers need.
_UNWRITABLE = {apsw.SQLITE_IOERR_WRITE, apsw.SQLITE_IOERR_SHMSIZE}


#: What reading a damaged file can raise: text that is none, values of another type.
DAMAGE = (apsw.CorruptError, TypeError, ValueError, msgspec.DecodeError)
#: What a read can raise at all.
READING = (apsw.Error, *DAMAGE)


@contextmanager
def translated(path: str) -> Iterator[None]:
    """Turns errors of reading into Perdure's."""
    try:
        yield
    except READING as exc:
        raise translate(exc, path) from exc


def translate(exc: Exception, path: str) -> PerdureError:
    match exc:
        case apsw.BusyError() | apsw.LockedError():
            return Unavailable(
                f"The bank {path} is locked by another process.",
                hint="Try again; if it stays locked, look for a process that holds it open.",
            )
        case apsw.FullError():
            return StorageFull(
                f"There is no room left for the bank {path}; nothing was written.",
                hint="Free some disk space and repeat the call.",
            )
        case apsw.CorruptError() | TypeError() | ValueError() | msgspec.DecodeError():
            return Corrupted(
                f"The bank {path} is damaged: {exc}.",
                hint="Run `perdure verify` to see which records; restore them from a backup.",
            )
        case apsw.NotADBError():
            return NotAStore(
                f"{path} is not a bank (not a SQLite database).", hint="Choose another path."
            )
        case (
            apsw.ReadOnlyError() | apsw.CantOpenError() | apsw.PermissionsError() | apsw.AuthError()
        ):
            return AccessDenied(
                f"The bank {path} may not be opened or written.",
                hint="Check that its folder exists and that you may write there.",
            )
        case apsw.InterruptError():
            return DeadlineExceeded(
                "The query did not end in the time allowed.", hint="Allow more."
            )
        case apsw.IOError() if getattr(exc, "extendedresult", 0) in _UNWRITABLE:
            return StorageFull(
                f"The bank {path} could not be written: {exc}.",
                hint="Check that the disk is neither full nor failing.",
            )
        case _:
            return StorageError(
                f"SQLite failed on {path}: {exc}.",
                hint="Run `perdure verify` and `perdure doctor`.",
            )

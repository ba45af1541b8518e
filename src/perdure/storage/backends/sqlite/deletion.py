"""Taking the file of a bank off the disk, with what lies beside it."""

from __future__ import annotations

from pathlib import Path

import apsw

from perdure.core.errors import Unavailable
from perdure.storage.backends.sqlite import catalog
from perdure.storage.backends.sqlite.errors import translated
from perdure.storage.backends.sqlite.extension import remove_sidecars

_HEADER = b"SQLite format 3\0"


def is_clear(path: Path) -> bool:
    """Whether it is a SQLite file that is not encrypted. Raises OSError."""
    with path.open("rb") as file:
        return file.read(len(_HEADER)) == _HEADER


def delete_bank(path: Path) -> None:
    """Delete the file of a bank, its logs, and what was made from it. What lies in the place of its
    large artifacts stays. An encrypted file is believed to be a bank that nobody has open.

    Raises `NotAStore` for the file of another program, `Unavailable` if the bank is open somewhere,
    OSError. Nothing was deleted then.
    """
    if path.stat().st_size and is_clear(path):
        with translated(str(path)):
            _check_alone(path)
    remove_sidecars(path)
    for name in ("-wal", "-shm", "-journal", ".converting"):
        path.with_name(f"{path.name}{name}").unlink(missing_ok=True)
    path.unlink()


def _check_alone(path: Path) -> None:
    db = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READWRITE)
    try:
        catalog.recognize(db, str(path))
        db.pragma("locking_mode", "EXCLUSIVE")
        db.execute("BEGIN EXCLUSIVE")
        db.execute("ROLLBACK")
    except apsw.BusyError:
        raise Unavailable(
            f"Somebody has the bank {path} open, so it stays.",
            hint="End the programs that use it, and try again.",
        ) from None
    finally:
        db.close()

"""Taking the file of a bank off the disk, with what lies beside it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import apsw

from perdure.core.errors import NotAStore, Unavailable
from perdure.storage.backends.sqlite import catalog, encryption
from perdure.storage.backends.sqlite.errors import translated
from perdure.storage.backends.sqlite.extension import remove_sidecars


def check_bank(path: Path, key: bytes | None = None) -> None:
    """Look whether the file is a bank that `delete_bank` would delete. Raises `NotAStore` for
    anything that is none, `KeyRefused` for a key that is not the file's, or missing, `Unsupported`,
    `NewerSchema`, `Unavailable` for a link, OSError.
    """
    with _opened(path, key):
        pass


def delete_bank(path: Path, key: bytes | None = None) -> None:
    """Delete the file of a bank, its logs, and what was made from it. What lies in the place of its
    large artifacts stays.

    Raises what `check_bank` raises, and `Unavailable` if the bank is open somewhere. Nothing was
    deleted then.
    """
    with _opened(path, key) as db:
        _check_alone(db, path)
    remove_sidecars(path)
    for name in ("-wal", "-shm", "-journal", ".converting"):
        path.with_name(f"{path.name}{name}").unlink(missing_ok=True)
    path.unlink()


@contextmanager
def _opened(path: Path, key: bytes | None) -> Iterator[apsw.Connection]:
    if path.is_symlink():
        raise Unavailable(
            f"{path} is a link to {path.resolve()}.", hint="Delete both by hand, if it is a bank."
        )
    path.stat()
    if not path.is_file():
        raise _no_bank(path)
    with translated(str(path)):
        # Which key it has is found without opening it: see `encryption`.
        if not encryption.look(path, key) and not encryption.is_clear(path):
            raise _no_bank(path)
        db = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READWRITE)
        try:
            if key is not None:
                encryption.unlock(db, key)
            if not catalog.recognize(db, str(path)):
                raise _no_bank(path)
            yield db
        finally:
            db.close()


def _no_bank(path: Path) -> NotAStore:
    return NotAStore(f"{path} is not a bank.", hint="Delete it by hand, if nobody needs it.")


def _check_alone(db: apsw.Connection, path: Path) -> None:
    try:
        db.pragma("locking_mode", "EXCLUSIVE")
        db.execute("BEGIN EXCLUSIVE")
        db.execute("ROLLBACK")
    except apsw.BusyError:
        raise Unavailable(
            f"Somebody has the bank {path} open, so it stays.",
            hint="End the programs that use it, and try again.",
        ) from None

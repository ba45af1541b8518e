"""Banks whose whole file is encrypted, by SQLite3 Multiple Ciphers (apsw-sqlite3mc).

Every page of the file and its logs is encrypted and authenticated (ChaCha20-Poly1305) under one
key of 32 random bytes; no password is stretched. Visible are only that there is a bank, its size
and its times of writing. Memory, with temporary tables, is not protected.

The first 16 bytes, meant for a password's salt, are a fingerprint of the key, so a wrong key is
found without opening the file. Opening would be too late: with a wrong key SQLite understands
nothing in the log of a killed process, and may remove it.
"""

from __future__ import annotations

import hmac
import os
from pathlib import Path

import apsw

from perdure.core.errors import (
    Corrupted,
    InvalidInput,
    KeyRefused,
    NotAStore,
    Unavailable,
    Unsupported,
)
from perdure.storage.backends.sqlite import catalog
from perdure.storage.backends.sqlite.errors import translate
from perdure.storage.backends.sqlite.extension import remove_sidecars

KEY_BYTES = 32

_PLAIN = b"SQLite format 3\0"
#: What follows page size and file format in each bank, encrypted or not, at offset 20: 32 bytes at
#: the end of each page for nonce and tag, and three constants of SQLite's.
_ENCRYPTED = bytes((32, 64, 32, 32))
_FINGERPRINT = b"the file of a perdure bank"
#: Milliseconds that others have to close the bank in, before it is converted.
_PATIENCE = 2_000
_ZEROS = bytes(1 << 20)


def check_key(key: bytes | None) -> bytes | None:
    """Returns the key; the error for an invalid one does not show it."""
    if key is not None and len(key) != KEY_BYTES:
        raise InvalidInput(
            f"The key of a bank's file is {KEY_BYTES} bytes.", hint="Derive it from the master key."
        )
    return key


def unlock(db: apsw.Connection, key: bytes) -> None:
    db.pragma("key", _spelled(key))
    db.pragma("temp_store", "MEMORY")  # temporary files would not be encrypted


def look(path: Path, key: bytes | None) -> bool:
    """Whether the file has the key's fingerprint. It is not opened as a database, nor changed.
    Raises `KeyRefused` if the key is wrong, missing or not needed; `Unsupported` if this
    installation cannot use keys.
    """
    if key is not None:
        _check_build()
    beginning = _beginning(path)
    if not beginning:
        return False  # a bank that is to be made
    encrypted = beginning[20:24] == _ENCRYPTED and not beginning.startswith(_PLAIN)
    if key is None:
        if encrypted:
            raise KeyRefused(
                f"The file of the bank {path} is encrypted, and no key was given.",
                hint="Give the master key that it was encrypted with, and turn on the encryption"
                " of the whole file.",
            )
    elif beginning.startswith(_PLAIN):
        raise KeyRefused(
            f"The file of the bank {path} is not encrypted, but a key for it was given.",
            hint="Encrypt it with perdure.storage.backends.sqlite.encryption.encrypt_file, or turn"
            " off the encryption of the whole file.",
        )
    elif encrypted and beginning[:16] != _fingerprint(key):
        raise KeyRefused(
            f"The file of the bank {path} was encrypted with another key; nothing was changed.",
            hint="Check which master key is used: its file, variable or callable.",
        )
    return encrypted


def is_clear(path: Path) -> bool:
    """Whether it is a file of SQLite's that is not encrypted."""
    return _beginning(path).startswith(_PLAIN)


def damaged(path: Path) -> Corrupted:
    """The error for a file that has the key's fingerprint, but cannot be read with it."""
    return Corrupted(
        f"The bank {path} is damaged: its first page cannot be decrypted.",
        hint="Restore it from a backup.",
    )


def encrypt_file(path: Path, key: bytes) -> None:
    """Encrypt the file of a bank that is in clear.

    A copy beside it, which needs as much room again, replaces it when it is complete, checked and
    on disk: a killed process leaves the one or the other. The old file is overwritten with zeros;
    what disks, file system snapshots or backups keep of it is out of reach.

    Raises `Unavailable` if the bank is open somewhere; nothing was changed then.
    """
    _convert(path, None, check_key(key))


def rekey_file(path: Path, key: bytes, new_key: bytes) -> None:
    """Encrypt the file of a bank with another key; see `encrypt_file`."""
    _convert(path, check_key(key), check_key(new_key))


def decrypt_file(path: Path, key: bytes) -> None:
    """Keep the file of an encrypted bank in clear; see `encrypt_file`."""
    _convert(path, check_key(key), None)


def _convert(path: Path, key: bytes | None, new_key: bytes | None) -> None:
    _check_build()
    path = path.resolve()
    look(path, key)
    copy = path.with_name(f"{path.name}.converting")
    copy.unlink(missing_ok=True)  # of somebody who was killed
    try:
        db = _alone(path, key)
        try:
            _copy(db, copy, new_key, path.stat().st_mode)
            _check(copy, new_key)
            _replace(path, copy)
        finally:
            db.close()
    except apsw.Error as exc:
        # Not chained, and without its text: that may hold the address of the copy, with the key.
        raise translate(type(exc)("it could not be copied"), str(path)) from None
    finally:
        copy.unlink(missing_ok=True)


def _check_build() -> None:
    if not hasattr(apsw, "mc_version"):
        raise Unsupported(
            "Encrypting the whole file of a bank needs another build of SQLite: apsw-sqlite3mc.",
            hint="Run: pip uninstall apsw; pip install apsw-sqlite3mc",
        )


def _alone(path: Path, key: bytes | None) -> apsw.Connection:
    """A connection to a bank that nobody else has open, or can open while it lasts."""
    flags = apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_URI
    db = apsw.Connection(str(path), flags=flags)
    try:
        if key is not None:
            unlock(db, key)
        db.set_busy_timeout(_PATIENCE)
        if not catalog.recognize(db, str(path)):
            raise NotAStore(f"{path} is empty.", hint="Open it as a bank: it is made with its key.")
        db.pragma("locking_mode", "EXCLUSIVE")
        db.pragma("journal_mode", "DELETE")
        with db:  # takes the lock, which the mode keeps
            db.pragma("user_version", db.pragma("user_version"))
    except apsw.BusyError:
        db.close()
        raise Unavailable(
            f"Somebody has the bank {path} open, so it cannot be encrypted.",
            hint="End the programs that use it, and try again. Nothing was changed.",
        ) from None
    except BaseException:
        db.close()
        raise
    return db


def _copy(db: apsw.Connection, copy: Path, key: bytes | None, mode: int) -> None:
    os.close(os.open(copy, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
    db.execute("VACUUM INTO ?", (f"{copy.as_uri()}?key={'' if key is None else _spelled(key)}",))
    file = os.open(copy, os.O_RDWR)
    try:
        os.fsync(file)
    finally:
        os.close(file)
    copy.chmod(mode & 0o777)


def _check(copy: Path, key: bytes | None) -> None:
    look(copy, key)
    db = apsw.Connection(str(copy), flags=apsw.SQLITE_OPEN_READONLY)
    try:
        if key is not None:
            unlock(db, key)
        if db.pragma("integrity_check") != "ok" or not catalog.recognize(db, str(copy)):
            raise apsw.CorruptError("the copy is not sound")
    finally:
        db.close()


def _replace(path: Path, copy: Path) -> None:
    """Replace the bank by the copy, and overwrite the old file: a process that waits for its
    lock must not find a bank in it.
    """
    old = os.open(path, os.O_RDWR)
    try:
        size = os.fstat(old).st_size
        copy.replace(path)
        remove_sidecars(path)  # they are in clear
        _sync_folder(path.parent)
        for offset in range(0, size, len(_ZEROS)):
            os.pwrite(old, _ZEROS[: size - offset], offset)
        os.fsync(old)
    finally:
        os.close(old)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _beginning(path: Path) -> bytes:
    """The first bytes of a file, read through SQLite. Python's `open` would not do: closing the
    file would drop the locks of this process's other connections.
    """
    system = apsw.vfs_names()[0].removeprefix("multipleciphers-")
    flags = [apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_MAIN_DB, 0]
    file = apsw.VFSFile(system, str(path), flags)
    try:
        return file.xRead(24, 0)
    finally:
        file.xClose()


def _fingerprint(key: bytes) -> bytes:
    return hmac.digest(key, _FINGERPRINT, "sha256")[:16]


def _spelled(key: bytes) -> str:
    """The key and the file's first bytes, as the cipher wants them."""
    return f"raw:{key.hex()}{_fingerprint(key).hex()}"

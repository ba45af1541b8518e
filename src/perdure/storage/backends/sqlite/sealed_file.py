"""A SQLite file whose every block is encrypted (AES-XTS), with any build of SQLite.

Used for encrypted backups, through our VFS, temporary files included, so nothing is ever on disk
in clear. XTS authenticates nothing: keep an HMAC of the file, too. A key is for one file that is
written once; for a bank in use see `encryption`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import apsw

from perdure.core.clock import new_id

#: A key is two of AES-256.
KEY_BYTES = 64
#: SQLite's page size: reads and writes of pages need no other bytes.
_BLOCK = 4096


@contextmanager
def sealed_vfs(key: bytes | None) -> Iterator[str | None]:
    """The name of a VFS for files with this key, while the block lasts; None without a key."""
    if key is None:
        yield None
        return
    name = f"perdure-{new_id()}"
    vfs = _SealedVFS(name, key)
    try:
        yield name
    finally:
        vfs.unregister()


class _SealedVFS(apsw.VFS):
    def __init__(self, name: str, key: bytes) -> None:
        self._key = key
        super().__init__(name, "")

    def xOpen(self, name: Any, flags: Any) -> _SealedFile:  # noqa: N802 - SQLite's name
        return _SealedFile(name, flags, self._key)


class _SealedFile(apsw.VFSFile):
    def __init__(self, name: Any, flags: Any, key: bytes) -> None:
        from cryptography.hazmat.primitives.ciphers import algorithms

        self._cipher = algorithms.AES(key)
        super().__init__("", name, flags)

    def xRead(self, amount: int, offset: int) -> bytes:  # noqa: N802
        start, end = _blocks(offset, amount)
        return self._read(start, end)[offset - start : offset - start + amount]

    def xWrite(self, data: Any, offset: int) -> None:  # noqa: N802
        start, end = _blocks(offset, len(data))
        if end - start != len(data):  # not of a database: only temporary files are written so
            whole = bytearray(self._read(start, end).ljust(end - start, b"\0"))
            whole[offset - start : offset - start + len(data)] = data
            data = whole
        super().xWrite(self._coded(bytes(data), start, "encryptor"), start)

    def _read(self, start: int, end: int) -> bytes:
        return self._coded(super().xRead(end - start, start), start, "decryptor")

    def _coded(self, data: bytes, start: int, direction: str) -> bytes:
        from cryptography.hazmat.primitives.ciphers import Cipher, modes

        done = []
        for at in range(0, len(data), _BLOCK):
            number = ((start + at) // _BLOCK).to_bytes(16, "little")
            coder = getattr(Cipher(self._cipher, modes.XTS(number)), direction)()
            done.append(coder.update(data[at : at + _BLOCK]))
        return b"".join(done)


def _blocks(offset: int, amount: int) -> tuple[int, int]:
    return offset // _BLOCK * _BLOCK, -(-(offset + amount) // _BLOCK) * _BLOCK

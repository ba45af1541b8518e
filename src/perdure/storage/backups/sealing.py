"""Backups that only the holder of the master key can read.

A folder has a key of its own, made with its first snapshot and kept in its mark, wrapped by the
master key. Pages and artifacts are encrypted with it (AES-GCM) and bound to their places. What
stays in clear: manifests, with the names and sizes of collections, and the hashes of artifacts.
"""

from __future__ import annotations

import base64
import os
from contextlib import suppress
from typing import TYPE_CHECKING, Protocol

import msgspec

from perdure.core.errors import BadBackup, KeyRefused
from perdure.storage.encryption.master_keys import KEY_BYTES, NONCE_BYTES, MasterKeys, cipher

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

_ABOUT = b"perdure backup"
_TAG_BYTES = 16


class WrappedKey(msgspec.Struct, frozen=True):
    """The key of a folder, as its mark keeps it."""

    #: In base64.
    wrapped: str
    #: The fingerprint of the master key.
    master: str


class Seal(Protocol):
    """How bytes are kept."""

    #: What sealing adds to them.
    overhead: int

    def seal(self, data: bytes, place: str) -> bytes: ...

    def unseal(self, data: bytes, place: str) -> bytes:
        """Raises `ValueError` if they were not sealed for this place."""
        ...


class Clear:
    """As they are."""

    overhead = 0

    def seal(self, data: bytes, place: str) -> bytes:
        return data

    def unseal(self, data: bytes, place: str) -> bytes:
        return data


class Encrypted:
    """Encrypted with the key of the folder."""

    overhead = NONCE_BYTES + _TAG_BYTES

    def __init__(self, key: bytes) -> None:
        self._cipher: AESGCM = cipher(key)

    def seal(self, data: bytes, place: str) -> bytes:
        nonce = os.urandom(NONCE_BYTES)
        return nonce + self._cipher.encrypt(nonce, data, place.encode())

    def unseal(self, data: bytes, place: str) -> bytes:
        from cryptography.exceptions import InvalidTag

        with suppress(InvalidTag):
            return self._cipher.decrypt(data[:NONCE_BYTES], data[NONCE_BYTES:], place.encode())
        raise ValueError("it was not encrypted for this place")


async def new_key(masters: MasterKeys) -> tuple[WrappedKey, Encrypted]:
    """A key for a new folder. Raises `KeyRefused` if the master key cannot be had."""
    key = os.urandom(KEY_BYTES)
    master = await masters.current()
    wrapped = base64.b64encode(master.wrap(key, _ABOUT)).decode()
    return WrappedKey(wrapped, master.fingerprint), Encrypted(key)


async def opened(kept: WrappedKey | None, masters: MasterKeys | None) -> Seal:
    """What reads and writes a folder with this key.

    Raises `KeyRefused` if the master key it needs is not among those given.
    """
    if kept is None:
        return Clear()
    master = None if masters is None else await masters.named(kept.master)
    if master is None:
        raise KeyRefused(
            f"The backup is encrypted with the master key {kept.master}, which is not given.",
            hint="Set encryption.key, or name it in encryption.former_keys.",
        )
    try:
        wrapped = base64.b64decode(kept.wrapped, validate=True)
    except ValueError as exc:
        raise BadBackup(
            "The key of the backup cannot be read.",
            hint="Bring perdure-backup.json back from a copy of the folder.",
        ) from exc
    return Encrypted(master.unwrap(wrapped, _ABOUT))

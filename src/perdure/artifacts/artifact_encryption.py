"""The format of encrypted objects.

An object begins with a mark and a byte that says what follows::

    mark (8)  1  length of the key's name (2)  the key's name  salt (32)  checksum (4)  proof (16)
    then chunks: up to 1 MiB, encrypted, each with a tag of 16 bytes

    mark (8)  0  the content in clear (only if the content itself begins with the mark)

Anything else is content in clear, e.g. from before encryption was turned on; it is encrypted when
the same content is put again.

Each object has its own key, derived from the data key and its salt, so a chunk's nonce can be its
position and whether it is the last. The header is authenticated with each chunk: chunks cannot be
exchanged, left out, repeated or cut off. The content's hash is compared with the name on reading.

The checksum tells a damaged header from a wrong key; the proof detects a wrong key before
anything is decrypted. Names are hashes of the clear content and lengths show: who can list the
place can tell whether a known document is in it.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import os
import struct
import zlib
from collections.abc import AsyncGenerator, AsyncIterator
from typing import TYPE_CHECKING, Protocol

from perdure.artifacts.artifact import damaged, resumed
from perdure.core.display import install_hint
from perdure.core.errors import KeyRefused, Unsupported

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

MARK = b"\x89PRDSEAL"
_CLEAR, _SEALED = b"\x00", b"\x01"
_START = len(MARK) + 1
_LENGTH = struct.Struct(">H")
_CHECKSUM = struct.Struct(">I")
_NONCE = struct.Struct(">QI")
_SALT, _TAG = 32, 16
CHUNK = 1024 * 1024
#: A beginning is never longer than this: keys have short names.
LONGEST_START = _START + _LENGTH.size + 512 + _SALT + _CHECKSUM.size + _TAG
_LAST, _NOT_LAST, _PROOF = 1, 0, 2
#: Whose data keys objects are encrypted with.
SCOPE = "collection:perdure_artifacts"


class ArtifactKeys(Protocol):
    """A key is 32 bytes; its name is text of at most 512 bytes."""

    async def current(self, scope: str, /) -> tuple[str, bytes]:
        """The name of the key to encrypt with, and the key."""

    async def key(self, name: str, /) -> bytes:
        """Raises `KeyRefused` or `Corrupted` if the key cannot be had."""

    async def is_current(self, name: str, /) -> bool:
        """Whether this is still the key to encrypt with; reads afresh."""


class ArtifactSealer:
    """Encrypts and decrypts objects.
    Without `writing`, new content stays in clear; encrypted objects stay readable, and encrypted
    when moved or rekeyed.
    """

    def __init__(self, keys: ArtifactKeys, scope: str = SCOPE, *, writing: bool = True) -> None:
        self._keys = keys
        self._scope = scope
        self.writing = writing

    async def seal(self, pieces: AsyncIterator[bytes]) -> AsyncGenerator[bytes, None]:
        name, key = await self._keys.current(self._scope)
        start, cipher = _begin(name, key)
        yield start + _proof(cipher, start)
        position = 0
        async for chunk, is_last in _chunks(pieces, CHUNK):
            nonce = _NONCE.pack(position, _LAST if is_last else _NOT_LAST)
            yield await asyncio.to_thread(cipher.encrypt, nonce, chunk, start)
            position += 1

    async def is_current(self, name: str) -> bool:
        return await self._keys.is_current(name)

    async def open(self, pieces: AsyncIterator[bytes], tagged: str) -> AsyncGenerator[bytes, None]:
        """The content of an encrypted object.
        Raises `KeyRefused` without the right key and `Corrupted` if the bytes were changed.
        """
        from cryptography.exceptions import InvalidTag

        held = bytearray()
        async for piece in pieces:
            held += piece
            if len(held) >= LONGEST_START:
                break
        start, rest = _split(bytes(held), tagged)
        key = await self._keys.key(_key_name(start))
        cipher = _cipher(key, start[-_SALT - _CHECKSUM.size : -_CHECKSUM.size])
        if not hmac.compare_digest(_proof(cipher, start), rest[:_TAG]):
            raise KeyRefused(
                f"The artifact {tagged} was encrypted with another key than {_key_name(start)}.",
                hint="Use the master key that was in force when it was put.",
            )
        position = 0
        async for chunk, is_last in _chunks(resumed(rest[_TAG:], pieces), CHUNK + _TAG):
            nonce = _NONCE.pack(position, _LAST if is_last else _NOT_LAST)
            try:
                yield await asyncio.to_thread(cipher.decrypt, nonce, chunk, start)
            except InvalidTag as exc:
                raise damaged(tagged, f"chunk {position} of it is not as it was encrypted") from exc
            position += 1


def is_sealed(beginning: bytes) -> bool:
    return beginning[:_START] == MARK + _SEALED


def key_name(beginning: bytes, tagged: str) -> str:
    """The name of an object's key; empty if it is in clear. Raises `Corrupted`."""
    return _key_name(_split(beginning, tagged)[0]) if is_sealed(beginning) else ""


def is_marked(beginning: bytes) -> bool:
    """Whether they begin with the mark; else they are content in clear."""
    return beginning.startswith(MARK)


async def in_clear(pieces: AsyncIterator[bytes]) -> AsyncGenerator[bytes, None]:
    """Content as the bytes of an unencrypted object: escaped if it begins with the mark."""
    first = await anext(pieces, b"")
    if is_marked(first):
        yield MARK + _CLEAR
    if first:
        yield first
    async for piece in pieces:
        yield piece


def clear_start(beginning: bytes) -> int:
    """Where the content begins in an object that is not encrypted."""
    return _START if is_marked(beginning) else 0


def content_size(stored: int, beginning: bytes, tagged: str) -> int:
    """Bytes of content in an object of `stored` bytes. Raises `Corrupted`."""
    if not is_sealed(beginning):
        return stored - clear_start(beginning)
    start, _ = _split(beginning, tagged)
    chunks = stored - len(start) - _TAG
    return chunks - _TAG * max(1, -(-chunks // (CHUNK + _TAG)))


def _begin(name: str, key: bytes) -> tuple[bytes, AESGCM]:
    salt = os.urandom(_SALT)
    encoded = name.encode()
    start = MARK + _SEALED + _LENGTH.pack(len(encoded)) + encoded + salt
    return start + _CHECKSUM.pack(zlib.crc32(start)), _cipher(key, salt)


def _split(beginning: bytes, tagged: str) -> tuple[bytes, bytes]:
    """The header up to the proof, and the rest. Raises `Corrupted` if it is damaged."""
    name_at = _START + _LENGTH.size
    if len(beginning) >= name_at:
        (length,) = _LENGTH.unpack(beginning[_START:name_at])
        end = name_at + length + _SALT + _CHECKSUM.size
        start = beginning[:end]
        if len(beginning) >= end + _TAG and start[-_CHECKSUM.size :] == _CHECKSUM.pack(
            zlib.crc32(start[: -_CHECKSUM.size])
        ):
            return start, beginning[end:]
    raise damaged(tagged, "the beginning of its encrypted form is not as it was written")


def _key_name(start: bytes) -> str:
    name_at = _START + _LENGTH.size
    return start[name_at : -_SALT - _CHECKSUM.size].decode(errors="replace")


def _proof(cipher: AESGCM, start: bytes) -> bytes:
    return cipher.encrypt(_NONCE.pack(0, _PROOF), b"", start)


def _cipher(key: bytes, salt: bytes) -> AESGCM:
    try:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    except ImportError as exc:
        raise Unsupported(
            "Encrypted artifacts need cryptography.", hint=install_hint("encryption")
        ) from exc
    return AESGCM(hmac.new(key, b"perdure artifact\0" + salt, hashlib.sha256).digest())


async def _chunks(
    pieces: AsyncIterator[bytes], size: int
) -> AsyncGenerator[tuple[bytes, bool], None]:
    """Pieces as chunks of one size, with whether it is the last; there is always a last one."""
    held = bytearray()
    async for piece in pieces:
        held += piece
        while len(held) > size:
            yield bytes(held[:size]), False
            del held[:size]
    yield bytes(held), True

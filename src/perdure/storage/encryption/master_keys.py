"""Master keys: their sources, and their fingerprints.

A master key is 32 random bytes that never reach the store. It only wraps data keys. In public it
goes by its fingerprint, a short hash.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import inspect
import os
import secrets
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from perdure.core.display import install_hint
from perdure.core.errors import AccessDenied, Corrupted, InvalidInput, KeyRefused, Unsupported

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

#: A key: 32 bytes raw, or written as base64 or hexadecimal.
Given: TypeAlias = bytes | str
#: Where keys come from: ``file:PATH``, ``env:NAME``, or something to call.
Source: TypeAlias = (
    str | Callable[[], Given | Sequence[Given] | Awaitable[Given] | Awaitable[Sequence[Given]]]
)

KEY_BYTES = 32
NONCE_BYTES = 12
_MAKE = "Make one with `perdure keys make FILE`, and name it as file:FILE."
#: Fewer different bytes than this are no random key.
_FEWEST_BYTES = 8
_FINGERPRINT_BYTES = 6


class Master:
    """One master key. Its repr shows the fingerprint only."""

    __slots__ = ("__dict__", "_key", "fingerprint")

    def __init__(self, key: bytes) -> None:
        self._key = key
        self.fingerprint = derived(key, "fingerprint")[:_FINGERPRINT_BYTES].hex()

    def wrap(self, key: bytes, about: bytes) -> bytes:
        """A wrapped data key; `about` is needed to unwrap it."""
        nonce = os.urandom(NONCE_BYTES)
        return nonce + self._cipher.encrypt(nonce, key, about)

    def unwrap(self, wrapped: bytes, about: bytes) -> bytes:
        """The data key. Raises `Corrupted` if it was not wrapped like this."""
        try:
            return self._cipher.decrypt(wrapped[:NONCE_BYTES], wrapped[NONCE_BYTES:], about)
        except refusals() as exc:
            raise Corrupted(
                "A data key is damaged, or was moved here from another scope.",
                hint="Restore the collection perdure_keys from a backup.",
            ) from exc

    @cached_property
    def _cipher(self) -> AESGCM:
        return cipher(derived(self._key, "data keys"))

    def __repr__(self) -> str:
        return f"<Master {self.fingerprint}>"


class MasterKeys:
    """The master keys of a store: one that wraps, and former ones that can still unwrap.

    A callable may be async and may return several keys, the current one first. Sources are read
    when a key is first needed, and again for a data key that none of them has wrapped: a key can be
    replaced while programs run.
    """

    def __init__(self, current: Source, former: Sequence[Source] = ()) -> None:
        self._sources = (current, *former)
        self._loaded: dict[str, Master] = {}

    async def current(self) -> Master:
        """Raises `KeyRefused` if there is none that can be used."""
        return next(iter((self._loaded or await self.reload()).values()))

    async def named(self, fingerprint: str) -> Master | None:
        known = self._loaded.get(fingerprint)
        return known or (await self.reload()).get(fingerprint)

    async def reload(self) -> dict[str, Master]:
        """Read all sources again; by fingerprint, the current one first."""
        found: dict[str, Master] = {}
        for source in self._sources:
            for key in await _keys_from(source):
                master = Master(key)
                found.setdefault(master.fingerprint, master)
        self._loaded = found
        return found

    def __repr__(self) -> str:
        return f"<MasterKeys {', '.join(self._loaded) or 'not read yet'}>"


def check(masters: Any, scope: Any, *, everything: bool) -> None:
    """Raises `InvalidInput` if malformed, `KeyRefused` if `everything` has no key."""
    if masters is not None and not isinstance(masters, MasterKeys):
        # Not shown: it may be the key itself.
        raise InvalidInput(
            "What encryption was given are no master keys.",
            hint='Write Encryption(MasterKeys("file:PATH")), or MasterKeys(lambda: key).',
        )
    if scope not in {"collection", "agent"}:
        raise InvalidInput(f"Data keys have no scope {scope!r}.", hint='Use "collection", "agent".')
    if everything and masters is None:
        raise KeyRefused(
            "There is no master key, so not everything can be encrypted.",
            hint="Make one with `perdure keys make FILE`, and give MasterKeys('file:FILE').",
        )


def file_key(master: bytes) -> bytes:
    """The key that a whole file is encrypted with; it wraps nothing."""
    return derived(master, "whole file")


def derived(master: bytes, purpose: str) -> bytes:
    """A separate key for each purpose: HKDF with SHA-256 (RFC 5869), one block."""
    pseudorandom = hmac.digest(b"perdure", master, hashlib.sha256)
    return hmac.digest(pseudorandom, f"perdure 1 {purpose}".encode() + b"\x01", hashlib.sha256)


def cipher(key: bytes) -> AESGCM:
    """AES-GCM with this key. Raises `Unsupported` if cryptography is not installed."""
    try:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    except ImportError as exc:
        raise Unsupported(
            "Encryption needs the package cryptography.",
            hint=install_hint("encryption"),
        ) from exc
    return AESGCM(key)


def refusals() -> tuple[type[Exception], ...]:
    """The errors of AES-GCM for manipulated data; imported only when needed."""
    from cryptography.exceptions import InvalidTag

    return InvalidTag, ValueError


def make_file(path: Path) -> Master:
    """Write a new random key, readable by this user only. `InvalidInput` if the path exists."""
    key = secrets.token_bytes(KEY_BYTES)
    try:
        opened = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        raise InvalidInput(
            f"There is something at {path} already.",
            hint="Name another file: what an overwritten key encrypted could never be read again.",
        ) from None
    except OSError as exc:
        raise AccessDenied(
            f"The file {path} cannot be made: {exc.strerror}.", hint="Name another place."
        ) from exc
    with os.fdopen(opened, "wb") as file:
        file.write(base64.b64encode(key) + b"\n")
        file.flush()
        os.fsync(file.fileno())
    return Master(key)


async def read_key(source: Source) -> bytes:
    """A source's key, the first one if several. Raises `KeyRefused`."""
    return (await _keys_from(source))[0]


async def _keys_from(source: Source) -> list[bytes]:
    if callable(source):
        answer = source()
        given = await answer if inspect.isawaitable(answer) else answer
        one = isinstance(given, bytes | str) or not isinstance(given, Iterable)
        several: list[Any] = [given] if one else list(given)
        if several in ([], [None]):
            raise KeyRefused("What was called for a master key returned none.", hint=_MAKE)
        return [_key_in(each, "What was called for a master key") for each in several]
    named: Any = source
    kind, _, place = named.partition(":") if isinstance(named, str) else ("", "", "")
    if kind == "file" and place:
        return [_key_in(_content(place), f"The file {place}")]
    if kind == "env" and place:
        return [_key_in(_variable(place), f"The variable {place}")]
    # Not shown: it may be the key itself.
    raise KeyRefused(
        "A master key is named by file:PATH or env:NAME, or is what something to call returns.",
        hint=_MAKE,
    )


def _content(place: str) -> bytes:
    try:
        return Path(place).expanduser().read_bytes()
    except OSError as exc:
        raise KeyRefused(
            f"The file {place} with the master key cannot be read: {exc.strerror}.",
            hint=f"Put the key back there; for a new bank, `perdure keys make {place}`.",
        ) from exc


def _variable(name: str) -> str:
    value = os.environ.get(name, "")
    if not value:
        raise KeyRefused(
            f"The variable {name} that should hold the master key is not set.",
            hint="Set it to the key. " + _MAKE,
        )
    return value


def _key_in(given: Any, where: str) -> bytes:
    """The key, in whatever form: callers may not run a type checker."""
    key = b""
    if isinstance(given, bytes | str):
        key = given if isinstance(given, bytes) and len(given) == KEY_BYTES else _decoded(given)
    # Words are no key: 32 random bytes that are all printable do not occur.
    if len(key) != KEY_BYTES or len(set(key)) < _FEWEST_BYTES or _is_words(key):
        raise KeyRefused(
            f"{where} gives no master key: it has to be 32 random bytes, as they are or written as"
            " base64 or hexadecimal.",
            hint=_MAKE,
        )
    return key


def _decoded(given: Given) -> bytes:
    text = given.strip() if isinstance(given, bytes) else given.strip().encode()
    with suppress(binascii.Error, ValueError):
        if len(text) == 2 * KEY_BYTES:
            return binascii.unhexlify(text)
        standard = text.translate(bytes.maketrans(b"-_", b"+/")).rstrip(b"=")
        return base64.b64decode(standard + b"=" * (-len(standard) % 4), validate=True)
    return b""


def _is_words(key: bytes) -> bool:
    return all(32 <= byte < 127 or byte in b"\t\r\n" for byte in key)

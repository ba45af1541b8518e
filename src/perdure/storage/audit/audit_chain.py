"""Follows the trail of one record: does each entry begin where the one before it ended?

An entry says what it found and what it left. If a record is changed without an entry, with the
database's own tools or by a process that does not audit, the next entry finds something else.

Three things are no gaps: an expired record is found absent; a rewrite may have been skipped, so
both contents are possible after it; and clocks of machines differ a little, so entries may be in
the wrong order.
"""

from __future__ import annotations

import hmac
import os
from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Annotated

import msgspec

from perdure.core.errors import KeyRefused
from perdure.storage.audit.audit_entries import UNREADABLE, Action, AuditEntry
from perdure.storage.options import STRONG, Options
from perdure.storage.records import Encrypted, Key, system_record, type_of
from perdure.storage.rows import Put, Recode, Row
from perdure.storage.store import Store
from perdure.storage.transaction import Transaction

_SKEW = timedelta(seconds=60)
_CHANGES = frozenset({Action.PUT, Action.DELETE, Action.REWRITE})


class Gap(msgspec.Struct, frozen=True):
    """A gap in a trail: an entry found something else than the one before had left."""

    #: The entry that found it; empty if it is the record as it is now.
    entry: str
    at: datetime
    version_left: int
    hash_left: str
    version_found: int
    hash_found: str

    def __str__(self) -> str:
        found = f"version {self.version_found}" if self.version_found else "nothing"
        left = f"version {self.version_left}" if self.version_left else "nothing"
        if self.version_found == self.version_left:
            found += " with other content"
        return f"{self.at:%Y-%m-%d %H:%M:%S}: found {found}, where {left} had been left"


class Verdict(msgspec.Struct, frozen=True):
    """The result of verifying the trail of one record."""

    collection: str
    key: str
    entries: int
    #: The version that the first of them found: 0 if the trail goes back to the record's birth.
    begins_at: int
    gaps: tuple[Gap, ...]

    @property
    def ok(self) -> bool:
        return not self.gaps


class State(msgspec.Struct):
    """The expected state of a record."""

    version: int
    hashes: set[str]
    expires: datetime | None = None

    def admits(self, version: int, hash_: str, at: datetime) -> bool:
        if version == self.version:
            return hash_ in self.hashes
        return version == 0 and self.expires is not None and self.expires <= at + _SKEW

    def gap(self, entry: str, at: datetime, version: int, hash_: str) -> Gap:
        return Gap(entry, at, self.version, min(self.hashes), version, hash_)


class Followed(msgspec.Struct):
    """Where the entries of one record lead."""

    entries: int
    begins_at: int = 0
    state: State | None = None
    gaps: list[Gap] = []


def follow(entries: Iterable[AuditEntry]) -> Followed:
    """Follow the entries of one record, in the order of their ids; reads are skipped."""
    left = [entry for entry in entries if entry.action in _CHANGES]
    found = Followed(len(left))
    while left:
        state = found.state
        entry = left.pop(_first(left) if state is None else _next(left, state))
        version, hash_ = entry.version_before, entry.hash_before
        if state is None:
            found.begins_at = version
            found.state = state = State(version, {hash_})
        if entry.action is Action.REWRITE:
            if state.admits(version, hash_, entry.at):
                state.hashes.add(entry.hash_after)
            continue
        if not state.admits(version, hash_, entry.at):
            found.gaps.append(state.gap(entry.id, entry.at, version, hash_))
        found.state = State(entry.version_after, {entry.hash_after}, entry.expires)
    return found


def _first(entries: list[AuditEntry]) -> int:
    """The first entry: among those of about the same time, one that none leads to."""
    near = [entry for entry in entries if entry.at <= entries[0].at + _SKEW]
    left = {(entry.version_after, entry.hash_after) for entry in near}
    found = [(entry.version_before, entry.hash_before) in left for entry in near]
    return found.index(False) if False in found else 0


def _next(entries: list[AuditEntry], state: State) -> int:
    """The next entry: among those of about the same time, the first that fits."""
    for place, entry in enumerate(entries):
        if entry.at > entries[0].at + _SKEW:
            break
        if entry.action is Action.REWRITE or state.admits(
            entry.version_before, entry.hash_before, entry.at
        ):
            return place
    return _first(entries)


#: Hexadecimal digits that are kept: 128 bits.
_DIGITS = 32
_NAME = "hash"
_NEW = Options(consistency=STRONG.consistency, expected=0)


@system_record("audit_secrets")
class AuditSecret(msgspec.Struct, frozen=True):
    """The secret that hashes are made with, encrypted. Never changed."""

    id: Annotated[str, Key()]
    secret: Annotated[bytes, Encrypted()]


@system_record("audit_open_secrets")
class OpenAuditSecret(msgspec.Struct, frozen=True):
    """The same in a store without encryption."""

    id: Annotated[str, Key()]
    secret: bytes


SECRETS = frozenset({type_of(AuditSecret).name, type_of(OpenAuditSecret).name})


class Hasher:
    """Makes the hashes of one store."""

    def __init__(self, secret: bytes) -> None:
        self._keyed = hmac.new(secret, digestmod="sha256")

    @classmethod
    async def of(cls, store: Store) -> Hasher:
        """Creates the secret if missing. Raises `KeyRefused` if its master key is not given."""
        return cls(await _secret(store))

    def of_content(self, content: Row | Put | Recode) -> str:
        kind = content.content_type.encode()
        found = self._keyed.copy()
        found.update(b"%d:%b" % (len(kind), kind))  # the length keeps a type and a value apart
        found.update(content.value)
        return found.hexdigest()[:_DIGITS]

    def of_row(self, row: Row | None) -> str:
        if row is None:
            return ""
        return self.of_content(row) if row.content_type else UNREADABLE


async def _secret(store: Store) -> bytes:
    there = await _there(store)
    if there is not None:
        return there.secret
    new = os.urandom(32)
    try:
        return await store.transact(lambda transaction: _sealed(transaction, new), STRONG)
    except KeyRefused:  # this store does not encrypt
        # Raises again if a process that does was first: there must be no second secret.
        await _there(store)
        return await store.transact(lambda transaction: _open(transaction, new), STRONG)


async def _there(store: Store) -> AuditSecret | None:
    return await store.collection(AuditSecret).get(_NAME, STRONG)


async def _sealed(transaction: Transaction, new: bytes) -> bytes:
    """The encrypted secret: the first one stored, or the one in clear, or a new one."""
    sealed, plain = transaction.collection(AuditSecret), transaction.collection(OpenAuditSecret)
    there = await sealed.get(_NAME, STRONG)
    if there is not None:
        return there.secret
    before = await plain.get(_NAME, STRONG)
    secret = new if before is None else before.secret
    if before is not None:
        await plain.delete(_NAME)
    await sealed.put(AuditSecret(_NAME, secret), _NEW)
    return secret


async def _open(transaction: Transaction, new: bytes) -> bytes:
    """The secret in clear: the first one stored, or a new one."""
    plain = transaction.collection(OpenAuditSecret)
    there = await plain.get(_NAME, STRONG)
    if there is not None:
        return there.secret
    await plain.put(OpenAuditSecret(_NAME, new), _NEW)
    return new

"""Hashes of content that tell equal from different, and nothing else.

They are made with a secret of the store, or whoever sees the trail could guess short contents. The
secret is a record: of a type that is always encrypted, if the store can encrypt, else one in clear.
When encryption is switched on later, it moves from the one to the other, and hashes stay the same.
"""

from __future__ import annotations

import hmac
import os
from typing import Annotated

import msgspec

from perdure.core.errors import KeyRefused
from perdure.storage.audit.entries import UNREADABLE
from perdure.storage.options import STRONG, Options
from perdure.storage.records import Encrypted, Key, system_record, type_of
from perdure.storage.rows import Put, Recode, Row
from perdure.storage.store import Store
from perdure.storage.transaction import Transaction

#: Hexadecimal digits that are kept: 128 bits.
_DIGITS = 32
_NAME = "hash"
_NEW = Options(consistency=STRONG.consistency, expected=0)


@system_record("audit_secrets")
class AuditSecret(msgspec.Struct, frozen=True):
    """What the hashes of a trail are made with, encrypted. Never changed."""

    id: Annotated[str, Key()]
    secret: Annotated[bytes, Encrypted()]


@system_record("audit_open_secrets")
class OpenAuditSecret(msgspec.Struct, frozen=True):
    """The same in a store that does not encrypt."""

    id: Annotated[str, Key()]
    secret: bytes


#: The collections of secrets. They are not audited.
SECRETS = frozenset({type_of(AuditSecret).name, type_of(OpenAuditSecret).name})


class Hasher:
    """Makes the hashes of one store."""

    def __init__(self, secret: bytes) -> None:
        self._keyed = hmac.new(secret, digestmod="sha256")

    @classmethod
    async def of(cls, store: Store) -> Hasher:
        """With the store's secret, which is made if there is none yet.

        Raises `KeyRefused` if it is encrypted with a master key that is not given here.
        """
        return cls(await _secret(store))

    def of_content(self, content: Row | Put | Recode) -> str:
        """The hash of a content type and a value."""
        kind = content.content_type.encode()
        found = self._keyed.copy()
        found.update(b"%d:%b" % (len(kind), kind))  # the length keeps a type and a value apart
        found.update(content.value)
        return found.hexdigest()[:_DIGITS]

    def of_row(self, row: Row | None) -> str:
        """The hash of what was there: empty for nothing."""
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
    """The encrypted secret: that of whoever was first, or the one in clear, or a new one."""
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
    """The secret in clear: that of whoever was first, or a new one."""
    plain = transaction.collection(OpenAuditSecret)
    there = await plain.get(_NAME, STRONG)
    if there is not None:
        return there.secret
    await plain.put(OpenAuditSecret(_NAME, new), _NEW)
    return new

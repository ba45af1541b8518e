"""Values sealed: encrypted, and bound to the place and the version they were written for.

A sealed value is a random nonce of 12 bytes, the ciphertext, and a tag of 16 bytes. The tag also
covers where the value belongs: collection, key, version and schema of the record, the content type
it had before, and the key it was encrypted with. Put anywhere else it cannot be opened; nor can an
older value under a newer version.

Nonces are random, so one key should not seal more than 2³² values (NIST SP 800-38D): at a hundred
writes a second a rotation of data keys is due after sixteen months.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TypeAlias

import msgspec

from perdure.core.clock import to_datetime
from perdure.core.errors import Corrupted
from perdure.storage.encryption.keyring import Ring
from perdure.storage.encryption.masters import NONCE_BYTES, refusals
from perdure.storage.encryption.scopes import Mark
from perdure.storage.rows import Batch, Check, Delete, Put, Recode, Row, checksum

#: Collection and key.
Place: TypeAlias = tuple[str, str]

_encode = msgspec.msgpack.Encoder().encode


def seal_batch(
    batch: Batch, scopes: Sequence[str], rings: dict[str, Ring], guesses: dict[Place, int]
) -> Batch:
    """The batch with its values encrypted, each for the version that it will have."""
    writes: list[Put | Delete] = []
    for write, scope in zip(batch.writes, scopes, strict=True):
        if not scope or isinstance(write, Delete):
            writes.append(write)
            continue
        version = write.expected
        if version is None:
            version = guesses.get((write.collection, write.key))
        if version is None:
            version = checked_version(write, batch.checks) or 0
        writes.append(seal_put(write, rings[scope], version))
    checks = with_checks(batch.checks, rings)
    return Batch(tuple(writes), checks, batch.events, batch.changes)


def checked_version(write: Put | Delete, checks: Sequence[Check]) -> int | None:
    """The version that the caller has a commit check anyway."""
    for check in checks:
        if check.key == write.key and check.collection == write.collection:
            return check.version
    return None


def with_checks(checks: tuple[Check, ...], rings: dict[str, Ring]) -> tuple[Check, ...]:
    """What the caller has checked, and that the keys are still those that were used."""
    if not checks and len(rings) == 1:
        (ring,) = rings.values()
        return ring.checks
    return (*checks, *(ring.check for ring in rings.values() if ring.check not in checks))


def seal_put(put: Put, ring: Ring, version: int) -> Put:
    """The write of a record that is at this version now (0 if it is absent), sealed.

    It expects that version: it is sealed for the one that follows.
    """
    plain = put.content_type
    place = (put.collection, put.key, version + 1, put.schema, plain, ring.scope, ring.current)
    nonce = os.urandom(NONCE_BYTES)
    value = nonce + ring.cipher.encrypt(nonce, put.value, _encode(place))
    content_type = plain + ring.suffix
    return Put(
        put.collection,
        put.key,
        value,
        content_type,
        put.schema,
        checksum(put.key, content_type, put.schema, value),
        put.columns,
        put.tags,
        put.expires,
        version,
    )


def seal_recode(recode: Recode, collection: str, ring: Ring) -> Recode:
    """Other bytes for a row that keeps its version, sealed."""
    row, plain = recode.row, recode.content_type
    schema = row.schema if recode.schema is None else recode.schema
    place = (collection, row.key, row.version, schema, plain, ring.scope, ring.current)
    nonce = os.urandom(NONCE_BYTES)
    value = nonce + ring.cipher.encrypt(nonce, recode.value, _encode(place))
    return msgspec.structs.replace(
        recode, value=value, content_type=plain + ring.suffix, checksum=0
    )


def unseal(row: Row, collection: str, mark: Mark, ring: Ring) -> Row:
    """The row with its value opened; all else is as stored.

    The ring has to hold the key. Raises `Corrupted` if this is not what was sealed for this place.
    """
    plain, number = mark.content_type, mark.generation
    place = (collection, row.key, row.version, row.schema, plain, ring.scope, number)
    sealed = row.value
    try:
        value = ring.ciphers[number].decrypt(
            sealed[:NONCE_BYTES], sealed[NONCE_BYTES:], _encode(place)
        )
    except refusals() as exc:
        name = f"{collection}/{row.key}"
        raise Corrupted(
            f"The record {name} was changed, or was not written for this place: it cannot be"
            f" decrypted as version {row.version}.",
            hint="Somebody may have tampered with the store; restore the record from a backup.",
            record=name,
        ) from exc
    return Row(
        row.key,
        value,
        plain,
        row.schema,
        row.version,
        row.created,
        row.updated,
        row.expires,
        row.checksum,
    )


def unreadable(collection: str, row: Row, mark: Mark, scope: str, ring: Ring | None) -> Corrupted:
    """The error for a row whose key is not there any more."""
    name = f"{collection}/{row.key}"
    if ring is not None and mark.generation <= ring.record.shredded:
        when = to_datetime(ring.record.shredded_at).date()
        return Corrupted(
            f"{name} is forgotten: the key it was encrypted with was destroyed on {when}.",
            hint="Nobody can read it any more; delete it.",
            record=name,
        )
    return Corrupted(
        f"{name} needs data key {mark.generation} of {scope}, which is missing.",
        hint="Restore the collection perdure_keys from a backup.",
        record=name,
    )

"""Middleware that encrypts values on write and decrypts them on read.

An encrypted value is a random nonce of 12 bytes, the ciphertext, and a tag of 16 bytes. The tag
also covers the collection, key and schema of the record, its content type, and the key used:
elsewhere it cannot be decrypted. Who can write to the store can put back an older value of the same
record; the audit trail shows that.

Nonces are random, so one key should not encrypt more than 2³² values (NIST SP 800-38D): at a
hundred writes a second a rotation of data keys is due after sixteen months.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Sequence
from functools import cached_property
from typing import Any, ClassVar, Literal, TypeVar

import msgspec

from perdure.core.clock import to_datetime
from perdure.core.errors import (
    Conflict,
    Corrupted,
    KeyRefused,
    PerdureError,
    Unsupported,
)
from perdure.storage.adapter import Capability
from perdure.storage.concurrency import ATTEMPTS, back_off
from perdure.storage.encryption.data_keys import DataKeys, Ring
from perdure.storage.encryption.key_rotation import Holder, Rewrapped, Rotated, Rotation
from perdure.storage.encryption.key_scopes import CLEAR, EncryptionMark, mark_of, scope_at
from perdure.storage.encryption.key_status import ScopeStanding, shred, standing
from perdure.storage.encryption.master_keys import NONCE_BYTES, MasterKeys, check, refusals
from perdure.storage.middleware import (
    Call,
    Commit,
    Find,
    Get,
    Handler,
    Resident,
    Rewrite,
    Stage,
    TimeLeft,
    collection_of,
)
from perdure.storage.options import DEFAULT, STRONG, Options
from perdure.storage.records import RecordType
from perdure.storage.row_rewrites import Failure
from perdure.storage.rows import Batch, Check, Put, Recode, Row
from perdure.storage.store import Progress, Store

_NEEDED = frozenset({Capability.TRANSACTIONS, Capability.VERSIONS})

_encode = msgspec.msgpack.Encoder().encode


class Encryption(Resident[Store]):
    """Encrypts types with a field marked `Encrypted`; with `everything`, all collections.

    Without master keys such types cannot be written, and nothing encrypted can be read. Without
    `records`, in a file that is encrypted as a whole, only objects outside of it are encrypted;
    older records stay readable.

    Raises `InvalidInput` for malformed master keys, and `KeyRefused` if `everything` is to be
    encrypted without any.
    """

    stage: ClassVar[Stage] = Stage.ENCRYPT

    def __init__(
        self,
        masters: MasterKeys | None,
        *,
        scope: Literal["collection", "agent"] = "collection",
        everything: bool = False,
        records: bool = True,
    ) -> None:
        check(masters, scope, everything=everything)
        self._masters = masters
        self._by_agent = scope == "agent"
        self._everything = everything
        self._records = records
        self._holders: list[Holder] = []
        self._has_read: set[str] = set()

    @cached_property
    def keys(self) -> DataKeys:
        return DataKeys(self.store, self._masters)

    def encrypts(self, collection: str) -> bool:
        if not self._records or collection in CLEAR:
            return False
        if self._everything:
            return True
        known = self.store.declared.get(collection)
        return known is not None and known.encrypted

    def scope_of(self, collection: str, key: str) -> str:
        """The scope whose data key encrypts a record; empty if it is not encrypted."""
        if not self.encrypts(collection):
            return ""
        return scope_at(collection, key, agent=self._by_agent)

    def is_due(self, declared: RecordType[Any], row: Row) -> bool:
        """Whether a row is stored in clear, but would be encrypted now."""
        return self.encrypts(declared.name) and mark_of(row.content_type) is None

    def join(self, holder: Holder) -> None:
        """Let rotations also renew objects that are encrypted with data keys."""
        self._holders.append(holder)

    async def rotate_data_keys(
        self, scope: str | None = None, progress: Progress | None = None
    ) -> Rotated:
        """Give a scope, or all, a new data key; re-encrypt its rows; destroy the old keys.

        Rows that should be encrypted and are not become so, too. Reads and writes go on in every
        process. Interrupted, even by kill -9, everything stays readable, and the next call resumes
        without making yet another key.
        """
        return await self._rotation().data_keys(scope, progress)

    async def rotate_master(self, progress: Progress | None = None) -> Rewrapped:
        """Wrap all data keys with the current master key. No row is touched. May be repeated.

        Former master keys must be given: raises `KeyRefused` at the end if one is missing.
        """
        return await self._rotation().master(progress)

    async def shred(self, scope: str, *, confirm: str) -> bool:
        """Destroy all data keys of a scope: nothing it holds can ever be read again.

        `confirm` repeats the scope. Its rows raise `Corrupted` until they are deleted. Other
        processes may still read them for up to a minute. Later writes get a new key.

        Returns whether nothing of the keys is left in the store's files. Earlier backups still hold
        them, wrapped: see the guide.
        """
        return await shred(self.store, self.keys, scope, confirm)

    async def status(self, *, rows: bool = False) -> list[ScopeStanding]:
        """All scopes with their data keys; `rows` counts the rows that need each."""
        return await standing(self.store, self.keys, rows=rows)

    def _rotation(self) -> Rotation:
        return Rotation(
            self.store,
            self.keys,
            self._holders,
            self.scope_of,
            read=self._read_stored,
            rewrite=self._rewrite_stored,
        )

    async def __call__(self, call: Call, proceed: Handler) -> Any:
        if isinstance(call, Commit):
            scopes = [
                self.scope_of(write.collection, write.key) if isinstance(write, Put) else ""
                for write in call.batch.writes
            ]
            if any(scopes):
                return await self._commit(call, scopes, proceed)
            return await proceed(call)
        if isinstance(call, Rewrite):
            return await self._rewrite(call, proceed)
        if not isinstance(call, Get | Find):
            return await proceed(call)
        time_left = TimeLeft(call.options)
        return await self._decrypted(call, await proceed(call), proceed, time_left)

    async def _commit(self, commit: Commit, scopes: Sequence[str], proceed: Handler) -> Any:
        batch = commit.batch
        if self._masters is None or not self.store.adapter.capabilities >= _NEEDED:
            raise self._refusal(batch, scopes)
        time_left = TimeLeft(commit.options)

        async def send(rings: dict[str, Ring]) -> Any:
            writes = tuple(
                seal(write, (write.collection, write.key, write.schema), rings[scope])
                if scope and isinstance(write, Put)
                else write
                for write, scope in zip(batch.writes, scopes, strict=True)
            )
            checks = _with_keys(batch.checks, rings)
            sealed = Batch(writes, checks, batch.events, batch.changes)
            return await proceed(Commit(sealed, time_left.options()))

        return await self._with_keys_as_stored(scopes, batch.checks, send)

    async def _with_keys_as_stored(
        self,
        scopes: Sequence[str],
        checks: Sequence[Check],
        send: Callable[[dict[str, Ring]], Awaitable[Any]],
    ) -> Any:
        """What `send` returns. It is called again if keys were changed since they were read."""
        for attempt in range(ATTEMPTS):
            rings = await self._rings(scopes)
            try:
                return await send(rings)
            except Conflict as conflict:
                outdated = await self._is_outdated(conflict, checks, rings)
                if not outdated or attempt == ATTEMPTS - 1:
                    raise
            await back_off(attempt)
        raise AssertionError("unreachable")

    def _refusal(self, batch: Batch, scopes: Sequence[str]) -> PerdureError:
        write = next(write for write, scope in zip(batch.writes, scopes, strict=True) if scope)
        name = f"{write.collection}/{write.key}"
        if self._masters is None:
            return KeyRefused(
                f"{name} would be stored in clear: its type has a field marked Encrypted, and there"
                " is no master key.",
                hint="Make one with `perdure keys make FILE`, and set encryption.key to file:FILE.",
            )
        return Unsupported(
            f"{type(self.store.adapter).__name__} cannot check keys along with a"
            f" commit, so no encrypted record such as {name} can be kept in it.",
            hint="Open the bank on sqlite:// or postgresql://.",
        )

    async def _rings(self, scopes: Sequence[str]) -> dict[str, Ring]:
        keys = self.keys
        return {scope: keys.known(scope) or await keys.writable(scope) for scope in scopes if scope}

    async def _rewrite(self, rewrite: Rewrite, proceed: Handler) -> Any:
        scopes = [self.scope_of(rewrite.collection, each.row.key) for each in rewrite.recodes]
        if not all(scopes) and rewrite.collection in self._has_read:
            scopes = await self._kept(rewrite, scopes, proceed)
        if not any(scopes):
            return await proceed(rewrite)
        return await self._rewrite_in(rewrite, scopes, proceed)

    async def _kept(self, rewrite: Rewrite, scopes: Sequence[str], proceed: Handler) -> list[str]:
        """The scopes; else that of the stored row: this process may not know its type."""
        name, places = rewrite.collection, [each.row.key for each in rewrite.recodes]
        kept = list(scopes)
        for at, row in enumerate(await proceed(Get(name, places, STRONG))):
            mark = None if row is None else mark_of(row.content_type)
            if mark is not None:
                kept[at] = kept[at] or scope_at(name, places[at], agent=mark.agent)
        return kept

    async def _rewrite_in(self, rewrite: Rewrite, scopes: Sequence[str], proceed: Handler) -> Any:
        """Rewrite rows, each encrypted in its given scope; those without one as they are."""
        collection, time_left = rewrite.collection, TimeLeft(rewrite.options)

        async def send(rings: dict[str, Ring]) -> Any:
            recodes = tuple(
                seal(recode, (collection, recode.row.key, recode.new_schema), rings[scope])
                if scope
                else recode
                for recode, scope in zip(rewrite.recodes, scopes, strict=True)
            )
            checks = _with_keys(rewrite.checks, rings)
            return await proceed(Rewrite(collection, recodes, time_left.options(), checks))

        return await self._with_keys_as_stored(scopes, rewrite.checks, send)

    async def _is_outdated(
        self, conflict: Conflict, theirs: Sequence[Check], rings: dict[str, Ring]
    ) -> bool:
        place = conflict.collection, conflict.key
        if any((check.collection, check.key) == place for check in theirs):
            return False
        for scope, ring in rings.items():
            if (ring.check.collection, ring.check.key) == place:
                found = await self.keys.reload(scope)
                return found is None or found.check != ring.check
        return False

    async def _decrypted(
        self, call: Get | Find, rows: list[Row | None], proceed: Handler, time_left: TimeLeft
    ) -> list[Row | None]:
        collection = collection_of(call)
        destroyed: set[tuple[str, int]] = set()
        keys = self.keys
        while True:
            plain: list[Row | None] = []
            for row in rows:
                mark = None if row is None else mark_of(row.content_type)
                if row is None or mark is None:
                    plain.append(row)
                    continue
                scope = scope_at(collection, row.key, agent=mark.agent)
                ring = keys.fresh(scope)
                if ring is None or mark.generation not in ring.ciphers:
                    ring = await keys.opened(scope, mark.generation)
                if ring is None or mark.generation not in ring.ciphers:
                    break
                plain.append(unseal(row, collection, mark, ring))
                self._has_read.add(collection)
            else:
                return plain
            missing = (scope, mark.generation)
            if missing in destroyed:
                raise unreadable(collection, row, mark, scope, ring)
            # A key is destroyed when no row needs it. So this row was written anew after we, or a
            # cache, read it, and reading it again helps: once, for each key.
            destroyed.add(missing)
            rows = await proceed(time_left.from_primary(call))

    async def _read_stored(
        self, collection: str, keys: Sequence[str], options: Options
    ) -> list[Row | None]:
        """Decrypted rows; the content type is the stored one, which tells their scope.

        Outer middleware, such as compression, is left out: the encrypted bytes stay.
        """
        call, below = Get(collection, keys, options), self.store.below(self)
        rows: list[Row | None] = await below(call)
        plain = await self._decrypted(call, rows, below, TimeLeft(options))
        return [
            new and old and msgspec.structs.replace(new, content_type=old.content_type)
            for old, new in zip(rows, plain, strict=True)
        ]

    async def _rewrite_stored(
        self, collection: str, recodes: Sequence[Recode]
    ) -> tuple[int, list[Failure]]:
        plain, scopes = [], []
        for recode in recodes:
            mark = mark_of(recode.content_type)
            scope = self.scope_of(collection, recode.row.key)
            if mark is not None:
                scope = scope or scope_at(collection, recode.row.key, agent=mark.agent)
                recode = msgspec.structs.replace(recode, content_type=mark.content_type)  # noqa: PLW2901
            plain.append(recode)
            scopes.append(scope)
        call = Rewrite(collection, tuple(plain), DEFAULT)
        return int(await self._rewrite_in(call, scopes, self.store.below(self))), []


def _with_keys(checks: tuple[Check, ...], rings: dict[str, Ring]) -> tuple[Check, ...]:
    if not checks and len(rings) == 1:
        (ring,) = rings.values()
        return ring.checks
    return (*checks, *(ring.check for ring in rings.values() if ring.check not in checks))


W = TypeVar("W", Put, Recode)


def seal(write: W, place: tuple[str, str, int], ring: Ring) -> W:
    """Encrypted for this collection, key and schema. The store computes the checksum."""
    nonce, plain = os.urandom(NONCE_BYTES), write.content_type
    about = _encode((*place, plain, ring.scope, ring.current))
    value = nonce + ring.cipher.encrypt(nonce, write.value, about)
    return msgspec.structs.replace(write, value=value, content_type=plain + ring.suffix, checksum=0)


def unseal(row: Row, collection: str, mark: EncryptionMark, ring: Ring) -> Row:
    """Raises `Corrupted` if the value was not encrypted for this record."""
    plain, number = mark.content_type, mark.generation
    place = (collection, row.key, row.schema, plain, ring.scope, number)
    sealed = row.value
    try:
        value = ring.ciphers[number].decrypt(
            sealed[:NONCE_BYTES], sealed[NONCE_BYTES:], _encode(place)
        )
    except refusals() as exc:
        name = f"{collection}/{row.key}"
        raise Corrupted(
            f"The record {name} was changed, or was not written for this place: it cannot be"
            " decrypted.",
            hint="Somebody may have tampered with the store; restore the record from a backup.",
            record=name,
        ) from exc
    return msgspec.structs.replace(row, value=value, content_type=plain)


def unreadable(
    collection: str, row: Row, mark: EncryptionMark, scope: str, ring: Ring | None
) -> Corrupted:
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

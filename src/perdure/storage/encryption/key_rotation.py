"""Key rotation without interrupting readers and writers.

1. Each scope gets a new current data key. No row can be added that needs an older one, because
   every commit checks its scope's row of keys.
2. Page by page, rows are encrypted anew: see `storage.row_rewrites`. Objects outside of the store
   are renewed by their holders.
3. The whole store is scanned, and older keys that nothing needs are destroyed.

Each step can be interrupted and repeated; two at once do no harm. For a new master key each scope's
keys are wrapped again, one write for each scope.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Protocol

import msgspec

from perdure.core.errors import KeyRefused, Unavailable, Unsupported
from perdure.storage.encryption.data_keys import DataKeys, KeyRing, grown, rewrapped
from perdure.storage.encryption.key_scopes import CLEAR, mark_of, scope_at
from perdure.storage.encryption.key_status import Needs, needed, scopes_with_keys
from perdure.storage.encryption.master_keys import MasterKeys
from perdure.storage.row_rewrites import (
    MOST_FAILURES,
    Failure,
    Read,
    Rewritten,
    rewrite_collection,
)
from perdure.storage.rows import Recode, Row

if TYPE_CHECKING:
    from perdure.storage.store import Progress, Store


class Holder(Protocol):
    """Holds objects outside of the store that are encrypted with data keys."""

    async def renew(self, scope: str, generation: int, progress: Progress | None) -> int:
        """Returns how many were re-encrypted. Raises `NotRenewed` at the end if some were not."""

    async def needed(self, scope: str) -> set[int]:
        """The generations that objects of a scope need."""


class NotRenewed(Exception):
    """Some objects could not be encrypted anew; all others were."""

    def __init__(self, renewed: int, failures: Sequence[Failure]) -> None:
        super().__init__(f"{len(failures)} objects could not be encrypted anew.")
        self.renewed = renewed
        self.failures = failures


class Rotated(msgspec.Struct, frozen=True):
    """The result of a rotation of data keys."""

    scopes: tuple[str, ...]
    rewritten: int = 0
    objects: int = 0
    #: Old keys that were destroyed, and those that something still needs.
    destroyed: int = 0
    kept: int = 0
    #: Rows and objects that could not be encrypted anew: all of them, and the first by name.
    failed: int = 0
    failures: tuple[Failure, ...] = ()
    #: Whether it went on with what an earlier run had begun.
    resumed: bool = False


class Rewrapped(msgspec.Struct, frozen=True):
    """The result of a rotation of the master key."""

    master: str
    scopes: int
    rewrapped: int


class Rotation:
    """Replaces the keys of one store."""

    def __init__(
        self,
        host: Store,
        keys: DataKeys,
        holders: Sequence[Holder],
        scope_of: Callable[[str, str], str],
        *,
        read: Read,
        rewrite: Callable[[str, Sequence[Recode]], Awaitable[tuple[int, list[Failure]]]],
    ) -> None:
        """`read` and `rewrite` go from encryption downwards: rows are in clear, and keep the
        content type they are stored with, so that it is known which scope they are of.
        """
        self._host = host
        self._keys = keys
        self._scope_of = scope_of
        self._read = read
        self._rewrite = rewrite
        self._holders = holders
        #: Whether a row was found that should be encrypted, and was in clear.
        self._saw_clear = False

    async def data_keys(self, scope: str | None, progress: Progress | None) -> Rotated:
        rings, resumed = await self._begin(scope, progress)
        written = await self._encrypt_anew(scope, rings, progress)
        objects, unrenewed = await self._renew_objects(rings, progress)
        destroyed, kept = await self._destroy(rings, await needed(self._host.adapter, progress))
        if self._saw_clear:  # what was in clear can still lie in the store's files
            with suppress(Unavailable, Unsupported):
                await self._host.adapter.scrub()
        failures = tuple(
            msgspec.structs.replace(failure, key=f"{each.collection}/{failure.key}")
            for each in written
            for failure in each.failures
        )
        return Rotated(
            tuple(rings),
            sum(each.rewritten for each in written),
            objects,
            destroyed,
            kept,
            sum(each.failed for each in written) + len(unrenewed),
            (*failures, *unrenewed)[:MOST_FAILURES],
            resumed,
        )

    async def _begin(
        self, scope: str | None, progress: Progress | None
    ) -> tuple[dict[str, KeyRing], bool]:
        """Give each scope a new key, unless an interrupted rotation has done so."""
        masters = self._masters()
        names = await scopes_with_keys(self._keys, scope)
        for name in names:
            await self._unlock(name)  # before anything is changed
        rings: dict[str, KeyRing] = {}
        resumed = False
        for number, name in enumerate(names, 1):
            begun = False

            async def begin(ring: KeyRing) -> KeyRing:
                nonlocal begun
                begun = ring.rotating
                if begun or not ring.generations:
                    return ring
                more = grown(ring, await masters.current(), self._host.now())
                return msgspec.structs.replace(more, rotating=True)

            ring = await self._keys.change(name, begin)
            if ring is not None and ring.generations:
                rings[name] = ring
                resumed = resumed or begun
            if progress is not None:
                progress("making data keys", number, len(names))
        return rings, resumed

    async def _unlock(self, scope: str) -> None:
        """Raises `KeyRefused` for foreign master keys: their key would lock others out."""
        ring = await self._keys.reload(scope)
        for each in ring.record.generations if ring is not None else ():
            await self._keys.key(scope, each.number)

    async def _encrypt_anew(
        self, scope: str | None, rings: dict[str, KeyRing], progress: Progress | None
    ) -> list[Rewritten]:
        done = []
        for size in await self._host.adapter.sizes():
            if size.collection in CLEAR:
                continue
            done.append(
                await rewrite_collection(
                    self._host.adapter,
                    size.collection,
                    wanted=self._wanted(size.collection, scope, rings),
                    read=self._read,
                    remade=lambda row: Recode(row, row.value, row.content_type),
                    write=partial(self._rewrite, size.collection),
                    progress=progress,
                )
            )
        return done

    def _wanted(
        self, collection: str, only: str | None, rings: dict[str, KeyRing]
    ) -> Callable[[Row], bool]:
        def wanted(row: Row) -> bool:
            target = self._scope_of(collection, row.key)
            mark = mark_of(row.content_type)
            if mark is None:
                due = bool(target) and only in (None, target)
                self._saw_clear = self._saw_clear or due
                return due
            scope = scope_at(collection, row.key, agent=mark.agent)
            if only not in (None, scope):
                return False
            ring = rings.get(scope)
            if ring is None or mark.generation <= ring.shredded:
                return False
            return mark.generation < ring.newest or target not in ("", scope)

        return wanted

    async def _renew_objects(
        self, rings: dict[str, KeyRing], progress: Progress | None
    ) -> tuple[int, list[Failure]]:
        renewed, failures = 0, list[Failure]()
        for name, ring in rings.items():
            for holder in self._holders:
                try:
                    renewed += await holder.renew(name, ring.newest, progress)
                except NotRenewed as exc:
                    renewed += exc.renewed
                    failures += exc.failures
        return renewed, failures

    async def _destroy(self, rings: dict[str, KeyRing], needs: Needs) -> tuple[int, int]:
        """Destroy older keys that nothing needs; returns how many, and how many were kept."""
        destroyed = kept = 0
        for name, begun in rings.items():
            held = await self._held(name)
            gone = 0

            async def end(
                ring: KeyRing,
                name: str = name,
                begun: KeyRing = begun,
                held: set[int] | None = held,
            ) -> KeyRing:
                nonlocal gone
                gone = 0
                if ring.newest != begun.newest:
                    return ring  # the next rotation has begun, and will see to it
                left = tuple(
                    each
                    for each in ring.generations
                    if each.number == ring.newest
                    or needs[name, each.number]
                    or (each.objects and (held is None or each.number in held))
                )
                gone = len(ring.generations) - len(left)
                return msgspec.structs.replace(ring, generations=left, rotating=False)

            ring = await self._keys.change(name, end)
            destroyed += gone
            kept += len(ring.generations) - 1 if ring is not None and ring.generations else 0
        return destroyed, kept

    async def _held(self, scope: str) -> set[int] | None:
        """The generations that objects need; None if there is no holder to ask."""
        if not self._holders:
            return None
        found: set[int] = set()
        for holder in self._holders:
            found |= await holder.needed(scope)
        return found

    async def master(self, progress: Progress | None) -> Rewrapped:
        masters = self._masters()
        fingerprint = (await masters.current()).fingerprint
        done, refused = 0, None
        rings = [each.value for each in await self._keys.rings()]
        for number, ring in enumerate(rings, 1):
            old = sum(each.master != fingerprint for each in ring.generations)
            if old:
                try:
                    await self._keys.change(ring.scope, lambda ring: rewrapped(ring, masters))
                    done += old
                except KeyRefused as exc:
                    refused = refused or exc
            if progress is not None:
                progress("wrapping data keys", number, len(rings))
        if refused is not None:
            raise refused
        return Rewrapped(fingerprint, len(rings), done)

    def _masters(self) -> MasterKeys:
        if self._keys.masters is None:
            raise KeyRefused(
                "There is no master key, so no keys can be replaced.",
                hint="Set encryption.key to where it is.",
            )
        return self._keys.masters

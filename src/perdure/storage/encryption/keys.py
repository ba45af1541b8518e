"""The data keys of a store: made when they are first needed, kept unwrapped in this process."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol, TypeVar

import msgspec

from perdure.core.errors import Conflict, Corrupted, KeyRefused, Unavailable
from perdure.storage.adapter import Adapter
from perdure.storage.collection import Collection, Stored
from perdure.storage.conflicts import ATTEMPTS, back_off
from perdure.storage.encryption.keyring import KeyRing, Ring, grown, new_ring
from perdure.storage.encryption.masters import MasterKeys
from perdure.storage.encryption.scopes import KEYS, row_key
from perdure.storage.middleware import Handler, Middleware
from perdure.storage.options import STRONG, Consistency, Options
from perdure.storage.records import RecordType
from perdure.storage.transaction import Transaction

T = TypeVar("T", bound=msgspec.Struct)
R = TypeVar("R")

#: Scopes whose keys are kept unwrapped.
_MOST_RINGS = 4096
#: Readers look again after so many seconds: keys that were destroyed are then forgotten everywhere.
FRESH = 60.0


class Host(Protocol):
    """What encryption needs of the store it works in."""

    @property
    def adapter(self) -> Adapter: ...
    @property
    def declared(self) -> dict[str, RecordType[Any]]: ...
    def collection(self, cls: type[T]) -> Collection[T]: ...
    async def transact(
        self, body: Callable[[Transaction], Awaitable[R]], options: Options
    ) -> R: ...
    def below(self, middleware: Middleware) -> Handler: ...
    def now(self) -> int: ...


class DataKeys:
    """Data keys by scope.

    Everybody who encrypts with one has to let the commit that refers to what was encrypted check
    the scope's row (`check`). So nothing can be added with a key that is being replaced.
    """

    def __init__(self, host: Host, masters: MasterKeys | None) -> None:
        self.masters = masters
        self._host = host
        self._rows = host.collection(KeyRing)
        self._rings: dict[str, Ring] = {}
        #: The fingerprint of a master key that is known to be one of this store.
        self._accepted = ""

    # For objects outside of the store ---------------------------------------------------------

    async def current(self, scope: str) -> tuple[int, bytes]:
        """The generation and the key that objects of a scope are encrypted with now.

        It is noted that there are such objects: the key is not destroyed before whoever keeps them
        says that none needs it any more. Raises `KeyRefused` without a master key.
        """
        ring = await self.writable(scope)
        while not ring.record.generations[-1].objects:
            await self.change(scope, _with_objects)
            ring = await self.writable(scope)
        return ring.current, ring.keys[ring.current]

    async def key(self, scope: str, generation: int) -> bytes:
        """The key of a generation.

        Raises `KeyRefused` if the master key does not fit, `Corrupted` if it was destroyed.
        """
        ring = self.fresh(scope) or await self.reload(scope)
        if ring is None or not await ring.unlock(generation, self.masters):
            ring = await self.reload(scope)
        if ring is None or not await ring.unlock(generation, self.masters):
            raise Corrupted(
                f"Data key {generation} of {scope} is destroyed.",
                hint="What it encrypted cannot be read any more.",
            )
        return ring.keys[generation]

    # For the middleware and rotations ---------------------------------------------------------

    def known(self, scope: str) -> Ring | None:
        """The ring to write with, if this process has it. Commits check it, so it may be old."""
        ring = self._rings.get(scope)
        return ring if ring is not None and ring.current else None

    def fresh(self, scope: str) -> Ring | None:
        """The ring to read with, if this process has read it lately."""
        ring = self._rings.get(scope)
        return ring if ring is not None and time.monotonic() - ring.loaded < FRESH else None

    async def reload(self, scope: str) -> Ring | None:
        """The ring as it is stored now; None if the scope has none."""
        found = await self._rows.fetch(row_key(scope), STRONG)
        before = self._rings.pop(scope, None)
        if found is None:
            return None
        if found.value.scope != scope:
            name = f"{KEYS}/{found.key}"
            raise Corrupted(
                f"{name} holds the data keys of {found.value.scope}.",
                hint="Somebody may have tampered with the store; restore it from a backup.",
                record=name,
            )
        ring = Ring(found, time.monotonic())
        if before is not None:
            ring.adopt(before)
        while len(self._rings) >= _MOST_RINGS:
            self._rings.pop(next(iter(self._rings)), None)
        self._rings[scope] = ring
        return ring

    async def writable(self, scope: str) -> Ring:
        """The ring of a scope, with a key to write with: made if there is none.

        Raises `KeyRefused` if the master key is missing or does not fit.
        """
        known = self.known(scope)
        if known is not None:
            return known
        for attempt in range(ATTEMPTS):
            ring = await self.reload(scope)
            if ring is not None and await ring.unlock_current(self.masters):
                return ring
            if not await self._make(scope, ring):
                await back_off(attempt)
        raise Unavailable(
            f"The data key of {scope} could not be made: others keep changing its row.",
            hint="Try again.",
        )

    async def change(
        self, scope: str, change: Callable[[KeyRing], Awaitable[KeyRing]]
    ) -> KeyRing | None:
        """Change the stored ring; again, if somebody else does. None if there is none."""
        for attempt in range(ATTEMPTS):
            found = await self._rows.fetch(row_key(scope), STRONG)
            if found is None:
                return None
            changed = await change(found.value)
            if changed == found.value:
                return changed
            try:
                await self._rows.put(changed, _strong(found.version))
            except Conflict:
                if attempt == ATTEMPTS - 1:
                    raise
                await back_off(attempt)
            else:
                await self.reload(scope)
                return changed
        raise AssertionError("unreachable")

    async def rings(self) -> Sequence[Stored[KeyRing]]:
        """All that are stored, by scope."""
        return await self._rows.query().order_by("key").execute(STRONG)

    async def _make(self, scope: str, ring: Ring | None) -> bool:
        """Store a first key, or one that follows those that were destroyed.

        False if somebody else was first: theirs is as good.
        """
        if self.masters is None:
            raise KeyRefused(
                f"There is no master key to encrypt {scope} with.",
                hint="Make one with `perdure keys make FILE`, and set encryption.key to file:FILE.",
            )
        await self._accept(self.masters)
        master, moment = await self.masters.current(), self._host.now()
        if ring is None:
            made, expected = new_ring(scope, master, moment), 0
        else:
            made, expected = grown(ring.record, master, moment), ring.check.version
        try:
            await self._rows.put(made, _strong(expected))
        except Conflict:
            return False
        return True

    async def _accept(self, masters: MasterKeys) -> None:
        """Make sure, once, that the master keys are those of this store.

        What a wrong one has wrapped nobody else could read, write or rotate. One of them has to
        fit: while the master key is being replaced, the current one may be new. A store without
        data keys takes any; two processes that are its first at the same moment are not compared.

        Raises `KeyRefused` if none has wrapped any data key.
        """
        if self._accepted == (await masters.current()).fingerprint:
            return
        given = await masters.reload()
        try:
            wrapping = await self._others_than(set(given))
        except Corrupted:
            return  # nothing can be told; one damaged row must not keep all others from being made
        if wrapping:
            raise KeyRefused(
                "The data keys of this store are wrapped with the master key"
                f" {', '.join(sorted(wrapping))}; given: {', '.join(given)}.",
                hint="Give the right one as encryption.key. To replace it, keep it among"
                " encryption.former_keys.",
            )
        self._accepted = next(iter(given))

    async def _others_than(self, given: set[str]) -> set[str]:
        """The master keys in use, if they are all others than these; else none."""
        first = await self._rows.query().order_by("key").first(STRONG)
        if first is None or _masters_of(first) & given:
            return set()  # as a rule: no need to read them all
        wrapping = set[str]().union(*map(_masters_of, await self.rings()))
        return set() if wrapping & given else wrapping


def _masters_of(found: Stored[KeyRing]) -> set[str]:
    return {each.master for each in found.value.generations}


async def _with_objects(ring: KeyRing) -> KeyRing:
    if not ring.generations:
        return ring
    *others, current = ring.generations
    marked = msgspec.structs.replace(current, objects=True)
    return msgspec.structs.replace(ring, generations=(*others, marked))


def _strong(expected: int) -> Options:
    return Options(consistency=Consistency.STRONG, expected=expected)

"""Data keys: stored wrapped, one row for each scope; unwrapped in this process when needed."""

from __future__ import annotations

import os
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Annotated

import msgspec

from perdure.core.errors import Conflict, Corrupted, KeyRefused, Unavailable
from perdure.storage.collection_reader import Stored
from perdure.storage.concurrency import ATTEMPTS, back_off, retry_conflicts
from perdure.storage.encryption.key_scopes import KEYS, row_key, suffix
from perdure.storage.encryption.master_keys import KEY_BYTES, Master, MasterKeys, cipher
from perdure.storage.options import STRONG, Consistency, Options
from perdure.storage.records import Key, system_record
from perdure.storage.rows import Check

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    from perdure.storage.store import Store

_MOST_RINGS = 4096
#: Readers look again after so many seconds: keys that were destroyed are then forgotten everywhere.
FRESH = 60.0


class Generation(msgspec.Struct, frozen=True):
    """One data key, wrapped with the master key of the fingerprint `master`."""

    number: int
    wrapped: bytes
    master: str
    #: Microseconds since 1970.
    created: int
    #: Whether more than rows may be encrypted with it: objects outside of the store.
    objects: bool = False


@system_record("keys")
class KeyRing(msgspec.Struct, frozen=True):
    """The data keys of a scope. Never deleted, so that no number is used twice."""

    id: Annotated[str, Key()]
    scope: str
    #: Oldest first. The last one is written with, the others can only be read with. None if they
    #: were destroyed and nothing was written since.
    generations: tuple[Generation, ...]
    #: The highest number that was ever given.
    newest: int
    #: Rows are being encrypted anew, so that older generations can be destroyed.
    rotating: bool = False
    #: Generations up to this number were destroyed so that nobody can read what needs them.
    shredded: int = 0
    shredded_at: int = 0


def new_ring(scope: str, master: Master, moment: int) -> KeyRing:
    return grown(KeyRing(row_key(scope), scope, (), 0), master, moment)


def grown(ring: KeyRing, master: Master, moment: int) -> KeyRing:
    number = ring.newest + 1
    wrapped = master.wrap(os.urandom(KEY_BYTES), _about(ring.scope, number))
    made = Generation(number, wrapped, master.fingerprint, moment)
    return msgspec.structs.replace(ring, generations=(*ring.generations, made), newest=number)


async def rewrapped(ring: KeyRing, masters: MasterKeys) -> KeyRing:
    """The ring wrapped with the current master key. `KeyRefused` if an old one is missing."""
    current = await masters.current()
    generations: list[Generation] = []
    for each in ring.generations:
        if each.master != current.fingerprint:
            key, about = await _unwrapped(ring, each, masters), _about(ring.scope, each.number)
            generations.append(
                msgspec.structs.replace(
                    each, wrapped=current.wrap(key, about), master=current.fingerprint
                )
            )
        else:
            generations.append(each)
    return msgspec.structs.replace(ring, generations=tuple(generations))


class Ring:
    """A scope's data keys as read by this process; keys are unwrapped when first needed."""

    def __init__(self, stored: Stored[KeyRing], loaded: float) -> None:
        self.record = stored.value
        self.scope = stored.value.scope
        #: When it was read, by the monotonic clock.
        self.loaded = loaded
        self.check = Check(KEYS, stored.key, stored.version, stored.created_us)
        #: What a commit of values that were encrypted with the current key has to check. The same
        #: tuple each time: the backend can see that it is the same.
        self.checks = (self.check,)
        self.keys: dict[int, bytes] = {}
        self.ciphers: dict[int, AESGCM] = {}
        #: The generation to write with; 0 if there is none, or it was not unwrapped yet.
        self.current = 0
        self.suffix = ""

    @property
    def cipher(self) -> AESGCM:
        """The cipher to write with. Only after `unlock_current`."""
        return self.ciphers[self.current]

    def adopt(self, before: Ring) -> None:
        """Take over keys that are unwrapped already: the master key may be gone by now."""
        if before.check.created != self.check.created:
            return
        for each in self.record.generations:
            if each.number in before.keys:
                self._keep(each.number, before.keys[each.number])

    async def unlock_current(self, masters: MasterKeys | None) -> bool:
        """Unwrap the key to write with. False if there is none."""
        if not self.record.generations:
            return False
        number = self.record.generations[-1].number
        await self.unlock(number, masters)
        self.current, self.suffix = number, suffix(self.scope, number)
        return True

    async def unlock(self, number: int, masters: MasterKeys | None) -> bool:
        """False if there is none of this number. Raises `KeyRefused` without its master key."""
        if number in self.keys:
            return True
        for each in self.record.generations:
            if each.number == number:
                self._keep(number, await _unwrapped(self.record, each, masters))
                return True
        return False

    def _keep(self, number: int, key: bytes) -> None:
        self.keys[number] = key
        self.ciphers[number] = cipher(key)

    def __repr__(self) -> str:
        return f"<Ring {self.scope}>"


async def _unwrapped(ring: KeyRing, generation: Generation, masters: MasterKeys | None) -> bytes:
    if masters is None:
        raise KeyRefused(
            f"The data keys of {ring.scope} are wrapped with the master key {generation.master},"
            " and no master key is given.",
            hint="Set encryption.key to where that key is.",
        )
    master = await masters.named(generation.master)
    if master is None:
        given = ", ".join(await masters.reload())
        raise KeyRefused(
            f"A data key of {ring.scope} is wrapped with the master key {generation.master};"
            f" given: {given}.",
            hint="Give that key, too: as encryption.key, or among encryption.former_keys.",
        )
    try:
        return master.unwrap(generation.wrapped, _about(ring.scope, generation.number))
    except Corrupted as exc:
        name = f"{KEYS}/{ring.id}"
        raise Corrupted(
            f"Data key {generation.number} of {ring.scope} is damaged, or was moved here.",
            hint=exc.hint,
            record=name,
        ) from exc


def _about(scope: str, number: int) -> bytes:
    return msgspec.msgpack.encode((scope, number))


class DataKeys:
    """Data keys by scope.

    A commit that refers to encrypted content has to check the scope's row (`check`), so that
    nothing is added with a key that is being replaced.
    """

    def __init__(self, host: Store, masters: MasterKeys | None) -> None:
        self.masters = masters
        self._host = host
        self._rows = host.collection(KeyRing)
        self._rings: dict[str, Ring] = {}
        self._accepted = ""

    async def current(self, scope: str) -> tuple[int, bytes]:
        """The current generation and key for objects of a scope.

        The key is marked as used by objects: it is not destroyed before their holder says that none
        needs it. Raises `KeyRefused` without a master key.
        """
        ring = await self.writable(scope)
        while not ring.record.generations[-1].objects:
            await self.change(scope, _with_objects)
            ring = await self.writable(scope)
        return ring.current, ring.keys[ring.current]

    async def key(self, scope: str, generation: int) -> bytes:
        """Raises `KeyRefused` if the master key does not fit, `Corrupted` if destroyed."""
        ring = await self.opened(scope, generation)
        if ring is None or generation not in ring.keys:
            raise Corrupted(
                f"Data key {generation} of {scope} is destroyed.",
                hint="What it encrypted cannot be read any more.",
            )
        return ring.keys[generation]

    async def opened(self, scope: str, generation: int) -> Ring | None:
        """The ring, with this key unwrapped if it has it; read again if it had not."""
        ring = self.fresh(scope)
        if ring is None or not await ring.unlock(generation, self.masters):
            ring = await self.reload(scope)
            if ring is not None:
                await ring.unlock(generation, self.masters)
        return ring

    def known(self, scope: str) -> Ring | None:
        """The ring to write with, if cached. Commits check it, so it may be old."""
        ring = self._rings.get(scope)
        return ring if ring is not None and ring.current else None

    def fresh(self, scope: str) -> Ring | None:
        ring = self._rings.get(scope)
        return ring if ring is not None and time.monotonic() - ring.loaded < FRESH else None

    async def reload(self, scope: str) -> Ring | None:
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
        """Created if missing. Raises `KeyRefused` if the master key is missing or does not fit."""
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
        """Change the stored ring, retried on conflict. None if there is none."""

        async def attempt(_: int) -> KeyRing | None:
            found = await self._rows.fetch(row_key(scope), STRONG)
            if found is None:
                return None
            changed = await change(found.value)
            if changed != found.value:
                await self._rows.put(changed, _strong(found.version))
                await self.reload(scope)
            return changed

        return await retry_conflicts(attempt)

    async def rings(self) -> Sequence[Stored[KeyRing]]:
        return await self._rows.query().order_by("key").execute(STRONG)

    async def _make(self, scope: str, ring: Ring | None) -> bool:
        """Store a new current key. False if another process was first: theirs is as good."""
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
        """Check, once, that a master key is one of this store's.

        Nobody else could read what a wrong one has wrapped. One of them has to fit: during a
        rotation the current one may be new. A store without data keys takes any; two first
        processes at the same moment are not compared.

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
        """The master keys in use, if none of these is among them; else none."""
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

"""The data keys of one scope: as they are stored, and as a process holds them."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated

import msgspec

from perdure.core.errors import Corrupted, KeyRefused
from perdure.storage.collection import Stored
from perdure.storage.encryption.masters import KEY_BYTES, Master, MasterKeys, cipher
from perdure.storage.encryption.scopes import KEYS, row_key, suffix
from perdure.storage.records import Key, system_record
from perdure.storage.rows import Check

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM


class Generation(msgspec.Struct, frozen=True):
    """One data key, wrapped."""

    number: int
    wrapped: bytes
    #: The fingerprint of the master key that it is wrapped with.
    master: str
    #: Microseconds since 1970.
    created: int
    #: Whether more than rows may be encrypted with it: objects outside of the store.
    objects: bool = False


@system_record("keys")
class KeyRing(msgspec.Struct, frozen=True):
    """The data keys of a scope. Whoever writes with the newest checks that this row is unchanged.

    Never deleted, so that no number is used twice.
    """

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
    """The first data key of a scope."""
    return grown(KeyRing(row_key(scope), scope, (), 0), master, moment)


def grown(ring: KeyRing, master: Master, moment: int) -> KeyRing:
    """The ring with one more data key, which is written with from now on."""
    number = ring.newest + 1
    wrapped = master.wrap(os.urandom(KEY_BYTES), _about(ring.scope, number))
    made = Generation(number, wrapped, master.fingerprint, moment)
    return msgspec.structs.replace(ring, generations=(*ring.generations, made), newest=number)


async def rewrapped(ring: KeyRing, masters: MasterKeys) -> KeyRing:
    """The ring with all its data keys wrapped with the current master key.

    Raises `KeyRefused` if a master key that is needed for it is not given.
    """
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
    """A scope's data keys as this process found them.

    It does not change, but for keys that are unwrapped when they are first needed.
    """

    def __init__(self, stored: Stored[KeyRing], loaded: float) -> None:
        self.record = stored.value
        self.scope = stored.value.scope
        #: When it was read, by the monotonic clock.
        self.loaded = loaded
        self.check = Check(KEYS, stored.key, stored.version, stored.created_us)
        #: What a commit of values that were encrypted with the current key has to check. The same
        #: tuple each time: the backend can see that it is the same.
        self.checks = (self.check,)
        #: By generation, as far as they were needed.
        self.keys: dict[int, bytes] = {}
        self.ciphers: dict[int, AESGCM] = {}
        #: The generation to write with; 0 if there is none, or it was not unwrapped yet.
        self.current = 0
        self.suffix = ""

    @property
    def cipher(self) -> AESGCM:
        """To write with. Only after `unlock_current`."""
        return self.ciphers[self.current]

    def adopt(self, before: Ring) -> None:
        """Take over keys that were unwrapped already: the master key may be gone by now."""
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
        """Unwrap a key, unless it is. False if there is none of this number.

        Raises `KeyRefused` if the master key is missing that it was wrapped with.
        """
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

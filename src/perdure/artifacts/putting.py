"""Storing what has arrived so that nobody who deletes garbage, or keys, takes it away again.

See `collecting`, rules 2 and 3.
"""

from __future__ import annotations

from perdure.artifacts.artifact import missing
from perdure.artifacts.collecting import LastPut
from perdure.artifacts.contents import Contents, Incoming
from perdure.core.errors import ArtifactMissing, Conflict, Corrupted, KeyRefused, Unavailable
from perdure.storage.artifact_references import CONDEMNED, NEEDED, Condemned
from perdure.storage.concurrency import ATTEMPTS, back_off
from perdure.storage.options import DEFAULT, STRONG
from perdure.storage.records import type_of
from perdure.storage.store import Store


class Putting:
    """Puts large artifacts in one place."""

    def __init__(self, store: Store, contents: Contents) -> None:
        self._store = store
        self._contents = contents

    async def is_kept(self, tagged: str) -> bool:
        """Whether a sound copy is there already, and stays: reading is cheaper than writing."""
        if not await self._contents.is_sound(tagged):
            return False
        try:
            await self._note(tagged)
        except Conflict:
            return False  # it is condemned: who puts it now has to store it anew
        return await self._contents.renew(tagged)

    async def keep(self, incoming: Incoming) -> None:
        """Store it. Raises `Unavailable` if others do not let it be; then it is to be put again."""
        tagged = incoming.artifact.hash
        if not self._store.capabilities >= NEEDED:
            await incoming.place()
            await self._check_seal(tagged)
            return
        for attempt in range(ATTEMPTS):
            condemned = await self._store.collection(Condemned).fetch(tagged, STRONG)
            await incoming.place(apart=condemned is not None)
            try:
                if condemned is None:
                    await self._note(tagged)
                else:
                    await self._pardon(tagged, condemned.version, condemned.created_us)
                await self._check_seal(tagged)
            except (Conflict, ArtifactMissing):
                await back_off(attempt)
            else:
                return
        raise Unavailable(
            f"The artifact {tagged} is deleted as often as it is put.",
            hint="Look for a collector with too short a grace period, and put it again.",
        )

    async def _check_seal(self, tagged: str) -> None:
        """Encrypt it again if its key was replaced while it was being stored.

        A rotation that looked for objects before this one was there may destroy that key. Raises
        `ArtifactMissing` if it was deleted meanwhile.
        """
        if not await self._contents.find(tagged):
            raise missing(tagged)
        if await self._contents.sealed_lately(tagged):
            return
        try:
            for found in await self._contents.all_of(tagged):
                await self._contents.seal_again(tagged, found)
        except (Corrupted, KeyRefused) as exc:
            for found in await self._contents.all_of(tagged):
                await self._contents.delete(found.path)
            raise Unavailable(
                f"The artifact {tagged} was not stored: its key was replaced meanwhile.",
                hint="Put it again.",
            ) from exc

    async def _note(self, tagged: str) -> None:
        """Remember when it was put. Raises `Conflict` if it is condemned."""
        if not self._store.capabilities >= NEEDED:
            return
        await self._store.declare(LastPut, Condemned)
        note = type_of(LastPut).encode(LastPut(tagged, self._store.now()), None, None)
        await self._store.write((note,), DEFAULT, [(CONDEMNED, tagged)])

    async def _pardon(self, tagged: str, version: int, created: int) -> None:
        """Remember that it was put, and let it be referred to again.

        Raises `Conflict` if it was condemned again, or pardoned by another.
        """
        async with self._store.transaction() as transaction:
            transaction.expect(CONDEMNED, tagged, version, created)
            await transaction.collection(Condemned).delete(tagged)
            await transaction.collection(LastPut).put(LastPut(tagged, self._store.now()))

"""Deleting what nothing refers to, while others write.

The danger: a writer puts content that is there already, and then commits a record that refers to
it, while a collector that has seen no reference deletes it in between. Four rules prevent it.

1. *Condemn first.* The collector commits a row that condemns the hash, and only then counts its
   references, reading from the primary. A commit that refers to a condemned hash is refused (see
   `perdure.storage.record_references`; turns do the same). So what was committed before the row
   is counted, and after it nothing can be committed: if the count is 0, it stays 0 as long as the
   row is there. Therefore the row has to outlast the deletion, and every put that returned before
   it and is not committed yet: without it nobody would refuse the one who was told that his
   content is stored, and commits a reference to what is gone. It expires long after.
2. *Putting pardons.* Whoever puts content removes the row, in the commit that notes the put, and
   looks afterwards whether the content is still there; if not, it stores it again.
3. *Who pardons stores anew.* Whoever finds the row when he puts content stores a copy under a name
   that no other ever had, before he removes the row. A collector deletes only names that it saw
   before it condemned. So it cannot delete what was stored because of its own row, however late it
   comes.
4. *Young ones stay.* Between a put and the commit that refers to it there is time. What was put
   within the grace period is not condemned. Who takes longer is refused when he commits, and told
   to put the content again.

Why nothing is lost: let a put return at a time when no row condemned the hash (t) and the content
was there afterwards. Whoever deletes it later saw its name before he condemned it. If he did that
after t, rule 1 holds. If he did it before t, somebody removed his row before t, and had stored a
copy before that, which he never saw.

`release` deletes one artifact at once, without a grace period, since forgetting must not wait: who
has put it before and commits afterwards is refused. The row it leaves tells the hash of what was
forgotten, in clear, and so whether a content that somebody guesses was that one. (A secret to hash
it with would lie in the same bank.) So that row goes after a day, the usual grace period: who takes
longer from his put to his commit may refer to what is gone.

References are counted by rows that are written with the records. Records that a migration brought
to a type with artifacts, or that were written past `Collection`, have none: `collect` reads all
records that may hold artifacts and completes their rows before it deletes. `release` does not: it
would take too long. Call `ArtifactStore.refer_again` after such a migration.

Content in a row of the bank is simpler: it is deleted in a transaction that checks that the row and
what condemns it are still those that were seen, and putting it writes the one and removes the
other in one commit.

Killed at any moment, a collector leaves content that is condemned, or gone and still condemned.
Putting it again heals that, and so does the next collector. The commit that condemns waits for the
disk, so that a record whose deletion it relied on cannot come back after the loss of power.

Two collectors stay out of each other's way for ten minutes, then the second takes over. A collector
that sleeps longer than that between its last look at the row and the deletion of a name, and is
overtaken by another, and then by a writer who stores under that same name, could delete what it
should not: nobody can exclude that without a lock that the disk and S3 would honour.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Annotated

import msgspec

from perdure.artifacts.artifact import missing
from perdure.artifacts.artifact_contents import ArtifactContents, Incoming
from perdure.artifacts.artifact_places import StoredObject
from perdure.artifacts.artifact_references import ArtifactReferences
from perdure.artifacts.artifact_rows import ArtifactRows, InlineArtifact
from perdure.core.clock import Clock, duration, new_id, now
from perdure.core.errors import ArtifactMissing, Conflict, Corrupted, KeyRefused, Unavailable
from perdure.storage.adapter import Capability
from perdure.storage.collection import Stored
from perdure.storage.concurrency import ATTEMPTS, back_off
from perdure.storage.options import DEFAULT, STRONG
from perdure.storage.record_references import (
    CONDEMNED,
    CONDEMNED_BRIEFLY,
    CONDEMNED_FOR,
    NEEDED,
    Condemned,
)
from perdure.storage.records import Key, system_record, type_of
from perdure.storage.store import Progress, Store
from perdure.storage.transaction import Transaction

#: Artifacts that are condemned together.
_PAGE = 64
#: A collector that has condemned something is left alone for this time (microseconds).
_PATIENCE = 600_000_000


@system_record("artifact_puts")
class LastPut(msgspec.Struct, frozen=True, array_like=True):
    """A large artifact was put, by the store's clock: that of a disk or of S3 may be another."""

    id: Annotated[str, Key()]  # the hash
    #: Microseconds.
    at: int


class CollectedArtifacts(msgspec.Struct, frozen=True):
    """What a collection found and did; `bytes` is what the deleted ones took."""

    seen: int = 0
    kept: int = 0
    deleted: int = 0
    bytes: int = 0
    #: Nothing was deleted: this is what would have been.
    dry_run: bool = False


class _Candidate(msgspec.Struct):
    """An artifact that may go, as it was seen before it was condemned."""

    tagged: str
    bytes: int
    #: Objects, each with where it lies; none, if it is a row.
    objects: list[tuple[ArtifactContents, StoredObject]] = []
    row: bool = False


class ArtifactCollector:
    """Deletes artifacts that nothing refers to. See the module for why that is safe."""

    def __init__(
        self,
        store: Store,
        rows: ArtifactRows,
        contents: Sequence[ArtifactContents],
        references: ArtifactReferences,
    ) -> None:
        self._store = store
        self._rows = rows
        self._contents = contents
        self._references = references
        self._clock: Clock = now

    def can_collect(self) -> bool:
        """Whether the backend keeps references, and so knows what is garbage."""
        return self._store.capabilities >= NEEDED

    async def collect(
        self, grace: int, *, dry_run: bool, progress: Progress | None
    ) -> CollectedArtifacts:
        """Delete everything that nothing refers to and that was not put within `grace` µs."""
        for capability in sorted(NEEDED):
            self._store.require(Capability(capability))
        await self._store.declare(InlineArtifact, Condemned, LastPut)
        if not dry_run:
            await self._references.tidy()
        # What is committed from here on is noted, or refused.
        spared = await self._references.unnoted(mend=not dry_run, progress=progress)
        seen = deleted = size = 0
        async for page in self._pages():
            seen += len(page)
            old = [
                each
                for each in page
                if each.tagged not in spared and await self._is_old(each, grace)
            ]
            unused = [each for each in old if not await self._references.exceed(each.tagged)]
            gone = unused if dry_run else await self._collect(unused, grace)
            deleted += len(gone)
            size += sum(each.bytes for each in gone)
            if progress is not None:
                progress("looking at artifacts", seen, 0)
        return CollectedArtifacts(seen, seen - deleted, deleted, size, dry_run)

    async def release(self, tagged: str, own: int) -> bool:
        """Delete one if no more than `own` references to it are left; whether it was deleted.

        For a day, nobody can refer to it who does not put it again; then no trace is left of it.
        """
        candidate = _Candidate(
            tagged,
            0,
            [(place, found) for place in self._contents for found in await place.all_of(tagged)],
            row=True,
        )
        if not self.can_collect():
            if await self._references.exceed(tagged, own):
                return False
            await self._delete_objects(candidate)
            await self._rows.delete(tagged)
            return True
        await self._store.declare(InlineArtifact, Condemned, LastPut)
        token = new_id()
        await self._store.transact(
            lambda tx: self._condemn(tx, [tagged], token, force=True), STRONG
        )
        if await self._references.exceed(tagged, own):
            await self._pardon(tagged, token)
            return False
        await self._delete_objects(candidate)
        return await self._finish(candidate, token, brief=True)

    # ------------------------------------------------------------------------------------------

    async def _pages(self) -> AsyncIterator[list[_Candidate]]:
        page: dict[str, _Candidate] = {}
        async for each in self._rows.located():
            page[each.artifact] = _Candidate(each.artifact, each.bytes, row=True)
            if len(page) == _PAGE:
                yield list(page.values())
                page = {}
        if page:
            yield list(page.values())
        for place in self._contents:
            page = {}
            async for tagged, found in place.listed():
                candidate = page.setdefault(tagged, _Candidate(tagged, 0, []))
                candidate.objects.append((place, found))
                candidate.bytes += found.size
                if len(page) == _PAGE:
                    yield list(page.values())
                    page = {}
            if page:
                yield list(page.values())

    async def _is_old(self, each: _Candidate, grace: int) -> bool:
        """Whether it was last put before the grace period."""
        if each.row:
            updated = await self._rows.updated(each.tagged)
            return updated is not None and self._store.now() - updated >= grace
        noted = await self._store.collection(LastPut).get(each.tagged, STRONG)
        if noted is not None:
            return self._store.now() - noted.at >= grace
        written = max(found.modified_us for _, found in each.objects)
        return self._clock() - written >= grace

    async def _collect(self, unused: list[_Candidate], grace: int) -> list[_Candidate]:
        """Delete those that still nothing refers to; returns them."""
        if not unused:
            return []
        token = new_id()
        hashes = [each.tagged for each in unused]
        condemned = await self._store.transact(
            lambda tx: self._condemn(tx, hashes, token, force=False), STRONG
        )
        gone: list[_Candidate] = []
        for each in unused:
            if each.tagged not in condemned:
                continue
            used = await self._references.exceed(each.tagged)
            if used or not await self._is_old(each, grace):
                await self._pardon(each.tagged, token)
            elif await self._is_ours(each.tagged, token):
                await self._delete_objects(each)
                if await self._finish(each, token, brief=False):
                    gone.append(each)
        return gone

    async def _condemn(
        self, transaction: Transaction, hashes: list[str], token: str, *, force: bool
    ) -> set[str]:
        """Condemn those that no other collector is about to delete."""
        rows = transaction.collection(Condemned)
        condemned = set[str]()
        for tagged in hashes:
            found = await rows.fetch(tagged, STRONG)
            if found is not None and not force and self._is_busy(found):
                continue
            await self._put_row(transaction, Condemned(tagged, token), brief=force)
            condemned.add(tagged)
        return condemned

    async def _put_row(self, transaction: Transaction, row: Condemned, *, brief: bool) -> None:
        expires = self._store.now() + duration(CONDEMNED_BRIEFLY if brief else CONDEMNED_FOR)
        await transaction.write([type_of(Condemned).encode(row, expires, None)], STRONG)

    def _is_busy(self, found: Stored[Condemned]) -> bool:
        """Whether another collector, which may be alive, has condemned it."""
        return not found.value.gone and self._store.now() - found.updated_us < _PATIENCE

    async def _is_ours(self, tagged: str, token: str) -> bool:
        found = await self._store.collection(Condemned).get(tagged, STRONG)
        return found is not None and found.token == token

    async def _pardon(self, tagged: str, token: str) -> None:
        async def remove(transaction: Transaction) -> None:
            rows = transaction.collection(Condemned)
            found = await rows.get(tagged, STRONG)
            if found is not None and found.token == token:
                await rows.delete(tagged)

        await self._store.transact(remove)

    async def _delete_objects(self, each: _Candidate) -> None:
        for place, found in each.objects:
            await place.delete(found.path)

    async def _finish(self, each: _Candidate, token: str, *, brief: bool) -> bool:
        """Delete its row, if it has one, and note that it is gone; False if somebody put it."""

        async def finish(transaction: Transaction) -> bool:
            rows = transaction.collection(Condemned)
            found = await rows.get(each.tagged, STRONG)
            if found is None or found.token != token:
                return False
            if each.row:
                await self._rows.delete(each.tagged, transaction)
            await self._put_row(transaction, Condemned(each.tagged, token, gone=True), brief=brief)
            await transaction.collection(LastPut).delete(each.tagged)
            return True

        return await self._store.transact(finish)


class ArtifactWriter:
    """Puts large artifacts in one place."""

    def __init__(self, store: Store, contents: ArtifactContents) -> None:
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

"""Garbage collection of artifacts, safe while others write.

The danger: a writer puts content that exists already and commits a record that refers to it,
while a collector that saw no reference deletes it in between. Four rules prevent it.

1. *Condemn first.* The collector commits a row that condemns the hash, then counts references on
   the primary. A commit that refers to a condemned hash is refused (see
   `perdure.storage.record_references`; turns do the same). So a count of 0 stays 0 while the row
   is there. The row must outlast the deletion and every put that returned before it and is not
   committed yet; it expires long after.
2. *Putting pardons.* A put removes the row in the commit that notes the put, then checks that the
   content is still there, and stores it again if not.
3. *Who pardons stores anew.* A put that finds the row first stores a copy under a new, unique
   name. A collector deletes only names that it saw before it condemned, so it cannot delete that
   copy, however late it comes.
4. *Young ones stay.* What was put within the grace period is not condemned. A writer that takes
   longer from put to commit is refused and has to put the content again.

Why nothing is lost: let a put return at time t, with no row for the hash and the content there. A
later deletion saw the name before it condemned. If it condemned after t, rule 1 holds. If before
t, another put removed the row before t and had stored a copy that the collector never saw.

`release` deletes one artifact at once: forgetting must not wait. Its row holds the hash in clear,
which lets others test a guess of the content, so it expires after a day. A writer that takes
longer than that from put to commit may refer to deleted content.

References are rows written with the records. Records that a migration brought to a type with
artifacts, or written past `Collection`, have none: `collect` reads such records and adds the rows
before it deletes; `release` does not.

Inline content is deleted in a transaction that checks that its row and the condemning row are
unchanged; a put writes the one and removes the other in one commit.

A killed collector leaves content that is condemned, or deleted and still condemned; the next put
or collection repairs that. The condemning commit waits for the disk, so a deleted record cannot
come back after a power loss.

Re-encrypting must not bring back what is deleted meanwhile. In a folder it cannot: deleting and
replacing exclude each other. On S3 it can during the upload, so `seal_again` looks afterwards: if
the note of the last put is gone, or the hash is condemned, the object is released. What is left, on
S3: an object without a note (restored) deleted during the upload comes back, as does one deleted in
the last milliseconds of it. The next collection deletes them.

Two collectors avoid each other for ten minutes. One that sleeps longer between its last check and
the deletion, while another collector and then a writer use the same name, could delete that
object: excluding this needs a lock that disk and S3 would honour.
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
from perdure.storage.collection_reader import Stored
from perdure.storage.concurrency import ATTEMPTS, back_off
from perdure.storage.options import DEFAULT, STRONG
from perdure.storage.record_references import (
    CONDEMNED,
    CONDEMNED_BRIEFLY,
    CONDEMNED_FOR,
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
    """When a large artifact was put, by the store's clock: that of a disk or S3 may differ."""

    id: Annotated[str, Key()]  # the hash
    at: int  # microseconds


class CollectedArtifacts(msgspec.Struct, frozen=True):
    """What a collection deleted, or would delete in a dry run; `bytes` is the space it took."""

    seen: int = 0
    kept: int = 0
    deleted: int = 0
    bytes: int = 0
    dry_run: bool = False


class _Candidate(msgspec.Struct):
    """An artifact that may be deleted, as it was before it was condemned."""

    tagged: str
    bytes: int
    #: Objects, each with where it lies; none, if it is a row.
    objects: list[tuple[ArtifactContents, StoredObject]] = []
    row: bool = False


class ArtifactCollector:
    """Deletes artifacts that nothing refers to. The module docstring says why that is safe."""

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

    async def collect(
        self, grace: int, *, dry_run: bool, progress: Progress | None
    ) -> CollectedArtifacts:
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
        """Delete one if at most `own` references are left; returns whether it was deleted."""
        candidate = _Candidate(
            tagged,
            0,
            [(place, found) for place in self._contents for found in await place.all_of(tagged)],
            row=True,
        )
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

    async def seal_again(self, place: ArtifactContents, tagged: str, found: StoredObject) -> None:
        """Re-encrypt an object, while others read, put and delete; see `ArtifactContents`."""
        was_noted = await self._is_noted(tagged)
        await place.seal_again(tagged, found)
        condemned = await self._store.collection(Condemned).get(tagged, STRONG)
        if condemned is not None or (was_noted and not await self._is_noted(tagged)):
            await self.release(tagged, 0)

    async def _is_noted(self, tagged: str) -> bool:
        return await self._store.collection(LastPut).get(tagged, STRONG) is not None

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
        if each.row:
            updated = await self._rows.updated(each.tagged)
            return updated is not None and self._store.now() - updated >= grace
        noted = await self._store.collection(LastPut).get(each.tagged, STRONG)
        if noted is not None:
            return self._store.now() - noted.at >= grace
        written = max(found.modified_us for _, found in each.objects)
        return self._clock() - written >= grace

    async def _collect(self, unused: list[_Candidate], grace: int) -> list[_Candidate]:
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
        """Delete its row, if any, and note the deletion; False if it was put meanwhile."""

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
        """Whether a sound copy exists and stays: reading is cheaper than writing."""
        if not await self._contents.is_sound(tagged):
            return False
        try:
            await self._note(tagged)
        except Conflict:
            return False  # it is condemned: who puts it now has to store it anew
        return await self._contents.renew(tagged)

    async def keep(self, incoming: Incoming) -> None:
        """Store it. Raises `Unavailable` if concurrent deletions prevent it; then put it again."""
        tagged = incoming.artifact.hash
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
        """Encrypt it again if its key was replaced meanwhile: a rotation may not have seen this
        object and destroy that key. Raises `ArtifactMissing` if it was deleted meanwhile.
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
        """Note the time of the put. Raises `Conflict` if it is condemned."""
        await self._store.declare(LastPut, Condemned)
        note = type_of(LastPut).encode(LastPut(tagged, self._store.now()), None, None)
        await self._store.write((note,), DEFAULT, [(CONDEMNED, tagged)])

    async def _pardon(self, tagged: str, version: int, created: int) -> None:
        """Note the put and remove the condemning row. Raises `Conflict` if another was faster."""
        async with self._store.transaction() as transaction:
            transaction.expect(CONDEMNED, tagged, version, created)
            await transaction.collection(Condemned).delete(tagged)
            await transaction.collection(LastPut).put(LastPut(tagged, self._store.now()))

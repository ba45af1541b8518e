"""Objects named by the hash of their content, verified when read, optionally encrypted.

An object lies under ``sha256/9f/9f86d0…``. Content that is put again while it is being deleted
becomes a *copy* with a unique name, ``copies/9f86d0…/0192…``, so that a late deletion never hits
it (see `artifact_collector`). To a reader all copies are the same.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager

import msgspec

from perdure.artifacts import artifact_encryption
from perdure.artifacts.artifact import (
    ALGORITHM,
    COPIES,
    PIECE,
    Artifact,
    Located,
    copies_folder,
    damaged,
    hash_of_path,
    missing,
    new_copy_path,
    object_path,
    resumed,
)
from perdure.artifacts.artifact_encryption import ArtifactSealer
from perdure.artifacts.artifact_places import (
    ObjectPlace,
    PlaceAddress,
    ReceivedObject,
    S3Address,
    StoredObject,
)
from perdure.core.errors import AccessDenied, ArtifactMissing, Corrupted, KeyRefused
from perdure.storage.store import Progress

#: How often a read tries another copy when copies are deleted meanwhile.
_ATTEMPTS = 5


class Incoming(msgspec.Struct, frozen=True):
    """Content that has arrived and has no name yet."""

    artifact: Artifact
    received: ReceivedObject

    async def place(self, *, apart: bool = False) -> None:
        """Store it durably under its own name or, with `apart`, as a further copy."""
        name = new_copy_path if apart else object_path
        await self.received.place(name(self.artifact.hash))


class ArtifactContents:
    """The large artifacts in one place."""

    def __init__(self, place: PlaceAddress, sealer: ArtifactSealer | None = None) -> None:
        self._objects = _objects_at(place)
        self._sealer = sealer
        self.kind = self._objects.kind
        self.shown = self._objects.shown

    @asynccontextmanager
    async def receive(
        self, source: AsyncIterator[bytes], *, sealed: bool = False
    ) -> AsyncIterator[Incoming]:
        """Take content in; what was not placed is discarded at the end of the context.
        It is encrypted if new content is, or if `sealed`.
        """
        digest, size = hashlib.sha256(), 0

        async def hashed() -> AsyncGenerator[bytes, None]:
            nonlocal size
            async for piece in source:
                await asyncio.to_thread(digest.update, piece)
                size += len(piece)
                yield piece

        stored = artifact_encryption.in_clear
        if self._sealer is not None and (sealed or self._sealer.writing):
            stored = self._sealer.seal
        async with (
            aclosing(hashed()) as clear,
            aclosing(stored(clear)) as pieces,
            self._objects.receive(pieces) as received,
        ):
            yield Incoming(Artifact(f"{ALGORITHM}:{digest.hexdigest()}", size), received)

    async def find(self, tagged: str) -> list[StoredObject]:
        found = await self._objects.find(object_path(tagged), tagged)
        if found is not None:
            return [found]
        return await self._copies(tagged)

    async def all_of(self, tagged: str) -> list[StoredObject]:
        """Like `find`, but certainly complete."""
        try:
            found = await self._objects.find(object_path(tagged), tagged)
        except Corrupted:  # a link, say: it goes like a file
            found = StoredObject(object_path(tagged), 0, 0)
        copies = await self._copies(tagged)
        return copies if found is None else [found, *copies]

    async def size(self, tagged: str) -> int:
        for attempt in range(_ATTEMPTS):
            found = await self._one(tagged)
            try:
                beginning = await self._beginning(found, tagged)
            except ArtifactMissing:
                if attempt == _ATTEMPTS - 1:
                    raise
            else:
                return artifact_encryption.content_size(found.size, beginning, tagged)
        raise missing(tagged)

    async def chunks(self, tagged: str, chunk: int) -> AsyncGenerator[bytes, None]:
        """The content, `chunk` bytes at a time.
        Raises `ArtifactMissing` first, or `Corrupted` at the end at the latest: do not trust the
        bytes before the iteration has ended.
        """
        digest, held, size = hashlib.sha256(), bytearray(), 0
        async with aclosing(self._plain(tagged)) as pieces:
            async for piece in pieces:
                await asyncio.to_thread(digest.update, piece)
                size += len(piece)
                if not held and len(piece) == chunk:
                    yield piece
                    continue
                held += piece
                whole = len(held) // chunk * chunk
                for start in range(0, whole, chunk):
                    yield bytes(held[start : start + chunk])
                del held[:whole]
        if held:
            yield bytes(held)
        if f"{ALGORITHM}:{digest.hexdigest()}" != tagged:
            raise damaged(tagged, f"its {size:,} bytes in {self.shown} have another hash")

    async def is_sound(self, tagged: str) -> bool:
        """Whether it is here, undamaged, and encrypted if it should be."""
        try:
            if self._seals and not await self.is_sealed(tagged):
                return False
            async for _ in self.chunks(tagged, artifact_encryption.CHUNK):
                pass
        except (ArtifactMissing, Corrupted, KeyRefused):
            return False
        return True

    async def is_sealed(self, tagged: str) -> bool:
        return artifact_encryption.is_sealed(await self._beginning(await self._one(tagged), tagged))

    async def with_keys(self) -> AsyncIterator[tuple[str, StoredObject, str]]:
        """Every undamaged object and copy with its hash and key name (empty if in clear)."""
        async for tagged, found in self.listed():
            try:
                yield tagged, found, await self._key_of(found, tagged)
            except (ArtifactMissing, Corrupted):
                continue

    async def sealed_lately(self, tagged: str) -> bool:
        """Whether it is encrypted with the current key, if it should be encrypted at all."""
        if self._sealer is None:
            return True
        name = await self._key_of(await self._one(tagged), tagged)
        if not name and not self._sealer.writing:
            return True
        return await self._sealer.is_current(name)

    async def seal_again(self, tagged: str, found: StoredObject) -> None:
        """Re-encrypt an object in place. Raises what `chunks` raises, and leaves it unchanged
        then.
        Raises `ArtifactMissing` if it is deleted meanwhile: it does not come back, except on S3
        during the upload.
        """
        async with (
            aclosing(self.chunks(tagged, artifact_encryption.CHUNK)) as content,
            self.receive(content, sealed=True) as incoming,
        ):
            if not await incoming.received.replace(found.path):
                raise missing(tagged)

    async def renew(self, tagged: str) -> bool:
        """Make it as durable as a new put; False if it is not here."""
        found = await self.find(tagged)
        return bool(found) and await self._objects.renew(found[0].path)

    async def delete(self, path: str) -> None:
        await self._objects.delete(path)

    async def listed(self) -> AsyncIterator[tuple[str, StoredObject]]:
        """Every object and copy with its hash, in any order."""
        for folder in (ALGORITHM, COPIES):
            async for found in self._objects.listed(folder):
                tagged = hash_of_path(found.path)
                if tagged is not None:
                    yield tagged, found

    def located(self, tagged: str, found: StoredObject) -> Located:
        return Located(tagged, self.kind, found.modified_us, found.size)

    @property
    def _seals(self) -> bool:
        return self._sealer is not None and self._sealer.writing

    async def _one(self, tagged: str) -> StoredObject:
        found = await self.find(tagged)
        if not found:
            raise missing(tagged)
        return found[0]

    async def _copies(self, tagged: str) -> list[StoredObject]:
        return [found async for found in self._objects.listed(copies_folder(tagged))]

    async def _key_of(self, found: StoredObject, tagged: str) -> str:
        return artifact_encryption.key_name(await self._beginning(found, tagged), tagged)

    async def _beginning(self, found: StoredObject, tagged: str) -> bytes:
        async with aclosing(self._objects.read(found, tagged)) as pieces:
            return await anext(pieces, b"")

    async def _plain(self, tagged: str) -> AsyncGenerator[bytes, None]:
        """The content, from whatever copy there is.

        One that is deleted while it is read may have a successor with the same content: then that
        is read on.
        """
        done = 0
        for attempt in range(_ATTEMPTS):
            found, skip = await self._one(tagged), done
            try:
                async with aclosing(self._opened(found, tagged)) as pieces:
                    async for piece in pieces:
                        new = piece[skip:]
                        skip = max(0, skip - len(piece))
                        done += len(new)
                        yield new
            except ArtifactMissing:
                if attempt == _ATTEMPTS - 1:
                    raise
            else:
                return

    async def _opened(self, found: StoredObject, tagged: str) -> AsyncGenerator[bytes, None]:
        """The content of one copy."""
        async with aclosing(self._objects.read(found, tagged)) as pieces:
            first = await anext(pieces, b"")
            if artifact_encryption.is_sealed(first):
                if self._sealer is None:
                    raise KeyRefused(
                        f"The artifact {tagged} is encrypted, and there is no key.",
                        hint="Set encryption.key to the master key of this bank.",
                    )
                async with aclosing(self._sealer.open(resumed(first, pieces), tagged)) as opened:
                    async for piece in opened:
                        yield piece
                return
            yield first[artifact_encryption.clear_start(first) :]
            async for piece in pieces:
                yield piece


#: A writer who is faster than the move must not keep it from ending.
_PASSES = 10


class MovedArtifacts(msgspec.Struct):
    """What a move did. Those that are damaged stay where they are."""

    copied: int = 0
    bytes: int = 0
    #: They were there already.
    skipped: int = 0
    deleted: int = 0
    #: Hashes of those that could not be read.
    damaged: tuple[str, ...] = ()


async def move_artifacts(
    source: ArtifactContents, target: ArtifactContents, tell: Progress, *, delete: bool
) -> MovedArtifacts:
    """Copy everything from a place to another, and delete it at the old one if asked.

    What is there already and sound is skipped, so an interrupted move goes on where it was. Others
    may go on writing to the old place meanwhile: passes are made until one finds nothing new.

    An object is deleted only after its copy was read back and has the right hash. Do that when
    every process already stores in the new place: `ArtifactStore` finds in the `former` place what
    has not been moved yet, but not the other way around. Raises `AccessDenied` if a copy cannot be
    read back.
    """
    moved, seen = MovedArtifacts(), set[str]()
    for _ in range(_PASSES):
        before = len(seen)
        async for tagged, _ in source.listed():
            if tagged not in seen:
                seen.add(tagged)
                await _move(tagged, source, target, moved)
                tell("copying artifacts", len(seen), 0)
        if len(seen) == before:
            break
    for done, tagged in enumerate(seen if delete else (), 1):
        if await target.is_sound(tagged):
            for found in await source.all_of(tagged):
                await source.delete(found.path)
                moved.deleted += 1
        elif await source.find(tagged) and tagged not in moved.damaged:
            raise AccessDenied(
                f"The copy of {tagged} in {target.shown} cannot be read back; it stays in"
                f" {source.shown}.",
                hint="Look at the new place, then move again.",
            )
        tell("deleting at the old place", done, 0)
    return moved


async def _move(
    tagged: str, source: ArtifactContents, target: ArtifactContents, moved: MovedArtifacts
) -> None:
    if await target.is_sound(tagged):
        moved.skipped += 1
        return
    try:
        sealed = await source.is_sealed(tagged)
        async with (
            aclosing(source.chunks(tagged, PIECE)) as chunks,
            target.receive(chunks, sealed=sealed) as incoming,
        ):
            await incoming.place()
    except ArtifactMissing:
        return  # deleted since it was listed
    except (Corrupted, KeyRefused):
        moved.damaged += (tagged,)
        return
    moved.copied += 1
    moved.bytes += incoming.artifact.size


def _objects_at(place: PlaceAddress) -> ObjectPlace:
    # Late: obstore, which S3 needs, takes 50 ms to import.
    if isinstance(place, S3Address):
        from perdure.artifacts.s3_objects import S3Objects

        return S3Objects(place)
    from perdure.artifacts.folder_objects import FolderObjects

    return FolderObjects(place)

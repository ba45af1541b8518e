"""The artifact store, for rows and objects.

Below `INLINE_BELOW` bytes an artifact is a row, written in the caller's transaction. Larger ones
are objects, durable before `put` returns; if the transaction then fails, they stay until garbage
is collected. So a committed record never refers to an artifact that is not there. Whatever is
read is hashed again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing, suppress
from datetime import timedelta
from functools import cached_property
from pathlib import Path
from typing import TypeAlias

from perdure.artifacts import folder_objects
from perdure.artifacts.artifact import (
    INLINE_BELOW,
    PIECE,
    Artifact,
    ArtifactFault,
    ArtifactInput,
    Located,
    checked,
    missing,
    pieces,
    resumed,
)
from perdure.artifacts.artifact_checker import ArtifactChecker
from perdure.artifacts.artifact_collector import (
    ArtifactCollector,
    ArtifactWriter,
    CollectedArtifacts,
    LastPut,
)
from perdure.artifacts.artifact_contents import ArtifactContents, MovedArtifacts, move_artifacts
from perdure.artifacts.artifact_encryption import ArtifactSealer
from perdure.artifacts.artifact_places import PlaceAddress, S3Address
from perdure.artifacts.artifact_references import ArtifactReferences, ReferenceSource, Referrer
from perdure.artifacts.artifact_rows import ArtifactRows
from perdure.core import clock
from perdure.core.errors import (
    ArtifactMissing,
    Corrupted,
    InvalidInput,
    KeyRefused,
    PerdureError,
)
from perdure.storage.record_references import Condemned
from perdure.storage.store import Progress, Store
from perdure.storage.transaction import Transaction

#: Told of an artifact, by its hash, that could not be encrypted anew, and why.
Failed: TypeAlias = Callable[[str, PerdureError], None]

_log = logging.getLogger(__name__)

#: Leftovers are swept after a day without a write to them: no living put pauses that long.
LEFTOVER_AGE = 86_400.0


class ArtifactStore:
    """Content-addressed blobs in a bank and, the large ones, in a folder beside it or on S3.

    The same content is stored once; putting it again repairs a damaged copy. Methods take an
    `Artifact` or its hash; anything else raises `InvalidInput`.

    What is not in its place is read from the `former` one, so a bank can be used while its
    artifacts are moved. A `sealer` decrypts objects, and encrypts new ones if it is set to.

    Needs a backend with transactions, tags and TTL, as any bank does.
    """

    def __init__(
        self,
        store: Store,
        place: PlaceAddress,
        *,
        former: PlaceAddress | None = None,
        sealer: ArtifactSealer | None = None,
    ) -> None:
        self._store = store
        #: Where large artifacts lie; a folder need not exist yet.
        self.place = _absolute(place)
        self.former = None if former is None else _absolute(former)
        self._sealer = sealer
        self._rows = ArtifactRows(store)
        self._references = ArtifactReferences(store)

    @property
    def root(self) -> Path:
        """The folder of the large artifacts. Raises `InvalidInput` if they lie on S3."""
        if isinstance(self.place, S3Address):
            raise InvalidInput(
                f"The artifacts are in {self.place}, not in a folder.", hint="Look at `place`."
            )
        return self.place

    async def open(self) -> int:
        """Remove what crashed writers left at least a day ago; returns how many files. Makes no
        folder and raises no error: `put` reports what is wrong with the folder.
        """
        if isinstance(self.place, S3Address):
            return 0
        return await asyncio.to_thread(folder_objects.sweep, self.place, LEFTOVER_AGE)

    async def put(self, data: ArtifactInput, *, transaction: Transaction | None = None) -> Artifact:
        """Store bytes, a file (as a path or opened for reading bytes), or an async stream of
        bytes.

        A small artifact put in a transaction exists if and only if that commits. A large one is
        durable when this returns. Memory does not grow with the size of a file or stream; a large
        one bound for S3 needs its size on the local disk.

        Raises `InvalidInput` for other data, `StorageFull`, `AccessDenied`, `Unavailable`, and
        what an async stream raises; then nothing was stored.
        """
        if isinstance(data, bytes | bytearray | memoryview):
            data = bytes(data)
            if len(data) >= INLINE_BELOW:
                artifact = await asyncio.to_thread(Artifact.of, data)
                if await self._putting.is_kept(artifact.hash):
                    return artifact
        async with aclosing(pieces(data)) as source:
            first = await anext(source, b"")
            if len(first) < INLINE_BELOW:  # a short piece is the last one
                return await self._rows.put(first, transaction)
            async with self._contents.receive(resumed(first, source)) as incoming:
                artifact = incoming.artifact
                # Of bytes it was known before they were taken in.
                if isinstance(data, bytes) or not await self._putting.is_kept(artifact.hash):
                    await self._putting.keep(incoming)
            return artifact

    async def read(self, artifact: Artifact | str) -> bytes:
        """The artifact's bytes, verified.
        Raises `ArtifactMissing`, `Corrupted`, and `KeyRefused` if it is encrypted with another
        key.
        """
        return b"".join([content async for content in self.stream(artifact)])

    def stream(self, artifact: Artifact | str, chunk: int = PIECE) -> AsyncGenerator[bytes, None]:
        """The artifact's bytes, `chunk` at a time; the last may be shorter. Memory stays bounded.
        Raises `ArtifactMissing` first, and `Corrupted` at the end at the latest: act on the bytes
        only when the iteration has ended well.
        """
        if chunk < 1:
            raise InvalidInput(f"A chunk of {chunk} bytes is none.", hint="Use 1 or more.")
        return self._stream(checked(artifact), chunk)

    async def exists(self, artifact: Artifact | str) -> bool:
        """Whether the artifact is in the store, sound or not."""
        tagged = checked(artifact)
        try:
            if await self._rows.read(tagged) is not None:
                return True
            for place in self._places:
                if await place.find(tagged):
                    return True
        except Corrupted:
            return True
        return False

    async def size(self, artifact: Artifact | str) -> int:
        """The bytes stored. Raises `ArtifactMissing`; `Corrupted` only if it cannot tell."""
        tagged = checked(artifact)
        content = await self._rows.read(tagged)
        if content is not None:
            return len(content)
        for place in self._places:
            try:
                return await place.size(tagged)
            except ArtifactMissing:
                continue
        raise missing(tagged)

    async def delete(self, artifact: Artifact | str) -> None:
        """Remove the artifact everywhere; no error if it is nowhere. Does not check for
        references: `release` does.
        """
        tagged = checked(artifact)
        await self._rows.delete(tagged)
        for place in self._places:
            for found in await place.all_of(tagged):
                await place.delete(found.path)
        for cls in (Condemned, LastPut):
            await self._store.collection(cls).delete(tagged)

    async def located(self) -> AsyncIterator[Located]:
        """Every artifact with its place, sound or not: rows by hash, then objects in any order.
        Concurrent puts and deletions may be seen or not. One in several places or copies comes
        several times.
        """
        async for row in self._rows.located():
            yield row
        for place in self._places:
            async for tagged, found in place.listed():
                yield place.located(tagged, found)

    async def key_names(self) -> set[str]:
        """The names of the keys in use by objects; "" if some are in clear."""
        return {name for place in self._places async for _, _, name in place.with_keys()}

    async def seal_again(
        self,
        wanted: Callable[[str], bool],
        progress: Progress | None = None,
        failed: Failed | None = None,
    ) -> int:
        """Re-encrypt objects whose key name is wanted; returns how many.
        Objects in clear only if new ones are encrypted. Safe to interrupt, and while others
        write; see `artifact_collector`. Damaged objects and those with another key stay, are
        logged and passed to `failed`.
        """
        if self._sealer is None:
            return 0
        done, collector = 0, self._collector
        for place in self._places:
            async for tagged, found, name in place.with_keys():
                if not wanted(name) or not (name or self._sealer.writing):
                    continue
                try:
                    with suppress(ArtifactMissing):  # deleted since it was listed
                        await collector.seal_again(place, tagged, found)
                        done += 1
                except (Corrupted, KeyRefused) as exc:
                    _log.warning("an artifact keeps its old key: %s", exc)
                    if failed is not None:
                        failed(tagged, exc)
                if progress is not None:
                    progress("encrypting artifacts", done, 0)
        return done

    def join(self, source: ReferenceSource) -> None:
        """Count references of another source besides records' fields."""
        self._references.join(source)

    async def references(self, artifact: Artifact | str) -> list[Referrer]:
        """Records with the `Artifact` in a field, and references of joined sources."""
        return await self._references.of(checked(artifact))

    async def count(self, artifact: Artifact | str) -> int:
        return await self._references.count(checked(artifact))

    async def collect(
        self,
        *,
        grace: str | timedelta | float = "1d",
        dry_run: bool = False,
        progress: Progress | None = None,
    ) -> CollectedArtifacts:
        """Delete what nothing refers to and was not put within the grace period.

        Safe while others put and refer: see `artifact_collector`. Choose a grace period longer
        than any put-to-commit time; a slower writer gets `Conflict` and has to put again. A hash
        outside of `Artifact` fields and joined sources is no reference.
        """
        span = 0 if grace == 0 else clock.duration(grace)
        return await self._collector.collect(span, dry_run=dry_run, progress=progress)

    async def release(self, artifact: Artifact | str, *, own: int = 0) -> bool:
        """Delete the artifact if nothing refers to it any more; whether it was deleted. `own`
        references may be left: those that the caller gives up right afterwards.
        """
        return await self._collector.release(checked(artifact), own)

    async def check(
        self,
        *,
        referred: bool = False,
        orphans: bool = False,
        progress: Progress | None = None,
    ) -> AsyncIterator[ArtifactFault]:
        """Read everything, and yield what cannot be read back as it was put.
        With `referred`, also what is referred to and missing or of another size; with `orphans`,
        what nothing refers to. Memory stays bounded.
        """
        checker = ArtifactChecker(self._rows, self._places, self._references, self.size, progress)
        async for fault in checker.faults(referred=referred, orphans=orphans):
            yield fault

    async def move(
        self,
        to: PlaceAddress,
        *,
        source: PlaceAddress | None = None,
        delete: bool = False,
        progress: Progress | None = None,
    ) -> MovedArtifacts:
        """Copy every object to another place; sound ones there are kept.

        From this store's place or `source`. Safe to interrupt and repeat, and while others write.
        With `delete`, an object leaves its old place once its copy was read back; see
        `artifact_contents` for when to do that. This store keeps its place: open the bank with
        the new one afterwards.

        Raises `InvalidInput` if it is the same place.
        """
        old, new = _absolute(source or self.place), _absolute(to)
        if old == new:
            raise InvalidInput(f"The artifacts are in {new} already.", hint="Name another place.")
        there, here = (ArtifactContents(place, self._sealer) for place in (old, new))
        return await move_artifacts(there, here, progress or (lambda *_: None), delete=delete)

    @cached_property
    def _places(self) -> list[ArtifactContents]:
        """The place, and the former one, if there is one."""
        places = [self.place] if self.former is None else [self.place, self.former]
        return [ArtifactContents(place, self._sealer) for place in places]

    @property
    def _contents(self) -> ArtifactContents:
        return self._places[0]

    @property
    def _putting(self) -> ArtifactWriter:
        return ArtifactWriter(self._store, self._contents)

    @property
    def _collector(self) -> ArtifactCollector:
        return ArtifactCollector(self._store, self._rows, self._places, self._references)

    async def _stream(self, tagged: str, chunk: int) -> AsyncGenerator[bytes, None]:
        # The row first: that look costs microseconds, and makes the size needless to know.
        content = await self._rows.read(tagged)
        if content is not None:
            for start in range(0, len(content), chunk):
                yield content[start : start + chunk]
            return
        async with aclosing((await self._place_of(tagged)).chunks(tagged, chunk)) as chunks:
            async for found in chunks:
                yield found

    async def _place_of(self, tagged: str) -> ArtifactContents:
        if len(self._places) > 1 and not await self._contents.find(tagged):
            return self._places[1]
        return self._contents


def _absolute(place: PlaceAddress) -> PlaceAddress:
    return place.absolute() if isinstance(place, Path) else place

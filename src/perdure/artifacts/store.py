"""The artifact store: one door to rows and files.

Below `INLINE_BELOW` bytes an artifact is a row of the bank, written with the caller's transaction.
From there on it is an object (see `objects`), which no transaction can hold: it is durable before
`put` returns, and if the transaction then fails, it stays, referred to by nothing, until garbage is
collected. In either case a committed record never refers to an artifact that is not there.

Whatever is read is hashed again. Nothing that was damaged is handed out as sound.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator
from contextlib import aclosing
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec

from perdure.artifacts import disk
from perdure.artifacts.artifact import (
    INLINE_BELOW,
    Artifact,
    Fault,
    FaultKind,
    Located,
    Place,
    checked,
    damaged,
    hash_of_key,
    missing,
    row_key,
)
from perdure.artifacts.sources import PIECE, Source, pieces
from perdure.core.errors import (
    AccessDenied,
    ArtifactMissing,
    Corrupted,
    InvalidInput,
    NewerSchema,
)
from perdure.storage.records import Compressed, Key, system_record, type_of
from perdure.storage.store import Store
from perdure.storage.transaction import Transaction

if TYPE_CHECKING:
    from perdure.artifacts.objects import Objects

#: Leftovers are swept after a day without a write to them: no living put pauses that long.
LEFTOVER_AGE = 86_400.0
#: Rows looked at together when all are listed: at most 64 × 64 KB in memory.
_ROWS_PAGE = 64
#: What is wrong with one artifact; any other error is the store's, and ends the check.
_FAULTS = (Corrupted, AccessDenied, NewerSchema)


#: The collection of small artifacts; `ArtifactStore.check` looks at it more closely than others do.
ARTIFACT_ROWS = "perdure_artifacts"


@system_record("artifacts")
class InlineArtifact(msgspec.Struct, frozen=True):
    """A small artifact."""

    id: Annotated[str, Key()]  # sha256/…
    content: Annotated[bytes, Compressed()]


class ArtifactStore:
    """Content-addressed blobs in a bank and, the large ones, in a folder beside it.

    The same content is stored once, however often it is put; putting it again mends a damaged
    copy. Wherever an artifact is asked for, an `Artifact` or its hash will do; anything else raises
    `InvalidInput`.
    """

    def __init__(self, store: Store, root: Path) -> None:
        self._store = store
        #: The folder of the large artifacts; it need not exist yet.
        self.root = root.absolute()

    async def open(self) -> int:
        """Sweep away what crashed writers left a day ago or earlier; returns how many files.

        Makes no folder and raises no error: what is wrong with the folder is told by `put`.
        """
        return await asyncio.to_thread(disk.sweep, self.root, LEFTOVER_AGE)

    async def put(self, data: Source, *, transaction: Transaction | None = None) -> Artifact:
        """Store bytes, a file (as a path or opened for reading bytes), or an async stream of bytes.

        A small artifact put in a transaction exists if and only if that commits, and is as durable
        as that makes it. A large one is on disk when this returns. Memory does not grow with the
        size of a file or stream.

        Raises `InvalidInput` if the data is none of these, `StorageFull`, `AccessDenied`, and
        whatever an async stream raises; then nothing was stored.
        """
        if isinstance(data, bytes | bytearray | memoryview):
            data = bytes(data)
            if len(data) >= INLINE_BELOW:
                artifact = await asyncio.to_thread(Artifact.of, data)
                if await self._is_kept(artifact.hash):
                    return artifact
        async with aclosing(pieces(data)) as source:
            first = await anext(source, b"")
            if len(first) < INLINE_BELOW:  # a short piece is the last one
                return await self._put_row(first, transaction)
            return await self._objects.put(first, source)

    async def read(self, artifact: Artifact | str) -> bytes:
        """The artifact's bytes, verified.

        Raises `ArtifactMissing` or `Corrupted`, both of which name the artifact.
        """
        return b"".join([content async for content in self.stream(artifact)])

    def stream(self, artifact: Artifact | str, chunk: int = PIECE) -> AsyncGenerator[bytes, None]:
        """The artifact's bytes, `chunk` at a time; the last may be shorter. Memory stays bounded.

        Raises `ArtifactMissing` before anything is yielded, and `Corrupted` at the end at the
        latest: act on the bytes only when the iteration has ended well.
        """
        if chunk < 1:
            raise InvalidInput(f"A chunk of {chunk} bytes is none.", hint="Use 1 or more.")
        return self._stream(checked(artifact), chunk)

    async def exists(self, artifact: Artifact | str) -> bool:
        """Whether the artifact is in the store; whether it is sound, only reading can tell."""
        try:
            await self.size(artifact)
        except ArtifactMissing:
            return False
        except Corrupted:
            return True
        return True

    async def size(self, artifact: Artifact | str) -> int:
        """The bytes stored. Raises `ArtifactMissing`; `Corrupted` only if it cannot tell."""
        tagged = checked(artifact)
        content = await self._row(tagged)
        return await self._objects.size(tagged) if content is None else len(content)

    async def delete(self, artifact: Artifact | str) -> None:
        """Remove the artifact wherever it is; no error if it is nowhere.

        It does not look for records that refer to it: that is the caller's business.
        """
        tagged = checked(artifact)
        await self._store.collection(InlineArtifact).delete(row_key(tagged))
        await self._objects.delete(tagged)

    async def located(self) -> AsyncIterator[Located]:
        """Every artifact with its place, sound or not: rows by hash, then files in any order.

        What is put or deleted meanwhile may be seen or not.
        """
        async for key, updated in self._row_keys():
            tagged = hash_of_key(key)
            if tagged is not None:
                yield Located(tagged, Place.ROW, updated)
        async for found in self._objects.located():
            yield found

    async def check(
        self, expected: AsyncIterable[Artifact | str] | None = None
    ) -> AsyncIterator[Fault]:
        """Read everything, and yield what cannot be read back as it was put.

        Of `expected` (what records refer to), those that are nowhere are yielded as missing.
        Memory stays bounded, however many and large the artifacts are.
        """
        async for key in self._rows_to_check():
            tagged = hash_of_key(key)
            if tagged is None:
                yield Fault(
                    key, Place.ROW, FaultKind.DAMAGED, "Its key is not that of an artifact."
                )
                continue
            try:
                await self._row(tagged)
            except _FAULTS as exc:
                yield _fault(tagged, Place.ROW, exc)
        async for found in self._objects.located():
            try:
                async for _ in self._objects.chunks(found.artifact, PIECE):
                    pass
            except ArtifactMissing:
                pass  # deleted since it was listed
            except _FAULTS as exc:
                yield _fault(found.artifact, Place.DISK, exc)
        if expected is not None:
            async for wanted in expected:
                if not await self.exists(wanted):
                    tagged = checked(wanted)
                    yield Fault(tagged, None, FaultKind.MISSING, missing(tagged).message)

    # ------------------------------------------------------------------------------------------

    @cached_property
    def _objects(self) -> Objects:
        from perdure.artifacts.objects import Objects  # obstore takes 50 ms to import

        return Objects(self.root)

    async def _put_row(self, content: bytes, transaction: Transaction | None) -> Artifact:
        artifact = Artifact.of(content)
        # Written without a look: a look would make two transactions that put the same content
        # conflict, and would leave a damaged row as it is.
        executor = self._store if transaction is None else transaction
        record = InlineArtifact(row_key(artifact.hash), content)
        await executor.collection(InlineArtifact).put(record)
        return artifact

    async def _row(self, tagged: str) -> bytes | None:
        """The content of the artifact's row, verified, or None if it has no row."""
        try:
            found = await self._store.collection(InlineArtifact).get(row_key(tagged))
        except Corrupted as exc:
            raise damaged(tagged, "its row in the bank is not as it was written") from exc
        if found is not None and Artifact.of(found.content).hash != tagged:
            raise damaged(tagged, "its row in the bank holds other content")
        return None if found is None else found.content

    async def _stream(self, tagged: str, chunk: int) -> AsyncGenerator[bytes, None]:
        # The row first: that look costs microseconds, and makes the size needless to know.
        content = await self._row(tagged)
        if content is not None:
            for start in range(0, len(content), chunk):
                yield content[start : start + chunk]
            return
        step = max(chunk, PIECE // chunk * chunk)  # many small chunks are read at once
        async with aclosing(self._objects.chunks(tagged, step)) as steps:
            async for found in steps:
                for start in range(0, len(found), chunk):
                    yield found[start : start + chunk]

    async def _is_kept(self, tagged: str) -> bool:
        """Whether a sound copy is on disk already: reading it is cheaper than a second write."""
        try:
            async for _ in self._objects.chunks(tagged, PIECE):
                pass
        except (ArtifactMissing, Corrupted):
            return False
        return await self._objects.renew(tagged)

    async def _rows_to_check(self) -> AsyncIterator[str]:
        # Listing a collection makes it, and whoever checks a bank must not change it.
        sizes = await self._store.adapter.sizes()
        if any(size.collection == ARTIFACT_ROWS for size in sizes):
            async for key, _ in self._row_keys():
                yield key

    async def _row_keys(self) -> AsyncIterator[tuple[str, int]]:
        """Keys of rows and when they were written, also of rows that cannot be read."""
        await self._store.declare(InlineArtifact)
        name, after = type_of(InlineArtifact).name, ""
        while rows := await self._store.adapter.salvage(name, after, _ROWS_PAGE):
            for row in rows:
                yield row.key, row.updated
            after = rows[-1].key


def _fault(tagged: str, place: Place, exc: Corrupted | AccessDenied | NewerSchema) -> Fault:
    kind = FaultKind.DAMAGED if isinstance(exc, Corrupted) else FaultKind.UNREADABLE
    return Fault(tagged, place, kind, exc.message)

"""Large artifacts as objects: through obstore, so that a folder and S3 are used in the same way.

An object is written to a name under ``incoming/`` while it is hashed, made durable, and then
renamed to its final name, ``sha256/9f/9f86d0…``. So a file under a final name is whole, whatever
happens, and what a crash leaves is under ``incoming/``.

Putting, reading, listing and deleting go through obstore. The steps of `disk` are taken around it;
a store on S3 leaves them out, and puts to the final name in place of the rename, which is a copy
there.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncGenerator, AsyncIterator
from pathlib import Path

import obstore
from obstore.store import LocalStore

from perdure.artifacts import disk
from perdure.artifacts.artifact import (
    ALGORITHM,
    Artifact,
    Located,
    Place,
    damaged,
    hash_of_path,
    object_path,
)
from perdure.artifacts.failures import translated
from perdure.core import clock
from perdure.core.ids import new_id

#: Bytes that obstore collects before it writes, and how many such writes it may have under way:
#: together they bound the memory of a put. S3 takes no parts below 5 MiB.
_PART = 5 * 1024 * 1024
_PARTS_AT_ONCE = 2
_LIST_PAGE = 1000


class Objects:
    """The artifacts in a folder. The folder is made when the first one is put.

    Any number of processes may use it at once.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self._opened: LocalStore | None = None

    async def put(self, first: bytes, rest: AsyncIterator[bytes]) -> Artifact:
        """Store the bytes; when this returns, they and their name are on disk.

        An object that is there already is replaced by itself, in one step: readers notice nothing,
        and a damaged one is mended.

        If it fails or is cancelled, there is nothing under the final name, or the whole object. At
        worst a file stays under ``incoming/``, until it is swept.
        """
        path = f"{disk.INCOMING}/{new_id()}"
        try:
            artifact = await self._receive(path, first, rest)
            final = object_path(artifact.hash)
            with translated(self.root):
                await asyncio.to_thread(disk.settle, self.root / path)
                await asyncio.to_thread(disk.make_folders, self.root, final)
                await obstore.rename_async(self._store(), path, final)
                await asyncio.to_thread(disk.sync_folder, (self.root / final).parent)
        except BaseException:
            await asyncio.shield(asyncio.to_thread(disk.discard, self.root, path))
            raise
        return artifact

    async def renew(self, tagged: str) -> bool:
        """Make an object that is there count as put now; False if it is not there."""
        with translated(self.root):
            try:
                await asyncio.to_thread(disk.renew, self.root / object_path(tagged))
            except FileNotFoundError:
                return False
        return True

    async def size(self, tagged: str) -> int:
        """The bytes that are stored. Raises `ArtifactMissing`."""
        with translated(self.root, tagged):
            path = await self._plain(tagged)
            return (await obstore.head_async(self._store(), path))["size"]

    async def chunks(self, tagged: str, chunk: int) -> AsyncGenerator[bytes, None]:
        """The object's bytes, `chunk` of them at a time.

        Raises `ArtifactMissing` at first, or `Corrupted` at the end at the latest, if the bytes
        are not those that were put: what was yielded until then must not be trusted before.
        """
        digest = hashlib.sha256()
        size = await self.size(tagged)
        path = object_path(tagged)
        for start in range(0, size, chunk):
            # By ranges: obstore streams a local file in steps of 8 KB, at a tenth of the speed.
            with translated(self.root, tagged):
                length = min(chunk, size - start)
                found = await obstore.get_range_async(
                    self._store(), path, start=start, length=length
                )
            content = bytes(found)
            await asyncio.to_thread(digest.update, content)
            yield content
        if f"{ALGORITHM}:{digest.hexdigest()}" != tagged:
            raise damaged(tagged, f"the {size:,} bytes in {self.root / path} have another hash")

    async def delete(self, tagged: str) -> None:
        """Remove the object durably; no error if there is none."""
        path = object_path(tagged)
        with translated(self.root):
            try:
                await asyncio.to_thread(disk.check_folders, self.root, path)
                await obstore.delete_async(self._store(), path)
            except FileNotFoundError:
                return
            await asyncio.to_thread(disk.sync_folder, (self.root / path).parent)

    async def located(self) -> AsyncIterator[Located]:
        """Every object that is named like an artifact, in no particular order."""
        with translated(self.root):
            if not await asyncio.to_thread(disk.is_kept, self.root):
                return
            listing = obstore.list(self._store(), ALGORITHM, chunk_size=_LIST_PAGE)
        while True:
            with translated(self.root):
                page = await anext(listing, None)
            if page is None:
                return
            for found in page:
                tagged = hash_of_path(found["path"])
                if tagged is not None:
                    modified = clock.from_datetime(found["last_modified"])
                    yield Located(tagged, Place.DISK, modified)

    async def _receive(self, path: str, first: bytes, rest: AsyncIterator[bytes]) -> Artifact:
        """Write everything under a passing name, and find out what it is."""
        digest, size = hashlib.sha256(), 0
        with translated(self.root):
            await asyncio.to_thread(disk.make_folders, self.root, path)
            writer = obstore.open_writer_async(
                self._store(), path, buffer_size=_PART, max_concurrency=_PARTS_AT_ONCE
            )
        piece: bytes | None = first
        try:
            while piece is not None:
                await asyncio.to_thread(digest.update, piece)
                size += len(piece)
                with translated(self.root):
                    await writer.write(piece)
                piece = await anext(rest, None)  # the source's errors are not ours to translate
            with translated(self.root):
                await writer.close()
        finally:
            # An error that somebody keeps would keep this frame, and with it a deleted file's room.
            del writer
        return Artifact(f"{ALGORITHM}:{digest.hexdigest()}", size)

    async def _plain(self, tagged: str) -> str:
        """The path of an object that is a file of ours and not a link to something else."""
        path = object_path(tagged)
        if not await asyncio.to_thread(disk.is_plain, self.root, path):
            raise damaged(tagged, f"a link or folder stands at {self.root / path}, not its file")
        return path

    def _store(self) -> LocalStore:
        # Made late: obstore insists that the folder exists.
        if self._opened is None:
            self._opened = LocalStore(self.root)
        return self._opened

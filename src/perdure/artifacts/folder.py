"""Objects in a folder: through obstore, with the steps of `disk` taken around it.

An object is written to a name under ``incoming/``, made durable, and then placed under its path in
one step. So a file under a path is whole, and what a crash leaves is under ``incoming/``.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import ClassVar

import obstore
from obstore.store import LocalStore

from perdure.artifacts import disk
from perdure.artifacts.artifact import PIECE, Place, damaged
from perdure.artifacts.artifact_errors import translated
from perdure.artifacts.artifact_places import Object, Objects, Received
from perdure.core import clock
from perdure.core.clock import new_id

#: Bytes that obstore collects before it writes, and how many such writes it may have under way:
#: together they bound the memory of a put.
_PART = 5 * 1024 * 1024
_PARTS_AT_ONCE = 2
_LIST_PAGE = 1000


class FolderObjects(Objects):
    """The objects in a folder. The folder is made when the first one is put."""

    kind: ClassVar[Place] = Place.DISK

    def __init__(self, root: Path) -> None:
        self.root = root
        self._opened: LocalStore | None = None

    @property
    def shown(self) -> str:
        return str(self.root)

    @asynccontextmanager
    async def receive(self, pieces: AsyncIterator[bytes]) -> AsyncIterator[Received]:
        """At worst a file stays under ``incoming/``, until it is swept."""
        path = f"{disk.INCOMING}/{new_id()}"
        try:
            size = await self._write(path, pieces)
            with translated(self.root):
                await asyncio.to_thread(disk.settle, self.root / path)
            yield _ReceivedFile(self.root, path, size)
        finally:
            await asyncio.shield(asyncio.to_thread(disk.discard, self.root, path))

    async def find(self, path: str, tagged: str) -> Object | None:
        with translated(self.root, tagged):
            try:
                if not await asyncio.to_thread(disk.is_plain, self.root, path):
                    raise damaged(
                        tagged, f"a link or folder stands at {self.root / path}, not its file"
                    )
                status = await asyncio.to_thread((self.root / path).lstat)
            except FileNotFoundError:
                return None
        return Object(path, status.st_size, status.st_mtime_ns // 1000)

    async def read(self, found: Object, tagged: str) -> AsyncGenerator[bytes, None]:
        # Not through obstore: it opens the file anew for each range, and so could mix two files.
        with translated(self.root, tagged):
            file = await asyncio.to_thread(disk.open_plain, self.root / found.path)
        try:
            while True:
                with translated(self.root, tagged):
                    piece = await asyncio.to_thread(file.read, PIECE)
                if not piece:
                    return
                yield piece
        finally:
            await asyncio.to_thread(file.close)

    async def renew(self, path: str) -> bool:
        with translated(self.root):
            try:
                await asyncio.to_thread(disk.renew, self.root / path)
            except FileNotFoundError:
                return False
        return True

    async def delete(self, path: str) -> None:
        with translated(self.root):
            await asyncio.to_thread(disk.remove, self.root, path)

    async def listed(self, folder: str) -> AsyncIterator[Object]:
        with translated(self.root):
            if not await asyncio.to_thread(disk.is_kept, self.root, folder):
                return
            listing = obstore.list(self._store(), folder, chunk_size=_LIST_PAGE)
        while True:
            with translated(self.root):
                page = await anext(listing, None)
            if page is None:
                return
            for found in page:
                modified = clock.from_datetime(found["last_modified"])
                yield Object(found["path"], found["size"], modified)

    async def _write(self, path: str, pieces: AsyncIterator[bytes]) -> int:
        """Write everything under a passing name; returns how much it was."""
        size = 0
        with translated(self.root):
            await asyncio.to_thread(disk.make_folders, self.root, path)
            writer = obstore.open_writer_async(
                self._store(), path, buffer_size=_PART, max_concurrency=_PARTS_AT_ONCE
            )
        try:
            async for piece in pieces:  # the source's errors are not ours to translate
                with translated(self.root):
                    await writer.write(piece)
                size += len(piece)
            with translated(self.root):
                await writer.close()
        finally:
            # An error that somebody keeps would keep this frame, and with it a deleted file's room.
            del writer
        return size

    def _store(self) -> LocalStore:
        # Made late: obstore insists that the folder exists.
        if self._opened is None:
            self._opened = LocalStore(self.root)
        return self._opened


class _ReceivedFile(Received):
    """A file under ``incoming/``, whose bytes are on disk."""

    def __init__(self, root: Path, path: str, size: int) -> None:
        self._root = root
        self._path = path
        self.size = size

    async def place(self, path: str) -> None:
        with translated(self._root):
            await asyncio.to_thread(disk.place, self._root, self._path, path)

    async def replace(self, path: str) -> bool:
        with translated(self._root):
            return await asyncio.to_thread(disk.replace, self._root, self._path, path)

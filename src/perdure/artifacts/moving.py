"""Bringing artifacts to another place: from a folder to S3, or back.

Each object is read, its hash compared with its name, and stored under the same name there. What is
there already and sound is skipped, so an interrupted move goes on where it was, and a repeated one
costs a look at each object. While it runs, others may go on writing to the old place: passes are
made until one finds nothing new.

Nothing is deleted unless asked. Then an object goes only after its copy was read back and has the
right hash. Do that when every process already stores in the new place: `ArtifactStore` finds in the
`former` place what has not been moved yet, but not the other way around.
"""

from __future__ import annotations

from contextlib import aclosing

import msgspec

from perdure.artifacts.contents import Contents
from perdure.artifacts.sources import PIECE
from perdure.core.errors import AccessDenied, ArtifactMissing, Corrupted, KeyRefused
from perdure.storage.store import Progress

#: A writer who is faster than the move must not keep it from ending.
_PASSES = 10


class Moved(msgspec.Struct, frozen=True):
    """What a move did. Those that are damaged stay where they are."""

    copied: int = 0
    bytes: int = 0
    #: They were there already.
    skipped: int = 0
    deleted: int = 0
    #: Hashes of those that could not be read.
    damaged: tuple[str, ...] = ()


class Move:
    """One move from a place to another."""

    def __init__(self, source: Contents, target: Contents, progress: Progress | None) -> None:
        self._source = source
        self._target = target
        self._progress = progress
        self._copied = self._bytes = self._skipped = self._deleted = 0
        self._damaged: dict[str, None] = {}
        self._seen: set[str] = set()

    async def carry_out(self, *, delete: bool) -> Moved:
        """Copy everything, and delete it at the old place if asked."""
        for _ in range(_PASSES):
            before = len(self._seen)
            async for tagged, _ in self._source.listed():
                if tagged not in self._seen:
                    self._seen.add(tagged)
                    await self._copy(tagged)
                    self._tell("copying artifacts", len(self._seen))
            if len(self._seen) == before:
                break
        if delete:
            await self._clear()
        return Moved(self._copied, self._bytes, self._skipped, self._deleted, tuple(self._damaged))

    async def _copy(self, tagged: str) -> None:
        if await self._target.is_sound(tagged):
            self._skipped += 1
            return
        try:
            async with (
                aclosing(self._source.chunks(tagged, PIECE)) as chunks,
                self._target.receive(
                    chunks, sealed=await self._source.is_sealed(tagged)
                ) as incoming,
            ):
                await incoming.place()
        except ArtifactMissing:
            return  # deleted since it was listed
        except (Corrupted, KeyRefused):
            self._damaged[tagged] = None
            return
        self._copied += 1
        self._bytes += incoming.artifact.size

    async def _clear(self) -> None:
        """Delete at the old place what can be read at the new one."""
        for done, tagged in enumerate(self._seen, 1):
            if await self._target.is_sound(tagged):
                for found in await self._source.all_of(tagged):
                    await self._source.delete(found.path)
                    self._deleted += 1
            elif await self._source.find(tagged) and tagged not in self._damaged:
                raise AccessDenied(
                    f"The copy of {tagged} in {self._target.shown} cannot be read back; it stays"
                    f" in {self._source.shown}.",
                    hint="Look at the new place, then move again.",
                )
            self._tell("deleting at the old place", done)

    def _tell(self, what: str, done: int) -> None:
        if self._progress is not None:
            self._progress(what, done, 0)

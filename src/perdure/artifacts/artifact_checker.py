"""Checks that stored artifacts are undamaged and that referenced ones exist."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

from perdure.artifacts.artifact import (
    PIECE,
    ArtifactFault,
    ArtifactPlace,
    FaultKind,
    hash_of_key,
)
from perdure.artifacts.artifact_contents import ArtifactContents
from perdure.artifacts.artifact_references import ArtifactReferences
from perdure.artifacts.artifact_rows import ArtifactRows
from perdure.core.errors import (
    AccessDenied,
    ArtifactMissing,
    Corrupted,
    KeyRefused,
    NewerSchema,
    PerdureError,
)
from perdure.storage.store import Progress

#: What is wrong with one artifact; any other error is the store's, and ends the check.
_FAULTS = (Corrupted, AccessDenied, KeyRefused, NewerSchema)


class ArtifactChecker:
    """Reads everything. Memory stays bounded, however many and large the sound artifacts are."""

    def __init__(
        self,
        rows: ArtifactRows,
        places: Sequence[ArtifactContents],
        references: ArtifactReferences,
        size: Callable[[str], Awaitable[int]],
        progress: Progress | None,
    ) -> None:
        self._rows = rows
        self._places = places
        self._references = references
        self._size = size
        self._progress = progress
        self._done = 0
        self._damaged: set[str] = set()

    async def faults(self, *, referred: bool, orphans: bool) -> AsyncIterator[ArtifactFault]:
        async for tagged, place, fault in self._stored():
            if fault is not None:
                yield fault
            elif orphans and not await self._references.exceed(tagged):
                what = f"Nothing refers to the artifact {tagged}."
                yield ArtifactFault(tagged, place, FaultKind.ORPHAN, what)
        if referred:
            async for fault in self._referred():
                yield fault

    async def _stored(self) -> AsyncIterator[tuple[str, ArtifactPlace, ArtifactFault | None]]:
        """Everything that is stored, where it is, and what is wrong with it, if something is."""
        async for key, _, _ in self._rows.keys():
            self._count("checking artifacts")
            place, fault, tagged = ArtifactPlace.ROW, None, hash_of_key(key)
            if tagged is None:
                what = "Its key is not that of an artifact."
                fault = ArtifactFault(key, place, FaultKind.DAMAGED, what)
            else:
                try:
                    await self._rows.read(tagged)
                except _FAULTS as exc:
                    fault = self._fault(tagged, place, exc)
            yield tagged or key, place, fault
        for contents in self._places:
            async for tagged, _ in contents.listed():
                self._count("checking artifacts")
                fault = None
                try:
                    async for _ in contents.chunks(tagged, PIECE):
                        pass
                except ArtifactMissing:
                    continue  # deleted since it was listed
                except _FAULTS as exc:
                    fault = self._fault(tagged, contents.kind, exc)
                yield tagged, contents.kind, fault

    async def _referred(self) -> AsyncIterator[ArtifactFault]:
        async for referrer in self._references.all():
            self._count("checking references")
            artifact, name = referrer.artifact, referrer.name
            if artifact in self._damaged:
                continue
            try:
                size = await self._size(artifact)
            except ArtifactMissing:
                what = f"{name} refers to {artifact}, which is missing."
                yield ArtifactFault(artifact, None, FaultKind.MISSING, what, name)
            except _FAULTS as exc:  # damaged since it was looked at
                yield self._fault(artifact, ArtifactPlace.ROW, exc)
            else:
                if referrer.size not in (None, size):
                    what = (
                        f"{name} says that {artifact} has {referrer.size:,} bytes; it has {size:,}."
                    )
                    yield ArtifactFault(artifact, None, FaultKind.WRONG_SIZE, what, name)

    def _fault(self, tagged: str, place: ArtifactPlace, exc: PerdureError) -> ArtifactFault:
        self._damaged.add(tagged)
        kind = FaultKind.DAMAGED if isinstance(exc, Corrupted) else FaultKind.UNREADABLE
        return ArtifactFault(tagged, place, kind, exc.message)

    def _count(self, what: str) -> None:
        self._done += 1
        if self._progress is not None:
            self._progress(what, self._done, 0)

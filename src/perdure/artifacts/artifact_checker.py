"""Checks that stored artifacts are undamaged and that referenced ones exist."""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Sequence

from perdure.artifacts.artifact import (
    PIECE,
    Artifact,
    ArtifactFault,
    ArtifactPlace,
    FaultKind,
    checked,
    hash_of_key,
    missing,
)
from perdure.artifacts.artifact_contents import ArtifactContents
from perdure.artifacts.artifact_references import ArtifactReferences, Referrer
from perdure.artifacts.artifact_rows import ArtifactRows
from perdure.core.errors import (
    AccessDenied,
    ArtifactMissing,
    Corrupted,
    KeyRefused,
    NewerSchema,
    PerdureError,
)
from perdure.storage.record_references import NEEDED
from perdure.storage.store import Progress, Store

#: What is wrong with one artifact; any other error is the store's, and ends the check.
_FAULTS = (Corrupted, AccessDenied, KeyRefused, NewerSchema)


class ArtifactChecker:
    """Reads everything. Memory stays bounded, however many and large the sound artifacts are."""

    def __init__(
        self,
        store: Store,
        rows: ArtifactRows,
        contents: Sequence[ArtifactContents],
        references: ArtifactReferences,
        progress: Progress | None,
    ) -> None:
        self._store = store
        self._rows = rows
        self._contents = contents
        self._references = references
        self._progress = progress
        self._done = 0
        self._damaged: set[str] = set()

    async def faults(
        self,
        expected: AsyncIterable[Artifact | str] | None,
        *,
        referred: bool,
        orphans: bool,
    ) -> AsyncIterator[ArtifactFault]:
        async for fault in self._in_rows(orphans=orphans):
            yield fault
        for place in self._contents:
            async for fault in self._in_place(place, orphans=orphans):
                yield fault
        if referred:
            async for fault in self._referred():
                yield fault
        if expected is not None:
            async for wanted in expected:
                tagged = checked(wanted)
                async for fault in self._expected(tagged):
                    yield fault

    async def _in_rows(self, *, orphans: bool) -> AsyncIterator[ArtifactFault]:
        async for key, _, _ in self._rows.keys():
            self._count("checking artifacts")
            tagged = hash_of_key(key)
            if tagged is None:
                what = "Its key is not that of an artifact."
                yield ArtifactFault(key, ArtifactPlace.ROW, FaultKind.DAMAGED, what)
                continue
            try:
                await self._rows.read(tagged)
            except _FAULTS as exc:
                yield self._fault(tagged, ArtifactPlace.ROW, exc)
                continue
            if orphans and not await self._references.exceed(tagged):
                yield _orphan(tagged, ArtifactPlace.ROW)

    async def _in_place(
        self, place: ArtifactContents, *, orphans: bool
    ) -> AsyncIterator[ArtifactFault]:
        async for tagged, _ in place.listed():
            self._count("checking artifacts")
            try:
                async for _ in place.chunks(tagged, PIECE):
                    pass
            except ArtifactMissing:
                continue  # deleted since it was listed
            except _FAULTS as exc:
                yield self._fault(tagged, place.kind, exc)
                continue
            if orphans and not await self._references.exceed(tagged):
                yield _orphan(tagged, place.kind)

    async def _referred(self) -> AsyncIterator[ArtifactFault]:
        if not self._store.capabilities >= NEEDED:
            return
        async for referrer in self._references.all():
            self._count("checking references")
            if referrer.artifact in self._damaged:
                continue
            try:
                size = await self._size(referrer.artifact)
            except _FAULTS as exc:  # damaged since it was looked at
                yield self._fault(referrer.artifact, ArtifactPlace.ROW, exc)
                continue
            if size is None:
                yield _missing(referrer)
            elif referrer.size is not None and referrer.size != size:
                what = (
                    f"{referrer.name} says that {referrer.artifact} has {referrer.size:,} bytes;"
                    f" it has {size:,}."
                )
                yield ArtifactFault(
                    referrer.artifact, None, FaultKind.WRONG_SIZE, what, referrer.name
                )

    async def _expected(self, tagged: str) -> AsyncIterator[ArtifactFault]:
        if tagged in self._damaged:
            return
        try:
            if await self._size(tagged) is None:
                yield ArtifactFault(tagged, None, FaultKind.MISSING, missing(tagged).message)
        except _FAULTS as exc:  # damaged since it was looked at
            yield self._fault(tagged, ArtifactPlace.ROW, exc)

    async def _size(self, tagged: str) -> int | None:
        content = await self._rows.read(tagged)
        if content is not None:
            return len(content)
        for place in self._contents:
            try:
                return await place.size(tagged)
            except ArtifactMissing:
                continue
        return None

    def _fault(self, tagged: str, place: ArtifactPlace, exc: PerdureError) -> ArtifactFault:
        self._damaged.add(tagged)
        kind = FaultKind.DAMAGED if isinstance(exc, Corrupted) else FaultKind.UNREADABLE
        return ArtifactFault(tagged, place, kind, exc.message)

    def _count(self, what: str) -> None:
        self._done += 1
        if self._progress is not None:
            self._progress(what, self._done, 0)


def _orphan(tagged: str, place: ArtifactPlace) -> ArtifactFault:
    return ArtifactFault(
        tagged, place, FaultKind.ORPHAN, f"Nothing refers to the artifact {tagged}."
    )


def _missing(referrer: Referrer) -> ArtifactFault:
    what = f"{referrer.name} refers to {referrer.artifact}, which is missing."
    return ArtifactFault(referrer.artifact, None, FaultKind.MISSING, what, referrer.name)

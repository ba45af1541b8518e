"""Re-encrypts objects while others put and delete.

What is deleted meanwhile must not come back. In a folder it cannot: deleting and replacing
exclude each other. On S3 it can during the upload, so the store is checked afterwards: if the
note of the last put is gone, or the hash is condemned, the object is released by the rules of
`artifact_collector`.

What is left, on S3: an object without a note (restored, or older than notes) deleted during the
upload comes back, as does one deleted in the last milliseconds of it. The next collection deletes
them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import suppress

from perdure.artifacts.artifact_collector import ArtifactCollector, LastPut
from perdure.artifacts.artifact_contents import ArtifactContents
from perdure.artifacts.artifact_places import StoredObject
from perdure.core.errors import ArtifactMissing, Corrupted, KeyRefused, PerdureError
from perdure.storage.options import STRONG
from perdure.storage.record_references import Condemned
from perdure.storage.store import Progress, Store

_log = logging.getLogger(__name__)

#: Told of an artifact, by its hash, that could not be encrypted anew, and why.
Failed = Callable[[str, PerdureError], None]


class Resealing:
    """Re-encrypts objects. Others may read, put and delete meanwhile."""

    def __init__(
        self, store: Store, places: Sequence[ArtifactContents], collector: ArtifactCollector
    ) -> None:
        self._store = store
        self._places = places
        self._collector = collector

    async def carry_out(
        self, wanted: Callable[[str], bool], progress: Progress | None, failed: Failed | None
    ) -> int:
        done = 0
        for place in self._places:
            async for tagged, found, name in place.with_keys():
                if not wanted(name):
                    continue
                try:
                    with suppress(ArtifactMissing):  # deleted since it was listed
                        await self._seal_again(place, tagged, found)
                        done += 1
                except (Corrupted, KeyRefused) as exc:
                    _log.warning("an artifact keeps its old key: %s", exc)
                    if failed is not None:
                        failed(tagged, exc)
                if progress is not None:
                    progress("encrypting artifacts", done, 0)
        return done

    async def _seal_again(self, place: ArtifactContents, tagged: str, found: StoredObject) -> None:
        if not self._collector.can_collect():
            await place.seal_again(tagged, found)
            return
        was_noted = await self._is_noted(tagged)
        await place.seal_again(tagged, found)
        condemned = await self._store.collection(Condemned).get(tagged, STRONG)
        if condemned is not None or (was_noted and not await self._is_noted(tagged)):
            await self._collector.release(tagged, 0)

    async def _is_noted(self, tagged: str) -> bool:
        return await self._store.collection(LastPut).get(tagged, STRONG) is not None

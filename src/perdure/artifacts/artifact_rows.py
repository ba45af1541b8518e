"""Small artifacts: rows of the bank."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Annotated

import msgspec

from perdure.artifacts.artifact import (
    Artifact,
    ArtifactPlace,
    Located,
    damaged,
    hash_of_key,
    row_key,
)
from perdure.core.errors import Corrupted
from perdure.storage.options import DEFAULT, STRONG
from perdure.storage.record_references import CONDEMNED, Condemned
from perdure.storage.records import Compressed, Key, system_record, type_of
from perdure.storage.rows import Delete
from perdure.storage.store import Store
from perdure.storage.transaction import Transaction

#: The collection of small artifacts; `ArtifactStore.check` looks at it more closely than others do.
ARTIFACT_ROWS = "perdure_artifacts"
#: Rows looked at together when all are listed: at most 64 × 64 KB in memory.
_PAGE = 64


@system_record("artifacts")
class InlineArtifact(msgspec.Struct, frozen=True):
    """A small artifact."""

    id: Annotated[str, Key()]  # sha256/…
    content: Annotated[bytes, Compressed()]


class ArtifactRows:
    """The small artifacts of a bank."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def put(self, content: bytes, transaction: Transaction | None) -> Artifact:
        """Write the row without reading it first: a read would make two puts of the same content
        conflict, and leave a damaged row as it is.
        """
        artifact = Artifact.of(content)
        executor = self._store if transaction is None else transaction
        declared = type_of(InlineArtifact)
        await executor.ready(declared)
        record = InlineArtifact(row_key(artifact.hash), content)
        # Whoever was about to delete it, or did, has to think again.
        await executor.ready(type_of(Condemned))
        pardon = Delete(CONDEMNED, artifact.hash)
        await executor.write([declared.encode(record, None, None), pardon], DEFAULT)
        return artifact

    async def read(self, tagged: str) -> bytes | None:
        try:
            found = await self._store.collection(InlineArtifact).get(row_key(tagged))
        except Corrupted as exc:
            raise damaged(tagged, "its row in the bank is not as it was written") from exc
        if found is not None and Artifact.of(found.content).hash != tagged:
            raise damaged(tagged, "its row in the bank holds other content")
        return None if found is None else found.content

    async def delete(self, tagged: str, transaction: Transaction | None = None) -> None:
        executor = self._store if transaction is None else transaction
        await executor.collection(InlineArtifact).delete(row_key(tagged))

    async def updated(self, tagged: str) -> int | None:
        (row,) = await self._store.adapter.get(ARTIFACT_ROWS, (row_key(tagged),), STRONG)
        return None if row is None else row.updated

    async def located(self) -> AsyncIterator[Located]:
        async for key, updated, size in self.keys():
            tagged = hash_of_key(key)
            if tagged is not None:
                yield Located(tagged, ArtifactPlace.ROW, updated, size)

    async def keys(self) -> AsyncIterator[tuple[str, int, int]]:
        """Keys, times and sizes of rows, unreadable ones included.
        Makes no collection: a check must not change the bank.
        """
        sizes = await self._store.adapter.sizes()
        if not any(size.collection == ARTIFACT_ROWS for size in sizes):
            return
        after = ""
        while rows := await self._store.adapter.salvage(ARTIFACT_ROWS, after, _PAGE):
            for row in rows:
                yield row.key, row.updated, len(row.value)
            after = rows[-1].key

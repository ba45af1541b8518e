"""Checks that every record of a store still reads as it was written."""

from __future__ import annotations

from collections.abc import AsyncIterator

import msgspec

from perdure.core.errors import PerdureError
from perdure.storage.rows import Row, checksum
from perdure.storage.store import Progress, Store

_PAGE = 500


class Problem(msgspec.Struct, frozen=True):
    """A fault, and what it is about: a record, an artifact, or the store."""

    subject: str
    what: str


async def verify_store(
    store: Store, progress: Progress | None = None, *, skip: str = ""
) -> AsyncIterator[Problem]:
    """Check the backend's structure, then every record of every collection but `skip`.

    Records are checked against their checksums, and decoded if their type is declared in this
    process. A damaged record does not keep the others from being checked.
    """
    for line in await store.adapter.inspect():
        yield Problem("store", line)
    for size in await store.adapter.sizes():
        if size.collection == skip:
            continue
        done, after = 0, ""
        while rows := await store.adapter.salvage(size.collection, after, _PAGE):
            for row in rows:
                what = await _fault(store, size.collection, row)
                if what:
                    yield Problem(f"{size.collection}/{row.key}", what)
            after = rows[-1].key
            done += len(rows)
            if progress is not None:
                progress(f"checking {size.collection}", done, size.rows)


async def _fault(store: Store, collection: str, row: Row) -> str:
    if row.checksum == -1:
        return "cannot be read"
    if checksum(row.key, row.content_type, row.schema, row.value) != row.checksum:
        return "is damaged: its checksum does not fit"
    declared = store.declared.get(collection)
    if declared is not None:
        try:
            await store.collection(declared.cls).get(row.key)
        except PerdureError as exc:
            return exc.message
    return ""

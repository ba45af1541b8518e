"""The records of a snapshot: from a store into files, and from files into any store."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TypeVar

import msgspec

from perdure.storage.adapter import Snapshot
from perdure.storage.backups import files
from perdure.storage.backups.manifest import (
    KeptArtifact,
    KeptCollection,
    KeptFile,
    Manifest,
    records_name,
)
from perdure.storage.backups.pages import PageReader, PageWriter, damaged
from perdure.storage.backups.sealing import Seal
from perdure.storage.layouts import Layout
from perdure.storage.query import Scalar
from perdure.storage.rows import Delivered, Entry, Row, checksum
from perdure.storage.snapshots import closing
from perdure.storage.store import Progress
from perdure.storage.threads import in_thread

T = TypeVar("T")

#: Damaged records that are named; of more, the rest is only counted.
_NAMED = 100


class _KeptRow(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A row and what belongs to it."""

    key: str
    value: bytes
    content_type: str
    schema: int
    version: int
    created: int
    updated: int
    expires: int | None
    checksum: int
    columns: tuple[Scalar, ...]
    #: name=value
    tags: tuple[str, ...]


class _KeptEvent(msgspec.Struct, frozen=True, array_like=True, gc=False):
    id: int
    topic: str
    key: str
    payload: bytes
    at: int


class Records(msgspec.Struct, frozen=True):
    """What was written of a store's records."""

    collections: tuple[KeptCollection, ...]
    events: KeptFile
    last_event: int
    damaged: tuple[str, ...]


async def keep(snapshot: Snapshot, folder: Path, seal: Seal, progress: Progress) -> Records:
    """Write everything of a snapshot to files in this folder, each durable when this returns.

    A row whose checksum does not fit is kept as it is, and named.
    """
    await in_thread(files.make_folder, folder / "records")
    collections: list[KeptCollection] = []
    broken: list[str] = []
    for layout in await snapshot.layouts():
        total, done = await snapshot.count(layout.name), 0
        name = records_name(layout.name)
        async with (
            _writing(folder / name, seal) as writer,
            closing(snapshot.entries(layout.name)) as pages,
        ):
            async for page in pages:
                broken += await in_thread(_write_rows, writer, layout.name, page)
                done += len(page)
                progress(f"keeping {layout.name}", done, total)
        collections.append(KeptCollection(layout, writer.kept(name)))
    async with (
        _writing(folder / "events.pages", seal) as writer,
        closing(snapshot.events()) as outbox,
    ):
        async for events in outbox:
            await in_thread(writer.add, [_flat_event(event) for event in events])
    kept = writer.kept("events.pages")
    last = await snapshot.last_event()
    return Records(tuple(collections), kept, last, tuple(_named(broken)))


def keep_artifacts(artifacts: Sequence[KeptArtifact], folder: Path, seal: Seal) -> KeptFile:
    """Write the list of large artifacts."""
    with PageWriter(folder / "artifacts.pages", seal) as writer:
        for start in range(0, len(artifacts), 1_000):
            writer.add(artifacts[start : start + 1_000])
        return writer.kept("artifacts.pages")


def artifacts_of(manifest: Manifest, folder: Path, seal: Seal) -> Iterator[KeptArtifact]:
    """The large artifacts of a snapshot. Raises `BadBackup`."""
    for page in PageReader(folder / manifest.artifacts.name, KeptArtifact, seal).pages():
        yield from page


class KeptSnapshot(Snapshot):
    """A snapshot in files. Its pages are checked as they are read: `BadBackup`."""

    def __init__(self, manifest: Manifest, folder: Path, seal: Seal) -> None:
        self._manifest = manifest
        self._seal = seal
        self._folder = folder
        self._kept = {kept.layout.name: kept for kept in manifest.collections}

    async def layouts(self) -> list[Layout]:
        return [kept.layout for kept in self._manifest.collections]

    async def count(self, collection: str) -> int:
        return self._kept[collection].file.items

    async def entries(self, collection: str) -> AsyncIterator[list[Entry]]:
        async with closing(self._pages(self._kept[collection].file, _KeptRow)) as pages:
            async for page in pages:
                yield [_entry(item) for item in page]

    async def events(self) -> AsyncIterator[list[Delivered]]:
        async with closing(self._pages(self._manifest.events, _KeptEvent)) as pages:
            async for page in pages:
                yield [Delivered(*msgspec.structs.astuple(item)) for item in page]

    async def last_event(self) -> int:
        return self._manifest.last_event

    async def _pages(self, kept: KeptFile, item: type[T]) -> AsyncIterator[list[T]]:
        file, items = self._folder / kept.name, 0
        pages = PageReader(file, item, self._seal).pages()
        try:
            while (page := await in_thread(next, pages, None)) is not None:
                items += len(page)
                yield page
        finally:
            pages.close()
        if items != kept.items:
            raise damaged(file, f"holds {items:,} items and not {kept.items:,}")


@asynccontextmanager
async def _writing(file: Path, seal: Seal) -> AsyncIterator[PageWriter]:
    """A file of pages; it is on disk when the block ends. The disk is waited for in threads."""
    writer = PageWriter(file, seal)
    writer.start()  # at once: a thread could be cancelled with the file open
    try:
        yield writer
    except BaseException:
        await in_thread(writer.abandon)
        raise
    await in_thread(writer.finish)


def _write_rows(writer: PageWriter, collection: str, page: Sequence[Entry]) -> list[str]:
    """Returns the rows that are not what was written to the bank."""
    writer.add([_flat(entry) for entry in page])
    return [f"{collection}/{entry.row.key}" for entry in page if not _is_sound(entry.row)]


def _is_sound(row: Row) -> bool:
    return row.checksum == checksum(row.key, row.content_type, row.schema, row.value)


def _flat(entry: Entry) -> _KeptRow:
    tags = tuple([f"{name}={value}" for name, value in entry.tags])
    return _KeptRow(*msgspec.structs.astuple(entry.row), entry.columns, tags)  # type: ignore[call-arg]


def _flat_event(event: Delivered) -> _KeptEvent:
    return _KeptEvent(*msgspec.structs.astuple(event))


def _entry(kept: _KeptRow) -> Entry:
    *facts, columns, tags = msgspec.structs.astuple(kept)
    pairs = (text.partition("=") for text in tags)
    return Entry(Row(*facts), columns, tuple([(name, value) for name, _, value in pairs]))


def _named(broken: list[str]) -> list[str]:
    if len(broken) <= _NAMED:
        return broken
    return [*broken[:_NAMED], f"and {len(broken) - _NAMED:,} more"]

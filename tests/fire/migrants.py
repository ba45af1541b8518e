"""Records that outlive the program that wrote them, and the processes that bring them along."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Coroutine
from contextlib import nullcontext, suppress
from typing import Annotated, Any, Self, TypeAlias

import msgspec

import perdure
from perdure.core.errors import NewerSchema
from perdure.storage import filling, row_rewrites
from perdure.storage.compression import Compression
from perdure.storage.options import DEFAULT
from perdure.storage.query import Query
from perdure.storage.record_migrations import Migrated, migrate
from perdure.storage.registry import adapter_for
from perdure.storage.store import Store
from perdure.storage.verify import verify_store
from tests.fire.records import text_of

Tell: TypeAlias = Callable[[str], None]


@perdure.record("fire_letters")
class Letter1(msgspec.Struct, frozen=True):
    """As the first program knows it."""

    id: Annotated[str, perdure.Key()]
    text: str


@perdure.record("fire_letters")
class Letter1Indexed(msgspec.Struct, frozen=True):
    """As the second: it wants to find letters by their text."""

    id: Annotated[str, perdure.Key()]
    text: Annotated[str, perdure.Indexed()]


#: Keys that the migration cannot cope with.
FAILING: set[str] = set()


def measure(data: dict[str, Any]) -> dict[str, Any]:
    if data["id"] in FAILING:
        raise ZeroDivisionError("a letter without weight")
    return data | {"length": len(data["text"])}


@perdure.record("fire_letters", migrations=[measure])
class Letter2(msgspec.Struct, frozen=True):
    """As the third."""

    id: Annotated[str, perdure.Key()]
    text: Annotated[str, perdure.Compressed()]
    length: Annotated[int, perdure.Indexed()]


@perdure.record("fire_ends")
class End(msgspec.Struct, frozen=True):
    """Once it is there, writers stop."""

    id: Annotated[str, perdure.Key()]


def short(key: str) -> str:
    """The text of a letter: short enough for an index."""
    return text_of(key)[:200]


def letter(key: str) -> Letter2:
    return Letter2(key, short(key), len(short(key)))


class Program:
    """What a process has: a store with compression. An async context manager."""

    def __init__(self, url: str) -> None:
        compression = Compression()
        self.store = Store(adapter_for(url), middleware=[compression])
        self._compression = compression

    async def __aenter__(self) -> Self:
        # The store attaches what is in its chain, or leaves it to us.
        self._compression.attach(self.store)
        await self.store.open()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.store.close()

    async def write(self, keys: list[str]) -> None:
        await self.store.collection(Letter1).put_many([Letter1(key, short(key)) for key in keys])

    async def stop_writers(self) -> None:
        await self.store.collection(End).put(End("now"))

    async def assert_readable(self, keys: list[str]) -> None:
        """All of them are there as they were written, migrated or not, and no others."""
        found = await self.store.collection(Letter2).query().values()
        assert [each.id for each in found] == sorted(keys)
        assert found == [letter(each.id) for each in found]

    async def assert_migrated(self, keys: list[str]) -> None:
        """None of them needs a function any more, and each is found by its new column."""
        await self.assert_readable(keys)
        rows = await self.store.adapter.find(Query("fire_letters"), DEFAULT)
        assert {row.schema for row in rows} == {2}
        assert all(";zstd" in row.content_type or len(row.value) < 120 for row in rows)
        letters = self.store.collection(Letter2)
        for length, group in itertools.groupby(
            sorted(keys, key=lambda key: len(short(key))), lambda key: len(short(key))
        ):
            found = letters.query().where("length", "=", length)
            assert [each.id for each in await found.values()] == sorted(group)
        assert [problem async for problem in verify_store(self.store)] == []

    async def assert_indexed(self, keys: list[str]) -> None:
        """Each letter is found by its text."""
        letters = self.store.collection(Letter1Indexed)
        found = await letters.query().values()
        assert [each.id for each in found] == sorted(keys)
        by_text: dict[str, list[str]] = {}
        for each in found:
            by_text.setdefault(each.text, []).append(each.id)
        assert await letters.query().count() == len(keys)
        for text, ids in by_text.items():
            matching = await letters.query().where("text", "=", text).values()
            assert [each.id for each in matching] == ids


# Tasks of worker processes; see `worker` ----------------------------------------------------------


async def write_letters(tell: Tell, url: str, name: str, old: bool) -> None:
    """Write letters as the first program does, or the third, until it is told to stop.

    Tells the keys that are there in the end: some are written over, and some deleted and written
    anew.
    """
    async with Program(url) as program:
        letters: Any = program.store.collection(Letter1 if old else Letter2)
        ends = program.store.collection(End)
        await letters.make()
        tell("ready")
        number = 0
        while await ends.get("now") is None:
            number += 1
            key = f"{name}/{number // 2:05d}"
            if number % 10 == 1:
                await letters.delete(key)
            made = letter(key)
            # Old code may not overwrite what was migrated; then it stays as it was written.
            with suppress(NewerSchema) if old else nullcontext():
                await letters.put(Letter1(key, made.text) if old else made)
            tell(key)
            await asyncio.sleep(0.003)  # so that there are not too many in the end


async def migrate_letters(tell: Tell, url: str, rows: int, failing: list[str]) -> None:
    """Migrate in pages of so many rows; tells of each page, and what came of it."""
    row_rewrites._ROWS = row_rewrites._FIRST_ROWS = filling._PAGE = rows
    FAILING.update(failing)
    async with Program(url) as program:
        tell("ready")
        (done,) = await migrate(
            program.store, Letter2, progress=lambda what, done, of: tell(f"{what} {done} {of}")
        )
        tell(msgspec.json.encode(done).decode())


def outcome(lines: list[str]) -> Migrated:
    """What a process that migrated told in the end."""
    return msgspec.json.decode(lines[-1], type=Migrated)


async def index_letters(tell: Tell, url: str, rows: int) -> None:
    """Add an index, in pages of so many rows, and keep it up; tells when it is there."""
    filling._PAGE = rows
    async with Program(url) as program:
        tell("ready")
        await program.store.declare(Letter1Indexed)
        tell("declared")
        while await program.store.collection(End).get("now") is None:
            await program.store.refill()
            await asyncio.sleep(0.01)
        await program.store.refill()
        tell("done")


TASKS: dict[str, Callable[..., Coroutine[Any, Any, None]]] = {
    task.__name__: task for task in (index_letters, migrate_letters, write_letters)
}

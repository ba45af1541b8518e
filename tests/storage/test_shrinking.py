"""A small SQLite bank gives room back that its search index no longer needs."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import apsw
import pytest

from perdure.search import attach
from perdure.search.engine import Document, SearchIndex, TextSearch, Withdrawal, engine_of
from perdure.storage.backends.sqlite import SQLiteAdapter, checkpoint
from perdure.storage.options import DEFAULT
from perdure.storage.rows import Batch

INDEX = SearchIndex("shelf", ("said", "answered"))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "bank.db"


@pytest.fixture
async def bank(file: Path) -> AsyncIterator[SQLiteAdapter]:
    adapter = SQLiteAdapter(f"sqlite:///{file}")
    attach(adapter)
    await adapter.initialize()
    await engine_of(adapter).prepare(INDEX)
    yield adapter
    await adapter.close()


async def fill(bank: SQLiteAdapter, count: int) -> None:
    """Documents that take a page for each few, and go from one table to another."""
    documents = [
        Document(INDEX.name, place, (f"all t{place}", "word " * 150), b"note")
        for place in range(count)
    ]
    await bank.commit(Batch(changes=tuple(documents)), DEFAULT)


async def tend(bank: SQLiteAdapter) -> None:
    while await engine_of(bank).tend(INDEX.name):
        pass


async def find(bank: SQLiteAdapter, term: str) -> list[int]:
    found = await engine_of(bank).search_text(TextSearch(index=INDEX.name, terms=(term,)), DEFAULT)
    return [row[0] for row in found.terms[0].found.tolist()]


def free_pages(file: Path) -> int:
    with contextlib.closing(apsw.Connection(str(file))) as db:
        return int(db.pragma("freelist_count"))


async def test_what_waited_leaves_no_holes_when_it_is_filed(
    bank: SQLiteAdapter, file: Path
) -> None:
    await fill(bank, 300)
    await tend(bank)
    assert free_pages(file) < 16
    assert await find(bank, "all") == list(range(300))


async def test_what_is_withdrawn_gives_its_room_back(bank: SQLiteAdapter, file: Path) -> None:
    await fill(bank, 300)
    await tend(bank)
    await bank.commit(Batch(changes=(Withdrawal(INDEX.name, 10, 299),)), DEFAULT)
    await tend(bank)
    assert free_pages(file) < 16
    assert await find(bank, "all") == list(range(10))


async def test_a_large_bank_is_not_written_anew(
    bank: SQLiteAdapter, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoint, "_SMALL", 20)
    await fill(bank, 300)
    await tend(bank)
    assert free_pages(file) >= 16
    assert await find(bank, "all") == list(range(300))


async def test_somebody_who_writes_is_not_waited_for(
    bank: SQLiteAdapter, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(checkpoint, "_SMALL", 20)
        await fill(bank, 300)
        await tend(bank)
    with contextlib.closing(apsw.Connection(str(file))) as other:
        other.execute("BEGIN IMMEDIATE")
        checkpoint.shrink(file, None)
        other.execute("ROLLBACK")
    assert free_pages(file) >= 16
    await tend(bank)
    assert free_pages(file) < 16


async def test_damage_elsewhere_does_not_keep_the_index_from_being_tended(
    bank: SQLiteAdapter, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(checkpoint, "_SMALL", 20)
        await fill(bank, 300)
        await tend(bank)
    with contextlib.closing(apsw.Connection(str(file))) as other:
        other.execute("CREATE TABLE other(x); INSERT INTO other VALUES('something')")
        page = other.execute("SELECT rootpage FROM sqlite_schema WHERE name = 'other'").get
        size = other.pragma("page_size")
        other.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
    with file.open("r+b") as raw:
        raw.seek((page - 1) * size)
        raw.write(b"\xff" * size)
    await tend(bank)
    assert free_pages(file) >= 16  # it was tried
    assert await find(bank, "all") == list(range(300))

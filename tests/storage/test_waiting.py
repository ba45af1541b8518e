"""Writes that have to wait: cancelled, out of time, or let through in the end."""

# ruff: noqa: PT012  # a transaction is a block

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import TypeAlias

import apsw
import pytest

from perdure.core.errors import DeadlineExceeded
from perdure.storage.options import DEFAULT, STRONG, Consistency, Options
from perdure.storage.store import Store
from tests.conftest import DURABLE, MakeStore
from tests.servers import PostgresServer
from tests.storage.notes import Author, Note

#: Somebody else holds what a write to the authors needs, inside the block.
Lock: TypeAlias = Callable[[], AbstractAsyncContextManager[None]]

pytestmark = pytest.mark.parametrize("store_url", DURABLE, indirect=True)


@pytest.fixture
def locked(request: pytest.FixtureRequest, store_url: str, store: Store, tmp_path: Path) -> Lock:
    @asynccontextmanager
    async def sqlite() -> AsyncIterator[None]:
        with contextlib.closing(apsw.Connection(str(tmp_path / "bank.db"))) as db:
            db.execute("BEGIN IMMEDIATE")
            yield
            db.execute("ROLLBACK")

    @asynccontextmanager
    async def postgresql() -> AsyncIterator[None]:
        server: PostgresServer = request.getfixturevalue("postgres_server")
        with server.connect(store_url.rpartition("/")[2]) as db, db.transaction():
            db.execute("LOCK TABLE perdure.authors IN ACCESS EXCLUSIVE MODE")
            yield

    return sqlite if store_url.startswith("sqlite") else postgresql


@pytest.fixture
async def authors(store: Store) -> None:
    # The first use of a collection makes its table, which waits for as long as it takes.
    await store.declare(Author, Note)
    await store.collection(Author).put(Author("a", "before"))


async def name(store: Store) -> str | None:
    found = await store.collection(Author).get("a")
    return None if found is None else found.name


@pytest.mark.parametrize("options", [DEFAULT, STRONG], ids=["default", "strong"])
async def test_a_waiting_write_that_is_cancelled_is_withdrawn(
    store: Store, authors: None, locked: Lock, options: Options
) -> None:
    async with locked():
        write = asyncio.create_task(store.collection(Author).put(Author("a", "after"), options))
        await asyncio.sleep(0.1)
        assert not write.done()
        write.cancel()
        async with asyncio.timeout(60):  # though the lock is held
            with pytest.raises(asyncio.CancelledError):
                await write
    assert await name(store) == "before"
    await asyncio.sleep(0.1)
    assert await name(store) == "before"
    await store.collection(Author).put(Author("a", "next"))
    assert await name(store) == "next"


async def test_a_waiting_write_is_let_through_in_the_end(
    store: Store, authors: None, locked: Lock
) -> None:
    async with locked():
        write = asyncio.create_task(store.collection(Author).put(Author("a", "after")))
        await asyncio.sleep(0.1)
        assert not write.done()
    assert await write == 2
    assert await name(store) == "after"


async def test_the_event_loop_goes_on_while_a_write_waits(
    store: Store, authors: None, locked: Lock
) -> None:
    async with locked():
        write = asyncio.create_task(store.collection(Author).put(Author("a", "after")))
        for _ in range(20):  # we hold the lock: a loop that waits for it would not come to this
            await asyncio.sleep(0.01)
        assert not write.done()
    await write


@pytest.mark.parametrize("consistency", [Consistency.EVENTUAL, Consistency.STRONG])
async def test_a_write_that_misses_its_deadline_is_withdrawn(
    store: Store, authors: None, locked: Lock, consistency: Consistency
) -> None:
    options = Options(consistency=consistency, deadline=0.15)
    async with locked():
        async with asyncio.timeout(60):
            with pytest.raises(DeadlineExceeded, match="nothing was written"):
                await store.collection(Author).put(Author("a", "late"), options)
    assert await name(store) == "before"
    await asyncio.sleep(0.1)
    assert await name(store) == "before"
    in_time = Options(consistency=consistency, deadline=60)
    assert await store.collection(Author).put(Author("a", "in time"), in_time) == 2


async def test_a_transaction_that_misses_its_deadline_did_nothing(
    store: Store, authors: None, locked: Lock
) -> None:
    async with locked():
        with pytest.raises(DeadlineExceeded):
            async with store.transaction(Options(deadline=0.15)) as transaction:
                await transaction.collection(Note).put(Note("n"))
                await transaction.collection(Author).put(Author("a", "late"))
                transaction.emit("late")
    assert await store.collection(Note).get("n") is None
    assert await name(store) == "before"
    assert (await store.adapter.events("", 10))[0] == []


async def test_one_who_is_cancelled_does_not_take_others_along(
    store: Store, authors: None, locked: Lock
) -> None:
    async with locked():
        writes = [
            asyncio.create_task(store.collection(Author).put(Author(f"{n}", "x"))) for n in range(6)
        ]
        await asyncio.sleep(0.1)
        for write in writes[::2]:
            write.cancel()
    outcomes = await asyncio.gather(*writes, return_exceptions=True)
    assert [outcome == 1 for outcome in outcomes] == [False, True] * 3
    found = await store.collection(Author).get_many([f"{n}" for n in range(6)])
    assert [author is not None for author in found] == [False, True] * 3


async def test_closing_finishes_what_was_accepted(
    make_store: MakeStore, store: Store, authors: None
) -> None:
    writes = [
        asyncio.create_task(store.collection(Author).put(Author(f"{n}", "x"))) for n in range(50)
    ]
    await asyncio.sleep(0)
    await store.close()
    outcomes = await asyncio.gather(*writes, return_exceptions=True)
    again = await make_store()
    found = await again.collection(Author).get_many([f"{n}" for n in range(50)])
    assert [outcome == 1 for outcome in outcomes] == [author is not None for author in found]


async def test_a_read_that_missed_its_deadline_leaves_the_store_usable(
    store: Store, authors: None
) -> None:
    await store.collection(Note).put_many([Note(f"{n}", stars=n % 7) for n in range(2_000)])
    query = store.collection(Note).query().where("stars", "!=", 3).order_by("-stars")
    with contextlib.suppress(DeadlineExceeded):
        await query.values(Options(deadline=0.000_001))
    assert len(await query.values(Options(deadline=30))) == 2_000 - len(range(3, 2_000, 7))

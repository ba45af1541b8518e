"""What a strong write promises, shown by what is left when the promise is put to the test."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable, Iterator
from pathlib import Path
from typing import Any

import pytest

from perdure.core.errors import Conflict
from perdure.storage.backends.postgres import PostgresAdapter
from perdure.storage.backends.sqlite import SQLiteAdapter
from perdure.storage.backends.sqlite.writer import ALONE_FOR
from perdure.storage.options import DEFAULT, STRONG, Consistency, Options
from perdure.storage.rows import Batch, Layout, Put
from perdure.storage.store import Store
from tests.postgres_replica import PostgresReplica
from tests.servers import PostgresServer
from tests.storage.caching import Thing
from tests.storage.power import Disk

# SQLite: the power is cut -------------------------------------------------------------------------


class Bank:
    """A bank on a disk that forgets what was not synced."""

    def __init__(self, disk: Disk, store: Store, path: Path) -> None:
        self._disk = disk
        self.things = store.collection(Thing)
        self.store = store
        self._path = path
        self._cuts = itertools.count()

    @property
    def log_syncs(self) -> int:
        return self._disk.syncs[f"{self._path}-wal"]

    async def survivors(self) -> set[str]:
        """What would be left if the power was cut now."""
        folder = self._path.with_name(f"cut-{next(self._cuts)}")
        left = self._disk.after_power_loss(self._path, folder)
        async with Store(SQLiteAdapter(f"sqlite:///{left}")) as store:
            return {item.id for item in await store.collection(Thing).query().values()}

    async def look_for_company(self) -> None:
        """Wait until a writer no longer goes ahead because it was alone a moment ago."""
        await asyncio.sleep(2 * ALONE_FOR)

    async def put(self, key: str, options: Options = DEFAULT) -> tuple[str, bool]:
        """Write, and tell whether it would have survived when it was acknowledged."""
        await self.things.put(Thing(key), options)
        return key, key in await self.survivors()


@pytest.fixture
def disk() -> Iterator[Disk]:
    with Disk() as disk:
        yield disk


@pytest.fixture
async def bank(disk: Disk, tmp_path: Path) -> AsyncIterator[Bank]:
    path = tmp_path / "bank.db"
    async with Store(SQLiteAdapter(f"sqlite:///{path}")) as store:
        bank = Bank(disk, store, path)
        await bank.things.put(Thing("first"), STRONG)
        yield bank


async def test_a_strong_write_survives_where_a_default_one_does_not(bank: Bank) -> None:
    before = bank.log_syncs
    assert await bank.put("default") == ("default", False)
    assert bank.log_syncs == before
    assert await bank.put("strong", STRONG) == ("strong", True)
    assert bank.log_syncs == before + 1
    assert await bank.survivors() == {"first", "default", "strong"}, "and what came before it"
    assert await bank.put("after") == ("after", False)


async def test_a_strong_write_promotes_its_group(bank: Bank) -> None:
    """Whoever shares the transaction is acknowledged after the sync, too."""
    await bank.look_for_company()
    before = bank.log_syncs
    together = [bank.put(f"{n}") for n in range(5)]
    answers = await asyncio.gather(*together, bank.put("strong", STRONG))
    assert answers == [*((f"{n}", True) for n in range(5)), ("strong", True)]
    assert bank.log_syncs == before + 1, "one sync for all of them"
    answers = await asyncio.gather(*(bank.put(f"{n} again") for n in range(5)))
    assert not any(survives for _, survives in answers)


async def test_many_strong_writes_share_a_sync(bank: Bank) -> None:
    before = bank.log_syncs
    answers = await asyncio.gather(*(bank.put(f"{n}", STRONG) for n in range(20)))
    assert all(survives for _, survives in answers)
    assert bank.log_syncs - before < 10


async def test_a_group_in_which_somebody_fails_is_promoted_too(bank: Bank) -> None:
    await bank.look_for_company()
    refused = Options(expected=7)
    first, failed, strong = await asyncio.gather(
        bank.put("default"), bank.put("refused", refused), bank.put("strong", STRONG),
        return_exceptions=True,
    )  # fmt: skip
    assert isinstance(failed, Conflict)
    assert [first, strong] == [("default", True), ("strong", True)]


async def test_a_failing_strong_write_is_no_reason_to_wait(bank: Bank) -> None:
    refused = Options(consistency=Consistency.STRONG, expected=7)
    with pytest.raises(Conflict):
        await bank.put("refused", refused)
    assert await bank.put("default") == ("default", False)


async def test_everything_else_that_can_be_strong(bank: Bank) -> None:
    await bank.things.put_many([Thing("a"), Thing("b"), Thing("c")], STRONG)
    async with bank.store.transaction(STRONG) as tx:
        await tx.collection(Thing).put(Thing("d"))
    assert await bank.survivors() == {"first", "a", "b", "c", "d"}
    await bank.things.delete("a", STRONG)
    assert await bank.survivors() == {"first", "b", "c", "d"}
    await bank.things.query().prefix("b").delete(STRONG)
    assert await bank.survivors() == {"first", "c", "d"}
    await bank.things.change("c", lambda _: Thing("c", 5), STRONG)
    assert await bank.survivors() == {"first", "c", "d"}


async def test_a_strong_write_survives_a_checkpoint(
    bank: Bank, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the log moves into the file, something is always on disk."""
    monkeypatch.setattr("perdure.storage.backends.sqlite.writer.CHECKPOINT_PAGES", 4)
    bank.store.adapter._writer._checkpoint_at = 4  # type: ignore[attr-defined]
    for number in range(40):
        key = f"{number}"
        assert await bank.put(key, STRONG) == (key, True)
    assert await bank.survivors() == {"first", *(f"{n}" for n in range(40))}


# PostgreSQL ---------------------------------------------------------------------------------------

NOTES = Layout("notes")


def _commit(bank: PostgresAdapter, key: str, options: Options) -> Awaitable[list[int]]:
    return bank.commit(Batch((Put("notes", key, b"x", "text/plain", 1),)), options)


def _log_syncs(server: PostgresServer) -> int:
    """How often those who serve clients have synced the log."""
    with server.connect() as db:
        row = db.execute(
            "SELECT sum(fsyncs)::bigint FROM pg_stat_io"
            " WHERE object = 'wal' AND backend_type = 'client backend'"
        ).fetchone()
    assert row is not None
    return int(row[0] or 0)


async def _told(bank: PostgresAdapter) -> None:
    """Let the server's processes tell what they have counted."""

    async def work(conn: Any) -> None:
        await conn.execute("SELECT pg_stat_force_next_flush()")

    await bank.reader.run(work)


async def test_every_acknowledged_write_is_in_the_servers_log(
    postgres_server: PostgresServer, postgres_url: str
) -> None:
    """Also a default one, whatever the server would do by itself: it may be killed, too."""
    name = postgres_url.rpartition("/")[2]
    with postgres_server.connect() as db:
        db.execute(f"ALTER DATABASE {name} SET synchronous_commit = off")  # type: ignore[arg-type,unused-ignore]
    bank = PostgresAdapter(f"{postgres_url}?pool=1")
    await bank.initialize()
    try:
        await bank.prepare(NOTES)
        await _told(bank)
        before = _log_syncs(postgres_server)
        for number, options in enumerate([DEFAULT, STRONG] * 5):
            await _commit(bank, f"{number}", options)
        await _told(bank)
        assert _log_syncs(postgres_server) >= before + 10
    finally:
        await bank.close()
        with postgres_server.connect() as db:
            db.execute(f"ALTER DATABASE {name} RESET synchronous_commit")  # type: ignore[arg-type,unused-ignore]


async def test_a_strong_write_waits_for_the_standby_that_must_have_it() -> None:
    """Where the loss of a whole machine has to be survived, strong is what waits for it."""
    primary = PostgresServer()
    standby = PostgresReplica(primary)
    url = primary.url()
    try:
        with primary.connect() as db:
            db.execute("ALTER SYSTEM SET synchronous_standby_names = '*'")
            db.execute("ALTER SYSTEM SET synchronous_commit = 'local'")
            db.execute("SELECT pg_reload_conf()")
        bank = PostgresAdapter(url)
        await bank.initialize()
        await bank.prepare(NOTES)
        await _commit(bank, "both are there", STRONG)
        await asyncio.to_thread(standby.stop)
        await asyncio.wait_for(_commit(bank, "default", DEFAULT), 30)
        strong = asyncio.ensure_future(_commit(bank, "strong", STRONG))
        await asyncio.wait([strong], timeout=0.3)
        assert not strong.done()
        await asyncio.to_thread(standby.start)
        assert await asyncio.wait_for(strong, 60) == [1]
        await asyncio.to_thread(standby.catch_up)
        with standby.connect(url.rpartition("/")[2]) as db:
            row = db.execute("SELECT count(*) FROM perdure.notes").fetchone()
        assert row == (3,)
        await bank.close()
    finally:
        standby.dispose()
        primary.dispose()

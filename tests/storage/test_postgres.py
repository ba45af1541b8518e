"""What only PostgreSQL can get wrong: lost connections, concurrent commits, damaged pages."""

from __future__ import annotations

import asyncio
import contextlib
import random
import traceback
import zlib
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Self, TypeAlias

import psycopg
import pytest

from perdure.core.errors import (
    AccessDenied,
    Conflict,
    Corrupted,
    DeadlineExceeded,
    InvalidURL,
    NewerSchema,
    NotAStore,
    PerdureError,
    Unavailable,
)
from perdure.storage.backends.postgres import PostgresAdapter, links, writer
from perdure.storage.options import DEFAULT, Options
from perdure.storage.query import Figure, Query, Summary
from perdure.storage.rows import (
    Batch,
    Check,
    Column,
    Delete,
    Event,
    Index,
    Layout,
    Put,
    Row,
    RowCopy,
)
from tests.servers import PostgresServer
from tests.waiting import until

LAYOUT = Layout("notes", (Column("n", "integer"),), (Index(("n",)),), expires=True, tagged=True)
Open: TypeAlias = Callable[..., Awaitable[PostgresAdapter]]


def put(key: str, expected: int | None = None, value: bytes = b"value", n: int = 1) -> Put:
    checksum = zlib.crc32(value)
    return Put("notes", key, value, "text/plain", 1, checksum, (n,), expected=expected)


def emit(key: str, payload: bytes = b"") -> Event:
    return Event("topic", key, payload)


@pytest.fixture
async def open_bank(postgres_url: str) -> AsyncIterator[Open]:
    """Opens adapters on one database."""
    opened: list[PostgresAdapter] = []

    async def open_one(url: str = postgres_url) -> PostgresAdapter:
        adapter = PostgresAdapter(url)
        await adapter.initialize()
        opened.append(adapter)
        await adapter.prepare(LAYOUT)
        return adapter

    yield open_one
    for adapter in opened:
        await adapter.close()


@pytest.fixture
async def bank(open_bank: Open) -> PostgresAdapter:
    return await open_bank()


async def row_of(bank: PostgresAdapter, key: str) -> Row | None:
    return (await bank.get("notes", [key], DEFAULT))[0]


async def version_of(bank: PostgresAdapter, key: str) -> int:
    row = await row_of(bank, key)
    return row.version if row else 0


async def all_events(bank: PostgresAdapter, position: str = "") -> list[bytes]:
    found: list[bytes] = []
    while True:
        events, position = await bank.events(position, 2)
        if not events:
            return found
        found += [event.payload for event in events]


# Lost connections ---------------------------------------------------------------------------------


class Cutter:
    """A proxy that, once armed, cuts a connection when it sees COMMIT.

    Before passing it on, or after; and perhaps it accepts no other connection afterwards.
    """

    def __init__(self, target: str, *, deliver: bool, stays_away: bool = False) -> None:
        self._target = psycopg.conninfo.conninfo_to_dict(target)
        self._deliver = deliver
        self.cuts = 0
        self.armed = False
        self._stays_away = stays_away
        self._serving: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> str:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        port = self._server.sockets[0].getsockname()[1]
        name = self._target["dbname"]
        return f"postgresql://postgres@127.0.0.1:{port}/{name}?sslmode=disable&gssencmode=disable"

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        await asyncio.gather(*self._serving)

    async def _accept(self, near: asyncio.StreamReader, to_near: asyncio.StreamWriter) -> None:
        self._serving.append(asyncio.create_task(self._serve(near, to_near)))

    async def _serve(self, near: asyncio.StreamReader, to_near: asyncio.StreamWriter) -> None:
        host, port = str(self._target["host"]), str(self._target["port"])
        far, to_far = await asyncio.open_connection(host, int(port))
        answers = asyncio.create_task(_copy(far, to_near))
        with contextlib.suppress(ConnectionError):
            while data := await near.read(65_536):
                if self._stays_away and self.cuts:
                    break
                if self.armed and b"COMMIT\0" in data:
                    self.armed = False
                    self.cuts += 1
                    to_near.transport.abort()
                    if self._deliver:
                        to_far.write(data)
                        await asyncio.sleep(0.05)
                    break
                to_far.write(data)
        for stream in (to_near, to_far):
            stream.close()
            with contextlib.suppress(ConnectionError):
                await stream.wait_closed()
        await answers


async def _copy(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionError):
        while data := await source.read(65_536):
            target.write(data)
    target.close()


@pytest.mark.parametrize("deliver", [True, False])
async def test_connection_lost_in_commit_is_neither_loss_nor_doubling(
    postgres_url: str, open_bank: Open, deliver: bool
) -> None:
    proxy = Cutter(postgres_url, deliver=deliver)
    async with proxy as url:
        bank = await open_bank(url)
        for number in range(1, 4):
            proxy.armed = True
            batch = Batch((put("a"), put(f"b/{number}", 0)), (), (emit("a", b"%d" % number),))
            assert await bank.commit(batch, DEFAULT) == [number, 1]
        assert proxy.cuts == 3
        assert await version_of(bank, "a") == 3
        assert await all_events(bank) == [b"1", b"2", b"3"]
        await bank.close()


async def test_unknown_outcome_is_said(
    postgres_url: str, open_bank: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "PATIENCE", 0.3)
    proxy = Cutter(postgres_url, deliver=True, stays_away=True)
    async with proxy as url:
        bank = await open_bank(url)
        proxy.armed = True
        with pytest.raises(Unavailable, match="unknown"):
            await bank.commit(Batch((put("a"),)), DEFAULT)
        await bank.close()


class Holder:
    """A proxy that, once armed, keeps back a COMMIT and all that comes behind it, until told."""

    def __init__(self, target: str) -> None:
        self._target = psycopg.conninfo.conninfo_to_dict(target)
        self._released = asyncio.Event()
        self._serving: list[asyncio.Task[None]] = []
        self.armed = self.holds = False

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        port = self._server.sockets[0].getsockname()[1]
        name = self._target["dbname"]
        self.url = (
            f"postgresql://postgres@127.0.0.1:{port}/{name}?sslmode=disable&gssencmode=disable"
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()

    def release(self) -> None:
        self._released.set()

    async def _serve(self, near: asyncio.StreamReader, to_near: asyncio.StreamWriter) -> None:
        host, port = str(self._target["host"]), str(self._target["port"])
        far, to_far = await asyncio.open_connection(host, int(port))
        answers = asyncio.create_task(_copy(far, to_near))
        with contextlib.suppress(ConnectionError):
            while data := await near.read(65_536):
                if self.armed and b"COMMIT\0" in data:
                    self.armed, self.holds = False, True
                    await self._released.wait()
                to_far.write(data)
        to_far.close()
        await answers


async def test_a_host_that_is_cut_off_inside_a_transaction_blocks_nobody_for_long(
    postgres_url: str, open_bank: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(links, "IDLE", 0.5)
    async with Holder(postgres_url) as line:
        cut_off, other = await open_bank(line.url), await open_bank()
        await other.commit(Batch((put("a"),)), DEFAULT)
        line.armed = True
        late = asyncio.create_task(cut_off.commit(Batch((put("a"),), (), (emit("a"),)), DEFAULT))
        await until(lambda: line.holds)
        async with asyncio.timeout(100):
            assert await other.commit(Batch((put("a"),), (), (emit("a"),)), DEFAULT) == [2]
        line.release()
        assert await late == [3]
        await cut_off.close()


async def test_backups_and_loading_may_take_their_time(
    postgres_server: PostgresServer, bank: PostgresAdapter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their transactions wait for what is read or written elsewhere."""
    monkeypatch.setattr(links, "IDLE", 0.2)
    await bank.commit(Batch((put("a"), put("b"))), DEFAULT)
    url = postgres_server.url()
    async with bank.snapshot() as snapshot:
        read, layouts = snapshot.entries, await snapshot.layouts()

        async def find_layouts() -> list[Layout]:
            await asyncio.sleep(0.5)
            return layouts

        async def slowly(collection: str) -> AsyncIterator[list[RowCopy]]:
            async for page in read(collection):
                await asyncio.sleep(0.5)
                yield page
                await asyncio.sleep(0.5)

        monkeypatch.setattr(snapshot, "entries", slowly)
        monkeypatch.setattr(snapshot, "layouts", find_layouts)
        copy = PostgresAdapter(url)
        await copy.initialize()
        assert await copy.load(snapshot) == 2
        await copy.close()
    postgres_server.give_back(url)


@pytest.mark.parametrize("how", ["stop", "kill"])
async def test_callers_wait_while_the_server_is_restarted(
    postgres_server: PostgresServer, bank: PostgresAdapter, how: str
) -> None:
    done: dict[str, int] = {}
    stopping = asyncio.Event()

    async def write(key: str) -> None:
        while not stopping.is_set():
            batch = Batch((put(key), put(f"{key}/{done.get(key, 0)}", 0)), (), (emit(key),))
            versions = await bank.commit(batch, DEFAULT)
            done[key] = done.get(key, 0) + 1
            assert versions == [done[key], 1]

    async def read() -> None:
        while not stopping.is_set():
            await bank.find(Query("notes", limit=3), DEFAULT)

    tasks = [asyncio.create_task(work) for work in (write("a"), write("b"), write("c"), read())]
    for _ in range(2):
        await asyncio.sleep(0.15)
        await asyncio.to_thread(getattr(postgres_server, how))
        await asyncio.to_thread(postgres_server.start)
    await asyncio.sleep(0.15)
    stopping.set()
    await asyncio.gather(*tasks)
    for key, count in done.items():
        assert await version_of(bank, key) == count
        assert len(await bank.find(Query("notes", prefix=f"{key}/"), DEFAULT)) == count
    assert len(await all_events(bank)) == sum(done.values())


async def test_deadline_while_the_server_is_away(
    postgres_server: PostgresServer, bank: PostgresAdapter
) -> None:
    postgres_server.stop()
    with pytest.raises(DeadlineExceeded):
        await bank.commit(Batch((put("a"),)), Options(deadline=0.1))
    with pytest.raises(DeadlineExceeded):
        await bank.get("notes", ["a"], Options(deadline=0.1))
    postgres_server.start()
    assert await version_of(bank, "a") == 0


# Concurrent commits -------------------------------------------------------------------------------


async def one_wins(*commits: Awaitable[list[int]]) -> None:
    outcomes = await asyncio.gather(*commits, return_exceptions=True)
    assert sum(isinstance(outcome, list) for outcome in outcomes) == 1, outcomes
    assert sum(isinstance(outcome, Conflict) for outcome in outcomes) == len(commits) - 1


async def test_no_write_skew(open_bank: Open) -> None:
    one, other = await open_bank(), await open_bank()
    for number in range(15):
        a, b = f"{number}/a", f"{number}/b"
        await one_wins(
            one.commit(Batch((put(a),), (Check("notes", b, 0),)), DEFAULT),
            other.commit(Batch((put(b),), (Check("notes", a, 0),)), DEFAULT),
        )
        await one.commit(Batch((put(f"{a}/x"), put(f"{b}/x"))), DEFAULT)
        x, y = await one.get("notes", [f"{a}/x", f"{b}/x"], DEFAULT)
        assert x
        assert y
        await one_wins(
            one.commit(Batch((put(x.key),), (Check("notes", y.key, 1, y.created),)), DEFAULT),
            other.commit(Batch((put(y.key),), (Check("notes", x.key, 1, x.created),)), DEFAULT),
        )
    assert not await one.reader.fetch("SELECT 1 FROM perdure.notes WHERE _version = 0")


def waiting(url: str) -> int:
    """How many wait for a lock."""
    with psycopg.connect(url, autocommit=True) as db:
        found = db.execute(
            "SELECT count(*) FROM pg_stat_activity"
            " WHERE wait_event_type = 'Lock' AND datname = current_database()"
        ).fetchone()
    return found[0] if found else 0


async def test_a_check_holds_until_the_commit(postgres_url: str, bank: PostgresAdapter) -> None:
    """Between check and commit nobody can change the row, be it only by a plain write."""
    await bank.commit(Batch((put("checked"), put("locked"))), DEFAULT)
    checked = await row_of(bank, "checked")
    assert checked
    with psycopg.connect(postgres_url) as holder:
        holder.execute("SELECT 1 FROM perdure.notes WHERE _key = 'locked' FOR UPDATE")
        checks = (Check("notes", "checked", 1, checked.created), Check("notes", "absent", 0))
        checking = asyncio.create_task(bank.commit(Batch((put("locked"),), checks), DEFAULT))
        await until(lambda: waiting(postgres_url) == 1)
        writing = [
            asyncio.create_task(bank.commit(Batch((put(key),)), DEFAULT))
            for key in ("checked", "absent")
        ]
        await asyncio.sleep(0.1)
        assert not any(task.done() for task in (checking, *writing))
    assert await checking == [2]
    assert await asyncio.gather(*writing) == [[2], [1]]


async def test_deletes_of_absent_rows_take_part_in_the_order(open_bank: Open) -> None:
    one, other = await open_bank(), await open_bank()
    for number in range(20):
        k, m = f"{number}/k", f"{number}/m"
        await asyncio.gather(
            one.commit(Batch((Delete("notes", k), put(m, value=b"deleter"))), DEFAULT),
            other.commit(Batch((put(k), put(m, value=b"putter"))), DEFAULT),
        )
        there, last = await one.get("notes", [k, m], DEFAULT)
        assert last
        assert (last.value == b"putter") == (there is not None)


async def test_overlapping_batches_never_deadlock(open_bank: Open, postgres_url: str) -> None:
    banks = [await open_bank(), await open_bank()]
    keys = [f"k{number}" for number in range(6)]

    async def mix(bank: PostgresAdapter, turn: int) -> None:
        dice = random.Random(turn)
        for _ in range(15):
            first, second, third = dice.sample(keys, 3)
            batch = Batch((put(first), Delete("notes", second)), (Check("notes", third, 0),))
            with contextlib.suppress(Conflict):
                await bank.commit(batch, DEFAULT)

    await asyncio.gather(*(mix(banks[turn % 2], turn) for turn in range(8)))
    with psycopg.connect(postgres_url) as db:
        (deadlocks,) = db.execute(
            "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"
        ).fetchone() or (None,)
    assert deadlocks == 0


# Cancellation and deadlines -----------------------------------------------------------------------


async def test_a_commit_that_waits_for_a_lock_can_be_withdrawn(
    postgres_url: str, bank: PostgresAdapter
) -> None:
    await bank.commit(Batch((put("a"),)), DEFAULT)
    with psycopg.connect(postgres_url, autocommit=True) as db:
        db.execute("BEGIN")
        db.execute("SELECT 1 FROM perdure.notes WHERE _key = 'a' FOR UPDATE")
        task = asyncio.create_task(bank.commit(Batch((put("a"), put("b"))), DEFAULT))
        await asyncio.sleep(0.1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        with pytest.raises(DeadlineExceeded):
            await bank.commit(Batch((put("a"), put("b"))), Options(deadline=0.1))
        waiting = db.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
            " AND datname = current_database()"
        ).fetchone()
        assert waiting == (0,)
        db.execute("ROLLBACK")
    assert [await version_of(bank, key) for key in "ab"] == [1, 0]


async def test_cancelled_at_any_moment_it_is_all_or_nothing_and_over(bank: PostgresAdapter) -> None:
    dice = random.Random(1)
    outcomes: Counter[int] = Counter()
    before = 0
    turn = 0
    while min(outcomes[0], outcomes[1]) < 5:
        turn += 1
        batch = Batch((put("a"), put(f"b/{turn}")), (), (emit("a", b"%d" % turn),))
        task = asyncio.create_task(bank.commit(batch, DEFAULT))
        await asyncio.sleep(dice.uniform(0, 0.006))
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        after = await version_of(bank, "a")
        assert after - before == await version_of(bank, f"b/{turn}")
        outcomes[after - before] += 1
        before = after
    assert len(await all_events(bank)) == before


async def test_a_read_out_of_time_is_stopped_on_the_server(
    postgres_url: str, bank: PostgresAdapter
) -> None:
    with pytest.raises(DeadlineExceeded):
        await bank.reader.fetch("SELECT pg_sleep(30)", deadline=0.1)
    with psycopg.connect(postgres_url, autocommit=True) as db:
        running = (
            "SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'SELECT pg_sleep%'"
            " AND state = 'active' AND datname = current_database()"
        )
        await until(lambda: db.execute(running).fetchone() == (0,))


# The outbox ---------------------------------------------------------------------------------------


async def test_events_behind_an_open_transaction_wait_for_it(
    postgres_url: str, bank: PostgresAdapter
) -> None:
    with psycopg.connect(postgres_url) as slow:
        slow.execute(
            "INSERT INTO perdure.perdure_outbox(topic, key, payload, at) VALUES('t', 'k', 's', 0)"
        )
        await bank.commit(Batch((), (), (emit("a", b"quick"),)), DEFAULT)
        assert await bank.events("", 10) == ([], "")
    assert await all_events(bank) == [b"s", b"quick"]


async def test_events_of_a_key_come_in_the_order_of_the_commits(open_bank: Open) -> None:
    banks = [await open_bank(), await open_bank()]
    seen: list[int] = []

    async def write(bank: PostgresAdapter, turn: int) -> None:
        for step in range(12):
            # The writes lock in another order than the transactions begin.
            keys = {"shared", f"{(turn + step) % 3}"}
            await bank.commit(
                Batch(tuple(put(key) for key in keys), (), (emit("shared"),)), DEFAULT
            )

    async def read() -> None:
        position = ""
        while len(seen) < 8 * 12:
            events, position = await banks[0].events(position, 5)
            seen.extend(event.id for event in events)

    await asyncio.gather(read(), *(write(banks[turn % 2], turn) for turn in range(8)))
    assert seen == sorted(set(seen))


async def test_trim_takes_only_what_was_passed(bank: PostgresAdapter) -> None:
    for number in range(5):
        await bank.commit(Batch((), (), (emit("a", b"%d" % number),)), DEFAULT)
    _, position = await bank.events("", 2)
    assert await bank.trim("", 2**62) == 0
    assert await bank.trim(position, 0) == 0
    assert await bank.trim(position, 2**62) == 2
    assert await all_events(bank) == [b"2", b"3", b"4"]


async def test_events_outlive_a_move_to_a_server_that_counts_anew(
    postgres_url: str, open_bank: Open
) -> None:
    first = await open_bank()
    for number in range(3):
        await first.commit(Batch((), (), (emit("a", b"%d" % number),)), DEFAULT)
    _, position = await first.events("", 1)
    with psycopg.connect(postgres_url) as db:  # as a restored dump looks on a young server
        db.execute(
            "UPDATE perdure.perdure_outbox SET xid = (xid::text::bigint + 1000000)::text::xid8"
        )
    era, transaction, event = position.split(":")
    position = f"{era}:{int(transaction) + 1_000_000}:{event}"
    moved = await open_bank()
    await moved.commit(Batch((), (), (emit("a", b"new"),)), DEFAULT)
    assert (await all_events(moved, position))[-3:] == [b"1", b"2", b"new"]


# Damage -------------------------------------------------------------------------------------------


async def test_a_flipped_byte_is_noticed_and_the_rest_is_readable(
    postgres_server: PostgresServer, postgres_url: str, bank: PostgresAdapter
) -> None:
    keys = [f"k{number:03}" for number in range(120)]
    await bank.commit(Batch(tuple(put(key, value=key.encode() * 50) for key in keys)), DEFAULT)
    await bank.commit(Batch((put("long", value=b"long" * 10_000),)), DEFAULT)
    with psycopg.connect(postgres_url, autocommit=True) as db:
        paths = db.execute(
            "SELECT pg_relation_filepath(oid), pg_relation_filepath(reltoastrelid)"
            " FROM pg_class WHERE oid = 'perdure.notes'::regclass"
        ).fetchone()
        assert paths
    await bank.close()
    postgres_server.stop()
    for path, text in zip(paths, (b"k070" * 20, b"long" * 20), strict=True):
        with (postgres_server.data_dir / path).open("r+b") as file:
            place = file.read().index(text) + 9
            file.seek(place)
            file.write(b"!")
    postgres_server.start()

    bank = PostgresAdapter(postgres_url)
    await bank.initialize()
    await bank.prepare(LAYOUT)
    try:
        with pytest.raises(Corrupted):
            await bank.get("notes", ["k070"], DEFAULT)
        assert await bank.inspect()
        rows: list[Row] = []
        while page := await bank.salvage("notes", rows[-1].key if rows else "", 50):
            rows += page
        assert [row.key for row in rows] == [*keys, "long"]
        damaged = [row.key for row in rows if zlib.crc32(row.value) != row.checksum]
        assert damaged == ["k070", "long"]
    finally:
        await bank.close()


# Addresses and what is there ----------------------------------------------------------------------


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://user:secret@host:99x/name",
        "postgresql://user:sec%zzret@host/name?password=secret",
        "postgresql://user:x@secret@host/name",
        "postgresql://user:secret@host/name?nonsense=1",
        "postgresql://user:secret@host/name?schema=No-Name",
        "postgresql://user:secret@host/name?pool=0",
        "postgresql://user:secret@host/name?oops",
        "postgresql://user:secret@host/name\0",
    ],
)
def test_malformed_addresses_are_refused_without_the_password(url: str) -> None:
    with pytest.raises(InvalidURL) as caught:
        PostgresAdapter(url)
    assert "secret" not in "".join(traceback.format_exception(caught.value))


async def fails(url: str, error: type[PerdureError], match: str = "") -> None:
    with pytest.raises(error, match=match) as caught:
        await PostgresAdapter(url).initialize()
    assert caught.value.hint
    assert "secret" not in "".join(traceback.format_exception(caught.value))


async def test_what_cannot_be_opened_is_said_plainly(
    postgres_url: str, postgres_server: PostgresServer
) -> None:
    with_password = postgres_url.replace("postgres@", "postgres:secret@")
    await fails("postgresql://user:secret@127.0.0.1:1/name", Unavailable, "127.0.0.1:1/name")
    await fails(with_password.replace("/test_", "/no_test_"), Unavailable, "does not exist")
    with psycopg.connect(postgres_url, autocommit=True) as db:
        db.execute("CREATE SCHEMA theirs")
        db.execute("CREATE TABLE theirs.things(a int)")
        db.execute("DROP ROLE IF EXISTS guest")
        db.execute("CREATE ROLE guest LOGIN")
    await fails(f"{with_password}?schema=theirs", NotAStore, "theirs")
    await fails(postgres_url.replace("postgres@", "guest:secret@"), AccessDenied, "permission")
    adapter = PostgresAdapter(postgres_url)
    await adapter.initialize()
    await adapter.close()
    with psycopg.connect(postgres_url, autocommit=True) as db:
        db.execute("UPDATE perdure.perdure_meta SET value = 99 WHERE name = 'format'")
    await fails(with_password, NewerSchema, "99")


async def test_many_may_initialize_at_once(postgres_url: str) -> None:
    adapters = [PostgresAdapter(postgres_url) for _ in range(8)]

    async def start(adapter: PostgresAdapter) -> frozenset[str] | None:
        await adapter.initialize()
        return await adapter.prepare(LAYOUT)

    try:
        assert await asyncio.gather(*map(start, adapters)) == [frozenset()] * 8
    finally:
        for adapter in adapters:
            await adapter.close()


async def test_durability_does_not_depend_on_the_servers_default(
    postgres_url: str, open_bank: Open
) -> None:
    with psycopg.connect(postgres_url, autocommit=True) as db:
        name = db.info.dbname
        db.execute(f"ALTER DATABASE {name} SET synchronous_commit = off")  # type: ignore[arg-type,unused-ignore]
    bank = await open_bank()

    async def setting(conn: Any) -> str:
        cursor = await conn.execute("SHOW synchronous_commit")
        row = await cursor.fetchone()
        return str(row[0])

    run = bank.writer.run
    assert [await run(setting), await run(setting, strong=True)] == ["local", "on"]
    with psycopg.connect(postgres_url, autocommit=True) as db:
        db.execute(f"ALTER DATABASE {name} RESET synchronous_commit")  # type: ignore[arg-type,unused-ignore]


async def test_a_column_may_change_its_type_under_prepared_statements(
    bank: PostgresAdapter,
) -> None:
    await bank.commit(Batch((put("a", n=7),)), DEFAULT)
    summary = Summary(Query("notes"), ((Figure.COUNT, ""),), ("n",))
    for _ in range(8):
        assert await bank.summarize(summary, DEFAULT) == [(7, 1)]
    text = Layout("notes", (Column("n", "text"),), expires=True, tagged=True)
    assert await bank.prepare(text) == frozenset({"n"})
    await bank.activate(text)
    assert await bank.summarize(summary, DEFAULT) == [(None, 1)]

"""A streaming replica answers what may be old, and nothing else."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import random
import time
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import TypeAlias

import psycopg
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.core.errors import InvalidURL
from perdure.storage.backends.postgres import PostgresAdapter, address, replica
from perdure.storage.backends.postgres.replica import Replica, ReplicaMarks
from perdure.storage.options import DEFAULT, STRONG, Options, bounded
from perdure.storage.query import Figure, Query, Summary
from perdure.storage.rows import Batch, Column, Layout, Put
from perdure.storage.store import Store
from tests.postgres_replica import PostgresReplica
from tests.servers import PostgresServer
from tests.storage.notes import Note

LAYOUT = Layout("notes", (Column("n", "integer"),))
Open: TypeAlias = Callable[..., Awaitable[PostgresAdapter]]


@pytest.fixture(scope="module")
def standby(postgres_server: PostgresServer) -> Iterator[PostgresReplica]:
    """A replica that all tests of this module use; they leave it as it was."""
    made = PostgresReplica(postgres_server)
    yield made
    made.dispose()


@pytest.fixture
async def open_bank(
    postgres_server: PostgresServer, postgres_url: str, standby: PostgresReplica
) -> AsyncIterator[Open]:
    """Opens adapters on one database: with the replica, or as told."""
    opened: list[PostgresAdapter] = []

    async def open_one(url: str = "") -> PostgresAdapter:
        adapter = PostgresAdapter(url or standby.beside(postgres_url))
        await adapter.initialize()
        opened.append(adapter)
        await adapter.prepare(LAYOUT)
        return adapter

    standby.catch_up()
    yield open_one
    for adapter in opened:
        await adapter.close()
    standby.start()
    standby.resume()


@pytest.fixture
async def other(postgres_url: str, open_bank: Open) -> PostgresAdapter:
    """Somebody who writes elsewhere."""
    return await open_bank(postgres_url)


async def write(bank: PostgresAdapter, value: int, key: str = "a") -> None:
    content = b"%d" % value
    put = Put("notes", key, content, "text/plain", 1, zlib.crc32(content), (value,))
    await bank.commit(Batch((put,)), DEFAULT)


async def read(bank: PostgresAdapter, options: Options = DEFAULT, key: str = "a") -> int | None:
    (row,) = await bank.get("notes", [key], options)
    return None if row is None else int(row.value)


async def read_all_ways(bank: PostgresAdapter, options: Options) -> list[int | None]:
    (row,) = await bank.find(Query("notes"), options)
    ((total,),) = await bank.summarize(Summary(Query("notes"), ((Figure.SUM, "n"),)), options)
    assert isinstance(total, int)
    return [await read(bank, options), int(row.value), total]


def replica_of(bank: PostgresAdapter) -> Replica:
    assert bank._replica is not None
    return bank._replica


async def until(condition: Callable[[], bool], seconds: float = 100.0) -> None:
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110  # nothing tells when it is so
            await asyncio.sleep(0.005)


# What each level answers --------------------------------------------------------------------------


async def test_eventual_answers_old_and_strong_answers_new(
    open_bank: Open, other: PostgresAdapter, standby: PostgresReplica
) -> None:
    await write(other, 1)
    standby.pause()
    await write(other, 2)
    bank = await open_bank()
    assert await read_all_ways(bank, DEFAULT) == [2, 2, 2], "what was there when it was opened"
    standby.resume()
    standby.pause()
    await asyncio.sleep(replica.LOOK_AGAIN)
    await write(other, 3)
    before = replica_of(bank).answered
    assert await read_all_ways(bank, DEFAULT) == [2, 2, 2]
    assert replica_of(bank).answered == before + 3
    assert await read_all_ways(bank, STRONG) == [3, 3, 3]
    assert replica_of(bank).answered == before + 3


async def test_bounded_answers_old_for_so_long_and_no_longer(
    open_bank: Open, other: PostgresAdapter, standby: PostgresReplica
) -> None:
    bank = await open_bank()
    await write(other, 1)
    standby.pause()
    assert await read(bank, bounded(2)) == 1, "from the primary, which tells its position"
    start = time.monotonic()
    await write(other, 2)
    old = 0
    while await read(bank, bounded(60)) == 1 and time.monotonic() < start + 2.5:
        old += await read(bank, bounded(2)) == 1
        if time.monotonic() > start + 2:
            assert await read(bank, bounded(2)) == 2
        assert await read(bank, bounded(0)) == 2
    assert old > 0, "the replica could answer at first"
    assert await read(bank, bounded(60)) == 1, "a minute is not over"
    assert await read(bank) == 1


async def test_bounded_reads_come_from_a_replica_that_follows(
    open_bank: Open, other: PostgresAdapter
) -> None:
    bank = await open_bank()
    await write(other, 1)
    for _ in range(200):
        await read(bank, bounded(60))
    assert replica_of(bank).answered > 160, "one read in 30 s asks the primary"


async def test_one_reads_what_one_has_written(
    open_bank: Open, other: PostgresAdapter, standby: PostgresReplica
) -> None:
    bank = await open_bank()
    await write(bank, 1)
    standby.pause()
    for number in range(2, 20):
        await write(bank, number)
        assert await read(bank) == number
        assert await read(bank, bounded(60)) == number
    assert await read(other) == 19
    standby.resume()
    before = replica_of(bank).answered
    await asyncio.sleep(replica.LOOK_AGAIN)
    assert await read(bank) == 19
    assert replica_of(bank).answered == before + 1, "it has come as far as what was written here"


async def test_the_primary_is_asked_now_and_then(
    open_bank: Open, standby: PostgresReplica, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who only reads learns some time that another server has become the primary."""
    bank = await open_bank()
    standby.catch_up()
    monkeypatch.setattr(replica, "MARK_EVERY", 0.1)
    start = replica_of(bank)._marks.newest()
    async with asyncio.timeout(60):
        while not (replica_of(bank).answered and replica_of(bank)._marks.newest() > start + 0.2):
            await read(bank)


async def test_a_read_under_way_does_not_hide_a_write(
    open_bank: Open, standby: PostgresReplica
) -> None:
    """Positions that were told before a commit say nothing about it."""
    bank = await open_bank()
    await write(bank, 0)
    standby.pause()

    async def reader() -> None:
        for _ in range(100):
            await read(bank)

    async def writer(key: str) -> None:
        for number in range(30):
            await write(bank, number, key)
            assert await read(bank, key=key) == number

    await asyncio.gather(reader(), reader(), *(writer(key) for key in "bcd"))


async def test_a_conflict_is_solved_by_reading_the_primary(
    postgres_url: str, standby: PostgresReplica
) -> None:
    async with (
        Store(PostgresAdapter(postgres_url)) as elsewhere,
        Store(PostgresAdapter(standby.beside(postgres_url))) as store,
    ):
        theirs, ours = elsewhere.collection(Note), store.collection(Note)
        await theirs.put(Note("a", text="1"))
        standby.catch_up()
        assert await ours.get("a") == Note("a", text="1")
        standby.pause()
        await theirs.put(Note("a", text="2"))
        attempts = itertools.count(1)

        def more(note: Note | None) -> Note:
            assert note is not None
            assert next(attempts) <= 2, "the second attempt reads what is there"
            return Note("a", text=note.text + "!")

        assert (await ours.change("a", more)).text == "2!"
        standby.resume()


async def test_collections_that_were_not_replayed_yet(
    open_bank: Open, other: PostgresAdapter, standby: PostgresReplica
) -> None:
    bank = await open_bank()
    standby.pause()
    tools = Layout("tools")
    await other.prepare(tools)
    await other.commit(Batch((Put("tools", "a", b"1", "text/plain", 1),)), DEFAULT)
    # As if the layout was known from an earlier look.
    bank._layouts["tools"] = tools
    (row,) = await bank.get("tools", ["a"], DEFAULT)
    assert row is not None
    assert row.value == b"1"
    assert replica_of(bank)._usable


async def test_perdures_own_collections_come_from_the_primary(
    open_bank: Open, other: PostgresAdapter, standby: PostgresReplica
) -> None:
    bank = await open_bank()
    own = Layout("perdure_things")
    for adapter in (bank, other):
        await adapter.prepare(own)
    standby.resume()
    standby.pause()
    await other.commit(Batch((Put("perdure_things", "a", b"1", "text/plain", 1),)), DEFAULT)
    assert await bank.get("perdure_things", ["a"], DEFAULT) != [None]


# A replica in trouble -----------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["stop", "kill"])
async def test_a_replica_dies_and_comes_back_under_load(
    open_bank: Open, standby: PostgresReplica, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    monkeypatch.setattr(replica, "REST", 0.1)
    bank = await open_bank()
    await write(bank, 7)
    standby.catch_up()
    stopping = False

    async def reader() -> None:
        while not stopping:
            async with asyncio.timeout(60):
                assert await read(bank) == 7
                assert await read(bank, bounded(0.05)) == 7
            await asyncio.sleep(0)

    readers = [asyncio.create_task(reader()) for _ in range(4)]
    for _ in range(2):
        before = replica_of(bank).answered
        await until(lambda before=before: replica_of(bank).answered > before + 20)  # type: ignore[misc]
        await asyncio.to_thread(getattr(standby, how))
        await until(lambda: not replica_of(bank)._usable)
        await asyncio.sleep(0.2)
        await asyncio.to_thread(standby.start)
    before = replica_of(bank).answered
    await until(lambda: replica_of(bank).answered > before + 20)
    stopping = True
    await asyncio.gather(*readers)


class Freezer:
    """A proxy that, once frozen, passes nothing on and closes nothing."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._flowing = asyncio.Event()
        self._flowing.set()
        self._tasks: set[asyncio.Task[None]] = set()

    def freeze(self) -> None:
        self._flowing.clear()

    async def __aenter__(self) -> int:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _accept(self, near: asyncio.StreamReader, to_near: asyncio.StreamWriter) -> None:
        far, to_far = await asyncio.open_connection("127.0.0.1", self._port)
        for source, target in ((near, to_far), (far, to_near)):
            self._tasks.add(asyncio.create_task(self._copy(source, target)))

    async def _copy(self, source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            try:
                while data := await source.read(65_536):
                    await self._flowing.wait()
                    target.write(data)
            finally:
                target.close()


async def test_a_replica_that_falls_silent_is_given_up(
    open_bank: Open,
    postgres_url: str,
    standby: PostgresReplica,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    freezer = Freezer(standby.port)
    async with freezer as port:
        url = standby.beside(postgres_url).replace(f"%3A{standby.port}", f"%3A{port}")
        bank = await open_bank(url + "%3Fsslmode%3Ddisable%26gssencmode%3Ddisable")
        await write(bank, 7)
        standby.catch_up()
        await read(bank)
        assert await read(bank) == 7
        assert replica_of(bank).answered
        monkeypatch.setattr(replica, "PATIENCE", 2.0)
        freezer.freeze()
        async with asyncio.timeout(35):  # twice the patience, for all of them together
            assert await asyncio.gather(*(read(bank) for _ in range(20))) == [7] * 20
        monkeypatch.setattr(replica, "PATIENCE", 3_600.0)
        async with asyncio.timeout(60):
            assert await read(bank) == 7, "it is left alone"
        await bank.close()


async def test_a_deadline_leaves_time_for_the_primary(
    open_bank: Open, standby: PostgresReplica
) -> None:
    bank = await open_bank()
    await write(bank, 7)
    standby.catch_up()
    await read(bank)
    slow = "SELECT CASE WHEN pg_is_in_recovery() THEN pg_sleep(60)::text ELSE 'primary' END"
    rows = await replica_of(bank).fetch(slow, (), Options(deadline=4))
    assert rows == [("primary",)]
    assert replica_of(bank)._usable, "the question was slow, not the replica"


async def test_a_long_read_may_take_its_time(
    open_bank: Open, standby: PostgresReplica, monkeypatch: pytest.MonkeyPatch
) -> None:
    bank = await open_bank()
    monkeypatch.setattr(replica, "PATIENCE", 0.5)
    await read(bank)
    standby.catch_up()
    await asyncio.sleep(replica.LOOK_AGAIN)
    slow = "SELECT CASE WHEN pg_is_in_recovery() THEN 'replica' || pg_sleep(1.5)::text END"
    assert await replica_of(bank).fetch(slow, (), DEFAULT) == [("replica",)]


_ASLEEP = "SELECT 1 FROM pg_stat_activity WHERE wait_event = 'PgSleep'"


async def test_a_conflict_with_recovery(
    open_bank: Open, postgres_url: str, standby: PostgresReplica
) -> None:
    bank = await open_bank()
    await write(bank, 7)
    standby.catch_up()
    await read(bank)
    with standby.connect() as db:
        db.execute("ALTER SYSTEM SET max_standby_streaming_delay = 0")
        db.execute("SELECT pg_reload_conf()")
    slow = (
        "SELECT pg_is_in_recovery(), CASE WHEN pg_is_in_recovery() THEN pg_sleep(60)::text END"
        " FROM perdure.notes"
    )
    asked = asyncio.create_task(replica_of(bank).fetch(slow, (), DEFAULT))
    with standby.connect() as db:
        await until(lambda: bool(db.execute(_ASLEEP).fetchall()))
    with psycopg.connect(postgres_url, autocommit=True) as db:
        db.execute("ALTER TABLE perdure.notes ADD COLUMN more int")
    assert await asked == [(False, None)], "the primary has answered"
    assert not replica_of(bank)._usable
    with standby.connect() as db:
        db.execute("ALTER SYSTEM RESET max_standby_streaming_delay")
        db.execute("SELECT pg_reload_conf()")


async def test_mistakes_of_the_caller_do_not_count_against_it(
    open_bank: Open, standby: PostgresReplica
) -> None:
    bank = await open_bank()
    standby.catch_up()
    await read(bank)
    with pytest.raises(Exception, match="division by zero"):
        await replica_of(bank).fetch("SELECT 1/0", (), DEFAULT)
    assert replica_of(bank)._usable


# Which server it is -------------------------------------------------------------------------------


async def test_a_promoted_replica_is_not_asked_any_more(
    open_bank: Open,
    postgres_server: PostgresServer,
    postgres_url: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(replica, "REST", 0.05)
    traitor = PostgresReplica(postgres_server)
    try:
        bank = await open_bank(traitor.beside(postgres_url))
        await write(bank, 1)
        traitor.catch_up()
        await read(bank)
        await asyncio.sleep(replica.LOOK_AGAIN)
        await read(bank)
        answered = replica_of(bank).answered
        assert answered
        await asyncio.to_thread(traitor.promote)
        with traitor.connect(postgres_url.rpartition("/")[2]) as db:
            db.execute("UPDATE perdure.notes SET _value = '666'")
        for _ in range(20):
            assert await read(bank) == 1
            assert await read(bank, bounded(60)) == 1
            await asyncio.sleep(0.01)
        assert replica_of(bank).answered == answered
        again = await open_bank(traitor.beside(postgres_url))
        assert await read(again) == 1
        await bank.close()
        await again.close()
    finally:
        traitor.dispose()


async def test_it_must_be_a_replica_of_this_server(
    postgres_url: str, postgres_server: PostgresServer, standby: PostgresReplica
) -> None:
    stranger = PostgresServer()
    try:
        name = postgres_url.rpartition("/")[2]
        with stranger.connect() as db:
            db.execute(f"CREATE DATABASE {name}")  # type: ignore[arg-type,unused-ignore]
        own = f"postgresql%3A%2F%2F127.0.0.1%3A{stranger.port}"
        with pytest.raises(InvalidURL, match="another cluster") as caught:
            await PostgresAdapter(f"{postgres_url}?replica={own}").initialize()
        assert "streaming replica" in caught.value.hint
    finally:
        stranger.dispose()
    other = f"postgresql%3A%2F%2F127.0.0.1%3A{standby.port}%2Fpostgres"
    with pytest.raises(InvalidURL, match="another database"):
        await PostgresAdapter(f"{postgres_url}?replica={other}").initialize()


@pytest.mark.parametrize("where", ["away", "primary"])
async def test_a_bank_opens_without_its_replica(
    open_bank: Open,
    postgres_server: PostgresServer,
    postgres_url: str,
    caplog: pytest.LogCaptureFixture,
    where: str,
) -> None:
    port = 1 if where == "away" else postgres_server.port
    secret = f"postgresql%3A%2F%2Fpostgres%3Asecret%40127.0.0.1%3A{port}"
    with caplog.at_level(logging.WARNING):
        bank = await open_bank(f"{postgres_url}?replica={secret}")
        await write(bank, 7)
        assert await read(bank) == 7
    warnings = [record.getMessage() for record in caplog.records]
    assert len(warnings) == 1
    assert "is left alone" in warnings[0]
    assert "secret" not in warnings[0]


async def test_another_primary_takes_over(
    postgres_server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The replica is used again when it follows the new primary, and not before."""
    monkeypatch.setattr(replica, "REST", 0.05)
    first = PostgresServer()
    second = PostgresReplica(first)
    third = PostgresReplica(first)
    name = first.url().rpartition("/")[2]
    hosts = f"127.0.0.1:{first.port},127.0.0.1:{second.port}"
    own = f"postgresql%3A%2F%2F127.0.0.1%3A{third.port}"
    url = f"postgresql://postgres@{hosts}/{name}?target_session_attrs=read-write"
    third.catch_up()
    bank = PostgresAdapter(f"{url}&replica={own}%3Ftarget_session_attrs%3Dany")
    try:
        await bank.initialize()
        await bank.prepare(LAYOUT)
        await write(bank, 1)
        second.catch_up()
        third.pause()
        await asyncio.to_thread(first.kill)
        await asyncio.to_thread(second.promote)
        await write(bank, 2)
        assert await read(bank) == 2
        assert replica_of(bank).answered == 0
        with third.connect() as db:
            db.execute("SELECT pg_wal_replay_resume()")
            conninfo = f"host=127.0.0.1 port={second.port} user=postgres"
            db.execute(f"ALTER SYSTEM SET primary_conninfo = '{conninfo}'")  # type: ignore[arg-type,unused-ignore]
            db.execute("SELECT pg_reload_conf()")
        async with asyncio.timeout(20):
            while not replica_of(bank).answered:
                assert await read(bank) == 2
                await asyncio.sleep(0.01)
        assert await read(bank) == 2
    finally:
        await bank.close()
        for server in (third, second, first):
            server.dispose()


# Addresses ----------------------------------------------------------------------------------------


def test_what_the_address_of_a_replica_leaves_out_is_the_primarys() -> None:
    url = "postgresql://ada:secret@one:5433/bank?schema=mine&pool=3&sslmode=require"
    server = address.parse(f"{url}&replica=postgresql%3A%2F%2Ftwo").replica
    assert server is not None
    assert (server.schema, server.pool, server.label) == ("mine", 3, "postgresql://two:5432/bank")
    wanted = {"user": "ada", "password": "secret", "sslmode": "require", "dbname": "bank"}
    assert server.parameters.items() >= wanted.items()
    given = "postgresql%3A%2F%2Fbob%3Apw%40two%3A5434%2Fbank%3Fsslmode%3Ddisable"
    server = address.parse(f"{url}&replica={given}").replica
    assert server is not None
    wanted = {"user": "bob", "password": "pw", "port": "5434", "sslmode": "disable"}
    assert server.parameters.items() >= wanted.items()


@pytest.mark.parametrize(
    "given",
    [
        "two",
        "mysql%3A%2F%2Ftwo",
        "postgresql%3A%2F%2F%2Fbank",
        "postgresql%3A%2F%2Fada%3Ahidden%40two%3Aport",
        "postgresql%3A%2F%2Fada%3Ahidden%40two%2Fbank%3Fschema%3Dx",
        "postgresql%3A%2F%2Fada%3Ahidden%40two%2Fbank%3Fwhat%3Dx",
        "postgresql%3A%2F%2Fada%3Ahidden%40two%2Fbank%3Freplica%3Dpostgresql%253A%252F%252Fx",
    ],
)
def test_bad_addresses_of_replicas(given: str) -> None:
    with pytest.raises(InvalidURL) as caught:
        address.parse(f"postgresql://one/bank?replica={given}")
    assert "hidden" not in str(caught.value)
    assert caught.value.hint


def test_a_bad_address_does_not_show_the_password_of_its_replica() -> None:
    with pytest.raises(InvalidURL) as caught:
        address.parse("postgresql://one/bank?what=1&replica=postgresql%3A%2F%2Fa%3Ahidden%40two")
    assert "hidden" not in str(caught.value)


# Marks --------------------------------------------------------------------------------------------

_TIMES = st.floats(0, 1e5, allow_nan=False)


@given(st.lists(_TIMES, min_size=1), _TIMES)
def test_marks_prove_what_they_say(moments: list[float], asked: float) -> None:
    marks = ReplicaMarks()
    for moment in sorted(moments):
        marks.add(moment, int(moment * 10))  # the position at that moment
    position = marks.since(asked)
    assert marks.newest() == max(moments)
    if position is None:
        assert max(moments) < asked
    else:
        assert position >= int(asked * 10)


def test_few_marks_reach_far_back() -> None:
    marks = ReplicaMarks()
    for moment in range(100_000):
        marks.add(moment / 10, moment)
    assert len(marks._marks) < 100
    for age in (1, 10, 100, 1_000, 5_000):
        position = marks.since(10_000 - age)
        assert position is not None
        assert position <= 100_000 - 10 * age * 0.75 + 10, "not much newer than was asked for"


@pytest.mark.repeated
async def test_answers_are_never_older_than_they_may_be(
    open_bank: Open, other: PostgresAdapter, standby: PostgresReplica
) -> None:
    """Against a replica that stops and goes on, with the truth at hand."""
    bank = await open_bank()
    await write(other, 0)
    acknowledged: list[tuple[float, int]] = [(time.monotonic(), 0)]
    dice, stopping = random.Random(6), False

    async def writer() -> None:
        for number in itertools.count(1):
            await write(other, number)
            acknowledged.append((time.monotonic(), number))
            await asyncio.sleep(dice.random() * 0.01)
            if stopping:
                return

    async def reader() -> None:
        while not stopping:
            age = dice.choice([0.01, 0.05, 0.2])
            start = time.monotonic()
            found = await read(bank, bounded(age))
            least = max((n for at, n in acknowledged if at <= start - age), default=None)
            assert least is None or (found is not None and found >= least)
            await asyncio.sleep(0)

    tasks = [asyncio.create_task(work) for work in (writer(), reader(), reader())]
    for _ in range(4):
        await asyncio.sleep(0.2)
        await asyncio.to_thread(standby.pause)
        await asyncio.sleep(0.2)
        await asyncio.to_thread(standby.resume)
    stopping = True
    await asyncio.gather(*tasks)
    assert replica_of(bank).answered > 50

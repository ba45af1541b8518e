"""What only procrastinate does: tickets that follow rows, and workers that are heard of."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Literal, TypeAlias

import psycopg
import pytest
from procrastinate.schema import SchemaManager

import perdure
from perdure.config import Config
from perdure.config.config_loader import JobsConfig
from perdure.core.errors import Unsupported
from perdure.jobs import Job, JobState, Runner
from perdure.jobs.lease_engine import LeaseEngine
from perdure.jobs.procrastinate_engine import ProcrastinateEngine
from perdure.storage.store import Store
from tests.conftest import MakeStore
from tests.jobs.conftest import PROCRASTINATE, MakeRunner
from tests.servers import PostgresServer
from tests.waiting import until

Sql: TypeAlias = Callable[..., list[Any]]


def engine_of(runner: Runner) -> ProcrastinateEngine:
    assert isinstance(runner._engine, ProcrastinateEngine)
    return runner._engine


@pytest.fixture
def store_url(postgres_url: str) -> str:
    return postgres_url


@pytest.fixture
def engine_name() -> str:
    return PROCRASTINATE


@pytest.fixture
def sql(store: Store, store_url: str) -> Sql:
    """Asks the database, as somebody beside us."""

    def ask(text: str, *params: object) -> list[Any]:
        path = "-c search_path=perdure"
        with psycopg.connect(store_url, autocommit=True, options=path) as conn:
            cursor = conn.execute(text, params)
            return cursor.fetchall() if cursor.description else []

    return ask


async def test_a_ticket_goes_with_its_row(make_runner: MakeRunner, store: Store, sql: Sql) -> None:
    held = asyncio.Event()
    runner = make_runner()
    runner.register("work", lambda _: held.wait())
    await runner.start()
    await until(lambda: engine_of(runner)._worker)
    tickets = "SELECT args ->> 'job', queue_name, lock, status FROM procrastinate_jobs ORDER BY id"
    await runner.enqueue(None, "other", key="1", order="agent/a")
    await runner.enqueue(None, "work", key="2")
    await until(lambda: "doing" in str(sql(tickets)))
    assert sql(tickets) == [
        ("other/1", "other", "order agent/a", "todo"),
        ("work/2", "work", "job work/2", "doing"),
    ]
    held.set()
    await runner.settle()
    assert [row[0] for row in sql(tickets)] == ["other/1"]
    assert sql("SELECT count(*) FROM procrastinate_events WHERE type = 'started'") == [(0,)]


async def test_rows_get_their_ticket_and_tickets_without_a_row_go(
    make_runner: MakeRunner, store: Store, sql: Sql
) -> None:
    """As after a backup, a copy, a commit that could not write them, or on the way from leases."""
    done = list[str]()
    runner = make_runner()
    for number in range(3):
        await runner.enqueue(None, "work", key=str(number))  # before the first worker: no tables
    dead = Job("work/x", "work", None, JobState.RUNNING, 0, attempts=1, owner="dead", until=1)
    await store.collection(Job).put(dead)
    runner.register("work", lambda job: done.append(job.id))
    await runner.start()
    await runner.settle()
    assert sorted(done) == ["work/0", "work/1", "work/2", "work/x"]
    sql(
        "INSERT INTO procrastinate_jobs(queue_name, task_name, args)"
        """ VALUES('work', 'perdure', '{"job": "work/gone"}')"""
    )
    await until(lambda: sql("SELECT count(*) FROM procrastinate_jobs") == [(0,)])
    assert len(done) == 4


async def test_what_was_fetched_and_did_not_arrive_is_fetched_again(
    make_runner: MakeRunner, sql: Sql
) -> None:
    """The connection broke, or the process stood still for so long that it was given up."""
    done = list[str]()
    runner = make_runner()
    await runner.start()
    runner.register("work", lambda job: done.append(job.id))
    await until(lambda: engine_of(runner)._worker)
    await runner.enqueue(None, "later", key="1")
    sql(
        "UPDATE procrastinate_jobs SET status = 'doing', queue_name = 'work', worker_id = %s",
        engine_of(runner)._worker,
    )
    await runner.enqueue(None, "other")
    runner.register("later", lambda job: done.append(job.id))
    await until(lambda: done)
    former = engine_of(runner)._worker
    sql("DELETE FROM procrastinate_workers")
    await until(lambda: engine_of(runner)._worker not in (0, former))
    await runner.enqueue(None, "work")
    await until(lambda: len(done) == 2)


async def test_a_burst_of_tickets_is_analyzed(make_runner: MakeRunner, sql: Sql) -> None:
    """Without statistics, each fetch compares every ticket with every other: 3,000 took 300 ms."""
    runner = make_runner()
    runner.register("work", lambda _: None)
    await runner.start()
    await until(lambda: engine_of(runner)._worker)
    analyzed = "SELECT last_analyze FROM pg_stat_user_tables WHERE relname = 'procrastinate_jobs'"
    assert sql(analyzed) == [(None,)]
    sql(
        "INSERT INTO procrastinate_jobs(queue_name, task_name, lock)"
        " SELECT 'other', 'perdure', 'job ' || n FROM generate_series(1, 500) AS n"
    )
    await until(lambda: sql(analyzed) != [(None,)])


async def test_hosts_with_and_without_it_share_the_work(
    make_runner: MakeRunner, make_store: MakeStore
) -> None:
    done = list[tuple[str, int]]()
    other = await make_store()
    runners = {"tickets": make_runner(), "leases": Runner(other, poll=0.01)}

    def handler(name: str) -> Callable[[Job], Awaitable[None]]:
        async def work(job: Job) -> None:
            done.append((name, job.payload))
            await asyncio.sleep(0.002)

        return work

    for name, runner in runners.items():
        runner.register("work", handler(name))
    count = 0
    async with runners["leases"]:
        await runners["tickets"].start()
        async with asyncio.timeout(100):
            while {name for name, _ in done} != set(runners):
                for _ in range(20):
                    await list(runners.values())[count % 2].enqueue(None, "work", count)
                    count += 1
                for runner in runners.values():
                    await runner.settle()
    assert sorted(number for _, number in done) == list(range(count))


_VICTIM = """
import asyncio, os, sys
from perdure.jobs import Runner
from perdure.jobs.procrastinate_engine import ProcrastinateEngine
from perdure.storage.registry import adapter_for
from perdure.storage.store import Store
from perdure.core.clock import now

async def main(url):
    async def handler(job):
        print(job.payload, flush=True)
        await asyncio.sleep(3600 if job.payload == 2 else 0)
    async with Store(adapter_for(url, now)) as store:
        engine = ProcrastinateEngine(store, poll=0.01, first=0, beat=0.1)
        runner = Runner(store, engine=engine)
        runner.register("work", handler)
        await runner.start()
        await asyncio.sleep(3600)

asyncio.run(main(sys.argv[1]))
"""


def _start_victim(url: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", _VICTIM, url]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


async def test_what_a_killed_worker_had_in_hand_goes_to_another_in_order(
    make_runner: MakeRunner, store_url: str
) -> None:
    mine = list[tuple[int, int]]()
    runner = make_runner()
    for number in range(5):
        await runner.enqueue(None, "work", number, order="agent/a")
    victim = _start_victim(store_url)
    assert victim.stdout is not None
    for number in range(3):
        assert await asyncio.to_thread(victim.stdout.readline) == f"{number}\n"
    runner.register("work", lambda job: mine.append((job.payload, job.attempts)))
    await runner.start()
    await until(lambda: engine_of(runner)._beating < 1e9)
    await asyncio.sleep(0.3)
    assert mine == [], "the third is in hand, and the fourth has to wait for it"
    os.kill(victim.pid, signal.SIGKILL)
    victim.wait()
    victim.stdout.close()
    await until(lambda: len(mine) == 3)
    assert mine == [(2, 2), (3, 1), (4, 1)]


async def test_who_was_given_up_for_dead_records_nothing(
    make_runner: MakeRunner, make_store: MakeStore
) -> None:
    slow, quick = make_runner(poll=3_600), make_runner(await make_store())
    held, mine = asyncio.Event(), list[int]()
    slow.register("work", lambda _: held.wait())
    quick.register("work", lambda job: mine.append(job.attempts))
    await slow.start()
    await slow.enqueue(None, "work")
    await until(lambda: slow._running)
    engine_of(slow)._helpers[0].cancel()  # it stands still, for all that others can tell
    await quick.start()
    await until(lambda: mine)
    await quick.settle()
    assert mine == [2]
    held.set()
    await until(lambda: slow.counts.lost)
    assert (slow.counts.done, quick.counts.done) == (0, 1)


@pytest.mark.slow
async def test_silence_while_the_database_was_away_is_not_death(
    make_runner: MakeRunner, make_store: MakeStore, postgres_server: PostgresServer
) -> None:
    begun, held = list[str](), asyncio.Event()

    async def work(job: Job) -> None:
        begun.append(job.id)
        await held.wait()

    runners = [make_runner(), make_runner(await make_store())]
    for runner in runners:
        engine_of(runner)._pause = 1.0
        runner.register("work", work)
        await runner.start()
    for number in range(8):
        await runners[0].enqueue(None, "work", key=str(number))
    await until(lambda: len(begun) == 8)
    await asyncio.sleep(7)  # both would restart what others have in hand by now
    await asyncio.to_thread(postgres_server.stop)
    await asyncio.sleep(7)
    await asyncio.to_thread(postgres_server.start)
    await asyncio.sleep(4)
    held.set()
    for runner in runners:
        await runner.settle()
    assert sorted(begun) == [f"work/{number}" for number in range(8)]
    assert sum(runner.counts.done for runner in runners) == 8


async def test_tables_are_made_once_and_brought_up_to_the_installed_version(
    make_runner: MakeRunner,
    make_store: MakeStore,
    sql: Sql,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    runners = [make_runner(await make_store()) for _ in range(3)]
    for runner in runners:
        runner.register("work", print)
        await runner.start()
    await until(lambda: all(engine_of(runner)._worker for runner in runners))
    for runner in runners:
        await runner.stop()
    assert sql("SELECT count(*) FROM procrastinate_workers") == [(0,)]
    note = "SELECT obj_description('procrastinate_jobs'::regclass, 'pg_class')"
    ((installed,),) = sql(note)
    # A release that adds something, which stands in its own folder of migrations.
    (tmp_path / "03.09.00_01_pre.sql").write_text("CREATE TABLE procrastinate_jobs(id bigint)")
    release = ".".join(f"{int(part):02}" for part in installed.split("."))
    (tmp_path / f"{release}_01_pre_add.sql").write_text("CREATE TABLE procrastinate_new(id bigint)")
    monkeypatch.setattr(SchemaManager, "get_migrations_path", lambda: str(tmp_path))
    sql("COMMENT ON TABLE procrastinate_jobs IS '3.9.0'")
    again = make_runner(await make_store())
    again.register("work", print)
    await again.start()
    await until(lambda: engine_of(again)._worker)
    assert sql("SELECT count(*) FROM procrastinate_new") == [(0,)]
    assert sql(note) == [(installed,)]


@pytest.mark.parametrize(
    ("choice", "engine"),
    [
        ("auto", ProcrastinateEngine),
        ("procrastinate", ProcrastinateEngine),
        ("leases", LeaseEngine),
    ],
)
async def test_a_bank_on_postgresql_takes_the_engine_that_is_configured(
    store_url: str, choice: Literal["auto", "leases", "procrastinate"], engine: type
) -> None:
    config = Config(jobs=JobsConfig(engine=choice))
    async with perdure.Bank(store_url, config=config) as bank:
        assert isinstance(bank.jobs._engine, engine)


async def test_it_is_for_postgresql() -> None:
    with pytest.raises(Unsupported, match="on PostgreSQL"):
        perdure.Bank("memory://", config=Config(jobs=JobsConfig(engine="procrastinate")))

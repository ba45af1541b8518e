"""Several `perdure serve` and workers on one PostgreSQL: what they do together, and what it takes.

Everything is a process of its own on this machine: PostgreSQL (as it comes, but for 1 GB of shared
buffers), servers with everything on, clients (`cluster_processes`, `http_lanes`). Two clients with
eight connections each append turns of four messages (5 KB, with a tool), every connection to a
session of its own, of eight agents; as fast as they are answered. Blocks with 1, 2 and 4 servers
take turns, each on an empty database.

- `appends_per_s_…`, `p95_ms_…` with so many servers; `scaling` is with 2 over with 1. Clients,
  servers and database share the cores, and what one server puts off until nobody writes, several do
  at once: that figure says most about the machine. `scaling_limit` is what its cores allow at most:
  one server fills one core, two have to leave room for database and clients (`database_share` of
  the processor). `others_cores` is what the rest of the machine took meanwhile. `cpu_ms_…` is
  processor time for an append while they go on.
- `scaling_quota`: the same when each server may use an eighth of a core, so that servers, and not
  this machine, are the limit; `scaling_quota_4` with 4 servers over with 1. Not measured where the
  kernel does not let us.
- `cpu_ms_settled_…`: processor time for an append of servers and database, until all levels and
  indexes are made, too; `cpu_growth` with 4 servers over with 1: what many hosts lose.
- `rows_…`, `commits_…`, `wal_…`, `bytes_per_append`: in the database, when everything is made.
- `jobs_per_s`: empty jobs through procrastinate, by two workers of eight jobs at a time.
- `takeover_s`: from `kill -9` of a worker until another begins the job that it had in hand; the
  worst of several.
"""

from __future__ import annotations

import asyncio
import random
import statistics
import tempfile
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING

import msgspec
import psutil
import psycopg

import perdure
from benchmarks.cluster_processes import (
    JOB,
    Load,
    Loaded,
    Quotas,
    Served,
    Worker,
    bank_config,
    loaded,
    quotas,
    seconds_of,
    seconds_of_machine,
)
from benchmarks.conversations import bulk
from benchmarks.harness import Report, percentile, postgres_server, work_folder
from perdure.bank import Bank

if TYPE_CHECKING:
    from tests.servers import PostgresServer

_SERVERS = (1, 2, 4)
#: Of a client: connections, and agents whose sessions they append to.
_CLIENTS, _LANES, _AGENTS = 2, 8, 4
_QUOTA = 0.125
_ENQUEUERS = 10
_WARM = 1.0
#: What has settled uses less of a core, for so many seconds.
_CALM, _CALM_FOR = 0.06, 3.0
_PATIENCE = 300.0


class Did(msgspec.Struct, frozen=True):
    """One block. Processor time in seconds."""

    samples: list[float]
    seconds: float
    appended: int
    servers: float
    database: float
    clients: float
    others: float

    @property
    def per_s(self) -> float:
        return len(self.samples) / self.seconds


async def run(report: Report, *, quick: bool) -> None:
    rounds, seconds, jobs, deaths = (1, 1.0, 40, 1) if quick else (3, 6.0, 1_500, 6)
    report.figures["scaling"] = None
    server = postgres_server()
    if server is None:
        report.say("  not measured, there is no PostgreSQL")
        return
    with work_folder() as name:
        try:
            with server.connect() as db:
                db.execute("ALTER SYSTEM SET shared_buffers = '1GB'")
            server.stop()
            server.start()
            cluster = Cluster(server, Path(name), seconds)
            await _append(report, cluster, rounds)
            await _append_with_quotas(report, cluster, rounds)
            for count in (1, 4):
                await _settle(report, cluster, count)
            settled = [report.figures[f"cpu_ms_settled_{count}"] for count in (1, 4)]
            report.figures["cpu_growth"] = round(settled[1] / settled[0], 3)
            await _run_jobs(report, server, jobs)
            await _take_over(report, server, deaths)
        finally:
            server.dispose()


class Cluster:
    """One PostgreSQL, and what is measured on it."""

    def __init__(self, server: PostgresServer, folder: Path, seconds: float) -> None:
        self.server, self._folder, self.seconds = server, folder, seconds

    @asynccontextmanager
    async def serving(self, count: int, limit: Quotas | None = None) -> AsyncIterator[list[Served]]:
        """So many servers on an empty database."""
        url = self.server.url()
        async with AsyncExitStack() as stack:
            stack.callback(self.server.give_back, url)
            folder = Path(tempfile.mkdtemp(dir=self._folder))
            servers = list[Served]()
            for _ in range(count):
                served = await Served(url, folder).start()
                stack.push_async_callback(served.stop)
                servers.append(served)
            await self._clients(servers, "warm", _LANES, _WARM)  # what is loaded late is there
            if limit is not None:
                for served in servers:
                    limit.add(served.process.pid)
            yield servers

    async def load(self, servers: list[Served], name: str, *, lanes: int = _LANES) -> Did:
        cores, began = psutil.cpu_count() or 1, perf_counter()
        parts = [served.process.pid for served in servers]
        before = [seconds_of(pid) for pid in parts], self.database_seconds(), seconds_of_machine()
        clients = await self._clients(servers, name, lanes, self.seconds)
        after = [seconds_of(pid) for pid in parts], self.database_seconds(), seconds_of_machine()
        spent = sum(after[0]) - sum(before[0])
        database = after[1] - before[1]
        machine = after[2] - before[2]
        own = sum(client.cpu for client in clients)
        elapsed = perf_counter() - began
        return Did(
            [each for client in clients for each in client.samples],
            max(client.seconds for client in clients),
            sum(client.appended for client in clients),
            spent,
            database,
            own,
            max(0.0, min(machine, cores * elapsed) - spent - database - own) / elapsed,
        )

    async def _clients(
        self, servers: list[Served], name: str, lanes: int, seconds: float
    ) -> list[Loaded]:
        to = [(served.url, served.headers) for served in servers]
        loads = [
            Load(f"{name}-{number}", to, lanes, _AGENTS, seconds / 4, seconds, number)
            for number in range(_CLIENTS if lanes > 1 else 1)
        ]
        return await asyncio.gather(*map(loaded, loads))

    def database_seconds(self) -> float:
        return _database_seconds(self.server)


# Appends ----------------------------------------------------------------------------------------


async def _append(report: Report, cluster: Cluster, rounds: int) -> None:
    did = await _alternate(cluster, _SERVERS, rounds, None)
    for count in _SERVERS:
        _tell(report, str(count), did[count])
        report.figures[f"appends_per_s_{count}"] = round(_rate(did[count]), 1)
        _spread(report, f"appends_per_s_{count}", [each.per_s for each in did[count]])
        report.figures[f"p95_ms_{count}"] = _ms(_p95(did[count]))
        for part in ("servers", "database", "clients"):
            report.figures[f"cpu_ms_{part}_{count}"] = _ms(_cpu(did[count], part))
    report.figures["p95_ms"] = report.figures["p95_ms_2"]
    report.figures["scaling"] = _over(did, 2)
    report.figures["scaling_4"] = _over(did, 4)
    _spread(report, "scaling", [b.per_s / a.per_s for a, b in zip(did[1], did[2], strict=True)])
    one = {part: _cpu(did[1], part) for part in ("servers", "database", "clients")}
    report.figures["scaling_limit"] = _limit(one["servers"], sum(one.values()))
    report.figures["database_share"] = round(one["database"] / sum(one.values()), 3)
    report.figures["others_cores"] = round(
        statistics.mean(each.others for blocks in did.values() for each in blocks), 2
    )
    async with cluster.serving(1) as servers:
        calm = await cluster.load(servers, "calm", lanes=1)
    report.figures["p95_ms_alone"] = _ms(_p95([calm]))
    report.figures["p50_ms_alone"] = _ms(percentile(calm.samples, 0.5))


async def _append_with_quotas(report: Report, cluster: Cluster, rounds: int) -> None:
    with quotas(_QUOTA) as limit:
        if limit is None:
            report.say("  quotas: not measured, the kernel does not let us")
            report.figures["scaling_quota"] = None
            return
        did = await _alternate(cluster, _SERVERS, rounds, limit)
    for count in _SERVERS:
        _tell(report, f"{count} with {_QUOTA} of a core each", did[count])
        report.figures[f"appends_per_s_quota_{count}"] = round(_rate(did[count]), 1)
        for part in ("servers", "database"):
            report.figures[f"cpu_ms_{part}_quota_{count}"] = _ms(_cpu(did[count], part))
    report.figures["scaling_quota"] = _over(did, 2)
    report.figures["scaling_quota_4"] = _over(did, 4)
    _spread(
        report, "scaling_quota", [b.per_s / a.per_s for a, b in zip(did[1], did[2], strict=True)]
    )


async def _alternate(
    cluster: Cluster, counts: tuple[int, ...], rounds: int, limit: Quotas | None
) -> dict[int, list[Did]]:
    did: dict[int, list[Did]] = {count: [] for count in counts}
    order = random.Random(0)
    for _ in range(rounds):
        for count in order.sample(counts, len(counts)):
            async with cluster.serving(count, limit) as servers:
                did[count].append(await cluster.load(servers, "load"))
    return did


def _limit(servers: float, everything: float) -> float:
    """One server fills one core; two cannot do more than all cores allow."""
    return round(min(2.0, (psutil.cpu_count() or 1) * servers / everything), 2)


def _rate(blocks: list[Did]) -> float:
    return sum(len(each.samples) for each in blocks) / sum(each.seconds for each in blocks)


def _over(did: dict[int, list[Did]], count: int) -> float:
    return round(_rate(did[count]) / _rate(did[1]), 2)


def _cpu(blocks: list[Did], part: str) -> float:
    spent: float = sum(getattr(each, part) for each in blocks)
    return spent / sum(each.appended for each in blocks)


def _p95(blocks: list[Did]) -> float:
    return percentile([sample for each in blocks for sample in each.samples], 0.95)


def _ms(seconds: float) -> float:
    return round(seconds * 1e3, 2)


def _spread(report: Report, metric: str, values: list[float]) -> None:
    report.spread[metric] = [round(percentile(values, p), 2) for p in (0.1, 0.9)]


def _tell(report: Report, what: str, blocks: list[Did]) -> None:
    cpu = ", ".join(f"{p} {_cpu(blocks, p) * 1e3:.2f}" for p in ("servers", "database", "clients"))
    report.say(
        f"  servers: {what}: {_rate(blocks):,.0f} appends/s, p95 {_p95(blocks) * 1e3:.1f} ms,"
        f" ms of processor an append: {cpu}"
    )


# What is made of them ---------------------------------------------------------------------------


async def _settle(report: Report, cluster: Cluster, number: int) -> None:
    """Append, and wait until nothing is left to be made."""
    async with cluster.serving(number) as servers:
        pids = [served.process.pid for served in servers]
        await _until_calm(cluster, pids)  # what the servers began with is done
        bank = servers[0].bank
        before, used, began = _counts(bank), _spent(cluster, pids), perf_counter()
        count = (await cluster.load(servers, "settle")).appended
        loaded_at = perf_counter()
        resting = await _until_calm(cluster, pids)
        taken = perf_counter() - began
        settled = (_spent(cluster, pids) - used - resting * taken) / count
        after, connections = _counts(bank), _connections(bank)
    report.figures[f"cpu_ms_settled_{number}"] = _ms(settled)
    report.say(
        f"  servers: {number}: {count:,} appends settled {taken - (loaded_at - began):.0f} s after"
        f" the last, with {settled * 1e3:.2f} ms of processor each"
    )
    report.figures["idle_cpu_ms_per_s"] = _ms(resting / number)
    for what, rows in after.items():
        per = (rows - before[what]) / count
        report.figures[f"{what}_per_append"] = round(per, 2 if per < 100 else None)
    report.figures["connections_per_server"] = round(connections / number, 1)
    report.figures["text_per_append"] = _text_per_append()


async def _until_calm(cluster: Cluster, pids: list[int]) -> float:
    """Wait until servers and database rest; what they take of a core then."""
    began = perf_counter()
    while True:
        start, at = _spent(cluster, pids), perf_counter()
        await asyncio.sleep(_CALM_FOR)
        resting = (_spent(cluster, pids) - start) / (perf_counter() - at)
        if resting < _CALM * len(pids) or at - began > _PATIENCE:
            return resting


def _spent(cluster: Cluster, pids: list[int]) -> float:
    return sum(map(seconds_of, pids)) + cluster.database_seconds()


_COUNTS = """
SELECT pg_database_size(current_database()),
    (pg_current_wal_lsn() - '0/0')::bigint,
    (SELECT xact_commit FROM pg_stat_database WHERE datname = current_database()),
    (SELECT sum(fsyncs)::bigint FROM pg_stat_io WHERE object = 'wal'),
    (SELECT coalesce(sum(n_tup_ins), 0)::bigint FROM pg_stat_user_tables),
    (SELECT coalesce(sum(n_live_tup), 0)::bigint FROM pg_stat_user_tables)
"""


def _counts(url: str) -> dict[str, int]:
    with psycopg.connect(url, autocommit=True) as db:
        row = db.execute(_COUNTS).fetchone()
    assert row is not None
    names = ("bytes", "wal_bytes", "commits", "wal_syncs", "rows_written", "rows")
    return dict(zip(names, row, strict=True))


def _connections(url: str) -> int:
    with psycopg.connect(url, autocommit=True) as db:
        row = db.execute(
            "SELECT count(*) - 1 FROM pg_stat_activity WHERE datname = current_database()"
        ).fetchone()
    assert row is not None
    return int(row[0])


def _text_per_append() -> int:
    turns = bulk(100, 0)
    size = sum(
        len(message["content"] or message["tool_calls"][0]["function"]["arguments"])
        for turn in turns
        for message in turn
    )
    return round(size / len(turns))


# Jobs -------------------------------------------------------------------------------------------


async def _run_jobs(report: Report, server: PostgresServer, count: int) -> None:
    url = server.url()
    async with _looking(url) as bank:

        async def enqueue(number: int) -> None:
            for _ in range(count // _ENQUEUERS):
                await bank.services.jobs.enqueue(None, JOB, number)

        first = await Worker.start(url)
        await bank.services.jobs.enqueue(None, JOB, 0)
        await first.next()  # procrastinate's tables are there: what follows gets its ticket
        await first.stop()
        began = perf_counter()
        await asyncio.gather(*map(enqueue, range(_ENQUEUERS)))
        report.figures["enqueued_per_s"] = round(count / (perf_counter() - began))
    workers = [await Worker.start(url, ready=False) for _ in range(2)]
    began_at = list[float]()

    async def listen(worker: Worker) -> None:
        while len(began_at) < count:
            began_at.append(await worker.next())

    for worker in workers:
        await worker.next()
    before = sum(seconds_of(each.process.pid) for each in workers)
    database = _database_seconds(server)
    listening = [asyncio.create_task(listen(worker)) for worker in workers]
    async with asyncio.timeout(_PATIENCE):
        await asyncio.wait(listening, return_when=asyncio.FIRST_COMPLETED)
    database = _database_seconds(server) - database
    spent = sum(seconds_of(each.process.pid) for each in workers) - before
    for worker in workers:
        await worker.stop()
    await asyncio.gather(*listening, return_exceptions=True)
    server.give_back(url)
    report.figures["jobs_per_s"] = round(count / (max(began_at) - min(began_at)))
    report.figures["cpu_ms_job_workers"] = _ms(spent / count)
    report.figures["cpu_ms_job_database"] = _ms(database / count)
    report.say(
        f"  jobs: {report.figures['enqueued_per_s']}/s enqueued,"
        f" {report.figures['jobs_per_s']}/s done by two workers"
    )


async def _take_over(report: Report, server: PostgresServer, deaths: int) -> None:
    url = server.url()
    took = list[float]()
    async with _looking(url) as bank:
        for _ in range(deaths):
            victim = await Worker.start(url)
            await bank.services.jobs.enqueue(None, JOB, "hold")
            await victim.next()
            heir = await Worker.start(url)
            await asyncio.sleep(1.5)  # it is on the list of those who are alive
            victim.process.kill()
            killed = perf_counter()
            await victim.stop()
            async with asyncio.timeout(_PATIENCE):
                took.append(await heir.next() - killed)
            await heir.stop()
    server.give_back(url)
    report.figures["takeover_s"] = round(max(took), 2)
    report.figures["takeover_s_mean"] = round(statistics.mean(took), 2)
    report.say(f"  taken over after {', '.join(f'{each:.2f}' for each in sorted(took))} s")


@asynccontextmanager
async def _looking(url: str) -> AsyncIterator[Bank]:
    """A bank that enqueues, and does nothing itself."""
    bank = perdure.open(url, config=bank_config())
    await bank.store.open()
    try:
        yield bank
    finally:
        await bank.store.close()


def _database_seconds(server: PostgresServer) -> float:
    with (Path(server.data_dir) / "postmaster.pid").open() as file:
        return seconds_of(int(file.readline()))

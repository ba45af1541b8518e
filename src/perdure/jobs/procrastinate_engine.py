"""Jobs by procrastinate: it decides which host runs a job, and when.

It keeps *tickets* in the schema of the bank (`procrastinate_tickets`). A ticket is fetched by one
worker at a time, one of an order at a time, when its time has come by the database's clock; a
waiting worker is notified of a new one. Each worker says every second that it is alive. What is in
hand of one that was silent for five goes to another, unless the database was away: then everybody
was silent.

Whoever has a ticket runs the job. What a job is, and what came of it, stands in its row. A row may
lose its ticket (a bank that was restored or copied, a host without this engine), and a ticket its
row: the one gets a new ticket, the other is thrown away. So hosts with and without this engine can
work side by side.
"""

from __future__ import annotations

import asyncio
import importlib
import logging
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from perdure.core.clock import new_id
from perdure.core.errors import PerdureError
from perdure.jobs.job import Job, JobKind, JobState
from perdure.jobs.job_engine import ClaimedJob, JobEngine, first_of
from perdure.jobs.procrastinate_tickets import TASK, JobTicket, ProcrastinateTickets, UsedTicket
from perdure.storage.backends.postgres import PostgresAdapter, catalog
from perdure.storage.backends.postgres.links import Connection, PostgresPool
from perdure.storage.records import type_of
from perdure.storage.store import Store

if TYPE_CHECKING:
    from procrastinate.jobs import Job as Fetched

_log = logging.getLogger(__name__)

#: Seconds between two signs of life of a worker. So many without one, and it is dead.
_BEAT, _SILENT_BEATS = 1.0, 5
#: Seconds between two looks for rows without a ticket, and after which traces of a worker go.
_MISSING_EVERY, _OLD = 15.0, 3_600.0
#: Seconds until a process connects: a command is over by then, and need not import procrastinate.
_FIRST = 0.5
#: Seconds to wait for the database with a farewell.
_PATIENCE = 5.0
_OWNER = "procrastinate "

#: One statement, so that of two workers one does it. `get_stalled_jobs` and `retry_job` are two:
#: the second worker would take from the first what that has fetched again.
_RESTART = """
UPDATE procrastinate_jobs AS j SET status = 'todo', worker_id = NULL, attempts = attempts + 1
WHERE j.status = 'doing' AND (
    j.worker_id IS NULL
    OR (j.worker_id = %(worker)s AND NOT j.id = ANY(%(held)s::bigint[]))
    OR (j.worker_id <> %(worker)s AND EXISTS (
        SELECT FROM procrastinate_workers AS w WHERE w.id = j.worker_id
        AND w.last_heartbeat < now() - %(silent)s::float8 * interval '1 second')))
RETURNING j.id
"""
_MISSING = f"""
SELECT procrastinate_defer_jobs_v1(ARRAY(
    SELECT ROW(r.kind, '{TASK}', 0, coalesce('order ' || r.order, 'job ' || r._key), NULL,
        jsonb_build_object('job', r._key),
        now() + nullif(greatest(r.due - %(now)s, 0), 0) * interval '1 microsecond'
    )::procrastinate_job_to_defer_v1
    FROM {{table}} AS r
    WHERE (r.state = '{JobState.PENDING}'
        OR (r.state = '{JobState.RUNNING}' AND r.until <= %(now)s))
    AND NOT EXISTS (SELECT FROM procrastinate_jobs AS t
        WHERE t.args ->> 'job' = r._key AND t.status IN ('todo', 'doing'))
    ORDER BY r.placed LIMIT 1000))
"""
#: Without statistics of a table that was small, a fetch compares each ticket with every other.
#: Autovacuum comes once a minute.
_CHANGED = """
SELECT relid FROM pg_stat_user_tables
WHERE relid = '{table}'::regclass AND n_mod_since_analyze > 100 + n_live_tup / 2
"""
_ALIVE = (
    "UPDATE procrastinate_workers SET last_heartbeat = now() WHERE id = %(worker)s RETURNING id"
)
_CHANNEL = "procrastinate_any_queue_v1"


class ProcrastinateEngine(JobEngine):
    """For a bank on PostgreSQL. Made before its store is opened. Needs the extra `cluster`."""

    def __init__(
        self,
        store: Store,
        *,
        poll: float = 1.0,
        lease: float = 30.0,
        first: float = _FIRST,
        beat: float = _BEAT,
    ) -> None:
        super().__init__(store, _OWNER + new_id(), lease)
        assert isinstance(store.adapter, PostgresAdapter)  # noqa: S101  # who chooses it has looked
        self._server = store.adapter.server
        self._tickets = ProcrastinateTickets(self._server.schema, self._look_soon)
        store.adapter.attach(self._tickets)
        self._poll, self._first, self._pause = poll, first, beat
        self._wake: Callable[[], None] = lambda: None
        self._links: _Links | None = None
        self._manager: Any = None
        self._worker = 0
        self._helpers: list[asyncio.Task[None]] = []
        self._begin_at = self._look_at = self._missing_at = 0.0
        #: Since when this worker says without a break that it is alive.
        self._beating = math.inf

    # The rows -----------------------------------------------------------------------------------

    def placed(self, job: Job) -> Sequence[JobTicket]:
        return (JobTicket(job.id, job.kind, job.order, job.due - self._store.now()),)

    def ended(self, ticket: int, job: Job | None) -> Sequence[UsedTicket]:
        waits = job is not None and job.state is JobState.PENDING
        delay = max(job.due - self._store.now(), 0) if job is not None and waits else None
        return (UsedTicket(ticket, self._worker, delay),)

    # The worker ---------------------------------------------------------------------------------

    async def start(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        self._begin_at = asyncio.get_running_loop().time() + self._first

    async def stop(self) -> None:
        for helper in self._helpers:
            helper.cancel()
        await asyncio.gather(*self._helpers, return_exceptions=True)
        links, worker = self._links, self._worker
        self._helpers, self._links, self._worker, self._beating = [], None, 0, math.inf
        if links is not None:
            # If the database is away, it is silent from now on, and found to be dead.
            with suppress(PerdureError, TimeoutError):
                if worker:
                    async with asyncio.timeout(_PATIENCE):
                        await self._manager.unregister_worker(worker)
            await links.close()

    async def claim(
        self, kinds: Mapping[str, JobKind], room: int, running: Mapping[str, int]
    ) -> tuple[list[ClaimedJob], float]:
        moment = asyncio.get_running_loop().time()
        if moment < self._begin_at:
            return [], self._begin_at - moment
        await self._be_registered()
        await self._look(moment, running.values())
        claims = dict[str, ClaimedJob]()
        while len(claims) < room:
            fetched = await self._manager.fetch_job(queues=list(kinds), worker_id=self._worker)
            if fetched is None:
                break
            claim = await self._take(fetched, kinds, running)
            if claim is not None:
                claims[claim.held.key] = claim
        return list(claims.values()), self._poll

    async def _take(
        self, fetched: Fetched, kinds: Mapping[str, JobKind], running: Mapping[str, int]
    ) -> ClaimedJob | None:
        assert fetched.id is not None  # noqa: S101  # it comes from the table
        ticket, id = fetched.id, str(fetched.task_kwargs["job"])
        while True:
            found = await self._store.collection(Job).fetch(id)
            if found is not None and found.value.order is not None:
                # In commits that came to pass side by side, tickets may stand in another order.
                id = await first_of(self._store, found.value.order) or id
                if id != found.key:
                    found = await self._store.collection(Job).fetch(id)
            if found is None or found.value.state is JobState.FAILED:
                await self._use(ticket, None)
                return None
            job, now = found.value, self._store.now()
            if job.id in running:
                return None  # it was given up for dead, and is not: it has its ticket again
            others = job.state is JobState.RUNNING and not job.owner.startswith(_OWNER)
            if others and job.until > now:
                await self._use(ticket, job.until - now)  # a host without this engine has it
                return None
            kind = kinds.get(job.kind)
            if kind is None:
                await self._use(ticket, None)  # the first of its order has none, and needs one
                self._look_soon()
                return None
            if job.state is JobState.RUNNING:
                died = msgspec.structs.replace(job, error="the process that ran it ended")
                found = msgspec.structs.replace(found, value=died)
            if await self._gave_up(found, kind, ticket):
                return None
            claim = await self._begin(found, ticket)
            if claim is not None:
                return claim

    async def _use(self, ticket: int, delay: int | None) -> None:
        change = UsedTicket(ticket, self._worker, delay)
        await self._connected.run(lambda conn: self._tickets.write(conn, change))

    async def _look(self, moment: float, held: Collection[int]) -> None:
        """Restart what nobody has in hand any more, and make tickets that are missing."""
        if moment < self._look_at:
            return
        self._look_at = moment + self._poll
        # Others were heard, or could have been, for as long as they have to be silent.
        silent = _SILENT_BEATS * self._pause
        if moment - self._beating <= silent + self._pause:
            silent = 1e9
        again = await self._connected.query(
            _RESTART, worker=self._worker, held=list(held), silent=silent
        )
        if again:
            _log.warning("%d jobs of workers that died are run again", len(again))
        tickets = f"{self._server.schema}.procrastinate_jobs"
        if await self._connected.query(_CHANGED.format(table=tickets)):
            await self._connected.run(lambda conn: conn.execute(f"ANALYZE {tickets}"))
        if moment >= self._missing_at:
            self._missing_at = moment + _MISSING_EVERY
            declared = await self._store.ready(type_of(Job))
            assert declared is not None  # noqa: S101  # it is made if it is missing
            table = f'{self._server.schema}."{declared.name}"'
            text = _MISSING.format(table=table)
            await self._connected.query(text, now=self._store.now())

    def _look_soon(self) -> None:
        self._look_at = self._missing_at = 0.0

    # The connection -------------------------------------------------------------------------------

    @property
    def _connected(self) -> _Links:
        assert self._links is not None  # noqa: S101  # `claim` connects first
        return self._links

    async def _be_registered(self) -> None:
        if self._links is None:
            # In a thread: it takes a quarter of a second.
            managers = await asyncio.to_thread(importlib.import_module, "procrastinate.manager")
            links = _Links(self._server)
            try:
                await links.run(lambda conn: _make_tables(conn, self._server.schema))
            except BaseException:
                await links.close()
                raise
            self._links, self._manager = links, managers.JobManager(links.connector())
        if not self._worker:
            await self._manager.prune_stalled_workers(_OLD)
            self._worker = await self._manager.register_worker()
            self._beating = asyncio.get_running_loop().time()
        if not self._helpers:
            self._helpers = [
                asyncio.create_task(self._beat(), name="perdure-job-beat"),
                asyncio.create_task(self._listen(), name="perdure-job-listen"),
            ]

    async def _beat(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(self._pause)
            begun = loop.time()
            try:
                if self._worker and not await self._connected.query(_ALIVE, worker=self._worker):
                    self._worker = 0  # it stood still for an hour, and was taken off the list
            except PerdureError as exc:
                _log.debug("no sign of life could be given: %s", exc)
                self._beating = math.inf
            else:
                slow = loop.time() - begun > self._pause
                self._beating = loop.time() if slow else min(self._beating, loop.time())

    async def _listen(self) -> None:
        """Wake when there is a new ticket. While that is not possible, looks have to do."""
        while True:
            try:
                with self._connected.translated():
                    conn = await self._connected.connect()
                    async with conn:
                        await conn.execute(f"LISTEN {_CHANNEL}")
                        async for _ in conn.notifies():
                            self._wake()
            except PerdureError as exc:
                _log.debug("new jobs are not heard of: %s", exc)
            await asyncio.sleep(self._pause)


class _Links(PostgresPool):
    """Connections on which procrastinate finds its tables in the schema of the bank."""

    async def connect(self) -> Connection:
        conn = await super().connect()
        try:
            await conn.execute(
                "SELECT set_config('search_path', %s || ', ' || current_setting('search_path'),"
                " false)",
                (self._server.schema,),
            )
        except BaseException:
            await conn.close()
            raise
        return conn

    async def _be_present(self, conn: Connection) -> None:
        """Whoever fills the bank need not wait for us: it removes our tickets, too."""

    async def query(self, text: str, **arguments: Any) -> list[dict[str, Any]]:
        """May be sent again if the connection breaks."""

        async def work(conn: Connection) -> list[dict[str, Any]]:
            cursor = await conn.execute(text, arguments)
            names = [column.name for column in cursor.description or ()]
            return [dict(zip(names, row, strict=True)) for row in await cursor.fetchall()]

        return await self.run(work)

    def connector(self) -> Any:
        from procrastinate.connector import BaseAsyncConnector

        links = self

        class Connector(BaseAsyncConnector):
            """Uses the connections of a bank, which wait for a server that restarts."""

            async def execute_query_one_async(self, query: str, **arguments: Any) -> dict[str, Any]:
                (row,) = await links.query(query, **arguments)
                return row

            async def execute_query_all_async(
                self, query: str, **arguments: Any
            ) -> list[dict[str, Any]]:
                return await links.query(query, **arguments)

            async def execute_query_async(self, query: str, **arguments: Any) -> None:
                await links.query(query, **arguments)

        return Connector()


async def _make_tables(conn: Connection, schema: str) -> None:
    """Makes the tables as they come with the package, or brings those of an older one up to it."""
    from importlib.metadata import version

    from procrastinate.schema import SchemaManager

    table, ours = f"{schema}.procrastinate_jobs", version("procrastinate")
    async with conn.transaction():
        await catalog.lock(conn, schema)
        found = await conn.value(f"SELECT to_regclass('{table}')::oid")
        if found is None:
            await conn.execute(SchemaManager.get_schema())
            await conn.execute(f"CREATE INDEX perdure_tickets ON {table} ((args ->> 'job'))")
        else:
            made_by = await conn.value("SELECT obj_description(%s::oid, 'pg_class')", (found,))
            if _numbers(made_by) >= _numbers(ours):
                return
            for text in _migrations(SchemaManager.get_migrations_path(), _numbers(made_by)):
                await conn.execute(text)
        await conn.execute(f"COMMENT ON TABLE {table} IS '{ours}'")


def _migrations(folder: str, since: tuple[int, ...]) -> list[str]:
    paths = sorted(Path(folder).glob("*.sql"))
    newer = [path for path in paths if _numbers(path.name.partition("_")[0]) > since]
    return [path.read_text(encoding="utf-8") for path in newer]


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".")[:3])

"""Tickets: what a bank's commits write into procrastinate's tables.

A ticket is a job of procrastinate that names one of ours. It is committed with the row: put there
when the row begins to wait, put off when it waits again, deleted when it is done. All of one order
have the same `lock`, so procrastinate gives out one at a time; a job without an order has one of
its own, so that it never runs beside itself.

The row is what counts. If tickets cannot be written, the commit is done without them, and
`ProcrastinateEngine` makes those that are missing.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import ClassVar

from perdure.storage.backends.postgres.extension import Participant, PostgresExtension
from perdure.storage.backends.postgres.links import Connection
from perdure.storage.extension import ExtensionChange

_log = logging.getLogger(__name__)

#: What our jobs are called there.
TASK = "perdure"
NAME = "procrastinate"


class JobTicket(ExtensionChange, frozen=True):
    """Puts one there for a job, to come after so many microseconds; one that waits comes sooner."""

    extension: ClassVar[str] = NAME
    job: str
    kind: str
    order: str | None
    delay: int


class UsedTicket(ExtensionChange, frozen=True):
    """Puts off what a worker has in hand; deletes it, without a delay."""

    extension: ClassVar[str] = NAME
    number: int
    worker: int
    delay: int | None


class ProcrastinateTickets(PostgresExtension):
    """Writes tickets beside the rows of a bank in this schema."""

    name = NAME

    def __init__(self, schema: str, missed: Callable[[], None]) -> None:
        """`missed` is called when a commit was done without its tickets."""
        self._schema, self._missed = schema, missed
        jobs = f"{schema}.procrastinate_jobs"
        later = "now() + %s::bigint * interval '1 microsecond'"
        # What stands inside their functions and triggers is found by this path.
        self.path = (
            "SELECT set_config('search_path',"
            f" '{schema}, ' || current_setting('search_path'), true)"
        )
        self._sooner = (
            f"UPDATE {jobs} SET scheduled_at = {later} WHERE args ->> 'job' = %s"
            f" AND status = 'todo' AND scheduled_at > coalesce({later}, now())"
        )
        self._place = (
            f"SELECT {schema}.procrastinate_defer_jobs_v1(ARRAY[ROW(%s, '{TASK}', 0, %s, NULL,"
            f" jsonb_build_object('job', %s::text), {later})"
            f"::{schema}.procrastinate_job_to_defer_v1]) WHERE NOT EXISTS (SELECT FROM {jobs}"
            " WHERE args ->> 'job' = %s AND status = 'todo')"
        )
        # Not by their functions for it: those do not ask whose it is, and another worker may have
        # it by now, if this one was silent for long.
        held = "WHERE id = %s AND worker_id = %s AND status = 'doing'"
        self._delete = f"DELETE FROM {jobs} {held}"
        self._put_off = (
            f"UPDATE {jobs} SET status = 'todo', worker_id = NULL, attempts = attempts + 1,"
            f" scheduled_at = {later} {held}"
        )

    def check(self, changes: Sequence[JobTicket | UsedTicket]) -> None:
        pass

    def take_part(
        self, changes: Sequence[JobTicket | UsedTicket], left_out: str
    ) -> Sequence[Participant]:
        return () if left_out else [_Changes(self, changes)]

    def give_up(self, changes: Sequence[JobTicket | UsedTicket], reason: str) -> None:
        self._missed()
        _log.info("a job's ticket could not be written, and is made later: %s", reason)

    async def scrub(self, conn: Connection) -> None:
        if await self._is_there(conn):
            await conn.execute(f"VACUUM {self._schema}.procrastinate_jobs")

    async def clear(self, conn: Connection) -> None:
        if await self._is_there(conn):
            await conn.execute(f"TRUNCATE {self._schema}.procrastinate_jobs CASCADE")

    async def _is_there(self, conn: Connection) -> bool:
        table = f"{self._schema}.procrastinate_jobs"
        return bool(await conn.value(f"SELECT to_regclass('{table}') IS NOT NULL"))

    async def write(self, conn: Connection, change: JobTicket | UsedTicket) -> None:
        if isinstance(change, JobTicket):
            job, kind = change.job, change.kind
            delay = change.delay if change.delay > 0 else None  # None is now
            lock = f"job {job}" if change.order is None else f"order {change.order}"
            await conn.execute(self._sooner, (delay, job, delay), prepare=True)
            await conn.execute(self._place, (kind, lock, job, delay, job), prepare=True)
        elif change.delay is None:
            await conn.execute(self._delete, (change.number, change.worker), prepare=True)
        else:
            params = (change.delay, change.number, change.worker)
            await conn.execute(self._put_off, params, prepare=True)


class _Changes:
    def __init__(
        self, tickets: ProcrastinateTickets, changes: Sequence[JobTicket | UsedTicket]
    ) -> None:
        self._tickets = tickets
        self._changes = changes

    async def send(self, conn: Connection) -> None:
        await conn.execute(self._tickets.path)
        for change in self._changes:
            await self._tickets.write(conn, change)

    async def receive(self, conn: Connection) -> None:
        pass

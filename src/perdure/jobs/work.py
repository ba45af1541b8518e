"""One job being done: its handler, its lease, and how it ended."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable

import msgspec

from perdure.core.clock import SECOND
from perdure.core.errors import PerdureError
from perdure.jobs.job import Job, Kind, replace
from perdure.storage.collection import Stored
from perdure.storage.store import Store

_log = logging.getLogger(__name__)

FIRST_RETRY = SECOND
LONGEST_RETRY = 600 * SECOND


class Counts(msgspec.Struct):
    """What became of the jobs that a runner began."""

    done: int = 0
    retried: int = 0
    failed: int = 0
    #: Put back when the runner was stopped.
    withdrawn: int = 0
    #: Taken over by another process, because the lease could not be renewed in time.
    lost: int = 0


class Work:
    """A claimed job. `serve` sees it through; `withdraw` cancels it and puts it back."""

    def __init__(
        self, store: Store, kind: Kind, held: Stored[Job], lease: float, counts: Counts
    ) -> None:
        self.id = held.key
        self._store = store
        self._kind = kind
        self._held = held
        self._lease = lease
        self._counts = counts
        self._withdrawn = False
        name = f"perdure-handler-{self.id}"
        self._handler = asyncio.create_task(_call(kind, held.value), name=name)

    def withdraw(self) -> None:
        """Cancel the handler. Unless it ends well all the same, the attempt does not count."""
        self._withdrawn = True
        self._handler.cancel()

    async def serve(self) -> None:
        """Keep the lease until the handler ends, then record the end."""
        try:
            while not (await asyncio.wait({self._handler}, timeout=self._lease / 3))[0]:
                await self._renew()
            await self._conclude()
        except PerdureError as exc:
            # It runs again, here or elsewhere, when the lease has run out.
            _log.warning("the end of job %s could not be recorded: %s", self.id, exc)

    async def _renew(self) -> None:
        until = self._store.now() + int(self._lease * SECOND)
        job = msgspec.structs.replace(self._held.value, until=until)
        try:
            renewed = await replace(self._store, self._held, job)
        except PerdureError as exc:
            # If the store is away for us, it may be so for everybody: nothing is lost yet.
            _log.warning("the lease of job %s could not be renewed: %s", job.id, exc)
            return
        if renewed is None:
            _log.warning("job %s was taken over by another process", job.id)
            self.withdraw()
        else:
            self._held = renewed

    async def _conclude(self) -> None:
        counts, job, now = self._counts, self._held.value, self._store.now()
        error = self._error()
        if error is None:
            if await self._replace(None):
                counts.done += 1
        elif self._withdrawn:
            if await self._replace(job.pending(now, attempts=job.attempts - 1)):
                counts.withdrawn += 1
        elif job.attempts > self._kind.retries:
            _log.error("gave up on job %s: %s", job.id, error)
            if await self._replace(job.failed(error)):
                counts.failed += 1
        else:
            _log.warning("job %s failed: %s", job.id, error)
            delay = min(FIRST_RETRY << (job.attempts - 1), LONGEST_RETRY)
            if await self._replace(job.pending(now + delay, error=error)):
                counts.retried += 1

    def _error(self) -> str | None:
        if self._handler.cancelled():
            return "CancelledError"
        exc = self._handler.exception()
        return None if exc is None else f"{type(exc).__name__}: {exc}"[:500]

    async def _replace(self, job: Job | None) -> bool:
        if await replace(self._store, self._held, job) is not None:
            return True
        self._counts.lost += 1
        return False


async def _call(kind: Kind, job: Job) -> None:
    async with asyncio.timeout(kind.timeout):
        answer = kind.handler(job)
        if isinstance(answer, Awaitable):
            await answer

"""One running job: its handler, its lease, and how it ended."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

import msgspec

from perdure.core.clock import SECOND
from perdure.core.errors import PerdureError
from perdure.jobs.job import Job, JobKind, JobState, RetryLater, replace
from perdure.jobs.job_engine import ClaimedJob, JobEngine
from perdure.storage.store import Store

_log = logging.getLogger(__name__)

LONGEST_RETRY = 600.0  # Seconds.


class JobRun:
    """A claimed job. `serve` runs it; `withdraw` cancels it and puts it back."""

    def __init__(self, store: Store, kind: JobKind, claim: ClaimedJob, engine: JobEngine) -> None:
        self.id = claim.held.key
        self.kind = claim.held.value.kind
        self.ticket = claim.ticket
        self._store = store
        self._how = kind
        self._held = claim.held
        self._engine = engine
        self._withdrawn = False
        name = f"perdure-handler-{self.id}"
        self._handler = asyncio.create_task(_call(kind, claim.held.value), name=name)

    def withdraw(self) -> None:
        """Cancel the handler. Unless it succeeds all the same, the attempt does not count."""
        self._withdrawn = True
        self._handler.cancel()

    async def serve(self) -> None:
        try:
            while not (await asyncio.wait({self._handler}, timeout=self._engine.lease / 3))[0]:
                await self._renew()
            await self._conclude()
        except PerdureError as exc:
            # It runs again, here or elsewhere, when the lease has run out.
            _log.warning("the end of job %s could not be recorded: %s", self.id, exc)

    async def _renew(self) -> None:
        until = self._store.now() + int(self._engine.lease * SECOND)
        try:
            is_ours = await self._replace(lambda job: msgspec.structs.replace(job, until=until))
        except PerdureError as exc:
            # If the store is away for us, it may be so for everybody: nothing is lost yet.
            _log.warning("the lease of job %s could not be renewed: %s", self.id, exc)
            return
        if not is_ours:
            _log.warning("job %s was taken over by another process", self.id)
            self.withdraw()

    async def _conclude(self) -> None:
        counts, now = self._engine.counts, self._store.now()
        attempts, exc = self._held.value.attempts, self._exception()
        error = f"{type(exc).__name__}: {exc}".removesuffix(": ")[:500]
        if exc is None:
            field = "done"
            is_ours = await self._replace(lambda j: j.pending(now, attempts=0) if j.again else None)
        elif self._withdrawn:
            field = "withdrawn"
            is_ours = await self._replace(lambda job: job.pending(now, attempts=attempts - 1))
        elif isinstance(exc, RetryLater):
            field, why = "retried", str(exc)
            due, left = now + int(exc.seconds * SECOND), attempts - 1
            is_ours = await self._replace(
                lambda j: j.pending(now if j.again else due, attempts=left, error=why)
            )
        elif attempts > self._how.retries:
            _log.error("gave up on job %s: %s", self.id, error)
            field = "failed"
            is_ours = await self._replace(
                lambda j: j.pending(now, attempts=0) if j.again else j.failed(error)
            )
        else:
            _log.warning("job %s failed: %s", self.id, error)
            field = "retried"
            pause = min(self._how.pause * 2 ** (attempts - 1), LONGEST_RETRY)
            due = now + int(pause * SECOND)
            is_ours = await self._replace(lambda job: job.pending(due, error=error))
        field = field if is_ours else "lost"
        setattr(counts, field, getattr(counts, field) + 1)

    def _exception(self) -> BaseException | None:
        if self._handler.cancelled():
            return asyncio.CancelledError()
        return self._handler.exception()

    async def _replace(self, change: Callable[[Job], Job | None]) -> bool:
        """Change or delete the row; False if it is not ours any more. Enqueueing the same key while
        it runs changes it, too: then it is read again.
        """
        while True:
            job = change(self._held.value)
            is_over = job is None or job.state is not JobState.RUNNING
            changes = self._engine.ended(self.ticket, job) if is_over else ()
            replaced = await replace(self._store, self._held, job, changes)
            if replaced is not None:
                self._held = replaced
                return True
            found, held = await self._store.collection(Job).fetch(self.id), self._held.value
            if found is None or found.value.state is not JobState.RUNNING:
                return False
            if (found.value.owner, found.value.attempts) != (held.owner, held.attempts):
                return False
            self._held = found


async def _call(kind: JobKind, job: Job) -> None:
    async with asyncio.timeout(kind.timeout):
        answer = kind.handler(job)
        if isinstance(answer, Awaitable):
            await answer

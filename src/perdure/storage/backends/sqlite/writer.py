"""One writer per database and process: group commit, without blocking the event loop.

Writes that become ready in the same turn of the event loop share a transaction. If one fails, the
group is done again with savepoints, so that the others pass.

A commit at the default durability appends to the write-ahead log without fsync: some thirty
microseconds; a thread and back costs several times as much. So small groups run on the event
loop, *if* nothing can make them wait: the lock is free (no other process writes, no checkpoint
runs), no strong write is among them, and nothing is queued. Everything else goes to the writer
thread.

Each writer puts its job on the list and yields for one turn of the event loop, in which others
add theirs. The first to come back runs the whole list. So nobody waits on a future unless the
writer thread is involved. A writer that has been alone skips that turn for a few milliseconds at
a time.
"""

from __future__ import annotations

import asyncio
import queue
import threading
import time
import types
from collections.abc import Callable, Coroutine, Generator
from typing import Any, Generic, TypeVar, cast

import apsw
import msgspec

from perdure.core.errors import Closed, DeadlineExceeded, PerdureError
from perdure.storage.backends.sqlite.apply import SQLiteApplier
from perdure.storage.backends.sqlite.checkpoint import Checkpointer, Scrub
from perdure.storage.backends.sqlite.connections import PATIENCE
from perdure.storage.backends.sqlite.errors import translate
from perdure.storage.backends.sqlite.extension import SQLiteExtension
from perdure.storage.extension import Extensions
from perdure.storage.options import DEFAULT, Consistency, Options
from perdure.storage.rows import Batch, Put

T = TypeVar("T")

#: Pages in the write-ahead log that start a checkpoint (4 MB).
CHECKPOINT_PAGES = 1_000
#: A group larger than this would keep the event loop from its other work.
INLINE_BYTES = 256 * 1024
#: Jobs that the writer thread takes into one transaction.
MOST_JOBS = 500
#: Seconds that a lone writer goes ahead without looking for others. Also what it keeps the event
#: loop from them.
ALONE_FOR = 0.004
#: What a write costs besides its bytes, in bytes.
WRITE_WEIGHT = 512


class _Job(Generic[T]):
    __slots__ = ("error", "finished", "result", "started", "strong", "waiter", "weight", "work")

    def __init__(
        self, work: Callable[[SQLiteApplier], T] | Batch, weight: int, *, strong: bool
    ) -> None:
        self.work = work
        self.weight = weight
        self.strong = strong
        self.started = False
        self.finished = False
        self.result: T | None = None
        self.error: Exception | None = None
        self.waiter: asyncio.Future[None] | None = None

    def run(self, applier: SQLiteApplier) -> None:
        work = self.work
        self.result = applier.apply(work) if isinstance(work, Batch) else applier.run(work)  # type: ignore[assignment]


class SQLiteWriter:
    """Owns the connection that writes. Used from one event loop."""

    def __init__(
        self,
        db: apsw.Connection,
        applier: SQLiteApplier,
        path: str,
        *,
        inline: bool,
        key: bytes | None,
        extensions: Extensions[SQLiteExtension],
    ) -> None:
        self.db = db
        self._extensions = extensions
        self._applier = applier
        self._path = path
        self._key = key
        self._inline = inline
        self._loop = asyncio.get_running_loop()
        self._ready: list[_Job[Any]] = []
        self._queue: queue.SimpleQueue[list[_Job[Any]] | None] = queue.SimpleQueue()
        self._queued = 0
        self._was_alone = False  # the last group was of one
        self._looked = 0.0  # when the event loop last took a turn for company
        self._busy = threading.Lock()  # held by whoever uses the connection
        self._claiming = threading.Lock()  # held to start or withdraw a job
        self._full_sync = False
        self._patience = -1
        self._closed = False
        self._scrubbing: set[asyncio.Task[None]] = set()
        self._checkpointer = Checkpointer(path, self._busy, key)
        self._checkpoint_at = CHECKPOINT_PAGES
        db.set_wal_hook(self._after_commit)
        self._thread = threading.Thread(target=self._serve, name="perdure-writer", daemon=True)
        self._thread.start()

    def commit(self, batch: Batch, options: Options) -> Coroutine[Any, Any, list[int]]:
        """Apply a batch in a write transaction, durable when this returns; see `run`."""
        weight = WRITE_WEIGHT * len(batch.writes)
        for write in batch.writes:
            if isinstance(write, Put):
                weight += len(write.value)
        for change in batch.changes:
            weight += self._extensions.owner(change).weight(change)
        strong = options.consistency is Consistency.STRONG
        return self._submit(_Job(batch, weight, strong=strong), options.deadline)

    def run(
        self, work: Callable[[SQLiteApplier], T], options: Options = DEFAULT, *, weight: int = 0
    ) -> Coroutine[Any, Any, T]:
        """Run `work` in a write transaction, durable when this returns. Cancelled, it is
        withdrawn if it has not begun and completed if it has; either way nothing is in flight
        when `CancelledError` is raised. A missed deadline withdraws it; work that has begun
        is waited for.
        """
        strong = options.consistency is Consistency.STRONG
        return self._submit(_Job(work, weight, strong=strong), options.deadline)

    def data_version(self) -> int | None:
        """SQLite's count of other connections' commits; None while the connection is in use.
        This connection makes all of this process's commits, so they are not counted.
        """
        if not self._busy.acquire(blocking=False):
            return None
        try:
            return cast("int", self.db.pragma("data_version"))
        finally:
            self._busy.release()

    async def scrub(self) -> None:
        """Make deleted content unreadable; see `scrub`. Cancelled, it is stopped first."""
        if self._closed:
            raise _closed()
        scrub = Scrub(self._path, self._busy, self._key, self._extensions)
        task = asyncio.create_task(asyncio.to_thread(scrub.run))
        self._scrubbing.add(task)
        task.add_done_callback(self._scrubbing.discard)
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError:
            scrub.stop()
            await asyncio.wait([task])
            task.exception()  # seen
            raise
        task.result()

    async def close(self) -> None:
        """Finish what was accepted, then stop both threads."""
        if self._closed:
            return
        self._closed = True
        if self._scrubbing:
            await asyncio.wait(self._scrubbing)
        self._flush()
        self._queue.put(None)
        await asyncio.to_thread(self._thread.join)
        await asyncio.to_thread(self._checkpointer.stop)

    async def _submit(self, job: _Job[T], deadline: float | None) -> T:
        if self._closed:
            raise _closed()
        self._ready.append(job)
        try:
            if not job.strong and self._expects_company():
                await _one_turn()  # a strong one goes to the thread, and finds its group there
            if not job.finished:
                if self._ready:
                    self._flush()
                if not job.finished:
                    await self._finish(job, deadline)
        except asyncio.CancelledError:
            if not self._withdraw(job):
                await self._settle(job)
            raise
        if job.error is not None:
            raise job.error
        return job.result  # type: ignore[return-value]

    def _expects_company(self) -> bool:
        """Whether others may be about to write, so that yielding a turn pays off. A writer that
        was alone in the last turn skips it for a moment: a turn costs as much as the commit
        itself.
        """
        if len(self._ready) == 1 and self._was_alone:
            moment = time.monotonic()
            if moment - self._looked < ALONE_FOR:
                return False
            self._looked = moment
        return True

    def _flush(self) -> None:
        jobs, self._ready = self._ready, []
        self._was_alone = len(jobs) == 1
        if (
            self._inline
            and not self._queued
            and not self._checkpointer.at_work
            and sum([job.weight for job in jobs]) <= INLINE_BYTES
            and not any(job.strong for job in jobs)
            and self._busy.acquire(blocking=False)
        ):
            try:
                done = self._execute(jobs, patience=0.0)
            finally:
                self._busy.release()
            if done:
                for job in jobs:
                    job.finished = True
                return
        self._queued += 1
        self._queue.put(jobs)

    async def _finish(self, job: _Job[Any], deadline: float | None) -> None:
        job.waiter = self._loop.create_future()
        timer = None
        if deadline is not None:
            timer = self._loop.call_later(deadline, self._expire, job)
        try:
            await job.waiter
        finally:
            if timer is not None:
                timer.cancel()

    def _deliver(self, jobs: list[_Job[Any]], groups: int) -> None:
        self._queued -= groups
        for job in jobs:
            job.finished = True
            if job.waiter is not None and not job.waiter.done():
                job.waiter.set_result(None)

    def _withdraw(self, job: _Job[Any]) -> bool:
        """Whether the job was still waiting; it never runs then."""
        with self._claiming:
            if job.started:
                return False
            job.started = True
            return True

    async def _settle(self, job: _Job[Any]) -> None:
        while not job.finished:
            job.waiter = self._loop.create_future()
            try:
                await job.waiter
            except asyncio.CancelledError:
                continue  # the caller is told as soon as the outcome is certain

    def _expire(self, job: _Job[Any]) -> None:
        if job.waiter is not None and not job.waiter.done() and self._withdraw(job):
            job.error = DeadlineExceeded(
                "The write did not begin in the time allowed; nothing was written.",
                hint="Repeat it, or allow more time.",
            )
            job.waiter.set_result(None)

    def _serve(self) -> None:
        while (jobs := self._queue.get()) is not None:
            groups = 1
            # What came in meanwhile shares the transaction, and the fsync of a strong one.
            while self._queue.qsize() and len(jobs) < MOST_JOBS:
                more = self._queue.get()
                if more is None:
                    self._queue.put(None)
                    break
                jobs = jobs + more
                groups += 1
            with self._busy:
                self._execute(jobs, patience=PATIENCE)
            self._loop.call_soon_threadsafe(self._deliver, jobs, groups)

    def _execute(self, group: list[_Job[Any]], patience: float) -> bool:
        """Run the jobs in one transaction. False if it would have to wait, and may not."""
        try:
            self._be_patient(patience)
            self._set_sync(full=any(job.strong for job in group))
            self.db.execute("BEGIN IMMEDIATE")
        except apsw.Error as exc:
            if isinstance(exc, apsw.BusyError) and not patience:
                return False
            self._fail(self._claim(group), exc)
            return True
        jobs = self._claim(group)
        try:
            self._attempt(jobs)
            self.db.execute("COMMIT")
            self._applier.keep()
        except Exception as exc:  # noqa: BLE001  # it belongs to the one whose job raised it
            self._roll_back()
            if len(jobs) == 1 and not self._may_pass_again(jobs[0], exc):
                self._fail(jobs, exc)
            elif patience:
                self._one_by_one(jobs)
            else:
                self._unclaim(jobs)  # doing it again may have to wait
                return False
        except BaseException:
            self._roll_back()
            raise
        return True

    def _attempt(self, jobs: list[_Job[Any]]) -> None:
        batches = [job.work for job in jobs if isinstance(job.work, Batch)]
        if len(batches) == len(jobs):
            for job, versions in zip(jobs, self._applier.apply_together(batches), strict=True):
                job.result = versions
        else:
            for job in jobs:
                job.run(self._applier)

    def _may_pass_again(self, job: _Job[Any], exc: Exception) -> bool:
        """Whether an extension made a commit fail and would let it pass now."""
        return isinstance(job.work, Batch) and any(
            extension.is_to_blame(exc) for extension, _ in self._extensions.parts(job.work.changes)
        )

    def _one_by_one(self, jobs: list[_Job[Any]]) -> None:
        """Run each job in a savepoint, so that only the failing one fails. Savepoints from the
        start would cost every group what only a rare one needs.
        """
        try:
            self.db.execute("BEGIN IMMEDIATE")
            for job in jobs:
                self.db.execute("SAVEPOINT job")
                try:
                    job.run(self._applier)
                except PerdureError as exc:
                    self._fail([job], exc)
                    self._applier.forget()
                    self.db.execute("ROLLBACK TO job")
                self.db.execute("RELEASE job")
            self.db.execute("COMMIT")
            self._applier.keep()
        except Exception:  # noqa: BLE001  # not one of ours: it may have ended the transaction
            self._roll_back()
            for job in jobs:
                self._alone(job)

    def _alone(self, job: _Job[Any]) -> None:
        """The last resort: a transaction for each job."""
        try:
            self.db.execute("BEGIN IMMEDIATE")
            job.run(self._applier)
            self.db.execute("COMMIT")
            self._applier.keep()
            job.error = None
        except Exception as exc:  # noqa: BLE001  # it belongs to the one who awaits this job
            self._roll_back()
            self._fail([job], exc)

    def _claim(self, group: list[_Job[Any]]) -> list[_Job[Any]]:
        with self._claiming:
            jobs = [job for job in group if not job.started]
            for job in jobs:
                job.started = True
        return jobs

    def _unclaim(self, jobs: list[_Job[Any]]) -> None:
        with self._claiming:
            for job in jobs:
                job.started = False

    def _roll_back(self) -> None:
        # SQLite ends some transactions itself, such as when the disk is full.
        self._applier.forget()
        if self.db.in_transaction:
            self.db.execute("ROLLBACK")

    def _fail(self, jobs: list[_Job[Any]], exc: Exception) -> None:
        for job in jobs:
            job.error = exc
            if isinstance(exc, apsw.Error | UnicodeDecodeError | msgspec.DecodeError):
                job.error = translate(exc, self._path)
                job.error.__cause__ = exc

    def _be_patient(self, seconds: float) -> None:
        milliseconds = int(seconds * 1_000)
        if milliseconds != self._patience:
            self.db.set_busy_timeout(milliseconds)
            self._patience = milliseconds

    def _set_sync(self, *, full: bool) -> None:
        if full != self._full_sync:
            self.db.pragma("synchronous", "FULL" if full else "NORMAL")
            self._full_sync = full

    def _after_commit(self, db: apsw.Connection, name: str, pages: int) -> int:
        if pages < CHECKPOINT_PAGES:
            self._checkpoint_at = CHECKPOINT_PAGES
        elif pages >= self._checkpoint_at:
            self._checkpoint_at = pages + CHECKPOINT_PAGES  # not at every commit until it is done
            self._checkpointer.wake()
        return apsw.SQLITE_OK


def _closed() -> Closed:
    return Closed("This bank is closed.", hint="Open it again with perdure.open(…).")


@types.coroutine
def _one_turn() -> Generator[None, None, None]:
    yield

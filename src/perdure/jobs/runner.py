"""The runner of a process: jobs are rows, idle work and periodic work live in memory.

A job is pending, running or failed; one that is done is deleted. Guaranteed:

* A committed job runs at least once. It runs again if its process dies, or cannot record the end of
  it: handlers must bear that. `Job.id` tells repetitions.
* Several processes may run the jobs of one bank. A `JobEngine` gives each job to one of them at a
  time, and to another if that one dies. Whoever begins a job writes itself into its row, so who was
  given up for dead cannot record an end.
* A handler that raises, or exceeds its timeout, is called again after 1, 2, 4 … seconds, or
  what it was registered with; after the last attempt the job is failed, with the error, until
  `retry`. Attempts that ended with the death of the process count, so a job that kills its worker
  fails too.

Not guaranteed: jobs begin in the order of their due times, or as they were enqueued, but run side
by side and may end in any order, unless they share an `order`. A process that stands still for
longer than its engine waits may run a job for a moment beside the one that took it over.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection
from typing import Self

import msgspec

from perdure.core.clock import SECOND, new_id
from perdure.core.errors import InvalidInput
from perdure.jobs.idle import CANCEL_PATIENCE, IdleWork, Wake
from perdure.jobs.job import Job, JobHandler, JobKind, JobState, check_kind
from perdure.jobs.job_engine import ClaimedJob, JobEngine, due_jobs
from perdure.jobs.job_run import JobRun
from perdure.jobs.lease_engine import LeaseEngine
from perdure.jobs.marks import ProcessMarks
from perdure.jobs.periodic import Periodic, pause_until
from perdure.storage import record_keys
from perdure.storage.finder import QueryBuilder
from perdure.storage.store import Store
from perdure.storage.transaction import Transaction

_log = logging.getLogger(__name__)


class Runner:
    """Runs the jobs of a bank whose kinds are registered here, and idle and periodic work.

    `concurrency` is how many jobs run at the same time. With `queues`, jobs of other kinds are left
    to other processes. Without an engine, a `LeaseEngine` with this `poll` and `lease`.
    """

    def __init__(
        self,
        store: Store,
        *,
        concurrency: int = 4,
        poll: float = 1.0,
        lease: float = 30.0,
        queues: Collection[str] = (),
        engine: JobEngine | None = None,
    ) -> None:
        self._store = store
        self._engine = engine or LeaseEngine(store, poll=poll, lease=lease)
        self.counts = self._engine.counts
        self._concurrency = concurrency
        self._poll_every = poll
        self._queues = frozenset(queues)
        #: Those that are registered, and those of them that are run here.
        self._registered: dict[str, JobKind] = {}
        self._kinds: dict[str, JobKind] = {}
        self._running: dict[asyncio.Task[None], JobRun] = {}
        self._periodic: dict[str, Periodic] = {}
        self._marks = marks = ProcessMarks(store)
        self._idle = idle = IdleWork(marks.remove, marks.divide)
        #: Idle work: see `IdleWork`.
        self.idle, self.writing = idle.add, idle.writing
        self.breathe, self.give_way, self.hold_off = idle.breathe, idle.give_way, idle.hold_off
        #: Marks: see `ProcessMarks`.
        self.mark, self.pending = marks.leave, marks.own
        self.marks, self.adopt = marks.others, marks.adopt
        self._placed = 0
        self._wake = asyncio.Event()
        self._finished = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._stopping = False

    # Jobs -------------------------------------------------------------------------------------

    def register(
        self,
        kind: str,
        handler: JobHandler,
        *,
        retries: int = 5,
        timeout: float = 300.0,
        pause: float = 1.0,
    ) -> None:
        """Run jobs of a kind here: one attempt and up to `retries` more, the first after `pause`
        seconds. A handler has to bear being cancelled: by its timeout in seconds, and by `stop`.
        """
        if check_kind(kind) in self._registered:
            raise InvalidInput(f"Jobs of kind {kind!r} have a handler.", hint="Register it once.")
        self._registered[kind] = JobKind(handler, retries, timeout, pause)
        if not self._queues or kind in self._queues:
            self._kinds[kind] = self._registered[kind]
        self._wake.set()

    def handles(self, kind: str) -> bool:
        return kind in self._registered

    async def unregister(self, kind: str) -> None:
        """Begin no more jobs of this kind; cancel those that run, which are pending again."""
        self._registered.pop(kind, None)
        self._kinds.pop(kind, None)
        running = {task for task, run in self._running.items() if run.kind == kind}
        for task in running:
            self._running[task].withdraw()
        if running:
            await asyncio.wait(running, timeout=CANCEL_PATIENCE)

    async def enqueue(
        self,
        transaction: Transaction | None,
        kind: str,
        payload: object = None,
        *,
        key: str = "",
        order: str = "",
        delay: float = 0.0,
    ) -> str:
        """Add a job, to begin after `delay` seconds; returns its id.

        It exists only if the transaction commits; None for one of its own. With a key, at most one
        job of this kind and key waits: if there is one, nothing is added, and it keeps its payload;
        it begins at the earlier time, unless it is to be tried again. A running one does not count,
        since it may have begun before this commit: it runs once more when it has ended. A failed
        one begins anew. Jobs with the same order run one
        after the other, as enqueued, whatever their kind; one that is to be tried again keeps the
        others waiting.
        """
        self._placed = max(self._placed + 1, self._store.now())
        job = Job(
            id=record_keys.check(f"{check_kind(kind)}/{key or new_id()}"),
            kind=kind,
            payload=payload,
            state=JobState.PENDING,
            due=self._store.now() + int(delay * SECOND),
            order=order or None,
            placed=self._placed,
        )

        async def add(transaction: Transaction) -> None:
            jobs = transaction.collection(Job)
            # This look makes the commit fail, and be repeated, if the job is begun in between.
            found = await jobs.get(job.id) if key else None
            if found is None or found.state is JobState.FAILED:
                await jobs.put(job)
                transaction.include(*self._engine.placed(job))
            elif found.state is JobState.RUNNING and not found.again:
                await jobs.put(msgspec.structs.replace(found, payload=payload, again=True))
            elif found.state is JobState.PENDING and not found.attempts and job.due < found.due:
                await jobs.put(sooner := msgspec.structs.replace(found, due=job.due))
                transaction.include(*self._engine.placed(sooner))

        if transaction is None:
            await self._store.transact(add)
        else:
            await add(transaction)
            transaction.after_commit(self._wake.set)
        self._wake.set()
        return job.id

    async def failed(self, limit: int = 100) -> list[Job]:
        """Failed jobs of any kind, oldest first; `Job.error` says why."""
        return await self._jobs(JobState.FAILED).order_by("due").limit(limit).values()

    async def retry(self, job: str) -> None:
        """Make a failed job pending again, with all its attempts. Raises `InvalidInput` if there is
        none of this id.
        """

        async def bring_back(transaction: Transaction) -> None:
            jobs = transaction.collection(Job)
            found = await jobs.get(job)
            if found is None or found.state is not JobState.FAILED:
                raise InvalidInput(
                    f"There is no failed job {job!r}.", hint="`Runner.failed` lists them."
                )
            await jobs.put(again := found.pending(self._store.now(), attempts=0))
            transaction.include(*self._engine.placed(again))

        await self._store.transact(bring_back)
        self._wake.set()

    # Periodic work ----------------------------------------------------------------------------

    def every(
        self,
        name: str,
        seconds: float,
        work: Callable[[], Awaitable[object]],
        *,
        first: float = 0.0,
    ) -> Wake:
        """Run a function every so many seconds, until `stop`; see `Periodic`. `first` is the
        seconds until the first run: short commands do without. The returned function runs it at
        once, or once more if it is running.
        """
        if name in self._periodic:
            raise InvalidInput(f"Periodic work {name!r} exists.", hint="Choose another name.")
        periodic = self._periodic[name] = Periodic(name, seconds, work, first)
        if self._task is not None:
            periodic.start()
        return periodic.wake

    # Life -------------------------------------------------------------------------------------

    async def start(self) -> None:
        if self._task is not None:
            raise InvalidInput("This runner has been started.", hint="Start it once.")
        self._stopping = False
        await self._engine.start(self._wake.set)
        self._task = asyncio.create_task(self._serve(), name="perdure-jobs")
        for periodic in self._periodic.values():
            periodic.start()
        self._idle.start()

    async def stop(self, grace: float = 5.0) -> None:
        """Begin nothing more and wait for what is running; after `grace` seconds, cancel it.

        A cancelled job is pending again at once, and the attempt does not count. Idle work gets the
        seconds that it asked for, before. Safe to call twice.
        """
        if self._task is None:
            return
        self._stopping = True
        self._wake.set()
        await self._idle.stop(grace)
        others = {self._task}
        others |= {task for periodic in self._periodic.values() if (task := periodic.stop())}
        await asyncio.wait(others | self._running.keys(), timeout=grace)
        for task in others:
            task.cancel()
        for work in self._running.values():
            work.withdraw()
        await asyncio.wait(others | self._running.keys(), timeout=CANCEL_PATIENCE)
        for task in list(self._running):
            _log.error("%s does not end when cancelled; it is left to itself", task.get_name())
            task.cancel()
        await self._engine.stop()
        self._periodic.clear()
        self._task = None

    async def settle(self) -> None:
        """Wait until all idle work is done, and no job of a registered kind is running or due.

        Does not wait for jobs whose time, or next attempt, has not come; waits for jobs that run
        elsewhere. Raises what idle work raises. Never returns if called inside a job.
        """
        if self._task is None:
            raise InvalidInput("This runner is not started.", hint="Call start() first.")
        await self._idle.settle()
        # Asked again behind the wait: what has just been recorded is still ending.
        while self._running or await self._is_work_left() or self._running:
            self._finished.clear()
            self._wake.set()
            await pause_until(self._finished, self._poll_every)
            await self._idle.settle()

    async def settle_idle(self, name: str = "") -> None:
        """Do all idle work now, or that of this name, started or not. Raises what it raises."""
        await self._idle.settle(name)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.stop()

    async def _serve(self) -> None:
        failures = 0
        while not self._stopping:
            self._wake.clear()
            try:
                pause = await self._poll()
                failures = 0
            except Exception:  # noqa: BLE001  # the outermost loop: the store may be away a while
                failures = min(failures + 1, 8)
                pause = 0.1 * 2**failures
                _log.exception("cannot look for jobs; the next look is in %.1f s", pause)
            await pause_until(self._wake, pause)

    async def _poll(self) -> float:
        if not self._kinds:
            return self._poll_every
        kinds = dict(self._kinds)  # one may be unregistered meanwhile
        room = self._concurrency - len(self._running)
        running = {work.id: work.ticket for work in self._running.values()}
        claims, pause = await self._engine.claim(kinds, room, running)
        for claim in claims:
            self._run(claim, kinds[claim.held.value.kind])
        return pause

    def _run(self, claim: ClaimedJob, kind: JobKind) -> None:
        work = JobRun(self._store, kind, claim, self._engine)
        task = asyncio.create_task(work.serve(), name=f"perdure-job-{work.id}")
        self._running[task] = work
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        del self._running[task]
        self._wake.set()
        self._finished.set()

    async def _is_work_left(self) -> bool:
        if not self._kinds:
            return False
        now = self._store.now()
        states = await self._states()
        if JobState.RUNNING in states or states.get(JobState.PENDING, now + 1) > now:
            return JobState.RUNNING in states
        # Those that wait for one of their order, which waits for its time, are not waited for.
        alive = {work.id for work in self._running.values()}
        can_begin, _ = await due_jobs(self._store, self._kinds, 1, alive)
        return bool(can_begin) or JobState.RUNNING in await self._states()

    async def _states(self) -> dict[str, int]:
        # One statement, though it takes a scan: between two, each of which could use an index, a
        # job may go from the state that is yet to be looked at to the one that was.
        query = self._store.collection(Job).query().where("kind", "in", list(self._kinds))
        query = query.where("state", "in", [JobState.PENDING, JobState.RUNNING]).group_by("state")
        return {row["state"]: row["due"] for row in await query.aggregate(due="min due")}

    def _jobs(self, state: JobState) -> QueryBuilder[Job]:
        return self._store.collection(Job).query().where("state", "=", state)

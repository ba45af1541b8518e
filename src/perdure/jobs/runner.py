"""The in-process runner: pending work is a row, and workers pick it up.

    runner = Runner(store)
    runner.register("summarise", summarise, retries=5, timeout=60)
    await runner.start()
    async with store.transaction() as transaction:
        ...
        await runner.enqueue("summarise", {"turn": 7}, transaction=transaction)

A job is pending, running or failed; one that is done is deleted. What is promised:

* A job that was committed runs at least once. It runs again if its process dies, or cannot record
  the end of it; a handler must bear that. `Job.id` tells repetitions.
* Several processes may run the jobs of one bank. A worker claims a job by writing a lease into it,
  at the version it read, so one process at a time has it. The lease is renewed while the handler
  runs; if the process dies, the job becomes pending again when the lease has run out.
* A handler that raises, or takes longer than its timeout, is called again after 1, 2, 4 … seconds;
  after the last attempt the job is failed, with the error, until somebody calls `retry`. Attempts
  that ended with the death of the process count, so a job that kills its worker fails too.

What is not: jobs are begun in the order of their due times, but run side by side and may end in any
order. A process that stands still for longer than the lease may, when it goes on, run a job for a
moment beside the one that took it over. Leases assume clocks that agree to a few seconds.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Self

from perdure.core.clock import SECOND
from perdure.core.errors import InvalidInput
from perdure.core.ids import new_id
from perdure.jobs.job import Handler, Job, Kind, State, check_kind, replace
from perdure.jobs.periodic import Periodic, pause_until
from perdure.jobs.work import Counts, Work
from perdure.storage import keys
from perdure.storage.collection import Stored
from perdure.storage.finder import Finder
from perdure.storage.store import Store
from perdure.storage.transaction import Transaction

_log = logging.getLogger(__name__)

#: Seconds a cancelled handler has to end before it is left to itself.
CANCEL_PATIENCE = 5.0


class Runner:
    """Runs the jobs of a bank whose kinds are registered here, and periodic work.

    `concurrency` is how many jobs run at the same time; `poll` the seconds between two looks for
    work that other processes enqueued (one's own is begun at once); `lease` the seconds after
    which the jobs of a dead process are taken over.
    """

    def __init__(
        self, store: Store, *, concurrency: int = 4, poll: float = 1.0, lease: float = 30.0
    ) -> None:
        self.counts = Counts()
        self._store = store
        self._owner = new_id()
        self._concurrency = concurrency
        self._poll_every = poll
        self._lease = lease
        self._kinds: dict[str, Kind] = {}
        self._running: dict[asyncio.Task[None], Work] = {}
        self._periodic: dict[str, Periodic] = {}
        self._wake = asyncio.Event()
        self._finished = asyncio.Event()
        self._takeover_at = 0.0
        self._task: asyncio.Task[None] | None = None
        self._stopping = False

    # Jobs -------------------------------------------------------------------------------------

    def register(
        self, kind: str, handler: Handler, *, retries: int = 5, timeout: float = 300.0
    ) -> None:
        """Let this runner do jobs of a kind: one attempt and up to `retries` more.

        A handler has to bear being cancelled: by its timeout in seconds, and by `stop`.
        """
        if check_kind(kind) in self._kinds:
            raise InvalidInput(f"Jobs of kind {kind!r} have a handler.", hint="Register it once.")
        self._kinds[kind] = Kind(handler, retries, timeout)
        self._wake.set()

    async def enqueue(
        self,
        kind: str,
        payload: object = None,
        *,
        key: str | None = None,
        delay: float = 0.0,
        transaction: Transaction | None = None,
    ) -> str:
        """Add a job, to be begun after `delay` seconds; returns its id.

        In a transaction it exists if and only if that commits. With a key, nothing is added while
        a job of this kind and key is pending or running: that one's id is returned, and it keeps
        its payload and due time. A running one may have begun before what you are about to commit:
        if that matters, let the key name the state it is about. A failed one is begun anew.
        """
        job = Job(
            id=keys.check(f"{check_kind(kind)}/{new_id() if key is None else key}"),
            kind=kind,
            payload=payload,
            state=State.PENDING,
            due=self._store.now() + int(delay * SECOND),
        )

        async def add(transaction: Transaction) -> None:
            jobs = transaction.collection(Job)
            # This look makes the commit fail, and be repeated, if the job is begun in between.
            found = None if key is None else await jobs.get(job.id)
            if found is None or found.state is State.FAILED:
                await jobs.put(job)

        if transaction is None:
            await self._store.transact(add)
        else:
            await add(transaction)
            transaction.after_commit(self._wake.set)
        self._wake.set()
        return job.id

    async def failed(self, limit: int = 100) -> list[Job]:
        """Jobs that were given up, of any kind, oldest first; `Job.error` says why."""
        return await self._jobs(State.FAILED).order_by("due").limit(limit).values()

    async def retry(self, job: str) -> None:
        """Make a failed job pending again, with all its attempts.

        Raises `InvalidInput` if there is no failed job of this id.
        """

        async def bring_back(transaction: Transaction) -> None:
            jobs = transaction.collection(Job)
            found = await jobs.get(job)
            if found is None or found.state is not State.FAILED:
                raise InvalidInput(
                    f"There is no failed job {job!r}.", hint="`Runner.failed` lists them."
                )
            await jobs.put(found.pending(self._store.now(), attempts=0))

        await self._store.transact(bring_back)
        self._wake.set()

    # Periodic work ----------------------------------------------------------------------------

    def every(
        self, name: str, seconds: float, function: Callable[[], Awaitable[object]]
    ) -> Periodic:
        """Run a function at the start and every so many seconds, until `stop`; see `Periodic`."""
        if name in self._periodic:
            raise InvalidInput(f"Periodic work {name!r} exists.", hint="Choose another name.")
        periodic = self._periodic[name] = Periodic(name, seconds, function)
        if self._task is not None:
            periodic.start()
        return periodic

    def wake(self, name: str) -> None:
        """Run periodic work now; after `stop`, when there is none any more, nothing happens."""
        if name in self._periodic:
            self._periodic[name].wake()

    # Life -------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Begin to work. The store must be open."""
        if self._task is not None:
            raise InvalidInput("This runner has been started.", hint="Start it once.")
        self._stopping = False
        self._task = asyncio.create_task(self._serve(), name="perdure-jobs")
        for periodic in self._periodic.values():
            periodic.start()

    async def stop(self, grace: float = 5.0) -> None:
        """Begin nothing more and wait for what is running; after `grace` seconds, cancel it.

        A cancelled job is pending again at once, and the attempt does not count. Periodic work
        ends and is forgotten. Safe to call twice.
        """
        if self._task is None:
            return
        self._stopping = True
        self._wake.set()
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
        self._periodic.clear()
        self._task = None

    async def settle(self) -> None:
        """Wait until no job of a registered kind is running, here or elsewhere, or due.

        Jobs that wait for their time, or for their next attempt, are not waited for. Never
        returns if called inside a job.
        """
        if self._task is None:
            raise InvalidInput("This runner is not started.", hint="Call start() first.")
        # Asked again behind the wait: what has just been recorded is still ending.
        while self._running or await self._is_work_left() or self._running:
            self._finished.clear()
            self._wake.set()
            await pause_until(self._finished, self._poll_every)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.stop()

    # ------------------------------------------------------------------------------------------

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
        """Begin what is due, as far as there is room; returns the seconds until the next look."""
        await self._take_over()
        room = self._concurrency - len(self._running)
        if room <= 0:
            return self._poll_every  # or sooner: the end of a job wakes us
        now = self._store.now()
        found: list[Stored[Job]] = []
        for kind in self._kinds:
            query = self._jobs(State.PENDING).where("kind", "=", kind).order_by("due")
            found += await query.limit(room).execute()
        # One that runs here and was taken over for being late must not run beside itself.
        alive = self._alive()
        found = [each for each in found if each.key not in alive]
        found.sort(key=lambda each: (each.value.due, each.key))
        due = [each for each in found if each.value.due <= now][:room]
        claimed = await asyncio.gather(*(self._claim(each) for each in due))
        if not all(claimed):
            return 0.0  # others were faster: there may be more behind those
        if len(due) < len(found):
            return min(self._poll_every, max(0, found[len(due)].value.due - now) / SECOND)
        return self._poll_every

    async def _take_over(self) -> None:
        """Make jobs whose worker is dead pending again; looks only once in a poll interval."""
        moment = asyncio.get_running_loop().time()
        if moment < self._takeover_at:
            return
        self._takeover_at = moment + self._poll_every
        now = self._store.now()
        alive = self._alive()
        for kind in self._kinds:
            dead = self._jobs(State.RUNNING).where("kind", "=", kind).where("until", "<=", now)
            for found in await dead.order_by("until").limit(100).execute():
                if found.key not in alive:  # ours are only late
                    error = "the process that ran it ended"
                    await replace(self._store, found, found.value.pending(now, error=error))

    async def _claim(self, found: Stored[Job]) -> bool:
        job = found.value
        kind = self._kinds[job.kind]
        if job.attempts > kind.retries:
            # Only after the death of a worker: the others do not know how often to try this kind.
            if await replace(self._store, found, job.failed(job.error)):
                _log.error("gave up on job %s: %s", job.id, job.error)
                self.counts.failed += 1
            return False
        until = self._store.now() + int(self._lease * SECOND)
        held = await replace(self._store, found, job.running(self._owner, until))
        if held is None:
            return False
        work = Work(self._store, kind, held, self._lease, self.counts)
        task = asyncio.create_task(work.serve(), name=f"perdure-job-{job.id}")
        self._running[task] = work
        task.add_done_callback(self._ended)
        return True

    def _ended(self, task: asyncio.Task[None]) -> None:
        del self._running[task]
        self._wake.set()
        self._finished.set()

    async def _is_work_left(self) -> bool:
        # One statement, though it takes a scan: between two, each of which could use an index, a
        # job may go from the state that is yet to be looked at to the one that was.
        query = self._store.collection(Job).query().where("kind", "in", list(self._kinds))
        query = query.where("state", "in", [State.PENDING, State.RUNNING]).group_by("state")
        first = {row["state"]: row["due"] for row in await query.aggregate(due="min due")}
        due = first.get(State.PENDING)
        return State.RUNNING in first or (isinstance(due, int) and due <= self._store.now())

    def _alive(self) -> set[str]:
        return {work.id for work in self._running.values()}

    def _jobs(self, state: State) -> Finder[Job]:
        return self._store.collection(Job).query().where("state", "=", state)

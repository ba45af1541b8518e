"""Who runs a job, and when: the seam behind `Runner`.

A job is a row, whatever the engine: what is to be done, how often it was tried, how it ended. An
engine decides which process may run it, and when it begins; it hears of what happens to the row in
the commit that does it. There are two: `LeaseEngine` needs nothing but the store;
`ProcrastinateEngine` is for hosts that share a bank on PostgreSQL.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence

import msgspec

from perdure.core.clock import SECOND
from perdure.jobs.job import Job, JobCounts, JobKind, JobState, replace
from perdure.storage.collection_reader import Stored
from perdure.storage.extension import ExtensionChange
from perdure.storage.store import Store

_log = logging.getLogger(__name__)

_PAGE = 16  # Jobs read together: some may have to wait for others of their order.


class ClaimedJob(msgspec.Struct, frozen=True):
    """A job that this process is to run, and the engine's number for that."""

    held: Stored[Job]
    ticket: int = 0


class JobEngine(ABC):
    """Gives jobs to processes. `owner` is what stands in the rows of those that run here."""

    def __init__(self, store: Store, owner: str, lease: float) -> None:
        self.counts = JobCounts()
        #: Seconds after which the row of a job that runs has to be renewed, three times over.
        self.lease = lease
        self._store = store
        self._owner = owner

    @abstractmethod
    async def claim(
        self, kinds: Mapping[str, JobKind], room: int, running: Mapping[str, int]
    ) -> tuple[list[ClaimedJob], float]:
        """Jobs to run here now, at most so many, and the seconds until the next look. `running`
        are the ids of those that run here, with their tickets.
        """

    async def start(self, wake: Callable[[], None]) -> None:  # noqa: B027  # not all have to
        """`wake` is called when there may be something to claim."""

    async def stop(self) -> None:  # noqa: B027
        """Claims nothing more; called when nothing runs."""

    def placed(self, job: Job) -> Sequence[ExtensionChange]:
        """What has to be committed with a job that waits and did not, or is to begin sooner."""
        return ()

    def ended(self, ticket: int, job: Job | None) -> Sequence[ExtensionChange]:
        """What has to be committed with the end of a job's run: it waits again, has failed, or is
        done (None).
        """
        return ()

    async def _begin(self, found: Stored[Job], ticket: int = 0) -> ClaimedJob | None:
        """None if it was changed since it was found."""
        until = self._store.now() + int(self.lease * SECOND)
        held = await replace(self._store, found, found.value.running(self._owner, until))
        return None if held is None else ClaimedJob(held, ticket)

    async def _gave_up(self, found: Stored[Job], kind: JobKind, ticket: int = 0) -> bool:
        """Whether no attempt is left, which is so only after the death of a worker: the others do
        not know how often to try this kind.
        """
        job = found.value
        if job.attempts <= kind.retries:
            return False
        failed = job.failed(job.error)
        if await replace(self._store, found, failed, self.ended(ticket, failed)):
            _log.error("gave up on job %s: %s", job.id, job.error)
            self.counts.failed += 1
        return True


async def due_jobs(
    store: Store, kinds: Collection[str], room: int, but: Collection[str]
) -> tuple[list[Stored[Job]], int | None]:
    """Jobs that may begin now, the first due first, and when the next one is due. Of an order only
    the first.
    """
    now = store.now()
    query = store.collection(Job).query().where("state", "=", JobState.PENDING)
    query = query.where("kind", "in", list(kinds)).order_by("due").limit(max(room, _PAGE))
    found, after, firsts = list[Stored[Job]](), None, dict[str, str]()
    while True:
        page = await query.page(after=after)
        for each in page.items:
            job = each.value
            if job.due > now:
                return found, job.due
            if each.key in but:
                continue
            if job.order is not None and job.order not in firsts:
                firsts[job.order] = await first_of(store, job.order)
            if job.order is None or firsts[job.order] == job.id:
                found.append(each)
            if len(found) == room:
                return found, None
        after = page.next
        if after is None:
            return found, None


async def first_of(store: Store, order: str) -> str:
    """The id of the job that is next in an order, or runs; "" if there is none."""
    query = store.collection(Job).query().where("order", "=", order)
    query = query.where("state", "in", [JobState.PENDING, JobState.RUNNING])
    first = await query.order_by("placed").first()
    return "" if first is None else first.key

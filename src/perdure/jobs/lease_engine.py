"""Jobs by leases: every process looks into the rows, and claims by writing itself into one.

The lease is written at the version that was read, so one process at a time has it, and renewed
while the handler runs. If the process dies, the job waits again when the lease has run out. Leases
assume clocks that agree to a few seconds.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from perdure.core.clock import SECOND, new_id
from perdure.jobs.job import Job, JobKind, JobState, replace
from perdure.jobs.job_engine import ClaimedJob, JobEngine, due_jobs
from perdure.storage.collection_reader import Stored
from perdure.storage.store import Store


class LeaseEngine(JobEngine):
    """`poll` is the seconds between two looks for work of other processes (one's own begins at
    once); `lease` those after which the jobs of a dead process are taken over.
    """

    def __init__(self, store: Store, *, poll: float = 1.0, lease: float = 30.0) -> None:
        super().__init__(store, new_id(), lease)
        self._poll = poll
        self._takeover_at = 0.0

    async def claim(
        self, kinds: Mapping[str, JobKind], room: int, running: Mapping[str, int]
    ) -> tuple[list[ClaimedJob], float]:
        await self._take_over(kinds, running)
        if room <= 0:
            return [], self._poll  # or sooner: the end of a job wakes us
        # One that runs here and was taken over for being late must not run beside itself.
        now = self._store.now()
        due, later = await due_jobs(self._store, kinds, room, running)
        tried = await asyncio.gather(*(self._try(each, kinds) for each in due))
        claims = [claim for claim in tried if claim is not None]
        if len(claims) < len(tried):
            return claims, 0.0  # others were faster: there may be more behind those
        return claims, self._poll if later is None else min(self._poll, (later - now) / SECOND)

    async def _try(self, found: Stored[Job], kinds: Mapping[str, JobKind]) -> ClaimedJob | None:
        if await self._gave_up(found, kinds[found.value.kind]):
            return None
        return await self._begin(found)

    async def _take_over(self, kinds: Mapping[str, JobKind], running: Mapping[str, int]) -> None:
        """Make jobs whose worker is dead pending again; looks only once in a poll interval."""
        moment = asyncio.get_running_loop().time()
        if moment < self._takeover_at:
            return
        self._takeover_at = moment + self._poll
        now = self._store.now()
        query = self._store.collection(Job).query().where("state", "=", JobState.RUNNING)
        query = query.where("kind", "in", list(kinds)).where("until", "<=", now)
        for found in await query.order_by("until").limit(100).execute():
            if found.key not in running:  # ours are only late
                error = "the process that ran it ended"
                await replace(self._store, found, found.value.pending(now, error=error))

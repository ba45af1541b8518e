"""Background work: `Runner` is the one worker of a bank. It does three kinds of work.

* **A job** is a row. It is written in the transaction that makes it necessary, and done at least
  once, by whichever process has its kind registered::

    runner.register("summarise", summarise, retries=5, timeout=60)
    async with store.transaction() as tx:
        await runner.enqueue(tx, "summarise", {"turn": 7}, key="planner/auth/7")

* **Idle work** is kept in memory by its owner. The runner calls it when nobody writes::

    wake = runner.idle("counting", count_some, covers="turns")

    async def count_some(go_on: Callable[[], bool]) -> bool:
        while self._waiting:
            await self._count(self._waiting.popleft())
            await runner.breathe()       # between two units of work: an append goes first
            if not go_on():
                break                    # somebody writes; store what is made, and return
        return bool(self._waiting)       # whether there is more

  What must survive the process leaves a mark in the transaction that it is about. The mark is
  removed when all idle work that covers its kind is done::

    with runner.writing():               # around whatever must not be delayed
        async with store.transaction() as tx:
            await runner.mark(tx, "turns", session, first=7)    # a row only if there is none yet
        self._waiting.append(...)
        wake()

* **Periodic work** runs every so many seconds, and when it is woken::

    wake = runner.every("sweep", 60, sweep)
"""

from perdure.jobs.idle import GoOn, Wake
from perdure.jobs.job import Job, JobCounts, JobHandler, JobState, RetryLater
from perdure.jobs.marks import PendingMark, marks_of
from perdure.jobs.runner import Runner

__all__ = [
    "GoOn",
    "Job",
    "JobCounts",
    "JobHandler",
    "JobState",
    "PendingMark",
    "RetryLater",
    "Runner",
    "Wake",
    "marks_of",
]

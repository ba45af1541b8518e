"""Renditions made by a model, where one is configured for ``compress``.

What waits for a model is a row with a time (`renditions.records`). Whoever takes the rows of a turn
writes a later time into them first: so two processes do not pay for the same work, and what a
killed one had taken comes up again. One call makes S and C of several rounds, and T of their turn.

What comes back is checked. What passes becomes a variant, beside the algorithm's, and is shown from
the next epoch on. What does not is tried again, later each time, and at last given up: the
algorithm's stays. Nothing that a model does raises an error here; `perdure renditions` tells.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from perdure.config import RenditionsConfig
from perdure.core.clock import SECOND
from perdure.core.errors import Closed, Conflict, PerdureError
from perdure.history.lines import Owned
from perdure.history.records import TurnCount, turn_key
from perdure.history.renditions.craft import Craft, packed_variant
from perdure.history.renditions.records import (
    MOST_VARIANTS,
    PROMPT,
    Rendition,
    Tiny,
    TinyVariant,
    Work,
    rendition_key,
    working,
    working_tiny,
)
from perdure.history.renditions.sources import Sources, Told
from perdure.history.tags import escape
from perdure.storage.finder import all_of, where
from perdure.storage.store import Store
from perdure.storage.transaction import Transaction

if TYPE_CHECKING:
    from perdure.gateway.gateway import Gateway
    from perdure.history.renditions.calling import Job

#: Whoever takes rows has so long; a call may take less. Microseconds.
_LEASE = 600 * SECOND
#: Rows that are due by then are taken along with others of their turn.
_ALONG = 60 * SECOND
#: After a failure; four times as long after each further one. While a budget does not allow it.
_BACK_OFF, _BROKE = 120 * SECOND, 300 * SECOND
#: Seconds between two looks for what others left, or what failed.
_POLL = 30.0
_PAGE = 64

_log = logging.getLogger(__name__)


class Asker:
    """Lets models make renditions. `gateway` is None if none is configured for that."""

    def __init__(
        self,
        store: Store,
        sources: Sources,
        craft: Craft,
        config: RenditionsConfig,
        gateway: Callable[[], Gateway] | None,
    ) -> None:
        self._store = store
        self._sources = sources
        self._craft = craft
        self._config = config
        self._gateway = gateway
        self._rows = store.collection(Rendition)
        self._tinies = store.collection(Tiny)
        self._running: dict[str, asyncio.Task[None]] = {}
        self._jobs: dict[str, Job] = {}
        self._waker = asyncio.Event()
        self._beginning = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None
        self._stopped = False

    @property
    def is_on(self) -> bool:
        return self._config.model and self._gateway is not None

    @property
    def prompt(self) -> str | None:
        """What recipes of models begin with today; None if none is asked."""
        return PROMPT if self.is_on else None

    async def start(self) -> None:
        """Look for work from now on."""
        if self.is_on and self._task is None and not self._stopped:
            self._task = asyncio.get_running_loop().create_task(self._run(), name="perdure-asker")

    def wake(self) -> None:
        """Look for work now."""
        self._waker.set()

    async def settle(self) -> None:
        """Do all that is due."""
        while self.is_on and not self._stopped:
            await self._begin()
            if not self._running:
                return
            await asyncio.wait(list(self._running.values()))

    async def stop(self) -> None:
        """End calls that are under way, and give back what was taken for them."""
        self._stopped = True
        tasks = [task for task in (self._task, *self._running.values()) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        with suppress(PerdureError):  # or it comes up again when the lease has run out
            for job in list(self._jobs.values()):
                await self._put_off(job, self._store.now())

    async def want(self, owned: Owned) -> None:
        """Have a model work on what is not made by one in these turns, unless it was given up."""
        if not self.is_on:
            return
        now = self._store.now()

        async def body(transaction: Transaction) -> None:
            for turn in range(owned.first, owned.last + 1):
                key = turn_key(owned.session, turn)
                rows = transaction.collection(Rendition)
                found = await rows.query().prefix(f"{key}.").values()
                news = [working(row, Work(now)) for row in found if _lacks_model(row)]
                await rows.put_many(news)
                tinies = transaction.collection(Tiny)
                tiny = await tinies.get(key)
                if tiny is not None and _lacks_model(tiny):
                    await tinies.put(working_tiny(tiny, Work(now)))

        await self._store.transact(body)
        self.wake()

    # Finding work -----------------------------------------------------------------------------

    async def _run(self) -> None:
        while True:
            self._waker.clear()
            try:
                await self._begin()
            except Closed:
                return
            except PerdureError as exc:
                _log.warning("renditions that wait for a model cannot be looked for: %s", exc)
            waiting = asyncio.ensure_future(self._waker.wait())
            try:
                # Whoever ends makes room for another.
                await asyncio.wait(
                    [waiting, *self._running.values()],
                    timeout=_POLL,
                    return_when=asyncio.FIRST_COMPLETED,
                )
            finally:
                waiting.cancel()

    async def _begin(self) -> None:
        """Begin with what is due, as far as there is room."""
        async with self._beginning:
            room = self._config.concurrency - len(self._running)
            if room <= 0 or self._stopped:
                return
            due = [key for key in await self._due() if key not in self._running]
            for key in due[:room]:
                task = asyncio.get_running_loop().create_task(self._do(key), name=f"asker {key}")
                self._running[key] = task
                task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._running = {key: each for key, each in self._running.items() if each is not task}
        self._waker.set()

    async def _due(self) -> list[str]:
        """Turns with rows that are due, those that wait longest first."""
        now = self._store.now()
        found = dict[str, int]()
        for collection in (self._tinies, self._rows):
            finder = collection.query().where("waits", "=", 1).where("due", "<=", now)
            for row in await finder.order_by("due").limit(_PAGE).values():
                key = row.id if isinstance(row, Tiny) else row.id.rpartition(".")[0]
                found[key] = min(row.due or 0, found.get(key, now))
        return sorted(found, key=lambda key: found[key])

    async def _do(self, key: str) -> None:
        """Let a model work on a turn. Never raises, but for being cancelled."""
        from perdure.history.renditions.calling import Caller

        try:
            job = await self._take(key)
            if job is None or self._gateway is None:
                return
            self._jobs[key] = job
            await Caller(self._sources, self._craft, self._gateway).work(job)
            await self._store_made(job)
            self._jobs.pop(key, None)
        except PerdureError as exc:
            # The rows come up again when the lease has run out.
            self._jobs.pop(key, None)
            _log.warning("what a model made of %s could not be stored: %s", key, exc)

    async def _take(self, key: str) -> Job | None:
        """Take the rows of a turn that are due, and those that will be soon."""
        session, _, number = key.rpartition("/")
        now = self._store.now()
        soon = all_of(where("waits", "=", 1), where("due", "<=", now + _ALONG))
        try:
            async with self._store.transaction() as transaction:
                rows, tinies = transaction.collection(Rendition), transaction.collection(Tiny)
                found = await rows.query().prefix(f"{key}.").where(soon).values()
                tiny = await tinies.get(key)
                if tiny is not None and not (tiny.waits and (tiny.due or 0) <= now + _ALONG):
                    tiny = None
                until = now + _LEASE
                await rows.put_many(
                    [working(row, Work(until, row.attempts, row.problem)) for row in found]
                )
                if tiny is not None:
                    work = Work(until, tiny.attempts, tiny.problem)
                    await tinies.put(working_tiny(tiny, work))
        except Conflict:
            return None  # somebody else takes it, or more was said
        from perdure.history.renditions.calling import Job

        return Job(session, int(number), found, tiny) if found or tiny is not None else None

    # Storing ----------------------------------------------------------------------------------

    async def _store_made(self, job: Job) -> None:
        """Add what is good to the rows; say of the rest when it is to be tried again."""
        key = turn_key(job.session, job.turn)

        async def body(transaction: Transaction) -> None:
            # Before the pieces: see `renditions.making`.
            count = await transaction.collection(TurnCount).get(key)
            told = await self._sources.told(Owned(job.session, job.turn, job.turn))
            if count is None or not told:
                return  # it was forgotten
            rows = transaction.collection(Rendition)
            keys = [rendition_key(job.session, job.turn, row.round) for row in job.rows]
            found = [row for row in await rows.get_many(keys) if row is not None]
            await rows.put_many([await self._row(job, row, told[0]) for row in found])
            if job.tiny is not None:
                tinies = transaction.collection(Tiny)
                tiny = await tinies.get(key)
                if tiny is not None:
                    await tinies.put(self._tiny(job, tiny, told[0]))

        await self._store.transact(body)

    async def _row(self, job: Job, row: Rendition, told: Told) -> Rendition:
        made, messages = job.made.get(row.round), told.rounds.get(row.round, ())
        newest = row.newest
        if newest is None or newest.messages != len(messages):
            return row  # more was said meanwhile, and is due by itself
        if made is None:
            return working(row, self._again(job, row, row.round))
        full = await self._sources.full(messages)
        smooth, compact, recipe = made
        variant = packed_variant(full, smooth, compact, self._craft.counter, recipe)
        return Rendition(row.id, (*row.variants[: MOST_VARIANTS - 1], variant))

    def _tiny(self, job: Job, row: Tiny, told: Told) -> Tiny:
        newest = row.newest
        if newest is None or newest.messages != told.messages:
            return row
        if job.made_tiny is None:
            return working_tiny(row, self._again(job, row, 0))
        text, recipe = job.made_tiny
        tokens = self._craft.counter.count(escape(text))
        variant = TinyVariant(text, tokens, told.messages, recipe)
        return Tiny(row.id, (*row.variants[: MOST_VARIANTS - 1], variant))

    def _again(self, job: Job, row: Rendition | Tiny, round: int) -> Work:
        """When a row is to be tried again, if at all."""
        problem = job.problems.get(round, "")
        now = self._store.now()
        if job.broke:
            return Work(now + _BROKE, row.attempts, problem)
        if not problem:
            return Work()  # too short or too long for a model
        attempts = row.attempts + 1
        if attempts >= self._config.attempts:
            return Work(None, attempts, problem)
        return Work(now + _BACK_OFF * 4 ** (attempts - 1), attempts, problem)

    async def _put_off(self, job: Job, due: int) -> None:
        """Give rows back that were taken."""
        key = turn_key(job.session, job.turn)

        async def body(transaction: Transaction) -> None:
            rows, tinies = transaction.collection(Rendition), transaction.collection(Tiny)
            found = await rows.get_many([row.id for row in job.rows])
            await rows.put_many(
                [working(r, Work(due, r.attempts, r.problem)) for r in found if r and r.waits]
            )
            tiny = None if job.tiny is None else await tinies.get(key)
            if tiny is not None and tiny.waits:
                await tinies.put(working_tiny(tiny, Work(due, tiny.attempts, tiny.problem)))

        await self._store.transact(body)


def _lacks_model(row: Rendition | Tiny) -> bool:
    """Whether a model is to be asked: no model of today made it, none is about to, or gave up."""
    newest = row.newest
    by_model = newest is not None and newest.recipe.partition(" ")[0] == PROMPT
    return newest is not None and not by_model and not row.waits and not row.problem

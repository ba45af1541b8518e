"""Renditions made by a model, where one is configured for ``compress``.

Waiting work is a row with a time. A process that takes the rows of a turn first writes a later time
into them: so two processes do not pay for the same work, and what a killed one had taken comes up
again. One call makes S and C of several rounds, and T of their turn.

Answers are checked. A good one becomes a variant beside the algorithm's, shown from the next epoch
on. A bad one is tried again, later each time, and at last given up: the algorithm's stays. Nothing
that a model does raises an error here; `perdure renditions` reports it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

import msgspec

from perdure.config import RenditionsConfig
from perdure.core.clock import SECOND
from perdure.core.errors import (
    BudgetReached,
    Conflict,
    Corrupted,
    DeadlineExceeded,
    GatewayError,
    PerdureError,
)
from perdure.core.messages import Message
from perdure.gateway.calls import CallOptions
from perdure.history.log_records import Owned, TurnCount, agent_of, turn_key
from perdure.history.renditions import algorithm, model_prompts, rendition_packing
from perdure.history.renditions.model_prompts import faults
from perdure.history.renditions.rendition_maker import RenditionMaker, TurnMessages, packed_variant
from perdure.history.renditions.rendition_records import (
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
from perdure.history.renditions.rendition_status import TASK
from perdure.history.turn_tags import escape
from perdure.jobs import Wake
from perdure.storage.finder import all_of, where
from perdure.storage.store import Store
from perdure.storage.transaction import Transaction

if TYPE_CHECKING:
    from perdure.gateway.gateway import Gateway

_LEASE = 600 * SECOND  # Whoever takes rows has so long; a call may take less. Microseconds.
_ALONG = 60 * SECOND  # Rows that are due by then are taken along with others of their turn.
#: After a failure; four times as long after each further one. While a budget does not allow it.
_BACK_OFF, _BROKE = 120 * SECOND, 300 * SECOND
_PAGE = 64

_DEADLINE = 300.0  # Seconds that a call may take.
#: Tokens of S in one call; what is longer alone, or shorter than this, is left to the algorithm.
_CALL, _LONGEST, _SHORTEST = 6_000, 16_000, 24
#: T of a turn: a share of its tokens, but so many in any case.
_TINY_SHARE, _TINY_LEAST = 0.05, 40
_EARLIER = 2_000  # Of what happened before, a model is shown so many tokens.

_log = logging.getLogger(__name__)


class _Round(msgspec.Struct):
    row: Rendition
    full: tuple[Message, ...]
    smooth: str
    compact: str
    tokens: int
    raw: str

    @property
    def number(self) -> int:
        return self.row.round


class ModelTask(msgspec.Struct):
    """The rows of a turn that were taken, and the results."""

    session: str
    turn: int
    rows: list[Rendition]
    tiny: Tiny | None
    #: By round: S and C; T; who made them.
    made: dict[int, tuple[str, str, str]] = {}
    made_tiny: tuple[str, str] | None = None
    problems: dict[int, str] = {}  # What went wrong, by round; 0 is the turn.
    broke: bool = False  # No budget: it is tried again without counting as a failure.


class ModelRenditions:
    """Lets models make renditions. Made only where one is configured."""

    def __init__(
        self,
        store: Store,
        maker: RenditionMaker,
        config: RenditionsConfig,
        gateway: Callable[[], Gateway],
    ) -> None:
        self._store = store
        self._maker = maker
        self._config = config
        self._gateway = gateway
        self._rows = store.collection(Rendition)
        self._tinies = store.collection(Tiny)
        self._running: dict[str, asyncio.Task[None]] = {}
        self._tasks: dict[str, ModelTask] = {}
        self._beginning = asyncio.Lock()
        self._stopped = False
        self.on_room: Wake | None = None  # Called when there is room for more.

    async def settle(self) -> None:
        while not self._stopped:
            await self.begin()
            if not self._running:
                return
            await asyncio.wait(list(self._running.values()))

    async def stop(self) -> None:
        """Cancel running calls, and give back what was taken for them."""
        self._stopped = True
        tasks = list(self._running.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        with suppress(PerdureError):  # or it comes up again when the lease has run out
            for job in list(self._tasks.values()):
                await self._put_off(job, self._store.now())

    async def want(self, owned: Owned) -> None:
        """Queue what no model has made in these turns, unless it was given up."""
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

    # Finding work -----------------------------------------------------------------------------

    async def begin(self) -> None:
        async with self._beginning:
            room = self._config.concurrency - len(self._running)
            if room <= 0 or self._stopped:
                return
            due = [key for key in await self._due() if key not in self._running]
            for key in due[:room]:
                task = asyncio.get_running_loop().create_task(
                    self._do(key), name=f"perdure-model {key}"
                )
                self._running[key] = task
                task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._running = {key: each for key, each in self._running.items() if each is not task}
        if self.on_room is not None:
            self.on_room()

    async def _due(self) -> list[str]:
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
        try:
            job = await self._take(key)
            if job is None:
                return
            self._tasks[key] = job
            await _Caller(self._maker, self._gateway).work(job)
            await self._store_made(job)
            self._tasks.pop(key, None)
        except PerdureError as exc:
            # The rows come up again when the lease has run out.
            self._tasks.pop(key, None)
            _log.warning("what a model made of %s could not be stored: %s", key, exc)

    async def _take(self, key: str) -> ModelTask | None:
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

        return ModelTask(session, int(number), found, tiny) if found or tiny is not None else None

    # Storing ----------------------------------------------------------------------------------

    async def _store_made(self, job: ModelTask) -> None:
        key = turn_key(job.session, job.turn)

        async def body(transaction: Transaction) -> None:
            # Before the pieces: see `rendition_store`.
            count = await transaction.collection(TurnCount).get(key)
            told = await self._maker.told(Owned(job.session, job.turn, job.turn))
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

    async def _row(self, job: ModelTask, row: Rendition, told: TurnMessages) -> Rendition:
        made, messages = job.made.get(row.round), told.rounds.get(row.round, ())
        newest = row.newest
        if newest is None or newest.messages != len(messages):
            return row  # more was said meanwhile, and is due by itself
        if made is None:
            return working(row, self._again(job, row, row.round))
        full = await self._maker.full(messages)
        smooth, compact, recipe = made
        variant = packed_variant(full, smooth, compact, self._maker.counter, recipe)
        return Rendition(row.id, (*row.variants[: MOST_VARIANTS - 1], variant))

    def _tiny(self, job: ModelTask, row: Tiny, told: TurnMessages) -> Tiny:
        newest = row.newest
        if newest is None or newest.messages != told.messages:
            return row
        if job.made_tiny is None:
            return working_tiny(row, self._again(job, row, 0))
        text, recipe = job.made_tiny
        tokens = self._maker.counter.count(escape(text))
        variant = TinyVariant(text, tokens, told.messages, recipe)
        return Tiny(row.id, (*row.variants[: MOST_VARIANTS - 1], variant))

    def _again(self, job: ModelTask, row: Rendition | Tiny, round: int) -> Work:
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

    async def _put_off(self, job: ModelTask, due: int) -> None:
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


class _Caller:
    """Has a model work on jobs. Raises nothing that a model or a provider does."""

    def __init__(self, maker: RenditionMaker, gateway: Callable[[], Gateway]) -> None:
        self._maker = maker
        self._gateway = gateway

    async def work(self, job: ModelTask) -> None:
        try:
            told = await self._maker.told(Owned(job.session, job.turn, job.turn))
            if not told:
                return
            rounds = await self._rounds(job, told[0])
        except Corrupted as exc:
            self._fail(job, [0, *(row.round for row in job.rows)], exc.message)
            return
        done = list[_Round]()
        batches = list(_batches([each for each in rounds if _is_worth_it(each)])) or [[]]
        for at, batch in enumerate(batches, 1):
            asks_tiny = job.tiny is not None and at == len(batches)
            if batch or asks_tiny:
                await self._ask(job, batch, told[0] if asks_tiny else None, done or rounds)
            if job.broke:
                return
            done += batch

    async def _rounds(self, job: ModelTask, told: TurnMessages) -> list[_Round]:
        found = list[_Round]()
        for row in job.rows:
            newest = row.newest
            messages = told.rounds.get(row.round, ())
            if newest is None or newest.messages != len(messages):
                continue  # more was said meanwhile: that has a row to come
            full = await self._maker.full(messages)
            try:
                smooth, compact = rendition_packing.unpack(
                    newest.packed, rendition_packing.ground(full)
                )
            except Corrupted:
                continue
            found.append(_Round(row, full, smooth, compact, newest.smooth, algorithm.raw(full)))
        return found

    async def _ask(
        self,
        job: ModelTask,
        batch: Sequence[_Round],
        told: TurnMessages | None,
        before: Sequence[_Round],
    ) -> None:
        asked = [each.number for each in batch] + ([0] if told is not None else [])
        limit = await self._limit(told) if told is not None else None
        earlier = "\n".join(each.compact for each in before if each not in batch)
        request = model_prompts.request(
            [model_prompts.PromptRound(each.number, each.smooth, each.tokens) for each in batch],
            limit=limit,
            earlier=algorithm.truncate(earlier, _EARLIER, self._maker.counter) if limit else "",
        )
        ask = CallOptions(
            purpose="compress",
            task=TASK,
            agent=agent_of(job.session),
            session=job.session,
            deadline=_DEADLINE,
            cache=False,
        )
        try:
            reply = await self._gateway().complete(request, ask)
            answer = model_prompts.answer(reply.text)
        except BudgetReached as exc:
            job.broke = True
            self._fail(job, asked, exc.message)
            return
        except (GatewayError, DeadlineExceeded) as exc:
            self._fail(job, asked, exc.message)
            return
        recipe = f"{PROMPT} {reply.provider}/{reply.model}"
        items = {item.round: item for item in answer.rounds}
        for each in batch:
            await self._maker.jobs.breathe()
            self._judge(job, each, items.get(each.number), recipe)
        if told is not None and limit is not None:
            await self._judge_tiny(job, told, answer.turn or "", limit, recipe)

    def _judge(
        self, job: ModelTask, round: _Round, item: model_prompts.ShortenedRound | None, recipe: str
    ) -> None:
        if item is None:
            self._fail(job, [round.number], "the answer leaves it out")
            return
        counter = self._maker.counter
        smooth = (
            round.smooth if item.smooth is None else rendition_packing.clean(item.smooth.strip())
        )
        compact = rendition_packing.clean(item.compact.strip())
        wrong = faults(round.raw, smooth, "S", counter) if item.smooth is not None else []
        wrong += faults(round.raw, compact, "C", counter)
        if not wrong and counter.count(compact) > counter.count(smooth):
            wrong.append("C is longer than S")
        if wrong:
            self._fail(job, [round.number], wrong[0])
        else:
            job.made[round.number] = smooth, compact, recipe

    async def _judge_tiny(
        self, job: ModelTask, told: TurnMessages, text: str, limit: int, recipe: str
    ) -> None:
        text = rendition_packing.clean(text.strip())
        full = [await self._maker.full(messages) for messages in told.rounds.values()]
        source = "\n".join(map(algorithm.raw, full))
        wrong = faults(source, text, "T", self._maker.counter, limit=limit)
        if wrong:
            self._fail(job, [0], wrong[0])
        else:
            job.made_tiny = text, recipe

    async def _limit(self, told: TurnMessages) -> int:
        raw = 0
        for messages in told.rounds.values():
            raw += await self._maker.tokens(messages)
        return max(_TINY_LEAST, int(raw * _TINY_SHARE))

    def _fail(self, job: ModelTask, rounds: Sequence[int], problem: str) -> None:
        job.problems |= dict.fromkeys(rounds, problem[:160])


def _lacks_model(row: Rendition | Tiny) -> bool:
    newest = row.newest
    by_model = newest is not None and newest.recipe.partition(" ")[0] == PROMPT
    return newest is not None and not by_model and not row.waits and not row.problem


def _is_worth_it(round: _Round) -> bool:
    return _SHORTEST <= round.tokens <= _LONGEST


def _batches(rounds: Sequence[_Round]) -> Iterator[list[_Round]]:
    batch, tokens = list[_Round](), 0
    for each in rounds:
        if batch and tokens + each.tokens > _CALL:
            yield batch
            batch, tokens = [], 0
        batch.append(each)
        tokens += each.tokens
    if batch:
        yield batch

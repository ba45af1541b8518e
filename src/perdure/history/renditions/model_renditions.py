"""Renditions made by a model, where one is configured for ``compress``.

A turn that waits for one is a job, so two processes do not pay for the same work, and what a killed
one had begun comes up again. One call makes S and C of several rounds, and T of their turn.

Answers are checked. A good one becomes a variant beside the algorithm's, shown from the next epoch
on. A bad one is tried again, later each time, and at last given up: the algorithm's stays, and
`perdure renditions` reports it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import msgspec

from perdure.core.errors import (
    BadAnswer,
    BudgetReached,
    Corrupted,
    DeadlineExceeded,
    GatewayError,
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
    TASK,
    Rendition,
    Tiny,
    TinyVariant,
    is_by_model,
    is_worth_a_model,
    lacks_model,
)
from perdure.history.turn_tags import escape
from perdure.jobs import Job, JobState, RetryLater
from perdure.storage.store import Store
from perdure.storage.transaction import Transaction

if TYPE_CHECKING:
    from perdure.gateway.gateway import Gateway

_BROKE = 300.0  # Seconds between two tries while a budget does not allow it.
_DEADLINE = 300.0  # Seconds that a call may take.
_CALL = 6_000  # Tokens of S in one call.
#: T of a turn: a share of its tokens, but so many in any case.
_TINY_SHARE, _TINY_LEAST = 0.05, 40
_EARLIER = 2_000  # Of what happened before, a model is shown so many tokens.


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
    """The rows of a turn that no model has made, and the results."""

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
    """Lets models make renditions, so many at the same time. Made only where one is configured."""

    def __init__(
        self,
        store: Store,
        maker: RenditionMaker,
        concurrency: int,
        gateway: Callable[[], Gateway],
    ) -> None:
        self._store = store
        self._maker = maker
        self._gateway = gateway
        self._room = asyncio.Semaphore(concurrency)

    async def want(self, owned: Owned) -> None:
        """Queue these turns as far as no model has made them, unless they were given up."""

        async def body(transaction: Transaction) -> None:
            jobs = transaction.collection(Job)
            for turn in range(owned.first, owned.last + 1):
                key = turn_key(owned.session, turn)
                rows, tiny = await _rows_of(transaction, key)
                if any(map(lacks_model, rows)) or (tiny is not None and lacks_model(tiny)):
                    job = await jobs.get(f"{TASK}/{key}")
                    if job is None or job.state is not JobState.FAILED:
                        await self._maker.ask_model(transaction, owned.session, turn)

        await self._store.transact(body)

    async def work(self, job: Job) -> None:
        """Let a model work on the turn of a job. Raises `BadAnswer` if something of it could not be
        made, after storing the rest.
        """
        session, turn = job.payload
        async with self._room:
            rows, tiny = await _rows_of(self._store, turn_key(session, turn))
            rows = [row for row in rows if not is_by_model(row)]
            task = ModelTask(session, turn, rows, None if tiny and is_by_model(tiny) else tiny)
            await _Caller(self._maker, self._gateway).work(task)
            if task.made or task.made_tiny:
                await self._store_made(task)
        for problem in task.problems.values():
            raise RetryLater(_BROKE, problem) if task.broke else BadAnswer(problem)

    async def _store_made(self, job: ModelTask) -> None:
        key = turn_key(job.session, job.turn)

        async def body(transaction: Transaction) -> None:
            # Before the pieces: see `rendition_store`.
            count = await transaction.collection(TurnCount).get(key)
            told = await self._maker.told(Owned(job.session, job.turn, job.turn))
            if count is None or not told:
                return  # it was forgotten
            rows, tiny = await _rows_of(transaction, key)
            made = [await self._row(job, row, told[0]) for row in rows if row.round in job.made]
            await transaction.collection(Rendition).put_many(made)
            if tiny is not None and job.made_tiny is not None:
                made_tiny = self._tiny(job.made_tiny, tiny, told[0])
                await transaction.collection(Tiny).put(made_tiny)

        await self._store.transact(body)

    async def _row(self, job: ModelTask, row: Rendition, told: TurnMessages) -> Rendition:
        newest, messages = row.newest, told.rounds.get(row.round, ())
        if newest is None or newest.messages != len(messages):
            return row  # more was said meanwhile, and has a job
        full = await self._maker.full(messages)
        smooth, compact, recipe = job.made[row.round]
        variant = packed_variant(full, smooth, compact, self._maker.counter, recipe)
        return Rendition(row.id, (*row.variants[: MOST_VARIANTS - 1], variant))

    def _tiny(self, made: tuple[str, str], row: Tiny, told: TurnMessages) -> Tiny:
        if row.newest is None or row.newest.messages != told.messages:
            return row
        text, recipe = made
        tokens = self._maker.counter.count(escape(text))
        variant = TinyVariant(text, tokens, told.messages, recipe)
        return Tiny(row.id, (*row.variants[: MOST_VARIANTS - 1], variant))


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
        batches = list(_batches([each for each in rounds if is_worth_a_model(each.row)])) or [[]]
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
        self, job: ModelTask, round: _Round, item: model_prompts.RoundAnswer | None, recipe: str
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


async def _rows_of(store: Store | Transaction, key: str) -> tuple[list[Rendition], Tiny | None]:
    rows = await store.collection(Rendition).query().prefix(f"{key}.").values()
    return rows, await store.collection(Tiny).get(key)


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

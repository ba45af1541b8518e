"""Renditions made by models, where some are configured for ``compress``.

A turn that waits for them is a job, so two processes do not pay for the same work, and what a
killed one had begun comes up again. S and C of its rounds and T of the turn are asked for at the
same time, each from the models of its level.

Answers are checked (`model_checks`). A good one becomes a variant beside the algorithm's, shown
from the next epoch on. A bad one is asked for once more, saying what is wrong with it; if that is
no better, it is given up: the algorithm's stays, and `perdure renditions` tells why. Calls that
fail are tried again, later each time.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar

import msgspec

from perdure.core.errors import (
    BadAnswer,
    BudgetReached,
    Corrupted,
    DeadlineExceeded,
    GatewayError,
)
from perdure.core.levels import Level
from perdure.core.messages import Message
from perdure.gateway.calls import CallOptions, Reply, Request
from perdure.history.log_records import Owned, TurnCount, agent_of, turn_key
from perdure.history.renditions import algorithm, model_prompts, rendition_packing
from perdure.history.renditions.model_checks import Source, faults
from perdure.history.renditions.model_prompts import WHOLE, PromptRound
from perdure.history.renditions.rendition_maker import RenditionMaker, TurnMessages, packed_variant
from perdure.history.renditions.rendition_records import (
    EVERY_LEVEL,
    MOST_VARIANTS,
    PROMPT,
    TASK_OF,
    Refusal,
    Rendition,
    Tiny,
    TinyVariant,
    lacking,
    makers,
    recipe_of,
    refusals,
)
from perdure.history.turn_tags import escape
from perdure.jobs import Job, RetryLater
from perdure.storage.store import Store
from perdure.storage.transaction import Transaction

if TYPE_CHECKING:
    from perdure.gateway.gateway import Gateway

_BROKE = 300.0  # Seconds between two tries while a budget does not allow it.
_DEADLINE = 300.0  # Seconds that a call may take.
_CALL = 6_000  # Tokens of S in one call.
_LEAST_SMOOTH = 0.4  # Of the algorithm's S, with its lines about tools, a model's has so much.
#: T of a turn: a share of its tokens, but so many in any case.
_TINY_SHARE, _TINY_LEAST = 0.05, 40

R = TypeVar("R", bound=Rendition | Tiny)


class _Round(msgspec.Struct):
    row: Rendition
    full: tuple[Message, ...]
    smooth: str
    compact: str
    tokens: int  # Of S.

    @property
    def number(self) -> int:
        return self.row.round


class _Made(msgspec.Struct, frozen=True):
    text: str | None  # None: as it was.
    maker: str


class ModelTask(msgspec.Struct):
    """What of a turn no model has made, and the results."""

    session: str
    turn: int
    rows: list[Rendition]
    tiny: Tiny | None
    levels: Collection[Level]
    #: By level and round; a turn is `WHOLE`.
    made: dict[tuple[Level, int], _Made] = {}
    refused: dict[tuple[Level, int], str] = {}  # Why, for good.
    failed: list[str] = []  # What may do better another time.
    broke: str = ""  # No budget: it is tried again without counting as a failure.

    def lacks(self, row: Rendition | Tiny | None, level: Level) -> bool:
        return row is not None and level in lacking(row, self.levels)


class ModelRenditions:
    """Lets models make renditions of these levels, in so many calls at the same time. Made only
    where one is configured.
    """

    def __init__(
        self,
        store: Store,
        maker: RenditionMaker,
        concurrency: int,
        gateway: Callable[[], Gateway],
        levels: Collection[Level] = EVERY_LEVEL,
    ) -> None:
        self._store = store
        self._maker = maker
        self._levels = levels
        self._caller = _Caller(maker, gateway, asyncio.Semaphore(concurrency))

    async def want(self, owned: Owned) -> None:
        """Queue these turns as far as no model has made them, unless they were given up."""

        async def body(transaction: Transaction) -> None:
            for turn in range(owned.first, owned.last + 1):
                rows, tiny = await _rows_of(transaction, turn_key(owned.session, turn))
                if any(lacking(row, self._levels) for row in (*rows, *([tiny] if tiny else ()))):
                    await self._maker.ask_model(transaction, owned.session, turn, anew=False)

        await self._store.transact(body)

    async def work(self, job: Job) -> None:
        """Let models work on the turn of a job. Raises `BadAnswer`, after storing the rest, if a
        call failed.
        """
        session, turn = job.payload
        rows, tiny = await _rows_of(self._store, turn_key(session, turn))
        task = ModelTask(session, turn, rows, tiny, self._levels)
        await self._caller.work(task)
        if task.made or task.refused:
            await self._store_results(task)
        if task.broke:
            raise RetryLater(_BROKE, task.broke)
        if task.failed:
            raise BadAnswer("\n".join(dict.fromkeys(task.failed)))

    async def _store_results(self, task: ModelTask) -> None:
        key = turn_key(task.session, task.turn)

        async def body(transaction: Transaction) -> None:
            # Before the pieces: see `rendition_store`.
            count = await transaction.collection(TurnCount).get(key)
            told = await self._maker.told(Owned(task.session, task.turn, task.turn))
            if count is None or not told:
                return  # it was forgotten
            rows, tiny = await _rows_of(transaction, key)
            made = [await self._row(task, row, told[0]) for row in rows]
            await transaction.collection(Rendition).put_many(
                new for new, row in zip(made, rows, strict=True) if new is not row
            )
            if tiny is not None and (new := self._tiny(task, tiny, told[0])) is not tiny:
                await transaction.collection(Tiny).put(new)

        await self._store.transact(body)

    async def _row(self, task: ModelTask, row: Rendition, told: TurnMessages) -> Rendition:
        newest, messages = row.newest, told.rounds.get(row.round, ())
        if newest is None or newest.messages != len(messages):
            return row  # more was said meanwhile, and has a job
        row = _with_refusals(row, task, ("S", "C"), row.round)
        made_smooth = task.made.get(("S", row.round))
        made_compact = task.made.get(("C", row.round))
        if made_smooth is None and made_compact is None:
            return row
        full, counter = await self._maker.full(messages), self._maker.counter
        smooth, compact = rendition_packing.unpack(newest.packed, rendition_packing.ground(full))
        by_smooth, by_compact = makers(newest.recipe)
        if made_smooth is not None:
            smooth, by_smooth = made_smooth.text or smooth, made_smooth.maker
        if made_compact is not None:
            compact, by_compact = made_compact.text or compact, made_compact.maker
        if counter.count(compact) > counter.count(smooth):
            compact = smooth
        recipe = recipe_of(by_smooth, by_compact)
        variant = packed_variant(full, smooth, compact, counter, recipe)
        variants = (*row.variants[: MOST_VARIANTS - 1], variant)
        return msgspec.structs.replace(row, variants=variants)

    def _tiny(self, task: ModelTask, row: Tiny, told: TurnMessages) -> Tiny:
        if row.newest is None or row.newest.messages != told.messages:
            return row
        row, made = _with_refusals(row, task, ("T",), WHOLE), task.made.get(("T", WHOLE))
        if made is None:
            return row
        text = made.text or ""
        tokens = self._maker.counter.count(escape(text))
        variant = TinyVariant(text, tokens, told.messages, f"{PROMPT} {made.maker}")
        variants = (*row.variants[: MOST_VARIANTS - 1], variant)
        return msgspec.structs.replace(row, variants=variants)


class _Caller:
    """Has models work on tasks. Raises nothing that a model or a provider does."""

    def __init__(
        self, maker: RenditionMaker, gateway: Callable[[], Gateway], room: asyncio.Semaphore
    ) -> None:
        self._maker = maker
        self._gateway = gateway
        self._room = room

    async def work(self, task: ModelTask) -> None:
        try:
            told = await self._maker.told(Owned(task.session, task.turn, task.turn))
            if not told:
                return
            rounds = await self._rounds(task, told[0])
        except Corrupted as exc:
            task.failed.append(exc.message)
            return
        async with asyncio.TaskGroup() as group:
            for level in ("S", "C"):
                lacks = [each for each in rounds if task.lacks(each.row, level)]
                for batch in _batches(lacks):
                    group.create_task(self._ask_rounds(task, level, batch))
            if task.lacks(task.tiny, "T"):
                group.create_task(self._ask_turn(task, told[0], rounds))

    async def _rounds(self, task: ModelTask, told: TurnMessages) -> list[_Round]:
        found = list[_Round]()
        for row in task.rows:
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
            found.append(_Round(row, full, smooth, compact, newest.smooth))
        return found

    async def _ask_rounds(self, task: ModelTask, level: Level, batch: Sequence[_Round]) -> None:
        given = [PromptRound(each.number, each.smooth, each.tokens) for each in batch]
        share = _LEAST_SMOOTH if level == "S" else 0.0
        sources = {
            each.number: Source([each.full], least=int(each.tokens * share)) for each in batch
        }
        await self._ask(task, level, model_prompts.request(level, given), sources)

    async def _ask_turn(
        self, task: ModelTask, told: TurnMessages, rounds: Sequence[_Round]
    ) -> None:
        raw = [await self._maker.tokens(messages) for messages in told.rounds.values()]
        limit = max(_TINY_LEAST, int(sum(raw) * _TINY_SHARE))
        if sum(each.tokens for each in rounds) <= _CALL:
            given = [PromptRound(each.number, each.smooth, 0) for each in rounds]
        else:
            share = _CALL // max(len(rounds), 1)
            given = [
                PromptRound(
                    each.number, algorithm.truncate(each.compact, share, self._maker.counter), 0
                )
                for each in rounds
            ]
        full = [await self._maker.full(messages) for messages in told.rounds.values()]
        request = model_prompts.request("T", given, limit=limit)
        await self._ask(task, "T", request, {WHOLE: Source(full)}, limit)

    async def _ask(
        self,
        task: ModelTask,
        level: Level,
        request: Request,
        sources: Mapping[int, Source],
        limit: int | None = None,
    ) -> None:
        """Twice at most: the second time for what was refused."""
        wrong = dict.fromkeys(sources, "")
        for _ in range(2):
            reply = await self._call(task, level, request)
            if reply is None:
                return
            wrong = await self._judge(
                task, level, reply, {number: sources[number] for number in wrong}, limit
            )
            if not wrong:
                return
            request = model_prompts.again(request, reply.text, wrong)
        task.refused |= {(level, number): fault[:160] for number, fault in wrong.items()}

    async def _call(self, task: ModelTask, level: Level, request: Request) -> Reply | None:
        options = CallOptions(
            purpose="compress",
            task=TASK_OF[level],
            agent=agent_of(task.session),
            session=task.session,
            deadline=_DEADLINE,
            cache=False,
        )
        try:
            async with self._room:
                return await self._gateway().complete(request, options)
        except BudgetReached as exc:
            task.broke = exc.message[:160]
        except (GatewayError, DeadlineExceeded) as exc:
            task.failed.append(exc.message[:160])
        return None

    async def _judge(
        self,
        task: ModelTask,
        level: Level,
        reply: Reply,
        sources: Mapping[int, Source],
        limit: int | None,
    ) -> dict[int, str]:
        """Keep what is good of an answer; returns what is wrong with the rest."""
        try:
            texts = model_prompts.answer(level, reply.text)
        except BadAnswer as exc:
            return dict.fromkeys(sources, exc.message.removesuffix("."))
        maker = f"{reply.provider}/{reply.model}".replace(" ", "_")
        wrong = dict[int, str]()
        for number, source in sources.items():
            text = texts.get(number, "")
            if text is not None:
                text = rendition_packing.clean(text.strip())
                check = functools.partial(self._faults, source, text, level, limit)
                if found := await self._maker.worked(len(source.raw), check):
                    wrong[number] = found[0] if number in texts else "the answer leaves it out"
                    continue
            task.made[level, number] = _Made(text, maker)
        return wrong

    def _faults(self, source: Source, text: str, level: Level, limit: int | None) -> list[str]:
        return faults(source, text, level, self._maker.counter, limit=limit)


def _with_refusals(row: R, task: ModelTask, levels: Sequence[Level], number: int) -> R:
    messages = 0 if row.newest is None else row.newest.messages
    found = [(level, task.refused.get((level, number))) for level in levels]
    news = [Refusal(level, messages, PROMPT, why) for level, why in found if why is not None]
    return msgspec.structs.replace(row, refused=(*refusals(row), *news)) if news else row


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

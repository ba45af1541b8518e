"""Calls a model for the rounds of one turn, and judges what it says."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import msgspec

from perdure.core.errors import BudgetReached, Corrupted, DeadlineExceeded, GatewayError
from perdure.core.messages import Message
from perdure.gateway.calls import CallOptions
from perdure.history.lines import Owned
from perdure.history.records import agent_of
from perdure.history.renditions import algorithm, packing, prompts
from perdure.history.renditions.checks import faults
from perdure.history.renditions.craft import Craft
from perdure.history.renditions.records import PROMPT, Rendition, Tiny
from perdure.history.renditions.sources import Sources, Told
from perdure.history.renditions.standing import TASK

if TYPE_CHECKING:
    from perdure.gateway.gateway import Gateway

#: Seconds that a call may take.
DEADLINE = 300.0
#: Tokens of S in one call; what is longer alone, or shorter than this, is left to the algorithm.
_CALL, _LONGEST, _SHORTEST = 6_000, 16_000, 24
#: T of a turn: a share of its tokens, but so many in any case.
_TINY_SHARE, _TINY_LEAST = 0.05, 40
#: Of what happened before, a model is shown so many tokens.
_EARLIER = 2_000


class _Round(msgspec.Struct):
    """A round that a model works on."""

    row: Rendition
    full: tuple[Message, ...]
    smooth: str
    compact: str
    tokens: int
    raw: str

    @property
    def number(self) -> int:
        return self.row.round


class Job(msgspec.Struct):
    """The rows of a turn that were taken, and what came of them."""

    session: str
    turn: int
    rows: list[Rendition]
    tiny: Tiny | None
    #: By round: S and C; T; who made them.
    made: dict[int, tuple[str, str, str]] = {}
    made_tiny: tuple[str, str] | None = None
    #: What went wrong, by round; 0 is the turn.
    problems: dict[int, str] = {}
    #: No budget: it is tried again without counting as a failure.
    broke: bool = False


class Caller:
    """Has a model work on jobs. Raises nothing that a model or a provider does."""

    def __init__(self, sources: Sources, craft: Craft, gateway: Callable[[], Gateway]) -> None:
        self._sources = sources
        self._craft = craft
        self._gateway = gateway

    async def work(self, job: Job) -> None:
        """Let a model shorten the rounds of a job, and keep of it what is good."""
        try:
            told = await self._sources.told(Owned(job.session, job.turn, job.turn))
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

    async def _rounds(self, job: Job, told: Told) -> list[_Round]:
        """The rounds to be worked on, with what the algorithm made of them."""
        found = list[_Round]()
        for row in job.rows:
            newest = row.newest
            messages = told.rounds.get(row.round, ())
            if newest is None or newest.messages != len(messages):
                continue  # more was said meanwhile: that has a row to come
            full = await self._sources.full(messages)
            try:
                smooth, compact = packing.unpack(newest.packed, packing.ground(full))
            except Corrupted:
                continue
            found.append(_Round(row, full, smooth, compact, newest.smooth, algorithm.raw(full)))
        return found

    async def _ask(
        self, job: Job, batch: Sequence[_Round], told: Told | None, before: Sequence[_Round]
    ) -> None:
        """Make one call, and keep of it what is good."""
        asked = [each.number for each in batch] + ([0] if told is not None else [])
        limit = await self._limit(told) if told is not None else None
        earlier = "\n".join(each.compact for each in before if each not in batch)
        request = prompts.request(
            [prompts.Source(each.number, each.smooth, each.tokens) for each in batch],
            limit=limit,
            earlier=algorithm.truncate(earlier, _EARLIER, self._craft.counter) if limit else "",
        )
        ask = CallOptions(
            purpose="compress",
            task=TASK,
            agent=agent_of(job.session),
            session=job.session,
            deadline=DEADLINE,
            cache=False,
        )
        try:
            reply = await self._gateway().complete(request, ask)
            answer = prompts.answer(reply.text)
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
            await self._craft.jobs.breathe()
            self._judge(job, each, items.get(each.number), recipe)
        if told is not None and limit is not None:
            await self._judge_tiny(job, told, answer.turn or "", limit, recipe)

    def _judge(self, job: Job, round: _Round, item: prompts.Item | None, recipe: str) -> None:
        if item is None:
            self._fail(job, [round.number], "the answer leaves it out")
            return
        counter = self._craft.counter
        smooth = round.smooth if item.smooth is None else packing.clean(item.smooth.strip())
        compact = packing.clean(item.compact.strip())
        wrong = faults(round.raw, smooth, "S", counter) if item.smooth is not None else []
        wrong += faults(round.raw, compact, "C", counter)
        if not wrong and counter.count(compact) > counter.count(smooth):
            wrong.append("C is longer than S")
        if wrong:
            self._fail(job, [round.number], wrong[0])
        else:
            job.made[round.number] = smooth, compact, recipe

    async def _judge_tiny(self, job: Job, told: Told, text: str, limit: int, recipe: str) -> None:
        text = packing.clean(text.strip())
        full = [await self._sources.full(messages) for messages in told.rounds.values()]
        source = "\n".join(map(algorithm.raw, full))
        wrong = faults(source, text, "T", self._craft.counter, limit=limit)
        if wrong:
            self._fail(job, [0], wrong[0])
        else:
            job.made_tiny = text, recipe

    async def _limit(self, told: Told) -> int:
        raw = 0
        for messages in told.rounds.values():
            raw += await self._craft.tokens(messages)
        return max(_TINY_LEAST, int(raw * _TINY_SHARE))

    def _fail(self, job: Job, rounds: Sequence[int], problem: str) -> None:
        job.problems |= dict.fromkeys(rounds, problem[:160])


def _is_worth_it(round: _Round) -> bool:
    """Whether a model could make it shorter, and can be asked for so much."""
    return _SHORTEST <= round.tokens <= _LONGEST


def _batches(rounds: Sequence[_Round]) -> Iterator[list[_Round]]:
    """Rounds that go into one call together."""
    batch, tokens = list[_Round](), 0
    for each in rounds:
        if batch and tokens + each.tokens > _CALL:
            yield batch
            batch, tokens = [], 0
        batch.append(each)
        tokens += each.tokens
    if batch:
        yield batch

"""What became of each attempt to call a model: usage, cost and quality.

Outcomes are written a moment later, many at once: a call never waits for them, and a killed process
loses about the last second. Budgets do not depend on them. Quality is a guess at first
(`perdure.gateway.quality`), until a judge or a user rates it; a user's rating always wins.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from datetime import datetime
from typing import Annotated, Any, Literal, Protocol, TypeAlias

import msgspec

from perdure.core import clock
from perdure.core.errors import InvalidInput, NotFound, PerdureError
from perdure.core.messages import Usage
from perdure.gateway.calls import CallOptions, ModelAnswer, Request, indexable
from perdure.gateway.catalog import ModelCandidate
from perdure.jobs import GoOn, Runner, Wake
from perdure.storage.options import DEFAULT
from perdure.storage.records import Indexed, Key, system_record
from perdure.storage.rows import Index
from perdure.storage.store import Store
from perdure.storage.transaction import Transaction

By: TypeAlias = Literal["agent", "task", "provider", "model", "purpose", "day"]
GROUPS: tuple[By, ...] = ("agent", "task", "provider", "model", "purpose", "day")
Judge: TypeAlias = Literal["heuristic", "judge", "user"]
#: The error of a call that its caller gave up, such as a stream left early: nobody failed.
CANCELLED = "cancelled"

_log = logging.getLogger(__name__)
_RANK: dict[Judge, int] = {"heuristic": 0, "judge": 1, "user": 2}

#: Outcomes that are written at once.
PORTION = 500
#: Outcomes that wait while the store cannot be written; the oldest go first.
MOST_WAITING = 20_000
_PAGE = 500

# Figures need columns, and columns need an index. These indexes are never searched; they hold
# failures only, so they cost next to nothing.
_COLUMNS_ONLY = (("success", 0),)


@system_record(
    "outcomes",
    ttl="400d",
    indexes=[
        Index(("started",)),
        Index(("agent", "task", "provider", "model"), where=_COLUMNS_ONLY),
        Index(("purpose", "day", "cached", "cost"), where=_COLUMNS_ONLY),
        Index(("input", "output", "cache_read", "cache_write"), where=_COLUMNS_ONLY),
        Index(("reasoning", "latency", "first_token", "quality"), where=_COLUMNS_ONLY),
        Index(("error", "quality_by"), where=_COLUMNS_ONLY),
    ],
)
class Outcome(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """One attempt at one model. An answer from the cache is one, too."""

    id: Annotated[str, Key()]  # core.clock.new_id()
    #: When it began. Microseconds.
    started: int
    purpose: str
    provider: str
    model: str
    success: bool
    #: The kind of the error: ``rate_limited``; `CANCELLED`; empty if it succeeded.
    error: str = ""
    agent: Annotated[str, Indexed()] = ""
    session: Annotated[str, Indexed()] = ""
    task: str = ""
    complexity: str = ""
    #: Seconds, of this attempt: until its end, and until the first thing arrived.
    latency: float = 0.0
    first_token: float | None = None
    #: Tokens, as the provider counted them; None is unknown.
    input: int | None = None
    output: int | None = None
    cache_read: int | None = None
    cache_write: int | None = None
    reasoning: int | None = None
    #: Picodollars; None is unknown. An attempt that was not charged for costs 0.
    cost: int | None = None
    cached: bool = False
    streamed: bool = False
    #: By a provider's batch mode: the latency is that of the whole batch.
    batched: bool = False
    fallback: int = 0
    #: From 0 to 1, who says so, and in which words.
    quality: float | None = None
    quality_by: Judge = "heuristic"
    comment: str = ""
    #: What the attempts of one call have in common.
    call: str = ""
    #: The day it began on, in UTC: ``2026-08-09``. Filled in.
    day: str = ""

    def __post_init__(self) -> None:
        force = msgspec.structs.force_setattr
        if not self.day:
            force(self, "day", f"{clock.to_datetime(self.started):%Y-%m-%d}")
        for name in ("agent", "session", "task", "provider", "model"):
            force(self, name, indexable(getattr(self, name)))

    @property
    def name(self) -> str:
        """``provider/model``, as in the configuration."""
        return _name({"provider": self.provider, "model": self.model})

    @classmethod
    def of(cls, options: CallOptions, candidate: ModelCandidate, **fields: Any) -> Outcome:
        return cls(
            purpose=options.purpose,
            provider=candidate.provider.name,
            model=candidate.model,
            agent=options.agent,
            session=options.session,
            task=options.task,
            call=options.call,
            **fields,
        )

    def having(self, usage: Usage | None) -> Outcome:
        if usage is None:
            return self
        return msgspec.structs.replace(
            self,
            input=usage.input,
            output=usage.output,
            cache_read=usage.cache_read,
            cache_write=usage.cache_write,
            reasoning=usage.reasoning,
        )


#: Given the outcome before and after it was rated, in the transaction that keeps the rating.
RatingHook: TypeAlias = Callable[[Transaction, Outcome, Outcome], Awaitable[None]]


def is_overruled(known: Judge, by: Judge) -> bool:
    """Whether what is known counts more than what this one says."""
    return _RANK[known] > _RANK[by]


class OutcomeListener(Protocol):
    """Told of outcomes as they come. Must be quick and not raise."""

    def noted(self, outcome: Outcome, request: Request | None, answer: ModelAnswer | None) -> None:
        """An attempt ended; without an answer if it failed, or if it embedded texts."""

    def rated(self, outcome: Outcome, before: Outcome) -> None:
        """Somebody rated an answer, or rated it again."""

    async def flush(self) -> None:
        """Write what is still to be written. Must not raise."""


class OutcomeRecorder:
    """Writes outcomes later: when `jobs` is idle, on `flush` and on `close`."""

    def __init__(
        self, store: Store, jobs: Runner | None = None, *, most: int = MOST_WAITING
    ) -> None:
        self._store = store
        self._outcomes = store.collection(Outcome)
        #: Called in the transaction of each rating.
        self.rated: list[RatingHook] = []
        self._waiting: deque[Outcome] = deque()
        self._most = most
        self._lock = asyncio.Lock()
        self._wake: Wake | None = jobs.idle("outcomes", self._work) if jobs is not None else None
        self._closed = False
        self._listeners: list[OutcomeListener] = []
        #: Outcomes that were lost because the store refused them or could not be written for too
        #: long.
        self.dropped = 0

    def listen(self, listener: OutcomeListener) -> None:
        self._listeners.append(listener)

    def note(
        self, outcome: Outcome, request: Request | None = None, answer: ModelAnswer | None = None
    ) -> None:
        """Keep an outcome. Never waits, never raises; dropped after `close`."""
        for listener in self._listeners:
            listener.noted(outcome, request, answer)
        if self._closed:
            self.dropped += 1
            return
        self._waiting.append(outcome)
        while len(self._waiting) > self._most:
            self._waiting.popleft()
            self.dropped += 1
        if self._wake is not None:
            self._wake()

    async def flush(self) -> None:
        """Write what was noted. Raises `StorageError`; the outcomes are kept for later then."""
        # At least once: another task may be writing what was noted.
        await self._write_some()
        while self._waiting:
            await self._write_some()

    async def feedback(
        self, id: str, score: float, by: Literal["user", "judge"], comment: str = ""
    ) -> Outcome:
        """Rate an answer from 0 to 1; replaces the guess. Returns its outcome.

        A judge does not overrule a user; otherwise the last rating counts. Raises `InvalidInput`
        for an unknown outcome or a bad score, and `StorageError`.
        """
        if by not in ("user", "judge") or not 0.0 <= score <= 1.0:
            raise InvalidInput(
                f"A score of {score!r} by {by!r} makes no sense.",
                hint="Give 0.0 to 1.0, by 'user' or 'judge'.",
            )
        await self.flush()
        before: Outcome | None = None

        async def judge(transaction: Transaction) -> Outcome:
            nonlocal before
            outcomes = transaction.collection(Outcome)
            before = found = await outcomes.get(id)
            if found is None:
                raise NotFound(f"There is no outcome {id!r}.", hint="Use the `outcome` of a reply.")
            if is_overruled(found.quality_by, by):
                return found
            judged = msgspec.structs.replace(
                found, quality=float(score), quality_by=by, comment=comment or found.comment
            )
            await outcomes.put(judged)
            for hook in self.rated:
                await hook(transaction, found, judged)
            return judged

        rated = await self._store.transact(judge)
        if before is not None and rated is not before:
            for listener in self._listeners:
                listener.rated(rated, before)
        return rated

    async def settle(self) -> None:
        """Write what was noted, and what listeners made of it. Raises `StorageError`."""
        await self.flush()
        for listener in self._listeners:
            await listener.flush()

    async def close(self) -> None:
        """Write what is left, once; what cannot be written is lost, and logged."""
        for listener in self._listeners:
            await listener.flush()
        self._closed = True
        try:
            await self.flush()
        except PerdureError as exc:
            self.dropped += len(self._waiting)
            _log.warning("%d outcomes are lost: %s", len(self._waiting), exc)
            self._waiting.clear()

    async def _work(self, go_on: GoOn) -> bool:
        while self._waiting:
            await self._write_some()
            if not go_on():
                break
        return bool(self._waiting)

    async def _write_some(self) -> None:
        async with self._lock:
            portion = [self._waiting.popleft() for _ in range(min(PORTION, len(self._waiting)))]
            if not portion:
                return
            try:
                await self._write(portion)
            except BaseException:
                # In front of those that came meanwhile. `note` sees to it if that is too many.
                self._waiting.extendleft(reversed(portion))
                raise

    async def _write(self, portion: list[Outcome]) -> None:
        try:
            await self._outcomes.put_many(portion)
        except InvalidInput:
            # One of them cannot be stored, and must not keep the others from it.
            for outcome in portion:
                try:
                    await self._outcomes.put(outcome)
                except InvalidInput as exc:
                    self.dropped += 1
                    _log.warning("an outcome cannot be stored: %s", exc)


class CostRow(msgspec.Struct, frozen=True, kw_only=True):
    """Outcomes added up."""

    #: The agent, day, … that they have in common; a model with its provider: ``openai/gpt-5``.
    of: str
    #: These two apart, where it is them that they have in common.
    provider: str | None = None
    model: str | None = None
    #: Attempts, answers from the cache among them.
    calls: int
    #: Those that failed, without those that their callers gave up.
    failures: int
    cancelled: int = 0
    cached: int
    #: Tokens, as far as they are known.
    input: int
    output: int
    cache_read: int
    cache_write: int
    reasoning: int
    #: Known cost in picodollars. None if some costs are unknown and no other call was charged for.
    cost: int | None
    unknown_costs: int
    #: Means, in seconds and from 0 to 1; None where nothing is known.
    latency: float | None
    first_token: float | None
    quality: float | None

    @property
    def is_free(self) -> bool:
        answers = self.calls - self.failures - self.cancelled - self.cached
        return self.cost == 0 and bool(self.unknown_costs or answers)


#: The database also groups by how calls ended: what a cost of zero means depends on it.
_ENDS = ("success", "cached", "error")
_TOKENS = ("input", "output", "cache_read", "cache_write", "reasoning")
_MEANS = ("latency", "first_token", "quality")
_FIGURES = {
    "calls": "count",
    **{f"sum_{name}": f"sum {name}" for name in ("cost", *_TOKENS, *_MEANS)},
    **{f"count_{name}": f"count {name}" for name in ("cost", *_MEANS)},
}


async def summary(
    store: Store,
    by: By,
    since: datetime | None = None,
    until: datetime | None = None,
    *,
    agent: str | None = None,
) -> list[CostRow]:
    """Outcomes that began in [since, until), of one agent or of all, added up by one field and
    ordered by it.

    Models of one name at different providers are kept apart. Flush the `OutcomeRecorder` first:
    what it has not written is not included.
    """
    if by not in GROUPS:
        raise InvalidInput(
            f"Outcomes are not added up by {by!r}.", hint=f"Use one of {', '.join(GROUPS)}."
        )
    finder = store.collection(Outcome).query()
    if since is not None:
        finder = finder.where("started", ">=", clock.from_datetime(since))
    if until is not None:
        finder = finder.where("started", "<", clock.from_datetime(until))
    if agent is not None:
        finder = finder.where("agent", "=", indexable(agent))
    fields = ("provider", "model") if by == "model" else (by,)
    sums = dict[tuple[str, ...], list[dict[str, Any]]]()
    for found in await finder.group_by(*fields, *_ENDS).aggregate(DEFAULT, **_FIGURES):
        sums.setdefault(tuple(found[field] for field in fields), []).append(found)
    return [_row(dict(zip(fields, group, strict=True)), sums[group]) for group in sorted(sums)]


def cost_of(rows: Iterable[CostRow]) -> int | None:
    rows = list(rows)
    known = sum(row.cost or 0 for row in rows)
    is_known = known or all(row.cost is not None for row in rows) or any(r.is_free for r in rows)
    return known if is_known else None


async def forget(store: Store, sessions: tuple[str, ...], agent: str | None = None) -> None:
    """Remove the names of sessions, and of an agent, from outcomes; the amounts stay."""
    outcomes = store.collection(Outcome)
    names = [("session", indexable(session)) for session in sessions if session]
    names += [("agent", indexable(agent))] if agent else []
    for field, name in names:
        finder = outcomes.query().where(field, "=", name).limit(_PAGE)
        while found := await finder.values():
            gone = {"session": ""} if field == "session" else {"session": "", "agent": ""}
            await outcomes.put_many(msgspec.structs.replace(each, **gone) for each in found)


def _row(group: dict[str, str], sums: list[dict[str, Any]]) -> CostRow:
    def count(name: str, among: list[dict[str, Any]] = sums) -> int:
        return sum(int(each[name] or 0) for each in among)

    def mean(name: str) -> float | None:
        known = count(f"count_{name}")
        return sum(float(each[f"sum_{name}"] or 0) for each in sums) / known if known else None

    calls, cost = count("calls"), count("sum_cost")
    failed = [each for each in sums if not each["success"]]
    cancelled = [each for each in failed if each["error"] == CANCELLED]
    answers = [each for each in sums if each["success"] and not each["cached"]]
    unknown = calls - count("count_cost")
    is_known = cost or not unknown or count("count_cost", answers)
    return CostRow(
        of=_name(group),
        provider=group.get("provider"),
        model=group.get("model"),
        calls=calls,
        failures=count("calls", failed) - count("calls", cancelled),
        cancelled=count("calls", cancelled),
        cached=count("calls", [each for each in sums if each["cached"]]),
        input=count("sum_input"),
        output=count("sum_output"),
        cache_read=count("sum_cache_read"),
        cache_write=count("sum_cache_write"),
        reasoning=count("sum_reasoning"),
        cost=cost if is_known else None,
        unknown_costs=unknown,
        latency=mean("latency"),
        first_token=mean("first_token"),
        quality=mean("quality"),
    )


def _name(group: dict[str, str]) -> str:
    if "model" not in group:
        return next(iter(group.values()))
    return ("#" if "://" in group["provider"] else "/").join((group["provider"], group["model"]))

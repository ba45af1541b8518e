"""The status of a session's renditions: what waits, what failed, who made them, what they take."""

from __future__ import annotations

from typing import TypeVar

import msgspec

from perdure.gateway.outcomes import Outcome
from perdure.history.log_records import Head, SessionRecord, TurnCount
from perdure.history.renditions import algorithm
from perdure.history.renditions.rendition_records import (
    BY_MODEL,
    TASK,
    Rendition,
    Status,
    Tiny,
    TinyVariant,
    Variant,
    lacks_model,
    status_of,
)
from perdure.jobs import Job
from perdure.storage.collection import Collection
from perdure.storage.finder import QueryBuilder
from perdure.storage.store import Store

T = TypeVar("T", bound=msgspec.Struct)


class LevelSize(msgspec.Struct, frozen=True):
    """The tokens of rounds, or turns, at a level, and those of the same ones raw."""

    tokens: int = 0
    raw: int = 0

    @property
    def ratio(self) -> float | None:
        return self.tokens / self.raw if self.raw else None


class RenditionStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The renditions of one session's own turns. Rounds and turns count alike."""

    session: str
    rounds: int
    turns: int
    #: Rounds that have no S and C yet, and closed turns that have no T. They get them when they
    #: are first needed, at the latest.
    missing: int
    #: These wait for a model; those that failed do so again.
    pending: int = 0
    failed: int = 0
    #: What the algorithm made stays.
    given_up: int = 0
    stale: int = 0
    #: Who made what is used now.
    by_algorithm: int = 0
    by_model: int = 0
    levels: dict[str, LevelSize] = {}  # By S, C and T.
    problems: dict[str, int] = {}  # What failed with, the most frequent first.
    #: Model calls, and what they cost in picodollars: None if that is not known of all.
    calls: int = 0
    cost: int | None = 0


async def rendition_status(
    store: Store, session: str | None, prompt: str | None
) -> list[RenditionStatus]:
    """Of one session, or of all that have turns. `prompt`: see `status_of`."""
    records = store.collection(SessionRecord)
    if session is not None:
        found = await records.get(session)
        wanted = [] if found is None else [found]
    else:
        wanted = await records.query().order_by("-active").values()
    return [await _standing(store, record, prompt) for record in wanted]


async def _standing(store: Store, record: SessionRecord, prompt: str | None) -> RenditionStatus:
    head = await store.collection(Head).get(record.id) or Head(record.id)
    counts = await _all(store.collection(TurnCount), record.id)
    raw = {count.turn: count for count in counts if not head.is_undone(count.turn)}
    ended = head.closed or head.mark.closed or head.mark.fresh
    closed = [turn for turn in raw if turn < head.turn or ended]
    jobs = await _all(store.collection(Job), f"{TASK}/{record.id}")
    tally = _Tally(prompt, {int(job.id[-8:]): job for job in jobs})
    rows = [row for row in await _all(store.collection(Rendition), record.id) if row.turn in raw]
    for row in rows:
        if (used := row.newest) is not None:
            tokens = raw[row.turn].of(row.round).tokens
            tally.add(row, used, {"S": (used.smooth, tokens), "C": (used.compact, tokens)})
    tinies = [row for row in await _all(store.collection(Tiny), record.id) if row.turn in raw]
    for tiny in tinies:
        if (short := tiny.newest) is not None:
            tally.add(tiny, short, {"T": (short.tokens, raw[tiny.turn].tokens)})
    rounds = sum(count.rounds for count in raw.values())
    calls, cost = await _spent(store, record.id)
    # A round in which more is expected, at the end of an open turn, has none rightly.
    expected = 0 if ended or not raw else 1
    without = max(0, rounds - len(rows) - expected)
    without += len(set(closed) - {tiny.turn for tiny in tinies})
    count = tally.counts.get
    return RenditionStatus(
        session=record.id,
        rounds=rounds,
        turns=len(raw),
        missing=without,
        pending=count("pending", 0),
        failed=count("failed", 0),
        given_up=count("given up", 0),
        stale=count("stale", 0),
        by_algorithm=tally.made - tally.by_model,
        by_model=tally.by_model,
        levels={name: LevelSize(*figures) for name, figures in tally.levels.items()},
        problems=dict(sorted(tally.problems.items(), key=lambda item: (-item[1], item[0]))),
        calls=calls,
        cost=cost,
    )


class _Tally:
    def __init__(self, prompt: str | None, jobs: dict[int, Job]) -> None:
        self._prompt = prompt
        self._jobs = jobs
        self.counts: dict[Status, int] = {}
        self.levels: dict[str, tuple[int, int]] = {}
        self.problems: dict[str, int] = {}
        self.made = self.by_model = 0

    def add(
        self,
        row: Rendition | Tiny,
        used: Variant | TinyVariant,
        levels: dict[str, tuple[int, int]],
    ) -> None:
        job = self._jobs.get(row.turn)
        status = status_of(row, job, recipe=algorithm.RECIPE, prompt=self._prompt)
        self.counts[status] = self.counts.get(status, 0) + 1
        self.made += 1
        self.by_model += used.recipe.startswith(BY_MODEL)
        if job is not None and job.error and lacks_model(row):
            problem = job.error.removeprefix("BadAnswer: ")
            self.problems[problem] = self.problems.get(problem, 0) + 1
        for name, (tokens, raw) in levels.items():
            before = self.levels.get(name, (0, 0))
            self.levels[name] = before[0] + tokens, before[1] + raw


async def _all(collection: Collection[T], session: str) -> list[T]:
    return [row async for row in collection.walk(f"{session}/")]


async def _spent(store: Store, session: str) -> tuple[int, int | None]:
    finder: QueryBuilder[Outcome] = store.collection(Outcome).query().where("session", "=", session)
    outcomes = [each for each in await finder.values() if each.task == TASK]
    costs = [each.cost for each in outcomes]
    known = [cost for cost in costs if cost is not None]
    return len(outcomes), sum(known) if len(known) == len(costs) else None

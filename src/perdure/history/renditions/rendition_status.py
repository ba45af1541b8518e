"""The status of a session's renditions: what waits, what failed, who made them, what they take."""

from __future__ import annotations

from collections import Counter
from typing import TypeVar

import msgspec

from perdure.core.levels import Level
from perdure.gateway.outcomes import Outcome
from perdure.history.log_records import Head, SessionRecord, TurnCount
from perdure.history.manifest import RoundId
from perdure.history.renditions import algorithm
from perdure.history.renditions.rendition_records import (
    BY_MODEL,
    TASK,
    TASK_OF,
    Rendition,
    Tiny,
    lacking,
    refusals,
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
    #: What calls failed with, and why texts were refused; by how many turns, the most first.
    problems: dict[str, int] = {}
    #: Model calls, and what they cost in picodollars: None if that is not known of all.
    calls: int = 0
    cost: int | None = 0


async def rendition_status(
    store: Store, session: str | None, prompt: str | None, levels: frozenset[Level]
) -> list[RenditionStatus]:
    """Of one session, or of all that have turns. `prompt` and `levels`: see `status_of`."""
    records = store.collection(SessionRecord)
    if session is not None:
        found = await records.get(session)
        wanted = [] if found is None else [found]
    else:
        wanted = await records.query().order_by("-last_active").values()
    return [await _session_status(store, record, prompt, levels) for record in wanted]


async def _session_status(
    store: Store, record: SessionRecord, prompt: str | None, levels: frozenset[Level]
) -> RenditionStatus:
    head = await store.collection(Head).get(record.id) or Head(record.id)
    counts = await _all(store.collection(TurnCount), record.id)
    raw = {count.turn: count for count in counts if not head.is_undone(count.turn)}
    ended = head.closed or head.mark.closed or head.mark.fresh
    closed = [turn for turn in raw if turn < head.turn or ended]
    name = record.id
    jobs = {int(job.id[-8:]): job for job in await _all(store.collection(Job), f"{TASK}/{name}")}
    rows = [row for row in await _all(store.collection(Rendition), record.id) if row.turn in raw]
    tinies = [row for row in await _all(store.collection(Tiny), record.id) if row.turn in raw]
    every: list[Rendition | Tiny] = [*rows, *tinies]
    used = [(row, row.newest, jobs.get(row.turn)) for row in every]
    made = [(row, newest, job) for row, newest, job in used if newest is not None]
    statuses = Counter(
        status_of(row, job, recipe=algorithm.RECIPE, prompt=prompt, levels=levels)
        for row, _, job in made
    )
    waiting = {row.turn for row, _, job in made if job is not None and lacking(row, levels)}
    problems = Counter(
        line
        for turn in sorted(waiting)
        for line in jobs[turn].error.removeprefix("BadAnswer: ").splitlines()
    )
    for row in every:
        place = RoundId(row.turn, row.round) if isinstance(row, Rendition) else f"T-{row.turn}"
        problems.update(f"{place} at {each.level}: {each.why}" for each in refusals(row))
    by_model = sum(newest.recipe.startswith(BY_MODEL) for _, newest, _ in made)
    rounds = sum(count.rounds for count in raw.values())
    calls, cost = await _spent(store, record.id)
    # A round in which more is expected, at the end of an open turn, has none rightly.
    expected = 0 if ended or not raw else 1
    without = max(0, rounds - len(rows) - expected)
    without += len(set(closed) - {tiny.turn for tiny in tinies})
    return RenditionStatus(
        session=record.id,
        rounds=rounds,
        turns=len(raw),
        missing=without,
        pending=statuses["pending"],
        failed=statuses["failed"],
        given_up=statuses["given up"],
        stale=statuses["stale"],
        by_algorithm=len(made) - by_model,
        by_model=by_model,
        levels=_levels(rows, tinies, raw),
        problems=dict(sorted(problems.items(), key=lambda item: (-item[1], item[0]))),
        calls=calls,
        cost=cost,
    )


def _levels(
    rows: list[Rendition], tinies: list[Tiny], raw: dict[int, TurnCount]
) -> dict[str, LevelSize]:
    found = dict[str, LevelSize]()
    rounds = [(row.newest, raw[row.turn].of(row.round).tokens) for row in rows if row.newest]
    if rounds:
        whole = sum(tokens for _, tokens in rounds)
        found["S"] = LevelSize(sum(used.smooth for used, _ in rounds), whole)
        found["C"] = LevelSize(sum(used.compact for used, _ in rounds), whole)
    turns = [(tiny.newest, raw[tiny.turn].tokens) for tiny in tinies if tiny.newest]
    if turns:
        whole = sum(tokens for _, tokens in turns)
        found["T"] = LevelSize(sum(used.tokens for used, _ in turns), whole)
    return found


async def _all(collection: Collection[T], session: str) -> list[T]:
    return [row async for row in collection.walk(f"{session}/")]


async def _spent(store: Store, session: str) -> tuple[int, int | None]:
    finder: QueryBuilder[Outcome] = store.collection(Outcome).query().where("session", "=", session)
    tasks = TASK_OF.values()
    outcomes = [each for each in await finder.values() if each.task in tasks]
    costs = [each.cost for each in outcomes]
    known = [cost for cost in costs if cost is not None]
    return len(outcomes), sum(known) if len(known) == len(costs) else None

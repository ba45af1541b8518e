"""Tests of variants, by session: which session is on which side, and what its answers were worth.

A session's side is drawn by a hash when it is first asked for, and stored: it never changes. What
is compared is the mean utility of a session's answers of known worth: those that failed, and those
that a judge or a person rated. All answers of such sessions are judged, as far as the judge's
budget goes.
"""

from __future__ import annotations

import logging

import msgspec

from perdure.core import clock as clocks
from perdure.core.clock import SECOND, Clock
from perdure.core.errors import PerdureError
from perdure.gateway.calls import CallOptions, indexable
from perdure.gateway.outcomes import CANCELLED, Outcome
from perdure.learning.confidence import SessionSample
from perdure.learning.experiment_records import (
    AgentStrategy,
    Arm,
    Experiment,
    ExperimentSession,
    SessionVariant,
    name_key,
)
from perdure.learning.experiment_verdict import ExperimentVerdict, judge_samples
from perdure.learning.learned_selector import SelectionSettings, TestedSession, is_chosen
from perdure.learning.utility import utility
from perdure.storage.store import Store

#: Seconds for which what is known of an agent's test is used before it is read again.
FRESH = 10.0
_MOST_SESSIONS = 10_000
_MOST_SCORES = 5_000
_PICODOLLARS = 1e12

_log = logging.getLogger(__name__)


class _Known(msgspec.Struct, frozen=True):
    running: Experiment | None
    strategy: SessionVariant
    read: int


class _Score(msgspec.Struct, frozen=True):
    agent: str
    session: str
    worth: float
    #: The worth that this one stands for now, if it was known before.
    replaces: float | None = None


class Experiments:
    """The tests of a bank's agents. Nothing here makes a call fail."""

    def __init__(
        self, store: Store, weights: SelectionSettings | None = None, clock: Clock = clocks.now
    ) -> None:
        self._store = store
        self._weights = weights or SelectionSettings()
        self._clock = clock
        self._known: dict[str, _Known] = {}
        self._sides: dict[tuple[str, str], SessionVariant] = {}
        self._scores: list[_Score] = []

    async def variant(self, agent: str, session: str) -> SessionVariant:
        """How the agent is to work in this session. Never raises: without a store that can be read,
        it works as configured.
        """
        try:
            known = await self._know(agent)
            if known.running is None or not session:
                found = known.strategy
            else:
                found = await self._side(known.running, session)
        except PerdureError as exc:
            _log.info("the tests of %r cannot be read: %s", agent, exc)
            found = SessionVariant()
        if session:
            self._sides.pop((agent, session), None)
            self._sides[agent, session] = found
            if len(self._sides) > _MOST_SESSIONS:
                del self._sides[next(iter(self._sides))]
        return found

    async def load(self, agent: str, session: str) -> None:
        """For `LearnedSelector`: so that `session` need not wait."""
        await self.variant(agent, session)

    def session(self, options: CallOptions) -> TestedSession:
        found = self.known_variant(options.agent, options.session)
        model = found.strategy.model_for(options.task or options.purpose)
        return TestedSession(model, bool(found.experiment))

    def known_variant(self, agent: str, session: str) -> SessionVariant:
        """What `variant` last said, without waiting."""
        found = self._sides.get((agent, session))
        if found is None and agent in self._known:
            found = self._known[agent].strategy
        return found or SessionVariant()

    def note(self, outcome: Outcome, before: Outcome | None = None) -> None:
        """Count what an answer was worth; `before` is how it was rated until now."""
        if not outcome.session or outcome.cached or outcome.error == CANCELLED:
            return
        if not self.known_variant(outcome.agent, outcome.session).experiment:
            known = self._known.get(outcome.agent)
            if known is None or known.running is None:
                return
        worth = self._worth(outcome)
        if worth is None:
            return
        replaces = None if before is None else self._worth(before)
        self._scores.append(_Score(outcome.agent, outcome.session, worth, replaces))
        del self._scores[:-_MOST_SCORES]

    async def flush(self) -> list[Experiment]:
        """Write what was counted; returns the tests that it was for. Raises `StorageError`."""
        scores, self._scores = self._scores, []
        touched = dict[str, Experiment]()
        for score in scores:
            running = (await self._know(score.agent)).running
            if running is None:
                continue
            key = _session_key(running, score.session)
            rows = self._store.collection(ExperimentSession)
            if await rows.get(key) is None:
                continue  # it is not a part of the test

            def counted(
                found: ExperimentSession | None, score: _Score = score
            ) -> ExperimentSession:
                assert found is not None  # noqa: S101 (for mypy: it was there)
                more = score.worth - (score.replaces or 0.0)
                return msgspec.structs.replace(
                    found,
                    calls=found.calls + (score.replaces is None),
                    total=found.total + more,
                )

            await rows.change(key, counted)
            touched[running.id] = running
        return list(touched.values())

    async def verdict(self, experiment: Experiment, least: int) -> ExperimentVerdict:
        samples: dict[Arm, SessionSample] = {"control": SessionSample(), "variant": SessionSample()}
        sessions = self._store.collection(ExperimentSession).query()
        for row in await sessions.where("experiment", "=", experiment.id).values():
            if row.calls:
                samples[row.arm] = samples[row.arm].adding(row.total / row.calls)
        return judge_samples(samples["control"], samples["variant"], least=least)

    async def running(self, agent: str) -> Experiment | None:
        return (await self._know(agent, anew=True)).running

    def changed(self, agent: str) -> None:
        """The agent's test or strategy is another now."""
        self._known.pop(agent, None)
        for key in [key for key in self._sides if key[0] == agent]:
            del self._sides[key]

    async def _know(self, agent: str, *, anew: bool = False) -> _Known:
        now = self._clock()
        known = self._known.get(agent)
        if known is not None and not anew and now - known.read < FRESH * SECOND:
            return known
        query = self._store.collection(Experiment).query()
        found = await query.where("agent", "=", indexable(agent)).values()
        running = next((each for each in found if each.state == "running"), None)
        row = await self._store.collection(AgentStrategy).get(name_key(agent))
        strategy = SessionVariant() if row is None else SessionVariant(strategy=row.strategy)
        self._known[agent] = known = _Known(running, strategy, now)
        if len(self._known) > _MOST_SESSIONS:
            del self._known[next(iter(self._known))]
        return known

    async def _side(self, experiment: Experiment, session: str) -> SessionVariant:
        rows = self._store.collection(ExperimentSession)
        key = _session_key(experiment, session)
        found = await rows.get(key)
        if found is None:
            arm: Arm = "variant" if is_chosen(key, 0.5) else "control"

            def assigned(found: ExperimentSession | None) -> ExperimentSession:
                return found or ExperimentSession(
                    id=key,
                    experiment=experiment.id,
                    agent=indexable(experiment.agent),
                    session=indexable(session),
                    arm=arm,
                )

            found = await rows.change(key, assigned)
        strategy = experiment.variant if found.arm == "variant" else experiment.control
        return SessionVariant(experiment=experiment.id, arm=found.arm, strategy=strategy)

    def _worth(self, outcome: Outcome) -> float | None:
        is_label = outcome.quality is not None and outcome.quality_by != "heuristic"
        if outcome.success and not is_label:
            return None
        return utility(
            success=float(outcome.success),
            quality=outcome.quality or 0.0,
            dollars=(outcome.cost or 0) / _PICODOLLARS,
            seconds=outcome.latency,
            cost_weight=self._weights.cost_weight,
            latency_weight=self._weights.latency_weight,
        )


def _session_key(experiment: Experiment, session: str) -> str:
    return f"{experiment.id}/{name_key(session)}"

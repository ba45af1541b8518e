"""Everything that learns from a gateway's calls, put together: see docs/learning.md."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Literal, Protocol

import msgspec

from perdure.config import Config
from perdure.core import clock as clocks
from perdure.core.clock import SECOND, Clock
from perdure.core.errors import NoModel, PerdureError
from perdure.gateway.calls import CallOptions, ModelAnswer, Request, indexable
from perdure.gateway.catalog import ModelCandidate
from perdure.gateway.gateway import Gateway
from perdure.gateway.model_selection import HealthSelector, Selector
from perdure.gateway.outcomes import Outcome
from perdure.gateway.response_cache import Mask
from perdure.jobs import Runner
from perdure.learning.evolution import AgentEvolution, Evolution, StepHook
from perdure.learning.experiment_records import (
    AgentStrategy,
    EvolutionStep,
    Experiment,
    ExperimentSession,
)
from perdure.learning.experiments import Experiments
from perdure.learning.judging import Judging, forget_answers
from perdure.learning.learned_memory import LearnedAgent, LearnedMemory, forget_learned
from perdure.learning.learned_selector import (
    VETO,
    LearnedSelector,
    SelectionSettings,
    TaskChoice,
)
from perdure.learning.model_profiles import CatalogProfiles, ModelProfiles
from perdure.learning.seed_selector import SeedSelector
from perdure.learning.table_selector import TableSelector
from perdure.storage.store import Store

_log = logging.getLogger(__name__)
#: Outcomes from which stretches are taken up after a restart.
_RECENT = 500


class Learning:
    """Chooses models by `gateway.selector`, and listens to what becomes of calls."""

    def __init__(
        self,
        store: Store,
        jobs: Runner,
        config: Config,
        gateway: Callable[[], Gateway],
        *,
        mask: Mask | None = None,
        on_step: StepHook | None = None,
        prompt_version: Callable[[str], Awaitable[int]] | None = None,
        clock: Clock = clocks.now,
    ) -> None:
        self._store = store
        self._config = config
        self._gateway = gateway
        self._clock = clock
        self._profiles: ModelProfiles | None = None
        self.judging = Judging(store, jobs, gateway, mask)
        settings = config.learning
        weights = SelectionSettings(
            cost_weight=settings.cost_weight,
            latency_weight=settings.latency_weight,
            judge_share=settings.judge_share,
            sticky=settings.sticky,
            shared=settings.shared,
        )
        self.experiments = Experiments(store, weights, clock)
        #: Learns also while another selector chooses.
        self.learned = LearnedSelector(
            self.profiles,
            LearnedMemory(store, jobs),
            weights,
            may_judge=self._may_judge,
            recent=self._recent,
            tests=self.experiments,
            clock=clock,
        )
        self.evolution = Evolution(
            store,
            self.experiments,
            self.learned,
            self._candidates,
            config=settings,
            may_judge=self._may_judge,
            on_step=on_step,
            budgets=(config.history.budget // 2,),
            prompt_version=prompt_version,
            clock=clock,
        )
        #: Agents whose calls came since they were last looked at.
        self._touched = set[str]()
        self._seed = SeedSelector(store)
        selectors: dict[str, Selector] = {
            "learned": self.learned,
            "seed": self._seed,
            "table": TableSelector(self.profiles),
            "health": HealthSelector(),
        }
        self.selector = selectors[config.gateway.selector]

    def _candidates(self, options: CallOptions) -> list[ModelCandidate]:
        return self._gateway().catalog.candidates(options)

    def _may_judge(self) -> bool:
        return self._config.learning.judge_share > 0 and self.judging.may_judge()

    async def show(self, agent: str) -> AgentEvolution:
        """How an agent works, the test that runs, and which model each of its tasks asks, and why.
        Nothing is learnt by looking.
        """
        found = await self.evolution.show(agent)
        await self.learned.load(agent)
        tasks = reversed(self.learned.memory.book(agent).tasks)
        choices = [self._choice(agent, task, found.strategy.model_for(task)) for task in tasks]
        return msgspec.structs.replace(found, choices=choices)

    async def agents(self, limit: int) -> list[str]:
        """Agents of whose calls something was learnt, by name."""
        found = self._store.collection(LearnedAgent).query().where("agent", ">", "")
        return [each.agent for each in await found.order_by("agent").limit(limit).values()]

    def _choice(self, agent: str, task: str, promoted: str) -> TaskChoice:
        options = CallOptions(agent=agent)
        if task != options.purpose:  # which is what a call without a task is learnt as
            options = msgspec.structs.replace(options, task=task)
        try:
            candidates = self._candidates(options)
        except NoModel:
            return TaskChoice(task=task, by="configured", models=[])
        models = self.learned.expected(options, candidates)
        selector = self._config.gateway.selector
        if selector == "learned" and self.learned.decides(agent):
            is_promoted = any(each.model == promoted for each in models)
            models.sort(key=lambda each: each.model != promoted)
            return TaskChoice(task=task, by="promoted" if is_promoted else "learned", models=models)
        others: dict[str, Literal["table", "seed"]] = {"table": "table", "seed": "seed"}
        order = self.selector if selector in others else HealthSelector()
        names = [each.name for each in order.order(options, candidates, {})]
        models.sort(key=lambda each: names.index(each.model))
        return TaskChoice(task=task, by=others.get(selector, "configured"), models=models)

    def profiles(self) -> ModelProfiles:
        if self._profiles is None:
            gateway = self._gateway()
            tiers = self._config.learning.tiers
            self._profiles = CatalogProfiles(gateway.catalog, gateway.prices, tiers)
        return self._profiles

    def noted(self, outcome: Outcome, request: Request | None, answer: ModelAnswer | None) -> None:
        self.learned.note(outcome)
        self.experiments.note(outcome)
        if outcome.agent and outcome.purpose == "chat":
            self._touched.add(outcome.agent)
        if self.selector is self._seed:
            self._seed.note(outcome)
        sound = outcome.quality is None or outcome.quality > VETO
        if request is None or answer is None or not outcome.success or not sound:
            return
        tested = self.experiments.known_variant(outcome.agent, outcome.session).experiment
        if self.learned.is_judged(outcome) or (tested and self._may_judge()):
            self.judging.note(outcome, request, answer)

    def rated(self, outcome: Outcome, before: Outcome) -> None:
        replaces = None if before.quality_by == "heuristic" else before.quality
        self.learned.rate(outcome, replaces)
        self.experiments.note(outcome, None if replaces is None else before)
        if outcome.agent and outcome.purpose == "chat":
            self._touched.add(outcome.agent)

    async def evolve(self) -> None:
        """Look at the agents that were called: end their tests, start others. Raises
        `StorageError`.
        """
        await self.flush()
        touched, self._touched = self._touched, set()
        for agent in sorted(touched):
            await self.evolution.consider(agent)

    def forget(self, agent: str) -> None:
        """Drop what is in memory of an agent whose rows are gone."""
        self.learned.memory.forget(agent)
        self.experiments.changed(agent)

    async def flush(self) -> None:
        await self.learned.memory.flush()
        try:
            await self.judging.flush()
            await self.experiments.flush()
        except PerdureError as exc:
            _log.info("answers that are to be judged, or tests, cannot be written: %s", exc)

    async def _recent(self) -> list[Outcome]:
        since = self._clock() - int(self._config.learning.sticky * SECOND)
        outcomes = self._store.collection(Outcome).query().where("started", ">=", since)
        try:
            found = await outcomes.order_by("started", "desc").limit(_RECENT).values()
        except PerdureError as exc:
            _log.info("the last outcomes cannot be read: %s", exc)
            return []
        return found[::-1]


class _Scope(Protocol):
    @property
    def sessions(self) -> tuple[str, ...]: ...
    @property
    def agent(self) -> str | None: ...


class LearningRecords:
    """Forgets what was learnt of an agent, and answers that wait for their judge."""

    collections = frozenset(
        {
            *("perdure_learned_agents", "perdure_judgements", "perdure_experiments"),
            *("perdure_experiment_sessions", "perdure_agent_strategies", "perdure_evolution_steps"),
        }
    )

    def __init__(self, store: Store, forgotten: Callable[[str], None] = lambda _: None) -> None:
        """`forgotten` is told of an agent whose rows are gone."""
        self._store = store
        self._forgotten = forgotten

    async def forget(self, scope: _Scope) -> None:
        await forget_answers(self._store, scope.sessions, scope.agent)
        sessions = self._store.collection(ExperimentSession)
        for session in filter(None, scope.sessions):
            await sessions.query().where("session", "=", indexable(session)).delete()
        if scope.agent:
            await forget_learned(self._store, scope.agent)
            for kind in (ExperimentSession, Experiment, AgentStrategy, EvolutionStep):
                rows = self._store.collection(kind)
                await rows.query().where("agent", "=", indexable(scope.agent)).delete()
            self._forgotten(scope.agent)

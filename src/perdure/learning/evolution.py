"""How agents come to work in another way: trends start tests, tests end with evidence, and a
variant that won is promoted, by a person or by itself (`learning.promote`). Every step is
recorded, and the last promotion can be taken back. Nothing is ever changed without a test.

A test starts when labels of a model fall (a stronger model), when costs rise while labels do not
fall (a cheaper one), or after `learning.experiment_after` calls without one (another model,
recall, budget). An agent has one test at a time. Without a judge or labels no test could end, so
none starts.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Literal, TypeAlias

import msgspec

from perdure.config import LearningConfig
from perdure.core import clock as clocks
from perdure.core.clock import Clock, new_id
from perdure.core.errors import InvalidInput, NotFound
from perdure.gateway.calls import CallOptions, indexable
from perdure.gateway.catalog import ModelCandidate
from perdure.learning.experiment_records import (
    AgentStrategy,
    EvolutionStep,
    Experiment,
    StepKind,
    StrategyChanges,
    name_key,
)
from perdure.learning.experiments import Experiments
from perdure.learning.learned_book import ResetEvent
from perdure.learning.learned_selector import ExpectedUtility, LearnedSelector, TaskChoice
from perdure.storage.store import Store
from perdure.storage.transaction import Transaction

#: Calls after which an agent that may try others has tried some.
_MANY_CALLS = 200

StepHook: TypeAlias = Callable[[Transaction, EvolutionStep], Awaitable[None]]


class AgentEvolution(msgspec.Struct, frozen=True, kw_only=True):
    """Where an agent stands."""

    agent: str
    strategy: StrategyChanges
    #: The test that runs, or that waits to be accepted.
    experiment: Experiment | None
    #: The newest first.
    steps: list[EvolutionStep]
    #: Which model each task asks, the task that was used last first.
    choices: list[TaskChoice] = []

    @property
    def is_empty(self) -> bool:
        """Whether nothing was ever tested or promoted."""
        return not self.steps and self.experiment is None and self.strategy == StrategyChanges()


class Evolution:
    """Starts, ends and promotes. `candidates` are the models that may answer a call."""

    def __init__(
        self,
        store: Store,
        experiments: Experiments,
        learned: LearnedSelector,
        candidates: Callable[[CallOptions], list[ModelCandidate]],
        *,
        config: LearningConfig | None = None,
        may_judge: Callable[[], bool] = lambda: False,
        on_step: StepHook | None = None,
        budgets: tuple[int, ...] = (),
        prompt_version: Callable[[str], Awaitable[int]] | None = None,
        clock: Clock = clocks.now,
    ) -> None:
        """`on_step` is called in the transaction of each step; `budgets` of contexts, in tokens,
        are tried; `prompt_version` is the number of an agent's current one.
        """
        self._prompt_version = prompt_version
        self._budgets = budgets
        self._store = store
        self._on_step = on_step
        self._experiments = experiments
        self._learned = learned
        self._candidates = candidates
        self._config = config or LearningConfig()
        self._may_judge = may_judge
        self._clock = clock

    async def show(self, agent: str) -> AgentEvolution:
        steps = await self._steps(agent)
        found = await self._last(agent)
        is_open = found is not None and found.state in ("running", "better")
        if is_open and found is not None and found.state == "running":
            verdict = await self._experiments.verdict(found, self._config.experiment_sessions)
            found = msgspec.structs.replace(found, verdict=verdict)
        return AgentEvolution(
            agent=agent,
            strategy=await self._strategy(agent),
            experiment=found if is_open else None,
            steps=steps,
        )

    async def start(
        self, agent: str, variant: StrategyChanges, *, task: str = "", reason: str = "by hand"
    ) -> Experiment:
        """Test a variant. Raises `InvalidInput` if a test runs, or one waits to be accepted."""

        async def begin(transaction: Transaction) -> Experiment:
            control = await self._strategy(agent, transaction)
            last = await self._last(agent, transaction)
            if last is not None and last.state in ("running", "better"):
                raise InvalidInput(
                    f"The agent {agent!r} has a test already: {last.id}.",
                    hint=f"See it: perdure agent evolve show {agent}.",
                )
            if variant == control:
                raise InvalidInput(
                    "The variant is how the agent works now.", hint="Change something."
                )
            made = Experiment(
                id=f"ex_{new_id()}",
                agent=indexable(agent),
                state="running",
                task=task,
                reason=reason,
                control=control,
                variant=variant,
                started=self._clock(),
                calls=self._learned.memory.book(agent).calls,
            )
            await self._write(transaction, made, "started", before=control, after=control)
            return made

        made = await self._store.transact(begin)
        self._experiments.changed(agent)
        return made

    async def consider(self, agent: str) -> Experiment | None:
        """End the agent's test if it is decided; else start one if there is a reason for it."""
        await self._learned.memory.load(agent)
        running = await self._experiments.running(agent)
        if running is not None:
            await self.evaluate(running)
            return None
        last = await self._last(agent)
        if last is not None and last.state == "better":
            return None
        book = self._learned.memory.book(agent)
        if not self._config.experiments or not (book.labels or self._may_judge()):
            return None
        proposed = self._from_trends(agent) or await self._routine(agent, last)
        if proposed is None:
            return None
        task, variant, reason = proposed
        control = await self._strategy(agent)
        if variant == control:
            return None
        try:
            return await self.start(agent, variant, task=task, reason=reason)
        except InvalidInput:
            return None  # another process was first

    async def evaluate(self, experiment: Experiment) -> Experiment:
        """Look at a running test, and end it if the evidence allows. One that was ended meanwhile
        stays as it is.
        """
        verdict = await self._experiments.verdict(experiment, self._config.experiment_sessions)
        state = verdict.state
        if state == "open":
            return experiment

        async def end(transaction: Transaction) -> Experiment | None:
            found = await transaction.collection(Experiment).get(experiment.id)
            if found is None or found.state != "running":
                return None
            ended = msgspec.structs.replace(
                found, state=state, ended=self._clock(), verdict=verdict
            )
            control = found.control
            await self._write(transaction, ended, state, before=control, after=control)
            return ended

        ended = await self._store.transact(end)
        self._experiments.changed(experiment.agent)
        if ended is None:
            return await self._store.collection(Experiment).get(experiment.id) or experiment
        if state == "better" and self._config.promote == "automatic":
            with suppress(NotFound):  # a person was quicker, and turned it down
                await self.accept(experiment.agent, by="automatic")
        return ended

    async def accept(self, agent: str, *, by: str = "user") -> EvolutionStep:
        """Promote the variant that won. Raises `NotFound` if none waits."""

        async def promote(transaction: Transaction) -> EvolutionStep:
            last = await self._last(agent, transaction)
            if last is None or last.state != "better":
                raise NotFound(
                    f"No variant of {agent!r} waits to be accepted.",
                    hint=f"See its tests: perdure agent evolve show {agent}.",
                )
            return await self._settle(transaction, last, "promoted", last.variant, by)

        return await self._settled(agent, promote)

    async def dismiss(self, agent: str, *, by: str = "user") -> EvolutionStep:
        """Stop the running test, or turn down the variant that waits. Raises `NotFound`."""

        async def stop(transaction: Transaction) -> EvolutionStep:
            last = await self._last(agent, transaction)
            if last is None or last.state not in ("running", "better"):
                raise NotFound(
                    f"No test of {agent!r} runs or waits.", hint="There is nothing to stop."
                )
            return await self._settle(transaction, last, "dismissed", last.control, by)

        return await self._settled(agent, stop)

    async def revert(self, agent: str, *, by: str = "user") -> EvolutionStep:
        """Take back the last promotion that stands. Raises `NotFound` if there is none."""

        async def take_back(transaction: Transaction) -> EvolutionStep:
            reverted = set[str]()
            for step in await self._steps(agent, transaction):
                if step.kind == "reverted":
                    reverted.add(step.experiment)
                elif step.kind == "promoted" and step.experiment not in reverted:
                    found = await transaction.collection(Experiment).get(step.experiment)
                    if found is not None:
                        return await self._settle(transaction, found, "reverted", step.before, by)
            raise NotFound(
                f"Nothing of {agent!r} was promoted that could be taken back.",
                hint=f"See its history: perdure agent evolve show {agent}.",
            )

        return await self._settled(agent, take_back)

    async def _settled(
        self, agent: str, decide: Callable[[Transaction], Awaitable[EvolutionStep]]
    ) -> EvolutionStep:
        step = await self._store.transact(decide)
        self._experiments.changed(agent)
        return step

    async def _settle(
        self,
        transaction: Transaction,
        experiment: Experiment,
        kind: Literal["promoted", "reverted", "dismissed"],
        after: StrategyChanges,
        by: str,
    ) -> EvolutionStep:
        ended = experiment.ended or self._clock()
        changed = msgspec.structs.replace(experiment, state=kind, ended=ended)
        before = experiment.variant if kind == "reverted" else experiment.control
        return await self._write(transaction, changed, kind, before=before, after=after, by=by)

    async def _write(
        self,
        transaction: Transaction,
        experiment: Experiment,
        kind: StepKind,
        *,
        before: StrategyChanges,
        after: StrategyChanges,
        by: str = "automatic",
    ) -> EvolutionStep:
        step = EvolutionStep(
            id=new_id(),
            agent=experiment.agent,
            kind=kind,
            at=self._clock(),
            experiment=experiment.id,
            reason=experiment.reason,
            before=before,
            after=after,
            evidence=experiment.verdict,
            by=by,
        )
        await transaction.collection(Experiment).put(experiment)
        await transaction.collection(EvolutionStep).put(step)
        strategies = transaction.collection(AgentStrategy)
        key = name_key(experiment.agent)
        found = await strategies.get(key)
        if before != after or found is None:
            found = AgentStrategy(id=key, agent=experiment.agent, strategy=after)
        # Written at each step, changed or not: of two processes that decide at the same time,
        # the later one begins anew, and sees what the first did.
        await strategies.put(found)
        if self._on_step is not None:
            await self._on_step(transaction, step)
        return step

    async def _strategy(
        self, agent: str, transaction: Transaction | None = None
    ) -> StrategyChanges:
        rows = (transaction or self._store).collection(AgentStrategy)
        found = await rows.get(name_key(agent))
        return StrategyChanges() if found is None else found.strategy

    async def _steps(
        self, agent: str, transaction: Transaction | None = None
    ) -> list[EvolutionStep]:
        query = (transaction or self._store).collection(EvolutionStep).query()
        found = await query.where("agent", "=", indexable(agent)).values()
        return sorted(found, key=lambda step: (step.at, step.id), reverse=True)

    async def _last(self, agent: str, transaction: Transaction | None = None) -> Experiment | None:
        query = (transaction or self._store).collection(Experiment).query()
        found = await query.where("agent", "=", indexable(agent)).values()
        return max(found, key=lambda each: each.started, default=None)

    def _from_trends(self, agent: str) -> tuple[str, StrategyChanges, str] | None:
        """A test for the first alarm that has a remedy; the alarm is taken back."""
        if self._is_pinned(agent):
            return None
        control = self._experiments.known_variant(agent, "").strategy
        for name, task in [*self._learned.memory.book(agent).tasks.items()]:  # `note` reorders
            for model, marks in task.models.items():
                falls, dearer = marks.quality_trend.alarm, marks.cost_trend.alarm
                if not falls and not dearer:
                    continue
                self._learned.memory.note(agent, ResetEvent(name, task.complexity, model))
                ranking = self._ranking(agent, name)
                found = _stronger(ranking, model) if falls else _cheaper(ranking, model)
                if found is None:
                    continue
                why = f"the labels of {model} fall"
                if not falls:
                    why = f"{model} costs more, and is as good as it was"
                models = {**control.models, name: found}
                return name, msgspec.structs.replace(control, models=models), why
        return None

    async def _routine(
        self, agent: str, last: Experiment | None
    ) -> tuple[str, StrategyChanges, str] | None:
        """The next variant of how the agent works, so many calls after the last test."""
        book = self._learned.memory.book(agent)
        since = book.calls - (0 if last is None else last.calls)
        if since < self._config.experiment_after or not book.tasks:
            return None
        query = self._store.collection(Experiment).query()
        tried = [e.variant for e in await query.where("agent", "=", indexable(agent)).values()]
        control = await self._strategy(agent)
        variants = list[tuple[str, StrategyChanges]]()
        busy = {n: sum(m.timed for m in t.models.values()) for n, t in book.tasks.items()}
        task = max(busy, key=lambda name: busy[name])
        ranking = self._ranking(agent, task)
        if len(ranking) > 1 and not self._is_pinned(agent):
            models = {**control.models, task: ranking[1].model}
            variants.append((task, msgspec.structs.replace(control, models=models)))
        current = 0 if self._prompt_version is None else await self._prompt_version(agent)
        if current > 1:  # was the one before better?
            variants.append(("", msgspec.structs.replace(control, prompt_version=current - 1)))
        variants += [("", msgspec.structs.replace(control, recall=on)) for on in (False, True)]
        variants += [("", msgspec.structs.replace(control, budget=n)) for n in self._budgets]
        # One that was never tried; once all were, from the first on: times change.
        fresh = [each for each in variants if each[1] not in (*tried, control)]
        task, variant = fresh[0] if fresh else variants[len(tried) % len(variants)]
        return task, variant, f"{since:,} calls without a test"

    def _is_pinned(self, agent: str) -> bool:
        """Whether the agent names its model itself: else judged calls would have tried others."""
        book = self._learned.memory.book(agent)
        return self._may_judge() and book.calls >= _MANY_CALLS and len(book.successes) == 1

    def _ranking(self, agent: str, task: str) -> list[ExpectedUtility]:
        options = CallOptions(agent=agent, task=task)
        return self._learned.expected(options, self._candidates(options))


def _stronger(ranking: list[ExpectedUtility], model: str) -> str | None:
    """The most useful of those that are expected to be better than this one was."""
    mine = next((each for each in ranking if each.model == model), None)
    if mine is None:
        return None
    better = (each for each in ranking if each.model != model and each.quality > mine.quality)
    return next((each.model for each in better), None)


def _cheaper(ranking: list[ExpectedUtility], model: str) -> str | None:
    mine = next((each for each in ranking if each.model == model), None)
    if mine is None:
        return None
    cheaper = (each for each in ranking if each.model != model and each.dollars < mine.dollars)
    return next((each.model for each in cheaper), None)

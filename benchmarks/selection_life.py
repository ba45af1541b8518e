"""Runs a policy through a simulated world: real selectors, breakers and health, no model.

A policy orders candidates as a `Selector` does; the first that answers counts, as in the gateway.
What a call is worth is its expected utility, without the luck of the draw; what is told to the
policy is drawn. All policies meet the same agents, sessions, drift, shifts and outages.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping
from typing import Protocol

import msgspec

from benchmarks.selection_world import World, WorldModel, WorldTask
from perdure.core.clock import SECOND
from perdure.core.errors import GatewayError, ProviderDown
from perdure.gateway.breaker import Breaker
from perdure.gateway.calls import CallOptions, Complexity
from perdure.gateway.catalog import ModelCandidate
from perdure.gateway.model_selection import CandidateStatus, ModelHealth
from perdure.gateway.outcomes import Outcome
from perdure.gateway.providers import Provider
from perdure.learning.quality_estimates import Tier

#: Attempts of one call, and success while a model is down.
_ATTEMPTS, _DOWN = 3, 0.02
#: Microseconds, and the first day of every world.
_BEGIN, _DAY = 1_700_000_000 * SECOND, "2023-11-14"
_EVERY = 50
_EARLY = 200


class Policy(Protocol):
    """What is compared: a selector that is told what came of its choices."""

    def order(
        self,
        options: CallOptions,
        candidates: list[ModelCandidate],
        statuses: Mapping[str, CandidateStatus],
    ) -> list[ModelCandidate]: ...
    def note(self, outcome: Outcome) -> None: ...
    def rate(self, outcome: Outcome, replaces: float | None = None) -> None: ...
    def is_judged(self, outcome: Outcome) -> bool: ...


class Worth(msgspec.Struct):
    """Utility, summed up over all calls, and over the first 200 of each agent."""

    whole: float = 0.0
    early: float = 0.0
    judged: int = 0


class WorldProfiles:
    """What a world says of its models. `taken_for` tells lies about their tiers."""

    def __init__(self, world: World, taken_for: Mapping[Tier, Tier] | None = None) -> None:
        lies = taken_for or {}
        self._tiers = {each.name: lies.get(each.tier, each.tier) for each in world.models}
        self._prices = {each.name: each.dollars for each in world.models}
        self._complexities = {each.name: each.complexity for each in world.tasks}

    def tier(self, candidate: ModelCandidate) -> Tier:
        return self._tiers[candidate.model]

    def price(self, candidate: ModelCandidate) -> float:
        return self._prices[candidate.model]

    def complexity(self, options: CallOptions) -> Complexity:
        return self._complexities[options.task]


class AgentLife:
    """One agent: its sessions, and how good models are for it."""

    def __init__(self, world: World, number: int) -> None:
        self.name = f"agent-{number}"
        self._world = world
        self._random = random.Random(f"{world.seed} {number}")
        self._offsets = {
            (model.name, task.name): self._random.gauss(0, world.agent_spread)
            for model in world.models
            for task in world.tasks
        }
        self._left = 0
        self._sessions = 0
        self.task = world.tasks[0]
        self.session = ""
        #: Labels that are on their way: when, and for what.
        self.labels: list[tuple[int, Outcome]] = []

    def step(self, at: int) -> None:
        world, rng = self._world, self._random
        if at % _EVERY == 0 and world.agent_drift:
            _walk(self._offsets, world.agent_drift, rng)
        if self._left == 0:
            more = world.session_calls - 1
            self._left = 1 + (int(rng.expovariate(1 / more) + 0.5) if more else 0)
            self._sessions += 1
            self.session = f"{self.name}/{self._sessions}"
            (self.task,) = rng.choices(world.tasks, [task.weight for task in world.tasks])
        self._left -= 1

    def offset(self, model: str, task: str) -> float:
        return self._offsets[model, task]


class WorldState:
    """What is the same for all agents at a moment: drift, shifts, outages."""

    def __init__(self, world: World) -> None:
        self.world = world
        rng = self._random = random.Random(f"{world.seed} world")
        self._quality = {
            (m.name, t.name): t.quality[m.name] for m in world.models for t in world.tasks
        }
        self._shifts = [
            (rng.randrange(world.calls), rng.choice(world.models).name)
            for _ in range(_poisson(rng, world.shifts))
        ]
        self._outages = list[tuple[str, int, int]]()
        for _ in range(_poisson(rng, world.outages)):
            begin = rng.randrange(world.calls)
            end = begin + int(rng.expovariate(1 / world.outage_calls))
            self._outages.append((rng.choice(world.models).name, begin, end))
        self.at = 0

    def step(self, at: int) -> None:
        self.at = at
        if at % _EVERY == 0 and self.world.drift:
            _walk(self._quality, self.world.drift, self._random)
        for when, name in self._shifts:
            if when == at:
                for key in self._quality:
                    if key[0] == name:
                        self._quality[key] += self.world.shift_size

    def quality(self, model: WorldModel, task: WorldTask, life: AgentLife) -> float:
        found = self._quality[model.name, task.name] + life.offset(model.name, task.name)
        return min(0.99, max(0.01, found))

    def success(self, model: WorldModel) -> float:
        down = any(name == model.name and a <= self.at < b for name, a, b in self._outages)
        return _DOWN if down else model.success

    def faults(self, quality: float) -> float:
        return self.world.faults * (1 - quality)

    def answer(self, model: WorldModel, life: AgentLife) -> float:
        """The expected utility of an answer of this model."""
        quality = self.quality(model, life.task, life)
        sound = 1 - self.faults(quality)
        paid = self.world.cost_weight * model.dollars * life.task.size
        return sound * quality - paid - self.world.latency_weight * seconds(model, life.task)

    def utility(self, model: WorldModel, life: AgentLife) -> float:
        """The expected utility of asking this model."""
        success = self.success(model)
        wait = self.world.latency_weight * seconds(model, life.task)
        return success * (self.answer(model, life) + wait) - wait


def seconds(model: WorldModel, task: WorldTask) -> float:
    return model.seconds * math.sqrt(task.size)


def candidates_of(world: World) -> list[ModelCandidate]:
    providers = {
        name: Provider(name=name, base_url="http://127.0.0.1", needs_key=False)
        for name in {model.provider for model in world.models}
    }
    return [ModelCandidate(providers[model.provider], model.name) for model in world.models]


class Simulation:
    """A world in which one policy lives, once."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.state = self._state = WorldState(world)
        self.lives = self._lives = {f"agent-{n}": AgentLife(world, n) for n in range(world.agents)}
        self._candidates = candidates_of(world)
        self._models = {model.name: model for model in world.models}
        self._time = 0.0
        self._luck = random.Random(f"{world.seed} luck")
        self._health = ModelHealth(clock=lambda: self._time)
        self._breakers = {
            each.name: Breaker(each.name, clock=lambda: self._time, random=self._luck.random)
            for each in self._candidates
        }
        self._number = 0

    def now(self) -> int:
        return _BEGIN + int(self._time * SECOND)

    def run(self, make: Callable[[Simulation], Policy]) -> Worth:
        self._policy = make(self)
        worth = Worth()
        step = self._world.seconds_between_calls / self._world.agents
        for at in range(self._world.calls):
            self._state.step(at)
            for life in self._lives.values():
                self._time += step
                life.step(at)
                self._deliver(life, at)
                gained, judged = self._call(life, at)
                worth.whole += gained
                worth.judged += judged
                if at < _EARLY:
                    worth.early += gained
        return worth

    def _deliver(self, life: AgentLife, at: int) -> None:
        due = [outcome for when, outcome in life.labels if when <= at]
        if due:
            life.labels = [each for each in life.labels if each[0] > at]
            for outcome in due:
                self._policy.rate(outcome)

    def _call(self, life: AgentLife, at: int) -> tuple[float, bool]:
        self._number += 1
        task = life.task.name
        options = CallOptions(
            agent=life.name, session=life.session, task=task, call=f"call-{self._number}"
        )
        statuses = {
            each.name: CandidateStatus(
                state=self._breakers[each.name].state, health=self._health.view(task, each.name)
            )
            for each in self._candidates
        }
        gained = 0.0
        for candidate in self._policy.order(options, list(self._candidates), statuses)[:_ATTEMPTS]:
            model, breaker = self._models[candidate.model], self._breakers[candidate.name]
            try:
                permit = breaker.attempt()
            except GatewayError:
                continue
            took = seconds(model, life.task) * self._luck.lognormvariate(0, 0.3)
            ok = self._luck.random() < self._state.success(model)
            permit.end(None if ok else ProviderDown("It is down."))
            self._health.note(task, candidate.name, ok=ok, latency=took if ok else None)
            outcome = self._outcome(options, candidate, model, life, ok=ok, took=took)
            self._policy.note(outcome)
            if ok:
                judged = self._judge(outcome, life, model, at)
                return gained + self._state.answer(model, life), judged
            gained -= self._world.latency_weight * seconds(model, life.task)
        return gained, False

    def _outcome(
        self,
        options: CallOptions,
        candidate: ModelCandidate,
        model: WorldModel,
        life: AgentLife,
        *,
        ok: bool,
        took: float,
    ) -> Outcome:
        faulty = self._luck.random() < self._state.faults(
            self._state.quality(model, life.task, life)
        )
        dollars = model.dollars * life.task.size * self._luck.lognormvariate(0, 0.3)
        return Outcome.of(
            options,
            candidate,
            id=options.call,
            started=self.now(),
            day=_DAY,
            success=ok,
            error="" if ok else "down",
            complexity=life.task.complexity,
            latency=took,
            cost=int(dollars * 1e12) if ok else 0,
            quality=(0.0 if faulty else 1.0) if ok else None,
        )

    def _judge(self, outcome: Outcome, life: AgentLife, model: WorldModel, at: int) -> bool:
        if outcome.quality == 0.0 or not self._policy.is_judged(outcome):
            return False
        world = self._world
        quality = self._state.quality(model, life.task, life)
        score = min(1.0, max(0.0, self._luck.gauss(quality, world.label_noise)))
        label = msgspec.structs.replace(outcome, quality=score, quality_by="judge")
        life.labels.append((at + self._luck.randint(*world.label_delay), label))
        return True


def _walk(values: dict[tuple[str, str], float], deviation: float, rng: random.Random) -> None:
    """The deviation is that of 1,000 calls."""
    for key in values:
        values[key] += rng.gauss(0, deviation * math.sqrt(_EVERY / 1_000))


def _poisson(rng: random.Random, mean: float) -> int:
    count, product, limit = 0, rng.random(), math.exp(-mean)
    while product > limit:
        count += 1
        product *= rng.random()
    return count

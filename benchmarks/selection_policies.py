"""The policies that the learned choice is compared with."""

from __future__ import annotations

import random
from collections.abc import Mapping

from benchmarks.selection_life import AgentLife, WorldProfiles, WorldState
from benchmarks.selection_world import World
from perdure.gateway.calls import CallOptions
from perdure.gateway.catalog import ModelCandidate
from perdure.gateway.model_selection import CandidateStatus, HealthSelector
from perdure.gateway.outcomes import Outcome
from perdure.learning.learned_selector import is_chosen
from perdure.learning.seed_selector import SeedSelector
from perdure.learning.table_selector import TableSelector

Statuses = Mapping[str, CandidateStatus]
_EPSILON = 0.1


class UntaughtPolicy:
    """Learns nothing."""

    def note(self, outcome: Outcome) -> None: ...
    def rate(self, outcome: Outcome, replaces: float | None = None) -> None: ...
    def is_judged(self, outcome: Outcome) -> bool:
        return False


class OraclePolicy(UntaughtPolicy):
    """Knows everything but the future."""

    def __init__(self, state: WorldState, lives: dict[str, AgentLife]) -> None:
        self._state, self._lives = state, lives
        self._models = {model.name: model for model in state.world.models}

    def order(
        self, options: CallOptions, candidates: list[ModelCandidate], statuses: Statuses
    ) -> list[ModelCandidate]:
        life = self._lives[options.agent]
        return sorted(
            candidates, key=lambda each: -self._state.utility(self._models[each.model], life)
        )


class RandomPolicy(UntaughtPolicy):
    def __init__(self, world: World) -> None:
        self._random = random.Random(f"{world.seed} policy")

    def order(
        self, options: CallOptions, candidates: list[ModelCandidate], statuses: Statuses
    ) -> list[ModelCandidate]:
        return self._random.sample(candidates, len(candidates))


class TablePolicy(TableSelector, UntaughtPolicy):
    """The static table, as shipped."""

    def __init__(self, world: World) -> None:
        super().__init__(lambda: WorldProfiles(world))


class SeedPolicy(SeedSelector):
    """The first design's formula, as shipped."""

    def rate(self, outcome: Outcome, replaces: float | None = None) -> None: ...
    def is_judged(self, outcome: Outcome) -> bool:
        return False


class GreedyPolicy:
    """ε-greedy: the best mean utility of labels so far, and any model on a tenth of calls."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._random = random.Random(f"{world.seed} policy")
        self._health = HealthSelector()
        self._labels: dict[tuple[str, str, str], tuple[int, float]] = {}
        self._taken: dict[tuple[str, str], tuple[int, float]] = {}

    def order(
        self, options: CallOptions, candidates: list[ModelCandidate], statuses: Statuses
    ) -> list[ModelCandidate]:
        if self._random.random() < _EPSILON:
            return self._random.sample(candidates, len(candidates))

        def worth(name: str) -> float:
            labels, score = self._labels.get((options.agent, options.task, name), (0, 0.0))
            calls, taken = self._taken.get((options.task, name), (0, 0.0))
            return (score / labels if labels else 0.7) - (taken / calls if calls else 0.0)

        return sorted(
            candidates,
            key=lambda each: (self._health.rank(statuses.get(each.name)), -worth(each.name)),
        )

    def note(self, outcome: Outcome) -> None:
        if outcome.success:
            calls, taken = self._taken.get((outcome.task, outcome.name), (0, 0.0))
            paid = self._world.cost_weight * (outcome.cost or 0) / 1e12
            paid += self._world.latency_weight * outcome.latency
            self._taken[outcome.task, outcome.name] = calls + 1, taken + paid

    def rate(self, outcome: Outcome, replaces: float | None = None) -> None:
        key = (outcome.agent, outcome.task, outcome.name)
        labels, score = self._labels.get(key, (0, 0.0))
        self._labels[key] = labels + 1, score + (outcome.quality or 0.0)

    def is_judged(self, outcome: Outcome) -> bool:
        return is_chosen(outcome.call, self._world.judge_share)


class ThompsonPolicy(UntaughtPolicy):
    """As LiteLLM's adaptive router does: Beta-Thompson sampling, by task and model, of whether an
    answer looks sound, minus what it costs.
    """

    def __init__(self, world: World) -> None:
        self._random = random.Random(f"{world.seed} policy")
        self._world = world
        self._prices = {model.name: model.dollars for model in world.models}
        self._marks: dict[tuple[str, str, str], list[float]] = {}

    def order(
        self, options: CallOptions, candidates: list[ModelCandidate], statuses: Statuses
    ) -> list[ModelCandidate]:
        def drawn(candidate: ModelCandidate) -> float:
            key = (options.agent, options.task, candidate.name)
            good, bad = self._marks.get(key, (1.0, 1.0))
            paid = self._world.cost_weight * self._prices[candidate.model]
            return self._random.betavariate(good, bad) - paid

        return sorted(candidates, key=drawn, reverse=True)

    def note(self, outcome: Outcome) -> None:
        key = (outcome.agent, outcome.task, outcome.name)
        marks = self._marks.setdefault(key, [1.0, 1.0])
        marks[0 if outcome.success and outcome.quality != 0.0 else 1] += 1

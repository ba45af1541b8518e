"""How good a model is at a task, from few labels: a small hierarchy of normal distributions.

quality(task, model) = prior(tier, complexity) + load(complexity) · skill(model) + deviation
    skill ~ N(0, SKILL²), deviation ~ N(0, DEVIATION²), label ~ N(quality, LABEL²)

`skill` is pooled over the tasks: a model that disappoints at one hard task is trusted less at the
others. How wrong the prior turns out to be widens SKILL and DEVIATION. Labels of all agents make an
estimate that each agent's own labels then correct, with narrower distributions (OWN).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, TypeAlias

import msgspec

from perdure.gateway.calls import Complexity
from perdure.learning.learned_book import PER_LABEL, PER_SHARED_LABEL, LearnedBook

Tier: TypeAlias = Literal["small", "medium", "large"]
TIERS: tuple[Tier, ...] = ("small", "medium", "large")

#: What to expect before there are labels.
PRIOR: dict[Tier, dict[Complexity, float]] = {
    "small": {"simple": 0.80, "moderate": 0.62, "complex": 0.42},
    "medium": {"simple": 0.86, "moderate": 0.76, "complex": 0.62},
    "large": {"simple": 0.90, "moderate": 0.86, "complex": 0.80},
}
#: How much more a hard task shows of a model's skill than an easy one.
LOAD: dict[Complexity, float] = {"simple": 0.5, "moderate": 1.0, "complex": 1.5}

#: Standard deviations: chosen over random worlds, see benchmarks/selection.py.
SKILL, DEVIATION, LABEL = 0.15, 0.10, 0.20
OWN = 0.08
#: The prior counts as right so often before its errors are looked at, and is at most so far off.
_TRUST, _WIDEST = 2.0, 12.0
#: Labels that have faded below this are gone.
_LEAST = 0.05

#: The expected quality of a model at a task of some complexity.
Expected: TypeAlias = Callable[[str, Complexity], float]


class Estimate(msgspec.Struct, frozen=True):
    """An expected quality, and its variance."""

    mean: float
    variance: float


class _Labelled(msgspec.Struct, frozen=True):
    task: str
    load: float
    #: Mean label minus what was expected, and how many labels that rests on.
    residual: float
    labels: float


class QualityEstimates:
    """The qualities of models for one agent. `tier` gives that of a model by its name."""

    def __init__(
        self, own: LearnedBook, shared: LearnedBook | None, tier: Callable[[str], Tier]
    ) -> None:
        self._own = own
        self._shared = shared
        self._tier = tier
        book, discount = (own, PER_LABEL) if shared is None else (shared, PER_SHARED_LABEL)
        self._widening = self._prior_error(book, discount)

    def of(
        self, model: str, task: str, complexity: Complexity, *, pending: float = 0.0
    ) -> Estimate:
        """`pending` labels are on their way: they narrow the estimate without moving it."""
        tier = self._tier(model)

        def prior(_: str, complexity: Complexity) -> float:
            return PRIOR[tier][complexity]

        wide = self._widening
        skill, deviation = SKILL * wide**0.5, DEVIATION * wide**0.5
        if self._shared is None:
            fitted = _fit(self._own, PER_LABEL, model, prior, skill=skill, deviation=deviation)
            return fitted(task, complexity, pending)
        everyone = _fit(
            self._shared, PER_SHARED_LABEL, model, prior, skill=skill, deviation=deviation
        )

        def expected(task: str, complexity: Complexity) -> float:
            return everyone(task, complexity, 0.0).mean

        own = _fit(self._own, PER_LABEL, model, expected, skill=OWN, deviation=OWN)(
            task, complexity, pending
        )
        # What everyone's labels leave open is less of an issue, the more the agent has of its own.
        share = min(1.0, own.variance / (2 * OWN**2))
        rest = everyone(task, complexity, pending).variance
        return Estimate(own.mean, own.variance + rest * share**2)

    def _prior_error(self, book: LearnedBook, discount: float) -> float:
        """By how much the variances around the prior have to be widened: 1 if it is right."""
        base = SKILL**2 + DEVIATION**2
        error, weight = _TRUST * base, _TRUST
        for task in book.tasks.values():
            for model, marks in task.models.items():
                labels = marks.labels * discount ** (book.labels - marks.label_tick)
                if labels < _LEAST:
                    continue
                off = marks.score / marks.labels - PRIOR[self._tier(model)][task.complexity]
                share = labels / (labels + LABEL**2 / base)
                error += share * max(0.0, off * off - LABEL**2 / labels)
                weight += share
        return max(1.0, min(_WIDEST, error / weight / base))


def _fit(
    book: LearnedBook,
    discount: float,
    model: str,
    expected: Expected,
    *,
    skill: float,
    deviation: float,
) -> Callable[[str, Complexity, float], Estimate]:
    """The estimate at each task: a regression on one factor, in closed form."""
    spread = deviation**2
    found = dict[str, _Labelled]()
    for name, task in book.tasks.items():
        marks = task.models.get(model)
        if marks is None or not marks.labels:
            continue
        labels = marks.labels * discount ** (book.labels - marks.label_tick)
        if labels >= _LEAST:
            off = marks.score / marks.labels - expected(name, task.complexity)
            found[name] = _Labelled(name, LOAD[task.complexity], off, labels)
    precision, pulled = 1.0 / skill**2, 0.0
    for each in found.values():
        variance = spread + LABEL**2 / each.labels
        precision += each.load**2 / variance
        pulled += each.load * each.residual / variance
    factor = pulled / precision

    def at(task: str, complexity: Complexity, pending: float) -> Estimate:
        load = LOAD[complexity]
        mean = expected(task, complexity) + load * factor
        own = found.get(task)
        labels = 0.0
        if own is not None:
            labels = own.labels
            mean += _weight(spread, labels) * (own.residual - load * factor)
        left = 1.0 - _weight(spread, labels + pending)
        return Estimate(mean, left**2 * load**2 / precision + spread * left)

    return at


def _weight(spread: float, labels: float) -> float:
    return spread / (spread + LABEL**2 / labels) if labels else 0.0

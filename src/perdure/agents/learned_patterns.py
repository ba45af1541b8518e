"""What an agent has learnt: which models, versions and memories its tasks succeed with.

Made from figures that are kept anyway, not from interactions. A rate counts as learnt from
`ENOUGH` interactions on; `at_least` is the lower end of its 90 % interval (Wilson), so that three
lucky answers do not outweigh three hundred good ones.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Literal, TypeAlias, TypeVar

import msgspec

from perdure.agents.interaction_records import Figures, PatternFigures

_K = TypeVar("_K")
PatternKind: TypeAlias = Literal["model", "version", "memory"]
#: Interactions from which on something is learnt, with and without it.
ENOUGH = 5
#: Of the normal distribution: 5 % lie beyond it, on either side.
_Z = 1.645
_PICO = 1e12


class LearnedPattern(msgspec.Struct, frozen=True, kw_only=True):
    """How a task goes with one model, one version of the agent, or one memory in its prompts."""

    kind: PatternKind
    task: str
    #: ``provider/model``, the number of a version, or a memory's key.
    with_: str = msgspec.field(name="with")
    interactions: int
    success_rate: float
    #: The least that the rate is likely to be.
    at_least: float
    #: By how much the rate is higher than without it; None if nothing is known to compare with.
    lift: float | None
    #: From 0 to 1, by judges and people; None if nobody has rated it.
    quality: float | None
    #: Dollars; None if unknown.
    average_cost: float | None


class PreferredModel(msgspec.Struct, frozen=True, kw_only=True):
    """How often a model answered, and how well."""

    model: str
    interactions: int
    share: float
    success_rate: float
    quality: float | None
    average_cost: float | None


def learned_patterns(figures: Iterable[PatternFigures]) -> list[LearnedPattern]:
    """The patterns of an agent: by task; those most sure to succeed first."""
    rows = list(figures)
    by_task = _added_up((row for row in rows if not row.memory), lambda row: row.task)
    found = list[LearnedPattern]()
    for kind, name_of in _NAMES.items():
        chosen = [row for row in rows if bool(row.memory) == (kind == "memory")]
        groups = _added_up(chosen, lambda row: (row.task, name_of(row)))  # noqa: B023 (used at once)
        for (task, name), sums in groups.items():
            if name and sums.interactions >= ENOUGH:
                found.append(_pattern(kind, task, name, sums, by_task.get(task, Figures())))
    return sorted(found, key=lambda each: (each.task, -each.at_least, each.kind, each.with_))


def preferred_models(figures: Iterable[PatternFigures]) -> list[PreferredModel]:
    """The models that answered, the most used first."""
    groups = _added_up((row for row in figures if not row.memory), _model)
    every = sum(sums.interactions for sums in groups.values())
    found = [
        PreferredModel(
            model=name,
            interactions=sums.interactions,
            share=sums.interactions / every,
            success_rate=sums.success_rate or 0.0,
            quality=sums.average_quality,
            average_cost=in_dollars(sums.average_cost),
        )
        for name, sums in groups.items()
        if name
    ]
    return sorted(found, key=lambda each: (-each.interactions, each.model))


def tasks_of(figures: Iterable[PatternFigures]) -> dict[str, Figures]:
    """Interactions by task, in order of their names."""
    groups = _added_up((row for row in figures if not row.memory), lambda row: row.task)
    return dict(sorted(groups.items()))


def in_dollars(picodollars: float | None) -> float | None:
    return None if picodollars is None else picodollars / _PICO


def least_rate(successes: int, of: int) -> float:
    """The lower end of the 90 % interval of a rate (Wilson)."""
    if not of:
        return 0.0
    rate, square = successes / of, _Z * _Z
    middle = rate + square / (2 * of)
    spread = _Z * math.sqrt(rate * (1 - rate) / of + square / (4 * of * of))
    return max(0.0, (middle - spread) / (1 + square / of))


def _model(row: PatternFigures) -> str:
    return f"{row.provider}/{row.model}".strip("/")


_NAMES: dict[PatternKind, Callable[[PatternFigures], str]] = {
    "model": _model,
    "version": lambda row: str(row.agent_version or ""),
    "memory": lambda row: row.memory,
}


def _pattern(
    kind: PatternKind, task: str, name: str, sums: Figures, task_sums: Figures
) -> LearnedPattern:
    rate = sums.success_rate or 0.0
    others = task_sums.interactions - sums.interactions
    lift = None
    if others >= ENOUGH:
        lift = rate - (task_sums.successes - sums.successes) / others
    return LearnedPattern(
        kind=kind,
        task=task,
        with_=name,
        interactions=sums.interactions,
        success_rate=rate,
        at_least=least_rate(sums.successes, sums.interactions),
        lift=lift,
        quality=sums.average_quality,
        average_cost=in_dollars(sums.average_cost),
    )


def _added_up(
    rows: Iterable[PatternFigures], by: Callable[[PatternFigures], _K]
) -> dict[_K, Figures]:
    found = dict[_K, Figures]()
    for row in rows:
        key = by(row)
        found[key] = found.get(key, Figures()).together(row.figures)
    return found

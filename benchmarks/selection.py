"""Choosing models by what was learnt, in a simulated world with drift, outages and late labels.

`share_of_oracle` is the utility of the shipped `LearnedSelector` to that of a policy that knows
everything but the future; `gap_closed` is how much of the way from random choice to that one it
goes. `wrong_prior` is the same share if every model is taken for one of another tier: a small one
for a medium one, a medium one for a large one, a large one for a small one. `first_200` is the gap
closed in the first 200 calls of each agent. `random_worlds` are made by `random_world` with other
seeds, and much harder: other numbers of models and tasks, few or noisy labels, more drift; the
spread over them is told. No model is called. `--world FILE` takes another world.
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.harness import Report
from benchmarks.selection_life import Policy, Simulation, WorldProfiles, Worth
from benchmarks.selection_policies import (
    GreedyPolicy,
    OraclePolicy,
    RandomPolicy,
    SeedPolicy,
    TablePolicy,
    ThompsonPolicy,
)
from benchmarks.selection_world import DEFAULT, VARIABLE, World, load, random_world
from perdure.learning.learned_selector import LearnedSelector, SelectionSettings
from perdure.learning.quality_estimates import Tier

_ONE_OFF: dict[Tier, Tier] = {"small": "medium", "medium": "large", "large": "small"}
_REVERSED: dict[Tier, Tier] = {"small": "large", "medium": "medium", "large": "small"}

Make = Callable[[World, Simulation], Policy]
_OTHERS: dict[str, Make] = {
    "seed": lambda *_: SeedPolicy(),
    "table": lambda world, _: TablePolicy(world),
    "epsilon_greedy": lambda world, _: GreedyPolicy(world),
    "thompson_heuristic": lambda world, _: ThompsonPolicy(world),
}


async def run(report: Report, *, quick: bool) -> None:
    named = os.environ.get(VARIABLE)
    world = load(Path(named) if named else DEFAULT)
    if quick:
        world = msgspec.structs.replace(world, agents=2, calls=60)
    found = compare(
        world,
        {
            "learned": _learned(),
            "wrong_prior": _learned(_ONE_OFF),
            "reversed_prior": _learned(_REVERSED),
            "alone": _learned(shared=False),
            **_OTHERS,
        },
    )
    ours, others = found["learned"], [found[name]["share_of_oracle"] for name in _OTHERS]
    report.figures.update(
        share_of_oracle=ours["share_of_oracle"],
        gap_closed=ours["gap_closed"],
        first_200=ours["first_200"],
        judged=ours["judged"],
        ahead_of_best_other=round(ours["share_of_oracle"] - max(others), 4),
        wrong_prior=found["wrong_prior"]["share_of_oracle"],
        policies=found,
    )
    for name, each in found.items():
        report.say(
            f"  {name:<19} {each['share_of_oracle']:.1%} of oracle, gap closed"
            f" {each['gap_closed']:.0%} (first 200 calls {each['first_200']:.0%})"
        )
    if not named:
        _random_worlds(report, count=1 if quick else 6, agents=2 if quick else 8, quick=quick)


def compare(world: World, makes: Mapping[str, Make]) -> dict[str, dict[str, float]]:
    """Shares and gaps of each policy in a world."""
    oracle = Simulation(world).run(lambda here: OraclePolicy(here.state, here.lives))
    chance = Simulation(world).run(lambda _: RandomPolicy(world))
    calls = world.agents * world.calls
    found = {"random": _figures(chance, oracle, chance, calls)}
    for name, make in makes.items():
        worth = Simulation(world).run(partial(make, world))
        found[name] = _figures(worth, oracle, chance, calls)
    return found


def _random_worlds(report: Report, *, count: int, agents: int, quick: bool) -> None:
    rows = list[dict[str, dict[str, float]]]()
    for seed in range(1, count + 1):
        world = random_world(seed, agents=agents, calls=60 if quick else 2_000)
        rows.append(compare(world, {"learned": _learned(), "table": _OTHERS["table"]}))
    figures = dict[str, Any]()
    for name in ("random", "table", "learned"):
        shares = [row[name]["share_of_oracle"] for row in rows]
        figures[name] = {
            "least": min(shares),
            "median": round(statistics.median(shares), 4),
            "most": max(shares),
        }
        report.say(f"  {count} random worlds, {name}: {min(shares):.1%} to {max(shares):.1%}")
    report.figures["random_worlds"] = figures


def _learned(taken_for: Mapping[Tier, Tier] | None = None, *, shared: bool = True) -> Make:
    def make(world: World, simulation: Simulation) -> Policy:
        profiles = WorldProfiles(world, taken_for)
        settings = SelectionSettings(
            cost_weight=world.cost_weight,
            latency_weight=world.latency_weight,
            judge_share=world.judge_share,
            shared=shared,
        )
        return LearnedSelector(
            lambda: profiles, settings=settings, may_judge=lambda: True, clock=simulation.now
        )

    return make


def _figures(worth: Worth, oracle: Worth, chance: Worth, calls: int) -> dict[str, float]:
    return {
        "share_of_oracle": round(worth.whole / oracle.whole, 4),
        "gap_closed": round((worth.whole - chance.whole) / (oracle.whole - chance.whole), 4),
        "first_200": round((worth.early - chance.early) / (oracle.early - chance.early), 4),
        "judged": round(worth.judged / calls, 4),
    }

"""Simulated worlds for the choice of models: who can do what, at which price, and what changes.

A world is a TOML or JSON file with the fields of `World`; benchmarks/worlds/default.toml is one,
and says what they mean. `random_world` makes others.
"""

from __future__ import annotations

import math
import random
from pathlib import Path
from typing import Annotated

import msgspec

from perdure.gateway.calls import Complexity
from perdure.learning.quality_estimates import Tier

#: Names the file of another world.
VARIABLE = "PERDURE_SELECTION_WORLD"
DEFAULT = Path(__file__).parent / "worlds" / "default.toml"

Share = Annotated[float, msgspec.Meta(ge=0, le=1)]
Amount = Annotated[float, msgspec.Meta(ge=0)]
Count = Annotated[int, msgspec.Meta(ge=1)]


class WorldModel(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A model: what it is taken for, and what a call of size 1 takes."""

    name: str
    provider: str = "provider"
    tier: Tier
    dollars: Amount
    seconds: Amount
    #: Of its calls, outside of outages.
    success: Share = 0.98


class WorldTask(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A kind of task."""

    name: str
    complexity: Complexity
    #: Its calls take so many times the model's dollars, and the root of that its seconds.
    size: Annotated[float, msgspec.Meta(gt=0)] = 1.0
    #: How often it comes up, compared with the others.
    weight: Annotated[float, msgspec.Meta(gt=0)] = 1.0
    #: How good each model is at it, at the start.
    quality: dict[str, Share]


class World(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """All that a simulation needs."""

    models: list[WorldModel]
    tasks: list[WorldTask]
    agents: Count = 12
    #: Of each agent.
    calls: Count = 3_000
    seed: int = 1
    #: On average; each session is about one task.
    session_calls: Annotated[float, msgspec.Meta(ge=1)] = 4.0
    seconds_between_calls: Amount = 20.0
    #: What quality is worth a dollar, and a second.
    cost_weight: Amount = 4.0
    latency_weight: Amount = 0.004
    #: The share of calls that are judged, how many calls later the label comes, and its deviation.
    judge_share: Share = 0.1
    label_delay: tuple[int, int] = (20, 200)
    label_noise: Amount = 0.15
    #: By how much agents differ from each other in each quality (a standard deviation).
    agent_spread: Amount = 0.04
    #: A random walk of each quality, for all agents and for each by itself: deviation in 1,000
    #: calls.
    drift: Amount = 0.02
    agent_drift: Amount = 0.01
    #: Sudden changes of a model's qualities, for all agents, on average; by how much.
    shifts: Amount = 2.0
    shift_size: float = -0.2
    #: Times that a model is down, on average, and for how many calls.
    outages: Amount = 4.0
    outage_calls: Count = 150
    #: The share of answers that are useless at sight is this times what their quality lacks.
    faults: Share = 0.1

    def __post_init__(self) -> None:
        names = {model.name for model in self.models}
        for task in self.tasks:
            if missing := names - set(task.quality):
                msg = f"The task {task.name!r} has no quality for {', '.join(sorted(missing))}."
                raise ValueError(msg)
        if len(self.models) < 2 or not self.tasks:
            raise ValueError("A world has two models at least, and a task.")


def load(path: Path) -> World:
    """Ends with a line that says what is wrong with the file, if something is."""
    try:
        text = path.read_bytes()
        if path.suffix == ".json":
            return msgspec.json.decode(text, type=World)
        return msgspec.toml.decode(text, type=World)
    except (OSError, ValueError) as exc:  # msgspec's errors are ValueErrors
        raise SystemExit(f"{path} is no world: {exc}") from exc


def random_world(seed: int, *, agents: int, calls: int) -> World:
    """Some other world. Dearer models are abler, by and large; harder tasks show it more."""
    rng = random.Random(f"world {seed}")
    models, skills = list[WorldModel](), dict[str, float]()
    for number in range(rng.randint(3, 10)):
        skill = rng.uniform(0.35, 0.95)
        typical = math.log(0.0005) + (skill - 0.4) / 0.5 * math.log(40)
        dollars = math.exp(rng.gauss(typical, 0.6))
        tier: Tier = "small" if dollars < 0.002 else "medium" if dollars < 0.012 else "large"
        seconds = (1.5 + 12 * (skill - 0.35)) * rng.lognormvariate(0, 0.4)
        name = f"model-{number}"
        skills[name] = skill
        provider = rng.choice(("workersai", "openai", "anthropic"))
        success = rng.uniform(0.95, 0.998)
        models.append(
            WorldModel(
                name=name,
                provider=provider,
                tier=tier,
                dollars=dollars,
                seconds=seconds,
                success=success,
            )
        )
    deviation = rng.uniform(0.02, 0.1)
    tasks = list[WorldTask]()
    for number in range(rng.randint(2, 10)):
        hard = rng.uniform(0.05, 1.1)
        seeming = hard + rng.gauss(0, 0.15)
        complexity: Complexity = (
            "simple" if seeming < 0.35 else "moderate" if seeming < 0.75 else "complex"
        )
        quality = {
            name: min(0.98, max(0.03, 0.95 - 1.2 * hard * (1 - skill) + rng.gauss(0, deviation)))
            for name, skill in skills.items()
        }
        tasks.append(
            WorldTask(
                name=f"task-{number}",
                complexity=complexity,
                size=rng.lognormvariate(0, 0.5),
                weight=rng.uniform(0.3, 2.0),
                quality=quality,
            )
        )
    return World(
        models=models,
        tasks=tasks,
        agents=agents,
        calls=calls,
        seed=seed,
        session_calls=rng.choice((1.0, 3.0, 6.0, 10.0)),
        cost_weight=rng.choice((1.0, 3.0, 5.0, 10.0)),
        latency_weight=rng.choice((0.0, 0.002, 0.005, 0.01)),
        judge_share=rng.choice((0.03, 0.05, 0.1, 0.1, 0.2)),
        label_delay=rng.choice(((5, 50), (20, 200), (100, 500))),
        label_noise=rng.choice((0.1, 0.15, 0.25, 0.35)),
        agent_spread=rng.choice((0.0, 0.04, 0.08, 0.12)),
        drift=rng.choice((0.0, 0.02, 0.05)),
        agent_drift=rng.choice((0.0, 0.02, 0.05)),
        shifts=rng.choice((0.0, 1.0, 3.0)),
        outages=rng.choice((0.0, 3.0, 8.0)),
        outage_calls=rng.choice((50, 150, 300)),
        faults=rng.choice((0.0, 0.1, 0.2)),
    )

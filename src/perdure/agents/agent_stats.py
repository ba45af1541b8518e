"""The aggregate tier as people and programs read it: statistics, and the two tables `agent_memory`
and `agent_performance`, whose columns are fixed.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal, TypeAlias

import msgspec

from perdure.agents.agent_records import AgentRecord, AgentVersion, no_agent
from perdure.agents.interaction_records import (
    AgentTotals,
    EvolutionEntry,
    Figures,
    InteractionRecord,
    PatternFigures,
)
from perdure.agents.learned_patterns import (
    LearnedPattern,
    PreferredModel,
    in_dollars,
    learned_patterns,
    preferred_models,
    tasks_of,
)
from perdure.core import clock
from perdure.core.errors import InvalidInput
from perdure.gateway.outcomes import Outcome
from perdure.history.log_records import SessionRecord, checked_agent
from perdure.recall.memory_records import Memory
from perdure.services import Services

TableName: TypeAlias = Literal["agent_memory", "agent_performance"]


class TaskStats(msgspec.Struct, frozen=True, kw_only=True):
    """Interactions added up. Money in dollars, times in seconds; None is unknown."""

    task: str
    interactions: int
    success_rate: float | None
    average_cost: float | None
    average_latency: float | None
    quality: float | None
    rated: int


class AgentStats(msgspec.Struct, frozen=True, kw_only=True):
    """What an agent has done, and learnt from it."""

    agent: str
    interactions: int
    success_rate: float | None
    average_cost: float | None
    average_latency: float | None
    quality: float | None
    rated: int
    tasks: list[TaskStats]
    preferred_models: list[PreferredModel]
    learned_patterns: list[LearnedPattern]
    evolution_history: list[EvolutionEntry]
    created: datetime | None
    updated: datetime | None


class AgentMemoryRow(msgspec.Struct, frozen=True, kw_only=True):
    """A row of the table `agent_memory`."""

    agent_id: str
    total_interactions: int
    success_rate: float | None
    #: Dollars.
    average_cost: float | None
    preferred_models: list[PreferredModel]
    learned_patterns: list[LearnedPattern]
    evolution_history: list[EvolutionEntry]
    created_at: datetime
    updated_at: datetime


class AgentPerformanceRow(msgspec.Struct, frozen=True, kw_only=True):
    """A row of the table `agent_performance`."""

    id: int
    agent_id: str
    timestamp: datetime
    task_type: str
    provider: str
    success: bool
    response_time_ms: int
    #: Dollars.
    cost: float | None
    quality_score: float | None


TABLES: dict[TableName, type[msgspec.Struct]] = {
    "agent_memory": AgentMemoryRow,
    "agent_performance": AgentPerformanceRow,
}


async def require_known_agent(services: Services, agent: str) -> None:
    """Raises `NotFound` if the agent is not registered, and has no sessions, memories,
    interactions or calls of models.
    """
    store, name = services.store, checked_agent(agent)
    if await store.collection(AgentRecord).get(name) is not None:
        return
    if await store.collection(AgentTotals).get(name) is not None:
        return
    for cls in (SessionRecord, Outcome):
        if await store.collection(cls).query().where("agent", "=", name).limit(1).values():
            return
    if await store.collection(Memory).query().prefix(f"{name}/").limit(1).values():
        return
    raise no_agent(agent)


async def agent_stats(services: Services, agent: str) -> AgentStats:
    """What an agent has done; all zero if it has done nothing yet."""
    totals = await services.store.collection(AgentTotals).get(checked_agent(agent))
    rows = await _patterns(services, agent)
    figures = Figures() if totals is None else totals.figures
    return AgentStats(
        agent=agent,
        **_averages(figures),
        tasks=[TaskStats(task=task, **_averages(sums)) for task, sums in tasks_of(rows).items()],
        preferred_models=preferred_models(rows),
        learned_patterns=learned_patterns(rows),
        evolution_history=await _evolution(services, agent, totals),
        created=None if totals is None else clock.to_datetime(totals.created),
        updated=None if totals is None else clock.to_datetime(totals.updated),
    )


async def agent_memory_table(services: Services, agent: str | None = None) -> list[AgentMemoryRow]:
    """The table `agent_memory`: of one agent, or of all by name."""
    rows = services.store.collection(AgentTotals)
    if agent is None:
        found = await rows.query().order_by("key").values()
    else:
        found = [each for each in [await rows.get(checked_agent(agent))] if each is not None]
    return [await _memory_row(services, totals) for totals in found]


async def agent_performance_table(
    services: Services,
    agent: str | None = None,
    *,
    since: clock.When | None = None,
    limit: int = 1_000,
) -> list[AgentPerformanceRow]:
    """The table `agent_performance`: the newest interactions of one agent, or of all, oldest
    first.
    """
    query = services.store.collection(InteractionRecord).query()
    if agent is not None:
        query = query.where("agent", "=", checked_agent(agent))
    if since is not None:
        query = query.where("ended", ">=", clock.moment(since, services.store.now()))
    found = await query.order_by("-ended").limit(limit).values()
    return [_performance_row(each) for each in sorted(found, key=_by_time)]


async def read_table(
    services: Services,
    name: str,
    agent: str | None = None,
    *,
    since: clock.When | None = None,
    limit: int = 1_000,
) -> list[AgentMemoryRow] | list[AgentPerformanceRow]:
    """One of the two tables. Raises `InvalidInput` for another name."""
    if name == "agent_memory":
        return await agent_memory_table(services, agent)
    if name == "agent_performance":
        return await agent_performance_table(services, agent, since=since, limit=limit)
    raise InvalidInput(f"There is no table {name!r} of agents.", hint=f"Use {' or '.join(TABLES)}.")


async def _memory_row(services: Services, totals: AgentTotals) -> AgentMemoryRow:
    rows = await _patterns(services, totals.agent)
    return AgentMemoryRow(
        agent_id=totals.agent,
        total_interactions=totals.figures.interactions,
        success_rate=totals.figures.success_rate,
        average_cost=in_dollars(totals.figures.average_cost),
        preferred_models=preferred_models(rows),
        learned_patterns=learned_patterns(rows),
        evolution_history=await _evolution(services, totals.agent, totals),
        created_at=clock.to_datetime(totals.created),
        updated_at=clock.to_datetime(totals.updated),
    )


async def _evolution(
    services: Services, agent: str, totals: AgentTotals | None
) -> list[EvolutionEntry]:
    """Promotions and the like, and versions, in order of time."""
    versions = await services.store.collection(AgentVersion).query().prefix(f"{agent}/").values()
    made = [
        EvolutionEntry(
            time=each.made,
            change=f"version {each.number}",
            evidence={"reason": each.reason} if each.reason else {},
            by=each.made_by,
        )
        for each in versions
    ]
    noted = () if totals is None else totals.evolution
    return sorted((*noted, *made), key=lambda each: (each.time, each.change))


def _performance_row(found: InteractionRecord) -> AgentPerformanceRow:
    return AgentPerformanceRow(
        id=found.number,
        agent_id=found.agent,
        timestamp=clock.to_datetime(found.ended),
        task_type=found.task,
        provider=found.provider,
        success=found.success,
        response_time_ms=round(found.latency * 1_000),
        cost=in_dollars(found.cost),
        quality_score=found.quality,
    )


def _by_time(found: InteractionRecord) -> tuple[int, int]:
    return found.ended, found.number


async def _patterns(services: Services, agent: str) -> list[PatternFigures]:
    return await services.store.collection(PatternFigures).query().prefix(f"{agent}/").values()


def _averages(figures: Figures) -> dict[str, Any]:
    return {
        "interactions": figures.interactions,
        "success_rate": figures.success_rate,
        "average_cost": in_dollars(figures.average_cost),
        "average_latency": figures.average_latency,
        "quality": figures.average_quality,
        "rated": figures.rated,
    }

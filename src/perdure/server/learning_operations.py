"""What agents learn: figures of their calls, their tests of variants and promotions."""

from __future__ import annotations

from typing import Annotated

import msgspec

from perdure.agents.agent_stats import require_known_agent
from perdure.core import clock
from perdure.gateway.budgets import BudgetStatus
from perdure.learning.analytics import UsageRow, parse_fields, usage
from perdure.learning.evolution import AgentEvolution
from perdure.learning.experiment_records import EvolutionStep
from perdure.server.operations import Operation, RequestQuery, ServerCall, TokenScope

EVOLUTION = "/api/v1/agents/{agent}/evolution"


class UsageQuery(RequestQuery, frozen=True):
    """How calls are grouped, which ones, and when."""

    #: One or more of agent, task, provider, model, purpose, day, with commas between them.
    by: str = "agent"
    agent: str | None = None
    task: str | None = None
    provider: str | None = None
    model: str | None = None
    #: Moments: ``2026-02-12``, ``30d``.
    since: str | None = "30d"
    until: str | None = None


class LearningQuery(RequestQuery, frozen=True):
    """Which agents."""

    agent: str | None = None
    limit: Annotated[int, msgspec.Meta(ge=1, le=1_000)] = 50


class UsageReport(msgspec.Struct, frozen=True):
    """Calls added up, and the budgets of those whose calls they are."""

    by: tuple[str, ...]
    rows: list[UsageRow]
    budgets: list[BudgetStatus]


async def get_usage(call: ServerCall) -> UsageReport:
    """Cost, quality, latency and success of calls, by any fields together."""
    query, gateway = call.query, call.bank.gateway
    agent, now = call.agent_within(query.agent), call.bank.store.now()
    since, until = (
        None if given is None else clock.to_datetime(clock.moment(given, now))
        for given in (query.since, query.until)
    )
    by = parse_fields(query.by)
    await gateway.recorder.flush()
    rows = await usage(
        call.bank.store,
        by,
        since=since,
        until=until,
        agent=agent,
        task=query.task,
        provider=query.provider,
        model=query.model,
    )
    budgets = [each for each in await gateway.budgets() if agent in (None, each.whose)]
    return UsageReport(by, rows, budgets)


def _own_agent(call: ServerCall) -> str:
    agent = call.path["agent"]
    call.require_agent(agent)
    return agent


async def get_learning(call: ServerCall) -> list[AgentEvolution]:
    """How agents work: all of whose calls something was learnt, by name, or one."""
    learning, agent = call.bank.learning, call.agent_within(call.query.agent)
    agents = await learning.agents(call.query.limit) if agent is None else [agent]
    return [await learning.show(each) for each in agents]


async def get_evolution(call: ServerCall) -> AgentEvolution:
    """How an agent works, which models it asks, the test that runs, and how it came to that."""
    found = await call.bank.learning.show(agent := _own_agent(call))
    if found.is_empty:
        await require_known_agent(call.bank.services, agent)
    return found


async def accept_variant(call: ServerCall) -> EvolutionStep:
    """Use the variant that won its test."""
    return await call.bank.learning.evolution.accept(_own_agent(call))


async def dismiss_variant(call: ServerCall) -> EvolutionStep:
    """Stop the agent's test, or turn down the variant that won it."""
    return await call.bank.learning.evolution.dismiss(_own_agent(call))


async def revert_promotion(call: ServerCall) -> EvolutionStep:
    """Take the agent's last promotion back."""
    return await call.bank.learning.evolution.revert(_own_agent(call))


OPERATIONS = (
    Operation.of("GET", "/api/v1/usage", get_usage, TokenScope.READ, query=UsageQuery),
    Operation.of("GET", "/api/v1/learning", get_learning, TokenScope.READ, query=LearningQuery),
    Operation.of("GET", EVOLUTION, get_evolution, TokenScope.READ),
    Operation.of("POST", f"{EVOLUTION}/accept", accept_variant, TokenScope.WRITE),
    Operation.of("POST", f"{EVOLUTION}/dismiss", dismiss_variant, TokenScope.WRITE),
    Operation.of("POST", f"{EVOLUTION}/revert", revert_promotion, TokenScope.WRITE),
)

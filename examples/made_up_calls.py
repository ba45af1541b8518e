"""Made-up calls of models over some weeks, and what they did to budgets."""

from __future__ import annotations

import random

from perdure.bank import Bank
from perdure.config import BudgetConfig
from perdure.core import clock
from perdure.gateway.budgets import Budget, BudgetPeriod
from perdure.gateway.outcomes import Outcome

BUDGETS = (
    BudgetConfig(name="team", per="month", dollars=40.0),
    BudgetConfig(name="reflection", purpose="reflect", per="day", dollars=1.5, tokens=2_000_000),
)
#: Spent of each, as a share; and reserved by calls that go on.
_SPENT = {"team": (0.61, 0.03), "reflection": (0.94, 0.0)}
#: Agents with their tasks, the models that these ask, and dollars for a million tokens in and out.
_TASKS = {
    "coder": (("fix", "anthropic/claude-sonnet-4-5"), ("review", "openai/gpt-5-mini")),
    "planner": (("plan", "anthropic/claude-sonnet-4-5"), ("summary", "openai/gpt-5-mini")),
    "router": (("triage", "ollama/qwen3-8b"), ("triage", "openai/gpt-5-mini")),
}
_PRICES = {
    "anthropic/claude-sonnet-4-5": (3.0, 15.0),
    "openai/gpt-5-mini": (0.25, 2.0),
    "ollama/qwen3-8b": (0.0, 0.0),
}
MODELS = tuple(_PRICES)
_SESSION = {"coder": "coder/release", "planner": "planner/roadmap", "router": "router/inbox"}
_DAYS, _DAY = 45, 86_400 * clock.SECOND


async def fill_calls(bank: Bank, *, seed: int = 1) -> None:
    """Calls of the last weeks, fewer at week-ends, and budgets as they would stand."""
    await bank.collection(Outcome).put_many(made_up_calls(bank.store.now(), seed=seed))
    now = bank.store.now()
    for config in BUDGETS:
        budget, (spent, held) = Budget.configured(config), _SPENT[config.name]
        await bank.collection(BudgetPeriod).put(
            BudgetPeriod(
                id=f"{config.name}/{budget.period(now)[0]}",
                calls=120,
                cost=int((budget.cost or 0) * spent),
                held_cost=int((budget.cost or 0) * held),
                tokens=int((budget.tokens or 0) * spent * 0.7),
            )
        )


def made_up_calls(now: int, *, seed: int = 1) -> list[Outcome]:
    random_of = random.Random(seed)
    return [
        _call(random_of, agent, task, model, now - day * _DAY - at * 60 * clock.SECOND)
        for day in range(_DAYS)
        for agent, tasks in _TASKS.items()
        for task, model in tasks
        for at in range(random_of.randrange(2, 12 if day % 7 < 5 else 4))
    ]


def _call(random_of: random.Random, agent: str, task: str, name: str, at: int) -> Outcome:
    provider, _, model = name.partition("/")
    success, cached = random_of.random() > 0.04, random_of.random() < 0.07
    tokens, output = random_of.randrange(4_000, 60_000), random_of.randrange(100, 2_500)
    read = int(tokens * random_of.choice((0.0, 0.7, 0.85, 0.9))) if provider != "ollama" else 0
    price_in, price_out = _PRICES[name]
    dollars = ((tokens - read * 0.9) * price_in + output * price_out) / 1e6
    is_rated = success and random_of.random() < 0.1
    return Outcome(
        id=f"{random_of.getrandbits(128):032x}",
        started=at,
        purpose="reflect" if task == "summary" else "chat",
        provider=provider,
        model=model,
        agent=agent,
        session=_SESSION[agent],
        task=task,
        success=success,
        error="" if success else "rate_limited",
        cached=cached and success,
        latency=0.0 if cached else random_of.uniform(0.8, 14.0),
        input=tokens if success else None,
        output=output if success else None,
        cache_read=read if success else None,
        cost=0 if cached or not success else int(dollars * 1e12),
        quality=round(random_of.uniform(0.5, 1.0), 2) if is_rated else None,
        quality_by="judge" if is_rated else "heuristic",
    )

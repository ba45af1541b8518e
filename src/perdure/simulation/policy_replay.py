"""Replays every request of a policy through the provider's cache."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence

import msgspec

from perdure.config import HistoryConfig
from perdure.core.errors import BudgetTooSmall, InvalidInput
from perdure.gateway.prices import DOLLAR, Prices
from perdure.simulation.history_policies import POLICIES, Policy
from perdure.simulation.prompt_cache import Charge, Rules, SimulatedCache, rules_for
from perdure.simulation.replay_input import History, ReplaySetting, SimulatedRequest
from perdure.simulation.window_figures import WindowFigures, WindowTally
from perdure.storage.store import Progress

SYSTEM = 8_000  # Tokens of system text and tools that are assumed in front of every request.
LEAST_BUDGET = 500  # No budget is smaller.
_BREATH = 16  # Requests after which others may run.


class PolicyFigures(WindowFigures, frozen=True, kw_only=True):
    """The result of one policy. Tokens are o200k; docs/simulate.md defines each figure."""

    input_tokens: int  # Of all requests, system text and injections included.
    #: The share of them that was read from the cache, and that was written to it.
    cache_read: int
    cache_write: int
    hit_ratio: float
    #: In tokens of plain input; the share of it that was not read from the cache.
    cost: float
    fresh_cost: float
    #: None if the model has no price.
    dollars: float | None
    rewrites: int
    #: At the last request: raw tokens for each token shown for them, and the share of the history
    #: that is shown in any form.
    span: float
    covered: float
    max_tokens: int  # The largest request, without system text.
    #: Requests that did not extend the one before although the policy did not say so.
    prefix_violations: int
    sizes: Sequence[int] = ()  # The size of each request, without system text.


class PolicyComparison(msgspec.Struct, frozen=True, kw_only=True):
    """Policies on the same history."""

    policies: dict[str, PolicyFigures]
    budget: int
    requests: int
    turns: int
    #: Of the whole history, raw.
    tokens: int
    old_uses: int  # Identifiers that calls used again after a while: `known` is a share of these.
    system: int
    injection: int
    prices: str
    model: str


class Bill(msgspec.Struct, frozen=True):
    """How requests are charged."""

    rules: Rules
    prices: Prices
    model: str

    @classmethod
    def of(cls, rules: Rules, model: str | None = None, prices: Prices | None = None) -> Bill:
        """Raises `InvalidInput` if a model is named that has no price."""
        prices = prices or Prices.load()
        if model is not None and prices.find(rules.provider, model) is None:
            raise InvalidInput(
                f"{rules.provider} has no model {model!r} with a known price.",
                hint="Name another, or set its price in gateway.prices of the configuration.",
            )
        return cls(rules, prices, model or rules.model)


async def simulate(
    history: History,
    *,
    budget: int,
    policies: Iterable[str] = tuple(POLICIES),
    bill: Bill | None = None,
    system: int = SYSTEM,
    injection: int = 0,
    shown: HistoryConfig | None = None,
    progress: Progress | None = None,
) -> PolicyComparison:
    """Replay the history under each policy; `shown` is how Perdure is configured to show one, its
    profile and marks above all. Raises `BudgetTooSmall` if the budget is below 500 or
    does not hold the largest prompt, and `InvalidInput` for an unknown policy.
    """
    check_budget(budget)
    largest = max((call.prompt_tokens for call in history.calls), default=0) + injection
    if budget < largest:
        raise BudgetTooSmall(budget, largest)
    uses = await asyncio.to_thread(lambda: history.old_uses)
    setting = ReplaySetting(
        calls=history.calls,
        budget=budget,
        injection=injection,
        old_uses=uses,
        shown=shown or HistoryConfig(),
    )
    bill = bill or Bill.of(rules_for("anthropic"))
    made = {name: policy_named(name)(setting) for name in policies}
    found = dict[str, PolicyFigures]()
    for name, policy in made.items():
        found[name] = await replay(policy, setting, bill, system, _told(progress, name))
    return PolicyComparison(
        policies=found,
        budget=budget,
        requests=len(history.calls),
        turns=history.turns,
        tokens=history.tokens,
        old_uses=sum(map(len, uses)),
        system=system,
        injection=injection,
        prices=bill.rules.name,
        model=bill.model,
    )


def check_budget(budget: int) -> None:
    """Raises `BudgetTooSmall` if no history can be kept in it."""
    if budget < LEAST_BUDGET:
        raise BudgetTooSmall(budget, LEAST_BUDGET, hint=f"Give {LEAST_BUDGET} or more.")


def policy_named(name: str) -> Callable[[ReplaySetting], Policy]:
    """Raises `InvalidInput` if there is no such policy."""
    if name not in POLICIES:
        raise InvalidInput(
            f"There is no policy called {name!r}.", hint=f"Use one of {', '.join(POLICIES)}."
        )
    return POLICIES[name]


async def replay(
    policy: Policy,
    setting: ReplaySetting,
    bill: Bill,
    system: int = SYSTEM,
    progress: Callable[[int, int], None] | None = None,
) -> PolicyFigures:
    """Send every request of the policy, in order, and close it. The same policy and history give
    the same figures. Others may run now and then.
    """
    rules, cache = bill.rules, SimulatedCache(bill.rules, system)
    total, cost, sizes = Charge(0, 0, 0), 0.0, list[int]()
    picodollars: int | None = 0
    rewrites = violations = 0
    windows = WindowTally(setting)
    last = SimulatedRequest([])
    try:
        for number in range(len(setting.calls)):
            last = await policy.request(number)
            sent = cache.send(last.blocks, setting.injection)
            total = sent.charge.plus(total)
            cost += sent.charge.units(rules)
            charged = bill.prices.cost(rules.provider, bill.model, sent.charge.usage(rules))
            if charged is None or picodollars is None:
                picodollars = None
            else:
                picodollars += charged
            windows.add(number, last)
            rewrites += last.rewritten
            violations += not sent.extends and not last.rewritten
            sizes.append(sent.tokens + setting.injection)
            if number % _BREATH == 0:
                if progress is not None:
                    progress(number, len(setting.calls))
                await asyncio.sleep(0)
    finally:
        await policy.close()
    raw = sum(call.tokens for call in setting.calls[:-1])
    return PolicyFigures(
        input_tokens=total.tokens,
        cache_read=total.read,
        cache_write=total.written,
        hit_ratio=round(total.read / total.tokens, 5) if total.tokens else 0.0,
        cost=round(cost, 1),
        fresh_cost=round(cost - total.read * rules.read, 1),
        dollars=None if picodollars is None else round(picodollars / DOLLAR, 6),
        rewrites=rewrites,
        span=round(last.covered / last.history, 3) if last.history else 1.0,
        covered=round(last.covered / raw, 5) if raw else 1.0,
        max_tokens=max(sizes, default=0),
        prefix_violations=violations,
        sizes=sizes,
        **msgspec.structs.asdict(windows.figures()),
    )


def _told(progress: Progress | None, name: str) -> Callable[[int, int], None] | None:
    if progress is None:
        return None
    return lambda done, of: progress(f"simulating {name}", done, of)

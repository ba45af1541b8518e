"""Budgets as values: what may be spent, and what was. The ledger reads and writes them.

A `BudgetPeriod` is stored for each period of a `Budget`: what was spent, and what is reserved
besides. A `Reservation` is a call's claim, with a `BudgetHold` on each budget that covers it.
"""

from __future__ import annotations

import hashlib
from datetime import timedelta
from typing import Annotated, Literal, TypeAlias

import msgspec

from perdure.config import BudgetConfig
from perdure.core import clock
from perdure.core.display import plural
from perdure.core.errors import BudgetReached, InvalidConfig, InvalidKey
from perdure.gateway.calls import CallOptions, indexable
from perdure.gateway.prices import dollars, picodollars
from perdure.storage import record_keys
from perdure.storage.records import Indexed, Key, system_record

Per: TypeAlias = Literal["hour", "day", "month", "ever"]

#: A budget of this agent is one for each agent.
EACH = "*"


class Budget(msgspec.Struct, frozen=True, kw_only=True):
    """What may be spent in a period (UTC). Raises `InvalidConfig` if it limits nothing."""

    name: str
    #: Empty: all of them. An agent of ``*`` means each by itself.
    purpose: str = ""
    agent: str = ""
    per: Per = "day"
    tokens: int | None = None
    #: Picodollars.
    cost: int | None = None

    def __post_init__(self) -> None:
        try:
            record_keys.check(f"{self.name}/x")
        except InvalidKey as exc:
            raise InvalidConfig(f"A budget cannot be named {self.name!r}.", hint=exc.hint) from exc
        if "/" in self.name or len(self.name) > 100:
            raise InvalidConfig(
                f"A budget cannot be named {self.name!r}.", hint="Use a short name without '/'."
            )
        if self.tokens is None and self.cost is None:
            raise InvalidConfig(
                f"The budget {self.name!r} limits nothing.", hint="Give it tokens or dollars."
            )

    @classmethod
    def configured(cls, config: BudgetConfig) -> Budget:
        where = f"gateway.budgets.{config.name}.dollars"
        return cls(
            name=config.name,
            purpose=config.purpose,
            agent=config.agent,
            per=config.per,
            tokens=config.tokens,
            cost=None if config.dollars is None else picodollars(config.dollars, where),
        )

    def covers(self, options: CallOptions, *, at_home: bool = False) -> bool:
        """Whether a call counts on it; local embedding (`at_home`) only on budgets of `embed`."""
        if at_home and self.purpose != "embed":
            return False
        return self.purpose in ("", options.purpose) and self.agent in ("", EACH, options.agent)

    def period(self, now: int) -> tuple[str, int | None]:
        """The name of the period at `now`, and when the next one begins, if ever."""
        if self.per == "ever":
            return self.per, None
        moment = clock.to_datetime(now)
        if self.per == "hour":
            start = moment.replace(minute=0, second=0, microsecond=0)
            return f"{start:%Y-%m-%dT%H}", clock.from_datetime(start + timedelta(hours=1))
        start = moment.replace(hour=0, minute=0, second=0, microsecond=0)
        if self.per == "day":
            return f"{start:%Y-%m-%d}", clock.from_datetime(start + timedelta(days=1))
        following = (start.replace(day=1) + timedelta(days=31)).replace(day=1)
        return f"{start:%Y-%m}", clock.from_datetime(following)


@system_record("budgets")
class BudgetPeriod(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """What was spent on a budget in one of its periods."""

    id: Annotated[str, Key()]  # budget/period, and the agent's hash if each has its own
    #: Whose it is, if each agent has its own.
    agent: Annotated[str, Indexed()] = ""
    #: Settled. Calls that took nothing are not counted.
    calls: int = 0
    tokens: int = 0
    cost: int = 0
    #: Reserved, by calls that go on or whose process died.
    held: int = 0
    held_tokens: int = 0
    held_cost: int = 0


class BudgetStatus(msgspec.Struct, frozen=True, kw_only=True):
    """Limits, and what is spent and reserved of them in this period."""

    budget: Budget
    agent: str
    period: str
    #: Microseconds; None if it never does.
    renews: int | None
    spending: BudgetPeriod

    @property
    def whose(self) -> str:
        """The only agent whose calls count on it; empty: all of them."""
        return self.agent if self.budget.agent == EACH else self.budget.agent

    @property
    def tokens_left(self) -> int | None:
        """None if tokens are not limited."""
        taken = self.spending.tokens + self.spending.held_tokens
        return None if self.budget.tokens is None else max(0, self.budget.tokens - taken)

    @property
    def cost_left(self) -> int | None:
        """Picodollars; None if money is not limited."""
        taken = self.spending.cost + self.spending.held_cost
        return None if self.budget.cost is None else max(0, self.budget.cost - taken)


class BudgetRoom(msgspec.Struct, frozen=True):
    """What may still be reserved; None is no limit. `cost` is in picodollars."""

    tokens: int | None = None
    cost: int | None = None

    def holds(self, wanted: CallEstimate) -> bool:
        """Whether calls fit; if money is limited, their price must be known."""
        return (self.tokens is None or wanted.tokens <= self.tokens) and (
            self.cost is None or (wanted.cost is not None and wanted.cost <= self.cost)
        )


class CallEstimate(msgspec.Struct, frozen=True):
    """What calls may take at most, answers included. `cost` is in picodollars; None if unknown."""

    tokens: int = 0
    cost: int | None = 0

    def __add__(self, other: CallEstimate) -> CallEstimate:
        is_known = self.cost is not None and other.cost is not None
        cost = (self.cost or 0) + (other.cost or 0) if is_known else None
        return CallEstimate(self.tokens + other.tokens, cost)


class BudgetHold(msgspec.Struct, frozen=True):
    """What a reservation holds of one budget."""

    key: str
    agent: str
    budget: Budget
    #: When the period ends. Microseconds; None if it never does.
    renews: int | None

    def empty(self) -> BudgetPeriod:
        return BudgetPeriod(id=self.key, agent=self.agent)


class Reservation(msgspec.Struct):
    """Room in every budget that a call counts on. Made by `Ledger.reserve`."""

    holds: tuple[BudgetHold, ...] = ()
    tokens: int = 0
    cost: int = 0
    #: Tokens of an answer whose length was not asked for.
    assumed: int = 0
    settled: bool = False


def hold_for(budget: Budget, options: CallOptions, now: int) -> BudgetHold:
    period, renews = budget.period(now)
    if budget.agent != EACH:
        return BudgetHold(f"{budget.name}/{period}", "", budget, renews)
    # Names can be long, and hold what no key can.
    name = options.agent.encode("utf-8", "surrogatepass")
    digest = hashlib.blake2b(name, digest_size=16).hexdigest()
    return BudgetHold(f"{budget.name}/{period}/{digest}", indexable(options.agent), budget, renews)


def fits(hold: BudgetHold, spending: BudgetPeriod, wanted: Reservation) -> bool:
    limits = hold.budget
    tokens = spending.tokens + spending.held_tokens + wanted.tokens
    cost = spending.cost + spending.held_cost + wanted.cost
    return (limits.tokens is None or tokens <= limits.tokens) and (
        limits.cost is None or cost <= limits.cost
    )


def reserved(spending: BudgetPeriod, wanted: Reservation) -> BudgetPeriod:
    return msgspec.structs.replace(
        spending,
        held=spending.held + 1,
        held_tokens=spending.held_tokens + wanted.tokens,
        held_cost=spending.held_cost + wanted.cost,
    )


def settled(spending: BudgetPeriod, held: Reservation, tokens: int, cost: int) -> BudgetPeriod:
    # Never below nothing: if the agent was forgotten meanwhile, the record is a new one.
    return msgspec.structs.replace(
        spending,
        calls=spending.calls + (1 if tokens or cost else 0),
        tokens=spending.tokens + tokens,
        cost=spending.cost + cost,
        held=max(0, spending.held - 1),
        held_tokens=max(0, spending.held_tokens - held.tokens),
        held_cost=max(0, spending.held_cost - held.cost),
    )


def reached(hold: BudgetHold, spending: BudgetPeriod, wanted: Reservation) -> BudgetReached:
    budget = hold.budget
    status = BudgetStatus(
        budget=budget, agent=hold.agent, period="", renews=hold.renews, spending=spending
    )
    left = list[str]()
    if (tokens := status.tokens_left) is not None:
        left.append(f"{tokens:,} of {budget.tokens:,} tokens")
    if (cost := status.cost_left) is not None:
        left.append(f"{dollars(cost)} of {dollars(budget.cost or 0)}")
    whose = f" of {hold.agent!r}" if budget.agent == EACH else ""
    needs = f"{wanted.tokens:,} tokens"
    if budget.cost is not None:
        needs += f" and {dollars(wanted.cost)}"
    if hold.renews is None:
        when = "It does not renew: raise it to go on."
    else:
        when = f"It renews at {clock.to_datetime(hold.renews):%Y-%m-%d %H:%M} UTC; or raise it."
    return BudgetReached(
        f"The budget {budget.name!r}{whose} does not allow the call, which may take {needs}:"
        f" {' and '.join(left)} are left{_held(spending)}.",
        hint=_shorter(status, wanted) + when,
    )


def _shorter(status: BudgetStatus, wanted: Reservation) -> str:
    least = wanted.tokens - wanted.assumed
    tokens, cost = status.tokens_left, status.cost_left
    if not wanted.assumed or cost == 0 or (tokens is not None and tokens <= least):
        return ""
    return f"Set max_tokens: without it, an answer of {wanted.assumed:,} tokens was assumed. "


def _held(spending: BudgetPeriod) -> str:
    return f", besides what {plural(spending.held, 'call')} reserved" if spending.held else ""

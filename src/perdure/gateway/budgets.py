"""Budgets, as they are declared. What is spent on them is the ledger's business."""

from __future__ import annotations

from datetime import timedelta
from typing import Literal, TypeAlias

import msgspec

from perdure.config import BudgetConfig
from perdure.core import clock
from perdure.core.errors import InvalidConfig, InvalidKey
from perdure.gateway.calls import Ask
from perdure.gateway.prices import picodollars
from perdure.storage import keys

Per: TypeAlias = Literal["hour", "day", "month", "ever"]

#: A budget of this agent is one for each agent.
EACH = "*"


class Budget(msgspec.Struct, frozen=True, kw_only=True):
    """What may be spent in a time, of UTC.

    Raises `InvalidConfig` if it limits nothing or cannot be named so.
    """

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
            keys.check(f"{self.name}/x")
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
        """A budget as the configuration says it."""
        where = f"gateway.budgets.{config.name}.dollars"
        return cls(
            name=config.name,
            purpose=config.purpose,
            agent=config.agent,
            per=config.per,
            tokens=config.tokens,
            cost=None if config.dollars is None else picodollars(config.dollars, where),
        )

    def covers(self, ask: Ask, *, at_home: bool = False) -> bool:
        """Whether a call counts on it.

        Embedding `at_home`, in this process, costs nothing but time: it counts only on a budget
        that is for embedding.
        """
        if at_home and self.purpose != "embed":
            return False
        return self.purpose in ("", ask.purpose) and self.agent in ("", EACH, ask.agent)

    def period(self, now: int) -> tuple[str, int | None]:
        """The name of the period that a moment lies in, and when the next one begins, if ever."""
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

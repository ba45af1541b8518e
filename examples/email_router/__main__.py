"""An agent that routes emails, and gets cheaper at it: ``make example-email``.

Three providers stand on loopback: `atlas` is good and dear, `birch` nearly as good for a sixth of
the price, `cedar` very cheap and easily misled. The agent knows their prices, and nothing else. On
the first day it works as it was configured, with the best model for everything. From the second day
on it learns which model to ask: from what calls cost and whether they failed, from a judge that
looks at some answers, and from people who look at a few. In the middle the model that it likes best
goes down for a while.

No key, no network, a temporary folder. Every number that it prints was measured while it ran.
"""

from __future__ import annotations

import asyncio
import random
import tempfile
from collections import Counter
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path

import msgspec
from rich.table import Table

from examples.email_router.providers import QUALITIES, Email, Provider, judge, load_emails
from examples.storage_tour import console
from perdure.agents.agent import Agent
from perdure.bank import Bank
from perdure.config import (
    Config,
    GatewayConfig,
    LearningConfig,
    ModelsConfig,
    PriceConfig,
    ProviderConfig,
)
from perdure.core import clock
from perdure.gateway.prices import DOLLAR

DAYS = 8
#: The day on which the favourite goes down, and for which part of its emails.
OUTAGE_DAY, OUTAGE = 4, (0.3, 0.7)
#: The share of routes that people look at.
LOOKED_AT = 0.1
#: A wrong route costs two cents of somebody's time: a dollar is worth fifty of them.
COST_WEIGHT = 50.0


class Day(msgspec.Struct):
    """What became of one day's emails."""

    number: int
    right: int = 0
    cost: int = 0
    #: Emails that were routed while a model was down.
    healed: int = 0
    models: Counter[str] = msgspec.field(default_factory=Counter)

    @property
    def emails(self) -> int:
        return self.models.total()

    @property
    def favourite(self) -> str:
        return self.models.most_common(1)[0][0]

    def __str__(self) -> str:
        return f"{self.right / self.emails:.0%} right, ${self.thousand:.2f} for 1,000 emails"

    @property
    def thousand(self) -> float:
        """Dollars for a thousand emails."""
        return self.cost / DOLLAR / self.emails * 1_000


async def main() -> None:
    emails = load_emails()
    providers = {name: Provider(name, emails) for name in QUALITIES}
    async with AsyncExitStack() as stack:
        for provider in providers.values():
            await stack.enter_async_context(provider.server)
        judged_by = await stack.enter_async_context(judge(emails))
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        servers = {name: each.server.provider_config() for name, each in providers.items()}
        config = settings(servers | {"judge": judged_by.provider_config()})
        console.print(f"[bold]{len(emails)} emails a day, three models, {DAYS} days[/]\n")
        days = list[Day]()
        for number in range(1, DAYS + 1):
            selector = "health" if number == 1 else "learned"
            gateway = msgspec.structs.replace(config.gateway, selector=selector)
            today = msgspec.structs.replace(config, gateway=gateway)
            # Opened anew every morning, a day later: all that the agent knows is in the bank.
            url = f"sqlite:///{folder / 'memory.db'}"
            async with Bank(url, config=today, clock=partial(now, number)) as bank:
                router = Path(__file__).with_name("router.md")
                agent = await bank.agent("email-router", file=router, recall=False)
                days.append(await work(agent, number, emails, providers))
                await bank.settle()
        report(days)


def now(day: int) -> int:
    """The bank's clock: every day is a day, though the example takes seconds."""
    return clock.now() + day * 86_400 * clock.SECOND


def settings(servers: dict[str, ProviderConfig]) -> Config:
    prices = {
        f"{name}/{name}": PriceConfig(input=quality.input, output=quality.output)
        for name, quality in QUALITIES.items()
    }
    return Config(
        gateway=GatewayConfig(
            providers=servers,
            models=ModelsConfig(chat=tuple(prices), judge="judge/judge"),
            prices=prices | {"judge/judge": PriceConfig(input=1.0, output=5.0)},
            retries=0,
        ),
        learning=LearningConfig(cost_weight=COST_WEIGHT, judge_share=0.25, experiments=False),
    )


async def work(
    agent: Agent, number: int, emails: list[Email], providers: dict[str, Provider]
) -> Day:
    """Every email once, in an order of the day, in a conversation of its own."""
    day = Day(number)
    chance = random.Random(number)  # a made-up day, the same in every run
    today = chance.sample(emails, len(emails))
    first, last = (int(share * len(today)) for share in OUTAGE)
    for at, email in enumerate(today):
        is_outage = number == OUTAGE_DAY and first <= at < last
        if is_outage and at == first:
            providers[day.favourite].down = True
            console.print(f"Day {number}: [yellow]{day.favourite} goes down for a while[/]\n")
        elif not is_outage:
            for provider in providers.values():
                provider.down = False
        session = f"day-{number}-mail-{at}"
        reply = await agent.ask(email.text, task="email_routing", session=session)
        is_right = reply.text.strip() == email.route
        day.right += is_right
        day.cost += reply.cost or 0
        day.healed += is_outage
        day.models[reply.message.provider] += 1
        if chance.random() < LOOKED_AT:
            await reply.feedback(float(is_right), "" if is_right else f"It was {email.route}.")
    return day


def report(days: list[Day]) -> None:
    table = Table(box=None, pad_edge=False, header_style="dim")
    for name in ("day", "right", "$ / 1,000", "asked"):
        table.add_column(name, justify="left" if name == "asked" else "right")
    for day in days:
        asked = ", ".join(f"{name} {count}" for name, count in day.models.most_common())
        right = f"{day.right / day.emails:.0%}"
        table.add_row(str(day.number), right, f"{day.thousand:.2f}", asked)
    console.print(table)
    before, after = days[0], days[-1]
    saved = 1 - after.thousand / before.thousand
    console.print(f"\n[bold]Before[/]  {before}, as configured")
    console.print(f"[bold]After[/]   {after}, as learnt: {saved:.0%} cheaper")
    healed = sum(day.healed for day in days)
    console.print(f"[bold]Healed[/]  {healed} emails were routed while a model was down, none lost")


if __name__ == "__main__":
    asyncio.run(main())

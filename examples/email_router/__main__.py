"""An agent that routes emails, and gets better and cheaper at it: ``make example-email``.

Three providers stand on loopback: `atlas` is good and dear, `birch` nearly as good for a sixth of
the price, `cedar` very cheap and easily misled. The agent is told nothing about them but their
prices. People look at some of its routes and say whether they were right; from that, and from what
calls cost and whether they failed, it learns which model to ask. In the middle the model that it
likes best by then goes down for a while.

No key, no network, a temporary folder. Every number that it prints was measured while it ran.
"""

from __future__ import annotations

import asyncio
import random
import tempfile
from collections import Counter
from contextlib import AsyncExitStack
from pathlib import Path

import msgspec
from rich.table import Table

import perdure
from examples.email_router.providers import QUALITIES, Email, Provider, load_emails
from examples.storage_tour import console
from perdure.agents.agent import Agent
from perdure.config import Config, GatewayConfig, ModelsConfig, PriceConfig
from perdure.gateway.prices import DOLLAR

DAYS = 8
#: The day on which the favourite goes down, after this share of its emails, for this share.
OUTAGE_DAY, OUTAGE_FROM, OUTAGE_TO = 5, 0.3, 0.7
#: The share of routes that people look at.
LOOKED_AT = 0.4


class Day(msgspec.Struct):
    """What became of one day's emails."""

    number: int
    right: int = 0
    cost: int = 0
    healed: int = 0
    models: Counter[str] = msgspec.field(default_factory=Counter)

    @property
    def emails(self) -> int:
        return self.models.total()

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
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        console.print(f"[bold]{len(emails)} emails a day, {DAYS} days, three models[/]\n")
        config = settings(providers)
        url = f"sqlite:///{folder / 'memory.db'}"
        days = []
        for number in range(1, DAYS + 1):
            # Opened anew every morning: all that the agent knows is in the bank.
            async with perdure.open(url, config=config) as bank:
                router = Path(__file__).with_name("router.md")
                agent = await bank.agent("email-router", file=router, recall=False)
                days.append(await work(agent, Day(number), emails, providers))
                await bank.settle()
        report(days)


def settings(providers: dict[str, Provider]) -> Config:
    names = tuple(f"{name}/{name}" for name in providers)
    prices = {
        f"{name}/{name}": PriceConfig(input=quality.input, output=quality.output)
        for name, quality in QUALITIES.items()
    }
    return Config(
        gateway=GatewayConfig(
            providers={name: each.server.provider_config() for name, each in providers.items()},
            models=ModelsConfig(chat=names),
            prices=prices,
            retries=0,
        )
    )


async def work(agent: Agent, day: Day, emails: list[Email], providers: dict[str, Provider]) -> Day:
    """One day: every email once, in an order of its own, in a conversation of its own."""
    chance = random.Random(day.number)  # a made-up day, the same in every run
    today = chance.sample(emails, len(emails))
    outage = range(int(len(today) * OUTAGE_FROM), int(len(today) * OUTAGE_TO))
    for at, email in enumerate(today):
        favourite = day.models.most_common(1)[0][0] if day.models else "atlas"
        if day.number == OUTAGE_DAY and at == outage.start:
            providers[favourite].down = True
            console.print(f"  Day {day.number}: [yellow]{favourite} goes down[/]")
        if at == outage.stop:
            for provider in providers.values():
                provider.down = False
        reply = await agent.ask(
            email.text, task="email_routing", session=f"day-{day.number}-mail-{at}"
        )
        right = reply.text.strip() == email.route
        day.right += right
        day.cost += reply.cost or 0
        day.healed += any(provider.down for provider in providers.values())
        day.models[reply.message.provider] += 1
        if chance.random() < LOOKED_AT:
            await reply.feedback(1.0 if right else 0.0, "" if right else f"It was {email.route}.")
    return day


def report(days: list[Day]) -> None:
    table = Table(box=None, pad_edge=False, header_style="dim")
    columns = ("day", "right", "$ per 1,000 emails", "asked", "answered during the outage")
    for name in columns:
        table.add_column(name, justify="right" if name != "asked" else "left")
    for day in days:
        asked = ", ".join(f"{name} {count}" for name, count in day.models.most_common())
        table.add_row(
            str(day.number),
            f"{day.right / day.emails:.0%}",
            f"{day.thousand:.3f}",
            asked,
            str(day.healed or ""),
        )
    console.print(table)
    before, after = days[0], days[-1]
    console.print(
        f"\n[bold]Before[/]  {before.right / before.emails:.0%} right for"
        f" ${before.thousand:.3f} per 1,000 emails"
        f"\n[bold]After[/]   {after.right / after.emails:.0%} right for"
        f" ${after.thousand:.3f}, {1 - after.cost / before.cost:.0%} less"
    )
    healed = sum(day.healed for day in days)
    console.print(f"[bold]Healed[/]  {healed} emails were routed while a model was down, none lost")


asyncio.run(main())

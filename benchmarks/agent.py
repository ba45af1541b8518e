"""What an agent adds to a model call, and how many of them a process holds.

`overhead_ms` is a message to an agent, from `ask` to its reply, over the bare call of the gateway
with the same system text and prompt: the mailbox, the lease, the context of the session (which
grows by a turn with each message), the turn in the log, the outcome, the episode. Both are of one
bank on SQLite, as it comes; the server is `model_server`, which answers at once.
`overhead_cpu_ms` is the same in time of the processor, background work included: it does not depend
on who else is busy.

`agents` are as many as one gigabyte holds: agents that have answered a message each and are idle,
in one process, counted by what each of them adds to it.
"""

from __future__ import annotations

import asyncio
import gc
from functools import partial
from pathlib import Path
from time import process_time

from benchmarks import endurance, model_server, ours
from benchmarks.harness import (
    Block,
    Contestant,
    Report,
    alternate,
    awaited,
    excess,
    millis,
    work_folder,
)
from perdure.agents.agent import Agent
from perdure.bank import Bank
from perdure.core.messages import Message, Text, user
from perdure.gateway.calls import CallOptions, Request

_GIGABYTE = 2**30
_PROMPT = "Say in one sentence where an email about a late parcel goes, and why it goes there."
_SYSTEM = "You route emails to the team that answers them. " * 20


async def run(report: Report, *, quick: bool) -> None:
    rounds, count, held = (2, 3, 20) if quick else (20, 20, 2_000)
    with work_folder() as name, model_server.running(20) as base_url:
        folder = Path(name)
        config = endurance.config(base_url)
        async with ours.open_bank(folder / "held.db", gateway=config) as bank:
            await _hold(report, bank, held)
        async with ours.open_bank(folder / "agent.db", gateway=config) as bank:
            agent = await bank.agent("router", prompt=_SYSTEM)
            contestants: dict[str, Contestant] = {
                "gateway": partial(_called, bank, count),
                "agent": partial(_asked, agent, count),
            }
            tallies = await alternate(contestants, rounds, quick=quick)
            report.figures["overhead_cpu_ms"] = await _cpu(contestants, 2 if quick else 10, count)
    report.ratio("overhead_ms", excess(tallies["agent"], tallies["gateway"], 0.5))
    report.ratio("overhead_p95_ms", excess(tallies["agent"], tallies["gateway"], 0.95))
    report.tallies(tallies)


async def _cpu(contestants: dict[str, Contestant], rounds: int, count: int) -> float:
    """Milliseconds for a message, all threads, above those for a call."""
    taken = dict[str, float]()
    for name, work in contestants.items():
        began = process_time()
        for number in range(rounds):
            await work(1_000 + number)
        taken[name] = process_time() - began
    return millis((taken["agent"] - taken["gateway"]) / rounds / count)


async def _called(bank: Bank, count: int, round: int) -> Block:
    options = CallOptions(agent="router", session="router/bare", task="routing")

    async def call(number: int) -> None:
        said = (Message("system", (Text(_SYSTEM),)), user(f"{_PROMPT} ({round}.{number})"))
        await bank.gateway.complete(Request(messages=said), options)

    return await awaited(call, range(count))


async def _asked(agent: Agent, count: int, round: int) -> Block:
    async def ask(number: int) -> None:
        await agent.ask(f"{_PROMPT} ({round}.{number})", task="routing", session=f"r{round}")

    return await awaited(ask, range(count))


async def _hold(report: Report, bank: Bank, count: int) -> None:
    first = await bank.agent("first", prompt=_SYSTEM)
    await first.ask(_PROMPT)
    await bank.settle()
    before = _memory()
    agents = list[Agent]()
    for number in range(count):
        agents.append(await bank.agent(f"agent-{number}", prompt=_SYSTEM))
        await agents[-1].ask(_PROMPT)
    await bank.settle()
    await asyncio.sleep(1.5)  # leases are given back
    each = max(_memory() - before, 1) / count
    report.figures["agents"] = float(int((_GIGABYTE - before) / each))
    report.figures["kb_per_agent"] = round(each / 1024, 2)
    report.say(
        f"  {count:,} idle agents: {before / 2**20:.0f} MB before, {each / 1024:.1f} KB each"
    )


def _memory() -> int:
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * 4_096

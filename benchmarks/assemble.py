"""A prompt of 100k tokens from histories of 1k, 10k and 100k turns (50M tokens).

Warm is an agent at work: it asks for a context, encodes it for a provider, appends what comes back,
and asks again after each round of tools. What the bank does in the background meanwhile is waited
for off the clock, as it ends long before a model has answered. Requests at which an epoch is made
are timed by themselves: `epoch_share` of them are, and take `epoch_ms`. The first epoch of a
history that never had one looks at all of it: that is `first_epoch_s`.

A budget of 100k tokens is not used up: an epoch leaves room for what comes. So one more agent has a
budget with which it sends about 100k, and `p95_ms_warm_full` is what that takes.

Cold is a new process, from opening the bank to the encoded prompt, imports before that; its wall
time is that of such a process, from its start until it has ended, with whatever it imports.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

from benchmarks import long_project, ours
from benchmarks.harness import Block, Report, alternate, growth, millis, percentile, work_folder
from examples.made_up_project import project_turn
from perdure.bank import Bank
from perdure.context.history_tools import HISTORY_TOOLS
from perdure.core.messages import Message
from perdure.sessions.session import Session

_SYSTEM = "You are the engineer of this project. Be brief, and say what you have checked."
_PROMPT = "What did we decide about the tokens, and where is it written down?"
#: The last two are what a core worked for the first two, whoever else used it.
_COLD = ("p95_ms_cold", "cold_wall_ms", "cold_core_ms", "cold_core_whole_ms")
#: A budget that many times as large is filled with about as much.
_FULL = 2.8


class _Agent:
    """Goes on with a project, turn by turn."""

    def __init__(self, bank: Bank, session: Session, turns: int, count: int) -> None:
        self._bank = bank
        self._session = session
        self._next = turns + 1
        self._count = count
        self._epoch = 0
        self.epochs: list[float] = []
        #: What the core worked for requests without one.
        self.core: list[float] = []
        self.requests = 0
        self.tokens = list[int]()

    async def first(self) -> float:
        """Seconds for the first epoch there is."""
        start = perf_counter()
        self._epoch = (await self._session.context(_PROMPT, keep=True)).shown.epoch
        return perf_counter() - start

    async def block(self, number: int) -> Block:
        if not number:  # does not count
            self.epochs.clear()
            self.core.clear()
            self.tokens.clear()
            self.requests = 0
        samples = list[float]()
        for _ in range(self._count):
            await self._turn(samples)
        return Block(sum(samples), samples)

    async def _turn(self, samples: list[float]) -> None:
        prompt, *steps = _steps(project_turn(self._next))
        self._next += 1
        context = None
        for step in steps:
            asked = prompt if context is None else None
            start, worked = perf_counter(), process_time()
            made = await self._session.context(asked, system=_SYSTEM, tools=HISTORY_TOOLS)
            made.to_messages()
            taken, core = perf_counter() - start, process_time() - worked
            self.requests += 1
            if made.shown.epoch == self._epoch:
                samples.append(taken)
                self.core.append(core)
            else:
                self.epochs.append(taken)
            self._epoch = made.shown.epoch
            self.tokens.append(made.tokens)
            await self._session.append(step, context=made if context is None else None)
            await self._bank.settle()
            context = made


def _steps(messages: Sequence[Message]) -> Iterator[list[Message]]:
    """A turn as it happens: its prompt, then what is appended after each request."""
    said = list[Message]()
    for message in messages:
        if said and message.role == "assistant":
            yield said
            said = []
        said.append(message)
    yield said


async def run(report: Report, *, quick: bool) -> None:
    sizes = (20, 40, 300) if quick else (1_000, 10_000, 100_000)
    rounds, count, processes = (1, 3, 1) if quick else (15, 20, 20)
    budget = 8_000 if quick else long_project.BUDGET
    full = f"{sizes[0]:,} turns, full"
    figures = report.figures
    with work_folder() as name:
        folder = Path(name)
        files = {size: await long_project.copied(size, folder, report) for size in sizes}
        (folder / "full").mkdir()
        fuller = await long_project.copied(sizes[0], folder / "full", report)
        async with AsyncExitStack() as stack:
            agents = dict[str, _Agent]()
            for size, file in files.items():
                bank = await stack.enter_async_context(ours.open_bank(file))
                session = await bank.session(long_project.SESSION, budget=budget)
                agent = agents[f"{size:,} turns"] = _Agent(bank, session, size, count)
                figures[f"first_epoch_s_{size}"] = round(await agent.first(), 3)
            bank = await stack.enter_async_context(ours.open_bank(fuller))
            session = await bank.session(long_project.SESSION, budget=int(budget * _FULL))
            agents[full] = _Agent(bank, session, sizes[0], count)
            await agents[full].first()
            tallies = await alternate(
                {who: agent.block for who, agent in agents.items()}, rounds, quick=quick
            )
        smallest, largest = (tallies[f"{size:,} turns"] for size in (sizes[0], sizes[-1]))
        agent = agents[f"{sizes[-1]:,} turns"]
        figures["p95_ms_warm"] = millis(largest.percentile(0.95))
        figures["p95_ms_warm_full"] = millis(tallies[full].percentile(0.95))
        figures["p95_ms_warm_core"] = millis(percentile(agent.core, 0.95))
        report.ratio("growth", growth(smallest, largest, 0.95))
        if agent.epochs:
            figures["epoch_share"] = round(len(agent.epochs) / agent.requests, 4)
            figures["epoch_ms"] = millis(percentile(agent.epochs, 0.5))
            figures["epoch_ms_p95"] = millis(percentile(agent.epochs, 0.95))
        for size in (sizes[0], sizes[-1]):
            suffix = "" if size == sizes[-1] else f"_{size}"
            for metric, taken in _processes(files[size], processes).items():
                share = 0.95 if "p95" in metric else 0.5
                figures[metric + suffix] = millis(percentile(taken, share))
                spread = [millis(percentile(taken, each)) for each in (0.1, 0.9)]
                report.spread[metric + suffix] = spread
    report.tallies(tallies)
    for who, each in agents.items():
        report.say(
            f"  {who}: {each.requests:,} requests, {len(each.epochs)} of them with an epoch,"
            f" of {sum(each.tokens) / each.requests:,.0f} tokens on average"
        )
    for metric, figure in figures.items():
        if metric.startswith(("first", "epoch", "p95", "cold")):
            report.say(f"  {metric}: {figure}")


def _processes(file: Path, count: int) -> dict[str, list[float]]:
    """Seconds from opening the bank, and of whole processes; they take turns."""
    modules: list[str] = _process(file, ())[1]["modules"]
    found: dict[str, list[float]] = {metric: [] for metric in _COLD}
    for _ in range(count):
        _, told = _process(file, modules)
        wall, whole = _process(file, ())
        taken = (told["seconds"], wall, told["core"], whole["core_whole"])
        for metric, seconds in zip(_COLD, taken, strict=True):
            found[metric].append(seconds)
    return found


def _process(file: Path, modules: Sequence[str]) -> tuple[float, dict[str, Any]]:
    script = Path(__file__).with_name("cold.py")
    command = (sys.executable, str(script), f"sqlite:///{file}", long_project.SESSION, _PROMPT)
    # What is installed is compiled; so is what we run from, after the first process.
    env = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    start = perf_counter()
    done = subprocess.run([*command, *modules], check=True, capture_output=True, text=True, env=env)
    return perf_counter() - start, json.loads(done.stdout)

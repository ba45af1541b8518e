"""A history that never runs out, in less than a minute: ``make run``.

A project of two and a half million tokens is made up; then an agent goes on with it, in a window of
100,000 tokens, request by request. ``python -m examples.tour 2000`` makes it longer.

It needs no server and no key, works in a temporary folder, and leaves nothing behind. Every number
that it prints was measured while it ran.
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
import time
from asyncio.subprocess import PIPE
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import msgspec
from rich.markup import escape
from rich.padding import Padding
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

import perdure
from examples import storage_tour
from examples.made_up_project import fill_project, planted, project_turn
from examples.new_process import NAME, compose, digest
from examples.storage_tour import console, goodbye, show, size
from perdure.bank import Bank
from perdure.cli.charts import BandChart
from perdure.context.context import Context
from perdure.core.levels import LEVELS
from perdure.core.messages import Message
from perdure.sessions.session import Session
from perdure.sessions.session_info import SessionInfo

BUDGET = 100_000
#: Turns that were there, and what one takes on average.
TURNS, TOKENS = 400, 6_000
#: Turns that an agent then works through: until the window is well filled, as it is in front of the
#: next epoch.
LEAST, MOST, FILLED = 15, 40, 65_000


async def tour(folder: Path, turns: int) -> None:
    url = f"sqlite:///{folder / 'memory.db'}"
    console.print(f"[bold]Perdure {perdure.__version__}[/] – a bank at [cyan]{url}[/]\n")
    async with perdure.open(url) as bank:
        session = await bank.session(NAME, strategy="gradient", budget=BUDGET)
        await make_up(bank, session, turns)
        work = await go_on(session, turns)
        await look_back(session, turns, url, work)
    show("Disk", f"{size((folder / 'memory.db').stat().st_size)} for all of it, at four levels")
    console.print("\n[bold]What it stands on[/]\n")
    await storage_tour.in_short(f"sqlite:///{folder / 'other.db'}")


# A project -------------------------------------------------------------------------------------


async def make_up(bank: Bank, session: Session, turns: int) -> None:
    """Months of work, the same in every run; then every round at S and C, every turn at T."""
    start = time.perf_counter()
    with bar() as progress:
        task = progress.add_task("Writing a project's history", total=turns)
        await fill_project(
            session,
            turns,
            tokens_per_turn=TOKENS,
            progress=lambda done: progress.update(task, completed=done),
        )
        written = time.perf_counter() - start
        task = progress.add_task("Making it shorter, three times", total=turns)

        def shortened(_what: str, done: int, total: int) -> None:
            progress.update(task, completed=done, total=total)

        await bank.services.renditions.catch_up(session.record, shortened)
    made = time.perf_counter() - start - written
    info = await told(bank)
    show(
        "History",
        f"{info.tokens:,} tokens in {info.turns:,} turns and {info.rounds:,} rounds,"
        f" written in {written:.1f} s",
    )
    show("Levels", f"each round smoothed and compressed, each turn tiny, in {made:.1f} s: no model")


# An agent goes on with it ----------------------------------------------------------------------


class Work:
    """What an agent's requests came to."""

    def __init__(self) -> None:
        self.requests = self.changed = self.sent = self.again = 0
        self.seconds = list[float]()
        self._before: list[Any] = []
        self._tokens = self._epoch = 0

    def count(self, context: Context, body: dict[str, Any], seconds: float) -> None:
        messages: list[Any] = body["messages"]
        extends = messages[: len(self._before)] == self._before
        rewritten = context.shown.epoch != self._epoch
        self.requests += 1
        self.sent += context.tokens
        self.again += self._tokens if extends else 0
        self.changed += not extends and not rewritten
        self.seconds.append(seconds)
        self._before, self._tokens = messages, context.tokens
        self._epoch = context.shown.epoch


async def go_on(session: Session, turns: int) -> Work:
    """Each round is a request: a prompt or results of tools go in, the model's part comes back."""
    work, done = Work(), 0
    with bar() as progress:
        task = progress.add_task("An agent goes on with it", total=LEAST)
        while done < LEAST or (done < MOST and await tokens_now(session) < FILLED):
            done += 1
            said, *answers = said_now(project_turn(turns + done, tokens_per_turn=TOKENS))
            prompt: Message | None = said
            for answer in rounds(answers):
                start = time.perf_counter()
                context = await compose(session, prompt)
                body = context.to_chat()
                work.count(context, body, time.perf_counter() - start)
                await session.append(answer, context=context)
                prompt = None  # from now on the open turn goes on
            progress.update(task, completed=done, total=max(done, LEAST))
    epochs = await session.epochs()
    reasons = ", ".join(dict.fromkeys(epoch.reason for epoch in epochs))
    show(
        "Work",
        f"{done} turns more, {work.requests} requests: {len(epochs)} epochs ({reasons})"
        " rewrote the prompt",
    )
    show(
        "Cache",
        f"between them, requests that did not begin with the one before, byte for byte:"
        f" {work.changed}; {work.again / work.sent:.1%} of all tokens had been sent already",
    )
    return work


async def tokens_now(session: Session) -> int:
    """What the window would take; looking changes nothing."""
    return (await session.context("…", keep=False)).tokens


def said_now(messages: Iterable[Message]) -> list[Message]:
    return [msgspec.structs.replace(message, time=None) for message in messages]


def rounds(messages: Iterable[Message]) -> list[list[Message]]:
    """What a model said, each time with the results that came of it."""
    found = list[list[Message]]()
    for message in messages:
        if message.role == "assistant":
            found.append([])
        found[-1].append(message)
    return found


# And looks back --------------------------------------------------------------------------------


async def look_back(session: Session, turns: int, url: str, work: Work) -> None:
    number, fact = old_fact(turns)
    ticket = ticket_of(fact)
    prompt = f"What do we know about ticket {ticket}?"
    context = await compose(session, prompt)
    show("Window", f"{context.tokens:,} of {BUDGET:,} tokens for “{prompt}”\n")
    console.print(Padding(BandChart(context.bands, BUDGET), (0, 0, 1, 2)))
    await show_recall(session, prompt, ticket)
    await show_levels(session, f"T-{number}", ticket)
    await show_tools(session, f"T-{number}", fact)
    cold = await in_a_new_process(url, prompt)
    same = "the same bytes" if cold["digest"] == digest(context.to_chat()) else "OTHER BYTES"
    show(
        "Assembly",
        f"{median(work.seconds) * 1e3:.1f} ms in a running process (median; the slowest, with an"
        f" epoch, {max(work.seconds) * 1e3:.0f} ms);"
        f" {cold['ms']:.0f} ms in a new one, {cold['wall_ms']:.0f} ms with its start: {same}",
    )


def old_fact(turns: int) -> tuple[int, str]:
    """A turn of long ago that holds a fact which is said nowhere else."""
    for number in range(max(turns // 3, 20), 0, -1):
        if fact := planted(number):
            return number, fact
    raise AssertionError("one turn in twenty holds a fact")


def ticket_of(fact: str) -> str:
    return fact.rstrip(".").rpartition(" ")[2]


async def show_recall(session: Session, prompt: str, ticket: str) -> None:
    """What stands beside the prompt: found by words and meaning in all that was ever said."""
    found = await session.recall(prompt, limit=3)
    hit = next((each for each in found.hits if ticket in each.text), None)
    assert hit is not None
    show(
        "Recall",
        f"beside the prompt stands {hit.turn}, found in {found.took_ms:.0f} ms ({hit.why}):"
        f" {escape(around(' '.join(hit.text.split()), ticket))}",
    )


async def show_levels(session: Session, id: str, ticket: str) -> None:
    """The oldest turns stand in the window as a few words: by its id, each comes back."""
    whole = (await session.turn(id, level="R")).tokens
    for level in LEVELS:
        found = await session.turn(id, level=level)
        words = " ".join(found.text.split())
        names = "names it" if ticket in words else "does not name it"
        show(
            f"{id}-{level}",
            f"{found.tokens:,} tokens, {found.tokens / whole:.0%}, {names}:"
            f" {escape(around(words, ticket))}",
        )


def around(words: str, ticket: str, room: int = 150) -> str:
    """What is said of a ticket; else how the words begin."""
    at = max(words.find(ticket) - room * 2 // 3, 0)
    piece = words[at : at + room]
    return f"{'…' if at else ''}{piece}{'…' if len(words) > at + room else ''}"


async def show_tools(session: Session, id: str, fact: str) -> None:
    """What a model calls, and what it is told."""
    query = f"ticket {ticket_of(fact)}"
    start = time.perf_counter()
    found = await session.run_tool("history_search", {"query": query, "limit": 5})
    seconds = time.perf_counter() - start
    line = next((each for each in found.splitlines() if each.startswith(f"{id}.")), "nothing")
    show(
        "Search",
        f'a model calls history_search({{"query": "{query}"}}) and is told, after'
        f" {seconds:.2f} s: {escape(around(line, query))}",
    )
    turn = await session.run_tool("history_get_turn", {"id": id, "level": "R"})
    assert fact in " ".join(turn.split())
    show("Fetch", f'history_get_turn({{"id": "{id}", "level": "R"}}) brings it back whole')


async def in_a_new_process(url: str, prompt: str) -> dict[str, Any]:
    start = time.perf_counter()
    other = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "examples.new_process", url, prompt), stdout=PIPE
    )
    answer, _ = await other.communicate()
    return {"wall_ms": (time.perf_counter() - start) * 1e3, **json.loads(answer)}


# -----------------------------------------------------------------------------------------------


async def told(bank: Bank) -> SessionInfo:
    (info,) = [info for info in await bank.sessions() if info.name == NAME]
    return info


def bar() -> Progress:
    return Progress(
        TextColumn("{task.description:<30}"),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f} %"),
        TimeElapsedColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )


def main(args: Sequence[str]) -> None:
    start = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="perdure-tour-") as folder:
        asyncio.run(tour(Path(folder), int(args[0]) if args else TURNS))
    goodbye(start, "examples/tour.py")


if __name__ == "__main__":
    main(sys.argv[1:])

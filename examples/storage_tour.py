"""What lies below the history, in a few seconds: ``python -m examples.storage_tour``.

Turns, models, records, events, a crash, artifacts. It needs no server and no key, works in a
temporary folder, and leaves nothing behind. Every number that it prints was measured while it ran.
`examples.tour` ends with the shortest of it.
"""

from __future__ import annotations

import asyncio
import os
import random
import string
import sys
import tempfile
import time
from asyncio.subprocess import PIPE
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import msgspec
from rich.console import Console
from rich.markup import escape
from rich.progress import track

import perdure
from perdure.bank import Bank
from perdure.config import GatewayConfig, ModelsConfig, PriceConfig
from perdure.gateway.prices import dollars
from perdure.storage.subscriptions import EventReceived
from perdure.testing import ScriptedFault, ScriptedModel

NOTES = 3_000
console = Console(highlight=False)


# A record type is declared once. The markers say what the bank has to know: the key, what can be
# queried, what is worth compressing.
@perdure.record("notes")
class Note(msgspec.Struct, frozen=True):
    """Something that an agent wants to remember."""

    id: Annotated[str, perdure.Key()]
    topic: Annotated[str, perdure.Indexed()]
    tokens: Annotated[int, perdure.Indexed()]
    text: Annotated[str, perdure.Compressed()]


@perdure.record("agents")
class Agent(msgspec.Struct, frozen=True):
    """Who takes the notes."""

    name: Annotated[str, perdure.Key()]
    decisions: int = 0


async def tour(folder: Path) -> None:
    url = f"sqlite:///{folder / 'memory.db'}"
    console.print(f"[bold]Perdure {perdure.__version__}[/] – a bank at [cyan]{url}[/]\n")
    async with perdure.open(url) as bank:
        await converse(bank)
        await ask(bank)
        await write(bank)
        await read(bank)
        await decide(bank)
        await survive(bank, url)
        await keep_artifact(bank)
        await verify(bank)
        text = await length_of_all_text(bank)
    # Now that it is closed, all of it is in one file: records, indexes, events.
    disk = (folder / "memory.db").stat().st_size
    show("Disk", f"{size(disk)} for {size(text)} of text")


async def in_short(url: str) -> None:
    """The part that `examples.tour` shows."""
    async with perdure.open(url) as bank:
        await converse(bank)
        await ask(bank)
        await survive(bank, url)
        await verify(bank)


async def converse(bank: Bank) -> None:
    """Turns are numbered, chained and kept; a fork shares them; an answer survives its process."""
    session = await bank.session("planner/auth")
    token = "ghp_" + "".join(random.choices(string.ascii_letters + string.digits, k=36))
    listing = "\n".join(f"src/auth/part_{number}.py" for number in range(400))
    call = {"name": "bash", "arguments": '{"command": "ls src/auth"}'}
    await session.append(
        [
            {"role": "user", "content": f"Where is the login? My token is {token}"},
            {
                "role": "assistant",
                "tool_calls": [{"id": "1", "type": "function", "function": call}],
            },
            {"role": "tool", "tool_call_id": "1", "content": listing},
            {"role": "assistant", "content": "In part_7.py."},
        ]
    )
    await session.append("Explain it.")
    async with session.answer() as answer:  # a crash here leaves what arrived, marked as partial
        for word in ("It checks ", "the password ", "and sets ", "a cookie."):
            await answer.text(word)
    await bank.settle()  # tokens are counted a moment later
    turn = await session.turn("T-1")
    show("Turn", f"{turn.id} has {len(turn.rounds)} rounds and {turn.tokens:,} tokens")
    show("Secret", f"masked before it was written: {escape(turn.prompt)}")
    short = (await session.turn("T-1.1", prune=True)).messages[-1].results[0]
    show("Prune", f"{len(listing):,} characters, for readers in a hurry: {escape(short.text)}")
    coder = await session.fork("coder/auth", at="T-1")
    await coder.append("Rewrite part_7.py.")
    lines = [", ".join(turn.id for turn in await each.turns()) for each in (session, coder)]
    show("Fork", f"planner/auth has {lines[0]}; coder/auth has {lines[1]}, its T-1 is the same")


async def ask(bank: Bank) -> None:
    """Two models, the first in trouble. Both are scripted: real servers, without a key."""
    async with (
        ScriptedModel(ScriptedFault(status=503)) as down,
        ScriptedModel("It sets a cookie.") as up,
    ):
        config = GatewayConfig(
            providers={"first": down.provider_config(), "second": up.provider_config()},
            models=ModelsConfig(chat=("first/large", "second/small")),
            prices={"second/small": PriceConfig(input=1.25, output=10.0)},
        )
        gateway = perdure.Gateway(bank.store, config)
        reply = await gateway.complete("What does the login do?", perdure.CallOptions(cache=True))
        again = await gateway.complete("What does the login do?", perdure.CallOptions(cache=True))
        await gateway.close()
    assert reply.cost is not None
    show(
        "Model",
        f"first/large failed {len(down.requests)} times, {reply.provider}/{reply.model} said"
        f" “{reply.text}” for {dollars(reply.cost)}; asked again, the cache did",
    )
    assert again.cached


async def write(bank: Bank) -> None:
    """Every `put` that returned survives the death of this process."""
    notes = bank.collection(Note)
    generated = list(generate("planner", NOTES))
    start = time.perf_counter()
    for note in track(
        generated, "Writing", console=console, transient=True, disable=not console.is_terminal
    ):
        await notes.put(note)
    seconds = time.perf_counter() - start
    show(
        "Write",
        f"{NOTES:,} notes one after another in {seconds:.1f} s,"
        f" {seconds / NOTES * 1e6:.0f} µs each until it is safe from a crash",
    )


async def read(bank: Bank) -> None:
    """What comes back is a `Note`, for the type checker too. Queries run in the database."""
    notes = bank.collection(Note)
    note = await notes.get("planner/01234")
    assert note is not None
    start = time.perf_counter()
    for number in range(0, NOTES, 10):
        await notes.get(f"planner/{number:05}")
    micros = (time.perf_counter() - start) / (NOTES / 10) * 1e6
    show("Read", f"{note.id} says “{note.text[:40]}…”; a read by key takes {micros:.0f} µs")

    longest = await notes.query().where("topic", "=", "auth").order_by("-tokens").limit(2).values()
    found = " and ".join(f"{note.id} ({note.tokens} tokens)" for note in longest)
    show("Query", f"the longest two about auth are {found}")

    figures = await notes.query().group_by("topic").aggregate(count="count", tokens="sum tokens")
    summary = ", ".join(f"{row['topic']} {row['tokens']:,}" for row in figures)
    show("Aggregate", f"tokens by topic: {summary}")


async def decide(bank: Bank) -> None:
    """Two records and an event are written together, or not at all."""
    received: list[EventReceived] = []

    async def listen(event: EventReceived) -> None:
        received.append(event)

    await bank.subscribe("tour", listen, ["decision.*"])
    async with bank.transaction() as transaction:
        agents, notes = transaction.collection(Agent), transaction.collection(Note)
        planner = await agents.get("planner") or Agent("planner")
        await agents.put(msgspec.structs.replace(planner, decisions=planner.decisions + 1))
        await notes.put(Note("planner/decision", "auth", 5, "Tokens live for an hour."))
        transaction.emit("decision.made", {"about": "auth"}, key="planner")
    await bank.settle()

    (event,) = received
    show("Transaction", f"two records and an event: a subscriber got {event.topic} {event.payload}")


async def survive(bank: Bank, url: str) -> None:
    """Another process writes to the same bank, and is killed in the middle of it."""
    writer = await asyncio.create_subprocess_exec(
        sys.executable, __file__, "write", url, stdout=PIPE
    )
    assert writer.stdout is not None
    acknowledged = [await writer.stdout.readline() for _ in range(500)]
    writer.kill()
    acknowledged += (await writer.stdout.read()).splitlines(keepends=True)
    await writer.wait()

    # The last line may have been cut off by the kill.
    keys = [line.decode().strip() for line in acknowledged if line.endswith(b"\n")]
    lost = (await bank.collection(Note).get_many(keys)).count(None)
    show("Crash", f"kill -9 of a process that wrote {len(keys):,} notes: {lost} of them lost")
    assert not lost


async def write_until_killed(url: str) -> None:
    """The other process: prints the key of each note once the bank has acknowledged it."""
    async with perdure.open(url) as bank:
        for note in generate("coder", 1_000_000):
            await bank.collection(Note).put(note)
            print(note.id, flush=True)


async def keep_artifact(bank: Bank) -> None:
    """Large content is kept once, under the hash of what it is."""
    log = b"GET /login 200\n" * 100_000
    artifact = await bank.artifacts.put(log)
    again = await bank.artifacts.put(log)
    assert await bank.artifacts.read(artifact) == log
    assert again == artifact
    show("Artifact", f"{size(artifact.size)} put twice, kept once, as {artifact.hash[:19]}…")


async def verify(bank: Bank) -> None:
    """Every record carries a checksum, and every artifact is its own."""
    start = time.perf_counter()
    problems = [problem async for problem in bank.verify()]
    seconds = time.perf_counter() - start
    count = await bank.collection(Note).query().count()
    found = f"{len(problems)} problems" if problems else "all sound"
    show("Verify", f"{count:,} notes and all the rest in {seconds:.2f} s: {found}")


async def length_of_all_text(bank: Bank) -> int:
    """A collection is read in pages, by key; a cursor leads from one to the next."""
    total, cursor = 0, None
    while True:
        page = await bank.collection(Note).list(limit=1_000, after=cursor)
        total += sum(len(note.text.encode()) for note in page.values)
        cursor = page.next
        if cursor is None:
            return total


def generate(agent: str, count: int) -> Iterator[Note]:
    """Notes that look a little like those of a coding agent; the same in every run."""
    dice, vocabulary = random.Random(agent), VOCABULARY.split()
    for number in range(count):
        topic = dice.choice(TOPICS)
        words = dice.choices(vocabulary, k=dice.randint(20, 160))
        text = f"On {topic}: {' '.join(words)} in src/{topic}/{dice.choice(vocabulary)}.py"
        yield Note(f"{agent}/{number:05}", topic, len(words), text)


TOPICS = ("auth", "billing", "search", "storage")
VOCABULARY = """
    the token of a session is read again before each request and the user sees no error because
    we decided to keep both columns until the migration has run while tests fail on line 42 with
    a timeout when two workers take the same row so retry with backoff then log what was skipped
    refresh cache index query schema deploy revert rename branch merge cookie header parser
"""


def show(step: str, what: str) -> None:
    console.print(f"[bold green]{step:<12}[/] {what}", soft_wrap=True)


def size(count: int) -> str:
    return f"{count / 1e6:.1f} MB"


def goodbye(start: float, code: str) -> None:
    command = os.path.relpath(Path(sys.executable).with_name("perdure"))
    console.print(
        f"\nThat took {time.perf_counter() - start:.1f} s. The code is in {code};"
        f" the command is [cyan]{escape(command)} --help[/].",
        soft_wrap=True,
    )


def main() -> None:
    if sys.argv[1:2] == ["write"]:
        asyncio.run(write_until_killed(sys.argv[2]))
        return
    start = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="perdure-tour-") as folder:
        asyncio.run(tour(Path(folder)))
    goodbye(start, "examples/storage_tour.py")


if __name__ == "__main__":
    main()

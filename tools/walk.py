"""Traces one call through the code: its functions, its modules, how often the store is asked.

    python tools/walk.py [append|context|recall|put …] [--json] [--show]

For the second `append`, `context`, `recall` or `put` of a process on a bank of 30 turns, after
another process appended to it, so that nothing is answered from a cache of results. `…_full` is a
bank with memories, reference layers, shares and a board; `…_wide` one with 60 sessions whose turns
are long, all of which are about what is asked.

`functions` counts named functions (no comprehensions, no lambdas), `module_switches` calls from one
module into another, `storage_calls` calls of the backend and of the search index. `--show` lists
the functions in the order of their first call.

`stall_ms` is how long the event loop stood still at most, in milliseconds, during the first such
call of a new process: the least of three. A first count of tokens alone takes 60, in one go.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import logging
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from types import FrameType
from typing import Annotated, Any

import msgspec

import perdure
from perdure.search.engine import SearchEngine, engine_of
from perdure.storage.adapter import Adapter

WALKS = ("append", "context", "recall", "put")
SRC = str(Path(perdure.__file__).parent)
_inside = ContextVar("_inside", default=False)

TOPICS = (
    ("Which OAuth flow do we use?", "Authorization code, with PKCE; the device flow for the CLI."),
    ("The token refresh fails at night.", "The clock of worker-3 is 90 s late; NTP was off."),
    ("Rename the table of invoices.", "Done in migration 0042: invoices is billing_documents now."),
    ("How long are logs kept?", "30 days, as the contract with Meyer & Co. says."),
    ("Add a test for empty carts.", "tests/test_cart.py has test_empty_cart_costs_nothing."),
)


@perdure.record("walk_notes")
class Note(msgspec.Struct, frozen=True):
    id: Annotated[str, perdure.Key()]
    text: str


class Trace:
    """What one call ran."""

    def __init__(self) -> None:
        self.functions: dict[str, None] = {}
        self.modules: dict[str, None] = {}
        self.switches = 0
        self.calls: list[str] = []
        self.stall = 0
        self._last = ""
        self._others = asyncio.all_tasks() - {asyncio.current_task()}

    def note(self, frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if event != "call" or not code.co_filename.startswith(SRC) or code.co_name[0] == "<":
            return
        if asyncio.current_task() in self._others:
            return  # background work that was there before
        module = code.co_filename[len(SRC) + 1 : -3]
        self.functions.setdefault(f"{module}:{code.co_qualname}")
        self.modules.setdefault(module)
        self.switches += module != self._last
        self._last = module

    @property
    def figures(self) -> dict[str, int]:
        return {
            "functions": len(self.functions),
            "modules": len(self.modules),
            "module_switches": self.switches,
            "storage_calls": len(self.calls),
            "stall_ms": self.stall,
        }


def count_calls(target: object, calls: list[str]) -> None:
    """Have public coroutines of a backend noted; those that they call themselves are not."""
    interface = Adapter if isinstance(target, Adapter) else SearchEngine
    for name, _ in inspect.getmembers(interface, inspect.iscoroutinefunction):
        if not name.startswith("_") and name not in {"generation", "identity", "close"}:
            setattr(target, name, _counted(name, getattr(target, name), calls))


def _counted(
    name: str, method: Callable[..., Awaitable[Any]], calls: list[str]
) -> Callable[..., Awaitable[Any]]:
    async def counted(*args: Any, **kwargs: Any) -> Any:
        if _inside.get():
            return await method(*args, **kwargs)
        calls.append(f"{name} {_collections(args)}")
        token = _inside.set(True)
        try:
            return await method(*args, **kwargs)
        finally:
            _inside.reset(token)

    return counted


def _collections(args: tuple[Any, ...]) -> str:
    for arg in args:
        if isinstance(arg, str):
            return arg
        if isinstance(getattr(arg, "collection", None), str):
            return str(arg.collection)
        if hasattr(arg, "writes"):
            return ", ".join(dict.fromkeys(write.collection for write in arg.writes))
    return ""


@contextmanager
def traced(trace: Trace, calls: list[str]) -> Iterator[None]:
    sys.setprofile(trace.note)
    try:
        yield
    finally:
        sys.setprofile(None)
        trace.calls = list(calls)


async def say(session: perdure.Session, count: int) -> None:
    for number in range(count):
        prompt, reply = TOPICS[number % len(TOPICS)]
        await session.append(
            [
                {"role": "user", "content": f"{prompt} ({number})"},
                {"role": "assistant", "content": reply},
            ]
        )


async def fill(bank: perdure.Bank) -> None:
    """Memories, a reference layer, a share, a board."""
    await bank.memories.add("walker", "Refresh tokens are rotated on every use.", kind="lesson")
    words = "The device flow asks for a code; tokens are refreshed an hour later. " * 60
    await bank.references.add(f"---\nname: oauth\ntags: [oauth]\n---\n{words}")
    other = await bank.session("helper/notes")
    await say(other, 2)
    await other.share("walker")
    session = await bank.session("walker/main")
    await session.run_tool("board_post", {"text": "Deploys wait for the token fix.", "turns": 5})


async def widen(bank: perdure.Bank) -> None:
    """Many sessions that have something to say, at length, about what will be asked."""
    for number in range(60):
        log = "".join(f"{line}: refresh of token {line * number} failed\n" for line in range(80))
        session = await bank.session(f"walker/day-{number}")
        await session.append(
            [
                {"role": "user", "content": f"The token refresh of worker-{number} fails. {log}"},
                {"role": "assistant", "content": "Its clock was late; see deploy/ntp.conf."},
            ]
        )


async def step(
    name: str, bank: perdure.Bank, session: perdure.Session, question: str = "logs kept"
) -> None:
    match name:
        case "append":
            await say(session, 1)
        case "context":
            await session.context(question, budget=20_000)
        case "recall":
            await session.recall(question, limit=5)
        case "put":
            await bank.collection(Note).put(Note("one", "two"))


async def walk(name: str, url: str) -> Trace:
    async with perdure.open(url) as bank:
        session = await bank.session("walker/main")
        await step(name, bank, session)  # what is made once in a process is made
        await bank.settle()
        await asyncio.to_thread(
            subprocess.run, [sys.executable, __file__, "--another", url], check=True
        )
        await asyncio.sleep(0.5)
        await bank.settle()
        calls = list[str]()
        count_calls(bank.store.adapter, calls)
        count_calls(engine_of(bank.store.adapter), calls)
        trace = Trace()
        with traced(trace, calls):
            await step(name, bank, session, "Why does the token refresh fail?")
        return trace


async def first(name: str, url: str) -> float:
    """The longest time for which the event loop stood still in the first call; seconds."""
    gaps = [0.0]

    async def watch() -> None:
        while True:
            before = time.perf_counter()
            await asyncio.sleep(0.005)
            gaps.append(time.perf_counter() - before - 0.005)

    async with perdure.open(url) as bank:
        session = await bank.session("walker/main")
        await asyncio.sleep(0.2)  # what opening began has ended
        watching = asyncio.create_task(watch())
        await asyncio.sleep(0.02)
        gaps.clear()
        await step(name, bank, session)
        await asyncio.sleep(0.02)
        watching.cancel()
    return max(gaps)


def stall_of(name: str, folder: str) -> int:
    found = list[int]()
    for number in range(3):
        copied = shutil.copytree(folder, f"{folder}-{number}")
        command = [sys.executable, __file__, "--first", name, f"sqlite:///{copied}/walk.db"]
        made = subprocess.run(command, capture_output=True, text=True, check=True)
        found.append(round(1_000 * float(made.stdout)))
        shutil.rmtree(copied)
    return min(found)


async def another(url: str) -> None:
    """What another process does: it appends to another session of the agent."""
    async with perdure.open(url) as bank:
        await say(await bank.session("walker/other"), 1)


async def make(url: str, kind: str) -> None:
    async with perdure.open(url) as bank:
        await say(await bank.session("walker/main"), 30)
        if kind == "_full":
            await fill(bank)
        elif kind == "_wide":
            await widen(bank)
        await bank.settle()


def main() -> None:
    logging.getLogger("perdure").setLevel(logging.ERROR)
    if "--another" in sys.argv:
        asyncio.run(another(sys.argv[-1]))
        return
    if "--first" in sys.argv:
        print(asyncio.run(first(*sys.argv[-2:])))
        return
    # A busy machine skips steps, and calls with them.
    for limit in ("DEADLINE", "KEYWORD", "VECTORS"):
        os.environ[f"PERDURE_RECALL_{limit}"] = "60"
    figures = dict[str, dict[str, int]]()
    for kind in ("", "_full", "_wide"):
        for name in [each for each in WALKS if each in sys.argv] or WALKS:
            if kind and name in {"append", "put"}:
                continue
            with tempfile.TemporaryDirectory() as folder:
                url = f"sqlite:///{folder}/walk.db"
                asyncio.run(make(url, kind))
                stall = stall_of(name, folder)
                trace = asyncio.run(walk(name, url))
            title, trace.stall = f"{name}{kind}", stall
            figures[title] = trace.figures
            if "--show" in sys.argv:
                print(f"{title}: {', '.join(trace.calls)}", *trace.functions, "", sep="\n  ")
            if "--json" not in sys.argv:
                print(title, ", ".join(f"{n} {key}" for key, n in trace.figures.items()), sep=": ")
    if "--json" in sys.argv:
        print(json.dumps(figures))


if __name__ == "__main__":
    main()

"""The peer's end of the line: runs in the peers' environment and knows nothing of Perdure.

Reads one JSON object a line from stdin, does what its `operation` says, answers with one line.
"""

from __future__ import annotations

import asyncio
import importlib
import importlib.metadata
import json
import sqlite3
import sys
from pathlib import Path
from time import perf_counter
from typing import Any, Protocol, Self

from benchmarks import conversations
from benchmarks.conversations import Chat


class PeerSession(Protocol):
    """One conversation in a database file, as the peer offers it. Each module here has one."""

    #: Whose versions are told in the results.
    packages: tuple[str, ...]

    @classmethod
    async def open(cls, file: str, name: str) -> Self:
        """The session of this name, made if absent."""

    @staticmethod
    def native(messages: list[Chat]) -> list[Any]:
        """The messages in the peer's own form. Not on the clock."""

    async def fill(self, batches: list[list[Any]]) -> None:
        """Put everything there by the fastest means. Not on the clock."""

    async def add(self, items: list[Any]) -> None:
        """Add the messages of a turn, or of a part of one."""

    async def newest(self, count: int) -> list[Any]:
        """The newest messages, in the order in which they were added."""

    async def clear(self) -> None:
        """Remove everything."""

    async def close(self) -> None:
        """Let go of the file."""


class Worker:
    """Sessions by database file and name; kept open, as an application would."""

    def __init__(self, module: str) -> None:
        module, _, name = module.partition(":")
        found = importlib.import_module(f"benchmarks.peers.{module}")
        self._kind: type[PeerSession] = getattr(found, name or "Session")
        self._sessions: dict[tuple[str, str], PeerSession] = {}

    async def session(self, bank: str, name: str) -> PeerSession:
        place = (bank, name)
        if place not in self._sessions:
            self._sessions[place] = await self._kind.open(bank, name)
        return self._sessions[place]

    async def facts(self) -> dict[str, str]:
        versions = {name: importlib.metadata.version(name) for name in self._kind.packages}
        return versions | {
            "peers' Python": sys.version.split()[0],
            "peers' SQLite": sqlite3.sqlite_version,
        }

    async def fill(self, bank: str, session: str, made: dict[str, Any]) -> None:
        await (await self.session(bank, session)).fill(self._batches(made))

    async def append(
        self, bank: str, session: str, made: dict[str, Any], *, apart: bool = False
    ) -> dict[str, Any]:
        """Add turn by turn; `apart`, each turn message by message."""
        add, batches = (await self.session(bank, session)).add, self._batches(made)
        samples = []
        start = last = perf_counter()
        for batch in batches:
            if apart:
                for item in batch:
                    await add([item])
            else:
                await add(batch)
            now = perf_counter()
            samples.append(now - last)
            last = now
        return {"seconds": last - start, "samples": samples}

    async def read(self, bank: str, sessions: list[str], limit: int) -> dict[str, Any]:
        """The newest messages of these sessions, one after another."""
        opened = [await self.session(bank, name) for name in sessions]
        samples = []
        start = last = perf_counter()
        for session in opened:
            items = await session.newest(limit)
            now = perf_counter()
            samples.append(now - last)
            last = now
            assert len(items) == limit
        return {"seconds": last - start, "samples": samples}

    async def clear(self, bank: str, session: str) -> None:
        await (await self.session(bank, session)).clear()

    async def close(self, bank: str) -> int:
        """Close a database; the bytes it takes."""
        for place in [place for place in self._sessions if place[0] == bank]:
            await self._sessions.pop(place).close()
        path = Path(bank)
        return sum(file.stat().st_size for file in path.parent.glob(f"{path.name}*"))

    def _batches(self, made: dict[str, Any]) -> list[list[Any]]:
        """What a function of `conversations` makes, in the peer's own form."""
        details = dict(made)
        batches = getattr(conversations, details.pop("kind"))(**details)
        return [self._kind.native(batch) for batch in batches]


def serve(worker: object) -> None:
    """Answer lines until there are no more: each names a method of the worker."""
    answers = sys.stdout
    sys.stdout = sys.stderr  # what a peer prints is no answer
    with asyncio.Runner() as runner:  # one loop for all, so that threads and connections stay
        for line in sys.stdin:
            details = json.loads(line)
            operation = getattr(worker, details.pop("operation"))
            print(json.dumps(runner.run(operation(**details))), file=answers, flush=True)


if __name__ == "__main__":
    serve(Worker(sys.argv[1]))

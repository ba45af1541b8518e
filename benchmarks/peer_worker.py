"""The peer's end of the line: runs in the peers' environment and knows nothing of Perdure.

Reads one JSON object a line from stdin, does what its `operation` says, answers with one line.
"""

from __future__ import annotations

import asyncio
import importlib.metadata
import json
import sqlite3
import sys
from pathlib import Path
from time import perf_counter
from typing import Any

from agents import SQLiteSession

from benchmarks.texts import Texts

_FILL = 500


class Worker:
    """Sessions in database files, by path and name; kept open, as an application would."""

    def __init__(self) -> None:
        self._sessions: dict[tuple[str, str], SQLiteSession] = {}

    def session(self, bank: str, name: str) -> SQLiteSession:
        place = (bank, name)
        if place not in self._sessions:
            self._sessions[place] = SQLiteSession(name, bank)
        return self._sessions[place]

    async def facts(self) -> dict[str, str]:
        return {
            "openai-agents": importlib.metadata.version("openai-agents"),
            "openai-agents' Python": sys.version.split()[0],
            "openai-agents' SQLite": sqlite3.sqlite_version,
        }

    async def fill(self, bank: str, session: str, count: int, size: int, seed: int) -> None:
        items = _items(count, size, seed)
        for start in range(0, count, _FILL):
            await self.session(bank, session).add_items(items[start : start + _FILL])

    async def append(
        self, bank: str, session: str, count: int, size: int, seed: int
    ) -> dict[str, Any]:
        add, items = self.session(bank, session).add_items, _items(count, size, seed)
        samples = []
        start = last = perf_counter()
        for item in items:
            await add([item])
            now = perf_counter()
            samples.append(now - last)
            last = now
        return {"seconds": last - start, "samples": samples}

    async def read(self, bank: str, sessions: list[str], limit: int) -> dict[str, Any]:
        """The newest items of these sessions, one after another."""
        opened = [self.session(bank, name) for name in sessions]
        samples = []
        start = last = perf_counter()
        for session in opened:
            items = await session.get_items(limit=limit)
            now = perf_counter()
            samples.append(now - last)
            last = now
            assert len(items) == limit
        return {"seconds": last - start, "samples": samples}

    async def clear(self, bank: str, session: str) -> None:
        await self.session(bank, session).clear_session()

    async def close(self, bank: str) -> int:
        """Close a database; the bytes it takes."""
        for place in [place for place in self._sessions if place[0] == bank]:
            self._sessions.pop(place).close()
        path = Path(bank)
        return sum(file.stat().st_size for file in path.parent.glob(f"{path.name}*"))


def _items(count: int, size: int, seed: int) -> list[Any]:
    return [{"role": "user", "content": text} for text in Texts(seed).messages(count, size)]


def main() -> None:
    worker = Worker()
    with asyncio.Runner() as runner:  # one loop for all, so that threads and connections stay
        for line in sys.stdin:
            details = json.loads(line)
            operation = getattr(worker, details.pop("operation"))
            print(json.dumps(runner.run(operation(**details))), flush=True)


if __name__ == "__main__":
    main()

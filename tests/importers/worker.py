"""Imports files in a process of its own: python worker.py BANK FORMAT PATH. Prints what it did."""

from __future__ import annotations

import asyncio
import json
import resource
import sys

import perdure
from perdure.importers import import_files


async def main() -> None:
    url, name, path = sys.argv[1:]
    async with perdure.open(url) as bank:
        print("ready", flush=True)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        imported = await import_files(bank, name, [path])
        after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    messages = sum(session.messages for session in imported.sessions)
    print(json.dumps({"messages": messages, "grown": (after - before) * 1024}), flush=True)


if __name__ == "__main__":
    asyncio.run(main())

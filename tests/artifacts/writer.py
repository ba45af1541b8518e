"""Puts artifacts until it is killed, and tells which ones were acknowledged.

python writer.py FOLDER_OF_THE_BANK ROOT
"""

from __future__ import annotations

import asyncio
import os
import random
import sys
from collections.abc import AsyncIterator
from pathlib import Path

from perdure.artifacts import ArtifactStore
from perdure.storage.backends.sqlite import SQLiteAdapter
from perdure.storage.store import Store

NOISE = os.urandom(6_000_000)


async def slowly(content: bytes) -> AsyncIterator[bytes]:
    for start in range(0, len(content), 300_000):
        yield content[start : start + 300_000]


async def write(artifacts: ArtifactStore) -> None:
    while True:
        size = random.choice([100, 60_000, 70_000, 1_500_000, 6_000_000])
        content = os.urandom(16) + NOISE[:size]
        artifact = await artifacts.put(content if random.random() < 0.5 else slowly(content))
        # One write call: a line is told whole or not at all.
        os.write(1, f"{artifact.hash} {artifact.size}\n".encode())


async def main(folder: str, root: str) -> None:
    async with Store(SQLiteAdapter(f"sqlite:///{folder}/bank.db")) as store:
        artifacts = ArtifactStore(store, Path(root))
        await artifacts.put(NOISE)  # everything is imported and made now
        os.write(1, b"ready\n")
        await asyncio.gather(*(write(artifacts) for _ in range(3)))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))

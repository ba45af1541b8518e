"""A process that makes renditions until it is killed.

``python -m tests.fire.shortening URL FOLDER`` makes what is missing of one session, and tells a
line before each portion. Meanwhile it appends to another, whose renditions are made in passing.
"""

from __future__ import annotations

import asyncio
import sys

from perdure.core.messages import Message, Text, ToolCall, ToolResult, assistant, user
from tests.fire.talkers import bank_at

SESSION = "fire/short"
OWN = "fire/own"


def turn(number: int) -> list[Message]:
    """A turn of two rounds; its length depends on its number."""
    lines = [
        f"{n}: tests/test_{number}.py failed with KeyError {n * 7}" for n in range(number % 80)
    ]
    return [
        user(f"Look at problem {number} in src/module_{number}.py, please. It hurts on Mondays."),
        Message("assistant", (ToolCall(f"c{number}", "shell", '{"command": "pytest -q"}'),)),
        Message("tool", (ToolResult(f"c{number}", (Text("\n".join(lines)),)),)),
        assistant(f"Problem {number} is solved: the key is now optional. " * (1 + number % 5)),
    ]


def tell(_: str, done: int, __: int) -> None:
    print(done, flush=True)


async def work(url: str, folder: str) -> None:
    async with bank_at(url, folder) as bank:
        old = await bank.existing_session(SESSION)
        making = asyncio.create_task(bank.services.renditions.catch_up(old.record, tell))
        own = await bank.session(OWN)
        number = (await own.head()).turn
        while True:
            number += 1
            await own.append(turn(number))
            await bank.settle()
            if making.done():
                tell("", making.result(), 0)


if __name__ == "__main__":
    asyncio.run(work(*sys.argv[1:]))

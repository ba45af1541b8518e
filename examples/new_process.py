"""A process that was just started opens the bank of `examples.tour`, and has a prompt ready.

It imports nothing but what that needs, and prints what it took. `examples.tour` runs it.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

import perdure

if TYPE_CHECKING:
    from perdure.context.context import Context
    from perdure.sessions.session import Session

NAME, SYSTEM = "planner/project", "You are a coding agent. Be brief."


async def compose(session: Session, prompt: Any = None) -> Context:
    """What is sent next."""
    return await session.context(prompt, system=SYSTEM, tools=perdure.HISTORY_TOOLS)


def digest(body: dict[str, Any]) -> str:
    return blake2b(json.dumps(body).encode(), digest_size=16).hexdigest()


async def main(url: str, prompt: str) -> None:
    start = time.perf_counter()
    async with perdure.open(url) as bank:
        context = await compose(await bank.session(NAME), prompt)
        body = context.to_chat()
        took = time.perf_counter() - start
    print(json.dumps({"ms": took * 1e3, "digest": digest(body)}))


if __name__ == "__main__":
    import perdure.bank  # imports are not what is measured

    asyncio.run(main(*sys.argv[1:]))

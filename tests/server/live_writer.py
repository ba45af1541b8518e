"""A process that writes to a bank: ``python live_writer.py URL``, one command a line.

``append SESSION TEXT``, ``stream SESSION TEXT`` (begins an answer), ``more TEXT``, ``end``,
``die``.
"""

from __future__ import annotations

import asyncio
import os
import sys

import perdure
from perdure.config import Config, HistoryConfig


async def main(url: str) -> None:
    config = Config(bank=url, history=HistoryConfig(heartbeat=0.01))
    async with perdure.open(config=config) as bank:
        answer = None
        while line := await asyncio.to_thread(sys.stdin.readline):
            command, _, rest = line.rstrip("\n").partition(" ")
            name, _, text = rest.partition(" ")
            if command == "append":
                await (await bank.session(name)).append(text)
            elif command == "stream":
                session = await bank.session(name)
                await session.append("go on")
                answer = session.answer(model="far")
                await answer.__aenter__()
                await answer.text(text)
            elif command == "more" and answer is not None:
                await answer.text(rest)
            elif command == "end" and answer is not None:
                await answer.__aexit__(None)
            elif command == "die":
                os._exit(9)
            print("done", flush=True)


asyncio.run(main(sys.argv[1]))

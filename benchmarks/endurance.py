"""Many calls through a gateway, to see whether it needs more memory after them. In a new process.

    python -m benchmarks.endurance URL FIRST CALLS BANK

32 calls at a time, by fifty agents in a thousand sessions. Memory is what the operating system
says, after the first calls and after all, when everything is written and garbage is collected.

The bank is not a new one: it holds the outcomes of 60,000 calls. SQLite keeps pages of the file in
memory, up to 16 MB, and a new bank would take all these calls to get there, by 160 bytes a call.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

import psutil

from benchmarks import model_server, ours
from perdure.config import GatewayConfig, ModelsConfig, ProviderConfig
from perdure.core import clock
from perdure.core.clock import new_id
from perdure.gateway.calls import CallOptions
from perdure.gateway.outcomes import PORTION, Outcome, OutcomeRecorder

#: Holds the number of calls.
VARIABLE = "PERDURE_BENCHMARK_CALLS"
CALLS, FIRST = 100_000, 5_000
KEY_VARIABLE = "PERDURE_BENCHMARK_KEY"
_EARLIER = 60_000
LANES = 32


class Endured(NamedTuple):
    """Bytes after the first calls and after all of them, and seconds for all."""

    first: int
    last: int
    seconds: float
    calls: int


def config(base_url: str, **further: Any) -> GatewayConfig:
    """As it comes, with one provider, whose server is ours and whose prices are known."""
    os.environ.setdefault(KEY_VARIABLE, "sk-none")
    provider = ProviderConfig(base_url=base_url, key_variable=KEY_VARIABLE)
    return GatewayConfig(
        providers={"openai-chat": provider},
        models=ModelsConfig(chat=f"openai-chat/{model_server.MODEL}"),
        **further,
    )


def endured(base_url: str, folder: Path, *, quick: bool) -> Endured:
    """Run it in a new process."""
    calls = 200 if quick else int(os.environ.get(VARIABLE) or CALLS)
    first = min(FIRST, calls // 4)
    arguments = (base_url, str(first), str(calls), str(folder / "endurance.db"))
    process = subprocess.run(
        [sys.executable, "-m", "benchmarks.endurance", *arguments],
        cwd=Path(__file__).parent.parent,
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    return Endured(*json.loads(process.stdout))


async def main(base_url: str, first: int, calls: int, file: Path) -> Endured:
    async with ours.open_bank(file, gateway=config(base_url)) as bank:
        gateway = bank.gateway
        await _fill(gateway.recorder, min(_EARLIER, 10 * calls))

        async def lane(numbers: Iterator[int]) -> None:
            for number in numbers:
                agent, session = _who(number)
                await gateway.complete(
                    f"What is {number}?", CallOptions(agent=agent, session=session)
                )

        async def memory_after(numbers: range) -> int:
            shared = iter(numbers)
            await asyncio.gather(*(lane(shared) for _ in range(LANES)))
            await bank.settle()
            gc.collect()
            return psutil.Process().memory_info().rss

        start = perf_counter()
        before = await memory_after(range(first))
        after = await memory_after(range(first, calls))
        return Endured(before, after, perf_counter() - start, calls)


async def _fill(recorder: OutcomeRecorder, count: int) -> None:
    """Note calls of earlier days."""
    for number in range(count):
        agent, session = _who(number)
        outcome = Outcome(
            id=new_id(),
            started=clock.now() - (count - number) * clock.SECOND,
            purpose="chat",
            provider="openai-chat",
            model=model_server.MODEL,
            success=True,
            agent=agent,
            session=session,
            latency=0.9,
            input=1_500,
            output=130,
            cost=635_000_000,
            quality=0.7,
        )
        recorder.note(outcome)
        if number % PORTION == 0:
            await recorder.flush()
    await recorder.flush()


def _who(number: int) -> tuple[str, str]:
    """An agent and a session."""
    return f"agent-{number % 50}", f"session-{number % 1_000}"


if __name__ == "__main__":
    _, url, few, many, path = sys.argv
    print(json.dumps(asyncio.run(main(url, int(few), int(many), Path(path)))))

"""LiteLLM's SDK: `acompletion`, as it comes. Runs in its own environment, without Perdure."""

from __future__ import annotations

import asyncio
import importlib.metadata
import sys
from time import perf_counter
from typing import Any

from benchmarks.conversations import Chat
from benchmarks.peers.worker import serve

#: Off the clock, after a block: it logs behind the caller's back.
_BREATH = 0.05


def _only_loopback(event: str, details: tuple[Any, ...]) -> None:
    """Refuses whatever would leave the machine."""
    if event == "socket.connect" and isinstance(details[1], tuple):
        host = details[1][0]
    elif event == "socket.getaddrinfo":
        host = details[0]
    else:
        return
    if host not in ("127.0.0.1", "localhost", "::1"):
        raise ConnectionRefusedError(f"the benchmark does not let LiteLLM talk to {host}")


class Caller:
    """Asks the model again and again."""

    async def facts(self) -> dict[str, str]:
        return {"litellm": importlib.metadata.version("litellm")}

    async def complete(
        self, base_url: str, model: str, messages: list[Chat], count: int
    ) -> dict[str, Any]:
        from litellm import acompletion

        samples = []
        start = last = perf_counter()
        for _ in range(count):
            await acompletion(
                model=f"openai/{model}", messages=messages, api_base=base_url, api_key="sk-none"
            )
            now = perf_counter()
            samples.append(now - last)
            last = now
        await asyncio.sleep(_BREATH)
        return {"seconds": last - start, "samples": samples}


if __name__ == "__main__":
    sys.addaudithook(_only_loopback)
    serve(Caller())

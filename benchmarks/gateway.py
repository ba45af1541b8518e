"""What the gateway adds to a model call, over a bare httpx2 call to the same server.

The server is `model_server`, a process of its own, which answers at once: what is measured is all
ours. A call asks with a system text, a turn with a 4 KB tool result, and a prompt; the bare one
posts the same body as JSON and decodes the answer. The gateway is that of a bank on SQLite, as it
comes. Overheads are differences of percentiles; of each kind of call:

- plain; also with a conversation of 400 KB, about 100,000 tokens,
- with the response cache, where the answer is not there yet and is kept,
- with one budget, reserved durably before each call and settled after it.

A streamed answer has 1,000 small chunks; what it adds is told per chunk. Outcomes are written after
the calls, when the process has nothing else to do: p50 does not see that, the mean does
(`overhead_mean_ms`). `endurance` looks at the memory; `--calls` says after how many calls.

LiteLLM's SDK makes the plain call from its own process; its overhead is over the same bare call.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import httpx2

from benchmarks import endurance, model_server, ours, peers
from benchmarks.conversations import Chat, bulk, turns
from benchmarks.harness import (
    Block,
    Contestant,
    Ratio,
    Report,
    Tally,
    alternate,
    awaited,
    excess,
    millis,
    work_folder,
)
from benchmarks.texts import Texts
from perdure import wire
from perdure.config import BudgetConfig
from perdure.gateway import requests
from perdure.gateway.calls import CallOptions, Request
from perdure.gateway.gateway import Gateway

_SYSTEM = 2_000
_LONG_TURNS = 85
_PLAIN, _CACHED = CallOptions(), CallOptions(cache=True)


async def run(report: Report, *, quick: bool) -> None:
    rounds, count, chunks = (2, 3, 20) if quick else (30, 40, 1_000)
    with work_folder() as name, model_server.running(chunks) as base_url:
        folder = Path(name)
        _remember(report, endurance.endured(base_url, folder, quick=quick))
        async with AsyncExitStack() as stack:
            lane = await _open(stack, folder, base_url)
            contestants = lane.contestants(count)
            litellm = stack.enter_context(peers.litellm_running(report))
            if litellm is not None:
                contestants[peers.LITELLM] = _theirs(litellm, base_url, max(count // 4, 1))
            tallies = await alternate(contestants, rounds, quick=quick)
    _compare(report, tallies, chunks)
    report.tallies(tallies)


def _remember(report: Report, memory: endurance.Endured) -> None:
    first, last = (size / 2**20 for size in (memory.first, memory.last))
    report.figures["memory_growth"] = round(last / first, 3)
    report.figures["memory_mb"] = round(last, 1)
    report.figures["memory_calls"] = float(memory.calls)
    report.figures["calls_per_s"] = round(memory.calls / memory.seconds, 1)
    report.say(
        f"  {memory.calls:,} calls, {endurance.LANES} at a time, in {memory.seconds:.0f} s:"
        f" {first:.1f} MB after some, {last:.1f} MB after all"
    )


def _compare(report: Report, tallies: Mapping[str, Tally], chunks: int) -> None:
    bare, plain = tallies["bare"], tallies["gateway"]
    report.ratio("overhead_ms", overhead := excess(plain, bare, 0.5))
    report.ratio("overhead_p95_ms", excess(plain, bare, 0.95))
    report.figures["overhead_mean_ms"] = millis(plain.mean - bare.mean)
    long = (tallies["gateway, 400 KB"], tallies["bare, 400 KB"])
    report.ratio("overhead_long_ms", excess(*long, 0.5))
    report.ratio("overhead_cache_miss_ms", excess(tallies["gateway, not cached"], bare, 0.5))
    report.ratio("overhead_budget_ms", excess(tallies["gateway, one budget"], bare, 0.5))
    report.figures["cache_hit_ms"] = millis(tallies["gateway, cached"].percentile(0.95))
    whole = excess(tallies["gateway, stream"], tallies["bare, stream"], 0.5)
    report.ratio("chunk_ms", Ratio(*(round(each / chunks, 5) for each in whole)))
    theirs = None
    if (litellm := tallies.get(peers.LITELLM)) is not None:
        theirs = excess(litellm, bare, 0.5)
    report.ratio("litellm_overhead_ms", theirs)
    report.figures["overhead_to_litellm"] = theirs and round(overhead.value / theirs.value, 3)


async def _open(stack: AsyncExitStack, folder: Path, base_url: str) -> _Lane:
    budget = BudgetConfig(name="all", tokens=10**12)
    plain = endurance.config(base_url)
    capped = endurance.config(base_url, budgets=(budget,))
    banks = [
        await stack.enter_async_context(ours.open_bank(folder / f"{number}.db", gateway=config))
        for number, config in enumerate((plain, capped))
    ]
    client = await stack.enter_async_context(httpx2.AsyncClient())
    return _Lane(client, *(bank.gateway for bank in banks))


class _Lane:
    """A bare client, and gateways with and without a budget."""

    def __init__(self, client: httpx2.AsyncClient, plain: Gateway, capped: Gateway) -> None:
        self._client = client
        self._plain = plain
        self._capped = capped

    def contestants(self, count: int) -> dict[str, Contestant]:
        short, long = _request(_short()), _request(_long())
        fewer = max(count // 4, 1)
        plain, capped = self._plain, self._capped
        return {
            "bare": self._bare(short, count),
            "gateway": _complete(plain, lambda _: short, count),
            "gateway, not cached": _complete(plain, _unlike, count, _CACHED),
            "gateway, cached": _complete(plain, lambda _: short, count, _CACHED),
            "gateway, one budget": _complete(capped, lambda _: short, count),
            "bare, 400 KB": self._bare(long, fewer),
            "gateway, 400 KB": _complete(plain, lambda _: long, fewer),
            "bare, stream": self._bare_stream(short),
            "gateway, stream": _stream(plain, short),
        }

    def _bare(self, request: Request, count: int) -> Contestant:
        url, headers, body = self._same(request, stream=False)

        async def call(_: int) -> None:
            response = await self._client.post(url, json=body, headers=headers)
            response.json()

        return partial(_repeated, call, count)

    def _bare_stream(self, request: Request) -> Contestant:
        url, headers, body = self._same(request, stream=True)

        async def call(_: int) -> None:
            async with self._client.stream("POST", url, json=body, headers=headers) as response:
                async for _chunk in response.aiter_bytes():
                    pass

        return partial(_repeated, call, 1)

    def _same(
        self, request: Request, *, stream: bool
    ) -> tuple[str, dict[str, str], dict[str, Any]]:
        """What the gateway would send: where, with which key, and what."""
        [candidate] = self._plain.catalog.candidates(_PLAIN)
        provider = candidate.provider
        call = requests.build(request, provider, candidate.model, stream=stream)
        key = requests.authorization(provider, os.environ[endurance.KEY_VARIABLE])
        return provider.base_url + call.path, key, call.body


async def _repeated(call: Callable[[int], Awaitable[None]], count: int, _: int) -> Block:
    return await awaited(call, range(count))


def _complete(
    gateway: Gateway, question: Callable[[int], Request], count: int, ask: CallOptions = _PLAIN
) -> Contestant:
    async def call(request: Request) -> None:
        reply = await gateway.complete(request, ask)
        assert reply.cost is not None  # its price is known, so that it has to be computed

    async def block(number: int) -> Block:
        asked = [question(number * count + each) for each in range(count)]
        return await _settled(gateway, await awaited(call, asked))

    return block


def _stream(gateway: Gateway, request: Request) -> Contestant:
    async def call(_: int) -> None:
        async with gateway.stream(request) as stream:
            async for _delta in stream:
                pass
        assert stream.reply.cost is not None

    async def block(_: int) -> Block:
        return await _settled(gateway, await awaited(call, range(1)))

    return block


async def _settled(gateway: Gateway, block: Block) -> Block:
    """The block with what is written after it, which only its total shows."""
    start = perf_counter()
    await gateway.settle()
    return Block(block.seconds + perf_counter() - start, block.samples)


def _theirs(litellm: peers.Peer, base_url: str, count: int) -> Contestant:
    asked = {"base_url": base_url, "model": model_server.MODEL, "messages": _short()}

    async def block(_: int) -> Block:
        return litellm.timed("complete", **asked, count=count)

    return block


# What is asked ----------------------------------------------------------------------------------


def _request(messages: list[Chat]) -> Request:
    return Request(messages=wire.decode(messages))


def _short() -> list[Chat]:
    system = {"role": "system", "content": Texts(1).message(_SYSTEM)}
    return [system, *turns(1, 2)[0], {"role": "user", "content": "And what follows from it?"}]


def _long() -> list[Chat]:
    system, *_, prompt = _short()
    return [system, *(message for turn in bulk(_LONG_TURNS, 3) for message in turn), prompt]


def _unlike(number: int) -> Request:
    """A question that nobody asked before."""
    return _request([*_short()[:-1], {"role": "user", "content": f"Question {number}?"}])

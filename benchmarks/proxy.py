"""What `perdure serve` adds to a client's request, and how fast it reads.

The provider is `model_server`, a process of its own, which answers at once. `perdure serve` is
another, on a bank on SQLite, as it comes, with a budget of 60k tokens. The client is `http_lanes`.
Contestants take turns: the same request straight to the provider, and through the proxy.

- `added_ms`: p50 until the first byte of the answer arrives, over that without a proxy. The
  client's history has 100 messages, and fits: it passes through. Each request goes on from the one
  before, as a client does, with the answer and a new prompt; after some, another conversation
  begins.
- `added_ms_long`: the same with a history of 300k tokens, so that a window of 60k goes upstream. It
  is compared with a request to the provider of the window's size, not with the whole history that
  the client would send without a proxy: all that is saved upstream is left out.
- `chunk_ms`: a streamed answer of 1,000 chunks, until its end, per chunk.
- `requests_per_s`: pages of 20 turns (100 KB), 16 requests at a time, from the API; as a share of
  what Starlette with one route gives that reads the same turns from the same bank and encodes them
  with msgspec. `requests_per_s_to_memory` compares with one that has them in its memory.
- `memory_growth`: what the server's process needs after 10,000 requests, half of them through the
  proxy in many conversations, to after the first 2,000.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from time import perf_counter
from typing import Self, TypeAlias

import httpx2
import psutil

from benchmarks import bare_server, model_server
from benchmarks.conversations import Chat, bulk
from benchmarks.harness import (
    Block,
    Contestant,
    Ratio,
    Report,
    Tally,
    alternate,
    excess,
    ratio,
    work_folder,
)
from benchmarks.http_lanes import Exchange, HttpLane, request

#: Tokens that go upstream at most.
BUDGET = 60_000
#: A turn has four messages and some 1,200 tokens.
_TURNS, _LONG_TURNS, _WINDOW_TURNS = 24, 250, 40
_LANES = 16
#: Seconds between two requests of a client, off the clock: what is recorded beside one is written.
_PAUSE = 0.01
#: The address of a chat, and headers.
Place: TypeAlias = tuple[str, dict[str, str]]
_PAGE = "/api/v1/sessions/bench/read/turns"


async def run(report: Report, *, quick: bool) -> None:
    rounds, calls, chunks, reads = (2, 2, 20, 40) if quick else (30, 10, 1_000, 1_000)
    with (
        work_folder() as name,
        model_server.running(20) as short,
        model_server.running(chunks) as long,
    ):
        folder = Path(name)
        async with (
            Served(folder / "a.db", short) as served,
            Served(folder / "b.db", long) as streaming,
        ):
            await _write_turns(served, quick=quick)
            async with bare_server.running(served.bank, "bench/read") as bare:
                contestants = {
                    **_conversations(served, short, calls, quick=quick),
                    "provider, stream": _streamed(f"{long}/chat/completions", {}),
                    "proxy, stream": _streamed(*streaming.chat("stream")),
                    "Starlette, page": _read(request(f"{bare}/turns"), bare, reads),
                    "Starlette, memory": _read(request(f"{bare}/memory"), bare, reads),
                    "page": _read(served.get(_PAGE), served.url, reads),
                }
                tallies = await alternate(contestants, rounds, quick=quick)
            _compare(report, tallies, chunks)
            await _check(served)
            await _remember(report, served, quick=quick)
    report.tallies(tallies)


def _compare(report: Report, tallies: dict[str, Tally], chunks: int) -> None:
    report.ratio("added_ms", excess(tallies["proxy"], tallies["provider"], 0.5))
    report.ratio("added_p95_ms", excess(tallies["proxy"], tallies["provider"], 0.95))
    long = tallies["proxy, 300k"]
    report.ratio("added_ms_long", excess(long, tallies["provider, 60k"], 0.5))
    report.ratio("added_ms_long_to_whole", excess(long, tallies["provider, 300k"], 0.5))
    whole = excess(tallies["proxy, stream"], tallies["provider, stream"], 0.5)
    report.ratio("chunk_ms", Ratio(*(round(each / chunks, 5) for each in whole)))
    page = tallies["page"]
    report.ratio("requests_per_s", ratio(tallies["Starlette, page"], page))
    report.ratio("requests_per_s_to_memory", ratio(tallies["Starlette, memory"], page))
    report.figures["requests_per_s_alone"] = round(1 / page.mean)


async def _check(served: Served) -> None:
    """That windows were sent, and nothing was passed on because something had failed."""
    async with httpx2.AsyncClient(base_url=served.url, headers=served.headers) as client:
        figures = (await client.get("/api/v1/proxy")).raise_for_status().json()
    assert not figures["failures"], figures["failure"]
    assert figures["input_alone"] > figures["input"]


# The server -------------------------------------------------------------------------------------


class Served:
    """``perdure serve`` in front of a provider."""

    def __init__(self, file: Path, provider: str) -> None:
        self.bank = f"sqlite:///{file}"
        self._options = (
            *("--bank", self.bank),
            *("serve", "--json", "--port", "0"),
            *("--upstream", f"openai={provider}", "--budget", str(BUDGET)),
        )

    async def __aenter__(self) -> Self:
        self._process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "perdure", *self._options),
            stdout=asyncio.subprocess.PIPE,
        )
        assert self._process.stdout is not None
        said = json.loads(await self._process.stdout.readline())
        self.url, self._proxy = said["url"], said["proxy"]
        async with httpx2.AsyncClient() as client:
            code = {"code": said["code"]}
            answer = await client.post(f"{self.url}/api/v1/login", json=code)
        self.headers = {"x-perdure-token": answer.raise_for_status().json()["token"]}
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._process.terminate()
        await self._process.wait()

    @property
    def memory(self) -> int:
        found: int = psutil.Process(self._process.pid).memory_info().rss
        return found

    def get(self, path: str) -> bytes:
        return request(f"{self.url}{path}", headers=self.headers)

    def chat(self, session: str) -> Place:
        """Where requests go, and how a conversation is named."""
        return f"{self._proxy}/v1/chat/completions", {"x-perdure-session": f"bench/{session}"}


async def _write_turns(served: Served, *, quick: bool) -> None:
    """A session to read."""
    async with httpx2.AsyncClient(base_url=served.url, headers=served.headers) as client:
        await client.post("/api/v1/sessions", json={"name": "bench/read"})
        for turn in bulk(20 if quick else 200, 5):
            (await client.post(_PAGE, json={"messages": turn})).raise_for_status()


# Contestants ------------------------------------------------------------------------------------


class Conversation:
    """A client's conversation: each request has the whole history, the answer, and a new prompt."""

    def __init__(self, url: str, headers: dict[str, str], turns: int, seed: int) -> None:
        self._url, self._headers = url, headers
        self._messages: list[Chat] = [{"role": "system", "content": "You are a careful engineer."}]
        self._messages += [message for turn in bulk(turns, seed) for message in turn]
        self._number = 0

    def next(self) -> bytes:
        self._number += 1
        self._messages.append({"role": "user", "content": f"And what follows, {self._number}?"})
        return chat_request(self._url, self._headers, self._messages)

    def answered(self, exchange: Exchange) -> None:
        assert exchange.status == 200, exchange.body[:500]
        self._messages.append({"role": "assistant", "content": said(exchange.body)})


def chat_request(url: str, headers: dict[str, str], messages: list[Chat]) -> bytes:
    body = {"model": model_server.MODEL, "stream": True, "messages": messages}
    sent = {"authorization": "Bearer sk-none", **headers}
    return request(url, "POST", json.dumps(body).encode(), sent)


def said(body: bytes) -> str:
    """The text of a streamed answer."""
    events = [
        line[6:].split(b"\n")[0] for line in body.split(b"\r\n") if line.startswith(b"data: {")
    ]
    deltas = [choice["delta"] for event in events for choice in json.loads(event)["choices"]]
    return "".join(delta.get("content") or "" for delta in deltas)


def _conversations(
    served: Served, provider: str, calls: int, *, quick: bool
) -> dict[str, Contestant]:
    straight: Place = (f"{provider}/chat/completions", {})
    long = 60 if quick else _LONG_TURNS
    return {
        "provider": _new_conversations(lambda _: straight, calls),
        "proxy": _new_conversations(served.chat, calls),
        "provider, 60k": _one_conversation(straight, _WINDOW_TURNS, calls),
        "provider, 300k": _one_conversation(straight, long, calls),
        "proxy, 300k": _one_conversation(served.chat("long"), long, calls),
    }


def _new_conversations(place: Callable[[str], Place], calls: int) -> Contestant:
    """In each round one of its own, whose first request is not counted."""

    async def block(number: int) -> Block:
        url, headers = place(f"short-{number}")
        return await _talk(url, Conversation(url, headers, _TURNS, number), calls)

    return block


def _one_conversation(place: Place, turns: int, calls: int) -> Contestant:
    """One that goes on from round to round."""
    url, headers = place
    talk = Conversation(url, headers, turns, 7)

    async def block(_: int) -> Block:
        return await _talk(url, talk, calls)

    return block


async def _talk(url: str, talk: Conversation, calls: int) -> Block:
    samples = list[float]()
    async with _lane(url) as lane:
        for number in range(calls + 1):
            asked = talk.next()
            await asyncio.sleep(_PAUSE)
            exchange = await lane.ask(asked)
            talk.answered(exchange)
            if number:
                samples.append(exchange.first)
    return Block(sum(samples), samples)


def _streamed(url: str, headers: dict[str, str]) -> Contestant:
    asked = chat_request(url, headers, [{"role": "user", "content": "Tell me all of it."}])

    async def block(_: int) -> Block:
        async with _lane(url) as lane:
            await asyncio.sleep(_PAUSE)
            exchange = await lane.ask(asked)
        assert exchange.status == 200, exchange.body[:500]
        return Block(exchange.whole, [exchange.whole])

    return block


def _read(asked: bytes, url: str, count: int) -> Contestant:
    """Seconds per request, many at a time."""

    async def block(_: int) -> Block:
        lanes = [await HttpLane.to(url) for _ in range(_LANES)]

        async def read(lane: HttpLane) -> None:
            for _ in range(count // _LANES):
                assert (await lane.ask(asked)).status == 200

        start = perf_counter()
        await asyncio.gather(*map(read, lanes))
        seconds = perf_counter() - start
        for lane in lanes:
            lane.close()
        done = count // _LANES * _LANES
        return Block(seconds, [seconds / done] * done)

    return block


@asynccontextmanager
async def _lane(url: str) -> AsyncIterator[HttpLane]:
    lane = await HttpLane.to(url)
    try:
        yield lane
    finally:
        lane.close()


# Memory -----------------------------------------------------------------------------------------


async def _remember(report: Report, served: Served, *, quick: bool) -> None:
    first, last = (20, 100) if quick else (2_000, 10_000)
    sizes = dict[int, int]()
    done = 0
    while done < last:
        block = 20 if quick else 500
        await _some_requests(served, done, block)
        done += block
        if done in {first, last}:
            await asyncio.sleep(0 if quick else 2)  # let it write what it has to
            sizes[done] = served.memory
    report.figures["memory_growth"] = round(sizes[last] / sizes[first], 3)
    report.figures["memory_mb"] = round(sizes[last] / 2**20, 1)
    report.say(
        f"  {last:,} requests: {sizes[first] / 2**20:.1f} MB, then {sizes[last] / 2**20:.1f} MB"
    )


async def _some_requests(served: Served, start: int, count: int) -> None:
    """Half of them read; the others are conversations of ten prompts."""

    async def talk(number: int) -> None:
        url, headers = served.chat(f"memory-{start}-{number}")
        conversation = Conversation(url, headers, 0, number)
        async with _lane(url) as lane:
            for _ in range(10):
                conversation.answered(await lane.ask(conversation.next()))
                assert (await lane.ask(served.get(_PAGE))).status == 200

    for first in range(0, count // 20, 5):
        await asyncio.gather(*(talk(first + each) for each in range(min(5, count // 20))))

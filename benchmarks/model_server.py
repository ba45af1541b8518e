"""A model on loopback that answers at once: the same server, in its own process, for everybody.

    python -m benchmarks.model_server 1000      # pieces of a streamed answer; prints its port

It speaks Chat Completions, looks at nothing but the length of a request and whether it wants a
stream, and has its answers ready. A streamed answer is written piece by piece, each in a chunk of
its own, as fast as it goes. It ends when its input does.
"""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.texts import Texts

MODEL = "gpt-5-mini"
_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
_STREAM = re.compile(rb'"stream": ?true')
_ANSWER = 600
_USAGE = {"prompt_tokens": 1_500, "completion_tokens": 130, "total_tokens": 1_630}


@contextmanager
def running(chunks: int) -> Iterator[str]:
    """The server's base URL, while it runs."""
    process = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.model_server", str(chunks)],
        cwd=Path(__file__).parent.parent,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:  # closes its input, and waits for its end
        assert process.stdout is not None
        port = process.stdout.readline().strip()
        if not port:
            raise RuntimeError("The model's server did not start; see its message above.")
        yield f"http://127.0.0.1:{port}/v1"


class Connection(asyncio.Protocol):
    """One request after another, over one connection."""

    def __init__(self, whole: bytes, pieces: list[bytes]) -> None:
        self._whole = whole
        self._pieces = pieces
        self._left: deque[bytes] = deque()
        self._arrived = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._loop = asyncio.get_running_loop()

    def data_received(self, data: bytes) -> None:
        self._arrived += data
        end = self._arrived.find(b"\r\n\r\n") + 4
        if end < 4:
            return
        found = _LENGTH.search(self._arrived, 0, end)
        if len(self._arrived) < end + (int(found[1]) if found else 0):
            return
        wants_stream = _STREAM.search(self._arrived, end) is not None
        self._arrived = b""  # nobody sends the next request before the answer
        if wants_stream:
            self._left.extend(self._pieces)
            self._next()
        else:
            self._transport.write(self._whole)

    def connection_lost(self, exc: Exception | None) -> None:
        self._left.clear()

    def _next(self) -> None:
        if self._left:
            self._transport.write(self._left.popleft())
            self._loop.call_soon(self._next)


def _whole() -> bytes:
    message = {"role": "assistant", "content": Texts(7).message(_ANSWER), "refusal": None}
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": "stop"}
    body = json.dumps(_answer("chat.completion", choices=[choice], usage=_USAGE)).encode()
    head = f"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {len(body)}"
    return f"{head}\r\n\r\n".encode() + body


def _pieces(count: int) -> list[bytes]:
    """The head, an event for each word, and what OpenAI says at the end."""
    head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked"
    words = Texts(8).message(count * 12).split()
    deltas: list[dict[str, Any]] = [{"role": "assistant", "content": "", "refusal": None}]
    deltas += [{"content": f"{words[number % len(words)]} "} for number in range(count - 4)]
    events = [_event(choices=[_delta(delta)]) for delta in deltas]
    events.append(_event(choices=[_delta({}, "stop")]))
    events.append(_event(choices=[], usage=_USAGE))
    events.append("data: [DONE]\n\n")
    chunks = [f"{len(event.encode()):x}\r\n{event}\r\n".encode() for event in events]
    return [f"{head}\r\n\r\n".encode(), *chunks, b"0\r\n\r\n"]


def _event(**fields: Any) -> str:
    return f"data: {json.dumps(_answer('chat.completion.chunk', **fields))}\n\n"


def _delta(delta: dict[str, Any], finish: str | None = None) -> dict[str, Any]:
    return {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}


def _answer(kind: str, **fields: Any) -> dict[str, Any]:
    names = {"id": "chatcmpl-BenchMark0123456789", "object": kind, "created": 1_790_000_000}
    return {**names, "model": MODEL, "system_fingerprint": "fp_0123456789", **fields}


async def main(chunks: int) -> None:
    loop = asyncio.get_running_loop()
    whole, pieces = _whole(), _pieces(chunks)
    server = await loop.create_server(lambda: Connection(whole, pieces), "127.0.0.1", 0)
    ended = asyncio.Event()
    loop.add_reader(sys.stdin.fileno(), ended.set)  # nothing is ever written to it
    print(server.sockets[0].getsockname()[1], flush=True)
    await ended.wait()
    server.close()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1])))

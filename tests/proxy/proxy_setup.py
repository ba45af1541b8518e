"""A real proxy on loopback, and an upstream that notes the bytes that it gets."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, Self

import httpx2
import msgspec
import uvicorn

import perdure
from perdure.bank.bank import Bank
from perdure.config import Config, ProxyConfig
from perdure.server.proxy.proxy_handler import Proxy, make_proxy


class RawRequest(msgspec.Struct):
    """What an upstream got, byte for byte."""

    head: bytes
    body: bytes

    @property
    def headers(self) -> list[tuple[bytes, bytes]]:
        lines = self.head.split(b"\r\n")[1:]
        return [
            (name, value.strip()) for name, _, value in (line.partition(b":") for line in lines)
        ]

    def header(self, name: str) -> str | None:
        for key, value in self.headers:
            if key.lower() == name.encode():
                return value.decode()
        return None

    @property
    def path(self) -> str:
        return self.head.split(b" ", 2)[1].decode()


#: What an upstream answers: bytes of HTTP in the pieces in which they are sent. None: nothing more
#: is sent until the client leaves.
Answer = list[bytes | None]


def http(status: int, body: bytes, **headers: str) -> Answer:
    names = {"content-type": "application/json", "content-length": str(len(body)), **headers}
    lines = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in names.items())
    return [f"HTTP/1.1 {status} X\r\n{lines}\r\n".encode() + body]


class RawUpstream:
    """An HTTP server that notes raw bytes and says what it is told."""

    def __init__(self, answer: Callable[[RawRequest], Answer]) -> None:
        self._answer = answer
        self.requests: list[RawRequest] = []
        #: Set when a client left while an answer was on its way.
        self.left = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, limit=1 << 26)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n"))[:-4]
                request = RawRequest(head, b"")
                length = int(request.header("content-length") or 0)
                request.body = await reader.readexactly(length)
                self.requests.append(request)
                for piece in self._answer(request):
                    if piece is None:
                        if not await reader.read(1):
                            self.left.set()
                        return
                    writer.write(piece)
                    await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            writer.close()


@asynccontextmanager
async def serve(app: Any) -> AsyncIterator[str]:
    """An ASGI app on a real server; its address."""
    config = uvicorn.Config(
        app, host="127.0.0.1", port=0, log_config=None, lifespan="off", server_header=False,
        date_header=False, access_log=False, ws="websockets-sansio",
    )  # fmt: skip
    server = uvicorn.Server(config)
    server.install_signal_handlers = lambda: None  # type: ignore[attr-defined]
    running = asyncio.create_task(server.serve())
    try:
        while not server.started:
            await asyncio.sleep(0.005)
            if running.done():
                running.result()
        port = server.servers[0].sockets[0].getsockname()[1]
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        await running


class RunningProxy(msgspec.Struct, frozen=True):
    """A proxy that is being served; `client` sends to it."""

    url: str
    bank: Bank
    proxy: Proxy
    client: httpx2.AsyncClient


@asynccontextmanager
async def proxied(
    upstream: str, bank: str | Bank = "memory://", config: Config | None = None, **settings: Any
) -> AsyncIterator[RunningProxy]:
    """A proxy over a bank, in front of an upstream of both formats."""
    made = ProxyConfig(upstreams={"anthropic": upstream, "openai": upstream}, **settings)
    opened = perdure.open(bank, config=config or Config()) if isinstance(bank, str) else bank
    async with opened:
        proxy = make_proxy(opened, made)
        try:
            async with serve(proxy) as url, httpx2.AsyncClient(base_url=url, timeout=100) as client:
                yield RunningProxy(url, opened, proxy, client)
        finally:
            await proxy.close()

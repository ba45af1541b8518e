"""Starlette and msgspec alone, over a bank: what somebody would write who needs one route.

    python -m benchmarks.bare_server BANK SESSION      # prints its port

``/turns`` reads the newest 20 turns and encodes them; ``/memory`` encodes those of the start, which
it has in memory. Served as `perdure serve` is, with uvicorn, httptools and uvloop. Ends when its
input does.
"""

from __future__ import annotations

import asyncio
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import uvicorn
import uvloop
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from perdure.bank.bank import Bank

_JSON = "application/json"


@asynccontextmanager
async def running(bank: str, session: str) -> AsyncIterator[str]:
    """The server's address, while it runs."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "benchmarks.bare_server", bank, session),
        cwd=Path(__file__).parent.parent,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    port = (await process.stdout.readline()).decode().strip()
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        process.stdin.close()
        await process.wait()


async def main(url: str, name: str) -> None:
    async with Bank(url).looked_at() as bank:
        await _serve(bank, name)


async def _serve(bank: Bank, name: str) -> None:
    encode = msgspec.json.Encoder().encode

    async def read(_request: Request) -> Response:
        session = await bank.existing_session(name)
        return Response(encode(await session.turns(20)), media_type=_JSON)

    session = await bank.existing_session(name)
    kept = await session.turns(20)

    async def remembered(_request: Request) -> Response:
        return Response(encode(kept), media_type=_JSON)

    app = Starlette(routes=[Route("/turns", read), Route("/memory", remembered)])
    config = uvicorn.Config(
        app, http="httptools", lifespan="off", log_config=None, access_log=False
    )
    server = uvicorn.Server(config)
    listening = socket.create_server(("127.0.0.1", 0))
    print(listening.getsockname()[1], flush=True)

    def end() -> None:
        server.should_exit = True

    asyncio.get_running_loop().add_reader(sys.stdin.fileno(), end)  # nothing is written to it
    await server.serve([listening])


if __name__ == "__main__":
    uvloop.run(main(*sys.argv[1:]))

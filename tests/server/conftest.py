"""A real server over a bank in a temporary file, on a free port of loopback, and who asks it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, Protocol

import httpx2
import msgspec
import pytest

from perdure.bank.bank import Bank
from perdure.config import Config, ServerConfig
from perdure.server.http_server import HttpServer, serving
from perdure.server.operations import Caller, TokenScope
from perdure.server.server_app import ServerApp, make_app
from tests.patience import patient

ALL_SCOPES = frozenset({TokenScope.READ, TokenScope.WRITE, TokenScope.PROXY, TokenScope.ADMIN})


class RunningServer:
    """A server that runs, its bank, and clients of it."""

    def __init__(self, server: HttpServer, stack: AsyncExitStack) -> None:
        self.http = server
        self.app = server.app
        self.bank: Bank = server.app.state.bank
        self.url = server.url
        self._stack = stack

    def token(self, *scopes: TokenScope, agent: str | None = None, name: str = "tester") -> str:
        """A token of this run, with all scopes unless some are given."""
        return self.app.run_tokens.make(Caller(name, agent, frozenset(scopes) or ALL_SCOPES))

    async def client(self, token: str | None = None, **settings: Any) -> httpx2.AsyncClient:
        """A client with this token, or with none at all. Closed at the end of the test."""
        headers = {} if token is None else {"authorization": f"Bearer {token}"}
        made = httpx2.AsyncClient(
            base_url=self.url, headers=headers | settings.pop("headers", {}), timeout=60, **settings
        )
        return await self._stack.enter_async_context(made)


class StartServer(Protocol):
    """Starts a server; settings are sections of the configuration."""

    async def __call__(self, **sections: Any) -> RunningServer: ...


@asynccontextmanager
async def running_server(
    folder: Path, *, app: Callable[[Bank], ServerApp] = make_app, **sections: Any
) -> AsyncIterator[RunningServer]:
    sections.setdefault("server", ServerConfig())
    sections["server"] = msgspec.structs.replace(sections["server"], port=0)
    config = Config(**{"recall": patient(), "bank": f"sqlite:///{folder / 'bank.db'}", **sections})
    async with (
        Bank(config=config) as bank,
        serving(app(bank)) as server,
        AsyncExitStack() as stack,
    ):
        yield RunningServer(server, stack)


@pytest.fixture
async def start_server(tmp_path: Path) -> AsyncIterator[StartServer]:
    """Starts servers over the test's one bank, with settings of their own."""
    async with AsyncExitStack() as stack:

        async def start(**sections: Any) -> RunningServer:
            return await stack.enter_async_context(running_server(tmp_path, **sections))

        yield start


@pytest.fixture
async def server(start_server: StartServer) -> RunningServer:
    return await start_server()


@pytest.fixture
async def client(server: RunningServer) -> httpx2.AsyncClient:
    """May do everything."""
    return await server.client(server.token())

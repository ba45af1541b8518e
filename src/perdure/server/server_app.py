"""The server's app over a bank: every operation, and the guard around them.

Further parts add their operations to `all_routes`, and what they need while the server runs to
`_start_parts`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.types import Receive, Send
from starlette.types import Scope as Connection

from perdure.bank.bank import Bank
from perdure.server import (
    a2a_operations,
    agent_operations,
    agent_service_operations,
    bank_operations,
    chat_operations,
    context_operations,
    injection_operations,
    job_operations,
    learning_operations,
    live_socket,
    mcp_operations,
    memory_operations,
    page_operations,
    project_history_operations,
    project_operations,
    project_work_operations,
    reflection_operations,
    session_operations,
    status_operations,
    turn_operations,
)
from perdure.server.access_tokens import AccessTokens
from perdure.server.denials import DenialLog
from perdure.server.guard import Guard
from perdure.server.live_hub import LiveHub
from perdure.server.openapi import ApiDocument
from perdure.server.operations import Route, ServerState
from perdure.server.page_files import PageFiles
from perdure.server.proxy import proxy_operations
from perdure.server.proxy.proxy_handler import make_proxy
from perdure.server.router import Router
from perdure.server.run_tokens import RunTokens
from perdure.storage.metrics.metrics_app import MetricsText


def all_routes() -> tuple[Route, ...]:
    return (
        *page_operations.OPERATIONS,
        *status_operations.OPERATIONS,
        *session_operations.OPERATIONS,
        *turn_operations.OPERATIONS,
        *context_operations.OPERATIONS,
        *injection_operations.OPERATIONS,
        *memory_operations.OPERATIONS,
        *agent_operations.OPERATIONS,
        *a2a_operations.OPERATIONS,
        *reflection_operations.OPERATIONS,
        *agent_service_operations.OPERATIONS,
        *learning_operations.OPERATIONS,
        *bank_operations.OPERATIONS,
        *job_operations.OPERATIONS,
        *project_operations.OPERATIONS,
        *project_work_operations.OPERATIONS,
        *project_history_operations.OPERATIONS,
        *live_socket.OPERATIONS,
        *chat_operations.OPERATIONS,
        *mcp_operations.OPERATIONS,
        *proxy_operations.OPERATIONS,
    )


@asynccontextmanager
async def _start_parts(state: ServerState) -> AsyncIterator[None]:
    """What runs as long as the server does."""
    hub = state.add(LiveHub(state.bank.services))
    chats = state.add(chat_operations.Chats(state))
    proxy = state.add(make_proxy(state.bank, state.config.proxy))
    agents = state.bank.agents
    agents.streams = True
    agents.serve_all()
    try:
        yield
    finally:
        state.stopping.set()
        await chats.close()
        await hub.close()
        await proxy.close()
        await state.part(DenialLog).settle()
        await state.part(AccessTokens).settle()


class ServerApp:
    """An ASGI app. Requests are answered only between entering and leaving `running`."""

    def __init__(self, bank: Bank) -> None:
        self.state = ServerState(bank)
        tokens = self.state.add(AccessTokens(bank.store))
        self.run_tokens = self.state.add(RunTokens())
        denials = self.state.add(DenialLog(bank.audit))
        self.state.add(MetricsText(bank))
        self.state.add(PageFiles())
        self.state.routes = all_routes()
        self.state.add(ApiDocument(self.state.routes))
        self._guard = Guard(
            Router(self.state, self.state.routes),
            tokens,
            self.run_tokens,
            denials,
            bank.config.server,
        )

    async def __call__(self, connection: Connection, receive: Receive, send: Send) -> None:
        await self._guard(connection, receive, send)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        async with _start_parts(self.state):
            yield


def make_app(bank: Bank) -> ServerApp:
    """The app over an open bank. Its settings are `bank.config.server` and `bank.config.proxy`."""
    return ServerApp(bank)

"""``/mcp`` of the server: the official SDK's client over real HTTP, behind the guard."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import httpx2
import pytest
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from msgspec.structs import replace

from perdure import config as configs
from perdure.bank.bank import Bank
from perdure.project.project_directory import register_project
from perdure.project.project_location import ProjectLocation
from perdure.server.http_server import serving
from perdure.server.operations import Caller, TokenScope
from perdure.server.server_app import make_app
from tests.integrations.conftest import Mode, Workplace
from tests.integrations.test_mcp import MODES, data_of, refusal_of


class McpHttp:
    """A running server with a project."""

    def __init__(self, server: Any) -> None:
        self.url = server.url
        self._tokens = server.app.run_tokens

    def token(self, *scopes: TokenScope, agent: str | None = None) -> str:
        made: str = self._tokens.make(Caller("tester", agent, frozenset(scopes)))
        return made

    @asynccontextmanager
    async def client(self, token: str, mode: Mode, query: str) -> AsyncIterator[Client]:
        headers = {"authorization": f"Bearer {token}"}
        async with (
            httpx2.AsyncClient(headers=headers, timeout=100) as http,
            Client(
                streamable_http_client(f"{self.url}/mcp{query}", http_client=http), mode=mode
            ) as client,
        ):
            yield client


@pytest.fixture
async def server(place: Workplace) -> AsyncIterator[McpHttp]:
    place.init()
    await place.told("claude-code", place.folder, "The staging port is 8123, please.")
    async with AsyncExitStack() as stack:
        config = replace(configs.load(), bank=place.bank)
        config = replace(config, server=replace(config.server, port=0))
        bank = await stack.enter_async_context(Bank(config=config))
        await register_project(bank.services, ProjectLocation.find(place.folder))
        yield McpHttp(await stack.enter_async_context(serving(make_app(bank))))


BOTH = (TokenScope.READ, TokenScope.WRITE)


@pytest.mark.parametrize("mode", MODES)
async def test_a_project_is_worked_with_over_http(server: McpHttp, mode: Mode) -> None:
    async with server.client(server.token(*BOTH), mode, "?project=demo") as client:
        assert client.protocol_version == ("2026-07-28" if mode == "auto" else "2025-11-25")
        found = await data_of(client, "recall", query="staging port")
        assert "8123" in found["items"][0]["text"]
        await data_of(client, "remember", text="The port was moved on Monday.")
        await data_of(client, "task_add", title="Move the port")
        assert (await data_of(client, "task_claim"))["task"]["owner"].endswith("-tester")
        assert "takes query" in await refusal_of(client, "recall")


@pytest.mark.parametrize("mode", MODES)
async def test_a_token_that_reads_is_offered_no_tool_that_writes(
    server: McpHttp, mode: Mode
) -> None:
    async with server.client(server.token(TokenScope.READ), mode, "?project=demo") as client:
        names = {tool.name for tool in (await client.list_tools()).tools}
        assert "recall" in names
        assert "remember" not in names
        assert "no tool 'remember'" in await refusal_of(client, "remember", text="x")


async def test_a_token_of_one_agent_sees_no_project(server: McpHttp, place: Workplace) -> None:
    token = server.token(*BOTH, agent="planner")
    async with httpx2.AsyncClient(headers={"x-perdure-token": token}, timeout=100) as http:
        ping = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
        assert (await http.post(f"{server.url}/mcp?project=demo", json=ping)).status_code == 403
        assert (await http.post(f"{server.url}/mcp?agent=coder", json=ping)).status_code == 403
        assert (await http.post(f"{server.url}/mcp", json=ping)).status_code == 200
    async with server.client(token, "auto", "") as client:
        assert "no agent 'planner'" in await refusal_of(client, "recall", query="port")


async def test_who_may_come_in(server: McpHttp) -> None:
    url, ping = f"{server.url}/mcp?project=demo", {"jsonrpc": "2.0", "id": 1, "method": "ping"}
    good = {"authorization": f"Bearer {server.token(TokenScope.READ)}"}
    async with httpx2.AsyncClient(timeout=100) as http:
        assert (await http.post(url, json=ping)).status_code == 401
        assert (await http.post(url, json=ping, headers=good)).status_code == 200
        foreign = {**good, "origin": "https://evil.example"}
        assert (await http.post(url, json=ping, headers=foreign)).status_code == 403
        elsewhere = {**good, "host": "evil.example"}
        assert (await http.post(url, json=ping, headers=elsewhere)).status_code == 421
        proxy = {"authorization": f"Bearer {server.token(TokenScope.PROXY)}"}
        assert (await http.post(url, json=ping, headers=proxy)).status_code == 403
        assert (await http.get(url, headers=good)).status_code == 405
        assert (await http.post(f"{server.url}/mcp", json=ping, headers=good)).status_code == 400


async def test_messages_that_contradict_themselves_are_refused(server: McpHttp) -> None:
    url = f"{server.url}/mcp?project=demo"
    headers = {"authorization": f"Bearer {server.token(TokenScope.READ)}"}
    meta = {
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientCapabilities": {},
    }
    call = {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {"_meta": meta}}
    version = {"mcp-protocol-version": "2026-07-28"}
    async with httpx2.AsyncClient(headers=headers, timeout=100) as http:
        bare = await http.post(url, json=call)
        assert (bare.status_code, bare.json()["error"]["code"]) == (400, -32020)
        wrong = await http.post(url, json=call, headers={**version, "mcp-method": "ping"})
        assert (wrong.status_code, wrong.json()["error"]["code"]) == (400, -32020)
        fine = await http.post(url, json=call, headers={**version, "mcp-method": "tools/list"})
        assert fine.json()["result"]["resultType"] == "complete"
        assert (await http.post(url, json=[call])).status_code == 400
        note = {"jsonrpc": "2.0", "method": "notifications/initialized"}
        assert (await http.post(url, json=note)).status_code == 202

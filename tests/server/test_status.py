"""Whether the server lives, is ready, and lets people in."""

from __future__ import annotations

import httpx2

from perdure.config import ProxyConfig
from perdure.server.operations import TokenScope
from perdure.testing import ScriptedModel
from tests.server.conftest import RunningServer, StartServer


async def test_it_lives_and_is_ready_without_a_token(server: RunningServer) -> None:
    anyone = await server.client()
    assert (await anyone.get("/healthz")).json() == {"status": "alive"}
    assert (await anyone.get("/readyz")).json() == {"status": "ready"}


async def test_the_root_says_where_things_are(server: RunningServer) -> None:
    anyone = await server.client()
    answer = await anyone.get("/")
    assert answer.status_code == 200
    assert (await anyone.get(answer.json()["description"])).status_code == 401
    someone = await server.client(server.token())
    api = (await someone.get(answer.json()["description"])).json()
    for place in (answer.json()["api"], answer.json()["proxy"]):
        assert any(path.startswith(f"{place}/") for path in api["paths"])
    assert (await someone.post("/")).status_code == 405


async def test_a_bank_that_cannot_be_read_is_not_ready(server: RunningServer) -> None:
    await server.bank.store.close()
    anyone = await server.client()
    answer = await anyone.get("/readyz")
    assert answer.status_code == 503
    assert answer.json()["error"]["code"] == "closed"


async def test_a_login_code_works_once(server: RunningServer) -> None:
    code = server.app.run_tokens.login_code("ada")
    anyone = await server.client()
    answer = await anyone.post("/api/v1/login", json={"code": code})
    assert answer.status_code == 200
    someone = await server.client(answer.json()["token"])
    assert (await someone.post("/api/v1/tickets")).status_code == 200
    again = await anyone.post("/api/v1/login", json={"code": code})
    assert again.status_code == 401


async def test_an_unknown_address(client: httpx2.AsyncClient) -> None:
    answer = await client.get("/api/v1/nothing")
    assert answer.status_code == 404
    assert answer.json()["error"]["code"] == "not_found"


async def test_what_the_proxy_did(start_server: StartServer) -> None:
    async with ScriptedModel("Hello.") as model:
        server = await start_server(proxy=ProxyConfig(upstreams={"openai": model.url}))
        client = await server.client(server.token())
        body = {"model": "any", "messages": [{"role": "user", "content": "Hi!"}]}
        token = server.token(TokenScope.PROXY)
        await client.post(f"/t/{token}/v1/chat/completions", json=body)
        figures = (await client.get("/api/v1/proxy")).json()
    assert (figures["requests"], figures["failures"]) == ({"main": 1}, 0)

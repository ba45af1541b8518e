"""Who is let in, and what is asked of a request before anything looks at it."""

from __future__ import annotations

import asyncio
import re
import socket
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

import httpx2
import msgspec
import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from perdure.bank.bank import Bank
from perdure.config import AuditConfig, GatewayConfig, ModelsConfig, ProxyConfig, ServerConfig
from perdure.core.errors import Denied, InvalidInput, Unavailable
from perdure.core.messages import assistant, user
from perdure.server import http_server
from perdure.server.access_tokens import AccessTokens, hash_of
from perdure.server.denials import MOST_KINDS, DenialKind, DenialLog
from perdure.server.http_server import serving
from perdure.server.operations import Operation, SocketOperation, TokenScope
from perdure.server.run_tokens import CODE_LASTS, RunTokens
from perdure.server.server_app import make_app
from perdure.storage.audit import AuditEntry
from perdure.testing import ScriptedModel
from tests.server.conftest import RunningServer, StartServer

#: Everything else needs a token.
OPEN = {
    ("GET", "/"),
    ("GET", "/page/{file}"),
    ("GET", "/worker.js"),
    ("GET", "/healthz"),
    ("GET", "/readyz"),
    ("POST", "/api/v1/login"),
}


def filled(path: str) -> str:
    return re.sub(r"\{\w+\*?\}", "x", path)


async def handshake_status(url: str, path: str, **settings: object) -> int:
    """The status with which a WebSocket is refused."""
    with pytest.raises(InvalidStatus) as refused:
        async with connect(f"ws{url.removeprefix('http')}{path}", proxy=None, **settings):  # type: ignore[arg-type]
            pass
    return refused.value.response.status_code


# Every route ----------------------------------------------------------------------------------


async def test_no_route_answers_without_a_token(server: RunningServer) -> None:
    anyone = await server.client()
    operations = [route for route in server.app.state.routes if isinstance(route, Operation)]
    opened = {(each.method, each.path) for each in operations if each.scope is TokenScope.OPEN}
    assert opened == OPEN
    for each in operations:
        if each.scope is not TokenScope.OPEN:
            answer = await anyone.request(each.method, filled(each.path))
            assert answer.status_code == 401, (each.method, each.path)
            assert answer.headers["www-authenticate"] == "Bearer"
    for route in server.app.state.routes:
        if isinstance(route, SocketOperation):
            assert await handshake_status(server.url, filled(route.path)) == 401, route.path


async def test_nor_does_what_is_no_route(server: RunningServer) -> None:
    anyone = await server.client()
    for method, path in (("POST", "/"), ("GET", "/api/v1/nothing"), ("PUT", "/healthz")):
        assert (await anyone.request(method, path)).status_code == 401, path
    assert await handshake_status(server.url, "/nothing") == 401


async def test_the_proxy_takes_its_token_from_its_own_header_or_the_path(
    start_server: StartServer,
) -> None:
    """Authorization is for the provider: it arrives there, and the token does not."""
    async with ScriptedModel("Hello.") as model:
        server = await start_server(proxy=ProxyConfig(upstreams={"openai": model.url}))
        token = server.token(TokenScope.PROXY)
        body = {"model": "any", "messages": [{"role": "user", "content": "Hi!"}]}
        theirs = {"authorization": "Bearer sk-theirs"}
        client = await server.client()
        path = "/v1/chat/completions"
        for wrong in ({"authorization": f"Bearer {token}"}, {"x-api-key": token}):
            assert (await client.post(path, json=body, headers=wrong)).status_code == 401
        given = {**theirs, "x-perdure-token": token}
        assert (await client.post(path, json=body, headers=given)).status_code == 200
        answer = await client.post(f"/t/{token}{path}", json=body, headers=theirs)
        assert answer.status_code == 200
        assert (await client.post(f"/t/pd_wrong{path}", json=body)).status_code == 401
        assert (await client.get(f"/t/{token}/api/v1/tokens")).status_code == 401
        assert await handshake_status(server.url, f"/t/{token}/v1/responses") == 426
        assert [request.path for request in model.requests] == [path, path]
        for request in model.requests:
            assert request.headers["authorization"] == "Bearer sk-theirs"
            assert token not in f"{request.headers}"


async def test_every_scope_is_enough_for_its_own_routes_only(server: RunningServer) -> None:
    """A token with the other scopes is refused, whatever else is wrong with the request."""
    scopes = {TokenScope.READ, TokenScope.WRITE, TokenScope.PROXY}
    for route in server.app.state.routes:
        if not isinstance(route, Operation) or route.scope is TokenScope.OPEN:
            continue
        others = server.token(*(scopes - {route.scope}))
        header = {"x-perdure-token": others}
        answer = await (await server.client()).request(
            route.method, filled(route.path), headers=header
        )
        assert answer.status_code == 403, (route.method, route.path)
        assert route.scope.value in answer.json()["error"]["message"]


async def test_a_socket_to_what_is_none(server: RunningServer) -> None:
    headers = {"x-perdure-token": server.token()}
    for path, status in (("/nothing", 404), ("/api/v1/tokens", 405), ("/healthz", 405)):
        refused = await handshake_status(server.url, path, additional_headers=headers)
        assert refused == status, path
    answer = await (await server.client(server.token())).get("/api/v1/live")
    assert (answer.status_code, answer.headers["allow"]) == (405, "")


@pytest.mark.parametrize(
    "line",
    [
        "GET //healthz HTTP/1.1",
        "GET /healthz/ HTTP/1.1",
        "GET /api/../healthz HTTP/1.1",
        "GET /%68ealthz/..%2fapi HTTP/1.1",
        "GET /t//v1/models HTTP/1.1",
        "GET /t/%70d_x/healthz/.. HTTP/1.1",
        "GET /t HTTP/1.1",
        "TRACE /healthz HTTP/1.1",
        "OPTIONS * HTTP/1.1",
    ],
)
async def test_a_strange_path_opens_nothing(server: RunningServer, line: str) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", server.http.port)
    writer.write(f"{line}\r\nhost: 127.0.0.1\r\nconnection: close\r\n\r\n".encode())
    answer = await reader.read()
    writer.close()
    await writer.wait_closed()
    assert answer.split(b" ", 2)[1] in {b"400", b"401"}, answer


# Where a request comes from -------------------------------------------------------------------


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "localhost.evil.example", ""])
async def test_a_foreign_name(server: RunningServer, host: str) -> None:
    anyone = await server.client(server.token(), headers={"host": host})
    assert (await anyone.get("/healthz")).status_code == 421


@pytest.mark.parametrize(
    "host", ["localhost", "LOCALHOST:1", "127.0.0.1", "[::1]:80", "memory.home"]
)
async def test_its_own_names(start_server: StartServer, host: str) -> None:
    server = await start_server(server=ServerConfig(names=("memory.home",)))
    anyone = await server.client(headers={"host": host})
    assert (await anyone.get("/healthz")).status_code == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "http://evil.example"},
        {"origin": "null"},
        {"origin": "http://127.0.0.1:1"},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
    ],
    ids=str,
)
async def test_other_pages_may_not_call_it(server: RunningServer, headers: dict[str, str]) -> None:
    token = server.token()
    answer = await (await server.client(token)).get("/api/v1/tokens", headers=headers)
    assert answer.status_code == 403
    assert not [name for name in answer.headers if name.startswith("access-control")]
    given = {"x-perdure-token": token, **headers}
    assert await handshake_status(server.url, "/api/v1/live", additional_headers=given) == 403


async def test_its_own_page_may(server: RunningServer) -> None:
    client = await server.client(server.token())
    headers = {"origin": server.url, "sec-fetch-site": "same-origin"}
    assert (await client.get("/api/v1/tokens", headers=headers)).status_code == 200


async def test_there_is_no_cors(server: RunningServer) -> None:
    asked = {"origin": server.url, "access-control-request-method": "POST"}
    answer = await (await server.client()).request("OPTIONS", "/api/v1/login", headers=asked)
    assert answer.status_code == 401
    assert not [name for name in answer.headers if name.startswith("access-control")]


async def test_a_header_that_is_there_twice(server: RunningServer) -> None:
    token = server.token()
    headers = [("x-perdure-token", token), ("x-perdure-token", token)]
    answer = await (await server.client()).get("/api/v1/tokens", headers=headers)
    assert answer.status_code == 400


async def test_answers_keep_browsers_strict(server: RunningServer) -> None:
    anyone = await server.client()
    for path in ("/healthz", "/nothing"):
        headers = (await anyone.get(path)).headers
        assert "default-src 'self'" in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["cache-control"] == "no-store"
        assert "server" not in headers


# Bodies ---------------------------------------------------------------------------------------


async def test_bodies_have_a_limit(start_server: StartServer) -> None:
    server = await start_server(server=ServerConfig(max_body=2_000))
    client = await server.client()
    large = b'{"code": "' + b"x" * 3_000 + b'"}'
    headers = {"content-type": "application/json"}
    answer = await client.post("/api/v1/login", content=large, headers=headers)
    assert answer.status_code == 413

    async def without_a_length() -> AsyncIterator[bytes]:
        for start in range(0, len(large), 500):
            yield large[start : start + 500]

    answer = await client.post("/api/v1/login", content=without_a_length(), headers=headers)
    assert answer.status_code == 413
    answer = await client.post("/api/v1/login", json={"code": "x"})
    assert answer.status_code == 401


@pytest.mark.parametrize(
    ("begins", "goes_on"),
    [
        (b"GET /", b"x" * 1_000),
        (b"GET /healthz HTTP/1.1\r\nhost: localhost\r\nx: ", b"x" * 1_000),
        (b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n", b"x: y\r\n" * 100),
        (b"POST /v1/x HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n0\r\n", b"x: y\r\n" * 100),
    ],
    ids=["path", "header", "headers", "trailers"],
)
async def test_headers_have_a_limit(server: RunningServer, begins: bytes, goes_on: bytes) -> None:
    """Also before there is a token: or anybody could fill the memory."""
    reader, writer = await asyncio.open_connection("127.0.0.1", server.http.port)
    for _ in range(3):  # those before it do not count
        writer.write(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n")
        await reader.readuntil(b"alive")
    writer.write(begins)
    with suppress(ConnectionError):  # what it did not read by then
        for _ in range(1_000):
            writer.write(goes_on)
            await writer.drain()
        async with asyncio.timeout(60):
            await reader.read()  # until it hangs up
    writer.close()
    with suppress(ConnectionError):
        await writer.wait_closed()
    large = {"x-long": "x" * 60_000}  # as some clients send
    assert (await (await server.client()).get("/healthz", headers=large)).status_code == 200


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", ""])
async def test_bodies_are_json(server: RunningServer, kind: str) -> None:
    headers = {"content-type": kind} if kind else {}
    answer = await (await server.client()).post(
        "/api/v1/login", content=b'{"code": "x"}', headers=headers
    )
    assert answer.status_code == 415


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b"", "not JSON"),
        (b"{", "not JSON"),
        (b'{"code": 1}', "Expected `str`, got `int` - at `$.code`"),
        (b"{}", "missing required field `code`"),
        (b'{"code": "x", "cod": 1}', "unknown field `cod`"),
    ],
    ids=str,
)
async def test_a_body_that_cannot_be_used(server: RunningServer, body: bytes, says: str) -> None:
    headers = {"content-type": "application/json; charset=utf-8"}
    answer = await (await server.client()).post("/api/v1/login", content=body, headers=headers)
    assert answer.status_code == 400
    assert says in answer.json()["error"]["message"]


async def test_an_unknown_query_parameter(server: RunningServer) -> None:
    client = await server.client(server.token())
    answer = await client.get("/api/v1/tokens?limti=3")
    assert answer.status_code == 400
    assert answer.json()["error"]["message"] == "There is no query parameter 'limti'."
    assert (await client.get("/api/v1/tokens?a=%ff")).status_code == 400


async def test_another_method(server: RunningServer) -> None:
    answer = await (await server.client(server.token())).delete("/healthz")
    assert answer.status_code == 405
    assert answer.headers["allow"] == "GET"


# Codes and tickets ----------------------------------------------------------------------------


def test_codes_and_tickets_expire_and_work_once() -> None:
    now = 0.0
    tokens = RunTokens(timer=lambda: now)
    late, code = tokens.login_code("ada"), tokens.login_code("ada")
    login = tokens.log_in(code, seconds=100)
    caller = tokens.caller_by_hash(hash_of(login.token))
    assert caller is not None
    with pytest.raises(Denied):
        tokens.log_in(code, seconds=100)
    ticket, forgotten = tokens.ticket(caller), tokens.ticket(caller)
    assert tokens.redeem(ticket) == caller.token == hash_of(login.token)
    assert not tokens.redeem(ticket)
    now = CODE_LASTS
    with pytest.raises(Denied):
        tokens.log_in(late, seconds=100)
    assert not tokens.redeem(forgotten)
    assert tokens.caller_by_hash(hash_of(login.token)) == caller
    now = 100.0
    assert tokens.caller_by_hash(hash_of(login.token)) is None


# Denials --------------------------------------------------------------------------------------


async def denials_of(bank: Bank) -> list[AuditEntry]:
    return (await bank.audit.entries(action="deny", limit=500)).entries


@pytest.mark.parametrize("audited", [(), ("*",)], ids=["nothing", "everything"])
async def test_a_denial_is_in_the_audit_trail(
    start_server: StartServer, audited: tuple[str, ...]
) -> None:
    """Who, what, from where, and why, but not what was sent. Whatever else is audited."""
    server = await start_server(audit=AuditConfig(collections=audited))
    token = server.token(TokenScope.PROXY, name="laptop")
    await (await server.client(token)).get("/api/v1/tokens?secret=hunter2")
    await (await server.client("pd_stolen-hunter2")).get("/t/hunter2/hunter2")
    await (await server.client(token)).get("/healthz", headers={"host": "hunter2"})
    await server.app.state.part(DenialLog).settle()
    first, second, third = await denials_of(server.bank)
    assert (first.actor, first.query, first.count) == ("laptop", "/api/v1/tokens", 1)
    assert first.reason.startswith("403 from 127.0.0.1: The token of laptop does not have")
    assert (second.actor, second.query) == ("nobody", "unknown")
    assert third.reason.startswith("421 from 127.0.0.1: This server")
    assert "hunter2" not in f"{first} {second} {third}"


async def test_a_flood_of_denials_leaves_few_entries(server: RunningServer) -> None:
    anyone = await server.client()
    for _ in range(200):
        assert (await anyone.get("/api/v1/tokens")).status_code == 401
    log = server.app.state.part(DenialLog)
    for number in range(1_000):
        log.note(Denied("No.", status=401), DenialKind(401, "nobody", f"/{number}", "::1"))
    await log.settle()
    entries = await denials_of(server.bank)
    assert len(entries) <= 2 * (MOST_KINDS + 1)
    assert sum(entry.count for entry in entries) == 1_200


# The address ----------------------------------------------------------------------------------


async def test_only_loopback_without_tokens(server: RunningServer) -> None:
    bank, everywhere = server.bank, ServerConfig(host="0.0.0.0", port=0)
    whole = msgspec.structs.replace(bank.config, server=everywhere)
    async with Bank(config=whole) as other:
        with pytest.raises(InvalidInput, match="has no tokens"):
            async with serving(make_app(other)):
                pass
        secret, _ = await AccessTokens(bank.store).make("laptop", scopes=(TokenScope.READ,))
        async with (
            serving(make_app(other)) as reachable,
            httpx2.AsyncClient(headers={"x-perdure-token": secret}) as client,
        ):
            assert reachable.url == f"http://127.0.0.1:{reachable.port}"
            answer = await client.get(f"{reachable.url}/openapi.json")
            assert answer.status_code == 200


async def test_a_port_that_is_taken(server: RunningServer, start_server: StartServer) -> None:
    config = msgspec.structs.replace(server.bank.config, server=ServerConfig(port=server.http.port))
    async with Bank(config=config) as bank:
        with pytest.raises(Unavailable, match=f"Port {server.http.port} of 127.0.0.1"):
            async with serving(make_app(bank)):
                pass


async def test_a_connection_that_says_nothing_holds_up_nobody(server: RunningServer) -> None:
    silent = socket.create_connection(("127.0.0.1", server.http.port))
    try:
        silent.sendall(b"POST /api/v1/login HTTP/1.1\r\nhost: localhost\r\ncontent-length: 9\r\n")
        await asyncio.sleep(0)
        assert (await (await server.client()).get("/healthz")).status_code == 200
    finally:
        silent.close()


@pytest.mark.parametrize("said", [b"", b"GET /healthz HTTP/1.1\r\nhost: 127.0.0.1\r\n"])
async def test_headers_that_never_end_are_not_waited_for(
    server: RunningServer, monkeypatch: pytest.MonkeyPatch, said: bytes
) -> None:
    monkeypatch.setattr(http_server, "_HEAD_SECONDS", 0.05)
    reader, writer = await asyncio.open_connection("127.0.0.1", server.http.port)
    writer.write(said)
    async with asyncio.timeout(60):
        assert await reader.read() == b""
    writer.close()
    assert (await (await server.client()).get("/healthz")).status_code == 200


async def test_a_token_that_may_only_read_spends_nothing(start_server: StartServer) -> None:
    """Where models judge what is recalled."""
    async with ScriptedModel("[]") as model:
        gateway = GatewayConfig(
            providers={"ours": model.provider_config()}, models=ModelsConfig(judge="ours/big")
        )
        server = await start_server(gateway=gateway)
        session = await server.bank.session("ada/x")
        await session.append([user("Which port?"), assistant("8123.")])
        path = "/api/v1/sessions/ada/x"
        asked: list[tuple[str, dict[str, Any], int, int]] = [
            ("recall", {"query": "port", "judged": True}, 403, 200),
            ("recall", {"query": "port"}, 200, 200),
            ("context/preview", {"prompt": "Which port?"}, 403, 200),
            ("context/preview", {"prompt": "Which port?", "recall": False}, 200, 200),
        ]
        reader = await server.client(server.token(TokenScope.READ))
        writer = await server.client(server.token(TokenScope.READ, TokenScope.WRITE))
        for what, body, read, _ in asked:
            assert (await reader.post(f"{path}/{what}", json=body)).status_code == read
        assert model.requests == []
        for what, body, _, written in asked:
            assert (await writer.post(f"{path}/{what}", json=body)).status_code == written

"""Bytes go through the proxy as they are, both ways."""

from __future__ import annotations

import asyncio
import gzip

import httpx2
import msgspec
import pytest
import websockets

import perdure
from perdure.config import Config, ProxyConfig, ServerConfig
from perdure.server.http_server import serving
from perdure.server.operations import Caller, TokenScope
from perdure.server.server_app import make_app
from tests.proxy.proxy_setup import Answer, RawRequest, RawUpstream, http, proxied

_HELLO = b'{"id":"msg_1","type":"message","role":"assistant","content":[]}'
#: Spaces, an unknown field, an escape that nobody needs: any rewriting would show.
_BODY = (
    b'{ "model":"m",  "messages" : [{"role":"user","content":"h\\u0069"}],'
    b'"new_field":{"a" : 1.50}, "max_tokens":5 }'
)
_EVENTS = [
    b'event: message_start\ndata: {"type":"message_start","message":{"content":[]}}\n\n',
    b"event: ping\ndata: {}\n\n: a comment\n\n",
    b'event: message_stop\ndata: {"type":"message_stop"}\n\n',
]


def _hello(request: RawRequest) -> Answer:
    return http(200, _HELLO, x_request_id="r1", set_cookie="a=b")


def _chunked(pieces: list[bytes]) -> Answer:
    head = (
        b"HTTP/1.1 200 X\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
    )
    chunks: Answer = [b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces]
    return [head, *chunks]


async def test_body_and_headers_go_upstream_unchanged() -> None:
    sent = {
        "x-api-key": "sk-ant-fake",
        "authorization": "Bearer fake-oauth",
        "anthropic-version": "2023-06-01",
        "anthropic-beta": "one-2025-01-01,two-2026-01-01",
        "user-agent": "claude-cli/2.1 (external, cli)",
        "content-type": "application/json",
        "x-perdure-project": "/home/ada/demo",
        "x-stainless-lang": "js",
    }
    async with RawUpstream(_hello) as upstream, proxied(upstream.url) as running:
        answer = await running.client.post("/v1/messages?beta=true", content=_BODY, headers=sent)
        assert (answer.status_code, answer.content) == (200, _HELLO)
        assert answer.headers["x-request-id"] == "r1"
        assert answer.headers["set-cookie"] == "a=b"
        assert "date" not in answer.headers
    (got,) = upstream.requests
    assert got.body == _BODY
    assert got.path == "/v1/messages?beta=true"
    names = {name.lower().decode() for name, _ in got.headers}
    assert "x-perdure-project" not in names
    for name, value in sent.items():
        if not name.startswith("x-perdure"):
            assert got.header(name) == value
    assert got.header("host") == upstream.url.removeprefix("http://")
    assert [name for name, _ in got.headers if name.lower() == b"content-length"] != []


async def test_a_compressed_body_stays_compressed() -> None:
    packed = gzip.compress(_BODY)
    async with RawUpstream(_hello) as upstream, proxied(upstream.url) as running:
        headers = {"content-encoding": "gzip", "content-type": "application/json"}
        await running.client.post("/v1/responses", content=packed, headers=headers)
    assert upstream.requests[0].body == packed
    assert upstream.requests[0].header("content-encoding") == "gzip"


async def test_a_compressed_answer_keeps_its_encoding() -> None:
    packed = gzip.compress(_HELLO)

    def zipped(request: RawRequest) -> Answer:
        assert request.header("accept-encoding") == "gzip, deflate"  # no br: we could not read it
        return http(200, packed, content_encoding="gzip")

    async with RawUpstream(zipped) as upstream, proxied(upstream.url) as running:
        headers = {"accept-encoding": "gzip, deflate, br"}
        request = running.client.build_request(
            "POST", "/v1/messages", content=_BODY, headers=headers
        )
        answer = await running.client.send(request, stream=True)
        raw = b"".join([chunk async for chunk in answer.aiter_raw()])
        await answer.aclose()
    assert raw == packed
    assert answer.headers["content-encoding"] == "gzip"


async def test_a_stream_arrives_piece_by_piece() -> None:
    """Each event is asked for only after the one before has arrived."""
    heard: list[bytes] = []
    step = asyncio.Event()

    async with (
        RawUpstream(lambda _: [*_chunked(_EVENTS[:2]), None]) as upstream,
        proxied(upstream.url) as running,
    ):
        async with running.client.stream("POST", "/v1/messages", content=_BODY) as answer:
            async for chunk in answer.aiter_raw():
                heard.append(chunk)
                if b"".join(heard) == b"".join(_EVENTS[:2]):
                    step.set()
                    break  # the upstream says no more: nothing was held back
        # The client left: the call to the provider ends.
        await asyncio.wait_for(upstream.left.wait(), 20)
    assert step.is_set()


@pytest.mark.parametrize(
    ("status", "headers"),
    [
        (400, {}),
        (401, {}),
        (429, {"retry_after": "17"}),
        (500, {}),
        (529, {"x_should_retry": "true"}),
    ],
)
async def test_errors_of_the_upstream_are_unchanged(status: int, headers: dict[str, str]) -> None:
    body = b'{"type":"error","error":{"type":"some_error","message":"No.", "more": [1, 2]}}'
    async with (
        RawUpstream(lambda _: http(status, body, **headers)) as upstream,
        proxied(upstream.url) as running,
    ):
        answer = await running.client.post("/v1/messages", content=_BODY)
    assert (answer.status_code, answer.content) == (status, body)
    for name, value in headers.items():
        assert answer.headers[name.replace("_", "-")] == value


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/v1/models?limit=1000"),
        ("POST", "/v1/messages/count_tokens?beta=true"),
        ("POST", "/v1/chat/completions"),
        ("DELETE", "/v1/files/file-1%2Fx"),
        ("POST", "/v1/something/new"),
    ],
)
async def test_every_path_goes_upstream(method: str, path: str) -> None:
    async with RawUpstream(_hello) as upstream, proxied(upstream.url) as running:
        plain = await running.client.request(method, path)
        with_token = await running.client.request(method, f"/t/pd_token{path}")
    assert plain.content == with_token.content == _HELLO
    assert [request.path for request in upstream.requests] == [path, path]


async def test_a_socket_is_answered_with_426() -> None:
    async with RawUpstream(_hello) as upstream, proxied(upstream.url) as running:
        with pytest.raises(websockets.InvalidStatus) as refused:
            async with websockets.connect(f"{running.url.replace('http', 'ws')}/v1/responses"):
                pass
    assert refused.value.response.status_code == 426


async def test_an_upstream_that_is_not_there_is_a_502_in_the_format() -> None:
    async with RawUpstream(_hello) as upstream:
        pass
    async with proxied(upstream.url) as running:
        answer = await running.client.post("/v1/messages", content=_BODY)
    assert answer.status_code == 502
    assert msgspec.json.decode(answer.content)["type"] == "error"


async def test_a_password_in_an_upstreams_address_is_not_shown() -> None:
    async with RawUpstream(_hello) as upstream:
        host = upstream.url.removeprefix("http://")
    async with proxied(f"http://user:hidden@{host}") as running:
        answer = await running.client.post("/v1/messages", content=_BODY)
    assert answer.status_code == 502
    assert host in answer.text
    assert "hidden" not in answer.text


async def test_the_server_adds_nothing_to_an_answer() -> None:
    """Through the guard and the router, with a token in a header or in the path."""
    given = {"date": "Mon, 01 Jan 2001 00:00:00 GMT", "server": "theirs", "x_request_id": "r1"}
    async with RawUpstream(lambda _: http(200, _HELLO, **given)) as upstream:
        proxy = ProxyConfig(upstreams={"anthropic": upstream.url})
        config = Config(bank="memory://", server=ServerConfig(port=0), proxy=proxy)
        async with perdure.open(config=config) as bank:
            app = make_app(bank)
            token = app.run_tokens.make(Caller("me", scopes=frozenset({TokenScope.PROXY})))
            async with (
                serving(app) as server,
                httpx2.AsyncClient(base_url=server.url, timeout=100) as client,
            ):
                told = {"x-perdure-token": token}
                first = await client.post("/v1/messages", content=_BODY, headers=told)
                second = await client.post(f"/t/{token}/v1/messages", content=_BODY)
                without = await client.post("/v1/messages", content=_BODY)
    expected = [("content-type", "application/json"), ("content-length", str(len(_HELLO)))]
    expected += [(name.replace("_", "-"), value) for name, value in given.items()]
    for answer in (first, second):
        assert (answer.status_code, answer.content) == (200, _HELLO)
        assert sorted(answer.headers.multi_items()) == sorted(expected)
    assert without.status_code == 401
    assert [name for name, _ in without.headers.multi_items()].count("date") == 1
    assert len(upstream.requests) == 2
    assert not any(token in str(request.headers) for request in upstream.requests)

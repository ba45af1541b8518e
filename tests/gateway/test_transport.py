from __future__ import annotations

import asyncio
import gzip
import json
import logging
import socket
import ssl
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from perdure.core.errors import (
    BadAnswer,
    GatewayError,
    InvalidConfig,
    PromptTooLong,
    ProviderDown,
    RateLimited,
    Rejected,
    Unauthorized,
)
from perdure.gateway.providers import Provider
from perdure.gateway.requests import ProviderRequest
from perdure.gateway.transport import ProviderResponse, Transport
from tests.gateway import faulty
from tests.gateway.bodies import chat_body, chat_events, event, message_events
from tests.gateway.faulty import Answer, Exchange, FaultyServer

#: A text that takes minutes, a word every 0.05 s.
ENDLESS = "w " * 3_000

#: Does not look like a key, so that nobody recognises it by its looks.
KEY = "0123456789abcdefghij"
CALL = ProviderRequest("/chat/completions", {"model": "m", "messages": []})


@pytest.fixture
async def server() -> AsyncIterator[FaultyServer]:
    async with FaultyServer() as server:
        yield server


@pytest.fixture
async def transport() -> AsyncIterator[Transport]:
    # Trusts nobody: reading the certificates of the system takes longer than most tests do.
    nobody = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    transport = Transport(connect=5, silence=0.4, max_bytes=1_000_000, trust=nobody)
    yield transport
    await transport.close()


def provider(server: FaultyServer | str, **fields: Any) -> Provider:
    url = server if isinstance(server, str) else f"{server.url}/v1"
    return Provider(name="p", base_url=url, **fields)


async def post(
    transport: Transport,
    server: FaultyServer | str,
    timeout: float = 5.0,  # noqa: ASYNC109
) -> ProviderResponse:
    return await transport.post(provider(server), CALL, KEY, timeout=timeout)


async def collect(transport: Transport, server: FaultyServer, timeout: float = 5.0) -> bytes:  # noqa: ASYNC109
    parts = []
    async with transport.stream(provider(server), CALL, KEY, timeout=timeout) as incoming:
        async for part in incoming:
            parts.append(part)  # noqa: PERF401  # as far as it came, in a failing test
    return b"".join(parts)


# What is sent and what comes back ---------------------------------------------------------------


async def test_a_call_and_its_answer(server: FaultyServer, transport: Transport) -> None:
    server.script(faulty.chat("Hi.", headers={"X-Ratelimit-Remaining-Requests": "3"}))
    call = ProviderRequest(
        "/chat/completions", {"model": "m", "text": "né\ud83d\ude00"}, {"x-format": "1"}
    )
    sent = await transport.post(provider(server, headers={"X-Team": "blue"}), call, KEY, timeout=5)
    assert sent.body == chat_body("Hi.")
    assert sent.headers["x-ratelimit-remaining-requests"] == "3"
    (received,) = server.requests
    assert (received.method, received.path) == ("POST", "/v1/chat/completions")
    assert received.json() == {"model": "m", "text": "né😀"}
    assert received.headers["authorization"] == f"Bearer {KEY}"
    assert received.headers["content-type"] == "application/json"
    assert received.headers["x-team"] == "blue"
    assert received.headers["x-format"] == "1"
    assert received.headers["user-agent"].startswith("perdure/")


async def test_keys_go_where_the_wire_format_wants_them(
    server: FaultyServer, transport: Transport
) -> None:
    server.script(always=faulty.message())
    await transport.post(provider(server, wire="messages"), CALL, KEY, timeout=5)
    await transport.post(provider(server), CALL, None, timeout=5)
    first, second = server.requests
    assert first.headers["x-api-key"] == KEY
    assert "authorization" not in first.headers
    assert "authorization" not in second.headers


async def test_connections_are_used_again_and_cookies_are_not_kept(
    server: FaultyServer, transport: Transport
) -> None:
    server.script(always=faulty.chat(headers={"set-cookie": "track=1"}))
    for _ in range(3):
        await post(transport, server)
    assert server.connections == 1
    assert all("cookie" not in received.headers for received in server.requests)
    (client,) = transport._clients.values()
    assert not client.cookies


async def test_after_close_a_call_opens_a_connection_again(
    server: FaultyServer, transport: Transport
) -> None:
    await post(transport, server)
    await transport.close()
    await transport.close()
    await post(transport, server)
    assert server.connections == 2


def test_every_loop_has_its_own_connections() -> None:
    transport = Transport()

    async def main() -> None:
        async with FaultyServer() as server:
            await post(transport, server)
            assert len(transport._clients) == 1  # that of the loop before is forgotten
            await transport.close()

    async def without_close() -> None:
        async with FaultyServer() as server:
            server.script(faulty.chat(headers={"connection": "close"}))
            await post(transport, server)

    asyncio.run(main())
    asyncio.run(without_close())
    asyncio.run(main())


async def test_a_compressed_answer_is_read(server: FaultyServer, transport: Transport) -> None:
    raw = gzip.compress(json.dumps(chat_body()).encode())
    headers = {**faulty.JSON, "content-encoding": "gzip"}
    server.script(faulty.respond(raw, headers=headers), faulty.respond(raw[:-30], headers=headers))
    assert (await post(transport, server)).body == chat_body()
    with pytest.raises(BadAnswer):
        await post(transport, server)


async def test_half_of_an_emoji_in_an_answer_is_no_reason_to_lose_it(
    server: FaultyServer, transport: Transport
) -> None:
    server.script(faulty.respond(b'{"choices": ["cut \\ud83d"]}'))
    assert (await post(transport, server)).body == {"choices": ["cut \ufffd"]}


@pytest.mark.slow
async def test_fifty_megabytes_are_read_and_too_much_is_not(server: FaultyServer) -> None:
    transport = Transport()
    server.script(faulty.large(50), faulty.large(68))
    sent = await post(transport, server, timeout=60)
    assert len(sent.body["choices"][0]["message"]["content"]) == 50_000_000
    with pytest.raises(BadAnswer, match="more than 64 MB"):
        await post(transport, server, timeout=60)
    await transport.close()


async def test_a_compressed_answer_is_measured_by_what_comes_out(
    server: FaultyServer, transport: Transport
) -> None:
    bomb = gzip.compress(b" " * 50_000_000)
    assert len(bomb) < 100_000
    server.script(faulty.respond(bomb, headers={**faulty.JSON, "content-encoding": "gzip"}))
    with pytest.raises(BadAnswer, match="more than"):
        await post(transport, server)


# Answers that are none --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("answer", "kind", "words"),
    [
        (faulty.page(), BadAnswer, "text/html instead of JSON"),
        (faulty.chat_stream(), BadAnswer, "text/event-stream instead of JSON"),
        (faulty.truncated_json(), BadAnswer, "broken JSON"),
        (faulty.respond(b""), BadAnswer, "nothing"),
        (faulty.respond(b"[1]"), BadAnswer, "no object"),
        (faulty.respond(b"\xff\xfe"), BadAnswer, "broken JSON"),
        (faulty.respond(b'{"a":' * 100_000), BadAnswer, "broken JSON"),
        (faulty.wrong_length(), ProviderDown, "broke off"),
        (faulty.reset(), ProviderDown, "broke"),
        (faulty.reset_inside(), ProviderDown, "broke"),
        (faulty.garbage(), ProviderDown, "does not speak HTTP"),
        (faulty.partial(b"{", ending="hang"), ProviderDown, "silent.* 0.4 s"),
        (faulty.failing(500), ProviderDown, "Something went wrong"),
        (faulty.overloaded(), ProviderDown, "Overloaded"),
        (faulty.page(502), ProviderDown, "Welcome"),
        (faulty.failing(401), Unauthorized, "key"),
        (faulty.failing(400, "maximum context length is 5"), PromptTooLong, "too long"),
        (faulty.rate_limited(), RateLimited, "Too many"),
        (faulty.partial(b'{"error"', status=503, ending="reset"), ProviderDown, "503"),
        (faulty.respond({"error": {"message": "No", "code": 402}}), Rejected, "No"),
        (faulty.respond({"success": False, "errors": [{"code": 10000}]}), Unauthorized, "key"),
        (faulty.respond({"object": "error", "message": "No"}), ProviderDown, "No"),
    ],
)
async def test_what_is_no_answer_is_an_error_that_says_why(
    server: FaultyServer,
    transport: Transport,
    answer: Answer,
    kind: type[GatewayError],
    words: str,
) -> None:
    server.script(answer)
    with pytest.raises(kind, match=words) as caught:
        await post(transport, server)
    assert type(caught.value) is kind
    assert caught.value.message.startswith("p/m ")
    assert caught.value.hint
    await post(transport, server)  # and the next call is none the worse for it


@pytest.mark.parametrize(
    ("answer", "kind", "words"),
    [
        (faulty.page(), BadAnswer, "text/html instead of a stream"),
        (faulty.chat(), BadAnswer, "application/json instead of a stream"),
        (faulty.respond({"error": {"type": "overloaded_error"}}), ProviderDown, "trouble"),
        (faulty.respond({"error": "No", "code": 429}), RateLimited, "No"),
        (faulty.truncated_json(), BadAnswer, "broken JSON"),
        (faulty.failing(429, retry_after="7"), RateLimited, "for 7 s"),
        (faulty.failing(500), ProviderDown, "Something"),
        (faulty.reset(), ProviderDown, "broke"),
        (faulty.chat_stream(after=2, ending="cut"), ProviderDown, "broke off"),
        (faulty.chat_stream(after=2, ending="reset"), ProviderDown, "broke"),
        (faulty.chat_stream(after=2, ending="hang"), ProviderDown, "silent.* 0.4 s"),
    ],
)
async def test_what_is_no_stream_is_an_error_that_says_why(
    server: FaultyServer,
    transport: Transport,
    answer: Answer,
    kind: type[GatewayError],
    words: str,
) -> None:
    server.script(answer, faulty.chat_stream())
    with pytest.raises(kind, match=words) as caught:
        await collect(transport, server)
    assert type(caught.value) is kind
    assert caught.value.message.startswith("p/m ")
    assert await collect(transport, server) == chat_events()


async def test_retry_after_comes_along(server: FaultyServer, transport: Transport) -> None:
    server.script(faulty.rate_limited(3.5))
    with pytest.raises(RateLimited) as caught:
        await post(transport, server)
    assert caught.value.retry_after == 3.5


async def test_redirects_are_not_followed(server: FaultyServer, transport: Transport) -> None:
    async with FaultyServer() as elsewhere:
        location = {"location": f"{elsewhere.url}/v1?key={KEY}"}
        server.script(*(faulty.respond(b"", status, location) for status in (301, 307, 308)))
        for _ in range(3):
            with pytest.raises(Rejected, match="another address") as caught:
                await post(transport, server)
            assert KEY not in str(caught.value)
        assert elsewhere.count == 0


# Time -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (faulty.hang(), "begin to answer within 1.5 s"),
        (faulty.slow_headers(0.05), "begin to answer within 1.5 s"),
        (faulty.chat_stream(ENDLESS, delay=0.05, headers=faulty.JSON), "finish .* within 1.5 s"),
    ],
)
async def test_the_callers_time_bounds_everything(
    server: FaultyServer, transport: Transport, answer: Answer, words: str
) -> None:
    server.script(answer)
    with pytest.raises(ProviderDown, match=words):
        await post(transport, server, timeout=1.5)


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (faulty.hang(), "begin to answer within 1.5 s"),
        (faulty.chat_stream(after=0, ending="hang"), "begin to answer within 1.5 s"),
        (faulty.chat_stream(ENDLESS, delay=0.05), "finish .* within 1.5 s"),
    ],
)
async def test_the_callers_time_bounds_streams_too(
    server: FaultyServer, transport: Transport, answer: Answer, words: str
) -> None:
    server.script(answer)
    with pytest.raises(ProviderDown, match=words):
        await collect(transport, server, timeout=1.5)


async def test_a_model_may_think_for_longer_than_it_may_be_silent(
    server: FaultyServer, transport: Transport
) -> None:
    async def think(exchange: Exchange) -> None:
        await exchange.head(200, {"transfer-encoding": "chunked", **faulty.SSE})
        await asyncio.sleep(0.6)
        await exchange.chunk(chat_events())
        await exchange.chunk(b"")

    server.script(faulty.slow(0.6, faulty.chat()), think)
    assert (await post(transport, server)).body == chat_body()
    assert await collect(transport, server) == chat_events()


async def test_a_reader_that_takes_its_time_is_not_a_silent_provider(
    server: FaultyServer, transport: Transport
) -> None:
    server.script(faulty.chat_stream("a b c"))
    parts = []
    async with transport.stream(provider(server), CALL, KEY, timeout=5) as incoming:
        async for part in incoming:
            parts.append(part)
            if len(parts) == 1:
                await asyncio.sleep(0.6)
    assert b"".join(parts) == chat_events("a b c")


# Streams ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("data", [chat_events("né 😀 done"), message_events("né 😀 done")])
@pytest.mark.parametrize("sizes", [(), (1,), (3, 50, 7), (10_000,)])
async def test_a_stream_arrives_as_it_was_sent(
    server: FaultyServer, transport: Transport, data: bytes, sizes: tuple[int, ...]
) -> None:
    server.script(faulty.stream(data, sizes=sizes, headers={"x-id": "7"}))
    parts = []
    async with transport.stream(provider(server), CALL, KEY, timeout=5) as incoming:
        assert incoming.headers["x-id"] == "7"
        parts = [part async for part in incoming]
    assert b"".join(parts) == data
    assert server.requests[0].headers["accept"] == "text/event-stream"


async def test_parts_arrive_while_the_rest_is_still_to_come(
    server: FaultyServer, transport: Transport
) -> None:
    arrived = asyncio.Event()

    async def one_by_one(exchange: Exchange) -> None:
        await exchange.head(200, {"transfer-encoding": "chunked", **faulty.SSE})
        for letter in "abcde":
            await exchange.chunk(letter.encode())
            await arrived.wait()  # nothing more is sent before
            arrived.clear()
        await exchange.chunk(b"")

    server.script(one_by_one)
    parts = []
    async with transport.stream(provider(server), CALL, KEY, timeout=60) as incoming:
        async for part in incoming:
            parts.append(part)
            arrived.set()
    assert parts == [b"a", b"b", b"c", b"d", b"e"]


async def test_a_stream_without_a_type_is_given_a_chance(
    server: FaultyServer, transport: Transport
) -> None:
    async def untyped(exchange: Exchange) -> None:
        await exchange.head(200, {"content-length": "6"})
        await exchange.write(b"data: ")

    server.script(untyped)
    assert await collect(transport, server) == b"data: "


async def test_a_stream_that_is_too_long_is_ended(
    server: FaultyServer, transport: Transport
) -> None:
    server.script(faulty.stream(event({"x": "y" * 100_000}) * 20))
    with pytest.raises(BadAnswer, match="more than"):
        await collect(transport, server)


async def test_a_stream_that_is_left_gives_its_connection_up(
    server: FaultyServer, transport: Transport
) -> None:
    server.script(*[faulty.chat_stream("a b c", ending="hang")] * 4)
    for _ in range(3):
        async with transport.stream(provider(server), CALL, KEY, timeout=5) as incoming:
            await anext(aiter(incoming))
    with pytest.raises(KeyError):
        async with transport.stream(provider(server), CALL, KEY, timeout=5):
            raise KeyError
    await post(transport, server)


# Callers who leave ------------------------------------------------------------------------------


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("delay", [0.0, 0.01, 0.05])
async def test_cancelled_calls_leave_the_pool_usable(
    server: FaultyServer, streaming: bool, delay: float
) -> None:
    transport = Transport()
    hanging = faulty.chat_stream(after=1, ending="hang") if streaming else faulty.hang()
    server.script(*[hanging] * 40)
    call: Callable[..., Any] = collect if streaming else post
    tasks = [asyncio.create_task(call(transport, server)) for _ in range(40)]
    await asyncio.sleep(delay)
    for task in tasks:
        task.cancel()
    ends = await asyncio.gather(*tasks, return_exceptions=True)
    assert all(isinstance(end, asyncio.CancelledError) for end in ends)
    server.script()
    await asyncio.gather(*(post(transport, server, timeout=60) for _ in range(40)))
    (client,) = transport._clients.values()
    pool = client._transport._pool  # type: ignore[attr-defined]
    assert not pool._requests
    assert len(pool._connections) <= 32
    await transport.close()


@pytest.mark.slow
async def test_a_thousand_calls_at_once(server: FaultyServer) -> None:
    transport = Transport()
    faults = [faulty.reset(), faulty.failing(500), faulty.truncated_json()] * 100
    server.script(*faults)
    calls = (post(transport, server, timeout=60) for _ in range(1_000))
    ends = await asyncio.gather(*calls, return_exceptions=True)
    assert sum(isinstance(end, ProviderResponse) for end in ends) == 700
    assert all(isinstance(end, ProviderResponse | ProviderDown | BadAnswer) for end in ends)
    assert server.count == 1_000
    assert server.most <= 512
    await transport.close()


# Providers that are not there -------------------------------------------------------------------


async def test_nothing_listens(transport: Transport) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with pytest.raises(ProviderDown, match=f"nothing listens at 127.0.0.1:{port}") as caught:
        await post(transport, f"http://127.0.0.1:{port}/v1")
    assert "Start the server" in caught.value.hint


async def test_nobody_knows_the_name(transport: Transport, monkeypatch: pytest.MonkeyPatch) -> None:
    async def unknown(*_: object, **__: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", unknown)
    with pytest.raises(ProviderDown, match=r"nobody knows the name api\.invalid"):
        await post(transport, "https://api.invalid/v1")


async def test_a_connection_that_is_not_made_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    async def swallow(*_: object, **__: object) -> None:
        await asyncio.sleep(3_600)

    monkeypatch.setattr(asyncio.get_running_loop(), "create_connection", swallow)
    transport = Transport(connect=0.1)
    with pytest.raises(ProviderDown, match=r"no connection to 127\.0\.0\.1"):
        await post(transport, "http://127.0.0.1:9/v1")
    await transport.close()


async def test_a_certificate_that_nobody_trusts(transport: Transport) -> None:
    async with FaultyServer(tls=True) as server:
        with pytest.raises(ProviderDown, match=r"cannot be trusted: self.signed") as caught:
            await post(transport, server)
        assert "SSL_CERT_FILE" in caught.value.hint
        assert server.count == 0
        trusting = Transport(trust=server.trusting())
        assert (await post(trusting, server)).body == chat_body()
        server.script(faulty.chat_stream("a b"), faulty.reset_inside())
        assert await collect(trusting, server) == chat_events("a b")
        with pytest.raises(ProviderDown, match="broke"):
            await post(trusting, server)
        await trusting.close()


async def test_a_certificate_for_somebody_else() -> None:
    async with FaultyServer(tls=True, name="elsewhere.example") as server:
        transport = Transport(trust=server.trusting())
        with pytest.raises(ProviderDown, match=r"cannot be trusted: .*127\.0\.0\.1"):
            await post(transport, server)
        await transport.close()


async def test_https_where_only_http_is_spoken(server: FaultyServer, transport: Transport) -> None:
    with pytest.raises(ProviderDown, match="no TLS with") as caught:
        await post(transport, server.url.replace("http:", "https:"))
    assert "https" in caught.value.hint


@pytest.mark.parametrize("url", ["ftp://127.0.0.1/v1", "127.0.0.1:80", "http://127.0.0.1:x/v1", ""])
async def test_an_address_that_is_none(transport: Transport, url: str) -> None:
    with pytest.raises(Rejected, match="address of p/m cannot be used"):
        await post(transport, url)


async def test_proxies_do_not_stand_between_us_and_this_machine(
    server: FaultyServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with FaultyServer() as proxy:
        monkeypatch.setenv("HTTP_PROXY", proxy.url)
        monkeypatch.setenv("NO_PROXY", "")
        transport = Transport()
        await post(transport, server)
        assert (server.count, proxy.count) == (1, 0)
        await post(transport, "http://far.invalid/v1")
        assert proxy.requests[0].headers["host"] == "far.invalid"
        await transport.close()


async def test_a_proxy_that_cannot_be_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "gopher://127.0.0.1:70")
    with pytest.raises(InvalidConfig, match="proxy"):
        await post(Transport(), "http://far.invalid/v1")


@pytest.mark.parametrize("answer", [faulty.respond({"data": []}), faulty.failing(404)])
async def test_a_provider_is_reached_without_spending_anything(
    server: FaultyServer, transport: Transport, answer: Answer
) -> None:
    server.script(answer)
    await transport.reach(provider(server, wire="messages"), KEY, timeout=5)
    (received,) = server.requests
    assert (received.method, received.path, received.body) == ("GET", "/v1/models", b"")
    assert received.headers["x-api-key"] == KEY
    assert "anthropic-version" in received.headers


@pytest.mark.parametrize(
    ("body", "names"),
    [
        ({"data": [{"id": "a"}, {"id": "b", "owned_by": "us"}]}, ("a", "b")),
        ({"data": [{"id": "a", "type": "model"}], "has_more": False}, ("a",)),
        ({"data": [{"id": "a", "type": "model"}], "has_more": True}, None),
        ({"models": [{"name": "a:latest", "model": "a:latest"}]}, ("a:latest", "a:latest")),
        ({"object": "list", "data": None}, ()),
        ({"data": []}, ()),
        ({}, None),
        ({"data": [1]}, None),
        ([], None),
        (b"<html>", None),
        ({"data": [{"id": "x" * 1_000}] * 3_000}, None),  # longer than is read
    ],
)
async def test_the_models_that_a_provider_lists(
    server: FaultyServer, transport: Transport, body: Any, names: Any
) -> None:
    server.script(faulty.respond(body))
    assert await transport.reach(provider(server), KEY, timeout=5) == names


@pytest.mark.parametrize("status", [404, 405])
async def test_an_address_without_a_path_may_be_wrong(
    server: FaultyServer, transport: Transport, status: int
) -> None:
    server.script(always=faulty.failing(status))
    with pytest.raises(Rejected, match=rf"{status} at .*/models.*ends with /v1"):
        await transport.reach(provider(server.url), KEY, timeout=5)
    assert await transport.reach(provider(server), KEY, timeout=5) is None


@pytest.mark.parametrize(
    ("fields", "hint"),
    [
        ({"key_variable": "OUR_KEY"}, "Set the variable OUR_KEY"),
        ({}, r"key_variable = .* under \[gateway.providers.p\]"),
        ({"name": "http://box/v1"}, r"\[gateway.providers.NAME\]"),
    ],
)
async def test_who_sent_no_key_is_told_so(
    server: FaultyServer, transport: Transport, fields: dict[str, Any], hint: str
) -> None:
    unkeyed = Provider(**{"name": "p", "base_url": f"{server.url}/v1", **fields})
    server.script(always=faulty.failing(401, "who are you"))
    with pytest.raises(Unauthorized, match=f"wants a key, and none was sent.*{hint}"):
        await transport.post(unkeyed, CALL, None, timeout=5)
    with pytest.raises(Unauthorized, match=f"none was sent.*who are you.*{hint}"):
        await transport.reach(unkeyed, None, timeout=5)
    with pytest.raises(Unauthorized, match="does not accept the key"):
        await transport.reach(unkeyed, KEY, timeout=5)
    server.script(always=faulty.respond({"error": {"code": "invalid_api_key", "message": "No"}}))
    with pytest.raises(Unauthorized, match="none was sent"):
        await transport.post(unkeyed, CALL, None, timeout=5)
    with pytest.raises(Unauthorized, match="none was sent"):
        await transport.post(provider(server, headers={"x-title": "us"}), CALL, None, timeout=5)
    by_header = provider(server, headers={"X-Key": KEY})
    with pytest.raises(Unauthorized, match="does not accept the key"):
        await transport.post(by_header, CALL, None, timeout=5)


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (faulty.failing(401), Unauthorized),
        (faulty.failing(503), ProviderDown),
        (faulty.hang(), ProviderDown),
        (faulty.reset(), ProviderDown),
    ],
)
async def test_a_provider_that_is_not_reached(
    server: FaultyServer, transport: Transport, answer: Answer, kind: type[GatewayError]
) -> None:
    server.script(answer)
    with pytest.raises(kind, match=r"^p "):
        await transport.reach(provider(server), KEY, timeout=0.3)


# Keys -------------------------------------------------------------------------------------------


def everything_in(error: BaseException | None) -> str:
    """What any reporter of errors might show of one."""
    shown = []
    while error is not None:
        shown += [str(error), repr(error), repr(vars(error))]
        request = getattr(error, "_request", None)
        if request is not None:
            shown.append(repr(request.headers.raw))
        error = error.__cause__ or error.__context__
    return "\n".join(shown)


def echo(status: int, type: str = "application/json") -> Answer:
    """A server that repeats all it was sent."""

    async def answer(exchange: Exchange) -> None:
        headers = exchange.received.headers
        names = ("authorization", "x-api-key", "x-second")
        sent = " ".join(headers[name] for name in names if name in headers)
        # Once in full, and once where it will be cut off in its middle.
        body = {"error": {"message": f"{sent} {sent} ".ljust(285, "x") + sent}}
        await faulty.respond(body, status, {"content-type": type})(exchange)

    return answer


@pytest.mark.parametrize("wire", ["chat", "messages"])
@pytest.mark.parametrize(
    "answer",
    [
        echo(200),
        echo(400),
        echo(401),
        echo(500, "text/plain"),
        faulty.reset(),
        faulty.reset_inside(),
        faulty.hang(),
        faulty.garbage(),
        faulty.truncated_json(),
        faulty.page(),
    ],
)
async def test_keys_are_shown_nowhere(
    server: FaultyServer,
    transport: Transport,
    caplog: pytest.LogCaptureFixture,
    answer: Answer,
    wire: Any,
) -> None:
    caplog.set_level(logging.DEBUG)
    server.script(answer, answer)
    far = provider(server, wire=wire, headers={"X-Second": "another-secret-key"})
    far_with_user = provider(server.url.replace("://", "://somebody:password-of-mine@"), wire=wire)
    for where in (far, far_with_user):
        with pytest.raises(GatewayError) as caught:
            await transport.post(where, CALL, KEY, timeout=0.3)
        shown = everything_in(caught.value) + caplog.text
        for secret in (KEY, KEY[:8], "another-secret-key", "another-se", "password-of-mine"):
            assert secret not in shown


@pytest.mark.parametrize("key", ["sk-line\nbreak", "sk-ключ", "sk-\x00nul"])
async def test_a_key_that_no_header_can_hold_is_not_quoted(
    server: FaultyServer, transport: Transport, key: str
) -> None:
    with pytest.raises(Unauthorized) as caught:
        await transport.post(provider(server), CALL, key, timeout=5)
    assert key not in everything_in(caught.value)
    assert server.count == 0


@pytest.mark.parametrize("value", ["line\nbreak", "ключ"])
async def test_a_header_that_cannot_be_sent(
    server: FaultyServer, transport: Transport, value: str
) -> None:
    with pytest.raises(Rejected, match="header") as caught:
        await transport.post(provider(server, headers={"x": value}), CALL, KEY, timeout=5)
    assert value not in str(caught.value)


def test_the_http_client_is_imported_with_the_first_call() -> None:
    code = "import sys, perdure.gateway.transport; print('httpx2' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"

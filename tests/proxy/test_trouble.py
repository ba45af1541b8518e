"""Streams that break, requests at the same time, several processes on one bank."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import msgspec
import pytest

import perdure
from perdure.testing.model import ReceivedRequest, ScriptedAnswer, ScriptedFault, ScriptedModel
from tests.proxy.proxy_setup import RawRequest, RawUpstream, RunningProxy, http, proxied
from tests.proxy.test_recording import recorded, settled

_TOOLS = [{"name": "Bash", "input_schema": {"type": "object"}}]


def body(*said: str, stream: bool = True) -> dict[str, Any]:
    """Prompts and replies in turn."""
    roles = ("user", "assistant")
    messages = [{"role": roles[at % 2], "content": text} for at, text in enumerate(said)]
    return {
        "model": "m",
        "max_tokens": 9,
        "stream": stream,
        "messages": messages,
        "tools": _TOOLS,
    }


async def ask(running: RunningProxy, name: str, *said: str, stream: bool = True) -> bytes:
    headers = {"x-claude-code-session-id": name}
    answer = await running.client.post(
        "/v1/messages", json=body(*said, stream=stream), headers=headers
    )
    return answer.content


@pytest.mark.parametrize("how", ["reset", "truncated"])
async def test_a_stream_that_breaks_breaks_for_the_client_and_leaves_a_draft(how: Any) -> None:
    broken = ScriptedFault(how=how, after=5, answer=ScriptedAnswer("One two three four", chunk=4))
    async with ScriptedModel(broken) as model, proxied(model.url) as running:
        with pytest.raises(httpx2.RemoteProtocolError):
            await ask(running, "c1", "Count.")
        await settled(running)
        (info,) = await running.bank.sessions()
        (partial,) = await (await running.bank.existing_session(info.name)).partials()
        assert partial.message.text.startswith("One")
        # The client asks again: what had arrived is kept as an event, and stands in no one's way.
        model._script = ScriptedAnswer("One two three four")
        await ask(running, "c1", "Count.")
        await settled(running)
        session = await running.bank.existing_session(info.name)
        (turn,) = await session.turns()
        assert [(m.role, m.name) for m in turn.messages] == [
            ("user", ""),
            ("event", "aborted"),
            ("assistant", ""),
        ]
        assert turn.status == "closed"


async def test_a_stream_that_breaks_at_once_has_no_end_for_the_client() -> None:
    broken = ScriptedFault(how="reset", after=1)
    async with ScriptedModel(broken) as model, proxied(model.url) as running:
        given = {"model": "m", "input": "Hi.", "stream": True}
        with pytest.raises(httpx2.RemoteProtocolError):
            await running.client.post("/v1/responses", json=given)


async def test_an_error_in_the_middle_of_a_stream_reaches_the_client() -> None:
    fault = ScriptedFault(status=529, after=4, answer=ScriptedAnswer("One two three", chunk=4))
    async with ScriptedModel(fault) as model, proxied(model.url) as running:
        got = await ask(running, "c1", "Count.")
        assert b"overloaded_error" in got
        await settled(running)
        (info,) = await running.bank.sessions()
        session = await running.bank.existing_session(info.name)
        assert len(await session.partials()) == 1


async def test_many_conversations_at_the_same_time() -> None:
    def reply(request: ReceivedRequest) -> ScriptedAnswer:
        return ScriptedAnswer(f"Reply to {request.prompt}", chunk=6)

    async def talk(running: RunningProxy, name: str) -> None:
        said: list[str] = []
        for number in range(3):
            said.append(f"{name} prompt {number}")
            await ask(running, name, *said, stream=number != 1)
            said.append(f"Reply to {said[-1]}")

    async with ScriptedModel(reply) as model, proxied(model.url) as running:
        await asyncio.gather(*(talk(running, f"c{n}") for n in range(20)))
        await settled(running)
        assert running.proxy.report.figures.failures == 0
        for info in await running.bank.sessions():
            name = info.name.partition("/")[2]
            said = await recorded(running.bank, info.name)
            assert said[0::2] == [f"user: {name} prompt {n}" for n in range(3)]
            assert said[1::2] == [f"assistant: Reply to {name} prompt {n}" for n in range(3)]


async def test_parallel_requests_of_one_conversation_lose_nothing() -> None:
    """Two clients at the same point of one conversation: two lines, each whole."""

    def reply(request: ReceivedRequest) -> ScriptedAnswer:
        return ScriptedAnswer(f"Reply {request.number}", chunk=3, chunk_delay=0.001)

    async with ScriptedModel(reply) as model, proxied(model.url) as running:
        await ask(running, "c1", "Hello.")
        one = ["Hello.", "Reply 0", "Left?"]
        two = ["Hello.", "Reply 0", "Right?"]
        await asyncio.gather(ask(running, "c1", *one), ask(running, "c1", *two))
        answers = {request.prompt: f"Reply {request.number}" for request in model.requests}
        one += [answers["Left?"], "And then?"]
        two += [answers["Right?"], "And then?"]
        await ask(running, "c1", *one)
        await ask(running, "c1", *two)
        await settled(running)
        assert running.proxy.report.figures.failures == 0
        lines = [await recorded(running.bank, info.name) for info in await running.bank.sessions()]
        last = {r.number: f"Reply {r.number}" for r in model.requests}
        for said, number in ((one, 3), (two, 4)):
            line = [f"{('user', 'assistant')[at % 2]}: {text}" for at, text in enumerate(said)]
            assert [*line, f"assistant: {last[number]}"] in lines


async def test_two_proxies_on_one_bank(tmp_path: Path) -> None:
    """A conversation goes on at another process, and back, and is there once."""
    url = f"sqlite:///{tmp_path}/bank.db"

    def reply(request: ReceivedRequest) -> ScriptedAnswer:
        return ScriptedAnswer(f"Reply {request.number}")

    async with (
        ScriptedModel(reply) as model,
        proxied(model.url, url) as first,
        proxied(model.url, url) as second,
    ):
        said: list[str] = []
        for number in range(6):
            said.append(f"Prompt {number}")
            running = (first, second)[number % 2]
            await ask(running, "c1", *said)
            await settled(running)
            said.append(f"Reply {number}")
        expected = [f"{('user', 'assistant')[at % 2]}: {text}" for at, text in enumerate(said)]
        assert await recorded(first.bank) == expected


async def test_what_has_arrived_is_there_while_the_answer_arrives(tmp_path: Path) -> None:
    """Another process sees it: so it would be there after a kill."""
    url = f"sqlite:///{tmp_path}/bank.db"
    hangs = ScriptedFault(how="hang", after=6, answer=ScriptedAnswer("One two three four", chunk=4))
    async with ScriptedModel(hangs) as model, proxied(model.url, url) as running:
        headers = {"x-claude-code-session-id": "c1"}
        async with running.client.stream(
            "POST", "/v1/messages", json=body("Count."), headers=headers
        ) as answer:
            chunks = answer.aiter_raw()
            while b"two" not in await anext(chunks):
                pass
            async with perdure.open(url) as other, asyncio.timeout(60):
                while True:
                    for info in await other.sessions():
                        session = await other.existing_session(info.name)
                        for partial in await session.partials():
                            if partial.message.text.startswith("One"):
                                (turn,) = await session.turns()
                                assert turn.prompt == "Count."
                                assert partial.writer == "alive"
                                return
                    await asyncio.sleep(0.05)


async def test_a_locked_bank_does_not_hold_a_request_up() -> None:
    """The answer is there while what is to be recorded still waits."""
    async with ScriptedModel("Fine.") as model, proxied(model.url) as running:
        await ask(running, "c1", "Hi.")
        await settled(running)
        free = asyncio.Event()

        async def locked(*_: Any) -> None:
            await free.wait()

        running.bank.services.log.join(locked)
        first = ["user: Hi.", "assistant: Fine."]
        assert b"message_stop" in await ask(running, "c1", "Hi.", "Fine.", "Bye.")
        assert await recorded(running.bank) == first
        free.set()
        await settled(running)
        assert await recorded(running.bank) == [*first, "user: Bye.", "assistant: Fine."]


async def test_secrets_and_long_texts_are_known_again_after_a_restart(tmp_path: Path) -> None:
    """They are not stored as the client sends them: masked, and in the artifact store."""
    url = f"sqlite:///{tmp_path}/bank.db"
    key = "ghp_" + "x7Kq9Zt3Lm5Np8Rw2Vb4" + "Yc6Hd1Jf0Gs9AaBb"
    secret = f"Use {key}, please."
    long = "\n".join(f"Line {number} of a long prompt." for number in range(1_000))

    def reply(request: ReceivedRequest) -> ScriptedAnswer:
        return ScriptedAnswer(f"{secret} {long}" if request.number == 1 else "Fine.")

    async with ScriptedModel(reply) as model:
        said: list[str] = []
        for text in (secret, long, "And now?", "Thanks."):
            said.append(text)
            async with proxied(model.url, url) as running:
                await ask(running, "c1", *said)
                await settled(running)
            said.append(f"{secret} {long}" if text == long else "Fine.")
        async with perdure.open(url) as bank:
            (info,) = await bank.sessions()
            assert (info.turns, info.messages) == (4, 8)
            session = await bank.existing_session(info.name)
            turns = await session.turns(resolve=True)
            assert key not in str(turns)
            assert turns[1].prompt == long


@pytest.mark.parametrize("strict", [False, True])
async def test_a_body_that_cannot_be_read_is_no_silent_gap(strict: bool) -> None:
    async with (
        RawUpstream(lambda _: http(200, b"{}")) as upstream,
        proxied(upstream.url, strict=strict) as running,
    ):
        answer = await running.client.post(
            "/v1/messages", content=b"{}", headers={"content-encoding": "br"}
        )
        assert answer.status_code == (503 if strict else 200)
        assert [each.body for each in upstream.requests] == ([] if strict else [b"{}"])
        assert running.proxy.report.figures.failures == 1


async def test_half_a_surrogate_pair_does_not_end_the_recording() -> None:
    said = rb"half \ud83d, whole \ud83d\ude00, \\ud83d, \uDE00"
    given = b'{"model":"m","max_tokens":9,"messages":[{"role":"user","content":"%b"}]}' % said
    reply = {"role": "assistant", "content": [{"type": "text", "text": "Fine."}]}
    async with (
        RawUpstream(lambda _: http(200, msgspec.json.encode(reply))) as upstream,
        proxied(upstream.url, strict=True) as running,
    ):
        answer = await running.client.post("/v1/messages", content=given)
        await settled(running)
        assert (answer.status_code, upstream.requests[0].body) == (200, given)
        prompt = "user: half \ufffd, whole \U0001f600, \\ud83d, \ufffd"
        assert await recorded(running.bank) == [prompt, "assistant: Fine."]


_LOOK_UP = {
    "type": "message",
    "role": "assistant",
    "stop_reason": "tool_use",
    "content": [{"type": "tool_use", "id": "t1", "name": "recall", "input": {"query": "a"}}],
}


@pytest.mark.parametrize("how", ["refused", "broken off"])
async def test_an_upstream_that_is_gone_after_a_look_up_is_a_502(how: str) -> None:
    def broken() -> Iterator[bytes]:
        yield b"HTTP/1.1 200 X\r\ncontent-length: 99\r\n\r\n{"
        raise ConnectionError

    def answers(_: RawRequest) -> Any:
        if len(upstream.requests) > 1:
            return broken()
        if how == "refused":
            upstream._server.close()
        return http(200, msgspec.json.encode(_LOOK_UP), connection="close")

    async with RawUpstream(answers) as upstream, proxied(upstream.url, tools=True) as running:
        given = body("Hi.", stream=False)
        answer = await running.client.post("/v1/messages", json=given)
        assert answer.status_code == 502
        assert answer.json()["error"]["type"] == "api_error"
        assert running.proxy.report.figures.failed_upstream == 1


@pytest.mark.parametrize(
    "said",
    [
        b"[]",
        b"null",
    ],
)
async def test_an_answer_in_no_form_we_know_is_passed_on_with_tools(said: bytes) -> None:
    async with (
        RawUpstream(lambda _: http(200, said)) as upstream,
        proxied(upstream.url, tools=True) as running,
    ):
        for path in ("/v1/messages", "/v1/chat/completions"):
            answer = await running.client.post(path, json=body("Hi.", stream=False))
            assert (answer.status_code, answer.content) == (200, said)

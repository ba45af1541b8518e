"""The scripted model, seen by the official SDKs and by a plain HTTP client."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from typing import Any

import anthropic
import httpx2
import openai
import pytest

from perdure.core.errors import InvalidInput
from perdure.core.messages import ToolCall, Usage
from perdure.testing import ReceivedRequest, Script, ScriptedAnswer, ScriptedFault, ScriptedModel

HI: list[Any] = [{"role": "user", "content": "Hi!"}]
FULL = ScriptedAnswer(
    "The files are listed. ✓ " * 4,
    calls=(
        ToolCall("c1", "shell", '{"command": "ls -la /tmp/somewhere"}'),
        ToolCall("c2", "read", '{"path": "a.py"}'),
    ),
    reasoning="First look, then speak, and not the other way round.",
    usage=Usage(input=100, output=20, cache_read=60, reasoning=8),
)
FAILURES = (httpx2.ReadTimeout, httpx2.ReadError, httpx2.RemoteProtocolError)
NAMES = [(call.id, call.name, call.arguments) for call in FULL.calls]


@pytest.fixture
async def http() -> AsyncIterator[httpx2.AsyncClient]:
    async with httpx2.AsyncClient(trust_env=False, timeout=5) as client:
        yield client


def openai_client(model: ScriptedModel, key: str = "k") -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=model.url, api_key=key, max_retries=0)


def anthropic_client(model: ScriptedModel, key: str = "k") -> anthropic.AsyncAnthropic:
    return anthropic.AsyncAnthropic(
        base_url=model.url.removesuffix("/v1"), api_key=key, max_retries=0
    )


# What the SDKs read ---------------------------------------------------------------------------


async def test_chat_completions_as_the_sdk_reads_them() -> None:
    async with ScriptedModel(FULL) as model, openai_client(model) as client:
        done = await client.chat.completions.create(model="m", messages=HI)
        (choice,) = done.choices
        assert choice.message.content == FULL.text
        assert choice.finish_reason == "tool_calls"
        assert choice.message.tool_calls is not None
        assert [
            (call.id, call.function.name, call.function.arguments)
            for call in choice.message.tool_calls
            if call.type == "function"
        ] == NAMES
        assert choice.message.model_extra == {"reasoning_content": FULL.reasoning}
        assert done.usage is not None
        assert done.usage.prompt_tokens == 100
        assert done.usage.prompt_tokens_details is not None
        assert done.usage.prompt_tokens_details.cached_tokens == 60
        assert done.model == "m"


async def test_streamed_chat_completions_add_up_to_the_same() -> None:
    async with ScriptedModel(FULL) as model, openai_client(model) as client:
        async with client.chat.completions.stream(
            model="m", messages=HI, stream_options={"include_usage": True}
        ) as stream:
            done = await stream.get_final_completion()
        (choice,) = done.choices
        assert choice.message.content == FULL.text
        assert choice.finish_reason == "tool_calls"
        assert choice.message.tool_calls is not None
        assert [
            (call.id, call.function.name, call.function.arguments)
            for call in choice.message.tool_calls
        ] == NAMES
        assert done.usage is not None
        assert done.usage.completion_tokens == 20


@pytest.mark.parametrize("stream", [False, True])
async def test_responses_as_the_sdk_reads_them(stream: bool) -> None:
    async with ScriptedModel(FULL) as model, openai_client(model) as client:
        if stream:
            async with client.responses.stream(model="m", input="Hi!") as events:
                done: Any = await events.get_final_response()
        else:
            done = await client.responses.create(model="m", input="Hi!")
        assert done.output_text == FULL.text
        assert [item.type for item in done.output] == [
            *("reasoning", "message", "function_call", "function_call")
        ]
        assert done.output[0].summary[0].text == FULL.reasoning
        calls = [(item.call_id, item.name, item.arguments) for item in done.output[2:]]
        assert calls == NAMES
        assert done.status == "completed"
        assert done.usage.input_tokens == 100
        assert done.usage.input_tokens_details.cached_tokens == 60
        assert done.usage.output_tokens_details.reasoning_tokens == 8


@pytest.mark.parametrize("stream", [False, True])
async def test_anthropic_messages_as_the_sdk_reads_them(stream: bool) -> None:
    async with ScriptedModel(FULL) as model, anthropic_client(model) as client:
        if stream:
            async with client.messages.stream(model="m", max_tokens=9, messages=HI) as events:
                done: Any = await events.get_final_message()
        else:
            done = await client.messages.create(model="m", max_tokens=9, messages=HI)
        thinking, text, *uses = done.content
        assert thinking.thinking == FULL.reasoning
        assert thinking.signature
        assert text.text == FULL.text
        assert [(use.id, use.name, use.input) for use in uses] == [
            (id_, name, json.loads(arguments)) for id_, name, arguments in NAMES
        ]
        assert done.stop_reason == "tool_use"
        assert done.usage.input_tokens == 40  # without those of the cache
        assert done.usage.cache_read_input_tokens == 60
        assert done.usage.output_tokens == 20


async def test_the_length_of_an_answer_can_be_reached() -> None:
    async with ScriptedModel(ScriptedAnswer("Half a", finish="length")) as model:
        async with openai_client(model) as client:
            chat = await client.chat.completions.create(model="m", messages=HI)
            assert chat.choices[0].finish_reason == "length"
            responses = await client.responses.create(model="m", input="Hi!")
            assert responses.status == "incomplete"
            assert responses.incomplete_details is not None
            assert responses.incomplete_details.reason == "max_output_tokens"
        async with anthropic_client(model) as other:
            message = await other.messages.create(model="m", max_tokens=1, messages=HI)
            assert message.stop_reason == "max_tokens"


async def test_embeddings_and_models() -> None:
    async with ScriptedModel(models=("a", "b"), dimension=4) as model:
        async with openai_client(model) as client:
            done = await client.embeddings.create(
                model="e", input=["one", "two", "one"], encoding_format="float"
            )
            vectors = [item.embedding for item in done.data]
            assert [len(vector) for vector in vectors] == [4, 4, 4]
            assert vectors[0] == vectors[2] != vectors[1]
            assert [m.id async for m in client.models.list()] == ["a", "b"]
        async with anthropic_client(model) as other:
            assert [m.id async for m in other.models.list()] == ["a", "b"]


# Scripts ---------------------------------------------------------------------------------------


async def said(http: httpx2.AsyncClient, model: ScriptedModel, text: str = "Hi!") -> str:
    body = {"model": "m", "messages": [{"role": "user", "content": text}]}
    response = await http.post(f"{model.url}/chat/completions", json=body)
    answer = response.json()
    if response.status_code != 200:
        return f"{response.status_code} {answer['error']['message']}"
    return str(answer["choices"][0]["message"]["content"])


async def test_a_list_is_used_up_in_order(http: httpx2.AsyncClient) -> None:
    script: Script = [
        "One.",
        ScriptedAnswer("Two."),
        ScriptedFault(status=503, message="Not now."),
        "Four.",
    ]
    async with ScriptedModel(script) as model:
        heard = [await said(http, model) for _ in range(5)]
    assert heard[:4] == ["One.", "Two.", "503 Not now.", "Four."]
    assert heard[4].startswith("500 The script has ended")


async def later(request: ReceivedRequest) -> str:
    await asyncio.sleep(0)
    return f"{request.number}: {request.prompt}"


@pytest.mark.parametrize(
    "script", [lambda request: f"{request.number}: {request.prompt}", later], ids=["sync", "async"]
)
async def test_a_function_decides(http: httpx2.AsyncClient, script: Script) -> None:
    async with ScriptedModel(script) as model:
        assert await said(http, model, "first") == "0: first"
        assert await said(http, model, "second") == "1: second"


async def test_what_a_script_raises_reaches_the_test(http: httpx2.AsyncClient) -> None:
    def script(request: ReceivedRequest) -> str:
        raise LookupError(request.prompt)

    model = await ScriptedModel(script).__aenter__()
    with pytest.raises(httpx2.RemoteProtocolError):
        await said(http, model)
    with pytest.raises(LookupError, match="Hi!"):
        await model.__aexit__(None, None, None)


async def test_requests_are_recorded_in_every_format() -> None:
    async with ScriptedModel("Fine.") as model:
        async with openai_client(model, "secret") as client:
            await client.chat.completions.create(model="m1", messages=HI)
            await client.responses.create(model="m2", input="Hi!", instructions="Be kind.")
        async with anthropic_client(model) as other:
            await other.messages.create(model="m3", max_tokens=1, messages=HI, system="Be kind.")
    assert [r.kind for r in model.requests] == ["chat", "responses", "messages"]
    assert [r.model for r in model.requests] == ["m1", "m2", "m3"]
    assert [r.prompt for r in model.requests] == ["Hi!"] * 3
    assert [m.role for m in model.requests[2].messages] == ["system", "user"]
    assert model.requests[0].headers["authorization"] == "Bearer secret"


async def test_a_key_can_be_asked_for() -> None:
    async with ScriptedModel("Fine.", key="right") as model:
        async with openai_client(model, "right") as client:
            await client.chat.completions.create(model="m", messages=HI)
        async with openai_client(model, "wrong") as client:
            with pytest.raises(openai.AuthenticationError):
                await client.chat.completions.create(model="m", messages=HI)
        async with anthropic_client(model, "wrong") as other:
            with pytest.raises(anthropic.AuthenticationError):
                await other.messages.create(model="m", max_tokens=1, messages=HI)


# Faults ----------------------------------------------------------------------------------------


async def test_an_error_comes_with_its_headers_and_in_the_format_s_words() -> None:
    fault = ScriptedFault(status=429, headers={"retry-after": "7"}, message="Slowly.")
    async with ScriptedModel(fault) as model:
        async with openai_client(model) as client:
            with pytest.raises(openai.RateLimitError) as refused:
                await client.chat.completions.create(model="m", messages=HI)
            assert refused.value.response.headers["retry-after"] == "7"
            assert refused.value.message.endswith("Slowly.") or "Slowly." in refused.value.message
            with pytest.raises(openai.RateLimitError):
                await client.embeddings.create(model="m", input="x")
        async with anthropic_client(model) as other:
            with pytest.raises(anthropic.RateLimitError) as limited:
                await other.messages.create(model="m", max_tokens=1, messages=HI)
            assert limited.value.body == {
                "type": "error",
                "error": {"type": "rate_limit_error", "message": "Slowly."},
            }


@pytest.mark.parametrize("path", ["/chat/completions", "/responses", "/messages"])
@pytest.mark.parametrize("how", ["hang", "reset", "truncated"])
@pytest.mark.parametrize("after", [0, 3])
async def test_a_stream_goes_wrong(
    http: httpx2.AsyncClient, path: str, how: Any, after: int
) -> None:
    events = 0

    async def listen(url: str) -> None:
        nonlocal events
        body = {"model": "m", "stream": True}
        limit = 1.0 if how == "hang" else 60.0
        async with http.stream("POST", url + path, json=body, timeout=limit) as response:
            async for line in response.aiter_lines():
                events += line.startswith("data: ")

    async with ScriptedModel(ScriptedFault(how=how, after=after)) as model:
        with pytest.raises(FAILURES) as failed:
            await listen(model.url)
    assert events == after
    assert isinstance(failed.value, httpx2.ReadTimeout) == (how == "hang")


@pytest.mark.parametrize("how", ["hang", "reset", "truncated"])
async def test_an_answer_goes_wrong(http: httpx2.AsyncClient, how: Any) -> None:
    async with ScriptedModel(ScriptedFault(how=how)) as model:
        with pytest.raises(FAILURES):
            await http.post(f"{model.url}/responses", json={"model": "m"}, timeout=0.2)


async def test_an_error_in_the_middle_of_a_stream() -> None:
    async with ScriptedModel(ScriptedFault(status=529, after=4, message="Too much.")) as model:
        async with anthropic_client(model) as other:
            with pytest.raises(anthropic.APIStatusError, match="Too much"):
                async with other.messages.stream(model="m", max_tokens=9, messages=HI) as events:
                    await events.get_final_message()
        async with openai_client(model) as client:
            with pytest.raises(openai.APIError, match="Too much"):
                async for _ in await client.chat.completions.create(
                    model="m", messages=HI, stream=True
                ):
                    pass
            # Here it is an event like others, and the last one.
            stream = await client.responses.create(model="m", input="Hi!", stream=True)
            *_, told = [event async for event in stream]
            assert told.type == "error"
            assert told.message == "Too much."


async def test_answers_and_chunks_can_be_late(http: httpx2.AsyncClient) -> None:
    answer = ScriptedAnswer("x" * 40, delay=0.1, chunk_delay=0.02, chunk=10)
    async with ScriptedModel(answer) as model:
        moments = [time.monotonic()]
        body = {"model": "m", "stream": True}
        async with http.stream("POST", f"{model.url}/chat/completions", json=body) as response:
            moments += [
                time.monotonic()
                async for line in response.aiter_lines()
                if line.startswith("data: {")
            ]
    assert len(moments) == 1 + 6  # the role, four pieces, the end
    assert moments[1] - moments[0] >= 0.1
    assert moments[-1] - moments[0] >= 0.1 + 4 * 0.02


# HTTP ------------------------------------------------------------------------------------------


async def test_a_connection_is_used_again(http: httpx2.AsyncClient) -> None:
    async with ScriptedModel("Fine.") as model:
        for _ in range(20):
            await said(http, model)
        body = {"model": "m", "stream": True}
        for _ in range(20):
            response = await http.post(f"{model.url}/messages", json=body)
            assert response.text.count("event: message_stop") == 1
        missing = await http.post(f"{model.url}/nowhere", json={})
        assert missing.status_code == 404
        broken = await http.post(f"{model.url}/responses", content=b"{")
        assert broken.status_code == 400
        assert model.connections == 1


async def test_a_body_in_chunks_is_read(http: httpx2.AsyncClient) -> None:
    async def pieces() -> AsyncIterator[bytes]:
        yield b'{"model": "m", '
        yield b'"messages": []}'

    async with ScriptedModel("Fine.") as model:
        response = await http.post(f"{model.url}/chat/completions", content=pieces())
        assert response.status_code == 200
    assert model.requests[0].body == {"model": "m", "messages": []}


@pytest.mark.slow
async def test_a_thousand_connections_at_the_same_time() -> None:
    together = asyncio.Event()

    async def script(request: ReceivedRequest) -> str:
        if model.open_connections == 1_000:
            together.set()
        await together.wait()
        return request.prompt

    async def ask(number: int) -> bool:
        body = json.dumps({"model": "m", "messages": [{"role": "user", "content": str(number)}]})
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        head = f"POST /v1/chat/completions HTTP/1.1\r\nContent-Length: {len(body)}\r\n"
        writer.write(f"{head}Connection: close\r\n\r\n{body}".encode())
        answer = json.loads((await reader.read()).partition(b"\r\n\r\n")[2])
        writer.close()
        return bool(answer["choices"][0]["message"]["content"] == str(number))

    async with ScriptedModel(script) as model:
        port = int(model.url.rpartition(":")[2].removesuffix("/v1"))
        assert all(await asyncio.gather(*(ask(number) for number in range(1_000))))
    assert model.connections == 1_000
    assert model.open_connections == 0


async def test_closing_does_not_wait_for_clients(http: httpx2.AsyncClient) -> None:
    asked = asyncio.Event()

    def script(request: ReceivedRequest) -> ScriptedAnswer:
        asked.set()
        return ScriptedAnswer("Late.", delay=60)

    async with ScriptedModel(script) as model:
        waiting = asyncio.create_task(said(http, model))
        await asked.wait()
    with pytest.raises(httpx2.RemoteProtocolError):
        await waiting


def test_a_fault_that_is_not_known_is_refused() -> None:
    name: Any = "explode"
    with pytest.raises(InvalidInput, match=r"'explode'.* status, hang, reset, truncated"):
        ScriptedFault(how=name)

"""What is said through the proxy is in the bank, once; with the real SDKs, in three formats."""

from __future__ import annotations

import asyncio
from typing import Any, Literal

import anthropic
import msgspec
import openai
import pytest

import perdure
from perdure.bank.bank import Bank
from perdure.core.messages import Message, ToolCall
from perdure.server.proxy.client_items import ClientItems
from perdure.server.proxy.client_request import read_request
from perdure.testing.model import ScriptedAnswer, ScriptedFault, ScriptedModel
from tests.proxy.proxy_setup import RunningProxy, proxied

Wire = Literal["messages", "chat", "responses"]
WIRES: tuple[Wire, ...] = ("messages", "chat", "responses")
_TOOL = {"type": "object", "properties": {"command": {"type": "string"}}}


class SdkClient:
    """A conversation by one of the SDKs: what it gets is what it sends next."""

    def __init__(self, running: RunningProxy, wire: Wire, *, stream: bool, **headers: str) -> None:
        self.wire = wire
        self.items: list[Any] = []
        self._stream = stream
        self._headers = headers
        self._openai = openai.AsyncOpenAI(
            base_url=f"{running.url}/v1", api_key="sk-fake-openai-key", max_retries=0
        )
        self._anthropic = anthropic.AsyncAnthropic(
            base_url=running.url, api_key="sk-ant-fake-key", max_retries=0
        )

    async def close(self) -> None:
        await self._openai.close()
        await self._anthropic.close()

    async def say(self, text: str) -> str:
        self.items.append({"role": "user", "content": text})
        return await self.ask()

    async def answer(self, call: str, text: str) -> str:
        self.items.append(
            {
                "messages": {
                    "role": "user",
                    "content": [{"type": "tool_result", "tool_use_id": call, "content": text}],
                },
                "chat": {"role": "tool", "tool_call_id": call, "content": text},
                "responses": {"type": "function_call_output", "call_id": call, "output": text},
            }[self.wire]
        )
        return await self.ask()

    async def ask(self) -> str:
        return await getattr(self, f"_{self.wire}")()

    async def _messages(self) -> str:
        tools: Any = [{"name": "shell", "input_schema": _TOOL}]
        given: Any = {
            "model": "m",
            "max_tokens": 99,
            "messages": self.items,
            "tools": tools,
            "system": "Be brief.",
            "extra_headers": self._headers,
        }
        if self._stream:
            async with self._anthropic.messages.stream(**given) as stream:
                said = await stream.get_final_message()
        else:
            said = await self._anthropic.messages.create(**given)
        content = [block.model_dump(exclude_none=True) for block in said.content]
        self.items.append({"role": "assistant", "content": content})
        return "".join(block.text for block in said.content if block.type == "text")

    async def _chat(self) -> str:
        tools: Any = [{"type": "function", "function": {"name": "shell", "parameters": _TOOL}}]
        system = {"role": "system", "content": "Be brief."}
        given: Any = {
            "model": "m",
            "messages": [system, *self.items],
            "tools": tools,
            "extra_headers": self._headers,
        }
        if self._stream:
            given["stream_options"] = {"include_usage": True}
            async with self._openai.chat.completions.stream(**given) as stream:
                said = (await stream.get_final_completion()).choices[0].message
        else:
            said = (await self._openai.chat.completions.create(**given)).choices[0].message
        kept = said.model_dump(exclude_none=True, exclude={"parsed"})
        for call in kept.get("tool_calls", ()):
            call.pop("index", None)
            call["function"].pop("parsed_arguments", None)
        self.items.append(kept)
        return said.content or ""

    async def _responses(self) -> str:
        tools: Any = [{"type": "function", "name": "shell", "parameters": _TOOL, "strict": False}]
        given: Any = {
            "model": "m",
            "input": self.items,
            "tools": tools,
            "instructions": "Be brief.",
            "store": False,
            "extra_headers": self._headers,
        }
        if self._stream:
            async with self._openai.responses.stream(**given) as stream:
                said = await stream.get_final_response()
        else:
            said = await self._openai.responses.create(**given)
        self.items += [item.model_dump(exclude_none=True) for item in said.output]
        return said.output_text


def words(messages: list[Message] | tuple[Message, ...]) -> list[str]:
    found = []
    for message in messages:
        for part in message.parts:
            said = msgspec.to_builtins(part)
            kind = said["kind"]
            if kind == "text":
                found.append(f"{message.role}: {said['text']}")
            elif kind == "call":
                found.append(f"call {said['id']}")
            elif kind == "result":
                found.append(f"result {said['call']}")
    return found


async def recorded(bank: Bank, name: str = "") -> list[str]:
    """What the only session has, or one of this name."""
    found = await bank.sessions()
    assert name or len(found) == 1, [each.name for each in found]
    session = await bank.existing_session(name or found[0].name)
    return words([m async for turn in session.read() for m in turn.messages])


async def settled(running: RunningProxy) -> None:
    """Everything that arrived is written."""
    while running.proxy.backlog._tasks:
        await asyncio.wait(set(running.proxy.backlog._tasks))


def _script() -> list[Any]:
    call = ToolCall("call_1", "shell", '{"command": "ls"}')
    return [
        ScriptedAnswer("I look.", calls=(call,)),
        ScriptedAnswer("There is a.py."),
        ScriptedAnswer("You are welcome."),
    ]


_SAID = [
    "user: What is here?",
    "assistant: I look.",
    "call call_1",
    "result call_1",
    "assistant: There is a.py.",
    "user: Thanks.",
    "assistant: You are welcome.",
]


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("wire", WIRES)
async def test_each_message_is_recorded_once(wire: Wire, stream: bool) -> None:
    async with ScriptedModel(_script()) as model, proxied(model.url) as running:
        client = SdkClient(running, wire, stream=stream)
        await client.say("What is here?")
        await client.answer("call_1", "a.py")
        assert await client.say("Thanks.") == "You are welcome."
        await client.close()
        await settled(running)
        assert await recorded(running.bank) == _SAID
        (info,) = await running.bank.sessions()
        session = await running.bank.existing_session(info.name)
        turns = await session.turns()
        assert [len(turn.rounds) for turn in turns] == [2, 1]
        replies = [m for turn in turns for m in turn.messages if m.role == "assistant"]
        assert all(m.usage is not None and m.usage.input for m in replies)
        assert running.proxy.report.figures.failures == 0


@pytest.mark.parametrize("wire", WIRES)
async def test_a_restart_doubles_nothing(wire: Wire, tmp_path: Any) -> None:
    """With an id, and without one."""
    for headers in ({}, {"x-claude-code-session-id": "c1"}):
        url = f"sqlite:///{tmp_path}/{len(headers)}.db"
        async with ScriptedModel(_script()) as model:
            items: list[Any] = []
            for step in range(3):
                async with proxied(model.url, url) as running:
                    client = SdkClient(running, wire, stream=True, **headers)
                    client.items = items
                    if step == 1:
                        await client.answer("call_1", "a.py")
                    else:
                        await client.say("What is here?" if not step else "Thanks.")
                    await client.close()
                    await settled(running)
                    if step == 2:
                        assert await recorded(running.bank) == _SAID


async def test_a_client_that_leaves_leaves_a_draft() -> None:
    slow = ScriptedFault(
        how="hang", after=6, answer=ScriptedAnswer("One two three four five", chunk=4)
    )
    async with ScriptedModel(slow) as model, proxied(model.url) as running:
        body = {
            "model": "m",
            "stream": True,
            "max_tokens": 9,
            "messages": [{"role": "user", "content": "Count."}],
        }
        async with running.client.stream("POST", "/v1/messages", json=body) as answer:
            async for chunk in answer.aiter_raw():
                if b"two" in chunk:
                    break
        await settled(running)
        (info,) = await running.bank.sessions()
        session = await running.bank.existing_session(info.name)
        (partial,) = await session.partials()
        assert partial.writer == "gone"
        assert partial.message.text.startswith("One two")


async def test_an_error_of_the_upstream_records_the_prompt_once() -> None:
    script: list[Any] = [
        ScriptedFault(status=529),
        ScriptedFault(status=429),
        ScriptedAnswer("At last."),
    ]
    async with ScriptedModel(script) as model, proxied(model.url) as running:
        headers = {"x-claude-code-session-id": "c1"}
        body = {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "Hi."}]}
        got = [
            (await running.client.post("/v1/messages", json=body, headers=headers)).status_code
            for _ in range(3)
        ]
        await settled(running)
        assert got == [529, 429, 200]
        assert await recorded(running.bank) == ["user: Hi.", "assistant: At last."]


async def test_keys_are_neither_stored_nor_logged(
    tmp_path: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    file = tmp_path / "bank.db"
    async with ScriptedModel("Hello.") as model:
        async with proxied(model.url, f"sqlite:///{file}") as running:
            for header in ("authorization", "x-api-key", "chatgpt-account-id", "cookie"):
                body = {"model": "m", "messages": [{"role": "user", "content": f"Hi {header}."}]}
                await running.client.post(
                    "/v1/chat/completions", json=body, headers={header: "Bearer fake-secret-4711"}
                )
            await settled(running)
        assert {r.headers.get("authorization") for r in model.requests} >= {
            "Bearer fake-secret-4711"
        }
    stored = b"".join(each.read_bytes() for each in tmp_path.rglob("*") if each.is_file())
    assert b"Hi authorization." in stored or len(stored) > 10_000
    assert b"4711" not in stored
    assert "4711" not in caplog.text


async def test_side_requests_are_passed_on_and_not_recorded() -> None:
    async with ScriptedModel("Fine.") as model, proxied(model.url) as running:
        send = running.client.post
        said = [{"role": "user", "content": "Hi."}]
        tools = [{"name": "Bash", "input_schema": _TOOL}]
        headers = {"x-claude-code-session-id": "c1"}
        schema = {"format": {"type": "json_schema", "schema": {}}}
        compact = [*said, {"role": "user", "content": "CRITICAL: Respond with TEXT ONLY. Sum up."}]
        for more, extra in (
            ({"output_config": schema}, {}),
            ({"messages": compact, "tools": tools}, {}),
            ({"tools": tools}, {"x-claude-code-request-class": "auxiliary"}),
        ):
            body = {"model": "m", "max_tokens": 9, "messages": said, **more}
            answer = await send("/v1/messages", json=body, headers={**headers, **extra})
            assert answer.status_code == 200
        await settled(running)
        assert await running.bank.sessions() == []
        assert len(model.requests) == 3


async def test_sub_agents_have_sessions_of_their_own() -> None:
    async with ScriptedModel("Fine.") as model, proxied(model.url) as running:
        tools = [{"name": "Bash", "input_schema": _TOOL}]
        system = "# Environment\nWorking directory: /home/ada/demo\nPlatform: linux"
        for agent in ("", "a1", "a2"):
            headers = {"x-claude-code-session-id": "c1"}
            if agent:
                headers["x-claude-code-agent-id"] = agent
            if agent == "a2":
                headers["x-claude-code-parent-agent-id"] = "a1"
            body = {
                "model": "m",
                "max_tokens": 9,
                "system": system,
                "messages": [{"role": "user", "content": f"Hi {agent}."}],
                "tools": tools,
            }
            await running.client.post("/v1/messages", json=body, headers=headers)
        await settled(running)
        found = {each.name: each.link for each in await running.bank.sessions()}
        (main,) = [name for name in found if name.endswith("/c1")]
        assert main.startswith("claude-code@demo-")
        assert found.keys() == {main, f"{main}.a1", f"{main}.a2"}
        links = [found[f"{main}.{agent}"] for agent in ("a1", "a2")]
        assert [link and link.session for link in links] == [main, f"{main}.a1"]


async def test_a_failing_bank_does_not_break_the_agent() -> None:
    def full(*_: Any) -> Any:
        raise OSError("No space left on device")

    async with ScriptedModel("Fine.") as model, proxied(model.url) as running:
        running.bank.services.log.join(full)
        body = {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "Hi."}]}
        first = await running.client.post("/v1/messages", json=body)
        await settled(running)
        second = await running.client.post("/v1/messages", json=body)
        await settled(running)
        assert first.status_code == second.status_code == 200
        assert second.headers["x-perdure-note"] == "not recorded: OSError"
        assert running.proxy.report.figures.failures >= 2
        assert model.requests[0].body == model.requests[1].body == body


async def test_strict_refuses_what_cannot_be_recorded() -> None:
    def full(*_: Any) -> Any:
        raise OSError("No space left on device: /secret/path")

    async with ScriptedModel("Fine.") as model, proxied(model.url, strict=True) as running:
        body = {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "Hi."}]}
        fine = await running.client.post("/v1/messages", json=body)
        assert fine.status_code == 200
        await settled(running)
        running.bank.services.log.join(full)
        body = {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "No."}]}
        answer = await running.client.post("/v1/messages", json=body)
        assert answer.status_code == 503
        assert answer.json()["type"] == "error"
        assert "/secret" not in answer.text
        assert len(model.requests) == 1


@pytest.mark.parametrize("text", ["", "What is this?"])
async def test_an_image_whose_address_holds_a_secret_is_recorded_once(
    text: str, tmp_path: Any
) -> None:
    """The mask of a secret has another tag in another process."""
    key = "sk-ant-api03-" + "Zx9Kq2" * 14 + "AA"
    image = {"type": "image_url", "image_url": {"url": f"https://img.example/a.png?key={key}"}}
    asked = {"role": "user", "content": [image, *([{"type": "text", "text": text}] * bool(text))]}
    items: list[Any] = [asked]
    messages = list[Message]()
    async with ScriptedModel(["A cat.", "Yes.", "No."]) as model:
        for _ in range(3):
            async with proxied(model.url, f"sqlite:///{tmp_path}/bank.db") as running:
                headers = {"x-perdure-session": "planner/cats"}
                body = {"model": "m", "messages": items}
                answer = await running.client.post(
                    "/v1/chat/completions", json=body, headers=headers
                )
                await settled(running)
                said = answer.json()["choices"][0]["message"]["content"]
                items += [
                    {"role": "assistant", "content": said},
                    {"role": "user", "content": "Sure?"},
                ]
                session = await running.bank.existing_session("planner/cats")
                messages = [m async for turn in session.read() for m in turn.messages]
    assert [message.role for message in messages] == ["user", "assistant"] * 3
    stored = (tmp_path / "bank.db").read_bytes()
    assert key.encode() not in stored


async def test_others_go_on_while_a_long_history_is_read_for_the_first_time() -> None:
    """Its items are counted and masked on the event loop, in slices."""
    words = " ".join(f"path/to/file_{n}.py line {n}" for n in range(200))
    said = [{"role": "user", "content": f"{n}: {words}"} for n in range(400)]
    request = read_request("chat", msgspec.json.encode({"model": "m", "messages": said}))
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async with perdure.open("memory://") as bank:
        items, running = ClientItems(bank.services), asyncio.ensure_future(others())
        await asyncio.sleep(0)
        for known in (items.facts, items.tokens):
            before = turns
            first = await known.read("chat", request.items)
            assert turns - before >= 3
            assert (
                await known.read("chat", request.items) == first == known.of("chat", request.items)
            )
        running.cancel()

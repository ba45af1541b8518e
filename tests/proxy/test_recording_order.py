"""A client that is faster than the bank, and one that asks again after it got no answer."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx2
import pytest

from perdure.server.proxy import recording_order
from perdure.testing.model import ReceivedRequest, ScriptedAnswer, ScriptedFault, ScriptedModel
from tests.proxy.proxy_setup import RawRequest, RawUpstream, RunningProxy, proxied
from tests.proxy.test_recording import recorded, settled

_IDS: list[dict[str, str]] = [
    {},
    {"x-perdure-session": "planner/c1"},
    {"x-claude-code-session-id": "c1"},
]
_PATHS = {"chat": "/v1/chat/completions", "messages": "/v1/messages", "responses": "/v1/responses"}


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """However slow the machine is."""
    monkeypatch.setattr(recording_order, "LONGEST_ORDER", 600.0)


def body(wire: str, said: list[str], *, stream: bool) -> dict[str, Any]:
    """Prompts and replies in turn."""
    roles = ("user", "assistant")
    items = [{"role": roles[at % 2], "content": text} for at, text in enumerate(said)]
    tools = [{"name": "Bash", "input_schema": {"type": "object"}}] if wire == "messages" else []
    more = {"max_tokens": 9, "tools": tools} if wire == "messages" else {}
    return {
        "model": "m",
        "stream": stream,
        "input" if wire == "responses" else "messages": items,
        **more,
    }


def reply(request: ReceivedRequest) -> ScriptedAnswer:
    return ScriptedAnswer(f"Reply to {request.prompt}", chunk=6)


async def talk(
    running: RunningProxy, wire: str, prompts: list[str], *, stream: bool, **headers: str
) -> list[str]:
    """Without a pause. What is to be in the bank."""
    said: list[str] = []
    for prompt in prompts:
        said.append(prompt)
        given = body(wire, said, stream=stream)
        answer = await running.client.post(_PATHS[wire], json=given, headers=headers)
        assert answer.status_code == 200
        said.append(f"Reply to {prompt}")
    return [f"{('user', 'assistant')[at % 2]}: {text}" for at, text in enumerate(said)]


class BankGate:
    """Holds back what is written to a bank's log, from one write on, until it is free."""

    def __init__(self, running: RunningProxy, first: int = 0) -> None:
        self.free = asyncio.Event()
        self._left = first
        running.bank.services.log.join(self._wait)

    async def _wait(self, *_: Any) -> None:
        if self._left:
            self._left -= 1
        else:
            await self.free.wait()


@pytest.mark.parametrize("headers", _IDS[1:], ids=["header", "client id"])
async def test_a_conversation_with_an_id_waits_for_no_other(headers: dict[str, str]) -> None:
    """Many clients would otherwise be written one after the other."""
    async with ScriptedModel(reply) as model, proxied(model.url) as running:
        await talk(running, "messages", ["One."], stream=False, **headers)
        await settled(running)
        record, free = running.proxy.recorder.record, asyncio.Event()

        async def held(request: Any, answer: Any = None) -> Any:
            if not request.id.session.endswith("/c1") and request.id.conversation != "c1":
                await free.wait()
            return await record(request, answer)

        running.proxy.recorder.record = held  # type: ignore[method-assign]
        await talk(running, "messages", ["Else."], stream=False, **{"x-perdure-session": "a/b"})
        said = ["One.", "Reply to One.", "Two."]
        written = asyncio.Event()

        async def note(*_: Any) -> None:
            written.set()

        running.bank.services.log.join(note)
        given = body("messages", said, stream=False)
        await running.client.post("/v1/messages", json=given, headers=headers)
        async with asyncio.timeout(60):
            await written.wait()
        free.set()
        await settled(running)


@pytest.mark.parametrize("headers", _IDS, ids=["no id", "header", "client id"])
@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("wire", ["chat", "messages", "responses"])
async def test_a_client_faster_than_the_bank_has_one_line(
    wire: str, stream: bool, headers: dict[str, str]
) -> None:
    """Its requests and answers pass while nothing can be written, and then all of it is."""
    prompts = ["One.", "Two.", "Three.", "Four."]
    # Whether a conversation with an id of its own has a window is looked up once, in the bank.
    for first in (1, 2) if "x-claude-code-session-id" in headers else (0, 1, 2):
        async with ScriptedModel(reply) as model, proxied(model.url) as running:
            gate = BankGate(running, first)
            expected = await talk(running, wire, prompts, stream=stream, **headers)
            gate.free.set()
            await settled(running)
            assert await recorded(running.bank) == expected
            (info,) = await running.bank.sessions()
            session = await running.bank.existing_session(info.name)
            assert [turn.number for turn in await session.turns()] == [1, 2, 3, 4]
            assert running.proxy.report.figures.failures == 0


@pytest.mark.parametrize("headers", _IDS, ids=["no id", "header", "client id"])
@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("wire", ["chat", "messages"])
async def test_a_request_is_recorded_behind_what_its_client_knew(
    wire: str, stream: bool, headers: dict[str, str]
) -> None:
    """The recording of the second request begins when the client has the fourth answer."""
    async with ScriptedModel(reply) as model, proxied(model.url) as running:
        record, free = running.proxy.recorder.record, asyncio.Event()

        async def held(request: Any, answer: Any = None) -> Any:
            if len(request.items) == 3:
                await free.wait()
            return await record(request, answer)

        running.proxy.recorder.record = held  # type: ignore[method-assign]
        prompts = ["One.", "Two.", "Three.", "Four."]
        expected = await talk(running, wire, prompts, stream=stream, **headers)
        free.set()
        await settled(running)
        assert await recorded(running.bank) == expected
        (info,) = await running.bank.sessions()
        session = await running.bank.existing_session(info.name)
        assert [turn.number for turn in await session.turns()] == [1, 2, 3, 4]
        assert not (await session.head()).undone


async def test_a_recording_that_never_ends_does_not_hold_later_ones_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(recording_order, "LONGEST_ORDER", 0.0)
    async with ScriptedModel(reply) as model, proxied(model.url) as running:
        record, free = running.proxy.recorder.record, asyncio.Event()

        async def stuck(request: Any, answer: Any = None) -> Any:
            if b"One." in request.plain:
                await free.wait()
            return await record(request, answer)

        running.proxy.recorder.record = stuck  # type: ignore[method-assign]
        await talk(running, "chat", ["One."], stream=False)
        await talk(running, "chat", ["Two."], stream=False)
        async with asyncio.timeout(60):
            while len(running.proxy.backlog._tasks) > 1:
                await asyncio.wait(
                    running.proxy.backlog._tasks, return_when=asyncio.FIRST_COMPLETED
                )
        assert await recorded(running.bank) == ["user: Two.", "assistant: Reply to Two."]
        free.set()
        await settled(running)
        assert len(await running.bank.sessions()) == 2


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("wire", ["chat", "messages", "responses"])
async def test_a_retry_of_what_got_no_answer_goes_on_in_its_session(
    wire: str, stream: bool
) -> None:
    fault = ScriptedFault(status=503)
    script: list[Any] = [fault, fault, ScriptedAnswer("At last."), fault, ScriptedAnswer("Yes.")]
    async with ScriptedModel(script) as model, proxied(model.url) as running:
        gate = BankGate(running)
        got: list[int] = []
        for said in [["Hi."]] * 3 + [["Hi.", "At last.", "Really?"]] * 2:
            given = body(wire, said, stream=stream)
            answer = await running.client.post(_PATHS[wire], json=given)
            got.append(answer.status_code)
        gate.free.set()
        await settled(running)
        assert got == [503, 503, 200, 503, 200]
        assert await recorded(running.bank) == [
            "user: Hi.",
            "assistant: At last.",
            "user: Really?",
            "assistant: Yes.",
        ]
        # It has its answer: who begins with the same words now is somebody else.
        model._script = ScriptedAnswer("Hello.")
        await running.client.post(_PATHS[wire], json=body(wire, ["Hi."], stream=stream))
        await settled(running)
        assert len(await running.bank.sessions()) == 2


async def test_retries_to_an_upstream_that_is_down_are_one_session() -> None:
    async with RawUpstream(lambda _: []) as gone:
        url = gone.url
    async with proxied(url) as running:
        for _ in range(3):
            given = body("chat", ["Hi."], stream=False)
            assert (await running.client.post(_PATHS["chat"], json=given)).status_code == 502
        await settled(running)
        assert await recorded(running.bank) == ["user: Hi."]


async def test_a_client_that_left_before_any_answer_asks_again() -> None:
    """And one that begins with the same words while an answer is awaited is somebody else."""
    asked = asyncio.Event()

    def silent(_: RawRequest) -> list[bytes | None]:
        asked.set()
        return [None]

    async with RawUpstream(silent) as upstream, proxied(upstream.url) as running:

        async def ask() -> asyncio.Task[Any]:
            asked.clear()
            tasks = running.proxy.backlog._tasks
            before = len(tasks)
            given = body("chat", ["Hi."], stream=False)
            task = asyncio.create_task(running.client.post(_PATHS["chat"], json=given, timeout=60))
            await asked.wait()
            while len(tasks) == before:  # noqa: ASYNC110 (it begins without a sign)
                await asyncio.sleep(0)
            return task

        async def leave(*tasks: asyncio.Task[Any]) -> None:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await settled(running)

        await leave(await ask())
        await leave(await ask())
        assert await recorded(running.bank) == ["user: Hi."]
        await leave(await ask(), await ask())
        assert len(await running.bank.sessions()) == 2
        assert running.proxy.report.figures.failures == 0


async def test_a_client_that_knows_the_end_by_the_length_may_come_back_before_it() -> None:
    """The upstream keeps its connection busy; the answer counts as soon as its bytes are there."""
    said = b'{"choices":[{"index":0,"finish_reason":"stop","message":{"role":"assistant",'
    said += b'"content":"Fine."}}]}'
    head = b"HTTP/1.1 200 X\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"

    def answer(_: RawRequest) -> list[bytes | None]:
        return [head % len(said) + said[:30], said[30:]]

    async with RawUpstream(answer) as upstream, proxied(upstream.url) as running:
        gate = BankGate(running)
        for line in (["Hi."], ["Hi.", "Fine.", "Bye."]):
            async with httpx2.AsyncClient(base_url=running.url, timeout=100) as client:
                given = body("chat", line, stream=False)
                got = await client.post(_PATHS["chat"], json=given)
                assert got.content == said
        gate.free.set()
        await settled(running)
        assert await recorded(running.bank) == [
            "user: Hi.",
            "assistant: Fine.",
            "user: Bye.",
            "assistant: Fine.",
        ]

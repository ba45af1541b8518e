"""Chats: what is new is written once, the answer is streamed and kept, whoever leaves or fails."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, TypeAlias

import httpx2
import pytest

from perdure.bank.bank import Bank
from perdure.config import GatewayConfig, ModelsConfig, ProviderConfig, ServerConfig
from perdure.core.messages import Media, Text, ToolCall, ToolResult
from perdure.server import chat_run
from perdure.server.chat_operations import Chats
from perdure.server.chat_run import ChatRun
from perdure.server.operations import TokenScope
from perdure.sessions.session import Session
from perdure.testing import ReceivedRequest, Script, ScriptedAnswer, ScriptedFault, ScriptedModel
from perdure.wire.ui.message_stream import UIMessageStream
from tests.proxy.proxy_setup import Answer, RawRequest, RawUpstream, http
from tests.server.conftest import RunningServer, running_server
from tests.server.live_clients import listening
from tests.server.serve_process import ServeProcess
from tests.waiting import until

Chunk = dict[str, Any]
PATH = "/api/v1/sessions/ada/x/chat"


class Talk:
    """A server with a scripted model, and a client of it."""

    def __init__(
        self, server: RunningServer, client: httpx2.AsyncClient, model: ScriptedModel
    ) -> None:
        self.server, self.client, self.model = server, client, model

    async def say(self, body: dict[str, Any] | str) -> list[Chunk]:
        given = {"prompt": body} if isinstance(body, str) else body
        answer = await self.client.post(PATH, json=given)
        assert answer.status_code == 200, answer.text
        assert answer.headers["x-vercel-ai-ui-message-stream"] == "v1"
        assert answer.headers["content-type"].startswith("text/event-stream")
        return chunks(answer.text)

    async def session(self) -> Session:
        return await self.server.bank.session("ada/x")


def chunks(text: str) -> list[Chunk]:
    *events, last, end = text.split("\n\n")
    assert (last, end) == ("data: [DONE]", "")
    return [json.loads(event.removeprefix("data: ")) for event in events if event[0] != ":"]


def kinds(found: list[Chunk]) -> list[str]:
    """The types of chunks, runs of deltas as one."""
    said = [chunk["type"] for chunk in found if not chunk["type"].startswith("data-")]
    return [kind for n, kind in enumerate(said) if not (n and kind == said[n - 1])]


def text(found: list[Chunk]) -> str:
    return "".join(chunk["delta"] for chunk in found if chunk["type"] == "text-delta")


def ui(role: str, words: str, id: str) -> Chunk:
    return {"id": id, "role": role, "parts": [{"type": "text", "text": words}]}


@asynccontextmanager
async def talking(
    folder: Path, script: Script, wire: Any = "chat", **sections: Any
) -> AsyncIterator[Talk]:
    sections.setdefault("server", ServerConfig(grace=0))
    async with ScriptedModel(script) as model:
        gateway = GatewayConfig(
            providers={"ours": model.provider_config(wire)},
            models=ModelsConfig(chat="ours/big"),
            retries=0,
        )
        async with running_server(folder, gateway=gateway, **sections) as server:
            yield Talk(server, await server.client(server.token()), model)


Start: TypeAlias = Callable[..., Any]


async def said(session: Session) -> list[tuple[int, str, str]]:
    return [(t.number, m.role, m.text) for t in await session.turns() for m in t.messages]


# One turn -------------------------------------------------------------------------------------


@pytest.mark.parametrize("wire", ["chat", "responses", "messages"])
async def test_a_turn_is_streamed_and_kept(tmp_path: Path, wire: str) -> None:
    answer = ScriptedAnswer("It is a bank that remembers.", reasoning="Let me see.", chunk=7)
    async with talking(tmp_path, answer, wire) as talk:
        found = await talk.say({"prompt": "What is it?", "system": "Be brief."})
        session = await talk.session()
        (turn,) = await session.turns()
        (asked,) = talk.model.requests
    assert kinds(found) == [
        "start",
        "start-step",
        "reasoning-start",
        "reasoning-delta",
        "reasoning-end",
        "text-start",
        "text-delta",
        "text-end",
        "finish-step",
        "finish",
    ]
    assert text(found) == answer.text
    assert found[0]["messageId"] == "T-1"
    assert found[0]["messageMetadata"] == {"session": "ada/x", "turn": "T-1"}
    assert found[-1]["finishReason"] == "stop"
    assert found[-1]["messageMetadata"]["model"] == "big"
    assert found[-1]["messageMetadata"]["usage"]["output"]
    context = next(chunk for chunk in found if chunk["type"] == "data-context")
    assert context["data"]["turn"] == "T-1"
    assert [(m.role, m.text) for m in turn.messages] == [
        ("user", "What is it?"),
        ("assistant", answer.text),
    ]
    assert turn.status == "closed"
    assert turn.messages[1].usage is not None
    assert asked.messages[0].text.startswith("Be brief.")
    assert "What is it?" in asked.prompt


async def test_the_history_is_the_banks(tmp_path: Path) -> None:
    """A front end sends all messages; only the last is new."""
    async with talking(tmp_path, ["One.", "Two.", "Three."]) as talk:
        history = [ui("user", "first", "u1")]
        await talk.say({"id": "c", "trigger": "submit-message", "messages": history})
        history += [ui("assistant", "One.", "T-1"), ui("user", "second", "u2")]
        await talk.say({"id": "c", "trigger": "submit-message", "messages": history})
        await talk.say({"messages": [ui("user", "third", "u3")], "theme": "dark"})
        assert await said(await talk.session()) == [
            (1, "user", "first"),
            (1, "assistant", "One."),
            (2, "user", "second"),
            (2, "assistant", "Two."),
            (3, "user", "third"),
            (3, "assistant", "Three."),
        ]
        words = [message.text for message in talk.model.requests[-1].messages]
        assert any("first" in each for each in words)
        assert any("Two." in each for each in words)


async def test_a_picture_is_shown(tmp_path: Path) -> None:
    url = "data:image/png;base64,iVBORw0KGgo="
    parts = [{"type": "text", "text": "?"}, {"type": "file", "mediaType": "image/png", "url": url}]
    async with talking(tmp_path, "A dot.") as talk:
        await talk.say({"messages": [{"id": "u", "role": "user", "parts": parts}]})
        (asked,) = talk.model.requests
    shown = [part for message in asked.messages for part in message.parts]
    assert any(isinstance(part, Media) for part in shown)


# Tools ----------------------------------------------------------------------------------------


async def test_the_model_searches_its_past(tmp_path: Path) -> None:
    call = ToolCall("c1", "history_get_turn", '{"id": "T-1", "level": "R"}')
    script: Script = ["Blue.", ScriptedAnswer("Let me look.", calls=(call,)), "It was blue."]
    async with talking(tmp_path, script) as talk:
        await talk.say("Which colour?")
        found = await talk.say("Which was it?")
        turn = (await (await talk.session()).turns())[-1]
    assert kinds(found) == [
        "start",
        "start-step",
        "text-start",
        "text-delta",
        "text-end",
        "tool-input-start",
        "tool-input-delta",
        "tool-input-available",
        "tool-output-available",
        "finish-step",
        "start-step",
        "text-start",
        "text-delta",
        "text-end",
        "finish-step",
        "finish",
    ]
    given = next(chunk for chunk in found if chunk["type"] == "tool-input-available")
    assert given["input"] == {"id": "T-1", "level": "R"}
    assert given["providerExecuted"]
    output = next(chunk for chunk in found if chunk["type"] == "tool-output-available")
    assert "Blue." in output["output"]
    assert [len(round.messages) for round in turn.rounds] == [3, 1]
    assert turn.messages[-1].text == "It was blue."


async def test_tools_of_the_client_are_left_to_it(tmp_path: Path) -> None:
    both = (ToolCall("c1", "history_get_turn", '{"id": "T-1"}'), ToolCall("c2", "weather", "{}"))
    tool = {"type": "function", "name": "weather", "parameters": {"type": "object"}}
    async with talking(tmp_path, [ScriptedAnswer(calls=both), "Rain, then."]) as talk:
        found = await talk.say({"prompt": "Weather?", "tools": [tool]})
        assert [c["toolCallId"] for c in found if c["type"] == "tool-output-available"] == ["c1"]
        (own,) = [
            c for c in found if c["type"] == "tool-input-available" and c["toolCallId"] == "c2"
        ]
        assert "providerExecuted" not in own
        assert found[-1]["finishReason"] == "tool-calls"
        part = {"type": "tool-weather", "toolCallId": "c2", "state": "output-available"}
        reply = {
            "id": "T-1",
            "role": "assistant",
            "parts": [part | {"input": {}, "output": "rain"}],
        }
        messages = [ui("user", "Weather?", "u1"), reply]
        found = await talk.say({"messages": messages, "tools": [tool]})
        assert found[0]["messageId"] == "T-1"
        assert text(found) == "Rain, then."
        (turn,) = await (await talk.session()).turns()
        again = await talk.client.post(PATH, json={"messages": messages})
    assert again.status_code == 400
    assert [message.role for message in turn.messages] == [
        "user",
        "assistant",
        "tool",
        "tool",
        "assistant",
    ]
    assert turn.status == "closed"


async def test_a_model_that_only_calls_tools_comes_to_an_end(tmp_path: Path) -> None:
    def script(request: ReceivedRequest) -> str | ScriptedAnswer:
        if request.body.get("tool_choice") == "none":
            return "Enough."
        return ScriptedAnswer(calls=(ToolCall(f"c{request.number}", "recall", '{"query": "x"}'),))

    async with talking(tmp_path, script) as talk:
        found = await talk.say("Go.")
    assert len(talk.model.requests) == chat_run.MOST_STEPS
    assert text(found) == "Enough."


async def test_no_tools_if_none_are_wanted(tmp_path: Path) -> None:
    async with talking(tmp_path, "Yes.") as talk:
        await talk.say({"prompt": "?", "history_tools": False})
    assert "tools" not in talk.model.requests[0].body


# Edits and repetitions ------------------------------------------------------------------------


async def test_an_answer_is_made_again(tmp_path: Path) -> None:
    async with talking(tmp_path, ["Bad.", "Good.", "Best."]) as talk:
        messages = [ui("user", "Try.", "u1")]
        await talk.say({"messages": messages})
        again = {"messages": messages, "trigger": "regenerate-message"}
        found = await talk.say(again | {"messageId": "T-1"})
        assert found[0]["messageId"] == "T-2"
        await talk.say(again)
        session = await talk.session()
        assert await said(session) == [(3, "user", "Try."), (3, "assistant", "Best.")]
        kept = [turn.messages[-1].text for turn in await session.turns(undone=True)]
    assert kept == ["Bad.", "Good.", "Best."]
    assert "Bad." not in json.dumps(talk.model.requests[-1].body)


async def test_what_a_stopped_server_left_is_kept_when_it_is_made_again(tmp_path: Path) -> None:
    async with talking(tmp_path, "Whole.") as talk:
        session = await talk.session()
        await session.append("Try.")
        answer = session.answer()
        await answer.__aenter__()
        await answer.text("Half")
        await answer.__aexit__(ZeroDivisionError)
        await talk.say({"messages": [], "trigger": "regenerate-message"})
        undone, made = await session.turns(undone=True)
    assert [message.text for message in undone.messages] == ["Try.", "Half"]
    assert [message.text for message in made.messages] == ["Try.", "Whole."]


async def test_an_edited_message_takes_the_place_of_what_followed(tmp_path: Path) -> None:
    async with talking(tmp_path, ["A.", "B.", "C."]) as talk:
        await talk.say({"messages": [ui("user", "one", "u1")]})
        await talk.say({"messages": [ui("user", "two", "u2")]})
        edited = {"messages": [ui("user", "uno", "u1")], "messageId": "u1"}
        await talk.say(edited | {"trigger": "submit-message"})
        session = await talk.session()
        assert await said(session) == [(3, "user", "uno"), (3, "assistant", "C.")]
        assert len(await session.turns(undone=True)) == 3


async def test_a_message_that_was_sent_twice_stands_once(tmp_path: Path) -> None:
    """The first time the model failed: the turn waits, and goes on."""
    async with talking(tmp_path, [ScriptedFault(status=500), "Now."]) as talk:
        messages = [ui("user", "Try.", "u1")]
        found = await talk.say({"messages": messages})
        assert kinds(found) == ["start", "start-step", "error", "finish"]
        found = await talk.say({"messages": messages})
        assert found[0]["messageId"] == "T-1"
        assert await said(await talk.session()) == [(1, "user", "Try."), (1, "assistant", "Now.")]


async def test_a_message_that_comes_twice_at_once_is_answered_once(tmp_path: Path) -> None:
    """As from two pages of a browser that come back together: both read the one answer."""
    slow = ScriptedAnswer("One two three.", chunk=1, chunk_delay=0.02)
    async with talking(tmp_path, [slow, "Never."]) as talk:
        body = {"messages": [ui("user", "Count.", "u1")]}
        found = await asyncio.gather(talk.say(body), talk.say(body))
        assert found[0] == found[1]
        assert len(talk.model.requests) == 1
        turns = await (await talk.session()).turns(undone=True)
    assert [turn.messages[-1].text for turn in turns] == ["One two three."]


async def test_a_message_that_comes_again_behind_others_is_refused(tmp_path: Path) -> None:
    async with talking(tmp_path, ["A.", "B."]) as talk:
        one = {"messages": [ui("user", "one", "u1")]}
        await talk.say(one)
        await talk.say({"messages": [ui("user", "two", "u2")]})
        answer = await talk.client.post(PATH, json=one)
        assert answer.status_code == 409
        assert answer.json()["error"]["code"] == "conflict"
        assert "T-1 already" in answer.json()["error"]["message"]
        assert [turn.number for turn in await (await talk.session()).turns(undone=True)] == [1, 2]


# What goes wrong ------------------------------------------------------------------------------


async def test_a_model_that_breaks_off_loses_nothing(tmp_path: Path) -> None:
    broken = ScriptedFault(
        how="truncated", after=3, answer=ScriptedAnswer("One two three.", chunk=4)
    )
    async with talking(tmp_path, [broken, "Whole."]) as talk:
        messages = [ui("user", "Count.", "u1")]
        found = await talk.say({"messages": messages})
        session = await talk.session()
        (turn,) = await session.turns()
        assert found[-2]["type"] == "error"
        assert found[-1] == {
            "type": "finish",
            "finishReason": "error",
            "messageMetadata": {"session": "ada/x", "turn": "T-1"},
        }
        arrived = turn.messages[-1]
        assert arrived.partial
        assert arrived.text == text(found)
        assert arrived.text
        await talk.say({"messages": messages, "trigger": "regenerate-message"})
        assert await said(session) == [(2, "user", "Count."), (2, "assistant", "Whole.")]
        assert len(await session.turns(undone=True)) == 2


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        ({}, 400, "invalid_input"),
        ({"messages": []}, 400, "invalid_input"),
        ({"prompt": ""}, 400, "invalid_input"),
        ({"prompt": "x", "messages": [ui("user", "x", "u")]}, 400, "invalid_input"),
        ({"messages": [ui("assistant", "x", "a")]}, 400, "invalid_input"),
        ({"messages": [{"role": "king", "parts": []}]}, 400, "invalid_input"),
        ({"messages": "x"}, 400, "invalid_input"),
        ({"prompt": "x", "tools": [{"nothing": 1}]}, 400, "invalid_input"),
        ({"prompt": "x", "trigger": "shout"}, 400, "invalid_input"),
        ({"trigger": "regenerate-message"}, 400, "invalid_input"),
        ({"prompt": "x", "reasoning": "wild"}, 400, "invalid_input"),
        ({"prompt": "x" * 9_000, "budget": 500}, 422, "budget_too_small"),
    ],
)
async def test_what_cannot_be_answered_is_refused_and_nothing_written(
    tmp_path: Path, body: dict[str, Any], status: int, code: str
) -> None:
    async with talking(tmp_path, "Yes.") as talk:
        answer = await talk.client.post(PATH, json=body)
        assert (answer.status_code, answer.json()["error"]["code"]) == (status, code)
        assert await (await talk.session()).turns() == []
    assert not talk.model.requests


async def test_without_a_model_nothing_is_written(server: RunningServer) -> None:
    client = await server.client(server.token())
    answer = await client.post(PATH, json={"prompt": "Hello?"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "no_model")
    assert await server.bank.sessions() == []


async def test_who_may_chat(tmp_path: Path) -> None:
    async with talking(tmp_path, "Yes.") as talk:
        for token, status in (
            (talk.server.token(TokenScope.READ), 403),
            (talk.server.token(TokenScope.WRITE, agent="bob"), 403),
            (talk.server.token(TokenScope.WRITE, agent="ada"), 200),
        ):
            client = await talk.server.client(token)
            assert (await client.post(PATH, json={"prompt": "?"})).status_code == status


# Who leaves -----------------------------------------------------------------------------------


class SlowModel:
    """Looks into its past, then thinks until it is let."""

    def __init__(self) -> None:
        self.go_on = asyncio.Event()

    async def __call__(self, request: ReceivedRequest) -> ScriptedAnswer:
        if "Faster!" in request.prompt:
            return ScriptedAnswer("Fast.")
        if any(message.results for message in request.messages):
            await self.go_on.wait()
            return ScriptedAnswer("Slow.")
        return ScriptedAnswer("Wait.", calls=(ToolCall("c1", "recall", '{"query": "x"}'),))


HANGS = ScriptedFault(how="hang", after=4, answer=ScriptedAnswer("It begins well.", chunk=3))


async def leave(talk: Talk, **fields: Any) -> None:
    """Ask, read the beginning of the answer, and hang up."""
    body = {"prompt": "Slowly.", **fields}
    async with talk.client.stream("POST", PATH, json=body) as answer:
        async for line in answer.aiter_lines():
            if "text-delta" in line:
                return


def note_readers(monkeypatch: pytest.MonkeyPatch) -> list[ChatRun]:
    """Grows with every reader of an answer."""
    read, readers = ChatRun.read, list[ChatRun]()

    def noted(run: ChatRun) -> AsyncIterator[bytes]:
        readers.append(run)
        return read(run)

    monkeypatch.setattr(ChatRun, "read", noted)
    return readers


async def settled(talk: Talk) -> None:
    chats = talk.server.app.state.part(Chats)
    await until(lambda: not chats.of("ada/x"))


async def test_an_answer_goes_on_when_its_client_leaves(tmp_path: Path) -> None:
    model = SlowModel()
    async with talking(tmp_path, model) as talk:
        await leave(talk)
        model.go_on.set()
        await settled(talk)
        (turn,) = await (await talk.session()).turns()
    assert turn.messages[-1].text == "Slow."
    assert turn.status == "closed"


@pytest.mark.parametrize("configured", [True, False])
async def test_or_ends_if_that_is_wanted(tmp_path: Path, configured: bool) -> None:
    config = ServerConfig(chat_goes_on=not configured)
    async with talking(tmp_path, [HANGS, "Second."], server=config) as talk:
        await leave(talk, **({} if configured else {"goes_on": False}))
        await settled(talk)
        session = await talk.session()
        (turn,) = await session.turns()
        assert await session.partials() == []  # it is part of its turn
        assert turn.messages[-1].partial
        assert "It begins well.".startswith(turn.messages[-1].text)
        assert turn.messages[-1].text
        assert text(await talk.say("And now?")) == "Second."


async def test_a_client_that_comes_back_reads_the_answer_from_its_beginning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, readers = SlowModel(), note_readers(monkeypatch)
    async with talking(tmp_path, model) as talk:
        await leave(talk)
        coming = asyncio.create_task(talk.client.get(f"{PATH}/some-chat/stream"))
        await until(lambda: len(readers) == 2)
        model.go_on.set()
        again = await coming
        assert again.status_code == 200
        assert text(chunks(again.text)) == "Wait.Slow."
        assert (await talk.client.get(f"{PATH}/some-chat/stream")).status_code == 204


async def test_an_answer_can_be_cancelled(tmp_path: Path) -> None:
    async with talking(tmp_path, HANGS) as talk:
        reading = asyncio.create_task(talk.say("Slowly."))
        chats = talk.server.app.state.part(Chats)
        await until(lambda: any(b"text-delta" in c for r in chats.of("ada/x") for c in r._chunks))
        answer = await talk.client.delete(PATH)
        assert answer.json() == {"cancelled": 1}
        found = await reading
        (turn,) = await (await talk.session()).turns()
        assert (await talk.client.delete(PATH)).json() == {"cancelled": 0}
        assert await (await talk.session()).partials() == []
    assert found[-1]["type"] == "abort"
    assert turn.messages[-1].partial
    assert turn.messages[-1].text == text(found)


async def test_a_new_prompt_need_not_wait_for_the_last_answer(tmp_path: Path) -> None:
    model = SlowModel()
    async with talking(tmp_path, model) as talk:
        await leave(talk)
        assert text(await talk.say("Faster!")) == "Fast."
        model.go_on.set()
        await settled(talk)
        turns = await (await talk.session()).turns()
    assert [turn.messages[-1].text for turn in turns] == ["Slow.", "Fast."]


async def test_an_answer_that_is_over_is_not_kept_in_memory(tmp_path: Path) -> None:
    """Whether or not its session is ever asked for again."""
    async with talking(tmp_path, ["One.", "Two."]) as talk:
        chats = talk.server.app.state.part(Chats)
        for name in ("x", "y"):
            path = f"/api/v1/sessions/ada/{name}/chat"
            assert (await talk.client.post(path, json={"prompt": "?"})).status_code == 200
        await until(lambda: not chats._runs)


async def test_a_server_that_stops_keeps_the_draft(tmp_path: Path) -> None:
    async with talking(tmp_path, HANGS) as talk:
        await leave(talk)
    async with running_server(tmp_path) as server:
        session = await server.bank.session("ada/x")
        (partial,) = await session.partials()
        assert "It begins well.".startswith(partial.message.text)
        assert partial.message.text
        assert (await session.turn(1)).status == "partial"


@pytest.mark.parametrize("reads", [True, False])
async def test_a_server_that_stops_lets_an_answer_end(tmp_path: Path, reads: bool) -> None:
    model, config = SlowModel(), ServerConfig(grace=1_000)
    async with AsyncExitStack() as left:
        async with talking(tmp_path, model, server=config) as talk:
            client = await left.enter_async_context(
                httpx2.AsyncClient(
                    base_url=talk.server.url, headers=talk.client.headers, timeout=100
                )
            )
            reading = asyncio.create_task(client.post(PATH, json={"prompt": "Slowly."}))
            stopping = talk.server.app.state.stopping
            chats = talk.server.app.state.part(Chats)
            await until(lambda: chats.of("ada/x"))
            if not reads:
                reading.cancel()
                await asyncio.wait({reading})

            async def go_on() -> None:
                await stopping.wait()
                for _ in range(10):
                    await asyncio.sleep(0)  # whoever hears of it, has
                model.go_on.set()

            going_on = asyncio.create_task(go_on())
        await going_on
        if reads:
            found = chunks((await reading).text)
            assert (text(found), found[-1]["type"]) == ("Wait.Slow.", "finish")
    async with running_server(tmp_path) as server:
        session = await server.bank.session("ada/x")
        (turn,) = await session.turns()
        assert (turn.status, turn.messages[-1].text) == ("closed", "Slow.")
        assert await session.partials() == []


async def test_a_server_that_is_killed_leaves_what_arrived(tmp_path: Path) -> None:
    config = tmp_path / "perdure.toml"
    async with ScriptedModel(HANGS) as model:
        config.write_text(
            "[history]\nheartbeat = 0.01\n"
            '[gateway.models]\nchat = "ours/big"\n'
            f'[gateway.providers.ours]\nwire = "chat"\nbase_url = "{model.url}"\n'
        )
        served = ServeProcess(tmp_path, PERDURE_CONFIG=str(config))
        bank = Bank(f"sqlite:///{tmp_path / 'bank.db'}")
        with await asyncio.to_thread(served.start):
            headers = {"x-perdure-token": await asyncio.to_thread(served.log_in)}
            async with (
                httpx2.AsyncClient(base_url=served.url, headers=headers, timeout=100) as client,
                client.stream("POST", PATH, json={"prompt": "Slowly."}) as answer,
                bank,
            ):
                arrived = ""
                async for line in answer.aiter_lines():
                    if "text-delta" in line:
                        arrived += json.loads(line.removeprefix("data: "))["delta"]
                        break
                session = await bank.session("ada/x")
                async with asyncio.timeout(60):
                    while not any(p.message.text for p in await session.partials()):  # noqa: ASYNC110
                        await asyncio.sleep(0.01)
                served.process.kill()
                turn = await session.turn(1)
    assert [message.role for message in turn.messages] == ["user", "assistant"]
    assert turn.status == "partial"
    assert "It begins well.".startswith(turn.messages[-1].text)
    assert turn.messages[-1].text.startswith(arrived)


async def test_a_chat_is_heard_live(tmp_path: Path) -> None:
    async with talking(tmp_path, "It is here.") as talk, listening(talk.server) as live:
        await live.subscribe(session="ada/x")
        await talk.say("Where?")
        while not {("turn", None), ("answer", "ended")} <= live.kinds():
            await live.next()
        assert live.answer(1) == "It is here."


# The stream by itself -------------------------------------------------------------------------


def test_parts_begin_and_end() -> None:
    stream = UIMessageStream("m", own=frozenset({"mine"}))
    found = [
        *stream.start(),
        *stream.start_step(),
        *stream.text("a"),
        *stream.text("b"),
        *stream.reasoning("c"),
        *stream.called(ToolCall("1", "mine", "{broken")),
        *stream.result(ToolResult("1", (Text("no"),), is_error=True)),
        *stream.call("2", "theirs"),
        *stream.arguments("2", "[1]"),
        *stream.called(ToolCall("2", "theirs", "[1]")),
        *stream.text("d"),
        *stream.file(Media("image/png", data=b"x")),
        *stream.file(Media("image/png", file_id="f")),
        *stream.text("e"),
        *stream.finish_step(),
        *stream.finish("stop"),
    ]
    ids = [(chunk["type"], chunk.get("id") or chunk.get("toolCallId") or "") for chunk in found]
    assert ids == [
        ("start", ""),
        ("start-step", ""),
        ("text-start", "0"),
        ("text-delta", "0"),
        ("text-delta", "0"),
        ("text-end", "0"),
        ("reasoning-start", "1"),
        ("reasoning-delta", "1"),
        ("reasoning-end", "1"),
        ("tool-input-start", "1"),
        ("tool-input-available", "1"),
        ("tool-output-error", "1"),
        ("tool-input-start", "2"),
        ("tool-input-delta", "2"),
        ("tool-input-available", "2"),
        ("text-start", "2"),
        ("text-delta", "2"),
        ("text-end", "2"),
        ("file", ""),
        ("text-start", "3"),
        ("text-delta", "3"),
        ("text-end", "3"),
        ("finish-step", ""),
        ("finish", ""),
    ]
    broken = found[10]
    assert broken["input"] == {"unparsed_arguments": "{broken"}


_CITED: list[Chunk] = [
    {"type": "message_start", "message": {"id": "m1", "role": "assistant", "content": []}},
    {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
    {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "8123."}},
    *(
        {
            "type": "content_block_delta",
            "index": 0,
            "delta": {"type": "citations_delta", "citation": citation},
        }
        for citation in (
            {"type": "web_search_result_location", "url": "https://a.example/", "title": "A"},
            {"type": "char_location", "document_index": 0, "document_title": "ports.md"},
            {"type": "web_search_result_location", "url": "https://a.example/", "title": "A"},
        )
    ),
    {"type": "content_block_stop", "index": 0},
    {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 3}},
    {"type": "message_stop"},
]


async def test_what_a_reply_cites_is_told(tmp_path: Path) -> None:
    """Behind its words, each source once; a page that sends it back doubles nothing."""
    events = "".join(f"event: {e['type']}\ndata: {json.dumps(e)}\n\n" for e in _CITED).encode()

    def answer(_: RawRequest) -> Answer:
        return http(200, events, **{"content-type": "text/event-stream"})

    async with RawUpstream(answer) as upstream:
        provider = ProviderConfig(wire="messages", base_url=upstream.url, needs_key=False)
        gateway = GatewayConfig(
            providers={"mine": provider},
            models=ModelsConfig(chat=("mine/m",)),
            retries=0,
        )
        async with running_server(tmp_path, gateway=gateway) as server:
            client = await server.client(server.token())
            found = chunks((await client.post(PATH, json={"prompt": "Which port?"})).text)
            sources = [each for each in found if each["type"].startswith("source-")]
            assert sources == [
                {
                    "type": "source-url",
                    "sourceId": "https://a.example/",
                    "url": "https://a.example/",
                    "title": "A",
                },
                {
                    "type": "source-document",
                    "sourceId": "document-0",
                    "mediaType": "text/plain",
                    "title": "ports.md",
                },
            ]
            told = ui("assistant", "8123.", "T-1")
            told["parts"] += sources
            page = [ui("user", "Which port?", "u1"), told, ui("user", "Sure?", "u2")]
            await client.post(PATH, json={"messages": page})
            session = await server.bank.session("ada/x")
            texts = [m.text for turn in await session.turns() for m in turn.messages]
            assert texts == ["Which port?", "8123.", "Sure?", "8123."]

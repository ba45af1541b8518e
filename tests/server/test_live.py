"""``/api/v1/live``: everything is told, once, in order, also after a break; and to nobody else."""

from __future__ import annotations

import asyncio
import json
import random
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from starlette.websockets import WebSocket
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from perdure.bank.bank import Bank
from perdure.config import Config, ServerConfig
from perdure.core.errors import Unavailable
from perdure.core.messages import Message, Reasoning, Text, ToolCall, ToolResult, assistant, user
from perdure.history import log_records
from perdure.history.answer_feed import AnswerChange
from perdure.server import live_hub, live_log, live_socket
from perdure.server.access_tokens import AccessTokens
from perdure.server.http_server import serving
from perdure.server.live_events import growth
from perdure.server.operations import TokenScope
from perdure.server.server_app import make_app
from perdure.testing import ManualClock
from tests.server.conftest import RunningServer, StartServer, running_server
from tests.server.live_clients import LiveClient, listening
from tests.waiting import until

TALK = (user("What is it?"), assistant("A bank."))


async def write(server: RunningServer, session: str, turns: int = 1) -> None:
    opened = await server.bank.session(session)
    for _ in range(turns):
        await opened.append(TALK)


# Turns ----------------------------------------------------------------------------------------


async def test_a_turn_is_told_as_it_is_written(server: RunningServer) -> None:
    async with listening(server) as client:
        assert await client.subscribe(session="ada/x") == 0
        await write(server, "ada/x")
        event = await client.until("turn")
    assert {k: event[k] for k in ("session", "turn", "cursor")} == {
        "session": "ada/x",
        "turn": 1,
        "cursor": 1,
    }
    said = event["rounds"][0]["messages"]
    assert [(m["role"], m["parts"][0]["text"]) for m in said] == [
        ("user", "What is it?"),
        ("assistant", "A bank."),
    ]


async def test_each_scope_hears_its_own(server: RunningServer) -> None:
    async with listening(server) as one, listening(server) as agent, listening(server) as all_:
        await one.subscribe(session="ada/x")
        await agent.subscribe(agent="ada")
        await all_.subscribe(all=True)
        for session in ("bob/x", "ada/y", "adam/x", "ada/x"):
            await write(server, session)
        for client, turns in ((one, 1), (agent, 2), (all_, 4)):
            while len(client.turns()) < turns:
                await client.next()
    assert [turn[0] for turn in one.turns()] == ["ada/x"]
    assert sorted(turn[0] for turn in agent.turns()) == ["ada/x", "ada/y"]
    assert sorted(turn[0] for turn in all_.turns()) == ["ada/x", "ada/y", "adam/x", "bob/x"]


async def test_overlapping_subscriptions_hear_each_event_once(server: RunningServer) -> None:
    async with listening(server) as client:
        await client.subscribe("a", session="ada/x")
        await client.subscribe("b", agent="ada")
        await client.subscribe("c", all=True)
        await write(server, "ada/x", 3)
        await client.until("turn", lambda event: event["turn"] == 3)
        await client.say("unsubscribe", "a")
        await client.until("unsubscribed")
    assert client.turns() == [("ada/x", n, n) for n in (1, 2, 3)]


async def test_a_session_goes_on_from_its_cursor(server: RunningServer) -> None:
    await write(server, "ada/x", 5)
    async with listening(server) as client:
        assert await client.subscribe(session="ada/x", after=2) == 5
        await write(server, "ada/x")
        await client.until("turn", lambda event: event["cursor"] == 6)
    assert client.turns() == [("ada/x", n, n) for n in (3, 4, 5, 6)]


async def test_nothing_is_lost_or_doubled_by_sockets_that_drop(server: RunningServer) -> None:
    """A writer that never pauses, a reader that is cut off again and again."""
    names, writing = [f"ada/{n}" for n in range(4)], True
    expected: list[tuple[str, int]] = []

    async def talk(name: str) -> None:
        session = await server.bank.session(name)
        while writing:
            await session.append(TALK)
            expected.append((name, (await session.head()).pieces))

    heard: list[tuple[str, int]] = []
    cursor: Any = None
    talking = [asyncio.create_task(talk(name)) for name in names]
    for length in (0, 1, 7, 0, 30, 3):
        async with listening(server) as client:
            await client.say("subscribe", agent="ada", after=cursor)
            if cursor is None:
                cursor = (await client.until("live"))["cursor"]
                heard = [
                    (name, n) for name, m in cursor["sessions"].items() for n in range(1, m + 1)
                ]
            for _ in range(length):  # whatever of it has been read, in the middle of catching up
                event = await client.next()
                if event["type"] == "turn":
                    cursor["sessions"][event["session"]] = event["cursor"]
                    heard.append((event["session"], event["cursor"]))
                elif event["type"] == "live":
                    cursor = event["cursor"]
            client.socket.transport.abort()
    writing = False
    await asyncio.gather(*talking)
    async with listening(server) as client:
        await client.subscribe(agent="ada", after=cursor)
        heard += [(session, at) for session, at, _ in client.turns()]
    assert sorted(heard) == sorted(expected)
    for name in names:
        assert [at for session, at in heard if session == name] == sorted(
            at for session, at in heard if session == name
        )


async def test_a_cursor_outlives_the_server(start_server: StartServer, tmp_path: Path) -> None:
    async with running_server(tmp_path) as first:
        await write(first, "ada/old", 2)
        async with listening(first) as client:
            cursor = await client.subscribe(all=True)
            await write(first, "ada/old")
            heard = await client.until("turn")
            cursor["sessions"][heard["session"]] = heard["cursor"]
        # Nobody hears these.
        await write(first, "ada/old", 2)
        await write(first, "ada/new", 2)
        archived = await first.bank.session("ada/archived")
        await archived.append(TALK)
        await archived.archive()
        fork = await (await first.bank.session("ada/old")).fork("ada/fork")
        await fork.append(TALK)
    second = await start_server()
    async with listening(second) as client:
        await client.subscribe(all=True, after=cursor)
    assert sorted(client.turns()) == [
        ("ada/archived", 1, 1),
        ("ada/fork", 6, 6),
        ("ada/new", 1, 1),
        ("ada/new", 2, 2),
        ("ada/old", 4, 4),
        ("ada/old", 5, 5),
    ]


async def test_a_session_that_was_quiet_for_long_is_heard_from_where_it_was(tmp_path: Path) -> None:
    """Neither does the cursor name it, nor does the hub know it."""
    clock = ManualClock()
    config = Config(bank=f"sqlite:///{tmp_path / 'bank.db'}", server=ServerConfig(port=0))
    async with (
        Bank(config=config, clock=clock) as bank,
        serving(make_app(bank)) as http,
        AsyncExitStack() as stack,
    ):
        server = RunningServer(http, stack)
        await write(server, "ada/quiet", 3)
        clock.advance("1h")
        async with listening(server) as client:
            cursor = await client.subscribe(agent="ada")
            assert cursor["sessions"] == {}
            await write(server, "ada/quiet")
            await client.until("turn")
        clock.advance("1d")
        await write(server, "ada/quiet")
        async with listening(server) as again:
            await again.subscribe(agent="ada", after=cursor)
    assert client.turns() == [("ada/quiet", 4, 4)]
    assert again.turns() == [("ada/quiet", 4, 4), ("ada/quiet", 5, 5)]


async def test_live_events_wait_until_the_history_was_told(
    server: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is written while a client catches up must not move its cursor past the gap."""
    await write(server, "ada/x", 3)
    reading, go_on = asyncio.Event(), asyncio.Event()
    pieces = live_log.LogReader.pieces

    async def slow(self: live_log.LogReader, session: str, after: int, head: Any) -> Any:
        found = await pieces(self, session, after, head)
        if after == 1:
            reading.set()
            await go_on.wait()
        return found

    monkeypatch.setattr(live_log.LogReader, "pieces", slow)
    async with listening(server) as client:
        await client.subscribe("all", all=True)  # live, and hears the session, too
        await client.say("subscribe", "x", session="ada/x", after=1)
        await reading.wait()
        await write(server, "ada/x")
        await write(server, "ada/y")
        await client.until("turn", lambda event: event["session"] == "ada/y")
        assert client.turns() == [("ada/y", 1, 1)]
        go_on.set()
        await client.until("live", lambda event: event["id"] == "x")
    assert client.turns()[1:] == [("ada/x", n, n) for n in (2, 3, 4)]


async def test_what_else_happens_to_a_session(server: RunningServer) -> None:
    session = await server.bank.session("ada/x")
    await write(server, "ada/x", 3)
    async with listening(server) as client:
        await client.subscribe(session="ada/x")
        await session.undo(2)
        assert (await client.until("session"))["undone"] == [[2, 3]]
        await server.bank.forget("ada/x", turns=[1])
        assert (await client.until("session"))["forgets"]
        await server.bank.forget("ada/x")
        await client.until("session", lambda event: event.get("gone"))
    async with listening(server) as client:
        assert await client.subscribe(session="ada/x", after=2) == 0
    assert client.turns() == []


async def test_too_long_a_turn_comes_without_its_words(server: RunningServer) -> None:
    noise = "".join(chr(33 + (n * n * 7919) % 90) for n in range(15_000))
    session = await server.bank.session("ada/x")
    async with listening(server) as client:
        await client.subscribe(session="ada/x")
        calls = tuple(ToolCall(str(n), "cat") for n in range(20))
        results = tuple(ToolResult(str(n), (Text(noise),)) for n in range(20))
        await session.append([user("?"), Message("assistant", calls), Message("tool", results)])
        event = await client.until("turn", lambda event: event.get("omitted"))
    assert event["omitted"] > 256 << 10
    assert "rounds" not in event or not event["rounds"]


async def test_too_many_turns_are_said_to_be_skipped(
    server: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_log, "MOST_PIECES", 3)
    await write(server, "ada/x", 10)
    async with listening(server) as client:
        assert await client.subscribe(session="ada/x", after=2) == 10
        assert client.turns() == [("ada/x", n, n) for n in (8, 9, 10)]
        (skipped,) = [event for event in client.heard if event["type"] == "skipped"]
    assert skipped["turns"]["ada/x"] == {"after": 2, "through": 7, "first": 0, "last": 8}


# Answers --------------------------------------------------------------------------------------


async def test_an_answer_is_heard_as_it_arrives(server: RunningServer) -> None:
    session = await server.bank.session("ada/x")
    await session.append("How?")
    async with listening(server) as early, listening(server) as late:
        await early.subscribe(session="ada/x")
        async with session.answer(model="m") as answer:
            await answer.text("One ")
            await late.subscribe(agent="ada")
            await answer.text("step")
            for client in (early, late):
                await client.until("delta", lambda event: event["text"] == "step")
            answer._grew = False
            await answer._save()  # nothing arrived meanwhile
            await early.until("heartbeat")
            await answer.reasoning("Hm.")
            await answer.call("c1", "ls")
            await answer.arguments("{}")
        for client in (early, late):
            while not {("turn", None), ("answer", "ended")} <= client.kinds():
                await client.next()
            assert client.answer(1)[:8] == "One step"
    states = [event["state"] for event in early.heard if event["type"] == "answer"]
    assert states == ["arriving", "ended"]
    deltas = [event for event in early.heard if event["type"] == "delta"]
    assert [(d.get("part", 0), d.get("of", "text"), d.get("name", "")) for d in deltas] == [
        (0, "text", ""),
        (0, "text", ""),
        (1, "reasoning", ""),
        (2, "call", "ls"),
        (2, "call", "ls"),
    ]


async def test_an_answer_that_fails_is_left(server: RunningServer) -> None:
    session = await server.bank.session("ada/x")
    await session.append("How?")
    async with listening(server) as client:
        await client.subscribe(session="ada/x")
        answer = session.answer()
        await answer.__aenter__()
        await answer.text("One")
        await answer.__aexit__(ZeroDivisionError)
        await client.until("answer", lambda event: event["state"] == "left")


async def test_only_the_topics_asked_for(server: RunningServer) -> None:
    session = await server.bank.session("ada/x")
    async with listening(server) as turns, listening(server) as answers:
        await turns.subscribe(session="ada/x", topics=["turns"])
        await answers.subscribe(session="ada/x", topics=["answers"])
        await session.append("How?")
        async with session.answer() as answer:
            await answer.text("So.")
        await turns.until("turn", lambda event: event["cursor"] == 2)
        await answers.until("answer", lambda event: event["state"] == "ended")
    assert {event["type"] for event in turns.heard} == {"subscribed", "live", "turn"}
    assert {event["type"] for event in answers.heard} == {"subscribed", "live", "answer", "delta"}


async def test_jobs(server: RunningServer) -> None:
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def work(_job: object) -> None:
        begun.set()
        await go_on.wait()

    server.bank.jobs.register("dig", work)
    async with listening(server) as client, listening(server) as ada:
        await client.subscribe(all=True)
        await ada.subscribe(agent="ada")
        hub = server.app.state.part(live_hub.LiveHub)
        await until(lambda: hub._jobs is not None)
        await server.bank.jobs.enqueue(None, "dig", key="ada/x/7")
        await server.bank.jobs.enqueue(None, "dig", key="garden")
        await begun.wait()
        await client.until("job", lambda e: e["id"] == "dig/ada/x/7" and e["state"] == "running")
        go_on.set()
        for client_ in (client, ada):
            done = await client_.until("job", lambda e: e["state"] == "done" and "session" in e)
            assert (done["id"], done["session"]) == ("dig/ada/x/7", "ada/x")
    assert {event.get("session") for event in ada.heard if event["type"] == "job"} == {"ada/x"}


# Other processes ------------------------------------------------------------------------------


class Writer:
    """A process of its own; see `live_writer`."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process

    async def do(self, line: str) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{line}\n".encode())
        await self.process.stdin.drain()
        if line != "die":
            assert await self.process.stdout.readline() == b"done\n"


@asynccontextmanager
async def writer(url: str) -> AsyncIterator[Writer]:
    script = str(Path(__file__).parent / "live_writer.py")
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        sys.executable, script, url, stdin=pipe, stdout=pipe
    )
    try:
        yield Writer(process)
    finally:
        assert process.stdin is not None
        process.stdin.close()
        await process.wait()
        process._transport.close()  # type: ignore[attr-defined]  # or it warns when it is collected


async def test_what_another_process_writes_is_heard(server: RunningServer) -> None:
    async with (
        writer(server.bank.url) as other,
        listening(server) as one,
        listening(server) as all_,
    ):
        await one.subscribe(session="ada/x")
        await all_.subscribe(all=True)
        await write(server, "ada/x")
        await other.do("append ada/x theirs")
        await write(server, "ada/x")
        await other.do("append bob/y theirs")
        while len(all_.turns()) < 4:
            await all_.next()
        await one.until("turn", lambda event: event["cursor"] == 3)
    assert one.turns() == [("ada/x", n, n) for n in (1, 2, 3)]
    assert sorted(all_.turns()) == [*(("ada/x", n, n) for n in (1, 2, 3)), ("bob/y", 1, 1)]


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["sqlite", "postgresql"])
async def test_nothing_is_lost_between_processes(
    backend: str, start_server: StartServer, request: pytest.FixtureRequest
) -> None:
    """Three processes write to the same sessions, a reader is cut off again and again."""
    url = {"bank": request.getfixturevalue("postgres_url")} if backend == "postgresql" else {}
    server = await start_server(**url)
    names, heard = [f"ada/{n}" for n in range(3)], list[tuple[str, int]]()
    chance = random.Random(17)

    async def read(cursor: Any, most: int) -> Any:
        async with listening(server) as client:
            await client.say("subscribe", agent="ada", topics=["turns"], after=cursor)
            while most:
                event = await client.next()
                if event["type"] == "turn":
                    most -= 1
                    cursor["sessions"][event["session"]] = event["cursor"]
                    heard.append((event["session"], event["cursor"]))
                elif event["type"] == "live":
                    cursor = event["cursor"]
            client.socket.transport.abort()
        return cursor

    async def others(process: Writer) -> None:
        for n in range(60):
            await process.do(f"append {names[n % 3]} theirs {n}")

    async def ours() -> None:
        for n in range(60):
            await write(server, names[n % 3])

    async with writer(server.bank.url) as one, writer(server.bank.url) as two:
        async with listening(server) as client:
            cursor = await client.subscribe(agent="ada")
        assert cursor["sessions"] == {}
        writing = asyncio.gather(others(one), others(two), ours())
        while len(heard) < 150:
            cursor = await read(cursor, chance.randrange(1, 12))
        await writing
    async with listening(server) as client:
        await client.subscribe(agent="ada", after=cursor)
    heard += [(session, at) for session, at, _ in client.turns()]
    for name in names:
        written = (await (await server.bank.session(name)).head()).pieces
        assert [at for session, at in heard if session == name] == list(range(1, written + 1))
    assert len(heard) == 180


@pytest.mark.slow
async def test_a_store_that_cannot_tell_of_commits_is_read(
    postgres_url: str, start_server: StartServer
) -> None:
    server = await start_server(bank=postgres_url)
    async with writer(postgres_url) as other, listening(server) as client:
        await client.subscribe(agent="ada")
        await other.do("append ada/x theirs")
        await write(server, "ada/x")
        await other.do("append bob/y theirs")
        await other.do("stream ada/z It")
        await client.until("answer", lambda event: event["state"] == "arriving")
        await other.do("end")
        while len(client.turns()) < 4:
            await client.next()
    assert sorted(client.turns()) == [
        ("ada/x", 1, 1),
        ("ada/x", 2, 2),
        ("ada/z", 1, 1),
        ("ada/z", 2, 1),
    ]


async def test_answers_of_another_process_come_from_their_drafts(server: RunningServer) -> None:
    async with writer(server.bank.url) as other, listening(server) as client:
        await client.subscribe(agent="ada")
        await other.do("stream ada/x It")
        await client.until("answer", lambda event: event["state"] == "arriving")
        await other.do("more  is")
        await client.until("delta", lambda event: event["text"].endswith("is"))
        assert client.answer(1) == "It is"
        async with listening(server) as late:
            await late.subscribe(session="ada/x")
            await late.until("answer")
            assert late.answer(1) == "It is"
        await other.do("end")
        written = await client.until("turn", lambda event: event["cursor"] == 2)
        await client.until("answer", lambda event: event["state"] == "ended")
    assert written["rounds"][0]["messages"][0]["parts"][0]["text"] == "It is"


async def test_the_answer_of_a_process_that_died_is_left(
    server: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with writer(server.bank.url) as other, listening(server) as client:
        await client.subscribe(session="ada/x")
        await other.do("stream ada/x It")
        await client.until("answer", lambda event: event["state"] == "arriving")
        await other.do("die")
        await other.process.wait()
        monkeypatch.setattr(log_records, "ALIVE_FOR", 0)  # fifteen seconds have passed
        await client.until("answer", lambda event: event["state"] == "left")
    (partial,) = await (await server.bank.session("ada/x")).partials()
    assert partial.message.text == "It"


# Who may hear what ----------------------------------------------------------------------------


async def test_a_token_of_an_agent_hears_that_agent_alone(server: RunningServer) -> None:
    token = server.token(TokenScope.READ, agent="ada")
    async with listening(server, token) as client:
        for id, asked in (("1", {"session": "bob/x"}), ("2", {"agent": "bob"})):
            await client.say("subscribe", id, **asked)
            refused = await client.until("error")
            assert (refused["code"], refused["id"]) == ("denied", id)
        cursor = {"time": 0, "sessions": {"bob/x": 0}}
        await write(server, "bob/x")
        await client.subscribe("3", all=True, after=cursor)
        async with (await server.bank.session("bob/x")).answer() as answer:
            await answer.text("secret")
        await write(server, "bob/x")
        await write(server, "ada/x")
        await client.until("turn", lambda event: event["session"] == "ada/x")
    assert "bob" not in json.dumps(client.heard[4:])


async def test_a_token_or_a_ticket_is_needed(server: RunningServer) -> None:
    with pytest.raises(InvalidStatus, match="401"):
        async with listening(server, "pd_wrong"):
            pass
    with pytest.raises(InvalidStatus, match="403"):
        async with listening(server, server.token(TokenScope.PROXY)):
            pass
    reader = await server.client(server.token(TokenScope.READ))
    ticket = (await reader.post("/api/v1/tickets")).json()["ticket"]
    url = f"{server.url.replace('http', 'ws', 1)}/api/v1/live?ticket={ticket}"
    async with connect(url) as socket:
        await LiveClient(socket).subscribe(all=True)
    with pytest.raises(InvalidStatus, match="401"):
        async with connect(url):
            pass


@pytest.mark.parametrize("ticket", [False, True])
async def test_a_revoked_token_ends_its_sockets(
    server: RunningServer, monkeypatch: pytest.MonkeyPatch, ticket: bool
) -> None:
    monkeypatch.setattr(live_socket, "_RECHECK", 0.01)
    tokens = server.app.state.part(AccessTokens)
    secret, _ = await tokens.make("laptop", scopes=(TokenScope.READ,))
    laptop = await server.client(secret)
    tickets = [(await laptop.post("/api/v1/tickets")).json()["ticket"] for _ in range(2)]
    url = f"{server.url.replace('http', 'ws', 1)}/api/v1/live?ticket="
    opened = (
        connect(f"{url}{tickets[0]}")
        if ticket
        else connect(url, additional_headers={"authorization": f"Bearer {secret}"})
    )
    async with listening(server) as other, opened as socket:
        client = LiveClient(socket)
        await client.subscribe(all=True)
        await tokens.revoke("laptop")
        with pytest.raises(InvalidStatus, match="401"):
            async with connect(f"{url}{tickets[1]}"):
                pass
        with pytest.raises(ConnectionClosed) as closed:
            await client.until("never")
        await other.subscribe(all=True)
    assert closed.value.rcvd is not None
    assert closed.value.rcvd.code == 1008


async def test_a_token_that_cannot_be_looked_at_ends_nothing(
    server: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_socket, "_RECHECK", 0.001)
    tokens, looks = server.app.state.part(AccessTokens), 0
    secret, _ = await tokens.make("laptop", scopes=(TokenScope.READ,))

    async def away(_: str) -> None:
        nonlocal looks
        looks += 1
        raise Unavailable("The store is away.")

    async with listening(server, secret) as client:
        await client.subscribe(all=True)
        with monkeypatch.context() as patch:
            patch.setattr(tokens, "_look_up", away)
            await until(lambda: looks > 2)
        await client.subscribe("b", all=True)


# Bad clients ----------------------------------------------------------------------------------

MALFORMED = (
    "",
    "{",
    "[]",
    "null",
    '{"type": "subscribe"}',
    '{"type": "shout", "id": "a"}',
    '{"type": "subscribe", "id": "", "all": true}',
    '{"type": "subscribe", "id": "a"}',
    '{"type": "subscribe", "id": "a", "all": true, "agent": "x"}',
    '{"type": "subscribe", "id": "a", "session": "no-slash"}',
    '{"type": "subscribe", "id": "a", "session": "a/b", "after": -1}',
    '{"type": "subscribe", "id": "a", "session": "a/b", "after": {"time": 0}}',
    '{"type": "subscribe", "id": "a", "all": true, "after": 3}',
    '{"type": "subscribe", "id": "a", "all": true, "topics": ["gossip"]}',
    '{"type": "unsubscribe", "id": "never"}',
    b"\xff\xfe",
    "[" * 5_000,
)


@pytest.mark.parametrize("frame", MALFORMED, ids=range(len(MALFORMED)))
async def test_a_malformed_message_is_answered_and_the_socket_goes_on(
    server: RunningServer, frame: str | bytes
) -> None:
    async with listening(server) as client:
        await client.socket.send(frame)
        fault = await client.until("error")
        assert fault["code"] == "invalid_input"
        assert fault["message"]
        await client.subscribe(session="a/b")
        await client.say("subscribe", "a", session="a/c")
        assert "subscription 'a'" in (await client.until("error"))["message"]


async def test_a_client_that_only_sends_nonsense_is_closed(server: RunningServer) -> None:
    async with listening(server) as client:
        for _ in range(live_socket.MOST_FAULTS):
            await client.socket.send("?")
        with pytest.raises(ConnectionClosed) as closed:
            await client.until("never")
    assert closed.value.rcvd is not None
    assert closed.value.rcvd.code == 1008


@pytest.mark.parametrize("size", [live_socket.MOST_FRAME + 1, 2 << 20])
async def test_too_large_a_message_closes_the_socket(server: RunningServer, size: int) -> None:
    async with listening(server) as client:
        await client.socket.send("x" * size)
        with pytest.raises(ConnectionClosed) as closed:
            await client.until("never")
    assert closed.value.rcvd is not None
    assert closed.value.rcvd.code == 1009


async def test_the_number_of_subscriptions_is_limited(server: RunningServer) -> None:
    async with listening(server) as client:
        for n in range(live_socket.MOST_SUBSCRIPTIONS):
            await client.subscribe(str(n), session=f"ada/{n}")
        await client.say("subscribe", "more", all=True)
        assert "at most 100" in (await client.until("error"))["message"]
        await client.say("unsubscribe", "7")
        await client.subscribe("more", all=True)


async def test_a_slow_reader_is_told_what_it_missed(
    server: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_socket, "MOST_EVENTS", 4)
    sending, go_on = asyncio.Event(), asyncio.Event()
    send = WebSocket.send_text

    async def stuck(self: Any, text: str) -> None:
        if '"cursor":1,' in text:
            sending.set()
            await go_on.wait()  # as if nobody read on the other side
        await send(self, text)

    monkeypatch.setattr(WebSocket, "send_text", stuck)
    async with listening(server) as client:
        await client.subscribe(all=True)
        await write(server, "ada/x")
        await sending.wait()
        hub = server.app.state.part(live_hub.LiveHub)
        await write(server, "ada/x", 9)
        await until(lambda: hub.position("ada/x") == 10)
        session = await server.bank.session("ada/x")
        async with session.answer() as answer:
            await answer.text("unheard")
        await until(lambda: hub.position("ada/x") == 11)
        go_on.set()
        skipped = await client.until("skipped")
        missed = skipped["turns"]["ada/x"]
        assert missed == {"after": 5, "through": 11, "first": 6, "last": 10}
        assert skipped["answers"] == 3
        await write(server, "ada/x")
        await client.until("turn", lambda event: event["cursor"] == 12)
        await client.subscribe("again", session="ada/x", after=missed["after"])
    assert [at for _, at, _ in client.turns()] == [1, 2, 3, 4, 5, 12, 6, 7, 8, 9, 10, 11, 12]


async def test_a_reader_that_never_reads_costs_no_memory(server: RunningServer) -> None:
    """Real back-pressure: the socket's buffers fill, then the queue, and no more is kept."""
    delta = AnswerChange(session="ada/x", turn=1, kind="grew", text="x" * 50_000)
    async with listening(server, max_queue=1, compression=None) as client:
        await client.subscribe(session="ada/x")
        (subscription,) = server.app.state.part(live_hub.LiveHub).audience.all
        queue = subscription.reader._queue  # type: ignore[attr-defined]
        while not queue.overflowed:
            server.bank.services.log.answers.tell(delta)
            await asyncio.sleep(0)
        for _ in range(100):
            server.bank.services.log.answers.tell(delta)
        assert queue._size < live_socket.MOST_WAITING + 51_000
        skipped = await client.until("skipped")
        assert skipped["answers"] > 100


async def test_a_client_that_asks_and_never_reads_is_not_listened_to(
    server: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_socket, "MOST_EVENTS", 8)
    go_on, asked = asyncio.Event(), 0
    send, answer = WebSocket.send_text, live_socket.LiveSocket._answer

    async def stuck(self: Any, text: str) -> None:
        await go_on.wait()
        await send(self, text)

    def counted(self: Any, frame: Any) -> None:
        nonlocal asked
        asked += 1
        answer(self, frame)

    monkeypatch.setattr(WebSocket, "send_text", stuck)
    monkeypatch.setattr(live_socket.LiveSocket, "_answer", counted)
    async with listening(server) as client:
        for n in range(100):
            await client.say("subscribe", f"{n}", session="ada/y")
            await client.say("unsubscribe", f"{n}")
        await until(lambda: asked >= 8)
        for _ in range(2_000):
            await asyncio.sleep(0)
        assert asked <= 12
        go_on.set()
        await client.until("unsubscribed", lambda event: event["id"] == "99")


async def test_a_client_that_only_pings_and_never_reads_costs_no_memory(
    server: RunningServer,
) -> None:
    ping = b"\x89\xfd" + bytes(4) + b"x" * 125
    reader, writer = await asyncio.open_connection("127.0.0.1", server.http.port)
    writer.write(
        b"GET /api/v1/live HTTP/1.1\r\nhost: localhost\r\nupgrade: websocket\r\n"
        b"connection: upgrade\r\nsec-websocket-version: 13\r\n"
        b"sec-websocket-key: AAAAAAAAAAAAAAAAAAAAAA==\r\n"
        + f"x-perdure-token: {server.token()}\r\n\r\n".encode()
    )
    assert b" 101 " in await reader.readuntil(b"\r\n\r\n")
    sent = 0
    while sent < 20_000_000:
        writer.write(ping * 500)
        await writer.drain()
        sent += 500 * 127
    writer.write(b"\x88\x80" + bytes(4))  # close
    answered = await reader.read()
    writer.close()
    await writer.wait_closed()
    assert 0 < len(answered) < sent / 2  # what fits into the buffers of the network, and a little


async def test_idle_sessions_leave_the_memory(
    server: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if no other process ever writes."""
    monkeypatch.setattr(live_hub, "_CURSORS_EVERY", 0.0)
    hub = server.app.state.part(live_hub.LiveHub)
    async with listening(server) as client:
        await client.subscribe(all=True)
        for n in range(3):
            await write(server, f"ada/{n}")
        await until(lambda: len(hub._known) == 3)
        monkeypatch.setattr(live_hub, "_FORGET_AFTER", 0)
        await until(lambda: not hub._known)


async def test_but_not_while_a_reader_catches_up_with_them(
    server: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("ada/x", "ada/y"):
        await write(server, name)
    reading, go_on, pieces = asyncio.Event(), asyncio.Event(), live_log.LogReader.pieces

    async def slow(*args: Any) -> Any:
        reading.set()
        await go_on.wait()
        return await pieces(*args)

    monkeypatch.setattr(live_log.LogReader, "pieces", slow)
    async with listening(server) as client:
        await client.say("subscribe", all=True, after={"time": 0})
        await reading.wait()
        monkeypatch.setattr(live_hub, "_FORGET_AFTER", -1_000_000_000)
        server.app.state.part(live_hub.LiveHub)._forget_idle()
        go_on.set()
        await client.until("live")
    assert sorted(client.turns()) == [("ada/x", 1, 1), ("ada/y", 1, 1)]


async def test_events_wait_while_the_store_is_away(
    server: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_hub, "_SLOW_POLL", 0.01)
    failures = 0
    heads = live_log.LogReader.heads

    async def away(self: live_log.LogReader, names: Any) -> Any:
        nonlocal failures
        wanted = list(names)
        if "ada/new" in wanted and failures < 3:
            failures += 1
            raise Unavailable("The store is away.")
        return await heads(self, wanted)

    async with listening(server) as client:
        await client.subscribe(agent="ada")
        monkeypatch.setattr(live_log.LogReader, "heads", away)
        await write(server, "ada/new", 2)
        await client.until("turn", lambda event: event["cursor"] == 2)
    assert failures == 3
    assert client.turns() == [("ada/new", 1, 1), ("ada/new", 2, 2)]


async def test_a_client_that_left_while_it_connected_is_no_fault(
    server: RunningServer, caplog: pytest.LogCaptureFixture
) -> None:
    async def receive() -> dict[str, str]:
        return {"type": "websocket.connect"}

    async def send(message: object) -> None:
        raise OSError("the client has left")  # as uvicorn does

    headers = {"host": server.url.removeprefix("http://"), "x-perdure-token": server.token()}
    scope = {
        "type": "websocket",
        "path": "/api/v1/live",
        "query_string": b"",
        "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
        "client": ("127.0.0.1", 1),
    }
    await server.app(scope, receive, send)
    assert not caplog.records


async def test_sockets_end_when_the_server_stops(tmp_path: Path) -> None:
    async with running_server(tmp_path) as server:
        connection = listening(server)
        client = await connection.__aenter__()
        await client.subscribe(all=True)
    with pytest.raises(ConnectionClosed) as closed:
        await client.until("never")
    assert closed.value.rcvd is not None
    assert closed.value.rcvd.code in {1001, 1012}  # going away, restarting
    await connection.__aexit__(None, None, None)


async def test_nothing_is_read_while_nobody_listens(server: RunningServer) -> None:
    hub = server.app.state.part(live_hub.LiveHub)
    async with listening(server) as client:
        await client.subscribe(all=True)
        assert hub._task is not None
    await until(lambda: hub._task is None)
    assert not server.bank.services.log.answers.is_heard
    async with listening(server) as client:
        await client.subscribe(all=True)
        await write(server, "ada/x")
        await client.until("turn")


@pytest.mark.slow
async def test_a_thousand_sockets(server: RunningServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Idle ones cost no reads; an event reaches all."""
    async with asyncio.TaskGroup() as group:
        ready, go = asyncio.Semaphore(0), asyncio.Event()

        async def stay(n: int) -> None:
            async with listening(server, compression=None) as client:
                await client.subscribe("mine", session=f"ada/{n}")
                await client.subscribe("ours", session="ada/all")
                ready.release()
                await go.wait()
                await client.until("turn", lambda event: event["session"] == "ada/all")
                await client.until("turn", lambda event: event["session"] == f"ada/{n}")
                assert len(client.turns()) == 2

        for n in range(1_000):
            group.create_task(stay(n))
        for _ in range(1_000):
            await ready.acquire()
        store, looks, reads = server.bank.store, 0, 0
        generation, read, find = store.adapter.generation, store.read, store.find

        async def looked() -> int | None:
            nonlocal looks
            looks += 1
            return await generation()

        async def counted(call: Any, *args: Any) -> Any:
            nonlocal reads
            reads += 1
            return await call(*args)

        monkeypatch.setattr(store.adapter, "generation", looked)
        monkeypatch.setattr(store, "read", partial(counted, read))
        monkeypatch.setattr(store, "find", partial(counted, find))
        await until(lambda: looks > 12)
        assert reads <= looks  # jobs are looked at once a second, for all
        go.set()
        await write(server, "ada/all")
        for n in range(1_000):
            await write(server, f"ada/{n}")


def test_growth_of_drafts() -> None:
    def grown(before: tuple[Any, ...], after: tuple[Any, ...]) -> Any:
        found = growth("a/b", 1, Message("assistant", before), Message("assistant", after))
        return found and [(each.part, each.of, each.at, each.text, each.id) for each in found]

    assert grown((), (Text("a"),)) == [(0, "text", 0, "a", "")]
    assert grown((Text("a"),), (Text("ab"), ToolCall("c", "ls", "{}"))) == [
        (0, "text", 1, "b", ""),
        (1, "call", 0, "{}", "c"),
    ]
    assert grown((Reasoning("a"),), (Reasoning("a"),)) == []
    assert grown((Text("key=abc"),), (Text("key=[masked]"),)) is None
    assert grown((Text("a"),), ()) is None
    assert grown((Text("a"),), (Reasoning("a"),)) is None

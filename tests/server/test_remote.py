"""`perdure.connect` gives what `perdure.open` gives: the same calls, results and errors."""

from __future__ import annotations

import inspect
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import httpx2
import pytest
from msgspec.structs import replace

import perdure
from perdure.bank.bank import Bank
from perdure.config import Config, ServerConfig
from perdure.core.errors import (
    Conflict,
    Denied,
    InvalidInput,
    InvalidURL,
    NotFound,
    PerdureError,
    Unavailable,
)
from perdure.core.messages import Media, Message, Text, ToolCall, ToolResult, assistant, user
from perdure.history.manifest import ShownHistory
from perdure.recall.memories.memories import Memories
from perdure.recall.memory_records import person
from perdure.recall.references.references import References
from perdure.remote.remote_bank import RemoteBank
from perdure.remote.remote_memories import RemoteMemories
from perdure.remote.remote_references import RemoteReferences
from perdure.remote.remote_session import RemoteSession
from perdure.server.access_tokens import AccessTokens
from perdure.server.http_server import serving
from perdure.server.operations import Caller, TokenScope
from perdure.server.server_app import make_app
from perdure.sessions.session import Session
from perdure.sync import Bridge
from perdure.testing.manual_clock import ManualClock
from tests.patience import patient
from tests.server.conftest import ALL_SCOPES, RunningServer
from tests.test_public_face import TEXTS, called

START = 1_770_000_000_000_000
PAIRS = (
    (Bank, RemoteBank),
    (Session, RemoteSession),
    (Memories, RemoteMemories),
    (References, RemoteReferences),
)

#: What only a process that has the store open can do.
_STORE = "needs the store"
LOCAL_METHODS = {
    "Bank": {
        **dict.fromkeys(("open", "looked_at", "settle", "migrate", "backup", "copy_to"), _STORE),
        **dict.fromkeys(("collection", "transaction", "transact", "subscribe", "join"), _STORE),
        **dict.fromkeys(("agent", "agent_memory"), "agents run in a process with the store"),
        "project": "it is in a folder of the client's machine",
        "verify": "GET /api/v1/checks/bank",
        "reflect": "POST /api/v1/reflections/{agent}: it may take hours",
        "agent_memory": "GET /api/v1/agents/{agent}/stats and episodes",
    },
    "Session": {
        "answer": "streams through POST …/chat, or whoever has the bank open",
        "tail": "/api/v1/live",
        "current_record": "what integrations keep of a session in the store",
        "leave_turn": "the server keeps no state of writers: leave `continues` out",
    },
    "Memories": {
        **dict.fromkeys(("get_many", "merged_into", "rivals", "doubles", "similar"), "not asked"),
        **dict.fromkeys(
            ("contradict", "withdraw", "refill", "topic_weights"), "parts of their own use them"
        ),
        "within": "takes a transaction of the store",
    },
}
LOCAL_METHODS["References"] = {
    **dict.fromkeys(("numbered", "sync", "refill"), "parts of their own use them"),
    **dict.fromkeys(
        ("get_for", "hidden_from", "put_canon", "remove_canon"), "parts of their own use them"
    ),
    "add_file": "files are the server's: send the text",
}
LOCAL_PARAMETERS = {
    "file": "what errors call it",
    "within": "runs inside the transaction",
    "options": "of the store",
    "count": "for importers",
    "times": "for importers",
    "masked": "for importers",
}


def public(cls: type) -> dict[str, Any]:
    return {
        name: method
        for name, method in inspect.getmembers(cls, inspect.isfunction)
        if not name.startswith("_")
    }


@pytest.mark.parametrize(("local", "remote"), PAIRS, ids=lambda cls: cls.__name__)
def test_the_same_signatures(local: type, remote: type) -> None:
    theirs, ours = public(local), public(remote)
    assert theirs.keys() - ours.keys() == LOCAL_METHODS[local.__name__].keys()
    for name in ours.keys() & theirs.keys():
        wanted = inspect.signature(theirs[name])
        found = inspect.signature(ours[name])
        kept = [each for each in wanted.parameters.values() if each.name not in LOCAL_PARAMETERS]
        assert list(found.parameters.values()) == kept, name
        result = str(wanted.return_annotation)
        told = str(found.return_annotation).replace("RemoteSession", "Session")
        # Where a layer came from, and its number in the index, are the server's.
        assert told.replace("LayerInfo", "LayerRecord") == result, name
    extra = ours.keys() - theirs.keys()
    assert extra == ({"agents"} if remote is RemoteBank else set())


@asynccontextmanager
async def local_bank(folder: Path) -> AsyncIterator[Bank]:
    config = Config(recall=patient(), bank=f"sqlite:///{folder / 'local.db'}")
    async with Bank(config=config, clock=ManualClock(START)) as bank:
        yield bank


@asynccontextmanager
async def remote_bank(folder: Path) -> AsyncIterator[tuple[RemoteBank, Bank]]:
    config = Config(
        recall=patient(), bank=f"sqlite:///{folder / 'remote.db'}", server=ServerConfig(port=0)
    )
    async with (
        Bank(config=config, clock=ManualClock(START)) as bank,
        serving(make_app(bank)) as server,
        perdure.connect(server.url, token=token_of(server)) as remote,
    ):
        yield remote, bank


def token_of(server: Any) -> str:
    return server.app.run_tokens.make(Caller("tester", None, ALL_SCOPES))


async def both(
    folder: Path, story: Callable[[Any, Bank], Awaitable[list[Any]]]
) -> tuple[list[Any], list[Any]]:
    """What a story tells of a bank here, and of one behind a server."""
    async with local_bank(folder) as bank:
        here = await story(bank, bank)
    async with remote_bank(folder) as (remote, bank):
        there = await story(remote, bank)
    return here, there


def shown(context: Any) -> list[Any]:
    return [
        context,
        context.tokens,
        context.bands,
        context.explain(),
        context.cache_key,
        context.to_chat(),
        context.to_responses(),
        context.to_messages(),
    ]


def plain(value: Any) -> Any:
    """Without what tells the time that something took, and objects that hold caches."""
    if isinstance(value, perdure.Context):
        skipped = {"encoder", "shown"}
        fields = {n: getattr(value, n) for n in value.__struct_fields__ if n not in skipped}
        return fields | {"shown": plain(value.shown)}
    if isinstance(value, ShownHistory):
        bare = [replace(each.element, digest=b"") for each in value.blocks]  # some are random
        blocks = [replace(each, element=at) for each, at in zip(value.blocks, bare, strict=True)]
        return replace(value, blocks=tuple(blocks))
    if isinstance(value, perdure.Turn):  # tokens are counted in the background
        return replace(value, rounds=tuple(replace(each, tokens=None) for each in value.rounds))
    if isinstance(value, perdure.Recalled):
        return (value.stage, value.notes, [plain(hit) for hit in value.hits])
    if isinstance(value, perdure.Hit):
        return replace(value, score=round(value.score, 6))
    if isinstance(value, list):
        return [plain(each) for each in value]
    return value


async def conversation(bank: Any, opened: Bank) -> list[Any]:
    session = await bank.session(
        "planner/auth", budget=1_500, state={"cwd": "/x"}, tags={"team": "a"}, profile="thrifty"
    )
    told: list[Any] = [session.name, session.agent, session.state]
    told += [
        await session.append(
            [user(f"Day {day}: which build?"), assistant(f"Build {day * 7}, tests passed.")],
            tags={"day": str(day)},
            key=f"day {day}",
        )
        for day in range(1, 41)
    ]
    await opened.settle()
    told.append(await session.append("again", key="day 3"))
    told.append(await session.append([user("a"), assistant("b"), user("c"), assistant("d")]))
    context = await session.context(
        "Which build did we ship on day 3?",
        system="Be brief.",
        tools=perdure.HISTORY_TOOLS[:2],
        model="claude-sonnet-4-5",
        reminders=["Answer in English."],
    )
    told += shown(context)
    call = Message("assistant", (ToolCall("c1", "ls", "{}"),))
    told.append(await session.append(call, context=context))
    told.append(await session.append(Message("tool", (ToolResult("c1", (Text("a.py"),)),))))
    told += shown(await session.context())
    told.append(await session.append([*context.messages, assistant("Build 21.")], context=context))
    told += shown(await session.past_context("T-43"))
    told += shown(await session.context("And then?", keep=False))
    told.append(await session.turns(3))
    told.append(await session.turns(5, before="T-10", prune=True))
    told.append(await session.turns(50, tags={"day": "7"}))
    told.append(await session.turns(since=datetime(2026, 1, 1, tzinfo=UTC), until=date(2027, 1, 1)))
    told.append([await session.turn("T-3", level=level) for level in "RSCT"])
    told.append([await session.turn("T-43.2"), await session.turn(3), await session.turn("T-43")])
    told.append([turn async for turn in session.read(38, 42)])
    told.append(await session.undo(2))
    told.append([turn.number for turn in await session.turns(4)])
    told.append([turn.status for turn in await session.turns(4, undone=True)])
    told.append(await session.append(assistant("Late.")))
    await session.close_turn()
    told.append(await session.append(assistant("Later.")))
    await session.resume("T-44")
    told.append(await session.append(assistant("Late again.")))
    told.append(await session.set_fidelity("T-2", "R"))
    told.append(
        [(e.number, e.reason, str(e.at), e.budget, e.after) for e in await session.epochs()]
    )
    await opened.settle()
    told.append([each.tokens for turn in await session.turns(9) for each in turn.rounds])
    told.append(await session.recall("build of day 3", limit=3, roles="user", kinds=["turn"]))
    told.append(await session.recall("build", line=True, since="2020-01-01", until="2030-01-01"))
    told.append(await session.search("day 17", limit=2))
    told.append(await session.run_tool("board_post", {"text": "Port 8123."}))
    told.append(await session.run_tool("history_get_turn", '{"id": "T-3", "level": "S"}'))
    told.append(await session.board())
    await session.describe({"title": "Builds"})
    await session.change_strategy("regular", budget=2_000)
    told.append(session.state)
    told += shown(await session.context("Which day was it?"))
    fork = await session.fork("coder/copy", "T-5")
    told.append(await fork.append([user("Here?"), assistant("Here.")]))
    told.append([turn.number for turn in await fork.turns()])
    await session.share("tester", "coder")
    await session.unshare("coder")
    told.append(await session.shared_with())
    await session.unshare_all()
    told.append(await session.shared_with())
    odd = Message("user", (Text("half \ud800 of it"), Media("image/png", data=b"\x89PNG" * 9)))
    await session.append([odd, assistant("Odd.")])
    told.append(await session.resolve((await session.turns(1))[0].messages))
    big = user("0123456789" * 2_000)
    written = await session.append([big, assistant("Long.")])
    told.append(await session.resolve(written.messages))
    told.append(await session.turn(written.number, resolve=True))
    told.append(await (await bank.existing_session("coder/copy")).turns())
    await fork.archive()
    told.append([info.name for info in await bank.sessions()])
    told.append([info.name for info in await bank.sessions(agent="coder", archived=True)])
    told.append(await bank.forget("planner/auth", turns=["T-1", 2]))
    told.append((await session.turn(1)).status)
    told.append((await session.head()).forgets)
    told.append((await bank.forget_agent("coder")).sessions)
    return [plain(each) for each in told]


async def test_the_same_conversation(tmp_path: Path) -> None:
    here, there = await both(tmp_path, conversation)
    for one, other in zip(here, there, strict=True):
        assert other == one


async def writers(bank: Any, _: Bank) -> list[Any]:
    """Two who write to one session at a time: each one's messages go to its own turn."""
    one, other = await bank.session("planner/auth"), await bank.session("planner/auth")
    told = list[Any]()
    calls = [Message("assistant", (ToolCall(f"c{n}", "ls", "{}"),)) for n in range(2)]
    results = [Message("tool", (ToolResult(f"c{n}", (Text("a.py"),)),)) for n in range(2)]
    first = await one.context("One?", recall=False)
    second = await other.context("Two?", recall=False)
    assert first.turn == second.turn == 1
    told.append((await other.append(calls[1], context=second)).id)
    told.append((await one.append(calls[0], context=first)).id)
    told.append((await other.append(results[1], context=second)).id)
    told.append((await one.append(results[0])).id)
    told.append((await one.context(recall=False)).turn)
    told.append((await other.context(recall=False)).turn)
    told.append((await other.append("Two.", context=second)).id)
    told.append((await one.append("One.", context=first)).id)
    told.append((await one.append("More of one.", context=first)).id)
    told.append((await other.append(user("Three?"))).id)
    told.append((await one.append(user("Four?"))).id)
    told.append((await other.append(user("Three, too?"))).id)
    told.append(await one.undo(numbers=[1]))
    told.append((await other.append(assistant("For nobody."))).id)
    told.append((await one.append(calls[0])).id)
    told.append((await other.append(user("Five?"))).id)
    told.append(await one.undo())  # the other's; its own is open
    told.append((await one.append(results[0])).id)
    told.append((await other.append(assistant("Five."))).id)
    third = await one.context("Six?", recall=False)
    told.append(third.turn)
    told.append((await one.append("Six.", context=third)).id)
    told.append(await one.undo())
    told.append((await one.append("Six, again.", context=third)).id)
    told.append([turn.id for turn in await one.turns()])
    told.append([(turn.id, len(turn.messages)) for turn in await one.turns(undone=True)])
    return told


async def test_the_same_with_two_writers(tmp_path: Path) -> None:
    here, there = await both(tmp_path, writers)
    assert there == here


STEPS = (
    *("ask", "reply", "call", "result", "context", "answer", "go_on"),
    *("undo", "undo_one", "close"),
)


def random_steps(seed: int) -> list[tuple[int, str, int]]:
    """Who does what, with which number."""
    dice = random.Random(seed)
    return [(dice.randrange(2), dice.choice(STEPS), dice.randrange(1, 6)) for _ in range(16)]


async def taken(session: Any, step: str, number: int, contexts: dict[Any, Any]) -> Any:
    if step == "ask":
        return (await session.append(user(f"Question {number}?"))).id
    if step == "reply":
        return (await session.append(assistant(f"Answer {number}."))).id
    if step == "call":
        called = Message("assistant", (ToolCall(f"c{number}", "ls", "{}"),))
        return (await session.append(called)).id
    if step == "result":
        result = Message("tool", (ToolResult(f"c{number}", (Text("a.py"),)),))
        return (await session.append(result)).id
    if step == "context":
        contexts[session] = await session.context(f"Prompt {number}?", recall=False)
        return contexts[session].turn
    if step == "go_on":
        return (await session.context(recall=False)).turn
    if step == "answer" and session in contexts:
        return (await session.append(f"Reply {number}.", context=contexts[session])).id
    if step == "undo":
        return await session.undo()
    if step == "undo_one":
        return await session.undo(numbers=[number])
    return await session.close_turn() if step == "close" else None


async def random_writers(bank: Any, _: Bank) -> list[Any]:
    told = list[Any]()
    for seed in range(40):
        pair = [await bank.session(f"planner/s{seed}") for _ in range(2)]
        contexts, wrote = dict[Any, Any](), dict[str, set[int]]()
        for who, step, number in random_steps(seed):
            try:
                came = await taken(pair[who], step, number, contexts)
            except PerdureError as exc:
                came = (type(exc), exc.message)
            told.append((seed, who, step, number, came))
            if isinstance(came, str) and wrote.setdefault(came, set()) | {who} == {0, 1}:
                break  # one that is opened here knows a turn as it left it, the other as it is
            if isinstance(came, str):
                wrote[came].add(who)
        turns = await pair[0].turns(100, undone=True)
        told.append([(turn.id, turn.status, [m.text for m in turn.messages]) for turn in turns])
    return told


async def test_the_same_with_two_writers_who_do_anything(tmp_path: Path) -> None:
    here, there = await both(tmp_path, random_writers)
    for at, (one, other) in enumerate(zip(here, there, strict=True)):
        assert other == one, "\n".join(map(str, here[max(0, at - 16) : at + 1]))


async def learning(bank: Any, _: Bank) -> list[Any]:
    memories = bank.memories
    by = person("tester")
    told: list[Any] = [
        await memories.add("planner", "The port is 8123.", tags=["Ops"], by=by),
        await memories.add("planner", "Fridays are for releases.", kind="decision", weight=0.9),
        await memories.add("planner", "Ada likes tea.", shared=["coder"], anchor={"path": "a.py"}),
        await memories.edit("planner/M-1", text="The port is 8124.", by=by),
        await memories.pin("M-2", agent="planner"),
        await memories.list("planner", words="port"),
        await memories.list(limit=2),
        await memories.retire("planner/M-3", superseded_by="M-2", agent="planner"),
        await memories.list(status=None),
        await memories.restore("planner/M-3"),
        await memories.unpin("planner/M-2"),
        await memories.merge(["planner/M-2", "planner/M-3"], text="Tea on Fridays."),
        await memories.history("planner/M-2"),
        await memories.get("planner/M-9"),
        await memories.get("M-1", agent="planner"),
        await memories.delete("planner/M-2"),
        await memories.list(status=None),
    ]
    unnamed = perdure.Memory.__struct_fields__
    assert "author" in unnamed  # whose name is the token's there, and nobody's here
    return [_unsigned(each) for each in told]


def _unsigned(value: Any) -> Any:
    if isinstance(value, list):
        return [_unsigned(each) for each in value]
    if isinstance(value, perdure.Memory):
        author = replace(value.author, name="")
        return replace(value, author=author)
    if hasattr(value, "memory"):
        return replace(value, memory=_unsigned(value.memory))
    return value


async def test_the_same_memories(tmp_path: Path) -> None:
    here, there = await both(tmp_path, learning)
    for one, other in zip(here, there, strict=True):
        assert other == one


async def mistakes(bank: Any, _: Bank) -> list[Any]:
    session = await bank.session("planner/auth")
    await session.append([user("One?"), assistant("One.")])
    other = await bank.session("planner/other")
    context = await other.context("Hm?")
    told = list[Any]()
    for attempt in (
        lambda: session.append([]),
        lambda: session.append(7),
        lambda: session.append("x", expected=7),
        lambda: session.append("x", expected="T-x"),
        lambda: session.append("x", key=7),
        lambda: session.append("x", tags={"a": 1}),
        lambda: session.append("x", context=context),
        lambda: session.append("x", context="context"),
        lambda: session.turn("T-9"),
        lambda: session.turn("12"),
        lambda: session.turn("T-1.7"),
        lambda: session.turn("T-1", level="Q"),
        lambda: session.turn("planner/other#T-1"),
        lambda: session.turns(0),
        lambda: session.turns(since="whenever"),
        session.context,
        lambda: session.context(" "),
        lambda: session.context("x", budget=10),
        lambda: session.context("word " * 3_000, budget=500),
        lambda: session.context("x", recall="yes"),
        lambda: session.context("x", tools=7),
        lambda: session.past_context("T-1"),
        lambda: session.recall(""),
        lambda: session.recall("x", kinds=["nonsense"]),
        lambda: session.recall("x", kinds=[]),
        lambda: session.recall("x", sessions="planner/none"),
        lambda: session.recall("x", since="2027-01-01", until="2026-01-01"),
        lambda: session.fork("planner/other"),
        lambda: session.fork("nonsense"),
        lambda: session.fork("planner/new", "T-9"),
        session.share,
        lambda: session.share("planner"),
        session.unshare,
        lambda: session.undo(0),
        lambda: session.describe("x"),
        lambda: bank.memories.add("planner", "Words.", kind="nonsense"),
        lambda: bank.memories.list(kind="nonsense"),
        lambda: bank.memories.list(status="nonsense"),
        lambda: bank.memories.list(tag="\n"),
        lambda: session.share("*", "a/b"),
        lambda: session.change_strategy("nonsense"),
        lambda: session.change_strategy(budget=1),
        lambda: bank.session("nonsense"),
        lambda: bank.existing_session("planner/none"),
        lambda: bank.forget("planner/none"),
        lambda: bank.forget("planner/auth", turns=[]),
        lambda: bank.forget("planner/auth", turns="T-9"),
        lambda: bank.memories.add("planner", " "),
        lambda: bank.memories.edit("planner/M-9", text="x"),
        lambda: bank.memories.merge(["planner/M-1"]),
        lambda: bank.memories.get("nonsense"),
    ):
        try:
            told.append(await attempt())
        except PerdureError as exc:
            told.append((type(exc), exc.message, exc.hint, vars(exc)))
    return told


async def test_the_same_errors(tmp_path: Path) -> None:
    here, there = await both(tmp_path, mistakes)
    for one, other in zip(here, there, strict=True):
        assert isinstance(one, tuple), one
        assert other == one


async def test_more_turns_than_a_page_has(tmp_path: Path) -> None:
    async with remote_bank(tmp_path) as (remote, bank):
        session = await bank.session("planner/long")
        said = [m for n in range(1_234) for m in (user(f"{n}?"), assistant(f"{n}."))]
        await session.append(said)
        await bank.settle()  # or tokens would be counted between two looks
        there = await remote.session("planner/long")
        assert await there.turns(1_200) == await session.turns(1_200)
        assert len(await there.turns(5_000)) == 1_234
        assert len([turn async for turn in there.read()]) == 1_234


async def test_partial_answers(tmp_path: Path) -> None:
    async with remote_bank(tmp_path) as (remote, bank):
        session = await bank.session("planner/auth")
        await session.append(user("Why?"))
        answer = session.answer(model="m")
        with pytest.raises(ZeroDivisionError):  # noqa: PT012 (the block is what dies)
            async with answer:
                await answer.text("Because")
                raise ZeroDivisionError
        there = await remote.session("planner/auth")
        (partial,) = await there.partials()
        assert [partial] == await session.partials()
        await there.close_partial(partial)
        assert (await session.turn(1)).messages[-1].text == "Because"
        with pytest.raises(NotFound):
            await there.drop_partial(partial)


async def test_an_append_that_is_sent_again_is_written_once(server: RunningServer) -> None:
    async with perdure.connect(server.url, token=server.token()) as bank:
        session = await bank.session("planner/auth")
        first = await session.append("Hello?", key="once")
        again = await (await bank.session("planner/auth")).append("Hello?", key="once")
        assert isinstance(first, perdure.Turn)
        assert isinstance(again, perdure.Turn)
        assert (first.number, again.number) == (1, 1)
        with pytest.raises(Conflict) as caught:
            await session.append("Late.", expected=0)
        assert (caught.value.expected, caught.value.found) == (0, 1)


async def test_who_cannot_be_reached_or_does_not_let_us_in(server: RunningServer) -> None:
    for url in ("planner", "sqlite:///x.db", "http://", 7):
        with pytest.raises(InvalidURL, match="not the address of a server"):
            perdure.connect(url)  # type: ignore[arg-type]
    for token in ("", "pd_x\n", "pd_ä"):
        with pytest.raises(InvalidInput, match="The token "):
            perdure.connect(server.url, token=token)
    async with perdure.connect(server.url) as bank:
        with pytest.raises(Denied) as caught:
            await bank.sessions()
        assert caught.value.status == 401
    async with perdure.connect(server.url, token=server.token(agent="coder")) as bank:
        with pytest.raises(Denied, match="for the agent coder alone") as caught:
            await bank.session("planner/auth")
        assert caught.value.status == 403
    async with perdure.connect("http://127.0.0.1:9", token="x") as bank:
        with pytest.raises(Unavailable, match="cannot be reached"):
            await bank.sessions()


async def test_a_server_that_is_none_of_ours(tmp_path: Path) -> None:
    import asyncio

    async def other(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 503 Busy\r\ncontent-length: 4\r\nconnection: close\r\n\r\nbusy")
        await writer.drain()
        writer.close()

    listening = await asyncio.start_server(other, "127.0.0.1", 0)
    async with listening:
        port = listening.sockets[0].getsockname()[1]
        async with perdure.connect(f"http://127.0.0.1:{port}") as bank:
            with pytest.raises(Unavailable, match="answers with 503"):
                await bank.sessions()


async def test_names_that_mean_something_in_a_url(client: httpx2.AsyncClient) -> None:
    token = client.headers["authorization"].removeprefix("Bearer ")
    async with perdure.connect(str(client.base_url), token=token) as bank:
        for name in ("ä b/c%2F?&=;+", "../..", "./x", "a/.."):
            session = await bank.session(name)
            await session.append("Hello?")
            assert (await bank.existing_session(name)).name == name
            assert [turn.session for turn in await session.turns()] == [name]
        assert len(await bank.sessions()) == 4


@pytest.mark.parametrize(
    "given", [Path("x.md"), b"x", 7, None, object()], ids=lambda g: type(g).__name__
)
async def test_what_is_no_text_gets_one_clear_error(server: RunningServer, given: Any) -> None:
    """As a bank that is opened here does it: see `tests/test_public_face.py`."""
    async with perdure.connect(server.url, token=server.token()) as bank:
        session = await bank.session("planner/auth")
        await session.append([user("hi"), assistant("yes")])
        wrong = list[str]()
        for face in (bank, session, bank.memories):
            for name, method in public(type(face)).items():
                for each in inspect.signature(method).parameters.values():
                    if str(each.annotation) not in TEXTS or name == "run_tool":
                        continue
                    if any(
                        fits and kind in str(each.annotation)
                        for kind, fits in (("None", given is None), ("int", isinstance(given, int)))
                    ) or (given is None and each.name in {"branch", "task", "outcome"}):
                        continue
                    try:
                        await called(getattr(face, name), each.name, given)
                    except PerdureError as exc:
                        if not isinstance(exc, perdure.InvalidInput) or not exc.hint:
                            wrong.append(f"{name}({each.name}=…) says {exc!r}")
                    except Exception as exc:  # noqa: BLE001 (they are what is looked for)
                        wrong.append(f"{name}({each.name}=…) raises {exc!r}")
                    else:
                        wrong.append(f"{name}({each.name}=…) takes it")
        assert not wrong, "\n".join(wrong)


async def test_a_server_on_this_machine_is_asked_without_the_proxy_of_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It could not reach it, and would be told the token."""
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.delenv("no_proxy", raising=False)
    async with remote_bank(tmp_path) as (remote, _):
        assert await remote.sessions() == []


async def test_a_writer_goes_on_when_the_server_was_started_again(tmp_path: Path) -> None:
    config = Config(
        recall=patient(), bank=f"sqlite:///{tmp_path / 'bank.db'}", server=ServerConfig(port=0)
    )
    async with Bank(config=config) as bank:
        token, _ = await AccessTokens(bank.store).make("tester", scopes=(TokenScope.ADMIN,))
        async with serving(make_app(bank)) as server:
            url, port = server.url, server.port
            remote = perdure.connect(url, token=token)
            session = await remote.session("planner/auth")
            context = await session.context("List the files.", recall=False)
            call = Message("assistant", (ToolCall("c1", "ls", "{}"),))
            await session.append(call, context=context)
            await (await bank.session("planner/auth")).append([user("Hm?"), assistant("Hm.")])
    with pytest.raises(Unavailable):
        await session.turns()
    again = replace(config, server=ServerConfig(port=port))
    async with remote, Bank(config=again) as bank, serving(make_app(bank)):
        result = Message("tool", (ToolResult("c1", (Text("a.py"),)),))
        written = await session.append(result)
        assert isinstance(written, perdure.Turn)
        assert written.number == 1
        going_on = await session.context(recall=False)
        assert going_on.turn == 1
        await session.append("There is a.py.", context=context)
        turn = await session.turn("T-1")
        assert [m.role for m in turn.messages] == ["user", "assistant", "tool", "assistant"]


async def test_reference_layers_in_both_ways(tmp_path: Path) -> None:
    async def story(bank: Any, _: Bank) -> list[Any]:
        layers = bank.references
        made = await layers.add("# Ports\n\nThe API listens on 8123.", name="ports")
        listed = [(each.name, each.title, each.tokens) for each in await layers.list()]
        text = (await layers.get("ports")).text
        errors = list[str]()
        for given in ("", b"x", "---\nweight: x\n---\n"):
            with pytest.raises(InvalidInput) as raised:
                await layers.add(given, name="other")
            errors.append(raised.value.message)
        problems = await layers.check()
        gone = await layers.remove("ports"), await layers.get("ports"), await layers.list()
        with pytest.raises(NotFound):
            await layers.remove("ports")
        return [made.name, listed, text, errors, problems, gone]

    here, there = await both(tmp_path, story)
    assert here == there
    assert here[1] == [("ports", "Ports", here[1][0][2])]


def test_without_await(tmp_path: Path) -> None:
    """`connect_sync` is the same in a plain program: a thread and a server of their own."""
    import asyncio
    import threading

    ready, done, told = threading.Event(), threading.Event(), dict[str, Any]()

    async def serve() -> None:
        config = Config(bank=f"sqlite:///{tmp_path / 'bank.db'}", server=ServerConfig(port=0))
        async with Bank(config=config) as bank, serving(make_app(bank)) as server:
            told.update(url=server.url, token=token_of(server))
            ready.set()
            await asyncio.to_thread(done.wait, 60)

    thread = threading.Thread(target=asyncio.run, args=(serve(),))
    thread.start()
    try:
        assert ready.wait(60)
        with perdure.connect_sync(told["url"], token=told["token"]) as bank:
            session = bank.session("planner/auth")
            session.append([user("Which port?"), assistant("8123.")])
            assert [turn.prompt for turn in session.turns()] == ["Which port?"]
            assert [turn.number for turn in session.read()] == [1]
            context = session.context("And the host?", budget=1_000)
            assert context.to_chat()["messages"]
            bank.references.add("# Ports\n\n8123.", name="ports")
            assert [each.name for each in bank.references.list()] == ["ports"]
            with pytest.raises(NotFound):
                bank.existing_session("planner/other")

        async def inside() -> None:
            perdure.connect_sync(told["url"])

        with pytest.raises(InvalidInput, match="event loop"):
            asyncio.run(inside())
    finally:
        done.set()
        thread.join()


@pytest.mark.parametrize("cls", [remote for _, remote in PAIRS], ids=lambda cls: cls.__name__)
def test_every_method_waits_without_await(cls: Any) -> None:
    bridge = Bridge(cls.__new__(cls))
    for name in public(cls):
        assert not inspect.iscoroutinefunction(getattr(bridge, name))

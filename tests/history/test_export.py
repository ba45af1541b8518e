"""A session goes into a file and comes back as it was."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.bank import Bank
from perdure.config import Config, HistoryConfig
from perdure.core import messages as canonical
from perdure.core.errors import ArtifactMissing, InvalidInput, NewerSchema, PerdureError
from perdure.core.messages import (
    Media,
    Message,
    Reasoning,
    Text,
    ToolCall,
    ToolResult,
    Unknown,
    Usage,
    assistant,
    event,
    user,
)
from perdure.core.turns import Round, Turn
from perdure.history.log_records import Link, SessionRecord
from perdure.history.session_export import (
    End,
    ExportedMessage,
    ExportedTurn,
    Header,
    jsonl,
    parse,
)
from perdure.importers import import_files
from perdure.sessions.session import Session
from perdure.testing.manual_clock import ManualClock

CALL = ToolCall("c1", "Bash", '{"command": "ls"}')
RESULT = ToolResult("c1", (Text("a.py\nb.py"),))
LARGE = "a large result\n" * 5_000


@pytest.fixture
async def bank(clock: ManualClock) -> AsyncIterator[Bank]:
    async with Bank("memory://", config=Config(), clock=clock) as opened:
        yield opened


@pytest.fixture
async def other(clock: ManualClock) -> AsyncIterator[Bank]:
    """Another bank, at another time."""
    later = ManualClock(clock() + 10**12)
    async with Bank("memory://", config=Config(), clock=later) as opened:
        yield opened


async def exported(session: Session) -> list[bytes]:
    return [line async for line in jsonl(session)]


async def restore(bank: Bank, lines: Iterable[bytes]) -> Session:
    """The session of a file, brought into another bank."""
    lines = list(lines)
    with TemporaryDirectory() as folder:
        file = Path(folder) / "session.jsonl"
        file.write_bytes(b"".join(lines))
        (found,) = (await import_files(bank, "perdure", [file])).sessions
        assert (found.read, found.skipped) == (len(lines), {})
    return await bank.existing_session(found.name)


async def everything(session: Session) -> list[Turn]:
    """All turns, with what can differ between two banks made the same."""
    found = []
    async for turn in session.read(undone=True):
        rounds = [
            Round(round.number, await session.resolve(round.messages)) for round in turn.rounds
        ]
        plain = msgspec.structs.replace(turn, session="", rounds=tuple(rounds), version=0)
        found.append(plain)
    return found


async def assert_comes_back(bank: Bank, session: Session, other: Bank) -> list[Turn]:
    await bank.settle()
    session = await bank.existing_session(session.name)
    lines = await exported(session)
    back = await restore(other, lines)
    was, now = await everything(session), await everything(back)
    assert now == was
    await other.settle()
    back = await other.existing_session(back.name)
    assert await exported(back) == lines
    return now


async def test_a_conversation_comes_back_as_it_was(
    bank: Bank, other: Bank, clock: ManualClock
) -> None:
    session = await bank.session("planner/auth", state={"cwd": "/srv"}, tags={"team": "a"})
    await session.append([user("List the files.")], tags={"topic": "files"})
    clock.advance(3)
    await session.append(Message("assistant", (Reasoning("Hm.", signature="s"), CALL), id="r1"))
    clock.advance(2)
    await session.append(Message("tool", (RESULT,)))
    clock.advance(1)
    await session.append(
        Message(
            "assistant",
            (Text("Two files."),),
            model="m",
            usage=Usage(10, 5, native={"service_tier": "x"}),
            native={"messages": {"stop_reason": "end_turn"}},
        )
    )
    clock.advance(60)
    await session.append([user("Thanks. </T-1> ```"), assistant("You are welcome. \u2028 \x00 🙂")])
    await session.append([event("compacted", "a summary", tokens=12), user("And now?")])
    turns = await assert_comes_back(bank, session, other)
    assert [turn.number for turn in turns] == [1, 2, 3]
    assert [len(turn.rounds) for turn in turns] == [2, 1, 1]
    assert turns[0].tags == {"topic": "files"}
    assert turns[0].ended - turns[0].started == 6_000_000
    restored = await other.existing_session("planner/auth")
    assert (restored.state, restored.record.tags) == ({"cwd": "/srv"}, {"team": "a"})


async def test_large_content_is_in_the_file_and_moves_out_again(bank: Bank, other: Bank) -> None:
    session = await bank.session("planner/auth")
    picture = Media("image/png", data=bytes(range(256)) * 300, filename="chart.png")
    write = ToolCall("c2", "Write", json.dumps({"path": "/x/a.py", "content": LARGE}))
    await session.append(
        [
            Message("user", (Text("Look."), picture)),
            Message("assistant", (Reasoning(LARGE, signature="s"), CALL, write)),
            Message("tool", (ToolResult("c1", (Text(LARGE), picture)), ToolResult("c2"))),
            assistant(LARGE),
        ]
    )
    await assert_comes_back(bank, session, other)
    lines = await exported(session)
    assert not any(b"sha256:" in line for line in lines)
    back = await other.existing_session("planner/auth")
    was, now = await session.turn("T-1"), await back.turn("T-1")
    assert was.rounds[0].messages == now.rounds[0].messages  # references with the same hashes


async def test_what_became_of_turns_is_kept(bank: Bank, other: Bank) -> None:
    session = await bank.session("planner/auth")
    for number in range(1, 7):
        await session.append([user(f"prompt {number}"), assistant(f"reply {number}")])
    await session.undo(2)
    await session.append([user("another way"), assistant("fine")])
    await bank.forget("planner/auth", turns=["T-2", "T-3"])
    await session.append([user("one"), user("more")])
    turns = await assert_comes_back(bank, session, other)
    assert [turn.status for turn in turns] == [
        *("closed", "forgotten", "forgotten", "closed", "undone", "undone", "closed", "open")
    ]
    back = await other.existing_session("planner/auth")
    assert [turn.number for turn in await back.turns()] == [1, 2, 3, 4, 7, 8]
    assert [problem async for problem in other.verify()] == []


async def test_turns_keep_their_borders(bank: Bank, other: Bank) -> None:
    """However they came about: two writers, a turn closed by hand, one that began with a reply."""
    first = await bank.session("planner/auth")
    second = await bank.existing_session("planner/auth")
    await first.append(user("mine"))
    await second.append(user("yours"))
    await first.append(assistant("to mine"))
    await second.append(assistant("to yours"))
    await first.append(assistant("more to mine"))
    await second.append(user("waits"))
    await second.close_turn()
    third = await bank.existing_session("planner/auth")
    await third.append([assistant("unasked"), Message("tool", (RESULT,))])
    await third.close_turn()
    await first.append(assistant("still to mine"))
    turns = await assert_comes_back(bank, first, other)
    assert [len(turn.messages) for turn in turns] == [4, 2, 1, 2]
    assert [len(turn.rounds) for turn in turns] == [3, 1, 1, 1]
    assert [turn.status for turn in turns] == ["closed"] * 4


async def test_a_fork_brings_its_whole_line(bank: Bank, other: Bank) -> None:
    parent = await bank.session("planner/auth")
    for number in range(1, 5):
        await parent.append([user(f"prompt {number}"), assistant(LARGE)])
    fork = await parent.fork("coder/auth", at="T-3")
    await fork.append([user("elsewhere"), assistant("yes")])
    await parent.append([user("unseen"), assistant("…")])
    turns = await assert_comes_back(bank, fork, other)
    assert [turn.prompt for turn in turns] == ["prompt 1", "prompt 2", "prompt 3", "elsewhere"]
    header, *_ = map(parse, await exported(fork))
    assert isinstance(header, Header)
    assert (header.name, header.parent, header.forked_at) == ("coder/auth", "planner/auth", 3)


async def test_a_session_says_what_it_is(bank: Bank, other: Bank) -> None:
    """Its type, tags and state; masked secrets; that it is archived, and since when."""
    session = await bank.session("planner/auth", type="review", tags={"a": "b"}, state={"c": 1})
    secret = "ghp_" + "aB3dE5fG7hJ9kL1mN3pQ5rS7tU9vW1xY3zA5"
    await session.append([user(f"It is {secret}."), assistant("Well.")])
    await session.append([user("Nobody answers.")])
    await session.close_turn()
    await session.archive()
    (first, _) = await assert_comes_back(bank, session, other)
    assert sum(first.masked.values()) == 1
    back = (await other.existing_session("planner/auth")).record
    assert (back.type, back.archived) == ("review", session.record.archived)
    fork = await session.fork("planner/fork", at="T-1")
    await fork.archive()
    await assert_comes_back(bank, fork, other)
    assert (await other.existing_session("planner/fork")).state == {
        "c": 1,
        "forked_from": {"parent": "planner/auth", "at": 1},
    }


async def test_an_answer_that_is_arriving_is_there_and_marked(bank: Bank, other: Bank) -> None:
    session = await bank.session("planner/auth")
    await session.append(user("Tell me."))
    answer = session.answer(model="m")
    await answer.__aenter__()
    await answer.text("Once upon")
    await answer.end_part()
    _, opening, _, arriving, _ = map(parse, await exported(session))
    assert isinstance(opening, ExportedTurn)
    assert opening.status == "partial"
    assert isinstance(arriving, ExportedMessage)
    assert arriving.message.partial
    back = await restore(other, await exported(session))
    turn = await back.turn("T-1")
    assert turn.messages[-1].text == "Once upon"
    assert turn.messages[-1].partial
    await answer.finish()


async def test_a_sub_agent_says_who_started_it(bank: Bank, other: Bank) -> None:
    link = Link("planner/auth", "c1", 3)
    session = await bank.session("planner/auth.helper", link=link, type="sub-agent")
    back = await restore(other, await exported(session))
    assert (back.record.link, back.record.type) == (link, "sub-agent")
    assert await everything(back) == []


async def test_the_file_can_be_read_by_other_programs(bank: Bank, clock: ManualClock) -> None:
    session = await bank.session("planner/auth")
    said = Message("user", (Text("naïve"), Media("image/png", data=b"\x00\xff")), time=5)
    await session.append([said, assistant("yes")])
    lines = [json.loads(line) for line in await exported(session)]
    moment = lines[0]["session"].pop("active")
    assert moment.endswith("Z")
    assert lines == [
        {"perdure": 1, "session": {"name": "planner/auth", "agent": "planner"}},
        {"turn": 1, "status": "closed", "started": 5, "ended": 5},
        {
            "turn": 1,
            "round": 1,
            "message": {
                "role": "user",
                "parts": [
                    {"kind": "text", "text": "naïve"},
                    {"kind": "media", "media_type": "image/png", "data": "AP8="},
                ],
                "time": 5,
            },
        },
        {
            "turn": 1,
            "round": 1,
            "message": {"role": "assistant", "parts": [{"kind": "text", "text": "yes"}]},
        },
        {"end": {"turns": 1, "messages": 2}},
    ]


async def test_the_same_session_gives_the_same_bytes(bank: Bank) -> None:
    session = await bank.session("planner/auth")
    await session.append([user("hello"), assistant("hi")])
    await bank.settle()
    assert await exported(session) == await exported(session)


@pytest.mark.parametrize(
    "data",
    [
        {"x": float("nan")},
        {"x": float("inf")},
        {1: "a key that is no text"},
        {None: "a key that is nothing"},
        {"x": b"bytes"},
        {"x": -0.0, "y": 1e-320, "z": 2**63},
    ],
    ids=repr,
)
async def test_what_json_cannot_say_is_kept_all_the_same(
    data: dict[Any, Any], bank: Bank, other: Bank
) -> None:
    session = await bank.session("planner/auth")
    await session.append([user("odd"), Message("assistant", (Unknown("chat", data),))])
    back = await restore(other, await exported(session))
    assert canonical.encode((await back.turn("T-1")).messages) == canonical.encode(
        (await session.turn("T-1")).messages
    )


async def test_an_artifact_that_is_gone(bank: Bank) -> None:
    session = await bank.session("planner/auth")
    turn = await session.append([user("Look."), assistant(LARGE)])
    assert isinstance(turn, Turn)
    (gone,) = canonical.references(turn.messages)
    await bank.artifacts.delete(gone)
    with pytest.raises(ArtifactMissing):
        await exported(session)
    told = list[PerdureError]()
    lines = [line async for line in jsonl(session, on_missing=told.append)]
    assert [gone in error.message for error in told] == [True]
    assert any(gone.encode() in line for line in lines)
    *_, reply, _ = map(parse, lines)
    assert isinstance(reply, ExportedMessage)
    assert reply.message == turn.messages[-1]


GOOD = [
    b'{"perdure": 1, "session": {"name": "a/b", "agent": "a"}}',
    b'{"turn": 1, "status": "closed", "started": 1, "ended": 2}',
    b'{"turn": 1, "round": 1, "message": {"role": "user", "parts": []}}',
    b'{"end": {"turns": 1, "messages": 1}}',
]


def test_reading_a_file() -> None:
    assert list(map(parse, GOOD)) == [
        Header(name="a/b", agent="a"),
        ExportedTurn(turn=1, status="closed", started=1, ended=2),
        ExportedMessage(1, 1, Message("user")),
        End(1, 1),
    ]
    assert [parse(line.decode() + "\n") for line in GOOD] == list(map(parse, GOOD))


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"{",
        b"[]",
        b"\xff",
        b'{"turn": 1}',
        b'{"turn": "1"}',
    ],
)
def test_lines_that_are_none(line: bytes) -> None:
    with pytest.raises(InvalidInput, match="This is no line of an export"):
        parse(line)


def test_a_message_whose_exact_form_is_damaged() -> None:
    with pytest.raises(InvalidInput, match="exact form"):
        parse(b'{"turn":1,"round":1,"message":{"role":"user"},"exact":"AAAA"}')


@pytest.mark.parametrize("session", [b'{"name": "a/b", "agent": "a"}', b'{"id": 4}', b"[]"])
def test_a_file_of_a_newer_version(session: bytes) -> None:
    with pytest.raises(NewerSchema, match="format 2"):
        parse(b'{"perdure": 2, "session": %b}' % session)


def test_fields_of_the_future_are_passed_over() -> None:
    assert parse(GOOD[1][:-1] + b', "mood": "good"}') == parse(GOOD[1])


text = st.text(max_size=30)
plain = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | text,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(text, inner, max_size=2),
    max_leaves=4,
)
native = st.dictionaries(text, st.dictionaries(text, plain, max_size=2), max_size=1)
content = (
    st.builds(Text, text, native)
    | st.builds(Media, text, data=st.binary(max_size=20), native=native)
    | st.builds(Unknown, text, plain)
)
ids = st.sampled_from(["c1", "c2", ""])
parts = (
    content
    | st.builds(Reasoning, text, summary=st.lists(text, max_size=1).map(tuple), native=native)
    | st.builds(ToolCall, ids, text, text, native=native)
    | st.builds(ToolResult, ids, st.lists(content, max_size=2).map(tuple), st.booleans())
)
spoken = st.builds(
    Message,
    st.sampled_from(["system", "developer", "user", "assistant", "tool", "event"]),
    st.lists(parts, max_size=3).map(tuple),
    id=st.sampled_from(["", "r1", "r2"]),
    time=st.none() | st.integers(0, 10**15),
    ended=st.none() | st.integers(0, 10**15),
    injected=st.booleans(),
    partial=st.booleans(),
    native=native,
)


@pytest.mark.repeated
@given(st.lists(st.lists(spoken, min_size=1, max_size=4), max_size=6), st.data())
async def test_any_history_comes_back(history: list[list[Message]], data: st.DataObject) -> None:
    small = Config(history=HistoryConfig(offload_over=256))
    async with Bank("memory://", config=small) as bank, Bank("memory://", config=small) as other:
        session = await bank.session("a/b")
        for messages in history:
            await session.append(messages)
            if data.draw(st.integers(0, 4)) == 0:
                await session.undo()
            if data.draw(st.integers(0, 4)) == 0:
                await session.close_turn()
        lines = await exported(session)
        back = await restore(other, lines)
        assert await encoded(back) == await encoded(session)


async def encoded(session: Session) -> list[tuple[tuple[Any, ...], bytes]]:
    """All turns in a form in which NaN equals NaN."""
    return [
        (
            (turn.number, turn.status, turn.started, turn.ended, round.number),
            canonical.encode(round.messages),
        )
        for turn in await everything(session)
        for round in turn.rounds
    ]


class Endless:
    """A session of many turns that are made as they are asked for."""

    record = SessionRecord(id="a/b", type="session", agent="a")

    def __init__(self, turns: int) -> None:
        self.turns = turns

    async def head(self) -> Any:
        raise NotImplementedError

    async def read(self, *, undone: bool = False) -> AsyncIterator[Turn]:
        for number in range(1, self.turns + 1):
            said = (user("x" * 1_000), assistant("y" * 1_000))
            yield Turn(
                session="a/b",
                number=number,
                rounds=(Round(1, said),),
                status="closed",
                started=1,
                ended=2,
            )

    async def resolve(self, messages: Iterable[Message]) -> tuple[Message, ...]:
        return tuple(messages)


async def test_memory_stays_small(tmp_path: Path) -> None:
    file = tmp_path / "long.jsonl"
    tracemalloc.start()
    try:
        with file.open("wb") as out:
            async for line in jsonl(Endless(3_000)):
                out.write(line)
        with file.open("rb") as lines:
            assert sum(isinstance(each, ExportedMessage) for each in map(parse, lines)) == 6_000
        assert tracemalloc.get_traced_memory()[1] < 2_000_000
    finally:
        tracemalloc.stop()
    assert file.stat().st_size > 6_000_000

"""How a conversation is cut into turns and rounds."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.core.errors import InvalidInput
from perdure.core.messages import Message, Reasoning, Text, ToolCall, ToolResult, event
from perdure.core.turns import (
    ConversationState,
    Position,
    Round,
    Turn,
    TurnSplitter,
    is_prompt,
    rounds,
)

# A conversation in short: what is said, and by whom. The table below is read aloud.


def user(text: str = "prompt") -> Message:
    return Message("user", (Text(text),))


def note(text: str = "reminder") -> Message:
    return Message("user", (Text(text),), injected=True)


def system(text: str = "be brief") -> Message:
    return Message("system", (Text(text),))


def says(*calls: str, id: str = "") -> Message:
    """A reply that asks for tools, or does not."""
    return Message("assistant", (Text("…"), *(ToolCall(c, "shell") for c in calls)), id=id)


def gives(*calls: str) -> Message:
    """Results, one message for all."""
    return Message("tool", tuple(ToolResult(call, (Text("ok"),)) for call in calls))


#: name, messages, the turn and round of each, whether the last turn is done
CONVERSATIONS: dict[str, tuple[list[Message], str, bool]] = {
    "nothing": ([], "", False),
    "a prompt": ([user()], "1.1", False),
    "prompt and reply": ([user(), says()], "1.1 1.1", True),
    "two turns": ([user(), says(), user(), says()], "1.1 1.1 2.1 2.1", True),
    "a tool is called": (
        [user(), says("a"), gives("a"), says()],
        "1.1 1.1 1.1 1.2",
        True,
    ),
    "the result is there, the next reply is not": (
        [user(), says("a"), gives("a")],
        "1.1 1.1 1.1",
        False,
    ),
    "three rounds": (
        [user(), says("a"), gives("a"), says("b"), gives("b"), says()],
        "1.1 1.1 1.1 1.2 1.2 1.3",
        True,
    ),
    "parallel calls, results one by one": (
        [user(), says("a", "b"), gives("a"), gives("b"), says()],
        "1.1 1.1 1.1 1.1 1.2",
        True,
    ),
    "parallel calls, results together": (
        [user(), says("a", "b"), gives("a", "b"), says()],
        "1.1 1.1 1.1 1.2",
        True,
    ),
    "parallel calls, a result is missing": (
        [user(), says("a", "b"), gives("a"), says()],
        "1.1 1.1 1.1 1.2",
        True,
    ),
    "the results come in another order": (
        [user(), says("a", "b"), gives("b"), gives("a")],
        "1.1 1.1 1.1 1.1",
        False,
    ),
    "a late result stays where it falls": (
        [user(), says("a"), says(), gives("a"), user()],
        "1.1 1.1 1.1 1.1 2.1",
        False,
    ),
    "an aborted call, then another prompt": (
        [user(), says("a"), user(), says()],
        "1.1 1.1 2.1 2.1",
        True,
    ),
    "an aborted call, then the turn goes on": (
        # No result has come: the second reply still belongs to the call.
        [user(), says("a"), says(), user()],
        "1.1 1.1 1.1 2.1",
        False,
    ),
    "a result of a call that nobody made": (
        [user(), gives("z"), says()],
        "1.1 1.1 1.1",
        True,
    ),
    "a prompt behind a result that nobody asked for": (
        [user(), gives("z"), user()],
        "1.1 1.1 2.1",
        False,
    ),
    "a prompt in several messages": (
        [user("first"), user("second"), says(), user()],
        "1.1 1.1 1.1 2.1",
        False,
    ),
    "a note before the reply": ([user(), note(), says()], "1.1 1.1 1.1", True),
    "a note between the rounds": (
        [user(), says("a"), gives("a"), note(), says()],
        "1.1 1.1 1.1 1.1 1.2",
        True,
    ),
    "a note opens no turn": ([user(), says(), note(), user()], "1.1 1.1 1.1 2.1", False),
    "a note comes first": ([note(), user(), says()], "1.1 1.1 1.1", True),
    "one reply in pieces": (
        [user(), says(id="m1"), says("a", id="m1"), gives("a"), says(id="m2")],
        "1.1 1.1 1.1 1.1 1.2",
        True,
    ),
    "one reply in pieces, with results between them": (
        [user(), says("a", id="m1"), gives("a"), says("b", id="m1"), gives("b"), says(id="m2")],
        "1.1 1.1 1.1 1.1 1.1 1.2",
        True,
    ),
    "two replies without ids": ([user(), says(), says()], "1.1 1.1 1.2", True),
    "two replies with ids": ([user(), says(id="m1"), says(id="m2")], "1.1 1.1 1.2", True),
    "a system message comes first": ([system(), user(), says()], "1.1 1.1 1.1", True),
    "a system message in between": (
        [user(), says(), system(), user(), says()],
        "1.1 1.1 1.1 2.1 2.1",
        True,
    ),
    "an event stays where it falls": (
        [user(), says(), event("compacted"), user(), event("model"), says()],
        "1.1 1.1 1.1 2.1 2.1 2.1",
        True,
    ),
    "an event comes first": ([event("resumed"), user(), says()], "1.1 1.1 1.1", True),
    "the assistant speaks first": ([says(), user(), says()], "1.1 2.1 2.1", True),
    "the assistant speaks first and asks for a tool": (
        [says("a"), gives("a"), says(), user()],
        "1.1 1.1 1.2 2.1",
        False,
    ),
    "a result comes first": ([gives("a"), says(), user()], "1.1 1.1 2.1", False),
    "a reply behind a result that came first": ([gives("a"), says()], "1.1 1.1", True),
    "a tool that the provider ran itself": (
        [
            user(),
            Message("assistant", (ToolCall("a", "search"), ToolResult("a"), Text("found"))),
        ],
        "1.1 1.1",
        True,
    ),
    "words beside results are no prompt": (
        [
            user(),
            says("a"),
            Message("user", (ToolResult("a"), Text("and this, too"))),
            says(),
        ],
        "1.1 1.1 1.1 1.2",
        True,
    ),
    "reasoning alone is a reply": (
        [user(), Message("assistant", (Reasoning("hm"),)), user()],
        "1.1 1.1 2.1",
        False,
    ),
    "an empty reply is a reply": (
        [user(), Message("assistant"), user()],
        "1.1 1.1 2.1",
        False,
    ),
    "the same call id again": (
        [user(), says("a"), gives("a"), says("a"), gives("a"), says()],
        "1.1 1.1 1.1 1.2 1.2 1.3",
        True,
    ),
}


def places(messages: list[Message], cutter: TurnSplitter | None = None) -> list[tuple[int, int]]:
    cutter = cutter or TurnSplitter()
    return [cutter.feed(message) for message in messages]


@pytest.mark.parametrize("name", CONVERSATIONS)
def test_conversations_are_cut(name: str) -> None:
    messages, expected, closed = CONVERSATIONS[name]
    cutter = TurnSplitter()
    found = " ".join(f"{turn}.{round}" for turn, round in places(messages, cutter))
    assert found == expected
    assert cutter.mark.closed is closed


@pytest.mark.parametrize("name", CONVERSATIONS)
def test_cutting_goes_on_from_a_mark(name: str) -> None:
    messages, _, _ = CONVERSATIONS[name]
    whole = places(messages)
    for split in range(len(messages) + 1):
        before = TurnSplitter()
        first = places(messages[:split], before)
        assert first + places(messages[split:], TurnSplitter(before.mark)) == whole


_IDS = st.sampled_from(["a", "b", "c"])
_MESSAGES = st.one_of(
    st.builds(user),
    st.builds(note),
    st.builds(system),
    st.just(event("compacted")),
    st.builds(
        lambda calls, id: says(*calls, id=id),
        st.lists(_IDS, max_size=3, unique=True),
        st.sampled_from(["", "m1", "m2"]),
    ),
    st.builds(lambda calls: gives(*calls), st.lists(_IDS, max_size=3, unique=True)),
)


@given(st.lists(_MESSAGES, max_size=30), st.sets(st.integers(0, 30)))
def test_how_it_is_fed_does_not_matter(messages: list[Message], cuts: set[int]) -> None:
    whole = TurnSplitter()
    expected = places(messages, whole)
    cutter, found = TurnSplitter(), list[tuple[int, int]]()
    for number, message in enumerate(messages):
        if number in cuts:
            cutter = TurnSplitter(cutter.mark)
        found.append(cutter.feed(message))
    assert found == expected
    assert cutter.mark == whole.mark
    assert rounds(messages) == _together(messages, expected)


@given(st.lists(_MESSAGES, max_size=30))
def test_what_holds_for_every_conversation(messages: list[Message]) -> None:
    cutter = TurnSplitter()
    found = places(messages, cutter)
    # Turns count from 1, one by one; rounds from 1 in each of them.
    for before, after in zip([(0, 0), *found], found, strict=False):
        assert after in (before, (before[0], before[1] + 1), (before[0] + 1, 1))
    for place, message in zip(found, messages, strict=True):
        # Only a prompt opens a turn, but for the first; only a reply opens a round behind it.
        first = found.index(place) == [id(m) for m in messages].index(id(message))
        if first and place[1] == 1 and place[0] > 1:
            assert is_prompt(message)
        if first and place[1] > 1:
            assert message.role == "assistant"
    assert cutter.mark.said == (found.count(found[-1]) if found else 0)
    # A prompt behind a closed turn opens another.
    if cutter.mark.closed:
        assert cutter.feed(user()) == (found[-1][0] + 1, 1)


def test_a_fresh_mark_opens_a_turn_with_whatever_comes() -> None:
    for message in (says(), gives("a"), note(), event("x"), system(), user()):
        assert TurnSplitter(ConversationState(7, 3, fresh=True, waiting=("a",), replied=True)).feed(
            message
        ) == (8, 1)


def _together(
    messages: list[Message], found: list[tuple[int, int]]
) -> list[tuple[int, int, list[Message]]]:
    return [
        (*place, [m for m, at in zip(messages, found, strict=True) if at == place])
        for place in dict.fromkeys(found)
    ]


# Positions ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "position"),
    [
        ("T-1", Position(1)),
        ("T-183", Position(183)),
        ("T-183.4", Position(183, 4)),
        (12, Position(12)),
        (Position(3, 1), Position(3, 1)),
    ],
)
def test_positions_are_read(text: str | int | Position, position: Position) -> None:
    assert Position.parse(text) == position
    assert Position.parse(str(position)) == position


@pytest.mark.parametrize(
    "text",
    [
        *("", "T-", "T-0", "T-01", "T-1.0", "T-1.", "T-1.2.3", "t-1", "1", " T-1", "T-1\n"),
        *("T-٣", "T--1", "T-999999999", "a/b#T-1"),
    ],
)
def test_what_names_no_turn_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match="T-12"):
        Position.parse(text)


@pytest.mark.parametrize("value", [None, True, 1.5, -1, 0, b"T-1"])
def test_what_cannot_name_a_turn_is_refused(value: object) -> None:
    with pytest.raises(InvalidInput):
        Position.parse(value)  # type: ignore[arg-type]


# Turns --------------------------------------------------------------------------------------------


def _turn(*cut: tuple[int | None, list[Message]]) -> Turn:
    made = tuple(Round(n, tuple(said), tokens) for n, (tokens, said) in enumerate(cut, 1))
    return Turn(session="a/b", number=183, rounds=made, status="closed", started=1, ended=2)


def test_a_turn_tells_what_is_in_it() -> None:
    turn = _turn((5, [system(), user("one"), note(), user("two"), says("a")]), (7, [says()]))
    assert turn.id == "T-183"
    assert turn.prompt == "one\ntwo"
    assert len(turn.messages) == 6
    assert turn.tokens == 12


def test_a_turn_that_is_not_counted_has_no_tokens() -> None:
    assert _turn((5, [user()]), (None, [says()])).tokens is None
    assert _turn().tokens == 0
    assert _turn().prompt == ""

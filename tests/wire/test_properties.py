"""What must hold for every history, in every wire format."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from perdure.core.errors import InvalidInput
from perdure.core.messages import Media, Message, Text, decode, encode
from perdure.wire import WIRES, codec, repaired
from tests.wire.bodies import ODD, VALID
from tests.wire.strategies import conversations, histories, json_values

MODELS = ("chat", "responses", "messages")

pytestmark = pytest.mark.repeated

Messages = tuple[Message, ...]


@given(histories())
def test_histories_can_be_stored(messages: Messages) -> None:
    assert decode(encode(messages)) == messages


@pytest.mark.parametrize("wire", WIRES)
@given(histories())
def test_what_is_kept_comes_back_exactly(wire: str, messages: Messages) -> None:
    there = json.loads(json.dumps(codec(wire).encode(messages, keep=True)))
    assert codec(wire).decode(there) == messages


@pytest.mark.parametrize("wire", WIRES)
@given(histories())
def test_what_is_not_kept_is_lost_only_once(wire: str, messages: Messages) -> None:
    once = codec(wire).encode_body(messages)
    again = codec(wire).encode_body(codec(wire).decode(once))
    assert again == once
    json.dumps(once)


@pytest.mark.parametrize("wire", MODELS)
@given(histories())
def test_every_api_takes_what_was_repaired(wire: str, messages: Messages) -> None:
    fit = repaired(messages, wire)
    assert codec(wire).violations(codec(wire).encode(fit)) == []
    assert repaired(fit, wire) == fit


@given(histories())
def test_without_a_target_only_the_first_speaker_may_be_wrong(messages: Messages) -> None:
    fit = repaired(messages)
    for wire in MODELS:
        found = codec(wire).violations(codec(wire).encode(fit))
        assert [each for each in found if "first message" not in each] == []
    assert repaired(fit) == fit


@given(histories())
def test_a_repair_keeps_events_and_words(messages: Messages) -> None:
    fit = repaired(messages)
    events = [message for message in messages if message.role == "event"]
    assert [message for message in fit if message.role == "event"] == events
    words = "\n".join(
        part.text for message in fit for part in message.parts if isinstance(part, Text)
    )
    for message in messages:
        if message.role not in {"event", "tool"}:
            assert all(
                part.text in words
                for part in message.parts
                if isinstance(part, Text) and part.text.strip()
            )


@pytest.mark.parametrize("wire", [None, *MODELS])
@given(conversations())
def test_what_is_fit_is_not_repaired(wire: str | None, messages: Messages) -> None:
    assert repaired(messages, wire) == messages


@pytest.mark.parametrize("wire", WIRES)
@given(conversations())
def test_a_conversation_is_valid_everywhere_and_says_the_same(
    wire: str, messages: Messages
) -> None:
    there = codec(wire).encode(messages)
    assert codec(wire).violations(there) == []
    back = codec(wire).decode(codec(wire).encode_body(messages))
    assert _said(back) == _said(messages)
    assert _calls(back) == _calls(messages)
    assert sorted(_results(back)) == sorted(_results(messages))
    assert _media(back) == _media(messages)


@pytest.mark.parametrize("first", WIRES)
@given(messages=conversations(), second=st.sampled_from(WIRES))
def test_the_way_there_and_back_changes_nothing(
    first: str, second: str, messages: Messages
) -> None:
    here = codec(first).encode_body(messages)
    read = codec(first).decode(here)
    there = codec(second).encode(read)
    if first != "ui":  # whose steps are more than the others can say
        assert codec(second).violations(there) == []
    kept = codec(second).decode(codec(second).encode(read, keep=True))
    assert kept == read
    assert codec(first).encode_body(kept) == here


def _said(messages: Messages) -> list[str]:
    return [part.text for message in messages for part in message.parts if isinstance(part, Text)]


def _calls(messages: Messages) -> list[Any]:
    return [
        (call.id, call.name, json.loads(call.arguments or "{}"))
        for message in messages
        for call in message.calls
    ]


def _results(messages: Messages) -> list[Any]:
    """By call: in which order results came, a screen does not say."""
    return [(each.call, each.text) for message in messages for each in message.results]


def _media(messages: Messages) -> list[Any]:
    return [
        (part.data, part.url)
        for message in messages
        for part in message.parts
        if isinstance(part, Media)
    ]


# Bodies that somebody broke.


@st.composite
def broken_bodies(draw: st.DrawFn) -> tuple[str, list[Any]]:
    """A body with something in it changed, added or taken away."""
    wire = draw(st.sampled_from(WIRES))
    body = copy.deepcopy(draw(st.sampled_from([*VALID[wire].values(), *ODD[wire].values()])))
    for _ in range(draw(st.integers(1, 3))):
        place: Any = body
        while True:
            inner = [
                key
                for key in (range(len(place)) if isinstance(place, list) else place)
                if isinstance(place[key], dict | list) and place[key]
            ]
            if not inner or (place is not body and draw(st.booleans())):
                break
            place = place[draw(st.sampled_from(list(inner)))]
        keys = list(range(len(place))) if isinstance(place, list) else list(place)
        what = draw(st.sampled_from(("change", "drop", "add"))) if keys else "add"
        if what == "add" and isinstance(place, dict):
            name = draw(st.sampled_from(("id", "type", "text", "content", "name", "x", "")))
            place[name] = copy.deepcopy(draw(json_values))
        elif what == "drop" and place is not body:
            del place[draw(st.sampled_from(keys))]
        elif keys and place is not body:
            place[draw(st.sampled_from(keys))] = copy.deepcopy(draw(json_values))
    return wire, body


@given(broken_bodies())
@example(("chat", [{"role": "user", "content": [None]}]))
def test_a_broken_body_is_refused_or_comes_back(case: tuple[str, list[Any]]) -> None:
    wire, body = case
    try:
        messages = codec(wire).decode(copy.deepcopy(body))
    except InvalidInput:
        return
    if wire == "messages" and any(
        message.native.get(wire, {}).get("perdure", {}).get("response") or message.id
        for message in messages
    ):
        return  # taken for a response, of which only what can be sent comes back
    assert codec(wire).encode(messages) == body
    codec(wire).violations(body)  # finds what it finds, and does not break

"""Every body comes back as it was, and says the same elsewhere."""

from __future__ import annotations

import copy
import json
from itertools import pairwise
from typing import Any

import pytest

from perdure.core.messages import Message, Text, decode, encode
from perdure.wire import WIRES, codec, repaired
from tests.wire.bodies import ODD, VALID, named

MODELS = ("chat", "responses", "messages")


def _body(wire: str, name: str) -> list[Any]:
    return copy.deepcopy(VALID[wire].get(name) or ODD[wire][name])


@pytest.mark.parametrize(("wire", "name"), named(VALID) + named(ODD))
def test_a_body_comes_back_as_it_was(wire: str, name: str) -> None:
    body = _body(wire, name)
    messages = codec(wire).decode(body)
    assert all(message.wire == wire for message in messages)
    assert codec(wire).encode(messages) == body
    assert body == _body(wire, name)  # nothing was changed on the way


@pytest.mark.parametrize(("wire", "name"), named(VALID) + named(ODD))
def test_each_message_comes_back_by_itself(wire: str, name: str) -> None:
    for item in _body(wire, name):
        assert codec(wire).encode(codec(wire).decode([item])) == [item]


@pytest.mark.parametrize(("wire", "name"), named(VALID) + named(ODD))
def test_what_was_decoded_can_be_stored(wire: str, name: str) -> None:
    messages = codec(wire).decode(_body(wire, name))
    assert decode(encode(messages)) == messages


@pytest.mark.parametrize(("wire", "name"), named(VALID))
def test_a_valid_body_has_no_violations(wire: str, name: str) -> None:
    assert codec(wire).violations(_body(wire, name)) == []


@pytest.mark.parametrize("target", WIRES)
@pytest.mark.parametrize(("wire", "name"), named(VALID) + named(ODD))
def test_nothing_is_lost_elsewhere_if_it_is_kept(wire: str, name: str, target: str) -> None:
    messages = codec(wire).decode(_body(wire, name))
    there = json.loads(json.dumps(codec(target).encode(messages, keep=True)))
    assert codec(target).decode(there) == messages
    assert codec(wire).encode(codec(target).decode(there)) == _body(wire, name)


@pytest.mark.parametrize("target", MODELS)
@pytest.mark.parametrize(("wire", "name"), named(VALID) + named(ODD))
def test_after_a_repair_every_api_takes_it(wire: str, name: str, target: str) -> None:
    messages = codec(wire).decode(_body(wire, name))
    fit = repaired(messages, target)
    assert codec(target).violations(codec(target).encode(fit)) == []
    assert repaired(fit, target) == fit


@pytest.mark.parametrize("target", WIRES)
@pytest.mark.parametrize(("wire", "name"), named(VALID))
def test_a_valid_body_says_the_same_elsewhere(wire: str, name: str, target: str) -> None:
    messages = codec(wire).decode(_body(wire, name))
    there = codec(target).encode_body(messages)
    back = codec(target).decode(there)
    assert _is_said_in(_texts(messages), _texts(back))
    assert _calls(back) == _calls(messages)
    assert codec(wire).encode(messages) == _body(wire, name)


def _texts(messages: tuple[Message, ...]) -> list[str]:
    return [
        part.text
        for message in messages
        for part in message.parts
        if isinstance(part, Text) and part.text.strip()
    ]


def _is_said_in(texts: list[str], others: list[str]) -> bool:
    """Whether the texts are there in their order; the others may name what cannot be shown."""
    left = iter(others)
    return all(text in left for text in texts)


def _calls(messages: tuple[Message, ...]) -> list[Any]:
    return [(call.id, call.name) for message in messages for call in message.calls]


def test_the_bodies_are_not_all_alike() -> None:
    assert all(first != second for first, second in pairwise(named(VALID)))

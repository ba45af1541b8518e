"""Bodies of real sessions, where they are at hand: Claude Code's messages, Codex's items."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from perdure.core.messages import Message
from perdure.wire import WIRES, codec, decode, repaired

DATA = Path(__file__).parents[3] / "shared" / "data"
MODELS = ("chat", "responses", "messages")

pytestmark = pytest.mark.skipif(not DATA.is_dir(), reason="the transcripts are not here")


def _lines(pattern: str) -> Iterator[Any]:
    for path in sorted(DATA.glob(pattern)):
        with path.open(encoding="utf-8") as lines:
            yield from map(json.loads, lines)


@pytest.fixture(scope="module")
def claude() -> list[Any]:
    return [
        record["message"]
        for record in _lines("claude_code/**/*.jsonl")
        if record.get("type") in {"user", "assistant"}
    ]


@pytest.fixture(scope="module")
def codex() -> list[Any]:
    return [
        record["payload"]
        for record in _lines("codex/*.jsonl")
        if record.get("type") == "response_item"
    ]


@pytest.fixture(params=["claude", "codex"])
def session(request: pytest.FixtureRequest) -> tuple[Message, ...]:
    wire = {"claude": "messages", "codex": "responses"}[request.param]
    return codec(wire).decode(request.getfixturevalue(request.param))


def test_claude_code(claude: list[Any]) -> None:
    messages = codec("messages").decode(claude)
    assert decode(claude) == messages
    sent = [{"role": each["role"], "content": each["content"]} for each in claude]
    assert codec("messages").encode(messages) == sent
    replies = [(each, m) for each, m in zip(claude, messages, strict=True) if "usage" in each]
    assert replies
    for each, message in replies:
        assert (message.id, message.model) == (each["id"], each["model"])
        assert message.usage is not None
        assert message.usage.native == each["usage"]
        assert (message.usage.input or 0) >= each["usage"]["input_tokens"]


def test_codex(codex: list[Any]) -> None:
    messages = codec("responses").decode(codex)
    assert decode(codex) == messages
    assert codec("responses").encode(messages) == codex
    assert codec("responses").violations(codex) == []


@pytest.mark.parametrize("wire", WIRES)
def test_nothing_is_lost_elsewhere_if_it_is_kept(session: tuple[Message, ...], wire: str) -> None:
    there = json.loads(json.dumps(codec(wire).encode(session, keep=True)))
    assert codec(wire).decode(there) == session


@pytest.mark.parametrize("wire", MODELS)
def test_after_a_repair_every_api_takes_it(session: tuple[Message, ...], wire: str) -> None:
    fit = repaired(session, wire)
    assert codec(wire).violations(codec(wire).encode(fit)) == []
    assert repaired(fit, wire) == fit
    assert _calls(fit) == _calls(session)


def _calls(messages: tuple[Message, ...]) -> list[Any]:
    return [(call.id, call.name) for message in messages for call in message.calls]

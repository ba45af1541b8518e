"""Generated turns, and whether every peer keeps them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks import conversations, peers
from benchmarks.conversations import Chat
from benchmarks.harness import Report

Maker = Callable[[int, int], list[list[Chat]]]


@pytest.mark.parametrize("make", [conversations.turns, conversations.bulk])
def test_turns_follow_from_the_seed_and_differ(make: Maker) -> None:
    turns = make(20, 1)
    assert turns == make(20, 1)
    assert len({turn[2]["content"] for turn in [*turns, *make(20, 2)]}) == 40
    for prompt, call, result, answer in turns:
        assert [m["role"] for m in (prompt, call, result, answer)] == [
            *("user", "assistant", "tool", "assistant")
        ]
        assert result["tool_call_id"] == call["tool_calls"][0]["id"]
        assert len(result["content"]) == conversations.RESULT
        assert json.loads(call["tool_calls"][0]["function"]["arguments"])


def test_arguments_are_an_object_for_those_who_insist() -> None:
    assert conversations.arguments('{"path": "a.py"}') == {"path": "a.py"}
    assert conversations.arguments("*** Begin Patch") == {"input": "*** Begin Patch"}
    assert conversations.arguments("[1]") == {"input": "[1]"}


@pytest.mark.skipif(peers.python() is None, reason=f"no peers: {peers.HOW}")
@pytest.mark.parametrize("module", peers.NAMES)
def test_a_peer_keeps_what_it_is_given(module: str, tmp_path: Path) -> None:
    said = [
        {"role": "user", "content": "Think."},
        {"role": "assistant", "content": "Done.", "reasoning_content": "Hm."},
    ]
    stored = tmp_path / "stored.jsonl"
    stored.write_text(json.dumps(said) + "\n")
    place = {"bank": str(tmp_path / "peer.db"), "session": "a"}
    with peers.running(Report(), module) as peer:
        assert peer is not None
        peer.ask("fill", **place, made={"kind": "bulk", "count": 3, "seed": 1})
        made = {"kind": "turns", "count": 2, "seed": 2}
        assert len(peer.timed("append", **place, made=made).samples) == 2
        assert len(peer.timed("append", **place, made=made, apart=True).samples) == 2
        peer.ask("fill", **place, made={"kind": "stored", "path": str(stored)})
        # `read` fails if there are fewer.
        peer.timed("read", bank=place["bank"], sessions=["a"], limit=7 * conversations.MESSAGES + 2)
        assert peer.ask("close", bank=place["bank"]) > 7 * conversations.RESULT
        assert any(peer.ask("facts").values())

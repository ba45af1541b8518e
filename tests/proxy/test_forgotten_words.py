"""What was forgotten stays forgotten, though the client still says it in each request."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from perdure.importers import import_files
from perdure.server.proxy.alignment import ItemFacts, Recorded, align, gap
from perdure.testing.model import ScriptedAnswer, ScriptedModel
from tests.proxy.proxy_setup import RunningProxy, proxied
from tests.proxy.test_recording import WIRES, SdkClient, Wire, recorded, settled

_IDS: list[dict[str, str]] = [{"x-claude-code-session-id": "c1"}, {}]


async def _talk(client: SdkClient, running: RunningProxy, *prompts: str) -> None:
    for prompt in prompts:
        await client.say(prompt)
        await settled(running)


async def _session(running: RunningProxy) -> str:
    (info,) = await running.bank.sessions()
    return info.name


def _answers() -> list[Any]:
    return [ScriptedAnswer(f"Answer {number}.") for number in range(1, 9)]


def _said(*numbers: int) -> list[str]:
    return [line for n in numbers for line in (f"user: Question {n}?", f"assistant: Answer {n}.")]


@pytest.mark.parametrize("headers", _IDS)
@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize("turn", [1, 2, 3])
async def test_a_forgotten_turn_does_not_come_back(
    wire: Wire, turn: int, headers: dict[str, str], tmp_path: Path
) -> None:
    """Neither in the same process nor after a restart."""
    url = f"sqlite:///{tmp_path}/bank.db"
    async with ScriptedModel(_answers()) as model:
        async with proxied(model.url, url) as running:
            client = SdkClient(running, wire, stream=False, **headers)
            await _talk(client, running, *(f"Question {n}?" for n in (1, 2, 3)))
            await running.bank.forget(await _session(running), turns=[turn])
            await _talk(client, running, "Question 4?")
            await client.close()
            left = [n for n in (1, 2, 3, 4) if n != turn]
            assert await recorded(running.bank) == _said(*left)
            assert running.proxy.report.figures.failures == 0
        async with proxied(model.url, url) as running:
            items, client = client.items, SdkClient(running, wire, stream=False, **headers)
            client.items = items
            await _talk(client, running, "Question 5?", "Question 6?")
            await client.close()
            assert await recorded(running.bank) == _said(*left, 5, 6)


@pytest.mark.parametrize("headers", _IDS)
async def test_nor_do_all_turns(headers: dict[str, str]) -> None:
    async with ScriptedModel(_answers()) as model, proxied(model.url) as running:
        client = SdkClient(running, "chat", stream=False, **headers)
        await _talk(client, running, "Question 1?", "Question 2?")
        await running.bank.forget(await _session(running), turns=[1, 2])
        await _talk(client, running, "Question 3?", "Question 4?")
        await client.close()
        assert await recorded(running.bank) == _said(3, 4)


@pytest.mark.parametrize("restarts", [False, True])
async def test_a_forgotten_session_begins_anew(restarts: bool, tmp_path: Path) -> None:
    """With what is said from then on, and not with what its client still has."""
    url = f"sqlite:///{tmp_path}/bank.db"
    headers = {"x-claude-code-session-id": "c1"}
    items: list[Any] = []
    async with ScriptedModel(_answers()) as model:
        async with proxied(model.url, url) as running:
            client = SdkClient(running, "messages", stream=True, **headers)
            client.items = items
            await _talk(client, running, "Question 1?", "Question 2?")
            await running.bank.forget(await _session(running))
            assert await running.bank.sessions() == []
            if not restarts:
                await _talk(client, running, "Question 3?", "Question 4?")
                assert running.proxy.report.figures.failures == 0
            await client.close()
        async with proxied(model.url, url) as running:
            client = SdkClient(running, "messages", stream=True, **headers)
            client.items = items
            if restarts:
                await _talk(client, running, "Question 3?", "Question 4?")
            await _talk(client, running, "Question 5?")
            await client.close()
            assert await recorded(running.bank) == _said(3, 4, 5)


async def test_an_importer_does_not_bring_it_back_either(tmp_path: Path) -> None:
    async with ScriptedModel(_answers()) as model, proxied(model.url) as running:
        headers = {"x-claude-code-session-id": "c1", "x-perdure-project": "/home/ada/demo"}
        client = SdkClient(running, "messages", stream=False, **headers)
        await _talk(client, running, "Question 1?")
        await client.close()
        await running.bank.forget(await _session(running))
        path = tmp_path / "c1.jsonl"
        path.write_text(
            '{"type":"user","uuid":"u1","sessionId":"c1","cwd":"/home/ada/demo",'
            '"timestamp":"2026-01-01T00:00:00Z",'
            '"message":{"role":"user","content":"Question 1?"}}\n'
        )
        result = await import_files(running.bank, "claude-code", [path])
        assert [each.messages for each in result.sessions] == [0]
        assert await running.bank.sessions() == []


# Where the words of a gap end ---------------------------------------------------------------------


def _line(*words: str) -> list[Recorded]:
    made = list[Recorded]()
    for turn, word in enumerate(words, 1):
        kind = word.partition(" ")[0]
        made.append(
            gap(turn) if word == "…" else Recorded(word, turn, 1, 0, by_model=kind == "reply")
        )
    return made


def _items(*words: str) -> list[ItemFacts]:
    return [
        ItemFacts((word,), by_model=word.startswith("reply"), summary="summary" in word)
        for word in words
    ]


@pytest.mark.parametrize(
    ("line", "items", "new", "kept"),
    [
        # The same words, once in what was forgotten and once behind it.
        (
            ["user 1", "reply 1", "…", "user yes", "reply 3"],
            ["user 1", "reply 1", "user yes", "reply 2", "user yes", "reply 3", "user 4"],
            ["user 4"],
            5,
        ),
        # The client went back to the turn behind it, or into it.
        (
            ["user 1", "reply 1", "…", "user 3", "reply 3"],
            ["user 1", "reply 1", "user 2", "reply 2", "user 3b"],
            ["user 3b"],
            3,
        ),
        (["user 1", "reply 1", "…"], ["user 1", "reply 1", "user 2b"], ["user 2b"], 2),
        # It compacted: its summary is new, and nothing that it dropped is.
        (
            ["…", "user 2", "reply 2"],
            ["user summary", "user 2", "reply 2", "user 3"],
            ["user summary", "user 3"],
            3,
        ),
        # Two gaps.
        (
            ["user 1", "reply 1", "…", "user 3", "reply 3", "…"],
            [*("user 1", "reply 1", "user 2", "reply 2", "user 3", "reply 3"), "user 4", "reply 4"],
            [],
            6,
        ),
        # It dropped what stood before it.
        (
            ["user 1", "reply 1", "…", "user 3", "reply 3"],
            ["user 2", "reply 2", "user 3", "reply 3", "user 4"],
            ["user 4"],
            5,
        ),
        # It has nothing of it any more.
        (
            ["user 1", "reply 1", "…", "user 3", "reply 3"],
            ["user 1", "reply 1", "user 3", "reply 3", "user 4"],
            ["user 4"],
            5,
        ),
        # The turn went on after it was forgotten.
        (
            ["user 1", "reply 1", "…", "result a", "reply 2"],
            ["user 1", "reply 1", "user 2", "call a", "result a", "reply 2", "user 3"],
            ["user 3"],
            5,
        ),
    ],
)
def test_what_a_gap_stands_for(
    line: list[str], items: list[str], new: list[str], kept: int
) -> None:
    found = align(_line(*line), _items(*items))
    assert [items[each.item] for each in found.new] == new
    assert found.kept == kept

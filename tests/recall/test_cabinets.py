"""Memories and reference layers in what is recalled: only what is alive, under its own name."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from perdure.bank import Bank
from perdure.config import ArtifactsConfig, Config
from perdure.core.messages import Message, Text, ToolCall, ToolResult, assistant, user
from perdure.recall.places import Spot
from perdure.recall.steps import fetchers
from perdure.recall.values import Candidate, Question, Recalled
from tests.patience import patient
from tests.recall.asked import candidate

LAYER = """---
name: birds
tags: [zoology]
triggers: [parrot]
---
Parrots are kept in pairs. They are fed at noon.
"""


@pytest.fixture(params=["memory", "sqlite"])
async def bank(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Bank]:
    url = "memory://" if request.param == "memory" else f"sqlite:///{tmp_path / 'bank.db'}"
    config = Config(
        artifacts=ArtifactsConfig(folder=str(tmp_path / "artifacts")),
        recall=patient(references=str(tmp_path / "layers")),
    )
    async with Bank(url, config=config) as bank:
        yield bank


async def asked(bank: Bank, text: str, agent: str = "planner") -> Question:
    session = await bank.session(f"{agent}/birds")
    head = await session.head()
    return Question(text=text, record=session.record, head=head, moment=bank.store.now())


async def recalled(bank: Bank, text: str, *, judged: bool = False) -> Recalled:
    session = await bank.session("planner/birds")
    return await session.recall(text, judged=judged)


async def test_a_memory_is_found_and_shown(bank: Bank) -> None:
    session = await bank.session("planner/birds")
    await session.append([user("Hello."), assistant("Hi.")])
    memory = await bank.memories.add("planner", "Parrots are fed at noon.")
    found = await recalled(bank, "When are parrots fed?")
    (hit,) = [hit for hit in found.hits if hit.kind == "memory"]
    assert (hit.key, hit.turn, hit.text) == (memory.key, "", "Parrots are fed at noon.")
    assert hit.time == memory.last
    await bank.memories.retire(memory.key, agent="planner")
    found = await recalled(bank, "When are parrots fed?")
    assert not [hit for hit in found.hits if hit.kind == "memory"]


async def test_only_what_is_alive_and_for_whoever_asks(bank: Bank) -> None:
    fetch = fetchers.memories(bank.memories)
    own = await bank.memories.add("planner", "Parrots are green.")
    theirs = await bank.memories.add("coder", "Parrots are loud.")
    question = await asked(bank, "parrots")

    def of(key: str) -> Candidate:
        return candidate(1, kind="memory", key=key)

    (kept,) = (await fetch(question, [of(own.key)])).values()
    assert (kept.key, kept.text) == (own.key, "Parrots are green.")
    assert await fetch(question, [of(theirs.name)]) == {}
    assert await fetch(question, [of("M-99")]) == {}
    await bank.memories.delete(own.key, agent="planner")
    assert await fetch(question, [of(own.key)]) == {}


async def test_a_layer_is_known_by_its_name(bank: Bank) -> None:
    layer = await bank.references.add(LAYER)
    fetch = fetchers.layers(bank.references)
    question = await asked(bank, "parrots")
    there = candidate(layer.ordinal, kind="reference", key=str(layer.ordinal))
    (kept,) = (await fetch(question, [there])).values()
    assert kept.key == "birds"
    assert "fed at noon" in kept.text
    gone = candidate(99, kind="reference", place=Spot(3, 99).place)
    assert await fetch(question, [gone]) == {}


async def test_a_prompt_calls_for_a_layer(bank: Bank) -> None:
    find = fetchers.called_for(bank.references, bank.index, bank.store)
    assert await find(await asked(bank, "my parrot")) == []
    layer = await bank.references.add(LAYER)
    (found,) = await find(await asked(bank, "What does my parrot want?"))
    assert (found.kind, found.key) == ("reference", "birds")
    assert "parrot" in found.why
    assert await find(await asked(bank, "What does my cat want?")) == []
    session = await bank.session("planner/birds")
    await session.append([user("Hello."), assistant("Hi.")])
    hits = (await recalled(bank, "What does my parrot want?", judged=True)).hits
    (hit,) = [hit for hit in hits if hit.kind == "reference"]
    assert (hit.key, hit.full) == (layer.name, True)


async def test_the_tools_of_the_newest_turn_call_for_a_layer(bank: Bank) -> None:
    session = await bank.session("planner/birds")
    find = fetchers.called_for(bank.references, bank.index, bank.store)
    await bank.references.add("---\nname: shell\ntriggers: [tool:Bash]\n---\nQuote all names.")
    await session.append([user("Hello."), assistant("Hi.")])
    assert await find(await asked(bank, "And now?")) == []
    call = ToolCall("c1", "bash", '{"command": "ls"}')
    answer = Message("tool", (ToolResult("c1", (Text("a b"),)),))
    await session.append([user("Look."), Message("assistant", (call,)), answer, assistant("Two.")])
    (layer,) = await find(await asked(bank, "And now?"))
    assert (layer.key, layer.reasons[0].name) == ("shell", "tool Bash")
    await session.append([user("Thanks."), assistant("Bye.")])
    assert await find(await asked(bank, "And now?")) == []


async def test_so_do_tools_whose_calls_were_appended_by_themselves_until_they_are_taken_back(
    bank: Bank,
) -> None:
    session = await bank.session("planner/birds")
    find = fetchers.called_for(bank.references, bank.index, bank.store)
    await bank.references.add("---\nname: shell\ntriggers: [tool:Bash]\n---\nQuote all names.")
    call = ToolCall("c1", "bash", '{"command": "ls"}')
    for message in (
        user("Look."),
        Message("assistant", (call,)),
        Message("tool", (ToolResult("c1", (Text("a b"),)),)),
        assistant("Two."),
    ):
        await session.append([message])
    (layer,) = await find(await asked(bank, "And now?"))
    assert layer.key == "shell"
    await session.undo()
    assert await find(await asked(bank, "And now?")) == []


def _run(tool: str, id: str) -> list[Message]:
    call = Message("assistant", (ToolCall(id, tool, "{}"),))
    return [call, Message("tool", (ToolResult(id, (Text("a b"),)),))]


async def test_a_fork_stands_on_the_turn_that_it_left(bank: Bank) -> None:
    session = await bank.session("planner/parent")
    find = fetchers.called_for(bank.references, bank.index, bank.store)
    for name, tool in (("shell", "Bash"), ("nets", "Fetch"), ("desk", "Write")):
        await bank.references.add(f"---\nname: {name}\ntriggers: [tool:{tool}]\n---\nQuote names.")
    await session.append([user("Look."), *_run("Bash", "c1"), assistant("Two.")])
    await session.append([user("Fetch it."), *_run("Fetch", "c2")])
    await session.fork("planner/birds")
    await session.append(_run("Write", "c3"))  # to the same turn: that is the parent's alone
    await session.fork("coder/birds", at="T-1")

    async def called(agent: str) -> list[str]:
        return [layer.key for layer in await find(await asked(bank, "And now?", agent))]

    assert await called("planner") == ["nets"]
    assert await called("coder") == ["shell"]
    fork = await bank.session("planner/birds")
    await fork.append([user("Thanks."), assistant("Bye.")])
    assert await called("planner") == []
    await fork.undo()
    assert await called("planner") == ["nets"], "it stands there again"


async def test_of_a_long_turn_the_last_tools_count(bank: Bank) -> None:
    session = await bank.session("planner/parent")
    find = fetchers.called_for(bank.references, bank.index, bank.store)
    await bank.references.add("---\nname: shell\ntriggers: [tool:Bash]\n---\nQuote all names.")
    for first, last in (("Bash", "Read"), ("Read", "Bash")):
        await session.append([user("Look."), *_run(first, "c0")])
        for number in range(1, 12):
            await session.append(_run("Read", f"c{number}"))
        await session.append([*_run(last, "c12"), assistant("Done.")])
    for agent, turn, keys in (("planner", "T-1", []), ("coder", "T-2", ["shell"])):
        await session.fork(f"{agent}/birds", at=turn)
        assert [layer.key for layer in await find(await asked(bank, "And?", agent))] == keys

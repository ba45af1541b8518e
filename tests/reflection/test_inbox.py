from __future__ import annotations

import asyncio
from typing import Any

import pytest

from perdure.core.errors import Conflict, InvalidInput, NotFound
from perdure.recall.memory_records import person
from tests.reflection.oracle import all_memories, answering, on, opened, talk

ADA = person("ada")
EVIDENCE = [{"turn": "s1#T-1", "quote": "the staging port is 8123"}]
SAID = "Note that the staging port is 8123."


async def test_a_recommended_layer_is_a_draft_until_it_is_accepted() -> None:
    text = "# Staging\n\n" + "The staging server listens on a port of its own. " * 60
    layer = {
        "op": "layer",
        "title": "How staging is set up",
        "tags": ["staging", "ops"],
        "text": text,
        "evidence": EVIDENCE,
    }
    short = {**layer, "title": "Ports", "text": "Collect which ports are in use."}
    async with opened(answering([layer, short])) as (bank, _):
        await talk(bank, "planner/a", SAID)
        (run,) = await bank.reflect()
        assert run.counts.applied == {"layer": 2}
        assert await bank.references.list() == []
        kinds = {message.kind: message for message in await bank.inbox.list()}
        assert "recommended: Ports" in kinds["note"].title
        await bank.inbox.accept(kinds["layer"].name, by=ADA)
        (added,) = await bank.references.list()
        assert (added.name, added.tags) == ("how-staging-is-set-up", ("ops", "staging"))
        assert 500 <= added.tokens <= 5_000
        found = await bank.references.get(added.name)
        assert found is not None
        assert "planner/a#T-1" in found.text


async def test_every_draft_has_tags_and_a_name_of_its_own() -> None:
    text = "The staging server listens on a port of its own. " * 60
    given: list[tuple[str, list[str]]] = [
        ("How ports of staging are given out", []),
        ("Which server deploys", []),
        ("配置说明", [f"tag{number}" for number in range(30)]),
        ("部署手册", ["ops"]),
    ]
    left = [{"op": "layer", "title": title, "tags": tags, "text": text} for title, tags in given]

    def one(_: str) -> list[dict[str, Any]]:
        return [{**left.pop(), "evidence": EVIDENCE}]

    async with opened(answering(one)) as (bank, _):
        await bank.memories.add("planner", "port", kind="topic")
        for number in range(len(given)):
            await talk(bank, f"planner/{number}", SAID)
            await bank.reflect(session=f"planner/{number}")
        for message in await bank.inbox.list(kind="layer"):
            await bank.inbox.accept(message.name, by=ADA)
        found = {layer.title: layer for layer in await bank.references.list()}
        assert found["How ports of staging are given out"].tags == ("port",)
        assert found["Which server deploys"].tags == ("deploys", "server")
        assert len(found["配置说明"].tags) == 20
        assert found["部署手册"].tags == ("ops",)


async def test_a_draft_replaces_no_layer() -> None:
    layer = {
        "op": "layer",
        "title": "Staging",
        "tags": ["ops"],
        "text": "The staging server listens on a port of its own. " * 60,
        "evidence": EVIDENCE,
    }
    async with opened(answering([layer])) as (bank, _):
        mine = "---\nname: staging\n---\n" + "Written by hand, about staging. " * 100
        before = await bank.references.add(mine)
        await talk(bank, "planner/a", SAID)
        await bank.reflect()
        (message,) = await bank.inbox.list(kind="layer")
        with pytest.raises(Conflict, match="a reference layer staging already"):
            await bank.inbox.accept(message.name, by=ADA)
        assert await bank.references.list() == [before]
        await bank.references.remove("staging")
        await bank.inbox.accept(message.name, by=ADA)
        assert len(await bank.references.list()) == 1


async def test_a_contradiction_is_noted_when_somebody_agrees() -> None:
    note = on("note", ["M-1", "M-2"], "s1#T-1", "the staging port is 8123", text="They disagree.")
    async with opened(answering([note])) as (bank, _):
        await talk(bank, "planner/a", SAID)
        for port in (8123, 9000):
            await bank.memories.add("planner", f"The staging port is {port}.")
        await bank.reflect()
        (message,) = await bank.inbox.list(kind="contradiction")
        memory = await bank.memories.get("planner/M-1")
        assert memory is not None
        assert not memory.contradicts
        await bank.inbox.accept(message.name, by=ADA)
        memory = await bank.memories.get("planner/M-1")
        assert memory is not None
        assert memory.contradicts == ("planner/00000002",)


async def test_a_proposal_about_what_has_changed_is_refused() -> None:
    change = on("update", ["M-1"], "s1#T-1", "the staging port is 8123", text="Staging: 8123.")
    async with opened(answering([change])) as (bank, _):
        await talk(bank, "planner/a", SAID)
        await bank.memories.add("planner", "The staging port is 8000.", by=ADA)
        await bank.reflect()
        (message,) = await bank.inbox.list()
        await bank.memories.edit("planner/M-1", text="The staging port is 8001.", by=ADA)
        with pytest.raises(Conflict, match="has changed since"):
            await bank.inbox.accept(message.name, by=ADA)
        assert (await bank.inbox.get(message.name)).status == "open"
        await bank.inbox.dismiss(message.name, by=ADA)
        for decide in (bank.inbox.accept, bank.inbox.dismiss):
            with pytest.raises(InvalidInput, match="dismissed already"):
                await decide(message.name, by=ADA)
        with pytest.raises(NotFound):
            await bank.inbox.get("planner/I-9")
        with pytest.raises(InvalidInput):
            await bank.inbox.get("I-1")


async def test_no_machine_accepts_a_change_of_what_a_person_wrote() -> None:
    change = on("retire", ["M-1"], "s1#T-1", "the staging port is 8123")
    async with opened(answering([change])) as (bank, _):
        await talk(bank, "planner/a", SAID)
        await bank.memories.add("planner", "The staging port is 8000.", by=ADA)
        await bank.reflect()
        (message,) = await bank.inbox.list()
        with pytest.raises(Conflict, match="no machine changes it"):
            await bank.inbox.accept(message.name)
        memory = await bank.memories.get("planner/M-1")
        assert memory is not None
        assert memory.is_active


async def test_what_cannot_be_marked_is_not_carried_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that dies between the change and the mark leaves neither."""
    change = on("update", ["M-1"], "s1#T-1", "the staging port is 8123", text="Staging: 8123.")
    async with opened(answering([change])) as (bank, _):
        await talk(bank, "planner/a", SAID)
        await bank.memories.add("planner", "The staging port is 8000.", by=ADA)
        await bank.reflect()
        (message,) = await bank.inbox.list()
        before = await all_memories(bank)

        def broken(*_: object, **__: object) -> Any:
            raise OSError("The power is gone.")

        with monkeypatch.context() as patch:
            patch.setattr("perdure.reflection.inbox.replace", broken)
            with pytest.raises(OSError, match="power"):
                await bank.inbox.accept(message.name, by=ADA)
        assert await all_memories(bank) == before
        assert await bank.inbox.list() == [message]
        await asyncio.gather(
            *(bank.inbox.accept(message.name, by=ADA) for _ in range(2)), return_exceptions=True
        )
        memory = await bank.memories.get("planner/M-1")
        assert memory is not None
        assert (memory.text, memory.version) == ("Staging: 8123.", 2)

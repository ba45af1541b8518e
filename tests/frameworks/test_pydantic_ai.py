"""Pydantic AI: the store does what its own in-memory store does; the capability in real runs."""

from __future__ import annotations

import random
from typing import Any

import pytest
from pydantic_ai import Agent, BinaryContent
from pydantic_ai.conversation import Conversation
from pydantic_ai.conversation_store import (
    ConversationConflict,
    ConversationStore,
    InMemoryConversationStore,
)
from pydantic_ai.exceptions import UserError
from pydantic_ai.messages import (
    ModelMessagesTypeAdapter,
    ModelRequest,
    ModelResponse,
    TextPart,
    UserPromptPart,
)
from pydantic_ai.models.function import AgentInfo, FunctionModel

from perdure.bank import Bank
from perdure.integrations.pydantic_ai import PerdureConversationStore, PerdureMemory


def answer(messages: list[Any], info: AgentInfo) -> ModelResponse:
    return ModelResponse([TextPart(f"Answer number {len(messages)} of the harbour master.")])


def agent(**settings: Any) -> Agent[Any, Any]:
    made: Agent[Any, Any] = Agent(FunctionModel(answer), **settings)

    @made.tool_plain
    def ships() -> str:
        return "Anna, Berta, Clara"

    return made


async def ask(store: ConversationStore, id: str, text: str) -> None:
    conversation = await store.load(id) or Conversation(conversation_id=id)
    await store.save(await agent().run(text, conversation=conversation), scope="ann")


def said(conversation: Conversation | None) -> list[str]:
    if conversation is None:
        return []
    return [part.content for message in conversation.messages for part in message.parts]


async def test_it_does_what_the_store_in_memory_does(url: str) -> None:
    """The same steps on both, chosen by dice that are the same in every run."""
    async with PerdureConversationStore(url) as ours:
        theirs, dice = InMemoryConversationStore(), random.Random(7)
        both: list[ConversationStore] = [ours, theirs]
        names = ["one"]
        for number in range(60):
            id, step = dice.choice(names), dice.random()
            count = len(said(await theirs.load(id)))
            at = dice.randint(0, count)
            if step < 0.5 or not count:
                for store in both:
                    await ask(store, id, f"Question {number} about the ships of the harbour")
            elif step < 0.65:
                for store in both:
                    loaded = await store.load(id)
                    assert loaded is not None
                    await store.branch(id, at=at, expected_revision=loaded.revision)
            elif step < 0.75:
                for store in both:
                    record = await store.read_record(id)
                    assert record is not None
                    if record.branches:
                        back, revision = record.branches[0], record.revision
                        await store.branch(id, from_entry=back, expected_revision=revision)
            elif step < 0.9:
                names.append(f"fork-{number}")
                for store in both:
                    await store.fork(id, at=at, new_conversation_id=names[-1])
            else:
                for store in both:
                    await store.delete(id)
            for name in names:
                assert said(await ours.load(name)) == said(await theirs.load(name)), (number, name)
                few = [said(await store.load(name, limit=3)) for store in both]
                assert few[0] == few[1]
        async with PerdureConversationStore(url) as again:
            for name in names:
                assert said(await again.load(name)) == said(await theirs.load(name))
        listed = [
            {each.conversation_id for each in await store.list_conversations(scope="ann")}
            for store in both
        ]
        assert listed[0] == listed[1]


async def test_a_conversation_is_turns(url: str, bank: Bank) -> None:
    async with PerdureConversationStore(url) as store:
        for number in range(8):
            await ask(store, "one", f"Question {number} about the harbour")
        session = await bank.session(store.session_name("one"))
        prompts = [turn.prompt async for turn in session.read()]
        assert prompts == [f"Question {number} about the harbour" for number in range(8)]
        assert (await session.recall("question 5", deadline=20)).hits[0].turn == "T-6.1"
        loaded = await store.load("one")
        assert loaded is not None
        await store.branch("one", at=4, expected_revision=loaded.revision)
        await ask(store, "one", "Another question instead")
        prompts = [turn.prompt async for turn in session.read()]
        assert prompts == [
            "Question 0 about the harbour",
            "Question 1 about the harbour",
            "Another question instead",
        ]


async def test_who_saves_late_is_told_and_nothing_is_written(url: str) -> None:
    async with PerdureConversationStore(url) as store:
        await ask(store, "one", "The first question of all")
        stale = await store.load("one")
        assert stale is not None
        await ask(store, "one", "The second question of all")
        stale.messages.append(ModelRequest([UserPromptPart("A late one")]))
        with pytest.raises(ConversationConflict):
            await store.save(stale)
        assert len(said(await store.load("one"))) == 4
        with pytest.raises(UserError):
            await store.load("one", limit=-1)
        assert await store.load("none") is None
        assert await store.load("one", scope="bob") is None


async def test_files_come_back_and_are_no_text(url: str) -> None:
    picture = BinaryContent(bytes(range(256)) * 8, media_type="image/png")
    async with PerdureConversationStore(url) as store:
        conversation = Conversation(conversation_id="one")
        result = await agent().run(["What is on it?", picture], conversation=conversation)
        await store.save(result)
    async with PerdureConversationStore(url) as store:
        loaded = await store.load("one")
        assert loaded is not None
        plain = ModelMessagesTypeAdapter.dump_json(result.all_messages())
        assert loaded.messages == ModelMessagesTypeAdapter.validate_json(plain)


async def test_the_capability_keeps_runs_and_recalls(url: str, bank: Bank) -> None:
    seen: list[str] = []

    def model(messages: list[Any], info: AgentInfo) -> ModelResponse:
        seen.append(str(messages[-1].parts))
        return ModelResponse([TextPart("The Berta leaves tomorrow at seven.")])

    memory = PerdureMemory(bank)
    helper: Agent[Any, Any] = Agent(FunctionModel(model), capabilities=[memory])
    await helper.run("When does the Berta leave the harbour?", conversation_id="c")
    await bank.settle()
    result = await helper.run("And the Berta, when does she leave?", conversation_id="c")
    assert "What this prompt brings to mind" in seen[1]
    assert "The Berta leaves tomorrow at seven." in seen[1]
    assert "brings to mind" not in str(result.all_messages())
    session = await bank.session("pydantic-ai/c")
    assert [len(turn.messages) async for turn in session.read()] == [2, 2]

"""What each framework stored, asked of Perdure alone: recall finds it, a window shows it at all
levels.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

import pytest
from google.adk.events import Event
from google.genai import types
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.graph import END, START, MessagesState, StateGraph
from llama_index.core.base.llms.types import ChatMessage
from pydantic_ai import Agent
from pydantic_ai.conversation import Conversation
from pydantic_ai.messages import ModelResponse, TextPart
from pydantic_ai.models.function import FunctionModel

import perdure
from perdure.integrations.claude_agent_sdk import PerdureSessionStore
from perdure.integrations.google_adk import PerdureSessionService
from perdure.integrations.langgraph import PerdureSaver
from perdure.integrations.llama_index import PerdureMemoryBlock
from perdure.integrations.openai_agents import PerdureSession
from perdure.integrations.pydantic_ai import PerdureConversationStore

_SHIPS = ("Anna", "Berta", "Clara", "Dora", "Emma", "Frieda", "Greta", "Hilde", "Ida", "Johanna")
_CARGO = ("timber", "salt", "copper", "barley", "wool", "glass", "tea", "coal", "paper", "amber")


def _day(day: int) -> tuple[str, str]:
    """A prompt and its answer: who carries what, and much else."""
    ship, cargo = _SHIPS[day % 10], _CARGO[(day * 3 + day // 10) % 10]
    filler = "All is well in the harbour. " * 5
    return f"What does the {ship} carry on day {day}?", f"The {ship} carries {cargo}. {filler}"


TALK = [_day(day) for day in range(40)]
#: Stores the talk; the name of its session.
Stored: TypeAlias = Callable[[str], Awaitable[str]]


async def openai_agents(url: str) -> str:
    async with PerdureSession("talk", url) as session:
        for asked, said in TALK:
            answer: Any = {"role": "assistant", "content": said}
            await session.add_items([{"role": "user", "content": asked}, answer])
        return session.session_name


async def langgraph(url: str) -> str:
    answers = dict(TALK)

    def say(state: MessagesState) -> dict[str, Any]:
        return {"messages": [AIMessage(answers[str(state["messages"][-1].content)])]}

    builder = StateGraph(MessagesState)
    builder.add_node("say", say)
    builder.add_edge(START, "say")
    builder.add_edge("say", END)
    async with PerdureSaver.open(url) as saver:
        graph: Any = builder.compile(checkpointer=saver)
        for asked, _ in TALK:
            thread = {"configurable": {"thread_id": "talk"}}
            await graph.ainvoke({"messages": [HumanMessage(asked)]}, thread)
        return saver.session_name("talk")


async def claude_agent_sdk(url: str) -> str:
    key: Any = {"project_key": "-srv-harbour", "session_id": "0a1b"}
    async with PerdureSessionStore(url) as store:
        for number, (asked, said) in enumerate(TALK):
            block = {"type": "text", "text": said}
            answer = {"id": f"msg_{number}", "role": "assistant", "content": [block]}
            prompt = {"role": "user", "content": asked}
            lines: Any = [
                {"type": "user", "uuid": f"u{number}", "message": prompt},
                {"type": "assistant", "uuid": f"a{number}", "message": answer},
            ]
            await store.append(key, lines)
        return store.session_name(key)


async def pydantic_ai(url: str) -> str:
    answers = iter([said for _, said in TALK])
    agent = Agent(FunctionModel(lambda *_: ModelResponse([TextPart(next(answers))])))
    async with PerdureConversationStore(url) as store:
        for asked, _ in TALK:
            conversation = await store.load("talk") or Conversation(conversation_id="talk")
            await store.save(await agent.run(asked, conversation=conversation))
        return "pydantic-ai/talk"


async def google_adk(url: str) -> str:
    async with PerdureSessionService(url) as service:
        session = await service.create_session(app_name="ships", user_id="ann", session_id="talk")
        for asked, said in TALK:
            for author, role, text in (("user", "user", asked), ("agent", "model", said)):
                content = types.Content(role=role, parts=[types.Part(text=text)])
                await service.append_event(session, Event(author=author, content=content))
        return "ships@ann/talk"


async def llama_index(url: str) -> str:
    block = PerdureMemoryBlock(bank=url, session_id="talk")
    for asked, said in TALK:
        messages = [ChatMessage(role="user", content=asked)]
        await block.aput([*messages, ChatMessage(role="assistant", content=said)])
    await block.close()
    return block.session_name("talk")


@pytest.mark.parametrize(
    "stored", [openai_agents, langgraph, claude_agent_sdk, pydantic_ai, google_adk, llama_index]
)
async def test_what_a_framework_stored_is_served(url: str, stored: Stored) -> None:
    name = await stored(url)
    async with perdure.open(url) as bank:
        assert name in {info.name for info in await bank.sessions()}
        session = await bank.session(name)
        turns = await session.turns(100)
        assert [turn.prompt for turn in turns] == [asked for asked, _ in TALK]
        await bank.settle()
        for number in (3, 17, 29):
            asked, said = TALK[number]
            found = await session.recall(asked, limit=5, deadline=60)
            texts = {hit.turn.partition(".")[0]: hit.text for hit in found.hits}
            assert f"T-{number + 1}" in texts
            assert said[:30] in texts[f"T-{number + 1}"]
        context = await session.context("And now?", budget=1_500)
        levels = {band.level for band in context.bands}
        assert context.tokens <= 1_500
        assert {"R", "T"} <= {str(level) for level in levels}
        assert (context.bands[0].first, context.bands[-1].last) == ("T-1.1", "T-40.1")

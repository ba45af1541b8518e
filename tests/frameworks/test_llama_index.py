"""LlamaIndex: the block inside its `Memory`."""

from __future__ import annotations

from typing import Any

from llama_index.core.base.llms.types import ChatMessage, TextBlock, ToolCallBlock
from llama_index.core.memory import Memory

from perdure.bank import Bank
from perdure.integrations.llama_index import PerdureMemoryBlock


def talk(count: int) -> list[ChatMessage]:
    return [
        ChatMessage(role=role, content=f"{role} says number {n} of the harbour " + "and so on " * 9)
        for n in range(count)
        for role in ("user", "assistant")
    ]


async def test_messages_come_back_as_they_were_put(url: str) -> None:
    call = ToolCallBlock(tool_call_id="c1", tool_name="look", tool_kwargs={"where": "in the east"})
    messages: list[Any] = [
        *talk(3),
        ChatMessage(role="user", content="Look into the harbour"),
        ChatMessage(role="assistant", blocks=[TextBlock(text="I look into it."), call]),
        ChatMessage(role="tool", content="Anna", additional_kwargs={"tool_call_id": "c1"}),
    ]
    block = PerdureMemoryBlock(bank=url, session_id="ann")
    await block.aput(messages)
    other = PerdureMemoryBlock(bank=url, session_id="ann")
    for each in (block, other):
        assert await each.newest(4) == messages[-4:]
        assert await each.newest(99) == messages
    await block.aput(talk(1))
    assert await other.newest(2) == talk(1)
    await block.clear()
    assert await block.newest(9) == []
    await block.close()
    await other.close()


async def test_a_memory_flushes_into_turns_and_recalls(bank: Bank) -> None:
    block = PerdureMemoryBlock(bank=bank)
    memory = Memory.from_defaults(
        session_id="ann", token_limit=700, chat_history_token_ratio=0.3, memory_blocks=[block]
    )
    for message in talk(20):
        await memory.aput(message)
    session = await bank.session(block.session_name("ann"))
    turns = await session.turns(50)
    assert len(turns) > 5
    assert turns[0].prompt.startswith("user says number 0 of the harbour")
    assert all(len(turn.messages) == 2 for turn in turns[:-1])
    await bank.settle()
    history = await memory.aget(input="What was said as number 2 of the harbour?")
    assert "What this prompt brings to mind" in str(history[0].content)
    assert "number 2 of the harbour" in str(history[0].content)

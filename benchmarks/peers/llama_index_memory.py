"""LlamaIndex: `Memory` with its `SQLAlchemyChatStore` on SQLite.

A turn is added with one `aput_messages`, which then looks through its queue of newest messages and
archives what has become too much. The queue is what the model would see; the newest messages beyond
it are read from the store, with the offset that its only kind of page needs.
"""

from __future__ import annotations

from typing import Any, Self

from llama_index.core.base.llms.types import ChatMessage, TextBlock, ThinkingBlock, ToolCallBlock
from llama_index.core.memory import Memory
from llama_index.core.storage.chat_store.base_db import MessageStatus

from benchmarks.conversations import Chat

_FILL = 400
#: So many are left in the queue when a session is filled: about what its default budget holds.
_QUEUE = 40


class Session:
    packages = ("llama-index-core",)

    def __init__(self, file: str, name: str) -> None:
        self._memory = Memory.from_defaults(name, async_database_uri=f"sqlite+aiosqlite:///{file}")
        self._store = self._memory.sql_store
        self._name = name
        self._count: int | None = None
        self.clear = self._memory.areset

    @classmethod
    async def open(cls, file: str, name: str) -> Self:
        return cls(file, name)

    @staticmethod
    def native(messages: list[Chat]) -> list[Any]:
        return [_message(message) for message in messages]

    async def fill(self, batches: list[list[Any]]) -> None:
        messages = [message for batch in batches for message in batch]
        old, queue = messages[:-_QUEUE], messages[-_QUEUE:]
        for start in range(0, len(old), _FILL):
            await self._store.add_messages(
                self._name, old[start : start + _FILL], status=MessageStatus.ARCHIVED
            )
        await self._store.add_messages(self._name, queue)

    async def add(self, items: list[Any]) -> None:
        self._count = None
        await self._memory.aput_messages(items)

    async def newest(self, count: int) -> list[Any]:
        if self._count is None:
            self._count = await self._store.count_messages(self._name, status=None)
        skipped = max(self._count - count, 0)
        return await self._store.get_messages(self._name, None, limit=count, offset=skipped)

    async def close(self) -> None:
        await self._store._async_engine.dispose()  # noqa: SLF001 - it has no other way to be closed


def _message(message: Chat) -> ChatMessage:
    blocks: list[Any] = []
    if thought := message.get("reasoning_content"):
        blocks.append(ThinkingBlock(content=thought))
    if message["content"]:
        blocks.append(TextBlock(text=message["content"]))
    blocks += [
        ToolCallBlock(
            tool_call_id=call["id"],
            tool_name=call["function"]["name"],
            tool_kwargs=call["function"]["arguments"],
        )
        for call in message.get("tool_calls", ())
    ]
    named = {"tool_call_id": message["tool_call_id"]} if message["role"] == "tool" else {}
    return ChatMessage(role=message["role"], blocks=blocks, additional_kwargs=named)

"""OpenAI Agents: `SQLiteSession`, whose items are those of the Responses API."""

from __future__ import annotations

from typing import Any, Self

from agents import SQLiteSession

from benchmarks.conversations import Chat

_FILL = 1_000


class Session:
    packages = ("openai-agents",)

    def __init__(self, session: SQLiteSession) -> None:
        self._session = session
        self.add = session.add_items
        self.newest = session.get_items
        self.clear = session.clear_session

    @classmethod
    async def open(cls, file: str, name: str) -> Self:
        return cls(SQLiteSession(name, file))

    @staticmethod
    def native(messages: list[Chat]) -> list[Any]:
        return [item for message in messages for item in _items(message)]

    async def fill(self, batches: list[list[Any]]) -> None:
        items = [item for batch in batches for item in batch]
        for start in range(0, len(items), _FILL):
            await self.add(items[start : start + _FILL])

    async def close(self) -> None:
        self._session.close()


def _items(message: Chat) -> list[Any]:
    if message["role"] == "tool":
        answered = {"call_id": message["tool_call_id"], "output": message["content"]}
        return [{"type": "function_call_output", **answered}]
    items: list[Any] = []
    if thought := message.get("reasoning_content"):
        items.append({"type": "reasoning", "summary": [{"type": "summary_text", "text": thought}]})
    if message["content"]:
        items.append({"role": message["role"], "content": message["content"]})
    calls = message.get("tool_calls", ())
    return items + [
        {"type": "function_call", "call_id": call["id"], **call["function"]} for call in calls
    ]

"""LangGraph: a graph that holds messages, with `SqliteSaver` as its checkpointer.

A turn is added with one `update_state`. Every checkpoint holds all messages again, so it grows.
"""

from __future__ import annotations

import sqlite3
from typing import Any, Self

from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import END, START, MessagesState, StateGraph

from benchmarks.conversations import Chat, arguments


class Session:
    packages = ("langgraph", "langgraph-checkpoint-sqlite")

    def __init__(self, file: str, name: str) -> None:
        self._connection = sqlite3.connect(file, check_same_thread=False)
        self._saver = SqliteSaver(self._connection)
        graph = StateGraph(MessagesState)
        graph.add_node("model", lambda _: {})
        graph.add_edge(START, "model")
        graph.add_edge("model", END)
        self._graph = graph.compile(checkpointer=self._saver)
        self._thread = {"configurable": {"thread_id": name}}

    @classmethod
    async def open(cls, file: str, name: str) -> Self:
        return cls(file, name)

    @staticmethod
    def native(messages: list[Chat]) -> list[Any]:
        return [_message(message) for message in messages]

    async def fill(self, batches: list[list[Any]]) -> None:
        await self.add([message for batch in batches for message in batch])

    async def add(self, items: list[Any]) -> None:
        self._graph.update_state(self._thread, {"messages": items}, as_node="model")

    async def newest(self, count: int) -> list[Any]:
        return self._graph.get_state(self._thread).values["messages"][-count:]

    async def clear(self) -> None:
        self._saver.delete_thread(self._thread["configurable"]["thread_id"])

    async def close(self) -> None:
        self._connection.close()


def _message(message: Chat) -> Any:
    text = message["content"] or ""
    match message["role"]:
        case "user":
            return HumanMessage(text)
        case "assistant":
            calls = [_call(call) for call in message.get("tool_calls", ())]
            thought = message.get("reasoning_content")
            kept = {"reasoning_content": thought} if thought else {}
            return AIMessage(text, tool_calls=calls, additional_kwargs=kept)
        case "tool":
            return ToolMessage(text, tool_call_id=message["tool_call_id"])
        case _:
            return SystemMessage(text)


def _call(call: dict[str, Any]) -> dict[str, Any]:
    function = call["function"]
    return {"id": call["id"], "name": function["name"], "args": arguments(function["arguments"])}

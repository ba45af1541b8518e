"""LlamaIndex: a memory block that keeps what it is given, and recalls.

    block = PerdureMemoryBlock(bank="sqlite:///memory.db")
    memory = Memory.from_defaults(session_id="ann", memory_blocks=[block])

The messages that fall out of the short-term memory become turns of the session
``llama-index/SESSION``; beside each input stands what it brings to mind.
"""

from __future__ import annotations

import uuid
from typing import Any

from perdure.core.messages import Message, Part, Reasoning, Role, Text, ToolCall, ToolResult
from perdure.integrations.framework_bank import FrameworkBank, missing, session_name
from perdure.integrations.framework_messages import (
    arguments_text,
    fold,
    parts_of,
    unfold_all,
)
from perdure.integrations.recalled_text import recalled_text
from perdure.integrations.recent_items import RecentItems

try:
    from llama_index.core.base.llms.types import ChatMessage
    from llama_index.core.bridge.pydantic import Field, PrivateAttr
    from llama_index.core.memory import BaseMemoryBlock
except ImportError as exc:
    raise missing("llama-index-core", "llama-index") from exc

_NAME = "llama-index"
_ROLES: dict[str, Role] = {
    "system": "system",
    "developer": "developer",
    "assistant": "assistant",
    "chatbot": "assistant",
    "model": "assistant",
    "tool": "tool",
    "function": "tool",
}


class PerdureMemoryBlock(BaseMemoryBlock[str]):
    """Turns of a session per memory. `bank` is an open one, or a URL that the first use opens."""

    name: str = Field(default="perdure", description="The name of the memory block.")
    bank: Any = Field(default=None, exclude=True, description="An open bank, or a URL.")
    agent: str = Field(default=_NAME, description="In front of the session's name.")
    session_id: str = Field(default="", description="If the memory has none.")
    limit: int = Field(default=5, description="How many records are recalled at most.")

    _access: FrameworkBank = PrivateAttr()
    _recent: dict[str, RecentItems] = PrivateAttr(default_factory=dict)

    def model_post_init(self, context: Any, /) -> None:
        self._access = FrameworkBank(self.bank)
        self.session_id = self.session_id or uuid.uuid4().hex

    def session_name(self, session_id: str | None = None) -> str:
        """The session in the bank: to recall from it, to show it, to fork it."""
        return session_name(self.agent, session_id or self.session_id)

    async def newest(self, count: int, session_id: str | None = None) -> list[ChatMessage]:
        """The newest messages, oldest of them first, as they were put."""
        forms = await self._access.run(self._newest(self.session_name(session_id), count))
        return [ChatMessage.model_validate(form) for form in forms]

    async def clear(self, session_id: str | None = None) -> None:
        """Forget the session for good."""
        await self._access.run(self._access.forget(self.session_name(session_id)))

    async def close(self) -> None:
        """Close the bank, unless it was given. Safe to call twice."""
        await self._access.run(self._access.close())

    async def _aget(self, messages: list[ChatMessage] | None = None, **block_kwargs: Any) -> str:
        asked = next((m for m in reversed(messages or []) if m.role.value == "user"), None)
        if asked is None or not asked.content:
            return ""
        name = self.session_name(block_kwargs.get("session_id"))
        return await self._access.run(self._recalled(name, asked.content))

    async def _aput(self, messages: list[ChatMessage]) -> None:
        """Messages of one memory; `Memory` notes its session in each of them."""
        by_session: dict[str, list[dict[str, Any]]] = {}
        for message in messages:
            form = message.model_dump(mode="json")
            id = form["additional_kwargs"].pop("session_id", None)
            by_session.setdefault(self.session_name(id), []).append(form)
        for name, forms in by_session.items():
            await self._access.run(self._append(name, forms))

    async def atruncate(self, content: str, tokens_to_truncate: int) -> str | None:
        """What was found last goes first."""
        kept = content[: max(len(content) - tokens_to_truncate * 5, 0)].rpartition("\n")[0]
        return kept or None

    async def _append(self, name: str, forms: list[dict[str, Any]]) -> None:
        session = await self._access.session(name)
        recent = self._recent.setdefault(name, RecentItems())
        await session.append([_message(form) for form in forms], within=recent.note)
        recent.extend(forms)

    async def _recalled(self, name: str, prompt: str) -> str:
        return await recalled_text(await self._access.session(name), prompt, limit=self.limit)

    async def _newest(self, name: str, count: int) -> list[dict[str, Any]]:
        session = await self._access.session(name)
        recent = self._recent.setdefault(name, RecentItems())
        return await recent.read(session, count, _forms)


def _forms(messages: list[Message]) -> list[dict[str, Any]]:
    return unfold_all(messages, _NAME)


def _message(form: dict[str, Any]) -> Message:
    role = _ROLES.get(form["role"], "user")
    parts: list[Part] = []
    for block in form.get("blocks") or []:
        kind = block.get("block_type")
        if kind == "text":
            parts += parts_of(block.get("text"))
        elif kind == "thinking" and block.get("content"):
            parts.append(Reasoning(block["content"]))
        elif kind == "tool_call":
            arguments = arguments_text(block.get("tool_kwargs") or {})
            parts.append(ToolCall(block.get("tool_call_id") or "", block["tool_name"], arguments))
        elif kind == "image" and block.get("image"):
            media = {"data": block["image"], "mime_type": block.get("image_mimetype")}
            parts += parts_of([media])
    if role == "tool":
        call = str(form["additional_kwargs"].get("tool_call_id") or "")
        parts = [ToolResult(call, tuple(part for part in parts if isinstance(part, Text)))]
    return fold(Message(role, tuple(parts)), _NAME, form)

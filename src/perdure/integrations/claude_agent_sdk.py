"""A `session_store` of the Claude Agent SDK, and hooks that recall.

    store = PerdureSessionStore("sqlite:///memory.db")
    options = ClaudeAgentOptions(session_store=store, hooks=store.hooks())

The transcript's lines become messages of turns, and come back as they were, but for masked secrets.
Lines that nobody said (titles, modes, snapshots) are events among them. A sub-agent's transcript is
a session of its own, which began in the main one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import msgspec
from msgspec.structs import replace

from perdure.bank.bank import Bank
from perdure.core.errors import PerdureError
from perdure.core.messages import Message, Part, Role, Text, ToolCall, ToolResult, Usage
from perdure.history.log_records import Link, SessionRecord
from perdure.history.message_identity import is_injected
from perdure.history.turn_log import Written
from perdure.integrations.framework_bank import FrameworkStore, missing, session_name
from perdure.integrations.framework_messages import (
    all_messages,
    arguments_text,
    fold,
    folded_event,
    parts_of,
    unfold_all,
)
from perdure.integrations.recalled_text import recalled_text
from perdure.sessions.framework_records import FrameworkRecord
from perdure.sessions.session import Session
from perdure.storage.transaction import Transaction
from perdure.sync import SyncBank

try:
    from claude_agent_sdk import HookMatcher, fold_session_summary, project_key_for_directory
    from claude_agent_sdk.types import SessionKey, SessionStore
except ImportError as exc:
    raise missing("claude-agent-sdk", "claude-agent-sdk") from exc

_NAME = "claude-agent-sdk"
_SUMMARY = "summary"


class PerdureSessionStore(FrameworkStore, SessionStore):
    """Transcripts as sessions of `agent`. `bank` is an open one, or a URL that the first use opens.

    Lines with a `uuid` that is there already are not written again.
    """

    def __init__(self, bank: Bank | SyncBank | str | None = None, *, agent: str = _NAME) -> None:
        super().__init__(bank)
        self._agent = agent
        self._seen: dict[str, set[str]] = {}
        self._locks: dict[str, asyncio.Lock] = {}

    def session_name(self, key: SessionKey) -> str:
        """The session of a transcript: to recall from it, to show it, to fork it."""
        subpath = key.get("subpath")
        ids = (key["project_key"], key["session_id"], *([subpath] if subpath else []))
        return session_name(self._agent, *ids)

    async def append(self, key: SessionKey, entries: Sequence[Any]) -> None:
        if entries:
            await self._access.run(self._append(key, list(entries)))

    async def load(self, key: SessionKey) -> list[Any] | None:
        return await self._access.run(self._load(key))

    async def list_sessions(self, project_key: str) -> list[Any]:
        found = await self._access.run(self._summaries(project_key))
        return [{"session_id": each["session_id"], "mtime": each["mtime"]} for each in found]

    async def list_session_summaries(self, project_key: str) -> list[Any]:
        return await self._access.run(self._summaries(project_key))

    async def delete(self, key: SessionKey) -> None:
        """Forget a transcript for good; with a main one, those of its sub-agents."""
        await self._access.run(self._delete(key))

    async def list_subkeys(self, key: Any) -> list[str]:
        found = await self._access.run(self._records(key["project_key"], key["session_id"]))
        return [each.state["subpath"] for each in found if each.state.get("subpath")]

    def hooks(self, *, limit: int = 5) -> dict[str, list[HookMatcher]]:
        """For ``ClaudeAgentOptions(hooks=…)``: beside each prompt, what it brings to mind."""

        async def recall(given: Any, _tool: str | None, _context: Any) -> dict[str, Any]:
            key = {
                "project_key": project_key_for_directory(given.get("cwd")),
                "session_id": given["session_id"],
            }
            text = await self._access.run(self._recalled(key, given.get("prompt", ""), limit))
            if not text:
                return {}
            told = {"hookEventName": "UserPromptSubmit", "additionalContext": text}
            return {"hookSpecificOutput": told}

        return {"UserPromptSubmit": [HookMatcher(hooks=[recall])]}

    async def _append(self, key: SessionKey, entries: list[Any]) -> None:
        name = self.session_name(key)
        async with self._locks.setdefault(name, asyncio.Lock()):
            session = await self._session(key)
            seen = self._seen.get(name)
            if seen is None:
                lines = unfold_all(await all_messages(session, undone=True), _NAME)
                seen = {line["uuid"] for line in lines if isinstance(line.get("uuid"), str)}
            new = []
            for entry in entries:
                uuid = entry.get("uuid")
                if isinstance(uuid, str):
                    if uuid in seen:
                        continue
                    seen.add(uuid)
                new.append(entry)
            if new:

                async def within(transaction: Transaction, _: Written) -> None:
                    if not key.get("subpath"):
                        await self._fold(transaction, key, new)

                try:
                    await session.append([_message(entry) for entry in new], within=within)
                except BaseException:
                    self._seen.pop(name, None)
                    raise
            self._seen[name] = seen

    async def _fold(self, transaction: Transaction, key: SessionKey, entries: list[Any]) -> None:
        records = transaction.collection(FrameworkRecord)
        id = f"{self.session_name(key)}/{_SUMMARY}"
        before = await records.get(id)
        found = msgspec.json.decode(before.content) if before is not None else None
        services = (await self._access.bank()).services
        folded = {
            **fold_session_summary(found, key, entries),
            "mtime": services.store.now() // 1_000,
        }
        content = msgspec.json.encode(services.mask_data(folded))
        await records.put(FrameworkRecord(id, content, copies=True))

    async def _session(self, key: SessionKey) -> Session:
        facts = {
            name: key[name] for name in ("project_key", "session_id", "subpath") if key.get(name)
        }
        link = None
        if key.get("subpath"):
            main: Any = {**key, "subpath": ""}
            link = Link(self.session_name(main))
        return await self._access.session(self.session_name(key), link=link, **facts)

    async def _load(self, key: SessionKey) -> list[Any] | None:
        session = await self._access.existing(self.session_name(key))
        if session is None:
            return None
        return unfold_all(await all_messages(session, undone=True), _NAME) or None

    async def _records(self, project: str, id: str | None = None) -> list[SessionRecord]:
        records = (await self._access.bank()).collection(SessionRecord)
        found = await records.query().where("agent", "=", self._agent).values()
        of_project = [each for each in found if each.state.get("project_key") == project]
        return [each for each in of_project if id is None or each.state.get("session_id") == id]

    async def _summaries(self, project: str) -> list[Any]:
        mains = [each for each in await self._records(project) if not each.state.get("subpath")]
        records = (await self._access.bank()).collection(FrameworkRecord)
        found = await records.get_many([f"{each.id}/{_SUMMARY}" for each in mains])
        kept = [msgspec.json.decode(each.content) for each in found if each is not None]
        known = {each["session_id"] for each in kept}
        for each in mains:  # a turn of it was forgotten, and the summary with it
            if each.state["session_id"] not in known and each.last_active is not None:
                time = int(each.last_active.timestamp() * 1_000)
                kept.append({"session_id": each.state["session_id"], "mtime": time, "data": {}})
        return kept

    async def _delete(self, key: SessionKey) -> None:
        names = [self.session_name(key)]
        if not key.get("subpath"):
            names += [
                each.id for each in await self._records(key["project_key"], key["session_id"])
            ]
        for name in dict.fromkeys(names):
            self._seen.pop(name, None)
            await self._access.forget(name)

    async def _recalled(self, key: Any, prompt: str, limit: int) -> str:
        with suppress(PerdureError):
            return await recalled_text(await self._session(key), prompt, limit=limit)
        return ""


def _message(entry: dict[str, Any]) -> Message:
    """A line of a transcript. Lines of older versions that a sub-agent said are events here."""
    body = entry.get("message")
    kind = entry.get("type")
    if kind not in {"user", "assistant"} or not isinstance(body, dict) or entry.get("isSidechain"):
        return folded_event(_NAME, str(kind or "line"), entry)
    content = body.get("content")
    parts: list[Part] = []
    for block in content if isinstance(content, list) else [content]:
        parts += _parts(block)
    role: Role = "assistant" if kind == "assistant" else "user"
    if any(isinstance(part, ToolResult) for part in parts):
        role = "tool"
    id, model, usage = body.get("id"), body.get("model"), body.get("usage")
    said = Message(
        role,
        tuple(parts),
        id=id if isinstance(id, str) else "",
        model=model if isinstance(model, str) else "",
        usage=_usage(usage) if isinstance(usage, dict) else None,
    )
    is_meta = bool(entry.get("isMeta") or entry.get("isCompactSummary"))
    if role == "user" and (is_meta or not parts or is_injected(said)):
        said = replace(said, injected=True)
    return fold(said, _NAME, entry)


def _parts(block: Any) -> list[Part]:
    if not isinstance(block, dict):
        return parts_of(block)
    if block.get("type") == "tool_use":
        id, name = block.get("id"), block.get("name")
        return [ToolCall(str(id or ""), str(name or ""), arguments_text(block.get("input")))]
    if block.get("type") == "tool_result":
        said = tuple(part for part in parts_of(block.get("content")) if isinstance(part, Text))
        is_error = block.get("is_error") is True
        return [ToolResult(str(block.get("tool_use_id") or ""), said, is_error=is_error)]
    return parts_of([block])


def _usage(given: dict[str, Any]) -> Usage:
    def count(name: str) -> int | None:
        found = given.get(name)
        return found if isinstance(found, int) else None

    read, written = count("cache_read_input_tokens"), count("cache_creation_input_tokens")
    fresh = count("input_tokens")
    whole = None if fresh is None else fresh + (read or 0) + (written or 0)
    return Usage(input=whole, output=count("output_tokens"), cache_read=read, cache_write=written)

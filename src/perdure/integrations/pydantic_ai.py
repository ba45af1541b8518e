"""Pydantic AI: a `ConversationStore` over a bank, and a capability that remembers and recalls.

    store = PerdureConversationStore("sqlite:///memory.db")
    agent = Agent(model, capabilities=[PerdureMemory("sqlite:///memory.db")])

A conversation is a session; each message of it is one of a turn. What a branch leaves behind is
undone: the store still has it, to branch back to; the session shows it to nobody.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator, Sequence
from typing import Any

import msgspec

from perdure.bank.bank import Bank
from perdure.core.messages import Message, Part, Role, Text, ToolCall, ToolResult, Usage
from perdure.core.turns import Turn
from perdure.history.log_records import SessionRecord
from perdure.history.turn_log import Written
from perdure.integrations.framework_bank import FrameworkStore, missing, session_name
from perdure.integrations.framework_messages import (
    all_messages,
    arguments_text,
    fold,
    parts_of,
    unfold_all,
)
from perdure.integrations.recalled_text import recalled_text
from perdure.sessions.framework_records import FrameworkRecord
from perdure.sessions.session import Session
from perdure.storage.transaction import Transaction
from perdure.sync import SyncBank

try:
    from pydantic import TypeAdapter
    from pydantic_ai.capabilities import AbstractCapability
    from pydantic_ai.conversation_store import (
        ConversationConflict,
        ConversationEntry,
        ConversationRecord,
        ConversationStore,
    )
    from pydantic_ai.messages import ModelMessagesTypeAdapter, ModelRequest, UserPromptPart
except ImportError as exc:
    raise missing("pydantic-ai-slim", "pydantic-ai") from exc

_NAME = "pydantic-ai"
_PAGE = 16  # Turns that are read at once for the newest messages.
_record: Any = TypeAdapter(ConversationRecord)
Form = dict[str, Any]


class PerdureConversationStore(FrameworkStore, ConversationStore):
    """Conversations as sessions of `agent`. `bank` is an open one, or a URL that the first use
    opens. Deleting forgets for good; what forks share is copied to them first.
    """

    def __init__(self, bank: Bank | SyncBank | str | None = None, *, agent: str = _NAME) -> None:
        super().__init__(bank)
        self._agent = agent
        self._of_entry: dict[str, str] = {}  # Conversations by their newest entries.
        self._locks: dict[str, asyncio.Lock] = {}

    def session_name(self, conversation_id: str) -> str:
        """The session of a conversation: to recall from it, to show it, to fork it."""
        return session_name(self._agent, conversation_id)

    async def read_record(self, conversation_id: str) -> ConversationRecord | None:
        return await self._access.run(self._read_one(conversation_id))

    async def read_records(
        self, *, scope: str | None = None, limit: int | None = None
    ) -> Sequence[ConversationRecord]:
        found = await self._access.run(self._read_all())
        kept = [each for each in found if scope is None or each.scope == scope]
        return sorted(kept, key=lambda each: each.updated_at, reverse=True)[:limit]

    async def write_record(
        self,
        record: ConversationRecord,
        *,
        new_entries: Sequence[ConversationEntry] = (),
        expected_revision: str | None,
    ) -> None:
        await self._access.run(self._write(record, list(new_entries), expected_revision))

    async def delete_record(self, conversation_id: str, *, expected_revision: str) -> None:
        await self._access.run(self._delete(conversation_id, expected_revision))

    async def read_entry(self, entry_id: str) -> ConversationEntry:
        (found,) = await self.read_history(entry_id, limit=1)
        return found

    async def read_history(
        self, head_id: str | None, *, limit: int | None = None
    ) -> list[ConversationEntry]:
        if head_id is None or limit == 0:
            return []
        return [_entry(form) for form in await self._access.run(self._chain(head_id, limit))]

    # All below runs on the bank's loop.

    async def _read_one(self, conversation: str) -> ConversationRecord | None:
        records = (await self._access.bank()).collection(FrameworkRecord)
        found = await records.get(self._key(conversation))
        return None if found is None else self._noted(found)

    async def _read_all(self) -> list[ConversationRecord]:
        bank = await self._access.bank()
        sessions = bank.collection(SessionRecord).query().where("agent", "=", self._agent)
        keys = [f"{each.id}/conversation" for each in await sessions.values()]
        found = await bank.collection(FrameworkRecord).get_many(keys)
        return [self._noted(each) for each in found if each is not None]

    def _noted(self, found: FrameworkRecord) -> ConversationRecord:
        record: ConversationRecord = _record.validate_json(found.content)
        for entry in (record.head_id, *record.branches):
            if entry is not None:
                self._of_entry[entry] = record.conversation_id
        return record

    async def _write(
        self, record: ConversationRecord, new: list[ConversationEntry], expected: str | None
    ) -> None:
        conversation, name = record.conversation_id, self.session_name(record.conversation_id)
        await self._check(conversation, expected)
        async with self._locks.setdefault(name, asyncio.Lock()):
            if record.forked_from is not None and await self._access.existing(name) is None:
                await self._fork(record, name)
            session = await self._access.session(name, conversation=conversation)
            forms = [_form(entry) for entry in new]
            base = forms[0]["parent_id"] if forms else record.head_id
            turns, again = await self._left_behind(session, base)
            content: bytes = _record.dump_json(record)

            async def within(transaction: Transaction, _: Written | None = None) -> None:
                records = transaction.collection(FrameworkRecord)
                before = await records.get(self._key(conversation))
                found = None if before is None else _record.validate_json(before.content).revision
                if found != expected:
                    raise ConversationConflict(conversation)
                await records.put(FrameworkRecord(self._key(conversation), content))

            if said := [_message(form) for form in (*again, *forms)]:
                await session.append(said, within=within)
            else:
                async with (await self._access.bank()).store.transaction() as transaction:
                    await within(transaction)
            if turns:
                await session.undo(numbers=turns)
        self._noted(FrameworkRecord("", content))

    async def _check(self, conversation: str, expected: str | None) -> None:
        found = await self._read_one(conversation)
        if (None if found is None else found.revision) != expected:
            raise ConversationConflict(conversation)

    async def _fork(self, record: ConversationRecord, name: str) -> None:
        """Share the turns up to the fork's last entry, if a turn ends with it."""
        source = await self._access.existing(self.session_name(str(record.forked_from)))
        if source is None or record.head_id is None:
            return
        async for turn in source.read():
            forms = await _forms(source, turn)
            if forms and forms[-1]["id"] == record.head_id:
                made = await source.fork(name, at=turn.number)
                await made.describe({"conversation": record.conversation_id})

    async def _left_behind(
        self, session: Session, base: str | None
    ) -> tuple[list[int], list[Form]]:
        """What the session shows and the history up to `base` does not have: the turns to undo, and
        what of the history has to be written again because it is not shown, or in one of them.
        """
        newest = await session.turns(1)
        shown = await _forms(session, newest[0]) if newest else []
        if (shown[-1]["id"] if shown else None) == base:
            return [], []
        chain = await self._chain(base, None, session.name) if base is not None else []
        wanted = {form["id"]: at for at, form in enumerate(chain)}
        turns, kept = list[int](), 0
        async for turn in session.read():
            ids = [form["id"] for form in await _forms(session, turn)]
            if not turns and ids and all(wanted.get(id) == kept + n for n, id in enumerate(ids)):
                kept += len(ids)
            elif ids:
                turns.append(turn.number)
        return turns, chain[kept:]

    async def _chain(self, head: str, limit: int | None, own: str = "") -> list[Form]:
        """The newest entries up to this one. Raises `LookupError` if one of them is not there."""
        best: list[Form] = []
        async for name in self._where(head, own):
            session = await self._access.existing(name)
            if session is not None:
                found, is_whole = await _chain_in(session, head, limit)
                if is_whole and found:
                    return found
                best = max(best, found, key=len)
        if not best:
            raise LookupError(f"There is no entry {head}.")
        return best  # what is before it was forgotten

    async def _where(self, head: str, own: str) -> AsyncIterator[str]:
        """Sessions that may have an entry, the likely ones first: forks share entries."""
        if own:
            yield own
        if head in self._of_entry:
            yield self.session_name(self._of_entry[head])
        for record in await self._read_all():
            yield self.session_name(record.conversation_id)

    async def _delete(self, conversation: str, expected: str) -> None:
        await self._check(conversation, expected)
        await self._access.forget(self.session_name(conversation), reroot=True)

    def _key(self, conversation: str) -> str:
        return f"{self.session_name(conversation)}/conversation"


class PerdureMemory(FrameworkStore, AbstractCapability[Any]):
    """Puts beside each prompt what it brings to mind, and keeps each run as turns.

    With `record` off it only recalls: for agents whose conversations a `PerdureConversationStore`
    keeps. The session is that of the run's conversation.
    """

    def __init__(
        self,
        bank: Bank | SyncBank | str | None = None,
        *,
        agent: str = _NAME,
        record: bool = True,
        limit: int = 5,
    ) -> None:
        super().__init__(bank)
        self._agent, self._record, self._limit = agent, record, limit
        self._told: dict[str, str] = {}  # By run.

    async def before_model_request(self, ctx: Any, request_context: Any) -> Any:
        """The text stands behind the prompt in every request of the run, and in no history."""
        messages = list(request_context.messages)
        at = next((at for at in reversed(range(len(messages))) if _prompt(messages[at])), None)
        if at is None:
            return request_context
        run = str(ctx.run_id)
        if run not in self._told:
            name = session_name(self._agent, str(ctx.conversation_id))
            text = _prompt(messages[at])
            self._told[run] = await self._access.run(self._recalled(name, text))
        if self._told[run]:
            parts = [*messages[at].parts, UserPromptPart(self._told[run])]
            messages[at] = dataclasses.replace(messages[at], parts=parts)
            request_context = dataclasses.replace(request_context, messages=messages)
        return request_context

    async def after_run(self, ctx: Any, *, result: Any) -> Any:
        self._told.pop(str(ctx.run_id), None)
        if self._record:
            name = session_name(self._agent, str(ctx.conversation_id))
            forms = ModelMessagesTypeAdapter.dump_python(result.new_messages(), mode="json")
            said = [_message({"message": form}) for form in forms]
            await self._access.run(self._append(name, said, str(ctx.run_id)))
        return result

    async def _recalled(self, name: str, prompt: str) -> str:
        session = await self._access.session(name)
        return await recalled_text(session, prompt, limit=self._limit)

    async def _append(self, name: str, said: list[Message], run: str) -> None:
        if said:
            await (await self._access.session(name)).append(said, key=run)


def _prompt(message: Any) -> str:
    """The words of a user in a request; empty if it has none."""
    if not isinstance(message, ModelRequest):
        return ""
    contents = [part.content for part in message.parts if isinstance(part, UserPromptPart)]
    parts = [part for content in contents for part in parts_of(content)]
    return "\n".join(part.text for part in parts if isinstance(part, Text))


async def _forms(session: Session, turn: Turn) -> list[Form]:
    found = unfold_all(await session.resolve(turn.messages), _NAME)
    return [form for form in found if "id" in form]


async def _chain_in(session: Session, head: str, limit: int | None) -> tuple[list[Form], bool]:
    """The newest entries up to this one, as far as they are in this session; whether all are."""
    known: dict[str, Form] = {}
    before: int | None = None
    if limit is None:
        messages = await all_messages(session, undone=True)
        known = {form["id"]: form for form in unfold_all(messages, _NAME) if "id" in form}
        return _follow(known, head, None)
    while True:
        turns = await session.turns(_PAGE, before=before, undone=True)
        for turn in turns:
            for form in await _forms(session, turn):
                known.setdefault(form["id"], form)
        found, is_whole = _follow(known, head, limit)
        if is_whole or not turns or turns[0].number == 1:
            return found, is_whole
        before = turns[0].number


def _follow(known: dict[str, Form], head: str, limit: int | None) -> tuple[list[Form], bool]:
    found: list[Form] = []
    id: str | None = head
    while id is not None and id in known and (limit is None or len(found) < limit):
        found.append(known[id])
        id = known[id]["parent_id"]
    return found[::-1], id is None or len(found) == limit


def _form(entry: ConversationEntry) -> Form:
    (message,) = ModelMessagesTypeAdapter.dump_python([entry.message], mode="json")
    return {"id": entry.id, "parent_id": entry.parent_id, "message": message}


def _entry(form: Form) -> ConversationEntry:
    (message,) = ModelMessagesTypeAdapter.validate_python([form["message"]])
    return ConversationEntry(id=form["id"], parent_id=form["parent_id"], message=message)


def _message(form: Form) -> Message:
    message = form["message"]
    is_reply = message.get("kind") == "response"
    parts: list[Part] = []
    role: Role = "assistant" if is_reply else "system"
    for part in message["parts"]:
        kind, content = part.get("part_kind"), part.get("content")
        if is_reply:
            if kind == "tool-call":
                arguments = arguments_text(part.get("args") or {})
                parts.append(ToolCall(part["tool_call_id"], part["tool_name"], arguments))
            elif kind == "thinking":
                parts += parts_of([{"type": "thinking", "thinking": content}])
            else:
                parts += parts_of(content)
        elif kind == "tool-return" or (kind == "retry-prompt" and part.get("tool_name")):
            text = content if isinstance(content, str) else msgspec.json.encode(content).decode()
            failed = kind == "retry-prompt"
            name, call = part.get("tool_name") or "", part.get("tool_call_id") or ""
            parts.append(ToolResult(call, (Text(text),), is_error=failed, name=name))
            role = "tool"
        elif kind == "user-prompt":
            parts += parts_of(content)
            role = "user" if role == "system" else role
    if role == "system":
        said = [part.get("content") for part in message["parts"]]
        parts = [Text(each) for each in said if isinstance(each, str)]
    usage = message.get("usage") or {}
    counted = Usage(usage.get("input_tokens"), usage.get("output_tokens")) if usage else None
    model = message.get("model_name") or ""
    return fold(Message(role, tuple(parts), model=model, usage=counted), _NAME, form)

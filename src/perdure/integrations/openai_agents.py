"""A `Session` of the OpenAI Agents SDK, kept as turns.

    session = PerdureSession("user-1", "sqlite:///memory.db")
    await Runner.run(agent, "Hello", session=session)

The items come back exactly as they were added, but for masked secrets. With a budget, and
``RunConfig(call_model_input_filter=session.window)``, the model is sent what the session's history
strategy shows within it, instead of every item.
"""

from __future__ import annotations

import asyncio
from typing import Any

from perdure.bank.bank import Bank
from perdure.core.errors import InvalidInput
from perdure.integrations.framework_bank import FrameworkStore, missing, session_name
from perdure.integrations.recent_items import RecentItems
from perdure.sessions.session import Session
from perdure.sync import SyncBank
from perdure.wire import codec

try:
    from agents.memory import SessionABC, SessionSettings
    from agents.run import CallModelData, ModelInputData
except ImportError as exc:
    raise missing("openai-agents", "openai-agents") from exc


class PerdureSession(FrameworkStore, SessionABC):
    """One conversation: the session ``agent/session_id`` of a bank.

    `bank` is an open one, or a URL that the first use opens; `close` or ``async with`` closes it.
    `budget` is for `window`, in tokens.
    """

    session_settings: SessionSettings | None

    def __init__(
        self,
        session_id: str,
        bank: Bank | SyncBank | str | None = None,
        *,
        agent: str = "openai-agents",
        budget: int | None = None,
        session_settings: SessionSettings | None = None,
    ) -> None:
        super().__init__(bank)
        self.session_id = session_id
        self.session_settings = session_settings
        #: To recall from it, show it or fork it: ``bank.session(store.session_name)``.
        self.session_name = session_name(agent, session_id)
        self._budget = budget
        self._lock = asyncio.Lock()  # Held while writing: `pop_item` writes twice.
        self._recent = RecentItems()
        self._shown = self._added = 0  # Items of the last `get_items`, and added since.

    async def _session(self) -> Session:
        return await self._access.session(self.session_name, framework="openai-agents")

    async def get_items(self, limit: int | None = None) -> list[Any]:
        """All items, or the newest, oldest of them first."""
        if limit is None and self.session_settings is not None:
            limit = self.session_settings.limit
        items = await self._access.run(self._newest(limit))
        self._shown, self._added = len(items), 0
        return items

    async def add_items(self, items: list[Any]) -> None:
        if items:
            await self._access.run(self._add(items))

    async def _add(self, items: list[Any]) -> None:
        said = codec("responses").decode(list(items))
        session = self._access.known(self.session_name) or await self._session()
        async with self._lock:
            try:
                await session.append(said, within=self._recent.note)
            except InvalidInput:
                if await self._access.existing(self.session_name) is not None:
                    raise
                session = await self._session()  # it was forgotten elsewhere
                await session.append(said, within=self._recent.note)
            self._recent.extend(items)
        self._added += len(items)

    async def pop_item(self) -> Any | None:
        """Take the newest item back. Its turn is undone and the rest of it written again: the log
        keeps what was taken back, and shows it to nobody.
        """
        return await self._access.run(self._pop())

    async def _pop(self) -> Any | None:
        session = await self._session()
        async with self._lock:
            turns = await session.turns(1, resolve=True)
            if not turns:
                return None
            *kept, popped = codec("responses").encode(turns[0].messages)
            if kept:
                await session.append(codec("responses").decode(kept), fresh=True)
            await session.undo(numbers=[turns[0].number])
        return popped

    async def clear_session(self) -> None:
        """Forget the conversation for good."""
        await self._access.run(self._access.forget(self.session_name))

    async def window(self, data: CallModelData[Any]) -> ModelInputData:
        """A ``call_model_input_filter``: the items before this run as the session's strategy shows
        them within the budget, with what the prompt brings to mind; this run's own as they are.
        """
        return await self._access.run(self._window(data))

    async def _window(self, data: CallModelData[Any]) -> ModelInputData:
        own = list(data.model_data.input[self._shown :])
        said = next((at for at, item in enumerate(own) if not _is_users(item)), len(own))
        session = await self._session()
        if self._added:  # the prompt is in the log already
            context = await session.context(budget=self._budget)
            rest = own[self._added :]
        else:
            prompt = codec("responses").decode(own[:said])
            context = await session.context(prompt, budget=self._budget)
            rest = own[said:]
        shown = context.to_responses()["input"]
        return ModelInputData(input=[*shown, *rest], instructions=data.model_data.instructions)

    async def _newest(self, limit: int | None) -> list[Any]:
        limit = None if limit is None or limit < 0 else limit  # as SQLite's LIMIT has it
        session = self._access.known(self.session_name)
        known = None if session is None else await self._recent.known(session, limit)
        if known is not None:
            return known
        session = await self._session()
        return await self._recent.read(session, limit, codec("responses").encode)


def _is_users(item: Any) -> bool:
    return isinstance(item, dict) and item.get("role") in {"user", "system", "developer"}

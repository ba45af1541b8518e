"""Sessions and agents that a filter names: whether they are there, and whether they may be seen.

A name that nobody has is a mistake, and is refused with those that may have been meant: only such
that the one who asks may see. One that may not be seen is none: nothing is found, as always, and a
note says why. That is for people and programs; a model is not told which of both it is (`sees`).
"""

from __future__ import annotations

from contextlib import suppress

import msgspec

from perdure.core.display import did_you_mean
from perdure.core.errors import Corrupted, InvalidInput
from perdure.history.records import SessionRecord, agent_of
from perdure.recall.memories.memory_records import Memory
from perdure.recall.scoping.scope import Scopes
from perdure.recall.scoping.sharing import Sharing
from perdure.recall.values import Filters, Question
from perdure.storage.store import Store

#: Names that a mistaken one is compared with.
_COMPARED = 5_000


class Names:
    """Looks names up in a store."""

    def __init__(self, store: Store, scopes: Scopes) -> None:
        self._records = store.collection(SessionRecord)
        self._memories = store.collection(Memory)
        self._sharing = Sharing(store)
        self._scopes = scopes

    async def check(self, question: Question) -> None:
        """Raises `InvalidInput` if the filters name a session or an agent that is not there."""
        for session in question.filters.sessions:
            if not await self._is_session(session):
                near = did_you_mean(session, await self._seen(question.record))
                raise InvalidInput(
                    f"There is no session {session!r}.",
                    hint=near or _unlike(session, question.record),
                )
        for agent in question.filters.agents:
            if not await self._is_agent(agent):
                seen = await self._seen(question.record)
                near = did_you_mean(agent, {agent_of(name) for name in seen})
                if "/" in agent:
                    near = "Name an agent, no session."
                raise InvalidInput(
                    f"There is no agent {agent!r}.",
                    hint=near or _unlike(agent, question.record),
                )

    async def unseen(self, question: Question) -> list[str]:
        """Why nothing of the named ones can be found, for each that may not be seen."""
        asks, filters = question.record, question.filters
        notes = list[str]()
        for session in filters.sessions:
            if await self._shows(question, Filters(sessions=(session,))):
                continue
            if agent_of(session) != asks.agent:
                notes.append(f"{session} is not shared with {asks.agent}.")
            elif not question.wide and await self.sees(question, session, wide=True):
                notes.append(f"{session} left the line of {asks.id}: only a wide search sees it.")
        for agent in filters.agents:
            if agent != asks.agent and not await self._shows(question, Filters(agents=(agent,))):
                notes.append(f"Nothing of {agent} is shared with {asks.agent}.")
        return notes

    async def sees(self, question: Question, session: str, *, wide: bool = False) -> bool:
        """Whether anything of a session may be seen. Not, if there is no such session."""
        asked = msgspec.structs.replace(question, wide=question.wide or wide)
        return await self._shows(asked, Filters(sessions=(session,)))

    async def _shows(self, question: Question, filters: Filters) -> bool:
        scope = await self._scopes.of(msgspec.structs.replace(question, filters=filters))
        return bool(scope.ranges)

    async def _is_session(self, name: str) -> bool:
        with suppress(InvalidInput):
            agent_of(name)
            try:
                return await self._records.get(name) is not None
            except Corrupted:  # its agent's keys were destroyed
                return True
        return False

    async def _is_agent(self, name: str) -> bool:
        if not name or "/" in name:
            return False
        return (
            await self._records.query().prefix(f"{name}/").exists()
            or await self._memories.query().where("agent", "=", name).exists()
        )

    async def _seen(self, record: SessionRecord) -> list[str]:
        """The sessions of its agent, and those that are shared with it."""
        own = self._records.query().prefix(f"{record.agent}/").limit(_COMPARED)
        shared = await self._sharing.sessions_for(record.agent)
        return [*(each.id for each in await own.values()), *shared[:_COMPARED]]


def _unlike(name: str, record: SessionRecord) -> str:
    return f"None that {record.agent} sees is like {name}; `perdure sessions` lists all there are."

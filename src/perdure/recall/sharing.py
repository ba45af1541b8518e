"""Who else may see a session.

A session is its agent's own until it is shared, with agents by name or with everybody. That lets
recall on their behalf find the turns of the session's own. Those that a fork has from its parent
are the parent's, and are shared by sharing that.

Sharing is looked up for every question, past all caches and replicas: once `unshare` has returned,
no question that is asked afterwards, in whatever process, sees the session.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import msgspec

from perdure.core.errors import InvalidInput
from perdure.history.forget_sessions import ForgetScope, remove
from perdure.history.log_records import Head, SessionRecord, agent_of, checked_agent
from perdure.storage.options import STRONG
from perdure.storage.records import Indexed, Key, system_record
from perdure.storage.store import Store
from perdure.storage.transaction import Transaction

#: What callers write for everybody, now and later.
EVERYBODY = "*"
#: What stands for it in keys: no agent's name begins with a space, and one may be called ``*``.
_ALL = " all"


@system_record("shares")
class Share(msgspec.Struct, frozen=True):
    """An agent may see a session of another."""

    id: Annotated[str, Key()]  # agent/session
    session: Annotated[str, Indexed()]
    #: When it was shared. Microseconds.
    time: int
    reader: Annotated[str, Indexed()]

    @property
    def agent(self) -> str:
        """Whom it is shared with; `EVERYBODY` if with all."""
        return EVERYBODY if self.reader == _ALL else self.reader


class Sharing:
    """What is shared in a store. Also a place that forgetting asks."""

    collections = frozenset({"perdure_shares"})

    def __init__(self, store: Store) -> None:
        self._store = store
        self._shares = store.collection(Share)

    async def share(self, record: SessionRecord, agents: Sequence[str]) -> None:
        """Let these agents see a session. It is no error if they do already.

        Raises `InvalidInput` if none is named, if one of them cannot be an agent or is the
        session's own, or if the session was forgotten.
        """
        _check(agents, f"Name those who may see {record.id}; '*' is everybody.")
        for agent in agents:
            if agent == record.agent:
                raise InvalidInput(
                    f"{record.id} is {agent}'s own.", hint="Its agent sees it without sharing."
                )

        async def body(transaction: Transaction) -> None:
            # One that is being forgotten has no head any more, and gets no share that would stay.
            if await transaction.collection(Head).get(record.id) is None:
                raise InvalidInput(f"The session {record.id} is gone.", hint="Open it again.")
            now = self._store.now()
            await transaction.collection(Share).put_many(
                Share(_key(agent, record.id), record.id, now, _reader(agent)) for agent in agents
            )

        await self._store.transact(body, STRONG)

    async def unshare(self, session: str, agents: Sequence[str]) -> None:
        """Let these agents not see a session any more.

        It holds at once, everywhere, and survives the loss of power.

        Raises `InvalidInput`, having changed nothing, if none is named, or if an agent would still
        see it because it is shared with everybody.
        """
        _check(agents, f"Name those who may not see {session} any more; for all, unshare_all().")
        shared = await self.shared_with(session)
        if EVERYBODY in shared and EVERYBODY not in agents:
            raise InvalidInput(
                f"{session} is shared with everybody, and so with {agents[0]}.",
                hint="Stop sharing it with all, then share it with those who are to see it.",
            )
        await self._shares.delete_many((_key(agent, session) for agent in agents), STRONG)

    async def unshare_all(self, session: str) -> None:
        """Let nobody but its own agent see a session any more. Holds as `unshare` does."""
        shared = await self.shared_with(session)
        await self._shares.delete_many((_key(agent, session) for agent in shared), STRONG)

    async def shared_with(self, session: str) -> list[str]:
        """The agents that a session is shared with, `EVERYBODY` first."""
        found = await self._shares.query().where("session", "=", session).values(STRONG)
        return [share.agent for share in sorted(found, key=lambda share: share.id)]

    async def sessions_for(self, agent: str) -> list[str]:
        """The sessions of others that an agent may see, by name."""
        shares = self._shares.query().where("reader", "in", (agent, _ALL))
        found = {share.session for share in await shares.values(STRONG)}
        return sorted(name for name in found if agent_of(name) != agent)

    async def forget(self, scope: ForgetScope) -> None:
        """Forget who saw a session, and what a forgotten agent saw."""
        if scope.turns:
            return
        for session in scope.sessions:
            await self._shares.query().where("session", "=", session).delete()
        if scope.agent is not None:
            await remove(self._shares, f"{scope.agent}/")


def _check(agents: Sequence[str], hint: str) -> None:
    """Raises `InvalidInput` if one cannot be an agent; and if there is none.

    An empty selection is mostly a mistake, and whoever makes it means neither everybody nor nobody.
    """
    if not agents:
        raise InvalidInput("No agent is named, and nothing was changed.", hint=hint)
    for agent in agents:
        if agent != EVERYBODY:
            checked_agent(agent)


def _key(agent: str, session: str) -> str:
    return f"{_reader(agent)}/{session}"


def _reader(agent: str) -> str:
    return _ALL if agent == EVERYBODY else agent

"""Forgets agents, and what their messages hold of sessions and turns that are forgotten."""

from __future__ import annotations

from perdure.agents.agent_records import AGENT_RECORDS, AgentSchedule
from perdure.agents.mailbox import forget_messages
from perdure.history.forget_sessions import ForgetScope, remove
from perdure.storage.store import Store


class AgentForgetting:
    """The records of agents, as a `ForgetPlace`."""

    collections = frozenset(
        f"perdure_{name}"
        for name in (
            "agents",
            "agent_versions",
            "agent_mailboxes",
            "agent_messages",
            "agent_leases",
            "tool_intents",
            "agent_questions",
            "agent_schedules",
            "agent_states",
        )
    )

    def __init__(self, store: Store) -> None:
        self._store = store

    async def forget(self, scope: ForgetScope) -> None:
        """Of an agent: everything. Of a session: its messages, questions and schedules. Of turns:
        the messages that opened them.
        """
        if scope.agent is not None:
            for cls in AGENT_RECORDS:
                collection = self._store.collection(cls)
                await remove(collection, f"{scope.agent}/")
                await collection.delete(scope.agent)
        for session in scope.sessions:
            await forget_messages(self._store, session, scope.turns)
            if not scope.turns:
                schedules = self._store.collection(AgentSchedule)
                for each in await schedules.query().prefix(f"{session.split('/')[0]}/").values():
                    if each.session == session:
                        await schedules.delete(each.id)

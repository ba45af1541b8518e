"""Forgetting reaches what agents keep of their work: a place of `history.forget_sessions`.

With a session go its episodes, their artifacts and its working memory; with a turn, its episode.
Interactions lose the name of the session and stay as figures, as the gateway's outcomes do. With an
agent goes everything.
"""

from __future__ import annotations

import msgspec

from perdure.agents.episodes import EPISODE_JOB, Episodes
from perdure.agents.interaction_records import AgentTotals, InteractionRecord, PatternFigures
from perdure.agents.working_memory import WorkingMemory
from perdure.history.forget_sessions import ForgetScope, remove
from perdure.history.log_records import agent_of
from perdure.jobs import Job
from perdure.services import Services

_PAGE = 200


class TierForgetting:
    """What is forgotten of an agent's tiers of memory."""

    collections = frozenset(
        {
            "perdure_agent_patterns",
            "perdure_agent_totals",
            "perdure_episodes",
            "perdure_interactions",
            "perdure_jobs",
            "perdure_working_memory",
            "perdure_working_shares",
            "perdure_working_sizes",
        }
    )

    def __init__(self, services: Services) -> None:
        self._services = services
        self._episodes = Episodes(services)

    async def forget(self, scope: ForgetScope) -> None:
        for session in scope.sessions:
            async for episode in self._episodes.of_sessions(session, scope.turns):
                await self._episodes.remove(episode)
            await self._strip(session, scope.turns)
            await WorkingMemory(self._services, agent_of(session)).clear(session)
        if scope.agent is None:
            return
        async for episode in self._episodes.of_agent(scope.agent):
            await self._episodes.remove(episode)
        store = self._services.store
        for cls in (InteractionRecord, PatternFigures):
            await remove(store.collection(cls), f"{scope.agent}/")
        await remove(store.collection(Job), f"{EPISODE_JOB}/{scope.agent}/")
        await store.collection(AgentTotals).delete(scope.agent)
        await WorkingMemory(self._services, scope.agent).clear()

    async def _strip(self, session: str, turns: tuple[int, ...]) -> None:
        rows = self._services.store.collection(InteractionRecord)
        query = rows.query().where("session", "=", session)
        if turns:
            query = query.where("turn", "in", list(turns))
        while found := await query.limit(_PAGE).values():
            await rows.put_many(
                msgspec.structs.replace(each, session="", turn=0, error="") for each in found
            )

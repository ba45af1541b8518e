"""Lists of a bank page by page: its agents, its sessions, the forks of one."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Literal

import msgspec

from perdure.core.errors import NotFound
from perdure.history.log_records import Head, SessionRecord, checked_agent
from perdure.recall.memory_records import Memory
from perdure.sessions.session_info import SessionInfo, describe_session
from perdure.storage.store import Store

SessionOrder = Literal["recent", "name"]


class AgentInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What an agent has."""

    name: str
    #: Archived ones not counted.
    sessions: int = 0
    archived: int = 0
    #: Active ones.
    memories: int = 0
    #: When a session of it was last in use; at most a minute behind. None if none is.
    active: datetime | None = None


class SessionList(msgspec.Struct, frozen=True):
    """A page of sessions."""

    sessions: list[SessionInfo]
    #: Give it as `after` for the following page; None on the last.
    next: str | None = None


async def list_agents(store: Store, agent: str | None = None) -> list[AgentInfo]:
    """All agents that have a session or a memory, by name; or that one."""
    records = store.collection(SessionRecord).query()
    memories = store.collection(Memory).query().where("status", "=", "active")
    if agent is not None:
        records = records.where("agent", "=", checked_agent(agent))
        memories = memories.where("agent", "=", agent)
    used = records.where("archived", "=", None).group_by("agent")
    sessions = {
        row["agent"]: row for row in await used.aggregate(all="count", active="max last_active")
    }
    every = await records.group_by("agent").aggregate(all="count")
    kept = await memories.group_by("agent").aggregate(all="count")
    counts = {row["agent"]: row["all"] for row in every}
    learnt = {row["agent"]: row["all"] for row in kept}
    return [
        AgentInfo(
            name=name,
            sessions=(own := sessions.get(name, {})).get("all", 0),
            archived=counts.get(name, 0) - own.get("all", 0),
            memories=learnt.get(name, 0),
            active=own.get("active"),
        )
        for name in sorted(counts.keys() | learnt.keys())
    ]


async def find_agent(store: Store, name: str) -> AgentInfo:
    """Raises `NotFound` if nothing is kept under this name."""
    found = await list_agents(store, name)
    if not found:
        raise NotFound(f"There is no agent {name}.", hint="List them: GET /api/v1/agents.")
    return found[0]


async def page_of_sessions(
    store: Store,
    *,
    agent: str | None,
    archived: bool,
    limit: int,
    after: str | None,
    order: SessionOrder = "recent",
) -> SessionList:
    """By name, a walk through all pages meets every session once, whatever is written meanwhile.
    By last use, one that is written to comes first, and a walk that has passed it misses it.
    """
    finder = store.collection(SessionRecord).query()
    finder = finder.order_by("key" if order == "name" else "-last_active").limit(limit)
    if agent is not None:
        finder = finder.where("agent", "=", checked_agent(agent))
    if not archived:
        finder = finder.where("archived", "=", None)
    page = await finder.page(after=after)
    return SessionList(await _described(store, page.values), page.next)


async def forks_of(store: Store, session: str, agent: str | None = None) -> list[SessionInfo]:
    """Sessions forked from this one, by name; only those of an agent, if named."""
    finder = store.collection(SessionRecord).query().where("parent", "=", session).order_by("key")
    found = [each for each in await finder.values() if agent in (None, each.agent)]
    return await _described(store, found)


async def _described(store: Store, records: Sequence[SessionRecord]) -> list[SessionInfo]:
    heads = await store.collection(Head).get_many([record.id for record in records])
    return [
        await describe_session(store, record, head)
        for record, head in zip(records, heads, strict=True)
    ]

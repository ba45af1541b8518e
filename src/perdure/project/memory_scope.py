"""Whose memory a client may search: the agents of one project, of one folder, or one agent.

Coding clients have an agent of their own in each folder (see `core.client_agents`). All that work
in one project share what they learn: what Claude Code was told in one work tree, Codex finds in
another. What is remembered through MCP belongs to an agent of the project itself, and is shared
with those of its clients, so that the proxy and the hooks find it, too.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from perdure.core.client_agents import agent_of_client
from perdure.core.errors import InvalidInput, NotFound
from perdure.history.log_records import Head, SessionRecord, agent_of
from perdure.project.project_location import ProjectLocation
from perdure.recall.values import Filters, Hit, Kind, Question
from perdure.services import Services
from perdure.sessions.session_info import SessionInfo, agents_with_sessions, list_sessions

CLIENTS = ("claude-code", "codex", "opencode")
#: Where clients note the folder that a conversation took place in.
_FOLDERS = ("cwd", "folder")
#: Agents that a memory is shared with one by one.
_MOST_SHARED = 20
#: Seconds that the search of one agent's memory may take, however late it is.
_LEAST = 0.1


class ScopeFindings(msgspec.Struct, frozen=True):
    """Hits, best first, and why something may be missing."""

    hits: tuple[Hit, ...] = ()
    notes: tuple[str, ...] = ()


class MemoryScope:
    """The memory that is searched: `own` is the agent that remembers, `agents` those searched."""

    def __init__(self, services: Services, own: str, agents: Sequence[str] = ()) -> None:
        self.services = services
        self.own = own
        self.agents = tuple(dict.fromkeys((own, *agents)))

    @classmethod
    async def of_agent(cls, services: Services, agent: str) -> MemoryScope:
        """One agent's own. Raises `NotFound` if it has neither sessions nor memories."""
        known = await agents_with_sessions(services.store)
        recall = await services.loaded_recall()
        if agent not in known and not await recall.memories.list(agent, status=None, limit=1):
            raise NotFound(
                f"There is no agent {agent!r}.",
                hint="`perdure sessions` lists whose there are.",
            )
        return cls(services, agent)

    @classmethod
    async def of_location(cls, services: Services, location: ProjectLocation) -> MemoryScope:
        """That of a project, or of a folder in which none was initialised."""
        settings = location.settings
        roots = [str(location.root)]
        if location.git is not None:
            roots += [str(each) for each in await location.git.worktrees()]
        if settings is None:
            own = agent_of_client("folder", roots[0], "")
        else:
            own = f"project@{settings.project}"
        agents = await _agents_in(services, dict.fromkeys(roots))
        return cls(services, own, agents)

    # Searching --------------------------------------------------------------------------------

    async def search(
        self,
        query: str,
        limit: int,
        kinds: tuple[Kind, ...],
        deadline: float,
        *,
        likely: float = 0.1,
        passage: int = 0,
    ) -> ScopeFindings:
        """What any of the agents knew, best first, within `deadline` seconds for all of them. No
        model is asked. `likely` and `passage`: see `recall.values.Question`.
        """
        recall = await self.services.loaded_recall()
        end = time.monotonic() + deadline
        now = self.services.store.now()
        best, notes = dict[str, Hit](), list[str]()
        for agent in self.agents:
            # Of a session that is not there: all turns are named with their session.
            record = SessionRecord(id=f"{agent}/.", type="session", agent=agent, state={})
            question = Question(
                text=query,
                record=record,
                head=Head(record.id),
                filters=Filters(kinds=kinds),
                limit=limit,
                moment=now,
                likely=likely,
                passage=passage,
            )
            left = max(end - time.monotonic(), _LEAST)
            found = await recall.recall(question, deadline=left, explains=False)
            notes += [note for note in found.notes if note not in notes]
            for hit in found.hits:
                key = _name(hit, agent)
                if key not in best or best[key].score < hit.score:
                    best[key] = msgspec.structs.replace(hit, key=key)
        hits = sorted(best.values(), key=lambda hit: -hit.score)[:limit]
        return ScopeFindings(tuple(hits), tuple(notes) if not hits else ())

    async def sessions(self, limit: int) -> list[SessionInfo]:
        """The most recently used first."""
        found = [
            each
            for agent in self.agents
            for each in await list_sessions(self.services.store, agent=agent, archived=False)
        ]
        found.sort(key=lambda each: each.active.timestamp() if each.active else 0.0, reverse=True)
        return found[:limit]

    def require(self, session: str) -> None:
        """Raises `NotFound` if a session is not of these agents, or if it is not there: one does
        not learn which.
        """
        if agent_of(session) not in self.agents:
            raise NotFound(
                f"There is no session {session!r} here.", hint="recall names those there are."
            )

    @property
    def readers(self) -> tuple[str, ...]:
        """The other agents that see what is remembered."""
        return tuple(agent for agent in self.agents if agent != self.own)[:_MOST_SHARED]


async def _agents_in(services: Services, roots: Iterable[str]) -> list[str]:
    """The agents of clients that work in one of these folders, or below."""
    folders = [*roots]
    named = [agent_of_client(client, root, "") for client in CLIENTS for root in folders]
    found = dict.fromkeys(named)
    for agent in await agents_with_sessions(services.store):
        if agent in found or "@" not in agent:
            continue
        query = services.store.collection(SessionRecord).query().where("agent", "=", agent)
        for record in await query.limit(1).values():
            noted = [record.state.get(name) for name in _FOLDERS]
            if any(isinstance(each, str) and _is_in(each, folders) for each in noted):
                found[agent] = None
    return [*found]


def _is_in(folder: str, roots: Iterable[str]) -> bool:
    path = Path(folder)
    return any(path == Path(root) or Path(root) in path.parents for root in roots)


def _name(hit: Hit, agent: str) -> str:
    """What it is fetched by, wherever it was found."""
    if hit.kind == "turn":
        return hit.turn
    return f"{agent}/{hit.key}" if hit.kind == "memory" and "/" not in hit.key else hit.key


def split_turn(name: str) -> tuple[str, str]:
    """Session and turn of ``agent/session#T-12``. Raises `InvalidInput`."""
    session, mark, turn = name.strip().rpartition("#")
    if not mark or "/" not in session:
        raise InvalidInput(
            f"{name!r} names no turn.", hint="Write it as recall does: agent/session#T-12."
        )
    return session, turn

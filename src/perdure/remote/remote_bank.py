"""A bank behind a server:

    async with perdure.connect("http://127.0.0.1:7788", token="pd_…") as bank:
        session = await bank.session("planner/auth")
        context = await session.context("What did we decide?")
        ...
        await session.append(reply, context=context)

The same `session`, `append`, `context`, `recall`, `turns` as a bank that was opened, with the same
arguments, results and errors. What needs the store itself (collections, transactions, hooks, the
gateway) is not here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Self

from perdure.bank.bank_info import BankInfo
from perdure.core.band_marks import BandMarks, parse_profile
from perdure.core.input_types import require_mapping, require_text
from perdure.core.turns import Position
from perdure.history.forget_sessions import Forgotten
from perdure.history.log_records import Link, agent_of, checked_agent
from perdure.remote.api_client import ApiClient, segment
from perdure.remote.remote_artifacts import RemoteArtifacts
from perdure.remote.remote_memories import RemoteMemories
from perdure.remote.remote_references import RemoteReferences
from perdure.remote.remote_services import RemoteCanon, RemoteIdentities
from perdure.remote.remote_session import RemoteSession
from perdure.sessions.session_info import SessionInfo
from perdure.sessions.session_listing import AgentInfo, SessionList
from perdure.sessions.validation import budget_in

_PAGE = 1_000


def connect(url: str, *, token: str | None = None, timeout: float = 60.0) -> RemoteBank:
    """The bank that a server has open, to be used in ``async with``. Asks nothing yet.

    `timeout` is in seconds, for one request. Raises `InvalidURL` for what is no address of a
    server, `InvalidInput` for what is no token; later `Unavailable` if it cannot be reached, and
    `Denied` if the token is not enough.
    """
    return RemoteBank(ApiClient(url, token, timeout))


class RemoteBank:
    """A bank on a server. Made by `perdure.connect`; an async context manager."""

    def __init__(self, api: ApiClient) -> None:
        self._api = api
        self.url = api.url
        self.memories = RemoteMemories(api)
        self.references = RemoteReferences(api)
        self.artifacts = RemoteArtifacts(api)
        self.canon = RemoteCanon(api)
        self.identities = RemoteIdentities(api)

    async def close(self) -> None:
        await self._api.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def session(
        self,
        name: str,
        *,
        strategy: str | None = None,
        budget: int | None = None,
        profile: str | Mapping[str, float] | BandMarks | None = None,
        type: str = "session",
        state: Mapping[str, Any] | None = None,
        tags: Mapping[str, str] | None = None,
        link: Link | None = None,
    ) -> RemoteSession:
        """The session of this name, made if it is not there: see `Bank.session`."""
        agent_of(name)
        body = {
            "name": name,
            "strategy": None if strategy is None else require_text(strategy, "strategy"),
            "budget": budget_in(budget),
            "profile": None if profile is None else parse_profile(profile),
            "type": require_text(type, "type"),
            "state": dict(require_mapping(state or {}, "state")),
            "tags": dict(require_mapping(tags or {}, "tags")),
            "link": link,
        }
        return RemoteSession(
            self._api, await self._api.call("POST", "/sessions", SessionInfo, body)
        )

    async def existing_session(self, name: str) -> RemoteSession:
        """Raises `NotFound` if there is no session of this name."""
        return RemoteSession(self._api, await self._api.get(_session(name), SessionInfo))

    async def sessions(
        self, *, agent: str | None = None, archived: bool = False
    ) -> list[SessionInfo]:
        """All sessions, the most recently used first; archived ones only if asked."""
        found, after = list[SessionInfo](), None
        while True:
            page = await self._api.get(
                "/sessions",
                SessionList,
                agent=None if agent is None else checked_agent(agent),
                archived=archived,
                limit=_PAGE,
                after=after,
            )
            found += page.sessions
            after = page.next
            if after is None:
                return found

    async def agents(self) -> list[AgentInfo]:
        """All agents that have a session or a memory, by name."""
        return await self._api.get("/agents", list[AgentInfo])

    async def forget(
        self,
        session: str,
        *,
        turns: str | int | Position | Iterable[str | int | Position] | None = None,
        reroot: bool = False,
    ) -> Forgotten:
        """Forget a session, or what was said in some turns, for good: see `Bank.forget`."""
        path = _session(session)
        if turns is None:
            query = {"reroot": reroot}
            return await self._api.call("DELETE", path, Forgotten, query=query)
        one = isinstance(turns, str | Position) or not isinstance(turns, Iterable)
        named: Any = [turns] if one else turns
        body = {"turns": [str(each) if isinstance(each, Position) else each for each in named]}
        return await self._api.call("POST", f"{path}/forget", Forgotten, body)

    async def forget_agent(self, name: str, *, reroot: bool = False) -> Forgotten:
        """Forget an agent for good: its sessions and all that is kept under its name."""
        path, query = f"/agents/{segment(checked_agent(name))}", {"reroot": reroot}
        return await self._api.call("DELETE", path, Forgotten, query=query)

    async def info(self) -> BankInfo:
        """What this bank is and holds."""
        return await self._api.get("/bank", BankInfo)


def _session(name: str) -> str:
    agent = agent_of(name)
    return f"/sessions/{segment(agent)}/{segment(name.partition('/')[2])}"

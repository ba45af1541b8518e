"""Agents and sessions: list, make, describe, fork, share, archive, forget."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from perdure.history.forget_sessions import Forgotten
from perdure.history.log_records import Link, agent_of
from perdure.remote.api_results import SharedSession
from perdure.server.operations import Operation, RequestBody, RequestQuery, ServerCall, TokenScope
from perdure.sessions.session import Session
from perdure.sessions.session_info import SessionInfo, describe_session
from perdure.sessions.session_listing import (
    AgentInfo,
    SessionList,
    SessionOrder,
    find_agent,
    forks_of,
    list_agents,
    page_of_sessions,
)

AGENT = "/api/v1/agents/{agent}"
SESSION = "/api/v1/sessions/{agent}/{name}"
Limit = Annotated[int, msgspec.Meta(ge=1, le=1_000)]
#: A profile, or marks of one's own: see `Session.change_strategy`.
Profile = str | dict[str, float]


class SessionsQuery(RequestQuery, frozen=True):
    """Which sessions, and in which order."""

    agent: str | None = None
    #: Archived ones, too.
    archived: bool = False
    #: By last use, or by name: then a walk through all pages misses none.
    order: SessionOrder = "recent"
    limit: Limit = 50
    after: str | None = None


class NewSession(RequestBody, frozen=True):
    """A session that is made, if it is not there; see `Bank.session`."""

    name: str
    strategy: str | None = None
    budget: int | None = None
    profile: Profile | None = None
    type: str = "session"
    state: dict[str, Any] = {}
    tags: dict[str, str] = {}
    #: The tool call that started it.
    link: Link | None = None


class SessionChange(RequestBody, frozen=True):
    """What is to be changed. `state` is merged into what is there."""

    state: dict[str, Any] = {}
    strategy: str | None = None
    budget: int | None = None
    profile: Profile | None = None


class NewFork(RequestBody, frozen=True):
    """The name of the fork, ``agent/name``, and where it leaves the line."""

    name: str
    #: Its last turn; None: the newest.
    at: str | int | None = None


class Readers(RequestBody, frozen=True):
    """Agents; ``*`` is everybody."""

    agents: list[str]


class ForgetTurns(RequestBody, frozen=True):
    """Turns to forget: ``T-12``, or 12."""

    turns: list[str | int]


class ForgetQuery(RequestQuery, frozen=True):
    """What becomes of forks."""

    #: Give forks the turns that they share, as their own.
    reroot: bool = False


async def open_session(call: ServerCall) -> Session:
    """The session that the path names. Raises `Denied`, `NotFound`."""
    return await call.bank.existing_session(call.session_name)


async def _info(call: ServerCall, session: Session) -> SessionInfo:
    return await describe_session(call.bank.store, session.record, await session.head())


async def get_agents(call: ServerCall) -> list[AgentInfo]:
    """All agents that have a session or a memory."""
    return await list_agents(call.bank.store, call.caller.agent)


async def get_agent(call: ServerCall) -> AgentInfo:
    """One agent."""
    call.require_agent(call.path["agent"])
    return await find_agent(call.bank.store, call.path["agent"])


async def forget_agent(call: ServerCall) -> Forgotten:
    """Forget an agent for good, with its sessions and all that is kept under its name."""
    call.require_all_agents()
    await find_agent(call.bank.store, call.path["agent"])
    return await call.bank.forget_agent(call.path["agent"], reroot=call.query.reroot)


async def get_sessions(call: ServerCall) -> SessionList:
    """Sessions, page by page."""
    query: SessionsQuery = call.query
    return await page_of_sessions(
        call.bank.store,
        agent=call.agent_within(query.agent),
        archived=query.archived,
        limit=query.limit,
        after=query.after,
        order=query.order,
    )


async def make_session(call: ServerCall) -> SessionInfo:
    """The session of a name; it is made if it is not there."""
    body: NewSession = call.body
    call.require_agent(agent_of(body.name))
    if body.link is not None:
        call.require_agent(agent_of(body.link.session))
    given = {name: getattr(body, name) for name in body.__struct_fields__ if name != "name"}
    return await _info(call, await call.bank.session(body.name, **given))


async def get_session(call: ServerCall) -> SessionInfo:
    """One session."""
    return await _info(call, await open_session(call))


async def change_session(call: ServerCall) -> SessionInfo:
    """Merge facts into a session's state, or show its history in another way."""
    session, body = await open_session(call), call.body
    if body.state:
        await session.describe(body.state)
    if (body.strategy, body.budget, body.profile) != (None, None, None):
        await session.change_strategy(body.strategy, budget=body.budget, profile=body.profile)
    return await _info(call, session)


async def archive_session(call: ServerCall) -> SessionInfo:
    """Take a session out of use. Appending to it brings it back."""
    session = await open_session(call)
    await session.archive()
    return await _info(call, session)


async def forget_session(call: ServerCall) -> Forgotten:
    """Forget a session for good, with the sub-agents that it started."""
    call.require_all_agents()  # a sub-agent's session may be another agent's
    return await call.bank.forget(call.session_name, reroot=call.query.reroot)


async def forget_turns(call: ServerCall) -> Forgotten:
    """Forget for good what was said in some turns."""
    call.require_all_agents()  # a fork's turns may be another agent's
    return await call.bank.forget(call.session_name, turns=call.body.turns)


async def get_forks(call: ServerCall) -> list[SessionInfo]:
    """Sessions that were forked from this one."""
    session = await open_session(call)
    return await forks_of(call.bank.store, session.name, call.caller.agent)


async def make_fork(call: ServerCall) -> SessionInfo:
    """Another session that shares this one's turns up to one of them."""
    session, body = await open_session(call), call.body
    call.require_agent(agent_of(body.name))
    return await _info(call, await session.fork(body.name, body.at))


async def get_readers(call: ServerCall) -> SharedSession:
    """Which other agents may recall a session."""
    session = await open_session(call)
    return SharedSession(session.name, await session.shared_with())


async def share_session(call: ServerCall) -> SharedSession:
    """Let agents recall a session."""
    session = await open_session(call)
    await session.share(*call.body.agents)
    return await get_readers(call)


async def unshare_session(call: ServerCall) -> SharedSession:
    """Stop agents recalling a session. Holds at once."""
    session = await open_session(call)
    await session.unshare(*call.body.agents)
    return await get_readers(call)


async def unshare_session_all(call: ServerCall) -> SharedSession:
    """Let only its own agent recall a session any more. Holds at once."""
    session = await open_session(call)
    await session.unshare_all()
    return await get_readers(call)


OPERATIONS = (
    Operation.of("GET", "/api/v1/agents", get_agents, TokenScope.READ),
    Operation.of("GET", AGENT, get_agent, TokenScope.READ),
    Operation.of("DELETE", AGENT, forget_agent, TokenScope.ADMIN, query=ForgetQuery),
    Operation.of("GET", "/api/v1/sessions", get_sessions, TokenScope.READ, query=SessionsQuery),
    Operation.of("POST", "/api/v1/sessions", make_session, TokenScope.WRITE, body=NewSession),
    Operation.of("GET", SESSION, get_session, TokenScope.READ),
    Operation.of("PATCH", SESSION, change_session, TokenScope.WRITE, body=SessionChange),
    Operation.of("POST", f"{SESSION}/archive", archive_session, TokenScope.WRITE),
    Operation.of("DELETE", SESSION, forget_session, TokenScope.ADMIN, query=ForgetQuery),
    Operation.of("POST", f"{SESSION}/forget", forget_turns, TokenScope.ADMIN, body=ForgetTurns),
    Operation.of("GET", f"{SESSION}/forks", get_forks, TokenScope.READ),
    Operation.of("POST", f"{SESSION}/forks", make_fork, TokenScope.WRITE, body=NewFork, status=201),
    Operation.of("GET", f"{SESSION}/readers", get_readers, TokenScope.READ),
    Operation.of("POST", f"{SESSION}/readers", share_session, TokenScope.WRITE, body=Readers),
    Operation.of(
        "POST", f"{SESSION}/readers/remove", unshare_session, TokenScope.WRITE, body=Readers
    ),
    Operation.of("DELETE", f"{SESSION}/readers", unshare_session_all, TokenScope.WRITE),
)

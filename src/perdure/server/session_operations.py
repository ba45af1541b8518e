"""Agents and sessions: list, make, describe, fork, share, archive, forget."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

from perdure.bank.bank_info import SessionInfo, describe_session
from perdure.bank.bank_listing import (
    AgentInfo,
    SessionList,
    SessionOrder,
    find_agent,
    forks_of,
    list_agents,
    page_of_sessions,
)
from perdure.bank.session import Session
from perdure.history.forget_sessions import Forgotten
from perdure.history.log_records import Link, agent_of
from perdure.remote.api_results import SharedSession
from perdure.server.operations import Call, Operation, RequestBody, RequestQuery, Scope

AGENT = "/api/v1/agents/{agent}"
SESSION = "/api/v1/sessions/{agent}/{name}"
Limit = Annotated[int, msgspec.Meta(ge=1, le=1_000)]
#: A profile, or marks of one's own: see `Session.change_strategy`.
Profile = str | dict[str, float]


class SessionsQuery(RequestQuery):
    agent: str | None = None
    #: Archived ones, too.
    archived: bool = False
    #: By last use, or by name: then a walk through all pages misses none.
    order: SessionOrder = "recent"
    limit: Limit = 50
    after: str | None = None


class NewSession(RequestBody):
    """A session that is made, if it is not there; see `Bank.session`."""

    name: str
    strategy: Literal["gradient", "regular"] | None = None
    budget: int | None = None
    profile: Profile | None = None
    type: str = "session"
    state: dict[str, Any] = {}
    tags: dict[str, str] = {}
    #: The tool call that started it.
    link: Link | None = None


class SessionChange(RequestBody):
    """What is to be changed. `state` is merged into what is there."""

    state: dict[str, Any] = {}
    strategy: Literal["gradient", "regular"] | None = None
    budget: int | None = None
    profile: Profile | None = None


class NewFork(RequestBody):
    name: str
    #: Its last turn; None: the newest.
    at: str | int | None = None


class Readers(RequestBody):
    """Agents; ``*`` is everybody."""

    agents: list[str]


class ForgetTurns(RequestBody):
    turns: list[str | int]


class ForgetQuery(RequestQuery):
    #: Give forks the turns that they share, as their own.
    reroot: bool = False


async def open_session(call: Call) -> Session:
    """The session that the path names. Raises `Denied`, `NotFound`."""
    return await call.bank.existing_session(call.session_name)


async def _info(call: Call, session: Session) -> SessionInfo:
    return await describe_session(call.bank.store, session.record, await session.head())


async def get_agents(call: Call) -> list[AgentInfo]:
    return await list_agents(call.bank.store, call.caller.agent)


async def get_agent(call: Call) -> AgentInfo:
    call.require_agent(call.path["agent"])
    return await find_agent(call.bank.store, call.path["agent"])


async def forget_agent(call: Call) -> Forgotten:
    call.require_all_agents()
    await find_agent(call.bank.store, call.path["agent"])
    return await call.bank.forget_agent(call.path["agent"], reroot=call.query.reroot)


async def get_sessions(call: Call) -> SessionList:
    query: SessionsQuery = call.query
    return await page_of_sessions(
        call.bank.store,
        agent=call.agent_within(query.agent),
        archived=query.archived,
        limit=query.limit,
        after=query.after,
        order=query.order,
    )


async def make_session(call: Call) -> SessionInfo:
    body: NewSession = call.body
    call.require_agent(agent_of(body.name))
    if body.link is not None:
        call.require_agent(agent_of(body.link.session))
    given = {name: getattr(body, name) for name in body.__struct_fields__ if name != "name"}
    return await _info(call, await call.bank.session(body.name, **given))


async def get_session(call: Call) -> SessionInfo:
    return await _info(call, await open_session(call))


async def change_session(call: Call) -> SessionInfo:
    session, body = await open_session(call), call.body
    if body.state:
        await session.describe(body.state)
    if (body.strategy, body.budget, body.profile) != (None, None, None):
        await session.change_strategy(body.strategy, budget=body.budget, profile=body.profile)
    return await _info(call, session)


async def archive_session(call: Call) -> SessionInfo:
    session = await open_session(call)
    await session.archive()
    return await _info(call, session)


async def forget_session(call: Call) -> Forgotten:
    """With the sub-agents that it started, which may be other agents' sessions."""
    call.require_all_agents()
    return await call.bank.forget(call.session_name, reroot=call.query.reroot)


async def forget_turns(call: Call) -> Forgotten:
    return await call.bank.forget(call.session_name, turns=call.body.turns)


async def get_forks(call: Call) -> list[SessionInfo]:
    session = await open_session(call)
    return await forks_of(call.bank.store, session.name, call.caller.agent)


async def make_fork(call: Call) -> SessionInfo:
    session, body = await open_session(call), call.body
    call.require_agent(agent_of(body.name))
    return await _info(call, await session.fork(body.name, body.at))


async def get_readers(call: Call) -> SharedSession:
    session = await open_session(call)
    return SharedSession(session.name, await session.shared_with())


async def share_session(call: Call) -> SharedSession:
    session = await open_session(call)
    await session.share(*call.body.agents)
    return await get_readers(call)


async def unshare_session(call: Call) -> SharedSession:
    session = await open_session(call)
    await session.unshare(*call.body.agents)
    return await get_readers(call)


async def unshare_session_all(call: Call) -> SharedSession:
    session = await open_session(call)
    await session.unshare_all()
    return await get_readers(call)


OPERATIONS = (
    Operation(
        "GET",
        "/api/v1/agents",
        get_agents,
        "All agents that have a session or a memory.",
        Scope.READ,
        result=list[AgentInfo],
    ),
    Operation("GET", AGENT, get_agent, "One agent.", Scope.READ, result=AgentInfo),
    Operation(
        "DELETE",
        AGENT,
        forget_agent,
        "Forget an agent for good, with its sessions and all that is kept under its name.",
        Scope.ADMIN,
        query=ForgetQuery,
        result=Forgotten,
    ),
    Operation(
        "GET",
        "/api/v1/sessions",
        get_sessions,
        "Sessions, page by page.",
        Scope.READ,
        query=SessionsQuery,
        result=SessionList,
    ),
    Operation(
        "POST",
        "/api/v1/sessions",
        make_session,
        "The session of a name; it is made if it is not there.",
        Scope.WRITE,
        body=NewSession,
        result=SessionInfo,
    ),
    Operation("GET", SESSION, get_session, "One session.", Scope.READ, result=SessionInfo),
    Operation(
        "PATCH",
        SESSION,
        change_session,
        "Merge facts into a session's state, or show its history in another way.",
        Scope.WRITE,
        body=SessionChange,
        result=SessionInfo,
    ),
    Operation(
        "POST",
        f"{SESSION}/archive",
        archive_session,
        "Take a session out of use. Appending to it brings it back.",
        Scope.WRITE,
        result=SessionInfo,
    ),
    Operation(
        "DELETE",
        SESSION,
        forget_session,
        "Forget a session for good, with the sub-agents that it started.",
        Scope.ADMIN,
        query=ForgetQuery,
        result=Forgotten,
    ),
    Operation(
        "POST",
        f"{SESSION}/forget",
        forget_turns,
        "Forget for good what was said in some turns.",
        Scope.ADMIN,
        body=ForgetTurns,
        result=Forgotten,
    ),
    Operation(
        "GET",
        f"{SESSION}/forks",
        get_forks,
        "Sessions that were forked from this one.",
        Scope.READ,
        result=list[SessionInfo],
    ),
    Operation(
        "POST",
        f"{SESSION}/forks",
        make_fork,
        "Another session that shares this one's turns up to one of them.",
        Scope.WRITE,
        body=NewFork,
        result=SessionInfo,
        status=201,
    ),
    Operation(
        "GET",
        f"{SESSION}/readers",
        get_readers,
        "Which other agents may recall a session.",
        Scope.READ,
        result=SharedSession,
    ),
    Operation(
        "POST",
        f"{SESSION}/readers",
        share_session,
        "Let agents recall a session.",
        Scope.WRITE,
        body=Readers,
        result=SharedSession,
    ),
    Operation(
        "POST",
        f"{SESSION}/readers/remove",
        unshare_session,
        "Stop agents recalling a session. Holds at once.",
        Scope.WRITE,
        body=Readers,
        result=SharedSession,
    ),
    Operation(
        "DELETE",
        f"{SESSION}/readers",
        unshare_session_all,
        "Let only its own agent recall a session any more. Holds at once.",
        Scope.WRITE,
        result=SharedSession,
    ),
)

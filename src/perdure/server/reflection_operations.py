"""Runs of reflection, the inbox, and the audit of memories."""

from __future__ import annotations

from typing import Annotated

import msgspec

from perdure.recall.memory_records import machine, person
from perdure.reflection.inbox import InboxMessage, MessageKind
from perdure.reflection.memory_audit import MemoryAudit, MemoryAuditReport
from perdure.reflection.reflection_records import AppliedOperation, ReflectionRun
from perdure.server.memory_operations import Authored
from perdure.server.operations import Operation, RequestBody, RequestQuery, ServerCall, TokenScope

RUNS = "/api/v1/reflections"
RUNS_OF = f"{RUNS}/{{agent}}"
RUN = f"{RUNS_OF}/{{run}}"
INBOX = "/api/v1/inbox"
MESSAGE = f"{INBOX}/{{agent}}/{{message}}"


class RunsQuery(RequestQuery, frozen=True):
    """Which runs."""

    agent: str | None = None
    limit: Annotated[int, msgspec.Meta(ge=1, le=10_000)] = 50


class InboxQuery(RequestQuery, frozen=True):
    """Which messages."""

    agent: str | None = None
    kind: MessageKind | None = None
    #: ``any`` for all of them.
    status: str = "open"


class ReflectRequest(RequestBody, frozen=True):
    """What to reflect on: one session, or all of the agent's; what is new, or everything."""

    session: str | None = None
    again: bool = False
    #: Ask at once, not by batch mode, whose answers the server's schedule waits for.
    live: bool = False


class NamedRun(msgspec.Struct, frozen=True):
    """A run and what it is called: ``planner/R-3``."""

    name: str
    run: ReflectionRun

    @classmethod
    def of(cls, run: ReflectionRun) -> NamedRun:
        return cls(run.name, run)


class RunDetails(msgspec.Struct, frozen=True):
    """A run, and its operations, if they are still known: then it can be undone."""

    name: str
    run: ReflectionRun
    operations: tuple[AppliedOperation, ...] = ()
    undoable: bool = False


class NamedMessage(msgspec.Struct, frozen=True):
    """A message and what it is called: ``planner/I-3``."""

    name: str
    message: InboxMessage

    @classmethod
    def of(cls, message: InboxMessage) -> NamedMessage:
        return cls(message.name, message)


def _named(call: ServerCall, what: str) -> str:
    call.require_agent(call.path["agent"])
    return f"{call.path['agent']}/{call.path[what]}"


async def get_runs(call: ServerCall) -> list[NamedRun]:
    """Runs of reflection, the newest first."""
    agent = call.agent_within(call.query.agent)
    found = await call.bank.reflection.list(agent, limit=call.query.limit)
    return [NamedRun.of(each) for each in found]


async def get_run(call: ServerCall) -> RunDetails:
    """A run, with its operations."""
    run, changes = await call.bank.reflection.get(_named(call, "run"))
    operations = () if changes is None else changes.operations
    return RunDetails(run.name, run, operations, changes is not None)


async def reflect(call: ServerCall) -> list[NamedRun]:
    """Distil memories from what is new in an agent's sessions. Empty if nothing is."""
    agent = call.path["agent"]
    call.require_agent(agent)
    body = call.body
    runs = await call.bank.reflect(
        agent, session=body.session, again=body.again, live=body.live, wait=False
    )
    return [NamedRun.of(each) for each in runs]


async def undo_run(call: ServerCall) -> NamedRun:
    """Put back what a run changed."""
    return NamedRun.of(await call.bank.reflection.undo(_named(call, "run")))


async def get_inbox(call: ServerCall) -> list[NamedMessage]:
    """Messages for the administrator, the newest first."""
    query = call.query
    status = None if query.status == "any" else query.status
    agent = call.agent_within(query.agent)
    found = await call.bank.inbox.list(agent, kind=query.kind, status=status)
    return [NamedMessage.of(each) for each in found]


async def get_message(call: ServerCall) -> NamedMessage:
    """One message."""
    return NamedMessage.of(await call.bank.inbox.get(_named(call, "message")))


async def accept_message(call: ServerCall) -> NamedMessage:
    """Carry out what a message proposes. What a person wrote is changed only by one."""
    name, caller = _named(call, "message"), call.caller.name
    if (await call.bank.inbox.get(name)).kind == "layer":
        call.require_all_agents()  # reference layers are everybody's
    by = person(caller) if call.body.person else machine(caller)
    return NamedMessage.of(await call.bank.inbox.accept(name, by=by))


async def dismiss_message(call: ServerCall) -> NamedMessage:
    """Put a message away."""
    name, caller = _named(call, "message"), call.caller.name
    by = person(caller) if call.body.person else machine(caller)
    return NamedMessage.of(await call.bank.inbox.dismiss(name, by=by))


async def audit_memories(call: ServerCall) -> MemoryAuditReport:
    """What is wrong with an agent's memories, or may be. Changes nothing."""
    agent = call.path["agent"]
    call.require_agent(agent)
    return await MemoryAudit(call.bank.services).run(agent, keep=False)


OPERATIONS = (
    Operation.of("GET", RUNS, get_runs, TokenScope.READ, query=RunsQuery),
    Operation.of("POST", RUNS_OF, reflect, TokenScope.WRITE, body=ReflectRequest),
    Operation.of("GET", RUN, get_run, TokenScope.READ),
    Operation.of("POST", f"{RUN}/undo", undo_run, TokenScope.WRITE),
    Operation.of("GET", INBOX, get_inbox, TokenScope.READ, query=InboxQuery),
    Operation.of("GET", MESSAGE, get_message, TokenScope.READ),
    Operation.of("POST", f"{MESSAGE}/accept", accept_message, TokenScope.WRITE, body=Authored),
    Operation.of("POST", f"{MESSAGE}/dismiss", dismiss_message, TokenScope.WRITE, body=Authored),
    Operation.of("GET", "/api/v1/checks/memories/{agent}", audit_memories, TokenScope.READ),
)

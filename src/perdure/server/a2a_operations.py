"""Agents for other agents: the Agent2Agent protocol 1.0, its binding HTTP+JSON.

An agent's card is at ``/a2a/{agent}/.well-known/agent-card.json`` and says where to send messages;
``/.well-known/agent-card.json`` is the card of the only agent there is, or of ``?agent=``. An A2A
task is a message of ours, its context a session. What is offered: sending a text (waiting for the
answer or not), and looking at a task. Cards need a token as everything else: they name agents.
"""

from __future__ import annotations

import hashlib
from typing import Any, Literal

import msgspec

from perdure.agents.agent_records import (
    AgentMessage,
    AgentRecord,
    AgentVersion,
    MessageState,
    message_key,
)
from perdure.core.clock import to_datetime
from perdure.core.errors import DeadlineExceeded, InvalidInput, NotFound
from perdure.server.operations import Operation, RequestQuery, ServerCall, TokenScope

VERSION = "1.0"
_BASE = "/a2a/{agent}"
_CARD = "/.well-known/agent-card.json"
_TEXT = "text/plain"
#: Seconds that a request waits for the answer; then it gets a task that goes on.
_PATIENCE = 300.0

_SCHEMES = {
    "token": {"httpAuthSecurityScheme": {"scheme": "Bearer", "description": "perdure token"}}
}

TaskState = Literal[
    "TASK_STATE_SUBMITTED",
    "TASK_STATE_WORKING",
    "TASK_STATE_COMPLETED",
    "TASK_STATE_FAILED",
    "TASK_STATE_CANCELED",
    "TASK_STATE_INPUT_REQUIRED",
]
_STATES: dict[MessageState, TaskState] = {
    "accepted": "TASK_STATE_SUBMITTED",
    "working": "TASK_STATE_WORKING",
    "asking": "TASK_STATE_INPUT_REQUIRED",
    "done": "TASK_STATE_COMPLETED",
    "parked": "TASK_STATE_FAILED",
    "cancelled": "TASK_STATE_CANCELED",
}


class _A2A(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    pass


class A2APart(_A2A, frozen=True):
    """Only texts and data are read."""

    text: str | None = None
    data: Any = None
    media_type: str = ""


class A2AMessage(_A2A, frozen=True):
    """What is said. Its id makes sending idempotent, for one caller in one context."""

    message_id: str
    role: str
    parts: tuple[A2APart, ...]
    context_id: str = ""
    task_id: str = ""
    metadata: dict[str, Any] | None = None


class A2AConfiguration(_A2A, frozen=True):
    """How to answer."""

    return_immediately: bool = False


class SendMessageRequest(_A2A, frozen=True):
    """The body of ``message:send``."""

    message: A2AMessage
    configuration: A2AConfiguration = A2AConfiguration()


class A2AStatus(_A2A, frozen=True):
    """Where a task stands."""

    state: TaskState
    timestamp: str
    message: A2AMessage | None = None


class A2AArtifact(_A2A, frozen=True):
    """What a task made: its answer."""

    artifact_id: str
    parts: tuple[A2APart, ...]


class A2ATask(_A2A, frozen=True):
    """A message of ours, as A2A calls it."""

    id: str
    context_id: str
    status: A2AStatus
    artifacts: tuple[A2AArtifact, ...] = ()


class SendMessageResponse(_A2A, frozen=True):
    """What became of it."""

    task: A2ATask


class AgentInterface(_A2A, frozen=True):
    """Where an agent is, and what is spoken there."""

    url: str
    protocol_binding: str = msgspec.field(name="protocolBinding")
    protocol_version: str = msgspec.field(name="protocolVersion")


class AgentSkill(_A2A, frozen=True):
    """What an agent can do."""

    id: str
    name: str
    description: str
    tags: tuple[str, ...]


class AgentCapabilities(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Which optional parts of the protocol are there."""

    streaming: bool = False
    push_notifications: bool = False
    extended_agent_card: bool = False


class AgentCard(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What an agent is, for other agents."""

    name: str
    description: str
    version: str
    supported_interfaces: tuple[AgentInterface, ...]
    capabilities: AgentCapabilities = AgentCapabilities()
    security_schemes: dict[str, Any]
    security_requirements: tuple[Any, ...]
    default_input_modes: tuple[str, ...] = (_TEXT,)
    default_output_modes: tuple[str, ...] = (_TEXT,)
    skills: tuple[AgentSkill, ...]


class CardQuery(RequestQuery, frozen=True):
    """Whose card; not needed where there is one agent."""

    agent: str = ""


async def get_agent_card(call: ServerCall) -> AgentCard:
    """The A2A card of an agent."""
    return await _card(call, call.path["agent"])


async def get_default_agent_card(call: ServerCall) -> AgentCard:
    """The A2A card of the only agent, or of one that is named."""
    name = call.query.agent or call.caller.agent or ""
    if not name:
        names = [each.name for each in await call.bank.agents.find(status="active")]
        if len(names) != 1:
            raise NotFound(
                f"There are {len(names)} agents, and no default.",
                hint=f"Ask for /a2a/NAME{_CARD}; GET /api/v1/registry lists them.",
            )
        name = names[0]
    return await _card(call, name)


async def a2a_send(call: ServerCall) -> SendMessageResponse:
    """Send a message to an agent, as A2A does."""
    body: SendMessageRequest = call.body
    said = body.message
    call.require_agent(call.path["agent"])
    agent = await call.bank.agents.get(call.path["agent"])
    if said.role != "ROLE_USER":
        raise InvalidInput(f"A message of {said.role!r} is not for us.", hint="Send ROLE_USER.")
    if said.task_id:
        raise InvalidInput(
            "A task takes one message.", hint="Send another with the same contextId instead."
        )
    text = "\n\n".join(part.text for part in said.parts if part.text)
    data = [part.data for part in said.parts if part.data is not None]
    message = await agent.send(
        text,
        context={"data": data} if data else None,
        session=said.context_id,
        key=_sender_key(call.caller.name, said),
    )
    if not body.configuration.return_immediately:
        try:
            message = await agent.agents.wait(message.id, deadline=_PATIENCE)
        except DeadlineExceeded:
            message = await agent.agents.mailboxes.get(message.id)
    return SendMessageResponse(task=_task(message))


async def a2a_task(call: ServerCall) -> A2ATask:
    """Where a task of an agent stands."""
    call.require_agent(call.path["agent"])
    id = call.path["task"]
    if not (id.isascii() and id.isdecimal()):
        raise NotFound(f"There is no task {id!r}.", hint="Use the id that came with it.")
    number = message_key(call.path["agent"], int(id))
    return _task(await call.bank.agents.mailboxes.get(number))


def _sender_key(caller: str, said: A2AMessage) -> str:
    """Clients choose the ids of their messages: one must not get the task of another."""
    scope = msgspec.json.encode((caller, said.context_id, said.message_id))
    return f"a2a {hashlib.sha256(scope).hexdigest()}"


async def _card(call: ServerCall, name: str) -> AgentCard:
    call.require_agent(name)
    agent = await call.bank.agents.get(name)
    url = call.request.base_url.replace(path=_BASE.format(agent=name))
    return card_of(agent.record, agent.version, str(url))


def card_of(record: AgentRecord, version: AgentVersion, url: str) -> AgentCard:
    about = record.description or version.description or f"The agent {record.name}."
    skills = [("skill", each) for each in record.skills] + [("task", each) for each in record.tasks]
    return AgentCard(
        name=record.name,
        description=about,
        version=str(version.number),
        security_schemes=_SCHEMES,
        security_requirements=({"schemes": {"token": {"list": []}}},),
        supported_interfaces=(
            AgentInterface(url=url, protocol_binding="HTTP+JSON", protocol_version=VERSION),
        ),
        skills=tuple(
            AgentSkill(id=each, name=each, description=about, tags=(kind,))
            for kind, each in skills or [("agent", record.name)]
        ),
    )


def _task(message: AgentMessage) -> A2ATask:
    id = str(message.seq)
    told = None
    if message.error and message.state == "parked":
        told = A2AMessage(
            message_id=f"{id}-error", role="ROLE_AGENT", parts=(A2APart(text=message.error),)
        )
    answer = A2AArtifact(artifact_id=f"{id}-reply", parts=(A2APart(text=message.reply),))
    changed = to_datetime(message.ended or message.started or message.accepted)
    return A2ATask(
        id=id,
        context_id=message.session.partition("/")[2],
        status=A2AStatus(state=_STATES[message.state], timestamp=changed.isoformat(), message=told),
        artifacts=(answer,) if message.state == "done" else (),
    )


_READ = TokenScope.READ
OPERATIONS = (
    Operation.of("GET", _CARD, get_default_agent_card, _READ, query=CardQuery),
    Operation.of("GET", f"{_BASE}{_CARD}", get_agent_card, _READ),
    Operation.of(
        "POST", f"{_BASE}/message:send", a2a_send, TokenScope.WRITE, body=SendMessageRequest
    ),
    Operation.of("GET", f"{_BASE}/tasks/{{task}}", a2a_task, _READ),
)

"""The records of agents.

===================  ========================  =======================================
collection           key                       what it holds
===================  ========================  =======================================
agents               ``router``                identity, status, current version
agent_versions       ``router/00000003``       what the agent is, as of a version
agent_mailboxes      ``router``                how many messages were accepted
agent_messages       ``router/00000012``       one message and what became of it
agent_leases         ``router``                who may write for the agent
tool_intents         ``router/00000012/CALL``  a tool has begun and not ended
agent_questions      ``router/00000012/CALL``  what a person is asked
agent_schedules      ``router/ID``             a message that will be sent
agent_states         ``router``                what its program keeps
===================  ========================  =======================================
"""

from __future__ import annotations

import hashlib
import os
from typing import Annotated, Any, Literal, NamedTuple, TypeAlias

import msgspec

from perdure.core.errors import NotFound
from perdure.core.messages import ToolCall
from perdure.storage.record_keys import numbered
from perdure.storage.records import Compressed, Indexed, Key, Tags, system_record
from perdure.storage.rows import Index

AgentStatus: TypeAlias = Literal["active", "paused", "retired"]
#: ``accepted`` waits for its turn or its next attempt; ``working`` has begun; ``asking`` waits for
#: a person; ``done`` has its reply; ``parked`` failed too often, and waits for `retry`;
#: ``cancelled`` was taken back before it began.
MessageState: TypeAlias = Literal["accepted", "working", "asking", "done", "parked", "cancelled"]
#: What ended a turn before its model had done; empty: the model had.
Cap: TypeAlias = Literal["", "steps", "tokens", "dollars", "seconds"]
QuestionKind: TypeAlias = Literal["approval", "question"]


class AgentLimits(msgspec.Struct, frozen=True, omit_defaults=True):
    """What one message may take. All are finite: a loop that runs away ends."""

    #: Calls of models; in the last one it may call no tool.
    steps: Annotated[int, msgspec.Meta(ge=1)] = 25
    #: Input and output, cached or not, of all calls together.
    tokens: Annotated[int, msgspec.Meta(ge=1)] = 2_000_000
    dollars: Annotated[float, msgspec.Meta(gt=0)] = 5.0
    #: Of work, not of waiting for a person or a provider.
    seconds: Annotated[float, msgspec.Meta(gt=0)] = 1_800.0


class ToolDeclaration(msgspec.Struct, frozen=True, omit_defaults=True):
    """A tool of an agent, as its model and its people see it. The callable is in a process."""

    name: str
    description: str = ""
    parameters: dict[str, Any] = {}
    #: A person has to allow each call.
    approval: bool = False
    #: Running it twice is as good as once: after a crash it is run again.
    idempotent: bool = False


@system_record("agents")
class AgentRecord(msgspec.Struct, frozen=True, kw_only=True):
    """An agent: who it is, whatever becomes of its name, its prompt and its model."""

    name: Annotated[str, Key()]
    #: ``ag_`` and 24 random characters. Another agent that gets the name later has another.
    id: Annotated[str, Indexed()]
    status: Annotated[AgentStatus, Indexed()] = "active"
    version: int = 0
    description: str = ""
    skills: tuple[str, ...] = ()
    tasks: tuple[str, ...] = ()
    public_keys: tuple[str, ...] = ()
    #: The folder that its memory is anchored to; empty: none.
    project: str = ""
    made: int = 0  # Microseconds.
    #: Of skills and tasks, for the registry: ``{"skill:review": "", "task:email_routing": ""}``.
    labels: Annotated[dict[str, str], Tags()] = {}


@system_record("agent_versions")
class AgentVersion(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """What an agent is, from one change to the next. Never changes."""

    id: Annotated[str, Key()]
    number: int
    prompt: Annotated[str, Compressed()] = ""
    description: str = ""
    #: As it was written. Only ``provider/model`` names a model of ours; else the choice is the
    #: gateway's.
    model: str = ""
    #: Python callables; a process needs all of them to do the agent's work.
    tools: tuple[ToolDeclaration, ...] = ()
    #: Names that may be offered, None: all; and those that may not.
    allowed_tools: tuple[str, ...] | None = None
    disallowed_tools: tuple[str, ...] = ()
    skills: tuple[str, ...] = ()
    tasks: tuple[str, ...] = ()
    limits: AgentLimits = AgentLimits()
    #: How the history is shown and in how many tokens, as for a session.
    strategy: str = ""
    budget: int = 0
    recall: bool = True
    history_tools: bool = True
    #: Settings of the memory tiers.
    tiers: dict[str, Any] = {}
    #: All fields of its file, known or not.
    front_matter: dict[str, Any] = {}
    file: str = ""
    sha256: str = ""
    made: int = 0  # Microseconds.
    made_by: str = ""
    reason: str = ""

    @property
    def candidate(self) -> str:
        """The model in the gateway's terms; empty if the gateway is to choose."""
        return self.model if "/" in self.model else ""


@system_record("agent_mailboxes")
class AgentMailbox(msgspec.Struct, frozen=True):
    """Numbers the messages of an agent, and lets only one sender at a time take a number."""

    agent: Annotated[str, Key()]
    accepted: int = 0


@system_record(
    "agent_messages",
    indexes=[
        Index(("state", "due", "agent")),
        Index(("agent", "state")),
        Index(("agent", "state", "parent")),
        Index(("agent", "sender_key")),
        Index(("session", "turn")),
    ],
)
class AgentMessage(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A message to an agent. Where it stands in its turn is in the session's log."""

    id: Annotated[str, Key()]
    agent: str
    seq: int
    sender_key: str | None = None  # Of the sender: the same one is accepted once.
    state: MessageState = "accepted"
    due: int = 0  # Not before. Microseconds.
    body: Annotated[str, Compressed()]
    context: dict[str, Any] = {}
    task: str = ""
    session: str
    turn: int = 0  # 0 until its prompt is written.
    #: Agents on whose behalf it was sent, the first one first.
    chain: tuple[str, ...] = ()
    #: The message that a tool was working on when it sent this one.
    parent: str = ""
    accepted: int = 0  # When. Microseconds.
    started: int = 0
    ended: int = 0
    attempts: int = 0  # Failures that were its own.
    deaths: int = 0  # Processes that died since it last made progress.
    outages: int = 0  # Attempts since then that failed because a provider was away.
    error: str = ""
    reply: Annotated[str, Compressed()] = ""
    agent_version: int = 0
    variant: str = ""
    stopped: Cap = ""
    #: Tools of which nobody knows whether they did their work.
    interrupted: tuple[str, ...] = ()
    recalled: tuple[str, ...] = ()
    outcomes: tuple[str, ...] = ()
    provider: str = ""
    model: str = ""
    steps: int = 0
    tool_calls: int = 0
    input: int = 0
    output: int = 0
    cost: int | None = None  # Picodollars.
    seconds: float = 0.0  # Of work.

    @property
    def is_over(self) -> bool:
        return self.state in {"done", "parked", "cancelled"}


@system_record("agent_leases")
class AgentLease(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Who may write for an agent. The token grows with each holder, and every write checks it."""

    agent: Annotated[str, Key()]
    token: int = 0
    owner: str = ""  # Empty: nobody.
    until: int = 0  # Microseconds.
    host: str = ""
    boot: str = ""
    pid: int = 0
    process: str = ""  # When that process began, as its system tells: a pid is used again.


@system_record("tool_intents")
class ToolIntent(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A tool has begun. Goes in the transaction that writes its result."""

    id: Annotated[str, Key()]
    message: str
    tool: str
    started: int  # Microseconds.


@system_record("agent_questions", indexes=[Index(("agent", "answered"))])
class AgentQuestion(msgspec.Struct, frozen=True, kw_only=True):
    """What a person is asked before a turn goes on."""

    id: Annotated[str, Key()]
    agent: str
    message: Annotated[str, Indexed()]
    kind: QuestionKind
    text: str
    tool: str = ""
    arguments: Annotated[str, Compressed()] = ""
    asked: int = 0  # Microseconds.
    answered: int = 0
    approved: bool = False
    answer: str = ""
    answered_by: str = ""


@system_record("agent_schedules", indexes=[Index(("next", "agent")), Index(("agent", "next"))])
class AgentSchedule(msgspec.Struct, frozen=True, kw_only=True):
    """A message that is sent at a time, or again and again."""

    id: Annotated[str, Key()]
    agent: str
    next: int  # Microseconds.
    every: int = 0  # Microseconds between two of them.
    cron: str = ""
    timezone: str = ""
    body: Annotated[str, Compressed()]
    context: dict[str, Any] = {}
    task: str = ""
    session: str = ""
    sent: int = 0
    made: int = 0
    #: Why it cannot be sent: then it is not tried any more.
    error: str = ""


@system_record("agent_states")
class AgentStateRecord(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """What an agent's program keeps: the fields of a struct."""

    agent: Annotated[str, Key()]
    type: str
    version: int
    content: Annotated[dict[str, Any], Compressed()]
    changed: int = 0


#: Everything that is kept under an agent's name.
AGENT_RECORDS: tuple[type[msgspec.Struct], ...] = (
    AgentRecord,
    AgentVersion,
    AgentMailbox,
    AgentMessage,
    AgentLease,
    ToolIntent,
    AgentQuestion,
    AgentSchedule,
    AgentStateRecord,
)


def new_agent_id() -> str:
    return f"ag_{os.urandom(12).hex()}"


def version_key(agent: str, number: int) -> str:
    return f"{agent}/{numbered(number)}"


def message_key(agent: str, seq: int) -> str:
    return f"{agent}/{numbered(seq)}"


class PlacedCall(NamedTuple):
    """A tool call and its place in its reply, from 0 on: models give two calls one id."""

    place: int
    call: ToolCall


def call_key(message: str, step: int, placed: PlacedCall) -> str:
    """Of a tool call in a reply of a message: its id is the model's, and may be anything."""
    call = placed.call.id
    fit = call if call.isascii() and call.isalnum() and len(call) <= 40 else ""
    name = fit or hashlib.sha256(call.encode("utf-8", "replace")).hexdigest()[:32]
    return f"{message}/{step:04d}.{placed.place:02d}.{name}"


def labels_of(skills: tuple[str, ...], tasks: tuple[str, ...]) -> dict[str, str]:
    return {f"skill:{each}": "" for each in skills} | {f"task:{each}": "" for each in tasks}


def no_agent(name: object) -> NotFound:
    return NotFound(
        f"There is no agent {name!r}.",
        hint='Make it with bank.agent(name, prompt="…") or `perdure agent add FILE`.',
    )


def no_message(id: object) -> NotFound:
    return NotFound(f"There is no message {id!r}.", hint="`perdure agent messages` lists them.")

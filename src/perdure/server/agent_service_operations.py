"""Services for agents: registry and identity, what they did and learnt, the canon, schemas.

The registry is for everybody who may read: what an agent is called, what it can do and how its
signatures are verified. What it did and learnt is its own, and of the canon a token for one agent
reads what that agent may.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from perdure.agents.agent_identity import AgentIdentity
from perdure.agents.agent_records import AgentStatus, AgentVersion
from perdure.agents.agent_registry import AgentRegistry
from perdure.agents.agent_stats import (
    AgentMemoryRow,
    AgentPerformanceRow,
    AgentStats,
    agent_memory_table,
    agent_performance_table,
    require_known_agent,
)
from perdure.agents.canon import CanonEntry, CanonText, CanonVersion
from perdure.core.errors import MigrationFailed, SchemaMismatch
from perdure.recall.memory_records import machine, parse_key, person
from perdure.remote.api_results import ErasedContent
from perdure.server.operations import Operation, RequestBody, RequestQuery, ServerCall, TokenScope
from perdure.storage.schemas.schema_records import Schema
from perdure.storage.schemas.schema_validation import FieldProblem
from perdure.storage.schemas.type_shapes import Description

REGISTRY = "/api/v1/registry"
REGISTERED = f"{REGISTRY}/{{registered}}"
AGENT = "/api/v1/agents/{agent}"
CANON = "/api/v1/canon"
ENTRY = f"{CANON}/{{entry}}"
SCHEMA = "/api/v1/schemas/{collection}"
_Limit = Annotated[int, msgspec.Meta(ge=1, le=10_000)]
_Version = Annotated[int, msgspec.Meta(ge=1)]


class AgentsQuery(RequestQuery, frozen=True):
    """Which agents: those that have all of it."""

    skill: str = ""
    task: str = ""
    status: AgentStatus | None = None
    id: str = ""


class NewKey(RequestBody, frozen=True):
    """A public key: ``ed25519:`` and 32 bytes in base64."""

    public: str


class SignedMessage(RequestBody, frozen=True):
    """A message, and what is said to be an agent's signature of it."""

    message: str
    signature: str


class Verification(msgspec.Struct, frozen=True):
    """Whether an agent signed it."""

    verified: bool
    agent: str
    id: str


class EpisodesQuery(RequestQuery, frozen=True):
    """Which episodes."""

    session: str = ""
    task: str = ""
    success: bool | None = None
    since: str | None = None
    limit: _Limit = 50


class EpisodeSummary(msgspec.Struct, frozen=True, kw_only=True):
    """Where an episode is."""

    episode: str
    interaction: str
    session: str
    turn: int
    task: str
    success: bool
    #: Microseconds.
    ended: int


class RatingBody(RequestBody, frozen=True):
    """How good an answer was, from 0 to 1, as a person says."""

    score: Annotated[float, msgspec.Meta(ge=0, le=1)]


class TableQuery(RequestQuery, frozen=True):
    """Which rows."""

    agent: str | None = None
    since: str | None = None
    limit: _Limit = 1_000


class EntryQuery(RequestQuery, frozen=True):
    """What it said then."""

    version: _Version | None = None


class EntryBody(RequestBody, frozen=True):
    """Markdown, which may have front matter."""

    text: str
    #: Agents, or ``*``; None: as before, everybody if it is new.
    readers: list[str] | None = None
    reason: str = ""
    #: Only if it still has this version; 0: it must be new.
    expected: Annotated[int, msgspec.Meta(ge=0)] | None = None


class PromotionBody(RequestBody, frozen=True):
    """A memory that becomes an entry: ``planner/M-7``."""

    memory: str
    readers: list[str] | None = None
    reason: str = ""


class RestoreBody(RequestBody, frozen=True):
    """The version to go back to."""

    version: _Version
    reason: str = ""


class SchemaBody(RequestBody, frozen=True):
    """A type, as data: see GET /api/v1/schemas/{collection}."""

    description: Description
    schema: _Version = 1


class DataBody(RequestBody, frozen=True):
    """Plain data of a record."""

    data: dict[str, Any]


class OldDataBody(RequestBody, frozen=True):
    """Plain data of a record, of an older version of its type."""

    data: dict[str, Any]
    from_version: _Version


class ValidationResult(msgspec.Struct, frozen=True):
    """Every place where data do not fit; none if they fit."""

    ok: bool
    problems: list[FieldProblem]


class MigratedData(msgspec.Struct, frozen=True):
    """Data as the type has them now."""

    data: dict[str, Any]


def _own_agent(call: ServerCall) -> str:
    agent = call.path["agent"]
    call.require_agent(agent)
    return agent


# Registry and identity --------------------------------------------------------------------------


async def find_agents(call: ServerCall) -> list[AgentIdentity]:
    """Find agents by skill, task and status."""
    query = call.query
    found = await AgentRegistry(call.bank.store).find(
        skill=query.skill, task=query.task, status=query.status, id=query.id
    )
    return [AgentIdentity.of(each) for each in found]


async def get_agent_identity(call: ServerCall) -> AgentIdentity:
    """Who an agent is, by its name or its durable id."""
    return await call.bank.identities.get(call.path["registered"])


async def get_agent_versions(call: ServerCall) -> list[AgentVersion]:
    """The versions of an agent, the newest first."""
    return await AgentRegistry(call.bank.store).versions(_own_agent(call))


async def add_agent_key(call: ServerCall) -> AgentIdentity:
    """Let what this key signs count as the agent's."""
    return await call.bank.identities.add_key(_own_agent(call), call.body.public)


async def remove_agent_key(call: ServerCall) -> AgentIdentity:
    """Take a key back: it verifies nothing any more."""
    return await call.bank.identities.remove_key(_own_agent(call), call.path["key"])


async def verify_agent_signature(call: ServerCall) -> Verification:
    """Whether an agent signed a message with one of its keys."""
    identities, body = call.bank.identities, call.body
    identity = await identities.get(call.path["registered"])
    verified = await identities.verify(identity.name, body.message, body.signature)
    return Verification(verified, identity.name, identity.id)


# What they did ----------------------------------------------------------------------------------


async def get_agent_stats(call: ServerCall) -> AgentStats:
    """What an agent did, and learnt from it."""
    agent = _own_agent(call)
    await require_known_agent(call.bank.services, agent)
    return await call.bank.agent_memory(agent).stats()


async def get_episodes(call: ServerCall) -> list[EpisodeSummary]:
    """An agent's episodes, the newest first."""
    agent, query = _own_agent(call), call.query
    found = await call.bank.agent_memory(agent).episodes.list(
        agent,
        session=query.session,
        task=query.task,
        success=query.success,
        since=query.since,
        limit=query.limit,
    )
    if not found:
        await require_known_agent(call.bank.services, agent)
    return [
        EpisodeSummary(
            episode=each.path,
            interaction=each.interaction,
            session=each.session,
            turn=each.turn,
            task=each.task,
            success=each.success,
            ended=each.ended,
        )
        for each in found
    ]


async def get_episode(call: ServerCall) -> dict[str, Any]:
    """An episode in full, by its interaction."""
    agent = _own_agent(call)
    key = f"{agent}/{call.path['interaction'].removeprefix(f'{agent}/')}"
    return await call.bank.agent_memory(agent).episodes.read(key, agent=agent)


async def rate_interaction(call: ServerCall) -> None:
    """Rate the answer of an interaction, however late."""
    agent = _own_agent(call)
    interaction = call.path["interaction"]
    await call.bank.agent_memory(agent).interactions.rate(agent, interaction, call.body.score)


async def get_agent_memory_table(call: ServerCall) -> list[AgentMemoryRow]:
    """The table agent_memory: a row for each agent."""
    agent = call.agent_within(call.query.agent)
    return await agent_memory_table(call.bank.services, agent)


async def get_agent_performance_table(call: ServerCall) -> list[AgentPerformanceRow]:
    """The table agent_performance: a row for each interaction."""
    query = call.query
    return await agent_performance_table(
        call.bank.services, call.agent_within(query.agent), since=query.since, limit=query.limit
    )


# The canon --------------------------------------------------------------------------------------


async def get_canon(call: ServerCall) -> list[CanonEntry]:
    """The entries of the canon that the caller may read."""
    return await call.bank.canon.list(agent=call.caller.agent)


async def get_canon_entry(call: ServerCall) -> CanonText:
    """An entry of the canon with its words."""
    return await call.bank.canon.get(
        call.path["entry"], agent=call.caller.agent, version=call.query.version
    )


async def get_canon_history(call: ServerCall) -> list[CanonVersion]:
    """The versions of an entry, the newest first."""
    return await call.bank.canon.history(call.path["entry"], agent=call.caller.agent)


async def write_canon_entry(call: ServerCall) -> CanonEntry:
    """Write an entry of the canon, or its next version. A token without an agent is a person's."""
    call.require_all_agents()
    body = call.body
    return await call.bank.canon.write(
        call.path["entry"],
        body.text,
        readers=body.readers,
        reason=body.reason,
        by=person(call.caller.name),
        expected=body.expected,
    )


async def promote_memory(call: ServerCall) -> CanonEntry:
    """Make an entry of the canon of what an agent remembers."""
    body = call.body
    call.require_agent(parse_key(body.memory).rpartition("/")[0])
    name = call.caller.name
    author = person(name) if call.caller.agent is None else machine(name)
    return await call.bank.canon.promote(
        body.memory,
        name=call.path["entry"],
        readers=body.readers,
        reason=body.reason,
        by=author,
    )


async def restore_canon_entry(call: ServerCall) -> CanonEntry:
    """Go back to what a version of an entry said."""
    call.require_all_agents()
    body = call.body
    return await call.bank.canon.restore(
        call.path["entry"], body.version, by=person(call.caller.name), reason=body.reason
    )


async def remove_canon_entry(call: ServerCall) -> ErasedContent:
    """Remove an entry of the canon for good."""
    call.require_all_agents()
    return ErasedContent(
        await call.bank.canon.remove(call.path["entry"], by=person(call.caller.name))
    )


# Schemas ----------------------------------------------------------------------------------------


async def register_schema(call: ServerCall) -> Schema:
    """Register a type of which the server has no class."""
    call.require_all_agents()
    body = call.body
    return await call.bank.schemas.register_description(
        call.path["collection"], body.description, body.schema
    )


async def validate_data(call: ServerCall) -> ValidationResult:
    """Compare data with the current schema of a collection. Nothing is stored."""
    found = await call.bank.schemas.problems(call.path["collection"], call.body.data)
    return ValidationResult(not found, found)


async def migrate_data(call: ServerCall) -> MigratedData:
    """Data of an older version of a type as it has them now. Nothing is stored."""
    name, body, schemas = call.path["collection"], call.body, call.bank.schemas
    try:
        return MigratedData(await schemas.migrated(name, body.data, body.from_version))
    except MigrationFailed as exc:  # it is the caller's data that do not fit
        raise SchemaMismatch(exc.message, hint=exc.hint, field="") from exc


READ, WRITE, ADMIN = TokenScope.READ, TokenScope.WRITE, TokenScope.ADMIN
OPERATIONS = (
    Operation.of("GET", REGISTRY, find_agents, READ, query=AgentsQuery),
    Operation.of("GET", REGISTERED, get_agent_identity, READ),
    Operation.of("GET", f"{AGENT}/versions", get_agent_versions, READ),
    Operation.of("POST", f"{AGENT}/keys", add_agent_key, WRITE, body=NewKey, status=201),
    Operation.of("DELETE", f"{AGENT}/keys/{{key}}", remove_agent_key, WRITE),
    Operation.of("POST", f"{REGISTERED}/verify", verify_agent_signature, READ, body=SignedMessage),
    Operation.of("GET", f"{AGENT}/stats", get_agent_stats, READ),
    Operation.of("GET", f"{AGENT}/episodes", get_episodes, READ, query=EpisodesQuery),
    Operation.of("GET", f"{AGENT}/episodes/{{interaction}}", get_episode, READ),
    Operation.of(
        "POST",
        f"{AGENT}/episodes/{{interaction}}/rating",
        rate_interaction,
        WRITE,
        body=RatingBody,
        status=204,
    ),
    Operation.of(
        "GET", "/api/v1/tables/agent_memory", get_agent_memory_table, READ, query=TableQuery
    ),
    Operation.of(
        "GET",
        "/api/v1/tables/agent_performance",
        get_agent_performance_table,
        READ,
        query=TableQuery,
    ),
    Operation.of("GET", CANON, get_canon, READ),
    Operation.of("GET", ENTRY, get_canon_entry, READ, query=EntryQuery),
    Operation.of("PUT", ENTRY, write_canon_entry, WRITE, body=EntryBody),
    Operation.of("DELETE", ENTRY, remove_canon_entry, WRITE),
    Operation.of("GET", f"{ENTRY}/history", get_canon_history, READ),
    Operation.of("POST", f"{ENTRY}/promote", promote_memory, WRITE, body=PromotionBody),
    Operation.of("POST", f"{ENTRY}/restore", restore_canon_entry, WRITE, body=RestoreBody),
    Operation.of("PUT", SCHEMA, register_schema, ADMIN, body=SchemaBody),
    Operation.of("POST", f"{SCHEMA}/validate", validate_data, READ, body=DataBody),
    Operation.of("POST", f"{SCHEMA}/migrate", migrate_data, READ, body=OldDataBody),
)

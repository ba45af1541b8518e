"""The bank as a whole: costs, models, settings, artifacts, checks, audit, schemas, keys."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal
from urllib.parse import quote

import msgspec
from starlette.responses import PlainTextResponse, Response, StreamingResponse

from perdure.artifacts import ArtifactFault
from perdure.bank import BankInfo
from perdure.core import clock
from perdure.core.errors import Corrupted, NotFound
from perdure.gateway import model_status
from perdure.gateway.batches.batch_records import BatchView
from perdure.gateway.calls import PURPOSES, indexable
from perdure.gateway.outcomes import By, Outcome, cost_of
from perdure.history.artifact_uses import find_use
from perdure.recall.indexing.index import IndexReport
from perdure.remote.api_results import (
    ArtifactEntry,
    ArtifactList,
    BankCheck,
    CostReport,
    ModelReport,
    OutcomePage,
    SchemaSummary,
)
from perdure.server.operations import Operation, RequestBody, RequestQuery, ServerCall, TokenScope
from perdure.storage import registry
from perdure.storage.audit import TrailPage, Verdict
from perdure.storage.encryption import ScopeStanding
from perdure.storage.schemas.schema_records import Schema
from perdure.storage.schemas.schema_registry import Checked
from perdure.storage.verify import Problem

_HIDDEN = "…"
_BYTES = "application/octet-stream"
_media_type = re.compile(r"[a-z0-9][a-z0-9.+-]*/[a-z0-9][a-z0-9.+-]*", re.IGNORECASE).fullmatch


class CostsQuery(RequestQuery, frozen=True):
    """How costs are grouped, of whom, and when."""

    by: By = "model"
    agent: str | None = None
    #: Moments: ``2026-02-12``, ``30d``.
    since: str | None = "30d"
    until: str | None = None


class OutcomesQuery(RequestQuery, frozen=True):
    """Which attempts."""

    agent: str | None = None
    session: str | None = None
    limit: Annotated[int, msgspec.Meta(ge=1, le=1_000)] = 50
    after: str | None = None


class Feedback(RequestBody, frozen=True):
    """How good an answer was, and who says so."""

    #: From 0 to 1.
    score: Annotated[float, msgspec.Meta(ge=0, le=1)]
    by: Literal["user", "judge"] = "user"
    #: Why, in words.
    comment: Annotated[str, msgspec.Meta(max_length=10_000)] = ""


class ArtifactsQuery(RequestQuery, frozen=True):
    """How many are listed."""

    limit: Annotated[int, msgspec.Meta(ge=1, le=10_000)] = 50


class AuditQuery(RequestQuery, frozen=True):
    """Which entries of the trail."""

    collection: str | None = None
    key: str | None = None
    actor: str | None = None
    action: str | None = None
    since: str | None = None
    limit: Annotated[int, msgspec.Meta(ge=1, le=10_000)] = 50
    after: str | None = None


class RecordQuery(RequestQuery, frozen=True):
    """One record."""

    collection: str
    key: str


class KeysQuery(RequestQuery, frozen=True):
    """How much is told of keys."""

    #: Count the records that need each key.
    rows: bool = False


class OrphansQuery(RequestQuery, frozen=True):
    """What else is named."""

    #: Also what nothing refers to.
    orphans: bool = False


async def get_bank(call: ServerCall) -> BankInfo:
    """What the bank is, and what it holds."""
    call.require_all_agents()
    return await call.bank.info()


async def get_settings(call: ServerCall) -> dict[str, Any]:
    """The settings in force, without passwords, headers and what else may be secret."""
    call.require_all_agents()
    found = msgspec.to_builtins(call.server.config)
    found["bank"] = call.bank.url
    found["secrets"]["allow"] = [_HIDDEN for _ in found["secrets"]["allow"]]
    for provider in found["gateway"]["providers"].values():
        provider["headers"] = dict.fromkeys(provider["headers"], _HIDDEN)
    shown: dict[str, Any] = _without_passwords(found)
    return call.bank.services.mask_data(shown)


def _without_passwords(value: Any) -> Any:
    if isinstance(value, str):
        return registry.shown(value)
    if isinstance(value, dict):
        return {_without_passwords(name): _without_passwords(each) for name, each in value.items()}
    return [_without_passwords(each) for each in value] if isinstance(value, list) else value


# Costs and models -----------------------------------------------------------------------------


async def get_costs(call: ServerCall) -> CostReport:
    """What model calls took and cost, and what the budgets have left."""
    query, gateway = call.query, call.bank.gateway
    agent, now = call.agent_within(query.agent), call.bank.store.now()
    since, until = (
        None if given is None else clock.to_datetime(clock.moment(given, now))
        for given in (query.since, query.until)
    )
    rows = await gateway.costs(query.by, since=since, until=until, agent=agent)
    budgets = [each for each in await gateway.budgets() if agent in (None, each.whose)]
    return CostReport(by=query.by, since=since, rows=rows, cost=cost_of(rows), budgets=budgets)


async def get_outcomes(call: ServerCall) -> OutcomePage:
    """Attempts at models, the newest first."""
    query = call.query
    agent = call.agent_within(query.agent)
    if call.bank.services.made("gateway"):
        await call.bank.gateway.recorder.flush()
    finder = call.bank.collection(Outcome).query().order_by("-started").limit(query.limit)
    if agent is not None:
        finder = finder.where("agent", "=", indexable(agent))
    if query.session is not None:
        finder = finder.where("session", "=", indexable(query.session))
    page = await finder.page(after=query.after)
    return OutcomePage(page.values, page.next)


async def rate_outcome(call: ServerCall) -> Outcome:
    """Rate an answer from 0 to 1."""
    id, gateway = call.path["outcome"], call.bank.gateway
    await gateway.recorder.flush()
    found = await call.bank.collection(Outcome).get(id)
    if found is None or call.caller.agent not in (None, found.agent):
        raise NotFound(f"There is no outcome {id!r}.", hint="List them: GET /api/v1/outcomes.")
    await gateway.feedback(id, call.body.score, call.body.comment, by=call.body.by)
    return await call.bank.collection(Outcome).get(id) or found


async def get_models(call: ServerCall) -> ModelReport:
    """The configured models, their uses, prices and health."""
    return await _models(call, reach=False)


async def reach_models(call: ServerCall) -> ModelReport:
    """The configured models, after their servers were asked whether they are there."""
    return await _models(call, reach=True)


async def _models(call: ServerCall, *, reach: bool) -> ModelReport:
    gateway = call.bank.gateway
    return ModelReport(
        models=await model_status.models(gateway, reach=reach),
        missing=[purpose for purpose in PURPOSES if not gateway.has(purpose)],
        prices_as_of=gateway.prices.as_of.isoformat(),
    )


class BatchesQuery(RequestQuery, frozen=True):
    """Whose batches, and how many."""

    agent: str | None = None
    limit: Annotated[int, msgspec.Meta(ge=1, le=1_000)] = 50


async def get_batches(call: ServerCall) -> list[BatchView]:
    """Batches of requests to models, the newest first."""
    query = call.query
    agent = call.agent_within(query.agent)
    found = await call.bank.gateway.batch.list(limit=query.limit, agent=agent)
    return [BatchView.of(record) for record in found]


# Artifacts ------------------------------------------------------------------------------------


async def get_artifacts(call: ServerCall) -> ArtifactList:
    """Artifacts, what they take, and how many refer to each."""
    call.require_all_agents()
    artifacts, limit = call.bank.artifacts, call.query.limit
    listed, count, size = list[ArtifactEntry](), 0, 0
    async for found in artifacts.located():
        count, size = count + 1, size + found.bytes
        if len(listed) < limit:
            entry = ArtifactEntry(
                artifact=found.artifact,
                place=str(found.place),
                put=found.modified_us,
                bytes=found.bytes,
                references=await artifacts.count(found.artifact),
            )
            listed.append(entry)
    return ArtifactList(place=str(artifacts.place), count=count, bytes=size, artifacts=listed)


async def get_artifact(call: ServerCall) -> Response:
    """The bytes of an artifact (sha256:…), with its media type.

    To be saved, never shown: its bytes are whatever a tool or a web page said.
    """
    artifact, agent = call.path["artifact"], call.caller.agent
    use = await find_use(call.bank.store, artifact, agent)
    if use is None and agent is not None:
        raise NotFound("There is no such artifact that you may see.", hint="Turns name them.")
    await call.bank.artifacts.size(artifact)  # raises, if it is not there, before headers are sent
    name = use.filename if use is not None and use.filename else artifact.replace(":", "-")
    kind = use.media_type if use is not None and _media_type(use.media_type) else _BYTES
    headers = {
        "content-disposition": f"attachment; filename*=UTF-8''{quote(name, safe='')}",
        "x-content-type-options": "nosniff",
        "content-security-policy": "default-src 'none'; sandbox",
    }
    return StreamingResponse(call.bank.artifacts.stream(artifact), headers=headers, media_type=kind)


# Checks ---------------------------------------------------------------------------------------


async def check_bank(call: ServerCall) -> BankCheck:
    """Check every record and artifact. Takes long for a large bank."""
    call.require_all_agents()
    checked, problems = dict[str, int](), list[Problem]()
    try:
        async for problem in call.bank.verify(lambda what, done, _: checked.update({what: done})):
            problems.append(problem)
    except Corrupted as exc:  # so deep that the rest cannot be checked: what was looked for, too
        problems.append(Problem("store", exc.message))
    return BankCheck(not problems, sum(checked.values()), problems)


async def check_index(call: ServerCall) -> IndexReport:
    """Compare the search index with the log."""
    call.require_all_agents()
    return await call.bank.index.check()


async def check_artifacts(call: ServerCall) -> list[ArtifactFault]:
    """Artifacts that cannot be read back as they were put."""
    call.require_all_agents()
    found = call.bank.artifacts.check(referred=True, orphans=call.query.orphans)
    return [fault async for fault in found]


async def check_schema(call: ServerCall) -> Checked:
    """Compare every record of a collection with its schema."""
    call.require_all_agents()
    return await call.bank.schemas.check(call.path["collection"])


async def get_audit(call: ServerCall) -> TrailPage:
    """Who did what to which record, the newest first."""
    call.require_all_agents()
    query, now = call.query, call.bank.store.now()
    since = None if query.since is None else clock.to_datetime(clock.moment(query.since, now))
    return await call.bank.audit.entries(
        collection=query.collection,
        key=query.key,
        actor=query.actor,
        action=query.action,
        since=since,
        limit=query.limit,
        newest_first=True,
        after=query.after,
    )


async def check_audit(call: ServerCall) -> Verdict:
    """Whether the entries of a record join: else it was changed without one."""
    call.require_all_agents()
    return await call.bank.audit.verify(call.query.collection, call.query.key)


async def get_schemas(call: ServerCall) -> list[SchemaSummary]:
    """The record types of the bank."""
    call.require_all_agents()
    store = call.bank.store
    rows = {size.collection: size.rows for size in await store.adapter.sizes()}
    found = [await store.schemas.describe(name) for name in await store.schemas.collections()]
    return [
        SchemaSummary(
            collection=schema.collection,
            type=schema.current.description.name,
            schema=schema.current.schema,
            serializer=schema.current.serializer,
            since=schema.current.since,
            records=rows.get(schema.collection, 0),
        )
        for schema in found
    ]


async def get_schema(call: ServerCall) -> Schema:
    """The fields of a collection's records, and how they changed."""
    call.require_all_agents()
    return await call.bank.schemas.describe(call.path["collection"])


async def get_schema_proto(call: ServerCall) -> Response:
    """The .proto file of a collection whose serializer is protobuf."""
    call.require_all_agents()
    return PlainTextResponse(await call.bank.schemas.proto(call.path["collection"]))


async def get_keys(call: ServerCall) -> list[ScopeStanding]:
    """Data keys, and the master keys that they are wrapped with. Never a key itself."""
    call.require_all_agents()
    return await call.bank.encryption.status(rows=call.query.rows)


OPERATIONS = (
    Operation.of("GET", "/api/v1/bank", get_bank, TokenScope.READ),
    Operation.of("GET", "/api/v1/settings", get_settings, TokenScope.READ),
    Operation.of("GET", "/api/v1/costs", get_costs, TokenScope.READ, query=CostsQuery),
    Operation.of("GET", "/api/v1/outcomes", get_outcomes, TokenScope.READ, query=OutcomesQuery),
    Operation.of(
        "POST", "/api/v1/outcomes/{outcome}/feedback", rate_outcome, TokenScope.WRITE, body=Feedback
    ),
    Operation.of("GET", "/api/v1/models", get_models, TokenScope.READ),
    Operation.of("POST", "/api/v1/models/reach", reach_models, TokenScope.ADMIN),
    Operation.of("GET", "/api/v1/batches", get_batches, TokenScope.READ, query=BatchesQuery),
    Operation.of("GET", "/api/v1/artifacts", get_artifacts, TokenScope.ADMIN, query=ArtifactsQuery),
    Operation.of(
        "GET", "/api/v1/artifacts/{artifact}", get_artifact, TokenScope.READ, produces=_BYTES
    ),
    Operation.of("GET", "/api/v1/checks/bank", check_bank, TokenScope.ADMIN),
    Operation.of("GET", "/api/v1/checks/index", check_index, TokenScope.ADMIN),
    Operation.of(
        "GET", "/api/v1/checks/artifacts", check_artifacts, TokenScope.ADMIN, query=OrphansQuery
    ),
    Operation.of("GET", "/api/v1/checks/schemas/{collection}", check_schema, TokenScope.ADMIN),
    Operation.of("GET", "/api/v1/checks/audit", check_audit, TokenScope.ADMIN, query=RecordQuery),
    Operation.of("GET", "/api/v1/audit", get_audit, TokenScope.ADMIN, query=AuditQuery),
    Operation.of("GET", "/api/v1/schemas", get_schemas, TokenScope.ADMIN),
    Operation.of("GET", "/api/v1/schemas/{collection}", get_schema, TokenScope.ADMIN),
    Operation.of(
        "GET",
        "/api/v1/schemas/{collection}/proto",
        get_schema_proto,
        TokenScope.ADMIN,
        produces="text/plain",
    ),
    Operation.of("GET", "/api/v1/keys", get_keys, TokenScope.ADMIN, query=KeysQuery),
)

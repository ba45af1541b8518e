"""Prompts and what stands in them: contexts explained, recall, the board, tools, renditions."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from perdure.context.board import BoardEntry
from perdure.context.history_tools import HISTORY_TOOLS, MEMORY_TOOLS
from perdure.context.prompt_encoder import Wire
from perdure.core.errors import NotFound
from perdure.core.levels import Level
from perdure.core.messages import Message
from perdure.gateway.calls import Tool
from perdure.history.epochs import Epoch
from perdure.history.log_records import SessionRecord, agent_of
from perdure.history.renditions.rendition_status import RenditionStatus
from perdure.recall.values import Recalled
from perdure.remote.api_results import EpochSummary, ExplainedContext, ToolAnswer
from perdure.server.operations import Operation, RequestBody, RequestQuery, ServerCall, TokenScope
from perdure.server.session_operations import SESSION, open_session
from perdure.server.turn_operations import TURN, turn_of

OneOrMore = str | list[str] | None


class PromptRequest(RequestBody, frozen=True):
    """The next prompt; see `Session.context`."""

    #: A text, or a user's messages in any wire format. Without it, the open turn goes on.
    prompt: Any = None
    #: Or as Perdure's own canonical messages.
    canonical: tuple[Message, ...] = ()
    system: str = ""
    #: In the form of any API.
    tools: tuple[dict[str, Any], ...] = ()
    #: Or as Perdure's own.
    canonical_tools: tuple[Tool, ...] = ()
    #: Offer the tools by which a model reaches its past.
    history_tools: bool = False
    model: str = ""
    budget: int | None = None
    recall: bool = True
    reminders: tuple[str, ...] = ()
    #: Show it so, instead of as the session does.
    strategy: str | None = None
    #: The turn that the caller wrote to last.
    continues: str | int | None = None
    #: Add the body of a request to such an API.
    wire: Wire | None = None
    #: Add all that it is made of, so that a client can encode it for any API.
    parts: bool = False


class PastQuery(RequestQuery, frozen=True):
    """What to add to the explanation."""

    wire: Wire | None = None
    parts: bool = False


class RecallRequest(RequestBody, frozen=True):
    """A question about the past; see `Session.recall`."""

    query: str
    limit: Annotated[int, msgspec.Meta(ge=1, le=1_000)] = 10
    kinds: OneOrMore = None
    agents: OneOrMore = None
    sessions: OneOrMore = None
    line: bool = False
    roles: OneOrMore = None
    tools: OneOrMore = None
    branch: str = ""
    task: str = ""
    outcome: str = ""
    tags: dict[str, str] | None = None
    since: str | None = None
    until: str | None = None
    deadline: Annotated[float, msgspec.Meta(gt=0, le=60)] | None = None
    wide: bool = False
    judged: bool = False


class FidelityRequest(RequestBody, frozen=True):
    """The level that is wished for."""

    level: Level
    #: From the next request on; else from the next epoch on.
    now: bool = False


class ToolRequest(RequestBody, frozen=True):
    """The arguments of a tool call."""

    #: As the model wrote them: JSON, or an object.
    arguments: str | dict[str, Any] = {}


class RenditionsQuery(RequestQuery, frozen=True):
    """Of one agent, or of all."""

    agent: str | None = None


async def compose_context(call: ServerCall) -> ExplainedContext:
    """The prompt to send to a model next, explained. Its injection and epoch are kept."""
    return await _compose(call, keep=True)


async def preview_context(call: ServerCall) -> ExplainedContext:
    """The prompt to send to a model next, explained. Leaves no trace. Where models judge what is
    recalled, which costs money, the token must have the scope write, or leave `recall` out.
    """
    if call.body.recall:
        _require_paid_recall(call)
    return await _compose(call, keep=False)


def _require_paid_recall(call: ServerCall) -> None:
    """A token that may only read spends nothing. Raises `Denied`."""
    gateway = call.bank.gateway
    if gateway.has("filter") or gateway.has("judge"):
        call.require(TokenScope.WRITE)


async def _compose(call: ServerCall, *, keep: bool) -> ExplainedContext:
    session, body = await open_session(call), call.body
    if body.continues is not None:
        await session.resume(body.continues)
    context = await session.context(
        body.canonical or body.prompt,
        system=body.system,
        tools=(*body.tools, *body.canonical_tools, *(HISTORY_TOOLS if body.history_tools else ())),
        model=body.model,
        budget=body.budget,
        recall=body.recall,
        keep=keep,
        reminders=body.reminders,
        strategy=body.strategy,
    )
    return ExplainedContext.of(context, body.wire, parts=body.parts)


async def get_past_context(call: ServerCall) -> ExplainedContext:
    """What was sent for a turn, or a round of it, byte for byte."""
    session = await open_session(call)
    context = await session.past_context(turn_of(call))
    call.require_agent(agent_of(context.session))  # of a shared turn, its owner's model was asked
    return ExplainedContext.of(context, call.query.wire, parts=call.query.parts)


async def get_epochs(call: ServerCall) -> list[EpochSummary]:
    """When and why the gradient was recalculated."""
    return [EpochSummary.of(each) for each in await (await open_session(call)).epochs()]


async def get_epoch(call: ServerCall) -> Epoch:
    """One recalculation with its result."""
    for each in await (await open_session(call)).epochs():
        if str(each.number) == call.path["number"]:
            return each
    raise NotFound("There is no such epoch.", hint="List them: GET …/epochs.")


async def set_fidelity(call: ServerCall) -> ToolAnswer:
    """Show a turn at another level from now on."""
    session, body = await open_session(call), call.body
    return ToolAnswer(await session.set_fidelity(turn_of(call), body.level, now=body.now))


async def recall_session(call: ServerCall) -> Recalled:
    """Search past turns, memories and reference layers by text and meaning, explained. Where models
    judge what was found, which costs money, the token must have the scope write.
    """
    if call.body.judged:
        _require_paid_recall(call)
    session = await open_session(call)
    asked = {name: getattr(call.body, name) for name in call.body.__struct_fields__}
    return await session.recall(asked.pop("query"), **asked)


async def get_board(call: ServerCall) -> list[BoardEntry]:
    """The notes near the prompt. Tools post and clear them."""
    return list(await (await open_session(call)).board())


async def get_tools(_call: ServerCall) -> list[Tool]:
    """The tools by which a model reaches its past and its memories."""
    return [*HISTORY_TOOLS, *MEMORY_TOOLS]


async def run_tool(call: ServerCall) -> ToolAnswer:
    """Run one of these tools for a model. Never fails for what the model wrote."""
    session = await open_session(call)
    return ToolAnswer(await session.run_tool(call.path["tool"], call.body.arguments))


async def get_renditions(call: ServerCall) -> list[RenditionStatus]:
    """How the shortened forms of turns stand, and what they cost."""
    agent, status = call.agent_within(call.query.agent), call.bank.services.renditions.status
    if agent is None:
        return await status()
    records = call.bank.collection(SessionRecord).query().where("agent", "=", agent)
    return [each for record in await records.values() for each in await status(record.id)]


async def get_session_renditions(call: ServerCall) -> RenditionStatus:
    """How the shortened forms of a session's turns stand."""
    session = await open_session(call)
    (found,) = await call.bank.services.renditions.status(session.name)
    return found


async def make_renditions(call: ServerCall) -> RenditionStatus:
    """Make the renditions of a session that are missing."""
    session = await open_session(call)
    await call.bank.services.renditions.catch_up(session.record)
    return await get_session_renditions(call)


OPERATIONS = (
    Operation.of(
        "POST", f"{SESSION}/context", compose_context, TokenScope.WRITE, body=PromptRequest
    ),
    Operation.of(
        "POST", f"{SESSION}/context/preview", preview_context, TokenScope.READ, body=PromptRequest
    ),
    Operation.of("GET", f"{TURN}/context", get_past_context, TokenScope.READ, query=PastQuery),
    Operation.of("GET", f"{SESSION}/epochs", get_epochs, TokenScope.READ),
    Operation.of("GET", f"{SESSION}/epochs/{{number}}", get_epoch, TokenScope.READ),
    Operation.of("POST", f"{TURN}/fidelity", set_fidelity, TokenScope.WRITE, body=FidelityRequest),
    Operation.of("POST", f"{SESSION}/recall", recall_session, TokenScope.READ, body=RecallRequest),
    Operation.of("GET", f"{SESSION}/board", get_board, TokenScope.READ),
    Operation.of("GET", "/api/v1/tools", get_tools, TokenScope.READ),
    Operation.of("POST", f"{SESSION}/tools/{{tool}}", run_tool, TokenScope.WRITE, body=ToolRequest),
    Operation.of(
        "GET", "/api/v1/renditions", get_renditions, TokenScope.READ, query=RenditionsQuery
    ),
    Operation.of("GET", f"{SESSION}/renditions", get_session_renditions, TokenScope.READ),
    Operation.of("POST", f"{SESSION}/renditions", make_renditions, TokenScope.WRITE),
)

"""Agents over HTTP: messages, questions, state, schedules. Partial answers are also live events of
the session (see `live_events`); docs/agents.md.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Annotated, Any, Literal

import msgspec
from starlette.responses import Response, StreamingResponse

from perdure.agents.agent import Agent
from perdure.agents.agent_records import (
    AgentMessage,
    AgentQuestion,
    AgentSchedule,
    MessageState,
    message_key,
)
from perdure.core.errors import DeadlineExceeded, InvalidInput, PerdureError
from perdure.core.messages import ToolResult
from perdure.gateway.calls import CallBegan, ReasoningDelta, TextDelta
from perdure.server.error_answers import answer_of
from perdure.server.operations import (
    JSON,
    Operation,
    RequestBody,
    RequestQuery,
    ServerCall,
    TokenScope,
)

AGENT = "/api/v1/agents/{agent}"
_STREAM = "text/event-stream"
_encode = msgspec.json.Encoder().encode


class NewAgentMessage(RequestBody, frozen=True, kw_only=True):
    """What an agent is asked."""

    message: Annotated[str, msgspec.Meta(min_length=1)]
    task: str = ""
    #: Plain data that its model sees with the message.
    context: dict[str, Any] = {}
    session: str = ""
    #: Sent again with the same key, it is done once.
    key: str | None = None
    #: Wait for the reply, read it as it arrives, or neither.
    answer: Literal["reply", "stream", "accepted"] = "reply"
    #: Seconds to wait for the reply; the message is done all the same.
    deadline: Annotated[float, msgspec.Meta(gt=0, le=3_600)] = 60.0


class AgentMessagesQuery(RequestQuery, frozen=True):
    """Which messages, the newest first."""

    state: MessageState | None = None
    limit: Annotated[int, msgspec.Meta(ge=1, le=10_000)] = 50


class QuestionAnswer(RequestBody, frozen=True, kw_only=True):
    """What a person says."""

    #: Its id.
    question: str
    text: str = ""
    #: Whether a call is allowed.
    approve: bool = True


class AgentStateInfo(msgspec.Struct, frozen=True):
    """What an agent's program keeps."""

    version: int
    content: dict[str, Any]


class NewAgentState(RequestBody, frozen=True, kw_only=True):
    """What it is to keep instead."""

    content: dict[str, Any]
    #: Only if it still has this version.
    expected: int | None = None


class NewSchedule(RequestBody, frozen=True, kw_only=True):
    """A message that is sent later, or again and again."""

    #: ``10m``, a time, or a cron expression.
    when: str | None = None
    every: str | None = None
    message: Annotated[str, msgspec.Meta(min_length=1)]
    timezone: str = ""
    task: str = ""
    context: dict[str, Any] = {}
    session: str = ""


async def _agent(call: ServerCall) -> Agent:
    """Raises `Denied`, `NotFound`."""
    call.require_agent(call.path["agent"])
    return await call.bank.agents.get(call.path["agent"])


async def send_agent_message(call: ServerCall) -> Response:
    """Ask an agent: wait for its reply, stream it, or have the message accepted.

    200 with the message once it is over or asks a person, 202 while it is not.
    """
    agent, body = await _agent(call), call.body
    settings = {"task": body.task, "context": body.context, "session": body.session}
    if body.answer == "stream":
        stream = _streamed(agent, body.message, body.key, settings)
        return StreamingResponse(stream, media_type=_STREAM, headers={"x-accel-buffering": "no"})
    found = await agent.send(body.message, key=body.key, **settings)
    if body.answer == "reply":
        try:
            found = await call.bank.agents.wait(found.id, deadline=body.deadline)
        except DeadlineExceeded:
            found = await call.bank.agents.mailboxes.get(found.id)
    over = found.is_over or found.state == "asking"
    return Response(_encode(found), status_code=200 if over else 202, media_type=JSON)


async def _streamed(
    agent: Agent, message: str, key: str | None, settings: dict[str, Any]
) -> AsyncIterator[bytes]:
    try:
        async with agent.stream(message, key=key, **settings) as stream:
            async for delta in stream:
                if (said := _said(delta)) is not None:
                    yield _event(said)
            yield _event({"type": "reply", "message": stream.reply.message})
    except PerdureError as exc:
        yield _event({"type": "error", "error": answer_of(exc).error})


def _said(delta: object) -> dict[str, Any] | None:
    if isinstance(delta, TextDelta):
        return {"type": "text", "text": delta.text}
    if isinstance(delta, ReasoningDelta):
        return {"type": "reasoning", "text": delta.text}
    if isinstance(delta, CallBegan):
        return {"type": "call", "id": delta.id, "name": delta.name}
    if isinstance(delta, ToolResult):
        return {"type": "result", "id": delta.call, "name": delta.name, "text": delta.text}
    return None


def _event(data: dict[str, Any]) -> bytes:
    return b"data: " + _encode(data) + b"\n\n"


async def get_agent_messages(call: ServerCall) -> list[AgentMessage]:
    """The messages of an agent, the newest first."""
    agent, state = await _agent(call), call.query.state
    states = () if state is None else (state,)
    return await call.bank.agents.mailboxes.list(agent.name, states=states, limit=call.query.limit)


async def get_agent_message(call: ServerCall) -> AgentMessage:
    """A message, and what became of it."""
    agent, number = await _agent(call), call.path["number"]
    if not (number.isascii() and number.isdecimal()) or len(number) > 8:
        raise InvalidInput(f"{number!r} is no number of a message.", hint="Write 12.")
    return await call.bank.agents.mailboxes.get(message_key(agent.name, int(number)))


async def get_agent_questions(call: ServerCall) -> list[AgentQuestion]:
    """What an agent asks people, the oldest first."""
    return await (await _agent(call)).questions()


async def answer_agent_question(call: ServerCall) -> AgentQuestion:
    """Answer a question, or allow a call; its turn goes on."""
    agent, body = await _agent(call), call.body
    if not body.question.startswith(f"{agent.name}/"):
        raise InvalidInput(f"{body.question!r} is no question of {agent.name}.", hint="Use its id.")
    return await agent.answer(body.question, body.text, approve=body.approve, by=call.caller.name)


async def get_agent_state(call: ServerCall) -> AgentStateInfo:
    """What an agent's program keeps."""
    state = (await _agent(call)).state
    return AgentStateInfo(await state.version(), await state.get())


async def put_agent_state(call: ServerCall) -> AgentStateInfo:
    """Replace what an agent's program keeps."""
    agent, body = await _agent(call), call.body
    content = call.bank.services.mask_data(body.content)
    return AgentStateInfo(await agent.state.put(content, expected=body.expected), content)


async def get_agent_schedules(call: ServerCall) -> list[AgentSchedule]:
    """What will be sent to an agent, the next first."""
    return await (await _agent(call)).schedules()


async def add_agent_schedule(call: ServerCall) -> AgentSchedule:
    """Send a message to an agent later, or again and again."""
    from perdure.agents.schedules import moment_in

    agent, body = await _agent(call), call.body
    when = None if body.when is None else moment_in(body.when)[0]
    return await agent.schedule(
        when,
        body.message,
        every=body.every,
        timezone=body.timezone,
        task=body.task,
        context=body.context,
        session=body.session,
    )


async def cancel_agent_schedule(call: ServerCall) -> None:
    """Do not send it any more."""
    agent = await _agent(call)
    await agent.cancel_schedule(f"{agent.name}/{call.path['schedule']}")


READ, WRITE = TokenScope.READ, TokenScope.WRITE
OPERATIONS = (
    Operation.of(
        "POST",
        f"{AGENT}/messages",
        send_agent_message,
        WRITE,
        body=NewAgentMessage,
        produces=f"{JSON}, {_STREAM}",
    ),
    Operation.of("GET", f"{AGENT}/messages", get_agent_messages, READ, query=AgentMessagesQuery),
    Operation.of("GET", f"{AGENT}/messages/{{number}}", get_agent_message, READ),
    Operation.of("GET", f"{AGENT}/questions", get_agent_questions, READ),
    Operation.of("POST", f"{AGENT}/answers", answer_agent_question, WRITE, body=QuestionAnswer),
    Operation.of("GET", f"{AGENT}/state", get_agent_state, READ),
    Operation.of("PUT", f"{AGENT}/state", put_agent_state, WRITE, body=NewAgentState),
    Operation.of("GET", f"{AGENT}/schedules", get_agent_schedules, READ),
    Operation.of(
        "POST", f"{AGENT}/schedules", add_agent_schedule, WRITE, body=NewSchedule, status=201
    ),
    Operation.of("DELETE", f"{AGENT}/schedules/{{schedule}}", cancel_agent_schedule, WRITE),
)

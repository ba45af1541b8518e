"""Agents over the network: messages, state, schedules, questions.

A message is accepted before anything is answered. ``mode`` says what the answer to the request is:
``wait`` for the reply (or until ``deadline``: then the message goes on, and the answer says so),
``stream`` it as the AI SDK's UI message stream, or ``accept`` and be done. The server does the
messages of every agent that has no tools of Python; those of others are done by the processes that
have the tools. Partial answers are heard on ``/api/v1/live``, as those of any session.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Annotated, Any, Literal

import msgspec
from starlette.responses import Response, StreamingResponse

from perdure.agents.agent import Agent, AgentReply, AgentStream
from perdure.agents.agent_records import AgentRecord, MessageState, message_key
from perdure.context.history_tools import HISTORY_TOOLS
from perdure.core.errors import Conflict, DeadlineExceeded, InvalidInput, PerdureError
from perdure.server.agent_views import MessageView, QuestionView, ScheduleView, message_view
from perdure.server.answer_chunks import END_OF_STREAM, AgentChunks, server_sent
from perdure.server.operations import (
    JSON,
    Operation,
    RequestBody,
    RequestQuery,
    ServerCall,
    TokenScope,
)
from perdure.wire.ui.message_stream import STREAM_HEADER, UIMessageStream

AGENT = "/api/v1/agents/{agent}"
MESSAGE = f"{AGENT}/messages/{{number}}"
_STREAM = "text/event-stream"
#: Seconds that a request waits for a reply, unless it says otherwise; at most an hour.
_PATIENCE = 120.0


class MessageBody(RequestBody, frozen=True):
    """A message to an agent."""

    message: str
    task: str = ""
    #: Plain data that is shown to the model with the message.
    context: dict[str, Any] | None = None
    #: The conversation that it belongs to; ``main`` by default.
    session: str = ""
    #: Sent again to this agent with the same key, by whomever, it is accepted once, and the first
    #: one's reply is answered: clients that share an agent need keys of their own.
    key: str | None = None
    mode: Literal["wait", "stream", "accept"] = "wait"
    #: Seconds to wait.
    deadline: Annotated[float, msgspec.Meta(gt=0, le=3_600)] = _PATIENCE


class MessagesQuery(RequestQuery, frozen=True):
    """Which messages, the newest first."""

    state: MessageState | None = None
    limit: Annotated[int, msgspec.Meta(ge=1, le=1_000)] = 100


class ScoreBody(RequestBody, frozen=True):
    """How good a reply was, from 0 to 1, as a person says, and why."""

    score: Annotated[float, msgspec.Meta(ge=0, le=1)]
    note: str = ""


class StateView(msgspec.Struct, frozen=True):
    """What an agent's program keeps."""

    version: int
    state: dict[str, Any]


class StateBody(RequestBody, frozen=True):
    """What it is to keep from now on."""

    state: dict[str, Any]
    #: Only if it still has this version.
    expected: Annotated[int, msgspec.Meta(ge=0)] | None = None


class ScheduleBody(RequestBody, frozen=True):
    """A message that is sent later: after a delay (``10m``), at a moment (``2027-01-31T09:00``),
    by a cron expression, or every so often.
    """

    message: str
    when: str | Annotated[float, msgspec.Meta(ge=0)] | None = None
    every: str | Annotated[float, msgspec.Meta(gt=0)] | None = None
    timezone: str = ""
    task: str = ""
    context: dict[str, Any] | None = None
    session: str = ""


class AnswerBody(RequestBody, frozen=True):
    """What a person says to a question; whether a call is allowed."""

    text: str = ""
    approve: bool = True


async def send_message(call: ServerCall) -> Response:
    """Send a message to an agent: wait for its reply, stream it, or have it accepted."""
    body: MessageBody = call.body
    agent = await _agent(call)
    said: dict[str, Any] = {
        "task": body.task,
        "context": body.context,
        "session": body.session,
        "key": body.key,
    }
    if body.mode == "stream":
        stream = agent.stream(body.message, **said)
        await stream.__aenter__()  # accepted, or refused with a status
        return StreamingResponse(_chunks(stream), headers=dict([STREAM_HEADER]), media_type=_STREAM)
    message = await agent.send(body.message, **said)
    if body.mode == "wait":
        try:
            message = await agent.agents.wait(message.id, deadline=body.deadline)
        except DeadlineExceeded:
            message = await agent.agents.mailboxes.get(message.id)
    return Response(msgspec.json.encode(await message_view(agent, message)), media_type=JSON)


async def get_agent_messages(call: ServerCall) -> list[MessageView]:
    """Messages of an agent, the newest first."""
    query: MessagesQuery = call.query
    agent = await _agent(call)
    states = () if query.state is None else (query.state,)
    found = await agent.agents.mailboxes.list(agent.name, states=states, limit=query.limit)
    return [await message_view(agent, each) for each in found]


async def get_agent_message(call: ServerCall) -> MessageView:
    """A message and what became of it."""
    agent = await _agent(call)
    return await message_view(agent, await agent.agents.mailboxes.get(_message_id(call)))


async def retry_agent_message(call: ServerCall) -> MessageView:
    """Have a parked message done after all."""
    agent = await _agent(call)
    return await message_view(agent, await agent.retry(_message_id(call)))


async def cancel_agent_message(call: ServerCall) -> MessageView:
    """Take back a message that has not begun, or that was parked."""
    agent = await _agent(call)
    return await message_view(agent, await agent.agents.mailboxes.cancel(_message_id(call)))


async def rate_agent_message(call: ServerCall) -> None:
    """Rate a reply: what the choice of models is learnt from."""
    body: ScoreBody = call.body
    agent = await _agent(call)
    message = await agent.agents.mailboxes.get(_message_id(call))
    if message.state != "done":
        raise Conflict(
            "perdure_agent_messages",
            message.id,
            message=f"The message {message.id} is {message.state}: it has no reply to be rated.",
            hint="Rate it when it is done.",
        )
    await AgentReply(agent.agents, message).feedback(body.score, body.note)


async def get_agent_state(call: ServerCall) -> StateView:
    """What an agent's program keeps, and its version."""
    agent = await _agent(call)
    return StateView(await agent.state.version(), await agent.state.get())


async def put_agent_state(call: ServerCall) -> StateView:
    """Change what an agent's program keeps."""
    body: StateBody = call.body
    agent = await _agent(call)
    plain = call.bank.services.mask_data(body.state)
    return StateView(await agent.state.put(plain, expected=body.expected), plain)


async def get_agent_schedules(call: ServerCall) -> list[ScheduleView]:
    """What will be sent to an agent, the next one first."""
    return [ScheduleView.of(each) for each in await (await _agent(call)).schedules()]


async def add_agent_schedule(call: ServerCall) -> ScheduleView:
    """Send a message to an agent later, or again and again."""
    body: ScheduleBody = call.body
    made = await (await _agent(call)).schedule(
        body.when,
        body.message,
        every=body.every,
        timezone=body.timezone,
        task=body.task,
        context=body.context,
        session=body.session,
    )
    return ScheduleView.of(made)


async def cancel_agent_schedule(call: ServerCall) -> None:
    """Send it no more."""
    agent = await _agent(call)
    await agent.cancel_schedule(f"{agent.name}/{call.path['schedule']}")


async def get_agent_questions(call: ServerCall) -> list[QuestionView]:
    """What an agent asks people, the oldest first."""
    return [QuestionView.of(each) for each in await (await _agent(call)).questions()]


async def answer_agent_question(call: ServerCall) -> QuestionView:
    """Answer a question, or allow a call or not; its turn goes on."""
    body: AnswerBody = call.body
    agent = await _agent(call)
    question = f"{_message_id(call)}/{call.path['question']}"
    return QuestionView.of(
        await agent.answer(question, body.text, approve=body.approve, by=call.caller.name)
    )


async def pause_agent(call: ServerCall) -> AgentRecord:
    """Accept messages and let them wait; the one under way goes on."""
    return await call.bank.agents.pause((await _agent(call)).name)


async def resume_agent(call: ServerCall) -> AgentRecord:
    """Work again, after a pause or a retirement."""
    return await call.bank.agents.resume((await _agent(call)).name)


async def _agent(call: ServerCall) -> Agent:
    name = call.path["agent"]
    call.require_agent(name)
    return await call.bank.agents.get(name)


def _message_id(call: ServerCall) -> str:
    number = call.path["number"]
    if not (number.isascii() and number.isdecimal()):
        raise InvalidInput(f"{number!r} is no number of a message.", hint="They count from 1.")
    return message_key(call.path["agent"], int(number))


async def _chunks(stream: AgentStream) -> AsyncIterator[bytes]:
    """Whoever leaves early ends the reading, not the message."""
    tools = frozenset(tool.name for tool in HISTORY_TOOLS)
    said = AgentChunks(UIMessageStream(stream.message.id, own=tools))
    try:
        yield server_sent(said.stream.start({"message": stream.message.id}))
        async for what in stream:
            yield server_sent(said.heard(what))
        reply = stream.reply
        facts = {
            "session": reply.session,
            "turn": f"T-{reply.turn}",
            "state": reply.state,
            "model": reply.model,
            "cost": reply.cost,
            "questions": [each.id for each in reply.questions],
        }
        reason: Literal["stop", "tool-calls"] = "stop" if reply.state == "done" else "tool-calls"
        yield server_sent([*said.end_step(), *said.stream.finish(reason, facts)])
    except PerdureError as exc:
        yield server_sent([*said.stream.error(str(exc)), *said.stream.finish("error")])
    finally:
        await stream.__aexit__()
    yield END_OF_STREAM


_READ, _WRITE = TokenScope.READ, TokenScope.WRITE
OPERATIONS = (
    Operation.of(
        "POST",
        f"{AGENT}/messages",
        send_message,
        _WRITE,
        body=MessageBody,
        produces=f"{JSON}, {_STREAM}",
    ),
    Operation.of("GET", f"{AGENT}/messages", get_agent_messages, _READ, query=MessagesQuery),
    Operation.of("GET", MESSAGE, get_agent_message, _READ),
    Operation.of("DELETE", MESSAGE, cancel_agent_message, _WRITE),
    Operation.of("POST", f"{MESSAGE}/retry", retry_agent_message, _WRITE),
    Operation.of("POST", f"{MESSAGE}/rating", rate_agent_message, _WRITE, body=ScoreBody),
    Operation.of(
        "POST",
        f"{MESSAGE}/questions/{{question}}",
        answer_agent_question,
        _WRITE,
        body=AnswerBody,
    ),
    Operation.of("POST", f"{AGENT}/pause", pause_agent, _WRITE),
    Operation.of("POST", f"{AGENT}/resume", resume_agent, _WRITE),
    Operation.of("GET", f"{AGENT}/questions", get_agent_questions, _READ),
    Operation.of("GET", f"{AGENT}/state", get_agent_state, _READ),
    Operation.of("PUT", f"{AGENT}/state", put_agent_state, _WRITE, body=StateBody),
    Operation.of("GET", f"{AGENT}/schedules", get_agent_schedules, _READ),
    Operation.of(
        "POST", f"{AGENT}/schedules", add_agent_schedule, _WRITE, body=ScheduleBody, status=201
    ),
    Operation.of("DELETE", f"{AGENT}/schedules/{{schedule}}", cancel_agent_schedule, _WRITE),
)

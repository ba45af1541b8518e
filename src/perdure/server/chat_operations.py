"""``POST /api/v1/sessions/{agent}/{name}/chat``: a turn with a model, as `useChat` front ends ask.

The body is what the AI SDK's `DefaultChatTransport` sends (``id``, ``messages``, ``trigger``,
``messageId``, and whatever else a front end adds), or a plain ``{"prompt": …}``. The bank has the
history: of ``messages`` only what is new counts, which is what the user says at their end, or the
results of tools that the client ran. See docs/chat.md.
"""

from __future__ import annotations

import asyncio
from typing import Annotated, Any, Literal
from weakref import WeakValueDictionary

import msgspec
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Send
from starlette.types import Scope as Connection

from perdure.context.context import checked_tools
from perdure.core.errors import Conflict, InvalidInput
from perdure.core.messages import Message, ToolResult
from perdure.core.turns import Position, Turn, is_prompt
from perdure.gateway.calls import CallOptions, Effort
from perdure.history.log_records import newest
from perdure.server.chat_run import ChatRun
from perdure.server.operations import Operation, ServerCall, ServerState, TokenScope
from perdure.sessions.model_conversation import ConversationOptions
from perdure.sessions.session import Session
from perdure.wire import ui
from perdure.wire.ui.message_stream import STREAM_HEADER

_PATH = "/api/v1/sessions/{agent}/{name}/chat"
_STREAM = "text/event-stream"
_HEADERS = {STREAM_HEADER[0]: STREAM_HEADER[1], "x-accel-buffering": "no"}
#: Turns that are looked through for a message that was edited, and for one that comes again.
_FAR, _NEAR = 200, 10


class ChatBody(msgspec.Struct, frozen=True, kw_only=True, rename={"message_id": "messageId"}):
    """What is asked. Fields that it does not know are the front end's own, and left alone."""

    #: A text, or the parts of a message; instead of `messages`.
    prompt: Any = None
    #: UI messages, as `useChat` sends them.
    messages: list[dict[str, Any]] | None = None
    trigger: Literal["submit-message", "regenerate-message"] = "submit-message"
    #: The message that is edited, or answered again.
    message_id: str | None = None
    id: str = ""
    system: str = ""
    #: ``provider/model``; else those that are configured for chat.
    model: str = ""
    #: Tools that the client runs, as any of the three APIs defines them.
    tools: list[dict[str, Any]] = []
    #: Whether the model may search its past; the server answers these.
    history_tools: bool = True
    recall: bool = True
    #: Tokens of the window.
    budget: Annotated[int, msgspec.Meta(ge=1)] | None = None
    max_tokens: Annotated[int, msgspec.Meta(ge=1)] | None = None
    reasoning: Effort | int | None = None
    #: Whether the answer goes on when the client leaves; else as `server.chat_goes_on`.
    goes_on: bool | None = None


class ChatsCancelled(msgspec.Struct, frozen=True):
    """How many answers were cancelled. What arrived of them is kept, marked as partial."""

    cancelled: int


class Chats:
    """The answers under way, also those that nobody reads. One per server. When it is stopped, they
    have `server.grace` seconds to end; then they stay drafts.
    """

    def __init__(self, state: ServerState) -> None:
        self._state = state
        self._runs: list[ChatRun] = []
        self._beginning = WeakValueDictionary[str, asyncio.Lock]()
        self._ending = asyncio.create_task(self._end_in_time(), name="perdure-chats")

    def add(self, run: ChatRun) -> None:
        self._runs.append(run)
        run.when_over(lambda: self._runs.remove(run))  # or all that was ever said would stay here

    def beginning(self, session: str) -> asyncio.Lock:
        """Held while what is new is found and written. Without it, a message that is sent twice at
        the same time would be written twice.
        """
        return self._beginning.setdefault(session, asyncio.Lock())

    def of(self, session: str) -> list[ChatRun]:
        """Those of a session that are not over, the oldest first."""
        return [run for run in self._runs if run.session.name == session and not run.is_over]

    async def cancel(self, session: str, first: int = 0) -> int:
        """Those for this turn and later ones."""
        runs = [run for run in self.of(session) if run.turn >= first]
        await asyncio.gather(*(run.cancel() for run in runs))
        return len(runs)

    async def close(self) -> None:
        """When there are no requests any more, and the server is being stopped."""
        while self._runs and not self._ending.done():
            await self._runs[0].wait_over(self._ending)
        self._ending.cancel()
        await asyncio.wait({self._ending})
        await self._end_all()

    async def _end_in_time(self) -> None:
        await self._state.stopping.wait()
        await asyncio.sleep(self._state.config.server.grace)
        await self._end_all()

    async def _end_all(self) -> None:
        await asyncio.gather(*(run.cancel(keeps="draft") for run in self._runs))


async def chat(call: ServerCall) -> Response:
    """One turn with a model, streamed as the AI SDK's UI message stream."""
    body: ChatBody = call.body
    name, chats = call.session_name, call.server.part(Chats)
    options = ConversationOptions(
        system=body.system,
        tools=checked_tools(body.tools),
        history_tools=body.history_tools,
        recall=body.recall,
        budget=body.budget,
        max_tokens=body.max_tokens,
        reasoning=body.reasoning,
    )
    # Before a session is made for nothing.
    call.bank.gateway.catalog.candidates(CallOptions(purpose="chat", model=body.model))
    session = await call.bank.session(name)
    run = ChatRun(call.bank, session, options, model=body.model)
    goes_on = call.server.config.server.chat_goes_on if body.goes_on is None else body.goes_on
    async with chats.beginning(session.name):
        if under_way := await _under_way(body, session, chats):
            return ChatResponse(under_way, goes_on=goes_on)
        prompt, results = await _new_input(body, session, chats)
        await run.begin(prompt, results)
        chats.add(run)
    return ChatResponse(run, goes_on=goes_on)


async def resume_chat(call: ServerCall) -> Response:
    """The answer under way, from its beginning; 204 if there is none.

    What the AI SDK's `reconnectToStream` asks for.
    """
    running = call.server.part(Chats).of(call.session_name)
    return ChatResponse(running[-1], goes_on=True) if running else Response(status_code=204)


async def cancel_chat(call: ServerCall) -> ChatsCancelled:
    """Cancel the answers under way in a session; what arrived is kept."""
    return ChatsCancelled(await call.server.part(Chats).cancel(call.session_name))


class ChatResponse(StreamingResponse):
    """An answer under way, for one reader. When the last one leaves, it goes on or is cancelled."""

    def __init__(self, run: ChatRun, *, goes_on: bool) -> None:
        super().__init__(run.read(), headers=_HEADERS, media_type=_STREAM)
        self._run = run
        self._goes_on = goes_on

    async def __call__(self, connection: Connection, receive: Receive, send: Send) -> None:
        self._run.readers += 1
        try:
            await super().__call__(connection, receive, send)
        finally:
            self._run.readers -= 1
            if not self._goes_on and not self._run.readers:
                await self._run.cancel()


async def _under_way(body: ChatBody, session: Session, chats: Chats) -> ChatRun | None:
    """The answer to this very message, if it arrives already: somebody sent it twice."""
    asked = _prompt_at_end(ui.decode(body.messages or []))
    if body.trigger == "regenerate-message" or body.message_id or not asked or not asked[-1].id:
        return None
    for run in chats.of(session.name):
        if _has_prompt(await session.turn(run.turn), asked[-1].id):
            return run
    return None


async def _new_input(
    body: ChatBody, session: Session, chats: Chats
) -> tuple[Any, tuple[ToolResult, ...]]:
    """The prompt, or the results, that the bank does not have; neither, if the newest turn waits
    for its answer. Raises `InvalidInput` if there is nothing to answer.
    """
    if body.prompt is not None:
        if body.messages:
            raise InvalidInput("There are a prompt and messages.", hint="Give one of them.")
        return body.prompt, ()
    said = ui.decode(body.messages or [])
    asked = _prompt_at_end(said)
    if body.trigger == "regenerate-message":
        return await _prompt_again(body, session, chats), ()
    if not asked:
        waiting = set((await session.head()).mark.waiting)
        results = tuple(
            result for each in said for result in each.results if result.call in waiting
        )
        if not results:
            raise InvalidInput(
                "There is nothing new to answer.",
                hint="End the messages with what the user says, or with results of tools.",
            )
        await session.resume((await session.head()).turn)
        return None, results
    id = asked[-1].id
    turns = await session.turns(_FAR if body.message_id else _NEAR) if id else []
    for turn in turns:
        if not _has_prompt(turn, id):
            continue
        if turn is not turns[-1] and not body.message_id:
            raise Conflict(
                "turns",
                f"{session.name}#T-{turn.number}",
                message=f"This message is T-{turn.number} already, and others follow it.",
                hint="Read what was answered; to edit it, say its id as messageId.",
            )
        return await _replace_turn(turn, asked, session, chats), ()
    return asked, ()


def _has_prompt(turn: Turn, id: str) -> bool:
    return any(message.id == id for message in turn.messages if is_prompt(message))


def _prompt_at_end(messages: tuple[Message, ...]) -> tuple[Message, ...]:
    """What the user says at the end."""
    first = len(messages)
    while first and is_prompt(messages[first - 1]):
        first -= 1
    return messages[first:]


async def _prompt_again(
    body: ChatBody, session: Session, chats: Chats
) -> tuple[Message, ...] | None:
    """The prompt of the turn that is to be answered again."""
    number = newest(await session.head())
    if body.message_id and body.message_id.startswith("T-"):
        number = Position.parse(body.message_id).turn
    if number < 1:
        raise InvalidInput("There is no turn to answer again.", hint="Say something first.")
    turn = await session.turn(number)
    prompt = tuple(message for message in turn.messages if is_prompt(message))
    return await _replace_turn(turn, await session.resolve(prompt), session, chats)


async def _replace_turn(
    turn: Turn, prompt: tuple[Message, ...], session: Session, chats: Chats
) -> tuple[Message, ...] | None:
    """Undo a turn and all behind it, so that this prompt takes its place. None if the turn is that
    prompt, and waits for its answer.
    """
    await chats.cancel(session.name, turn.number)
    head = await session.head()
    for partial in await session.partials():
        if partial.turn >= turn.number:
            await session.close_partial(partial)  # or undoing would drop what arrived
    now = await session.turn(turn.number)
    is_newest = turn.number == head.turn and now.status == "open"
    if is_newest and [m.parts for m in now.messages] == [m.parts for m in prompt]:
        await session.resume(turn.number)
        return None
    await session.undo(numbers=range(turn.number, head.turn + 1))
    return prompt


OPERATIONS = (
    Operation.of("POST", _PATH, chat, TokenScope.WRITE, body=ChatBody, produces=_STREAM),
    Operation.of("DELETE", _PATH, cancel_chat, TokenScope.WRITE),
    Operation.of(
        "GET",
        f"{_PATH}/{{chat}}/stream",
        resume_chat,
        TokenScope.READ,
        produces=_STREAM,
        may_be_nothing=True,
    ),
)

"""One turn with a model: the session's context, the answer as it arrives, the tools of the history.

The prompt is in the bank before a model is asked, the answer is a draft while it arrives. Whatever
ends the run, what was said by then is kept: an answer that broke off, or was cancelled, becomes
part of its turn, marked as partial; if the server is stopped, it stays a draft.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import suppress
from typing import Any, Literal

import msgspec

from perdure.bank.bank import Bank
from perdure.context.context import Context
from perdure.context.history_tools import HISTORY_TOOLS
from perdure.core.errors import PerdureError
from perdure.core.messages import Media, Message, Text, ToolCall, ToolResult
from perdure.core.turns import Turn
from perdure.gateway.calls import (
    CallBegan,
    CallDelta,
    CallOptions,
    Delta,
    ReasoningDelta,
    Reply,
    Request,
    TextDelta,
    Tool,
)
from perdure.history.streamed_answers import StreamedAnswer
from perdure.sessions.session import Session
from perdure.wire import codec
from perdure.wire.plain import Item
from perdure.wire.ui.message_stream import DONE, FinishReason, UIMessageStream

_log = logging.getLogger("perdure.server")

#: Model calls in one turn; the last may call no tool.
MOST_STEPS = 20
_HISTORY = frozenset(tool.name for tool in HISTORY_TOOLS)
_REASONS: dict[str, FinishReason] = {
    "stop": "stop",
    "length": "length",
    "filter": "content-filter",
    "tools": "tool-calls",
}
#: Seconds without a chunk after which a comment keeps the connection open.
_KEEP_OPEN = 15.0


class ChatOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How a model is asked."""

    system: str = ""
    model: str = ""
    #: The client's own, which it runs itself.
    tools: tuple[Tool, ...] = ()
    history_tools: bool = True
    recall: bool = True
    budget: int | None = None
    max_tokens: int | None = None
    reasoning: Any = None


class ChatRun:
    """An answer under way, and the chunks of it so far. It does not depend on who reads it. Making
    one raises `NoModel` if there is none to ask.
    """

    def __init__(self, bank: Bank, session: Session, options: ChatOptions) -> None:
        self.session = session
        self.turn = 0
        self.readers = 0
        self.is_over = False
        self._bank = bank
        self._options = options
        self._call = CallOptions(
            purpose="chat", agent=session.agent, session=session.name, model=options.model
        )
        candidate = bank.gateway.catalog.candidates(self._call)[0]
        self._wire, self._model = candidate.provider.wire, candidate.model
        self._tools = (*(HISTORY_TOOLS if options.history_tools else ()), *options.tools)
        self._client_tools = frozenset(tool.name for tool in options.tools)
        self._stream = UIMessageStream("")
        self._chunks: list[bytes] = []
        self._grew = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._keeps: Literal["turn", "draft"] = "turn"

    async def begin(self, prompt: Any = None, results: Iterable[ToolResult] = ()) -> None:
        """Write what is new, and ask. When it returns, that is in the bank. Raises what `context`
        and `append` raise.
        """
        results = tuple(results)
        if results:
            await self.session.append(Message("tool", results))
        context = await self._context(prompt)
        self.turn = context.turn
        if context.prompt:
            written = await self.session.append([], context=context)  # the prompt alone
            self.turn = written.number if isinstance(written, Turn) else written[-1].number
        self._stream = UIMessageStream(f"T-{self.turn}", own=_HISTORY)
        self._task = asyncio.create_task(self._run(context), name="perdure-chat")

    def when_over(self, tell: Callable[[], None]) -> None:
        """Call it when the answer is complete or has ended."""
        assert self._task is not None  # noqa: S101  # it has begun
        self._task.add_done_callback(lambda _: tell())

    async def cancel(self, *, keeps: Literal["turn", "draft"] = "turn") -> None:
        """End it; what arrived becomes part of the turn, or stays a draft: as the first says who
        cancels it.
        """
        if self._task is not None and not self._task.done():
            if not self._task.cancelling():
                self._keeps = keeps
                self._task.cancel()
            await asyncio.wait({self._task})

    async def wait_over(self, limit: asyncio.Task[None]) -> None:
        """Until the answer or the other task has ended."""
        assert self._task is not None  # noqa: S101  # it has begun
        await asyncio.wait({self._task, limit}, return_when=asyncio.FIRST_COMPLETED)

    async def read(self) -> AsyncIterator[bytes]:
        """All chunks, from the first, as server-sent events."""
        at = 0
        while True:
            if at < len(self._chunks):
                ready = b"".join(self._chunks[at:])
                at = len(self._chunks)
                yield ready
            elif self.is_over:
                return
            else:
                self._grew.clear()
                try:
                    async with asyncio.timeout(_KEEP_OPEN):
                        await self._grew.wait()
                except TimeoutError:
                    yield b": waiting\n\n"

    async def _context(self, prompt: Any = None) -> Context:
        options = self._options
        return await self.session.context(
            prompt,
            system=options.system,
            tools=self._tools,
            model=self._model,
            budget=options.budget,
            recall=options.recall,
        )

    async def _run(self, context: Context) -> None:
        stream = self._stream
        said = {"session": self.session.name, "turn": f"T-{self.turn}"}
        self._send(stream.start(said))
        try:
            await self._converse(context)
        except asyncio.CancelledError:
            if self._keeps == "turn":
                await self._close_partial()
            self._send(stream.abort("It was cancelled."))
        except PerdureError as exc:
            await self._close_partial()
            self._send([*stream.error(str(exc)), *stream.finish("error", said)])
        except Exception:  # noqa: BLE001  # the outermost frame: its reader must hear of it
            _log.exception("A chat failed.")
            await self._close_partial()
            text = "Something went wrong inside the server."
            self._send([*stream.error(text), *stream.finish("error", said)])
        finally:
            self._chunks.append(_event(DONE.encode()))
            self.is_over = True
            self._grew.set()

    async def _converse(self, context: Context) -> None:
        stream = self._stream
        for step in range(1, MOST_STEPS + 1):
            told = {
                "session": self.session.name,
                "turn": f"T-{self.turn}",
                "tokens": context.tokens,
                "budget": context.budget,
                "recalled": 0 if context.injection is None else context.injection.tokens,
            }
            self._send([*stream.start_step(), *stream.data("context", told)])
            reply = await self._ask(context, last=step == MOST_STEPS)
            calls = reply.message.calls
            own = [call for call in calls if call.name not in self._client_tools]
            if own:
                results = [await self._run_tool(call) for call in own]
                await self.session.append(Message("tool", tuple(results)))
                self._send(chunk for result in results for chunk in stream.result(result))
            self._send(stream.finish_step())
            if not calls or len(own) < len(calls) or step == MOST_STEPS:
                self._send(stream.finish(_REASONS.get(reply.finish, "other"), self._facts(reply)))
                return
            context = await self._context()

    async def _ask(self, context: Context, *, last: bool) -> Reply:
        options = self._options
        request = Request(
            messages=_messages(context, self._wire),
            tools=context.tools,
            tool_choice="none" if last and context.tools else "auto",
            max_tokens=options.max_tokens,
            reasoning=options.reasoning,
            prompt_cache_key=context.cache_key,
        )
        async with (
            self._bank.gateway.stream(request, self._call) as arriving,
            self.session.answer(model=self._model) as answer,
        ):
            calls: dict[int, str] = {}
            async for delta in arriving:
                await self._take(delta, calls, answer)
            reply = arriving.reply
            await answer.finish(message=reply.message, model=reply.model)
        self._send(self._stream.sources(reply.message))
        self._send(chunk for call in reply.message.calls for chunk in self._stream.called(call))
        return reply

    async def _take(self, delta: Delta, calls: dict[int, str], answer: StreamedAnswer) -> None:
        stream = self._stream
        if isinstance(delta, TextDelta):
            self._send(stream.text(delta.text))
            await answer.text(delta.text)
        elif isinstance(delta, ReasoningDelta):
            self._send(stream.reasoning(delta.text))
            await answer.reasoning(delta.text)
        elif isinstance(delta, CallBegan):
            calls[delta.index] = delta.id
            self._send(stream.call(delta.id, delta.name))
            await answer.call(delta.id, delta.name)
        elif isinstance(delta, CallDelta):
            self._send(stream.arguments(calls[delta.index], delta.arguments))
            if delta.index == len(calls) - 1:  # the draft of others is complete at their end
                await answer.arguments(delta.arguments)
        elif isinstance(delta.part, Media):
            self._send(stream.file(delta.part))

    async def _run_tool(self, call: ToolCall) -> ToolResult:
        text = await self.session.run_tool(call.name, call.arguments)
        return ToolResult(call.id, (Text(text),), name=call.name)

    async def _close_partial(self) -> None:
        """What arrived of an answer that will not go on."""
        with suppress(PerdureError):  # then it stays a draft, or is gone
            for partial in await self.session.partials():
                if partial.turn == self.turn:
                    if partial.message.parts:
                        await self.session.close_partial(partial)
                    else:
                        await self.session.drop_partial(partial)

    def _facts(self, reply: Reply) -> Item:
        usage = reply.usage
        return {
            "provider": reply.provider,
            "model": reply.model,
            "usage": None if usage is None else msgspec.to_builtins(usage),
            "cost": reply.cost,
        }

    def _send(self, chunks: Iterable[Item]) -> None:
        self._chunks += [_event(msgspec.json.encode(chunk)) for chunk in chunks]
        self._grew.set()


def _messages(context: Context, wire: str) -> tuple[Message, ...]:
    """With the marks of what the provider may cache, where the wire format has such."""
    if wire == "messages":
        body = context.to_messages()
        return codec("messages").decode({name: body[name] for name in body if name != "tools"})
    system = (Message("system", (Text(context.system),)),) if context.system.strip() else ()
    return (*system, *context.messages)


def _event(data: bytes) -> bytes:
    return b"data: " + data + b"\n\n"

"""One turn with a model: the session's context, the answer as it arrives, the tools of the history.

The prompt is in the bank before a model is asked, the answer is a draft while it arrives. Whatever
ends the run, what was said by then is kept: an answer that broke off, or was cancelled, becomes
part of its turn, marked as partial; if the server is stopped, it stays a draft.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import aclosing
from typing import Any, Literal

import msgspec

from perdure.bank.bank import Bank
from perdure.context.context import Context
from perdure.core.errors import PerdureError
from perdure.core.messages import Message, ToolResult
from perdure.core.turns import Turn
from perdure.gateway.calls import CallOptions, Delta, Reply
from perdure.server.answer_chunks import END_OF_STREAM, AnswerChunks, server_sent
from perdure.sessions.model_conversation import (
    HISTORY_NAMES,
    ConversationOptions,
    ModelConversation,
)
from perdure.sessions.session import Session
from perdure.wire.plain import Item
from perdure.wire.ui.message_stream import FinishReason, UIMessageStream

_log = logging.getLogger("perdure.server")

#: Model calls in one turn; the last may call no tool.
MOST_STEPS = 20
_REASONS: dict[str, FinishReason] = {
    "stop": "stop",
    "length": "length",
    "filter": "content-filter",
    "tools": "tool-calls",
}
#: Seconds without a chunk after which a comment keeps the connection open.
_KEEP_OPEN = 15.0


class ChatRun:
    """An answer under way, and the chunks of it so far. It does not depend on who reads it. Making
    one raises `NoModel` if there is none to ask.
    """

    def __init__(
        self, bank: Bank, session: Session, options: ConversationOptions, *, model: str = ""
    ) -> None:
        """The tools in `options` are the client's own, which it runs itself."""
        self.session = session
        self.turn = 0
        self.readers = 0
        self.is_over = False
        call = CallOptions(purpose="chat", agent=session.agent, session=session.name, model=model)
        self._conversation = ModelConversation(
            session, bank.gateway, options, call, heard=self._hear
        )
        self._client_tools = frozenset(tool.name for tool in options.tools)
        self._said = AnswerChunks(UIMessageStream(""))
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
        context = await self._conversation.context(prompt)
        self.turn = context.turn
        if context.prompt:
            written = await self.session.append([], context=context)  # the prompt alone
            self.turn = written.number if isinstance(written, Turn) else written[-1].number
        self._said = AnswerChunks(UIMessageStream(f"T-{self.turn}", own=HISTORY_NAMES))
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

    async def _run(self, context: Context) -> None:
        stream = self._said.stream
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
            self._chunks.append(END_OF_STREAM)
            self.is_over = True
            self._grew.set()

    async def _converse(self, context: Context) -> None:
        stream, conversation = self._said.stream, self._conversation
        replies = conversation.replies(context, steps=MOST_STEPS, told=self._tell)
        async with aclosing(replies):
            step = 0
            async for reply in replies:
                step += 1
                calls = reply.message.calls
                self._send(stream.sources(reply.message))
                self._send(chunk for call in calls for chunk in stream.called(call))
                own = [call for call in calls if call.name not in self._client_tools]
                if own:
                    results = [await conversation.run_history_tool(call) for call in own]
                    await self.session.append(Message("tool", tuple(results)))
                    self._send(chunk for result in results for chunk in stream.result(result))
                self._send(stream.finish_step())
                if not calls or len(own) < len(calls) or step == MOST_STEPS:
                    why = _REASONS.get(reply.finish, "other")
                    self._send(stream.finish(why, self._facts(reply)))
                    return

    def _tell(self, context: Context) -> None:
        told = {
            "session": self.session.name,
            "turn": f"T-{self.turn}",
            "tokens": context.tokens,
            "budget": context.budget,
            "recalled": 0 if context.injection is None else context.injection.tokens,
        }
        self._send([*self._said.begin_step(), *self._said.stream.data("context", told)])

    def _hear(self, delta: Delta) -> None:
        self._send(self._said.of(delta))

    async def _close_partial(self) -> None:
        await self._conversation.end_partial(self.turn, keep=True)

    def _facts(self, reply: Reply) -> Item:
        usage = reply.usage
        return {
            "provider": reply.provider,
            "model": reply.model,
            "usage": None if usage is None else msgspec.to_builtins(usage),
            "cost": reply.cost,
        }

    def _send(self, chunks: Iterable[Item]) -> None:
        self._chunks.append(server_sent(chunks))
        self._grew.set()

"""An answer as it arrives."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from types import TracebackType
from typing import Self

from perdure.core.errors import InvalidInput
from perdure.core.messages import Message, Reasoning, Text, ToolCall
from perdure.gateway.calls import (
    CallBegan,
    CallDelta,
    Delta,
    PartEnded,
    ReasoningDelta,
    Reply,
    TextDelta,
)
from perdure.gateway.fallback import OpenCalls


class StartedStream:
    """A stream whose first delta is there, or that ended without one."""

    def __init__(
        self,
        deltas: AsyncGenerator[Delta, None],
        reply: Callable[[], Reply],
        complete: Callable[[], bool] = lambda: True,
    ) -> None:
        self._deltas = deltas
        self.reply = reply
        self.complete = complete
        self._first: Delta | None = None

    async def wait(self) -> None:
        self._first = await anext(self._deltas, None)

    async def next(self) -> Delta | None:
        if self._first is not None:
            delta, self._first = self._first, None
            return delta
        return await anext(self._deltas, None)

    async def close(self) -> None:
        await self._deltas.aclose()


class ReplyStream:
    """An async context manager, to be iterated over once: the deltas of an answer.

    Entering tries candidates until one begins to answer. Iterating raises `StreamBroken`, with what
    arrived as its `partial`, if the answer stops halfway, and `Closed` if the gateway is closed.
    Leaving the block early ends the call; what was said by then may have been charged for.
    """

    def __init__(
        self, start: Callable[[], Awaitable[StartedStream]], open_calls: OpenCalls
    ) -> None:
        self._start = start
        self._open_calls = open_calls
        self._started: StartedStream | None = None
        self._ended = False

    async def __aenter__(self) -> Self:
        if self._started is not None:
            raise InvalidInput("This stream was read already.", hint="Ask again.")
        self._started = await self._start()
        self._open_calls.streams[self] = self._started.close
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._started is not None:
            self._open_calls.streams.pop(self, None)
            await self._started.close()

    def __aiter__(self) -> Self:
        # No generator: those are ended in their own time if one leaves the loop.
        if self._started is None:
            raise InvalidInput(
                "This stream has not begun.", hint="Read it inside `async with … as stream`."
            )
        return self

    async def __anext__(self) -> Delta:
        assert self._started is not None  # noqa: S101 (for the type checker)
        delta = None if self._ended else await self._open_calls.run(self._started.next)
        if delta is None:
            # An answer that was broken off, and is asked for more, has no more; nor is it complete.
            self._ended = self._started.complete()
            raise StopAsyncIteration
        return delta

    async def finish(self) -> Reply:
        """The whole answer; skips what was not read."""
        async for _ in self:
            pass
        return self.reply

    @property
    def reply(self) -> Reply:
        """The whole answer. Raises `InvalidInput` before its end has been read."""
        if self._started is None or not self._ended:
            raise InvalidInput("The answer is not complete yet.", hint="Read it to its end first.")
        return self._started.reply()


async def deltas_of(message: Message) -> AsyncGenerator[Delta, None]:
    calls = 0
    for part in message.parts:
        if isinstance(part, Text):
            yield TextDelta(part.text)
        elif isinstance(part, Reasoning):
            text = part.text or "\n\n".join(part.summary)
            if text:
                yield ReasoningDelta(text)
        elif isinstance(part, ToolCall):
            yield CallBegan(calls, part.id, part.name)
            if part.arguments:
                yield CallDelta(calls, part.arguments)
            calls += 1
        yield PartEnded(part)

"""An answer as it arrives."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator
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
from perdure.gateway.flights import Flights


class Begun:
    """A stream whose first delta is there, or that ended without one."""

    def __init__(
        self,
        deltas: AsyncGenerator[Delta, None],
        reply: Callable[[], Reply],
        complete: Callable[[], bool] = lambda: True,
    ) -> None:
        self._deltas = deltas
        self.reply = reply
        #: Whether the answer came to its end.
        self.complete = complete
        self._first: Delta | None = None

    async def wait(self) -> None:
        """Wait for the first thing. Raises what the exchange raises until then."""
        self._first = await anext(self._deltas, None)

    async def next(self) -> Delta | None:
        """The next delta; None at the end."""
        if self._first is not None:
            delta, self._first = self._first, None
            return delta
        return await anext(self._deltas, None)

    async def close(self) -> None:
        """End the call, wherever it is."""
        await self._deltas.aclose()


class Stream:
    """An async context manager, and inside it something to iterate over: what arrives. Once.

    Entering it tries candidates until one begins to answer. Iterating raises `StreamBroken`, with
    what arrived as its `partial`, if the answer stops halfway, and `Closed` if the gateway is
    closed meanwhile. Who leaves the loop can go on with another. Leaving the block early ends the
    call; what was said by then may have been charged for.
    """

    def __init__(self, begin: Callable[[], Awaitable[Begun]], flights: Flights) -> None:
        self._begin = begin
        self._flights = flights
        self._begun: Begun | None = None
        self._ended = False

    async def __aenter__(self) -> Self:
        if self._begun is not None:
            raise InvalidInput("This stream was read already.", hint="Ask again.")
        self._begun = await self._begin()
        self._flights.keep(self._begun)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._begun is not None:
            self._flights.drop(self._begun)
            await self._begun.close()

    def __aiter__(self) -> AsyncIterator[Delta]:
        if self._begun is None:
            raise InvalidInput(
                "This stream has not begun.", hint="Read it inside `async with … as stream`."
            )
        return _Reading(self._next)

    async def _next(self) -> Delta | None:
        assert self._begun is not None  # noqa: S101 (for the type checker)
        if self._ended:
            return None
        delta = await self._flights.run(self._begun.next)
        # An answer that was broken off, and is asked for more, has no more; nor is it complete.
        self._ended = delta is None and self._begun.complete()
        return delta

    async def finish(self) -> Reply:
        """The whole answer, and what it took; what was not read is passed over."""
        async for _ in self:
            pass
        return self.reply

    @property
    def reply(self) -> Reply:
        """The whole answer. Raises `InvalidInput` before its end has been read."""
        if self._begun is None or not self._ended:
            raise InvalidInput("The answer is not complete yet.", hint="Read it to its end first.")
        return self._begun.reply()


class _Reading:
    """One loop over a stream. No generator: those are ended in their own time if one leaves."""

    __slots__ = ("_read",)

    def __init__(self, read: Callable[[], Awaitable[Delta | None]]) -> None:
        self._read = read

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Delta:
        delta = await self._read()
        if delta is None:
            raise StopAsyncIteration
        return delta


async def deltas_of(message: Message) -> AsyncGenerator[Delta, None]:
    """A message that is there already, as it would have arrived."""
    for delta in _deltas(message):
        yield delta


def _deltas(message: Message) -> Iterator[Delta]:
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

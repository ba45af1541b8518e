"""An answer as it arrives."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
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


class Begun:
    """A stream whose first delta is there, or that ended without one."""

    def __init__(self, deltas: AsyncIterator[Delta], reply: Callable[[], Reply]) -> None:
        self.deltas = deltas
        self.reply = reply
        self._first: Delta | None = None

    async def wait(self) -> None:
        """Wait for the first thing. Raises what the exchange raises until then."""
        self._first = await anext(self.deltas, None)

    async def next(self) -> Delta | None:
        """The next delta; None at the end."""
        if self._first is not None:
            delta, self._first = self._first, None
            return delta
        return await anext(self.deltas, None)

    async def close(self) -> None:
        close = getattr(self.deltas, "aclose", None)
        if close is not None:
            await close()


class Stream:
    """An async context manager, and inside it an async iterator over what arrives. Once.

    Entering it tries candidates until one begins to answer. Iterating raises `StreamBroken`, with
    what arrived as its `partial`, if the answer stops halfway. Leaving it early ends the call; what
    was said by then may have been charged for.
    """

    def __init__(self, begin: Callable[[], Awaitable[Begun]]) -> None:
        self._begin = begin
        self._begun: Begun | None = None
        self._ended = False

    async def __aenter__(self) -> Self:
        if self._begun is not None:
            raise InvalidInput("This stream was read already.", hint="Ask again.")
        self._begun = await self._begin()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._begun is not None:
            await self._begun.close()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Delta:
        if self._begun is None:
            raise InvalidInput(
                "This stream has not begun.", hint="Read it inside `async with … as stream`."
            )
        delta = await self._begun.next()
        if delta is None:
            self._ended = True
            raise StopAsyncIteration
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


async def deltas_of(message: Message) -> AsyncIterator[Delta]:
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

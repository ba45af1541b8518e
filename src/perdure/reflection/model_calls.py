"""How reflection asks models: many questions, each answer handed over as it arrives.

Live, now; by a provider's batch mode, it would be the same `ModelCalls`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Protocol, TypeAlias

import msgspec

from perdure.core.errors import BudgetReached, PerdureError
from perdure.gateway.calls import CallOptions, Request

if TYPE_CHECKING:
    from perdure.gateway.gateway import Gateway

#: Questions at the same time: nobody waits for the answers.
_CONCURRENCY = 4


class CallResult(msgspec.Struct, frozen=True, kw_only=True):
    """What came of a question."""

    text: str = ""
    model: str = ""
    tokens: int = 0
    #: Picodollars; None if unknown.
    cost: int | None = None
    #: Why there is no answer; and whether that is because a budget has ended.
    error: str = ""
    over_budget: bool = False


#: Called with each result. It is awaited before the next question is sent.
OnResult: TypeAlias = Callable[[str, CallResult], Awaitable[None]]


class ModelCalls(Protocol):
    """Asks each request, and hands over each result once; stops when a budget ends."""

    async def __call__(
        self, requests: Mapping[str, Request], options: CallOptions, on_result: OnResult
    ) -> None: ...


class LiveCalls:
    """Asks at once, a few at a time."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    async def __call__(
        self, requests: Mapping[str, Request], options: CallOptions, on_result: OnResult
    ) -> None:
        waiting, over = list(requests.items())[::-1], asyncio.Event()

        async def work() -> None:
            while waiting and not over.is_set():
                id, request = waiting.pop()
                result = await self._ask(request, options)
                if result.over_budget:
                    over.set()
                await on_result(id, result)

        async with asyncio.TaskGroup() as group:
            for _ in range(min(_CONCURRENCY, len(waiting))):
                group.create_task(work())

    async def _ask(self, request: Request, options: CallOptions) -> CallResult:
        try:
            reply = await self._gateway.complete(request, options)
        except BudgetReached as exc:
            return CallResult(error=exc.message, over_budget=True)
        except PerdureError as exc:
            return CallResult(error=exc.message)
        usage = reply.usage
        tokens = 0 if usage is None else (usage.input or 0) + (usage.output or 0)
        name = f"{reply.provider}/{reply.model}"
        return CallResult(text=reply.text, model=name, tokens=tokens, cost=reply.cost)

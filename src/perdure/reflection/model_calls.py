"""How reflection asks models: many questions, each answer handed over as it arrives.

By a provider's batch mode, at half price and within a day, or live. A batch is known by its run and
phase: who takes up a run finds the one that was sent, and sends none again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Protocol, TypeAlias

import msgspec

from perdure.core.errors import BadAnswer, BudgetReached, PerdureError, PromptTooLong, Rejected
from perdure.gateway.batches.batch_records import FINAL, BatchRecord, BatchState
from perdure.gateway.calls import CallOptions, Reply, Request

if TYPE_CHECKING:
    from perdure.gateway.gateway import Gateway

#: Questions at the same time: nobody waits for the answers.
_CONCURRENCY = 4
#: Seconds in which a batch is to be sent, by who does not wait for its answers, and between looks.
_SENDING, _LOOK = 30.0, 0.05


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
    #: This question is the reason: to ask it again may not help.
    is_refused: bool = False
    #: The answer ends where the model had to stop.
    is_cut: bool = False


#: Kinds of errors that are about one request.
_REFUSALS = frozenset({Rejected.kind, PromptTooLong.kind, BadAnswer.kind})

#: Called with each result. It is awaited before the next question is sent.
OnResult: TypeAlias = Callable[[str, CallResult], Awaitable[None]]


class AnswersLater(Exception):
    """Nobody waits for the answers: the run goes on another time. Says why the questions are not
    even sent, if so.
    """


class ModelCalls(Protocol):
    """Asks each request, and hands over each result once; stops when a budget ends. `key` names
    them all: the same run and phase. Raises `AnswersLater` if they are not there yet.
    """

    async def __call__(
        self,
        key: str,
        requests: Mapping[str, Request],
        options: CallOptions,
        on_result: OnResult,
    ) -> None: ...


class LiveCalls:
    """Asks at once, a few at a time."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    async def __call__(
        self,
        key: str,
        requests: Mapping[str, Request],
        options: CallOptions,
        on_result: OnResult,
    ) -> None:
        waiting, over = list(requests.items())[::-1], asyncio.Event()

        async def work() -> None:
            while waiting and not over.is_set():
                id, request = waiting.pop()
                result = await self._ask(request, options)
                if result.over_budget:
                    over.set()
                await on_result(id, result)

        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(min(_CONCURRENCY, len(waiting))):
                    group.create_task(work())
        except ExceptionGroup as errors:
            raise errors.exceptions[0] from None

    async def _ask(self, request: Request, options: CallOptions) -> CallResult:
        try:
            reply = await self._gateway.complete(request, options)
        except BudgetReached as exc:
            return CallResult(error=exc.message, over_budget=True)
        except PerdureError as exc:
            each = getattr(exc, "errors", ()) or (exc,)
            return _failed(exc.message, *(getattr(error, "kind", "") for error in each))
        return _result(reply)


class BatchCalls:
    """Asks by batch mode. If it `waits`, it does so for hours."""

    def __init__(self, gateway: Gateway, sessions: Mapping[str, str], *, waits: bool) -> None:
        self._gateway = gateway
        self._sessions = sessions
        self._waits = waits

    async def __call__(
        self,
        key: str,
        requests: Mapping[str, Request],
        options: CallOptions,
        on_result: OnResult,
    ) -> None:
        batches = self._gateway.batch
        # Before anything else: memories may have changed since, and with them the requests.
        batch = await batches.by_key(key)
        if batch is None:
            try:
                batch = await batches.submit(requests, options, key=key, sessions=self._sessions)
            except BudgetReached as exc:
                for id in requests:
                    await on_result(id, CallResult(error=exc.message, over_budget=True))
                return
        if self._waits:
            batch = await batches.wait(batch)
        else:
            batch = await self._sent(batch)
        if batch.state not in FINAL:
            is_sent = batch.state is not BatchState.WRITTEN
            raise AnswersLater("" if is_sent else f"Its questions are not sent yet. {batch.error}")
        async for result in batches.results(batch):
            if result.custom_id not in requests:
                continue  # it was handed over before
            if result.reply is not None:
                await on_result(result.custom_id, _result(result.reply))
            else:
                why = result.reason or batch.error or f"It is {result.state}."
                await on_result(result.custom_id, _failed(why, result.error))
        if batch.state is not BatchState.APPLIED:
            await batches.applied(batch)

    async def _sent(self, batch: BatchRecord) -> BatchRecord:
        """The batch once it is sent, or after a while: a process that is about to end sends it."""
        for _ in range(int(_SENDING / _LOOK)):
            batch = await self._gateway.batch.get(batch)
            if batch.state is not BatchState.WRITTEN or batch.error:
                break  # what failed is not tried again so soon
            await asyncio.sleep(_LOOK)
        return batch


def _result(reply: Reply) -> CallResult:
    usage = reply.usage
    tokens = 0 if usage is None else (usage.input or 0) + (usage.output or 0)
    name = f"{reply.provider}/{reply.model}"
    return CallResult(
        text=reply.text,
        model=name,
        tokens=tokens,
        cost=reply.cost,
        is_cut=reply.finish == "length",
    )


def _failed(said: str, *kinds: str) -> CallResult:
    """Why there is no answer, and what helps."""
    helps = " A smaller `reflection.window` makes smaller questions."
    why = f"{said}{helps}" if PromptTooLong.kind in kinds else said
    return CallResult(error=why, is_refused=_REFUSALS.issuperset(kinds))


def model_limits(gateway: Gateway, options: CallOptions) -> tuple[int | None, int | None]:
    """How many tokens the models for these can read, and write, as far as that is known; of
    several, the fewest.
    """
    prices = gateway.prices
    found = [
        price
        for each in gateway.catalog.candidates(options)
        if (price := prices.find(each.provider.name, each.model)) is not None
    ]
    windows = (price.window for price in found if price.window is not None)
    answers = (price.max_output for price in found if price.max_output is not None)
    return min(windows, default=None), min(answers, default=None)


def has_batch_mode(gateway: Gateway, options: CallOptions) -> bool:
    """Whether the first model for these would be asked by batch mode."""
    found = gateway.catalog.candidates(options)
    return gateway.config.batch and bool(found) and found[0].provider.batch

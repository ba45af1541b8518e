"""One try at one model: everything that happens around the bytes that are sent.

Before it: the circuit must be closed, a key be there, the budgets have room, the gate open. After
it: the circuit, the gate and the health learn how it ended, the budgets what it took, and an
outcome is noted. Whatever happens in between, all of that happens once.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine, Mapping
from types import TracebackType
from typing import Any, Self

from perdure.core.clock import Clock
from perdure.core.errors import (
    GatewayError,
    InvalidInput,
    NoModel,
    ProviderDown,
    RateLimited,
    Rejected,
    StreamBroken,
    Unauthorized,
)
from perdure.core.ids import new_id
from perdure.core.messages import Message, Usage, words_of
from perdure.gateway import keys, limits, quality, telemetry
from perdure.gateway.breaker import Breaker
from perdure.gateway.calls import Answered, Ask, Complexity, Headers, Reply, Request
from perdure.gateway.catalog import Candidate
from perdure.gateway.health import Health
from perdure.gateway.ledger import Ledger, Reservation
from perdure.gateway.limits import Gate
from perdure.gateway.outcomes import Outcome, Recorder
from perdure.gateway.prices import Prices
from perdure.gateway.providers import Provider
from perdure.gateway.retries import Deadline

#: Characters a token, roughly: for budgets and gates, before the provider has counted.
_PER_TOKEN = 3.5
#: What an image may take, in tokens.
_IMAGE = 1_600


class Target:
    """A model that was called, and how it stands."""

    def __init__(self, candidate: Candidate) -> None:
        self.candidate = candidate
        self.name = candidate.name
        self.breaker = Breaker(self.name)
        self.gate = Gate(self.name, concurrency=candidate.provider.concurrency)


class Books:
    """What all tries of a gateway are noted in."""

    def __init__(
        self,
        ledger: Ledger,
        recorder: Recorder,
        prices: Prices,
        health: Health,
        *,
        environ: Mapping[str, str],
        clock: Clock,
    ) -> None:
        self.ledger = ledger
        self.recorder = recorder
        self.prices = prices
        self.health = health
        self.environ = environ
        self.clock = clock
        self._settling: set[asyncio.Task[None]] = set()

    async def key(self, provider: Provider) -> str | None:
        """The key. Raises `Unauthorized` if one is needed and there is none."""
        if not provider.key_variable:
            return None
        found = await keys.key_for(provider, self.environ)
        if found is None and provider.needs_key:
            raise Unauthorized(
                f"There is no key for {provider.name}.",
                hint=f"Set {provider.key_variable}, or keep it in the system's keyring:"
                f" keyring set {keys.SERVICE} {provider.key_variable}.",
            )
        return None if found is None else found.reveal()

    def settle(self, settling: Coroutine[Any, Any, None]) -> None:
        """Let a reservation be settled while the caller goes on."""
        task = asyncio.create_task(settling)
        self._settling.add(task)
        task.add_done_callback(self._settled)

    async def settled(self) -> None:
        """Wait until everything that happened is written."""
        while self._settling:
            await asyncio.wait(self._settling)
        await self.recorder.flush()

    async def close(self) -> None:
        """Write what is left."""
        while self._settling:
            await asyncio.wait(self._settling)
        await self.ledger.close()
        await self.recorder.close()

    def _settled(self, task: asyncio.Task[None]) -> None:
        self._settling.discard(task)
        if not task.cancelled():
            task.exception()  # what was reserved counts as spent, as the ledger says


class Trial:
    """One try, as an async context manager around the exchange."""

    def __init__(
        self,
        books: Books,
        target: Target,
        ask: Ask,
        complexity: Complexity,
        deadline: Deadline,
        *,
        request: Request | None = None,
        texts: int = 0,
        position: int = 0,
        streamed: bool = False,
    ) -> None:
        self._books = books
        self._target = target
        self.ask = ask
        self._complexity = complexity
        self._deadline = deadline
        self._request = request
        self._position = position
        self._streamed = streamed
        provider, model = target.candidate.provider, target.candidate.model
        self._input = texts or (_tokens(request.messages) if request is not None else 0)
        self._output = 0
        if request is not None:
            self._output = request.max_tokens or provider.habits.default_max_tokens
        self._span = telemetry.attempt(
            "chat" if request is not None else "embeddings",
            provider,
            model,
            request=request,
            ask=ask,
            stream=streamed,
        )
        self._reservation = Reservation()
        self._outcome = new_id()
        self._answered: Answered | None = None
        self._embedded: Usage | None = None
        self._cost: int | None = None
        self._took = 0.0
        self._first: float | None = None
        #: What arrived of a stream that did not come to its end.
        self.partial: Message | None = None
        self.key: str | None = None

    @property
    def where(self) -> str:
        return self._target.name

    @property
    def candidate(self) -> Candidate:
        return self._target.candidate

    async def __aenter__(self) -> Self:
        """Raises what keeps the call from being made; nothing was sent then."""
        books, target = self._books, self._target
        provider, model = target.candidate.provider, target.candidate.model
        self._permit = target.breaker.attempt()
        try:
            self.key = await books.key(provider)
            cost = books.prices.estimate(provider.name, model, self._input, self._output)
            tokens = self._input + self._output
            self._reservation = await books.ledger.reserve(
                self.ask, tokens, cost, model=target.name
            )
            self._slot = target.gate.slot(tokens=tokens, remaining=self._deadline.remaining())
            await self._slot.__aenter__()
        except BaseException:
            # The provider was not asked, so this says nothing about it.
            self._permit.end(asyncio.CancelledError())
            self._settle(0, 0)
            raise
        self._began = books.clock()
        self._start = time.perf_counter()
        self._span.__enter__()
        return self

    def observe(self, headers: Headers) -> None:
        """The provider has begun to answer."""
        self._slot.observe(limits.read(headers))

    def arrived(self) -> None:
        """Something of the answer is there."""
        if self._first is None:
            self._first = time.perf_counter() - self._start
            self._span.arrived()

    def answered(self, answered: Answered) -> None:
        """The model has said this."""
        self._answered = answered
        self._cost = self._cost_of(answered.message.usage)
        self._span.answered(answered)

    def embedded(self, usage: Usage | None, dimension: int) -> None:
        """The vectors are there."""
        self._embedded = usage or Usage()
        self._cost = self._cost_of(self._embedded)
        self._span.embedded(usage, dimension)

    def reply(self) -> Reply:
        """The answer with what it took; after the block."""
        assert self._answered is not None  # noqa: S101 (for the type checker)
        candidate = self._target.candidate
        return Reply(
            message=self._answered.message,
            finish=self._answered.finish,
            provider=candidate.provider.name,
            model=candidate.model,
            cost=self._cost,
            outcome=self._outcome,
            fallback=self._position,
            first_token=self._first,
            latency=self._took,
        )

    @property
    def cost(self) -> int | None:
        return self._cost

    @property
    def outcome(self) -> str:
        return self._outcome

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._took = time.perf_counter() - self._start
        self._permit.end(exc)
        await self._slot.__aexit__(kind, exc, traceback)
        self._span.__exit__(kind, exc, traceback)
        if isinstance(exc, RateLimited | ProviderDown) and exc.retry_after:
            self._target.gate.pause(exc.retry_after)
        self._note_health(exc)
        usage = self._usage()
        if exc is None:
            self._settle(self._spent(usage), self._cost)
        elif isinstance(exc, Rejected | RateLimited | ProviderDown | NoModel | InvalidInput):
            self._cost = 0  # no provider charges for these
            self._settle(0, 0)
        else:
            # It may have been charged for: what was sent, and what came of it.
            said = self._input + (_tokens([self.partial]) if self.partial is not None else 0)
            self._settle(said, None)
        self._note_outcome(exc, usage)

    # ------------------------------------------------------------------------------------------

    def _usage(self) -> Usage | None:
        if self._answered is not None:
            return self._answered.message.usage
        return self._embedded

    def _cost_of(self, usage: Usage | None) -> int | None:
        if usage is None:
            return None
        candidate = self._target.candidate
        return self._books.prices.cost(candidate.provider.name, candidate.model, usage)

    def _spent(self, usage: Usage | None) -> int:
        if usage is None or (usage.input is None and usage.output is None):
            return self._reservation.tokens  # the provider does not say: as if all of it
        return (usage.input or 0) + (usage.output or 0)

    def _settle(self, tokens: int, cost: int | None) -> None:
        if self._reservation.holds:
            self._books.settle(self._books.ledger.settle(self._reservation, tokens, cost))

    def _note_health(self, exc: BaseException | None) -> None:
        task, name = self.ask.task or self.ask.purpose, self._target.name
        if exc is None:
            self._books.health.note(task, name, ok=True, latency=self._took)
        elif isinstance(exc, GatewayError) and not isinstance(exc, InvalidInput):
            self._books.health.note(task, name, ok=False)

    def _note_outcome(self, exc: BaseException | None, usage: Usage | None) -> None:
        ask, candidate = self.ask, self._target.candidate
        guess = None
        if self._answered is not None and self._request is not None:
            guess = quality.heuristic(self._answered, self._request)
        self._books.recorder.note(
            Outcome(
                id=self._outcome,
                started=self._began,
                purpose=ask.purpose,
                provider=candidate.provider.name,
                model=candidate.model,
                success=exc is None,
                error=_kind(exc),
                agent=ask.agent,
                session=ask.session,
                task=ask.task,
                complexity=self._complexity,
                latency=self._took,
                first_token=self._first,
                cost=self._cost,
                streamed=self._streamed,
                fallback=self._position,
                quality=guess,
            ).having(usage)
        )


def _kind(exc: BaseException | None) -> str:
    if exc is None:
        return ""
    if isinstance(exc, GatewayError):
        return exc.kind
    return "cancelled" if isinstance(exc, asyncio.CancelledError | GeneratorExit) else "error"


def broken(exc: GatewayError, where: str, partial: Message) -> StreamBroken:
    """The error of a stream that failed when a part of it had been passed on."""
    return StreamBroken(
        f"The answer of {where} stopped halfway: {exc.message}",
        hint="What arrived is in the error's `partial`. Ask again, or go on from there.",
        partial=partial,
    )


def _tokens(messages: Any) -> int:
    """About how many tokens messages take."""
    characters = media = 0
    for message in messages:
        for part in message.parts:
            words = words_of(part)
            if words:
                characters += len(words)
            else:
                media += 1
    return int(characters / _PER_TOKEN) + media * _IMAGE + 8

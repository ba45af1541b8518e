"""One try at one model: everything that happens around the bytes that are sent.

Before it: the circuit must be closed, a key be there, the gate open, the budgets have room. After
it: the circuit, the gate and the health learn how it ended, the budgets what it took, and an
outcome is noted. Whatever happens in between, all of that happens once.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from types import MappingProxyType, TracebackType
from typing import Any, Self

from msgspec.structs import replace

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
from perdure.gateway import estimates, limits, quality, telemetry
from perdure.gateway.books import Books, Target
from perdure.gateway.breaker import Attempt
from perdure.gateway.builtin import LOCAL
from perdure.gateway.calls import Answered, Ask, Complexity, Headers, Reply, Request
from perdure.gateway.catalog import Candidate
from perdure.gateway.chain import Leg, NotSent
from perdure.gateway.failures import Unreachable, conceal
from perdure.gateway.keys import secrets_of
from perdure.gateway.limits import Slot
from perdure.gateway.outcomes import Outcome
from perdure.gateway.pots import Reservation

#: Seconds. A provider that wants more is asked again after this.
_LONGEST_PAUSE = 3_600.0
_EMPTY: Mapping[str, Any] = MappingProxyType({})
#: Seconds by which an event loop may wake somebody too early.
_EARLY = 0.005


class Trial:
    """One try, as an async context manager around the exchange."""

    def __init__(
        self,
        books: Books,
        target: Target,
        ask: Ask,
        complexity: Complexity,
        leg: Leg,
        *,
        timeout: float,
        request: Request | None = None,
        body: Mapping[str, Any] = _EMPTY,
        texts: int = 0,
        streamed: bool = False,
    ) -> None:
        """`timeout` is in seconds; `texts`, for embeddings, in tokens; `body` is what is sent."""
        self._books = books
        self._target = target
        self.ask = ask
        self._complexity = complexity
        self._leg = leg
        self._timeout = timeout
        self._request = request
        self._streamed = streamed
        provider, model = target.candidate.provider, target.candidate.model
        self._input = texts
        self._output = 0
        if request is not None:
            self._input = estimates.of_request(request)
            # What the body allows: thinking may come on top of what the caller asked for.
            allowed = estimates.longest_answer(body)
            self._output = provider.habits.default_max_tokens if allowed is None else allowed
        self._span = telemetry.attempt(
            "chat" if request is not None else "embeddings",
            provider,
            model,
            request=request,
            ask=ask,
            stream=streamed,
        )
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

    @property
    def remaining(self) -> float:
        """Seconds until the deadline of the whole call."""
        return self._leg.deadline.remaining()

    @property
    def timeout(self) -> float:
        """Seconds in which the provider has to answer, or to begin to."""
        return min(self._timeout, self._leg.share.remaining())

    async def __aenter__(self) -> Self:
        """Raises `NotSent` with what keeps the call from being made, or `BudgetReached`."""
        self._slot = await self._admitted()
        try:
            self._permit = self._permitted()
            try:
                self._reservation = await self._reserved()
            except BaseException:
                # The provider was not asked, so this says nothing about it.
                self._permit.end(asyncio.CancelledError())
                raise
        except BaseException:
            await self._slot.__aexit__(None, None, None)
            raise
        self._began = self._books.clock()
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
        self._answered = answered = estimates.credible(answered)
        self._cost = self._cost_of(answered.message.usage)
        self._span.answered(answered)

    def embedded(self, usage: Usage | None, dimension: int) -> None:
        """The vectors are there."""
        if usage is not None and usage.output is None:
            usage = replace(usage, output=0)  # vectors are no tokens
        self._embedded = usage
        self._cost = self._cost_of(usage)
        self._span.embedded(usage, dimension)

    @property
    def is_answered(self) -> bool:
        """Whether the answer came to its end."""
        return self._answered is not None

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
            fallback=self._leg.position,
            first_token=self._first,
            latency=self._took,
        )

    @property
    def cost(self) -> int | None:
        return self._cost

    @property
    def outcome(self) -> str:
        return self._outcome

    def holds_secret(self, message: Message) -> bool:
        """Whether a model said what only its provider was told."""
        return any(secret in words_of(part) for secret in self._secrets() for part in message.parts)

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._took = time.perf_counter() - self._start
        is_impatience = self._is_impatience(exc)
        self._permit.end(asyncio.CancelledError() if is_impatience else exc)
        if isinstance(exc, RateLimited | ProviderDown) and exc.retry_after:
            # Before the next one is let in; and not for years, whatever a header says.
            self._target.gate.pause(min(exc.retry_after, _LONGEST_PAUSE))
        await self._slot.__aexit__(kind, exc, traceback)
        if isinstance(exc, GatewayError):
            conceal(exc, self._secrets())
        if not is_impatience:
            self._note_health(exc)
        self._settle(exc)
        self._note_outcome(exc)
        self._span.__exit__(kind, exc, traceback)

    # Before -----------------------------------------------------------------------------------

    async def _admitted(self) -> Slot:
        target, leg = self._target, self._leg
        asked = self._request.max_tokens if self._request is not None else None
        try:
            target.breaker.check()  # not to queue in vain
            self.key = await self._books.key(target.candidate.provider)
            slot = target.gate.slot(
                # Providers that limit tokens count on what was asked for.
                tokens=self._input + (asked or 0),
                remaining=leg.share.remaining(),
                patience=leg.patience,
            )
            await slot.__aenter__()
        except GatewayError as exc:
            raise NotSent(exc) from None
        return slot

    def _permitted(self) -> Attempt:
        try:
            return self._target.breaker.attempt()  # it may have opened while we queued
        except GatewayError as exc:
            raise NotSent(exc) from None

    async def _reserved(self) -> Reservation:
        # As late as can be: what waits at the gate holds nothing of the budget.
        books, candidate = self._books, self._target.candidate
        cost = books.prices.estimate(
            candidate.provider.name, candidate.model, self._input, self._output
        )
        guessed = self._request is not None and not self._request.max_tokens
        return await books.ledger.reserve(
            self.ask,
            self._input + self._output,
            cost,
            model=self._target.name,
            assumed=self._output if guessed else 0,
            at_home=candidate.provider.name == LOCAL,
        )

    # After ------------------------------------------------------------------------------------

    def _usage(self) -> Usage | None:
        if self._answered is not None:
            return self._answered.message.usage
        return self._embedded

    def _cost_of(self, usage: Usage | None) -> int | None:
        candidate = self._target.candidate
        return self._books.prices.cost(candidate.provider.name, candidate.model, usage or Usage())

    def _settle(self, exc: BaseException | None) -> None:
        """Replace what was reserved by what was taken, or may have been."""
        held = self._reservation
        if exc is None:
            usage = self._usage() or Usage()
            tokens = (usage.input or 0) + (usage.output or 0)
            if usage.input is None or (usage.output is None and self._request is not None):
                tokens = max(tokens, held.tokens)  # the provider does not say: as if all of it
            self._books.ledger.post(held, tokens, self._cost)
        elif self._uncharged(exc):
            self._cost = 0
            self._books.ledger.post(held, 0, 0)
        elif self.partial is None:
            # All of the answer may have been made, and is lost: as if it had been.
            self._cost = None
            self._books.ledger.post(held, held.tokens, None)
        else:
            # What was sent, and what came of it: providers stop when nobody listens.
            said = estimates.of_message(self.partial)
            candidate = self._target.candidate
            cost = self._books.prices.estimate(
                candidate.provider.name, candidate.model, self._input, said
            )
            self._cost = None
            self._books.ledger.post(held, self._input + said, cost)

    def _uncharged(self, exc: BaseException) -> bool:
        """Whether no provider charges for a call that ended so: it never got there, or was refused.

        One that broke off, or took too long, may have been answered.
        """
        if isinstance(exc, GatewayError) and exc.status is not None:
            return True
        return isinstance(exc, Unreachable | Rejected | RateLimited | NoModel | InvalidInput)

    def _is_impatience(self, exc: BaseException | None) -> bool:
        """Whether the caller's deadline ended it, which says nothing about the provider."""
        if isinstance(exc, StreamBroken):
            return self.remaining < _EARLY
        late = isinstance(exc, ProviderDown) and self._leg.share.remaining() < _EARLY
        return late and self._took < 0.95 * self._timeout

    def _note_health(self, exc: BaseException | None) -> None:
        task, name = self.ask.task or self.ask.purpose, self._target.name
        if exc is None:
            self._books.health.note(task, name, ok=True, latency=self._took)
        elif isinstance(exc, GatewayError) and (
            isinstance(exc, Unauthorized) or not isinstance(exc, Rejected)
        ):
            # What is wrong with a request is no mark against the model.
            self._books.health.note(task, name, ok=False)

    def _note_outcome(self, exc: BaseException | None) -> None:
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
                fallback=self._leg.position,
                quality=guess,
            ).having(self._usage())
        )

    def _secrets(self) -> list[str]:
        return secrets_of(self._target.candidate.provider, self.key)


def _kind(exc: BaseException | None) -> str:
    if exc is None:
        return ""
    if isinstance(exc, GatewayError):
        return exc.kind
    return "cancelled" if isinstance(exc, asyncio.CancelledError | GeneratorExit) else "error"


def broken(exc: GatewayError, where: str, partial: Message) -> StreamBroken:
    """The error of a stream that failed when a part of it had been passed on."""
    # A decoder that misses the end says just that.
    why = "." if exc.message == f"The answer of {where} has no end." else f": {exc.message}"
    return StreamBroken(
        f"The answer of {where} stopped halfway{why}",
        hint="What arrived is in the error's `partial`. Ask again, or go on from there.",
        partial=partial,
    )

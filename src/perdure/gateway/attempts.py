"""One attempt at one model.

Before it: the circuit must be closed, a key be there, the gate open, the budgets have room. After
it, exactly once: circuit, gate and health learn how it ended, budgets what it took, and an outcome
is noted.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine, Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType, TracebackType
from typing import Any, Self

from msgspec.structs import replace

from perdure.core.clock import Clock, new_id
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
from perdure.core.messages import Media, Message, Usage, words_of
from perdure.gateway import quality, rate_limits, telemetry
from perdure.gateway.breaker import Breaker, BreakerPermit, BreakerPolicy
from perdure.gateway.budgets import Reservation
from perdure.gateway.calls import CallOptions, Headers, ModelAnswer, Reply, Request
from perdure.gateway.catalog import ModelCandidate, ModelCatalog
from perdure.gateway.fallback import CandidateShare, NotSent
from perdure.gateway.ledger import Ledger
from perdure.gateway.model_memory import ModelMemory
from perdure.gateway.model_selection import ModelHealth
from perdure.gateway.outcomes import Outcome, OutcomeRecorder
from perdure.gateway.prices import Prices
from perdure.gateway.provider_errors import Unreachable, conceal
from perdure.gateway.provider_keys import require_key, secrets_of
from perdure.gateway.providers import LOCAL
from perdure.gateway.rate_limits import Gate, GateSlot

#: Seconds. A provider that wants more is asked again after this.
_LONGEST_PAUSE = 3_600.0
_EMPTY: Mapping[str, Any] = MappingProxyType({})
#: Seconds by which an event loop may wake too early.
_EARLY = 0.005


class ModelState:
    """The circuit breaker and the gate of one model."""

    def __init__(self, candidate: ModelCandidate, tripping: BreakerPolicy | None = None) -> None:
        self.candidate = candidate
        self.name = candidate.name
        self.breaker = Breaker(self.name, tripping)
        self.gate = Gate(self.name, concurrency=candidate.provider.concurrency)


@dataclass(repr=False)  # keys are in `environ`
class GatewayState:
    """What all attempts of a gateway share."""

    catalog: ModelCatalog
    ledger: Ledger
    recorder: OutcomeRecorder
    memory: ModelMemory
    prices: Prices
    health: ModelHealth
    environ: Mapping[str, str]
    clock: Clock
    #: Seconds that one attempt may take.
    timeout: float
    _chores: set[asyncio.Task[Any]] = field(default_factory=set)

    async def carry_on(self, chore: Coroutine[Any, Any, object], *, patience: float) -> None:
        """Wait at most `patience` seconds; the chore is done in any case."""
        task = asyncio.create_task(chore)
        self._chores.add(task)
        task.add_done_callback(self._chores.discard)
        await asyncio.wait([task], timeout=patience)

    async def settle(self) -> None:
        """Wait until everything but outcomes is written."""
        while self._chores:
            await asyncio.wait(self._chores)
        await self.ledger.close()


class Attempt:
    """One attempt: an async context manager around the exchange."""

    def __init__(
        self,
        state: GatewayState,
        model: ModelState,
        options: CallOptions,
        share: CandidateShare,
        *,
        request: Request | None = None,
        body: Mapping[str, Any] = _EMPTY,
        texts: int = 0,
        streamed: bool = False,
    ) -> None:
        """`texts`, for embeddings, is in tokens; `body` is what is sent."""
        self._state = state
        self._model = model
        self.candidate = model.candidate
        self.where = model.name
        self.options = options
        self._share = share
        self._request = request
        self._streamed = streamed
        provider = self.candidate.provider
        self._input = texts
        self._output = 0
        if request is not None:
            self._input = estimate_request(request)
            # What the body allows: thinking may come on top of what the caller asked for.
            allowed = longest_answer(body)
            self._output = provider.habits.default_max_tokens if allowed is None else allowed
        self._span = telemetry.CallSpan(
            "chat" if request is not None else "embeddings",
            provider,
            self.candidate.model,
            request=request,
            options=options,
            stream=streamed,
        )
        self.outcome = new_id()
        self.answer: ModelAnswer | None = None
        self._embedded: Usage | None = None
        #: Picodollars; None while it is not known.
        self.cost: int | None = None
        self._took = 0.0
        self._first: float | None = None
        #: What arrived of a stream that did not end.
        self.partial: Message | None = None
        self.key: str | None = None

    @property
    def remaining(self) -> float:
        return self._share.deadline.remaining()

    @property
    def timeout(self) -> float:
        return min(self._state.timeout, self._share.ends.remaining())

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
        self._began = self._state.clock()
        self._start = time.perf_counter()
        self._span.__enter__()
        return self

    def observe(self, headers: Headers) -> None:
        self._slot.observe(rate_limits.read(headers))

    def arrived(self) -> None:
        if self._first is None:
            self._first = time.perf_counter() - self._start
            self._span.arrived()

    def answered(self, answer: ModelAnswer) -> None:
        self.answer = answer = credible(answer)
        self.cost = self._cost_of(answer.message.usage)
        self._span.answered(answer)

    def embedded(self, usage: Usage | None, dimension: int) -> None:
        if usage is not None and usage.output is None:
            usage = replace(usage, output=0)  # vectors are no tokens
        self._embedded = usage
        self.cost = self._cost_of(usage)
        self._span.embedded(usage, dimension)

    def reply(self) -> Reply:
        assert self.answer is not None  # noqa: S101 (for the type checker)
        return Reply(
            message=self.answer.message,
            finish=self.answer.finish,
            provider=self.candidate.provider.name,
            model=self.candidate.model,
            cost=self.cost,
            outcome=self.outcome,
            fallback=self._share.position,
            first_token=self._first,
            latency=self._took,
        )

    def holds_secret(self, message: Message) -> bool:
        """Whether a model quoted what only its provider was sent."""
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
            self._model.gate.pause(min(exc.retry_after, _LONGEST_PAUSE))
        await self._slot.__aexit__(kind, exc, traceback)
        if isinstance(exc, GatewayError):
            conceal(exc, self._secrets())
        if not is_impatience:
            self._note_health(exc)
        self._state.memory.note(self.where, self._model.breaker)
        self._settle(exc)
        self._note_outcome(exc)
        self._span.__exit__(kind, exc, traceback)

    async def _admitted(self) -> GateSlot:
        asked = self._request.max_tokens if self._request is not None else None
        try:
            self._model.breaker.check()  # not to queue in vain
            self.key = await require_key(self.candidate.provider, self._state.environ)
            slot = self._model.gate.slot(
                # Providers that limit tokens count on what was asked for.
                tokens=self._input + (asked or 0),
                remaining=self._share.ends.remaining(),
                patience=self._share.patience,
            )
            await slot.__aenter__()
        except GatewayError as exc:
            raise NotSent(exc) from None
        return slot

    def _permitted(self) -> BreakerPermit:
        try:
            return self._model.breaker.attempt()  # it may have opened while we queued
        except GatewayError as exc:
            raise NotSent(exc) from None

    async def _reserved(self) -> Reservation:
        # As late as can be: what waits at the gate holds nothing of the budget.
        guessed = self._request is not None and not self._request.max_tokens
        return await self._state.ledger.reserve(
            self.options,
            self._input + self._output,
            self._estimated_cost(self._output),
            model=self.where,
            assumed=self._output if guessed else 0,
            at_home=self.candidate.provider.name == LOCAL,
        )

    def _estimated_cost(self, output: int) -> int | None:
        provider, model = self.candidate.provider.name, self.candidate.model
        return self._state.prices.estimate(provider, model, self._input, output)

    def _usage(self) -> Usage | None:
        return self._embedded if self.answer is None else self.answer.message.usage

    def _cost_of(self, usage: Usage | None) -> int | None:
        provider, model = self.candidate.provider.name, self.candidate.model
        return self._state.prices.cost(provider, model, usage or Usage())

    def _settle(self, exc: BaseException | None) -> None:
        held, post = self._reservation, self._state.ledger.post
        if exc is None:
            usage = self._usage() or Usage()
            tokens = (usage.input or 0) + (usage.output or 0)
            if usage.input is None or (usage.output is None and self._request is not None):
                tokens = max(tokens, held.tokens)  # the provider does not say: as if all of it
            post(held, tokens, self.cost)
        elif _is_uncharged(exc):
            self.cost = 0
            post(held, 0, 0)
        elif self.partial is None:
            # All of the answer may have been made, and is lost: as if it had been.
            self.cost = None
            post(held, held.tokens, None)
        else:
            # What was sent, and what came of it: providers stop when nobody listens.
            said = _estimate([self.partial])
            self.cost = None
            post(held, self._input + said, self._estimated_cost(said))

    def _is_impatience(self, exc: BaseException | None) -> bool:
        if isinstance(exc, StreamBroken):
            return self.remaining < _EARLY
        late = isinstance(exc, ProviderDown) and self._share.ends.remaining() < _EARLY
        return late and self._took < 0.95 * self._state.timeout

    def _note_health(self, exc: BaseException | None) -> None:
        task = self.options.task or self.options.purpose
        if exc is None:
            self._state.health.note(task, self.where, ok=True, latency=self._took)
        elif isinstance(exc, GatewayError) and (
            isinstance(exc, Unauthorized) or not isinstance(exc, Rejected)
        ):
            # What is wrong with a request is no mark against the model.
            self._state.health.note(task, self.where, ok=False)

    def _note_outcome(self, exc: BaseException | None) -> None:
        guess, error = None, _kind(exc)
        if isinstance(exc, asyncio.CancelledError) and self.remaining < _EARLY:
            # Two clocks end at the deadline: whichever is first, it is the provider that was late.
            error = ProviderDown.kind
        if self.answer is not None and self._request is not None:
            guess = quality.heuristic(self.answer, self._request)
        outcome = Outcome.of(
            self.options,
            self.candidate,
            id=self.outcome,
            started=self._began,
            success=exc is None,
            error=error,
            complexity=self._state.catalog.complexity(self.options),
            latency=self._took,
            first_token=self._first,
            cost=self.cost,
            streamed=self._streamed,
            fallback=self._share.position,
            quality=guess,
        )
        self._state.recorder.note(outcome.having(self._usage()), self._request, self.answer)

    def _secrets(self) -> list[str]:
        return secrets_of(self.candidate.provider, self.key)


def _is_uncharged(exc: BaseException) -> bool:
    """Providers charge nothing for a call that never arrived or was refused."""
    if isinstance(exc, GatewayError) and exc.status is not None:
        return True
    return isinstance(exc, Unreachable | Rejected | RateLimited | NoModel | InvalidInput)


def _kind(exc: BaseException | None) -> str:
    if exc is None:
        return ""
    if isinstance(exc, GatewayError):
        return exc.kind
    return "cancelled" if isinstance(exc, asyncio.CancelledError | GeneratorExit) else "error"


def broken(exc: GatewayError, where: str, partial: Message) -> StreamBroken:
    # A decoder that misses the end says just that.
    why = "." if exc.message == f"The answer of {where} has no end." else f": {exc.message}"
    return StreamBroken(
        f"The answer of {where} stopped halfway{why}",
        hint="What arrived is in the error's `partial`. Ask again, or go on from there.",
        partial=partial,
    )


#: Bytes a token, roughly, and what an image may take, in tokens.
_PER_TOKEN, _IMAGE = 3.5, 1_600
_LIMITS = ("max_tokens", "max_completion_tokens", "max_output_tokens")
#: Fields of `Usage`; what is above this, or below nothing, is no count.
_COUNTS = ("input", "output", "cache_read", "cache_write", "reasoning")
_MOST_TOKENS = 2**40


def estimate_request(request: Request) -> int:
    others: list[object] = [*request.tools]
    if request.shape is not None:
        others.append(request.shape.schema)
    return _estimate(request.messages, others)


def is_limited(body: Mapping[str, Any]) -> bool:
    return any(name in body for name in _LIMITS)


def longest_answer(body: Mapping[str, Any]) -> int | None:
    """How many tokens a body allows its answer to have; None if it names no number."""
    return max((body[name] for name in _LIMITS if isinstance(body.get(name), int)), default=None)


def credible(answer: ModelAnswer) -> ModelAnswer:
    usage = answer.message.usage
    if usage is None:
        return answer
    counts = {name: getattr(usage, name) for name in _COUNTS}
    if all(count is None or 0 <= count <= _MOST_TOKENS for count in counts.values()):
        return answer
    sane = {n: c if c is not None and 0 <= c <= _MOST_TOKENS else None for n, c in counts.items()}
    return replace(answer, message=replace(answer.message, usage=replace(usage, **sane)))


def _estimate(messages: Iterable[Message], others: Iterable[object] = ()) -> int:
    size = media = 0
    for message in messages:
        for part in message.parts:
            if isinstance(part, Media):
                media += 1
                continue
            words = words_of(part)
            # Outside of ASCII, tokens are nearer to bytes than to characters.
            plain = words if words.isascii() else words.encode("utf-8", "surrogatepass")
            size += len(plain)
    size += sum(len(str(other)) for other in others)
    return int(size / _PER_TOKEN) + media * _IMAGE + 8

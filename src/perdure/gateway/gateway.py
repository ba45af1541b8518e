"""The gateway: every model call of a bank goes through it.

reply = await bank.gateway.complete("What is a turn?")
async with bank.gateway.stream(Request(messages=…, tools=…), options) as stream:
    async for delta in stream:
        …
vectors = (await bank.gateway.embed(["a text"])).vectors
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, Literal, TypeVar

from msgspec.structs import replace

from perdure.config import GatewayConfig
from perdure.core import clock as clocks
from perdure.core.clock import Clock, new_id
from perdure.core.errors import BadAnswer, GatewayError, Unauthorized
from perdure.core.messages import Message, Text, Usage
from perdure.gateway import fallback, local, outcomes, requests, streams
from perdure.gateway.attempts import Attempt, GatewayState, ModelState, broken, is_limited
from perdure.gateway.batches.batch_apis import BatchLimits
from perdure.gateway.batches.batch_driver import BatchPace
from perdure.gateway.batches.batches import Batches
from perdure.gateway.breaker import BreakerPolicy
from perdure.gateway.budgets import Budget, BudgetStatus
from perdure.gateway.calls import (
    CallOptions,
    Delta,
    EmbedReply,
    ModelAnswer,
    Purpose,
    Reply,
    Request,
    check_embed_options,
    check_moment,
    check_options,
    check_purpose,
    check_score,
    check_texts,
    numbered,
    to_request,
)
from perdure.gateway.catalog import ModelCandidate, ModelCatalog
from perdure.gateway.fallback import Backoff, CandidateShare, OpenCalls
from perdure.gateway.ledger import Ledger
from perdure.gateway.model_memory import ModelMemory
from perdure.gateway.model_selection import (
    CandidateStatus,
    HealthSelector,
    ModelHealth,
    PreparedSelector,
    Selector,
)
from perdure.gateway.outcomes import Outcome, OutcomeRecorder
from perdure.gateway.prices import Prices
from perdure.gateway.provider_errors import overdue
from perdure.gateway.provider_keys import require_key
from perdure.gateway.providers import LOCAL, Provider
from perdure.gateway.reply_stream import ReplyStream, StartedStream, deltas_of
from perdure.gateway.response_cache import Mask, ResponseCache, key_of
from perdure.gateway.transport import Transport
from perdure.jobs import Runner
from perdure.storage.store import Store

R = TypeVar("R")

#: Longest pause, in seconds, that is waited for if no other candidate is left: most limits are by
#: the minute.
_PATIENCE = 60.0
#: Seconds that an answer waits until it is cached.
_CACHE_PATIENCE = 1.0
_PLAIN = CallOptions()
_EMBED = CallOptions(purpose="embed")


class Gateway:
    """Calls models. Made by the bank; for one event loop; `close` it at the end."""

    def __init__(
        self,
        store: Store,
        config: GatewayConfig | None = None,
        *,
        jobs: Runner | None = None,
        environ: Mapping[str, str] = os.environ,
        selector: Selector | None = None,
        mask: Mask | None = None,
        clock: Clock = clocks.now,
        tripping: BreakerPolicy | None = None,
        backoff: Backoff | None = None,
        health: ModelHealth | None = None,
        batch_pace: BatchPace | None = None,
        batch_limits: BatchLimits | None = None,
    ) -> None:
        """`jobs` writes outcomes when idle; without it, `settle` and `close` do. It drives batches,
        if `batch.drive` is registered there. An answer that `mask` would change is not cached.
        Raises `InvalidConfig`.
        """
        self.config = config = config or GatewayConfig()
        self.catalog = ModelCatalog(config, environ)
        self.prices = Prices.load(config.prices)
        self.health = health or ModelHealth()
        self.ledger = Ledger(store, [Budget.configured(each) for each in config.budgets], clock)
        self.recorder = OutcomeRecorder(store, jobs)
        self.memory = ModelMemory(store, self.health, jobs)
        self.cache = ResponseCache(store, config.cache_ttl, mask=mask)
        self.transport = Transport(connect=config.connect_timeout, silence=config.timeout)
        self.targets: dict[str, ModelState] = {}
        self.store = store
        self._clock = clock
        self._mask = mask
        self.selector: Selector = selector or HealthSelector()
        self._tripping = tripping
        self._backoff = backoff or Backoff(config.retries + 1, patience=_PATIENCE)
        self._open_calls = OpenCalls()
        self._state = GatewayState(
            self.catalog,
            self.ledger,
            self.recorder,
            self.memory,
            self.prices,
            self.health,
            environ,
            clock,
            config.timeout,
        )
        #: Many requests at once, at half price.
        self.batch = Batches(
            store,
            self._state,
            self.transport,
            jobs,
            self._candidates,
            lambda request, candidate, options: self._built(
                request, candidate, options, stream=False
            ),
            self.complete,
            mask=mask,
            enabled=config.batch,
            concurrency=config.batch_concurrency,
            pace=batch_pace or BatchPace(first=config.batch_poll),
            limits=batch_limits,
        )

    async def warm(self) -> None:
        """Load what the first call needs. Raises `InvalidConfig` for an unusable proxy."""
        await self.transport.warm()

    def has(self, purpose: Purpose) -> bool:
        """Whether a model is configured for this purpose. Raises `InvalidInput` if unknown."""
        check_purpose(purpose)
        return self.catalog.has(purpose)

    async def complete(self, request: Any, options: CallOptions = _PLAIN) -> Reply:
        """The answer of a model to a `Request`, or to anything that `wire.decode` takes.

        Raises `NoModel`, `BudgetReached`, `DeadlineExceeded`, `InvalidInput`; if all candidates
        failed, `AllFailed`, or the error of the only one.
        """
        given, options = to_request(request), numbered(check_options(options))

        async def call_model(candidate: ModelCandidate, share: CandidateShare) -> Reply:
            provider = candidate.provider
            call = self._built(given, candidate, options, stream=False)
            key = self._cache_key(candidate, options, call)
            if key is not None and (found := await self._cached(key, candidate, options, share)):
                return found
            model = self._model(candidate)
            attempt = Attempt(self._state, model, options, share, request=given, body=call.body)
            async with attempt:
                sent = await self.transport.post(
                    provider, call, attempt.key, timeout=attempt.timeout
                )
                attempt.observe(sent.headers)
                answered = streams.read_answer(provider.wire, sent.body, attempt.where)
                attempt.answered(answered)
            await self._keep(key, answered, attempt)
            return attempt.reply()

        return await self._first(options, call_model)

    def stream(self, request: Any, options: CallOptions = _PLAIN) -> ReplyStream:
        """The same, as it arrives. Candidates are tried until the first delta; a later failure is
        `StreamBroken` and is not retried, since the reader has seen a part.
        """
        given, options = to_request(request), numbered(check_options(options))

        async def start(candidate: ModelCandidate, share: CandidateShare) -> StartedStream:
            call = self._built(given, candidate, options, stream=True)
            key = self._cache_key(candidate, options, call)
            if key is not None and (found := await self._cached(key, candidate, options, share)):
                return StartedStream(deltas_of(found.message), lambda: found)
            attempt = Attempt(
                self._state,
                self._model(candidate),
                options,
                share,
                request=given,
                body=call.body,
                streamed=True,
            )
            deltas = self._exchange(attempt, call, key)
            started = StartedStream(deltas, attempt.reply, lambda: attempt.answer is not None)
            await started.wait()
            return started

        return ReplyStream(lambda: self._first(options, start), self._open_calls)

    async def embed(self, texts: Sequence[str], options: CallOptions = _EMBED) -> EmbedReply:
        """A vector for each text, in order. Raises as `complete`.

        The reply names the model: vectors of different models cannot be compared.
        """
        texts, options = check_texts(texts), numbered(check_embed_options(options))

        async def call_model(candidate: ModelCandidate, share: CandidateShare) -> EmbedReply:
            length = sum(map(len, texts)) // 3 + len(texts)
            attempt = Attempt(self._state, self._model(candidate), options, share, texts=length)
            async with attempt:
                vectors, usage = await self._vectors(texts, attempt)
                attempt.embedded(usage, len(vectors[0]) if vectors else 0)
            return EmbedReply(
                vectors=vectors,
                provider=candidate.provider.name,
                model=candidate.model,
                usage=usage,
                cost=attempt.cost,
                outcome=attempt.outcome,
            )

        return await self._first(options, call_model)

    async def feedback(
        self,
        outcome: str,
        score: float,
        comment: str = "",
        *,
        by: Literal["user", "judge"] = "user",
    ) -> None:
        """Rate an answer from 0 to 1, and say why; `outcome` is the reply's. Secrets in the comment
        are masked. Raises `InvalidInput`.
        """
        score = check_score(outcome, score)
        await self.recorder.feedback(outcome, score, by, self._masked(comment))

    def _masked(self, comment: str) -> str:
        if not comment or self._mask is None:
            return comment
        (masked,) = self._mask((Message("user", (Text(comment),)),))
        return masked.text

    async def costs(
        self,
        by: outcomes.By = "model",
        *,
        since: datetime | None = None,
        until: datetime | None = None,
        agent: str | None = None,
    ) -> list[outcomes.CostRow]:
        """The dearest group first, days in order; of one agent, if named. Raises `InvalidInput`."""
        since, until = check_moment("since", since), check_moment("until", until)
        await self.recorder.flush()
        rows = await outcomes.summary(self.store, by, since, until, agent=agent)
        return rows if by == "day" else sorted(rows, key=lambda row: (-(row.cost or 0), -row.calls))

    async def budgets(self) -> list[BudgetStatus]:
        return await self.ledger.status()

    async def has_key(self, provider: Provider) -> bool:
        try:
            await require_key(provider, self._state.environ)
        except Unauthorized:
            return False
        return True

    async def settle(self) -> None:
        await self._state.settle()
        await self.recorder.settle()
        await self.memory.flush()

    async def close(self) -> None:
        """End running calls with `Closed`, write what is left, disconnect."""
        await self._open_calls.close()
        await self._state.settle()
        await self.recorder.close()
        await self.memory.flush()
        await self.transport.close()

    async def _first(
        self,
        options: CallOptions,
        attempt: Callable[[ModelCandidate, CandidateShare], Awaitable[R]],
    ) -> R:
        return await fallback.first(
            options,
            await self._candidates(options),
            attempt,
            seconds=self.config.deadline if options.deadline is None else options.deadline,
            backoff=self._backoff,
            open_calls=self._open_calls,
        )

    async def _candidates(self, options: CallOptions) -> list[ModelCandidate]:
        await self.memory.load()
        if isinstance(self.selector, PreparedSelector):
            await self.selector.prepare(options)
        return self._ordered(options)

    def _ordered(self, options: CallOptions) -> list[ModelCandidate]:
        candidates = self.catalog.candidates(options)
        if len(candidates) == 1:
            return candidates
        task = options.task or options.purpose
        statuses = {
            candidate.name: CandidateStatus(
                state=model.breaker.state,
                health=self.health.view(task, model.name),
                paused=model.gate.view().paused,
            )
            for candidate in candidates
            if (model := self.known(candidate)) is not None
        }
        return self.selector.order(options, candidates, statuses)

    def known(self, candidate: ModelCandidate) -> ModelState | None:
        """None for a model of which nothing is known: neither called here nor remembered."""
        if candidate.name in self.targets or self.memory.knows(candidate.name):
            return self._model(candidate)
        return None

    def _model(self, candidate: ModelCandidate) -> ModelState:
        model = self.targets.get(candidate.name)
        if model is None:
            model = self.targets[candidate.name] = ModelState(candidate, self._tripping)
            self.memory.restore(candidate.name, model.breaker)
        return model

    def _built(
        self, request: Request, candidate: ModelCandidate, options: CallOptions, *, stream: bool
    ) -> requests.ProviderRequest:
        """The request body; under a budget it limits the answer, so that the reservation holds."""
        provider, model = candidate.provider, candidate.model
        if provider.name == LOCAL:
            raise local.cannot_chat(options.purpose)
        call = requests.build(request, provider, model, stream=stream)
        if not is_limited(call.body) and self.ledger.covers(options):
            request = replace(request, max_tokens=provider.habits.default_max_tokens)
            call = requests.build(request, provider, model, stream=stream)
        return call

    def _cache_key(
        self, candidate: ModelCandidate, options: CallOptions, call: requests.ProviderRequest
    ) -> str | None:
        if not (self.config.cache if options.cache is None else options.cache):
            return None
        provider = candidate.provider
        # Headers may say which version answers, and for whom.
        headers = {**call.headers, **provider.headers}
        address = f"{provider.base_url}{call.path}"
        return key_of(provider.name, address, candidate.model, call.body, headers)

    async def _cached(
        self, key: str, candidate: ModelCandidate, options: CallOptions, share: CandidateShare
    ) -> Reply | None:
        started = self._clock()
        found = await self.cache.get(key)
        if found is None:
            return None
        outcome = Outcome.of(
            options,
            candidate,
            id=new_id(),
            started=started,
            success=True,
            complexity=self.catalog.complexity(options),
            latency=max(0, self._clock() - started) / clocks.SECOND,
            cost=0,
            cached=True,
            fallback=share.position,
        )
        self.recorder.note(outcome)
        return Reply(
            message=found.message,
            finish=found.finish,
            provider=candidate.provider.name,
            model=candidate.model,
            cost=0,
            cached=True,
            outcome=outcome.id,
            fallback=share.position,
            latency=outcome.latency,
        )

    async def _keep(self, key: str | None, answered: ModelAnswer, attempt: Attempt) -> None:
        if key is None or attempt.holds_secret(answered.message):
            return
        options = attempt.options
        putting = self.cache.put(key, answered, agent=options.agent, session=options.session)
        # The answer is there: a bank that is slow must not hold it up for long.
        await self._state.carry_on(putting, patience=_CACHE_PATIENCE)

    async def _vectors(
        self, texts: Sequence[str], attempt: Attempt
    ) -> tuple[tuple[tuple[float, ...], ...], Usage | None]:
        provider, model = attempt.candidate.provider, attempt.candidate.model
        seconds = attempt.timeout
        if provider.name == LOCAL:
            try:
                async with asyncio.timeout(seconds):
                    return await local.embed(texts, model)
            except TimeoutError:
                raise overdue(
                    where=attempt.where, timeout=seconds, silence=0.0, began=False, silent=False
                ) from None
        call = requests.build_embeddings(texts, provider, model)
        sent = await self.transport.post(provider, call, attempt.key, timeout=seconds)
        attempt.observe(sent.headers)
        vectors, usage = streams.read_embeddings(sent.body)
        if len(vectors) != len(texts):
            raise BadAnswer(
                f"{attempt.where} gave {len(vectors)} vectors for {len(texts)} texts.",
                hint="Send fewer texts at a time, or use another model.",
            )
        return vectors, usage

    async def _exchange(
        self, attempt: Attempt, call: requests.ProviderRequest, key: str | None
    ) -> AsyncGenerator[Delta, None]:
        provider = attempt.candidate.provider
        decoder = streams.decoder(provider.wire, attempt.where)
        parser = streams.sse.EventParser()
        passed_on = False
        async with attempt:
            try:
                # A stream may take as long as the whole call may; not so to begin, or to go on.
                async with self.transport.stream(
                    provider, call, attempt.key, timeout=attempt.remaining, patience=attempt.timeout
                ) as incoming:
                    attempt.observe(incoming.headers)
                    async for chunk in incoming:
                        for event in parser.feed(chunk):
                            for delta in decoder.feed(event):
                                attempt.arrived()
                                passed_on = True
                                yield delta
                        if decoder.done:
                            await incoming.drain()
                            break
                    for event in parser.close():
                        for delta in decoder.feed(event):
                            passed_on = True
                            yield delta
                answered = decoder.finish()
            except GatewayError as exc:
                if not passed_on:
                    raise
                attempt.partial = decoder.so_far()
                raise broken(exc, attempt.where, attempt.partial) from exc
            except (asyncio.CancelledError, GeneratorExit):
                attempt.partial = decoder.so_far()
                raise
            attempt.answered(answered)
        await self._keep(key, answered, attempt)

"""The gateway: every model call of a bank goes through it.

    reply = await bank.gateway.complete("What is a turn?")
    async with bank.gateway.stream(Request(messages=…, tools=…), Ask(agent="planner")) as stream:
        async for delta in stream:
            …
    vectors = (await bank.gateway.embed(["a text"])).vectors

The walk of a call: `catalog` names the candidates for its purpose and complexity, the selector puts
them in order, and they are tried one after the other under one deadline, each of them again where
that makes sense (`chain`). `trial` is one try. The answer may come from the cache instead.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from datetime import datetime
from types import MappingProxyType
from typing import Any, Literal, TypeVar

from msgspec.structs import replace

from perdure.config import GatewayConfig
from perdure.core import clock as clocks
from perdure.core.clock import Clock
from perdure.core.errors import BadAnswer, GatewayError, Unauthorized
from perdure.core.messages import Usage
from perdure.gateway import chain, estimates, intake, local, outcomes, requests, streams
from perdure.gateway.answers import Answers
from perdure.gateway.books import Books, Target
from perdure.gateway.breaker import Tripping
from perdure.gateway.budgets import Budget
from perdure.gateway.builtin import LOCAL
from perdure.gateway.cache import Mask, ResponseCache
from perdure.gateway.calls import Ask, Delta, Embedded, Purpose, Reply, Request
from perdure.gateway.catalog import Candidate, Catalog
from perdure.gateway.chain import Leg
from perdure.gateway.flights import Flights
from perdure.gateway.health import Health
from perdure.gateway.ledger import Ledger
from perdure.gateway.outcomes import Recorder
from perdure.gateway.pots import Standing as BudgetStanding
from perdure.gateway.prices import Prices
from perdure.gateway.providers import Provider
from perdure.gateway.retries import Backoff
from perdure.gateway.selector import ByHealth, Selector, Standing
from perdure.gateway.stream import Begun, Stream, deltas_of
from perdure.gateway.transport import Transport
from perdure.gateway.trial import Trial, broken
from perdure.storage.store import Store

R = TypeVar("R")

#: Seconds that a provider may ask to be left alone for and is waited for, if no other is left:
#: most limits are by the minute.
_PATIENCE = 60.0
_EMPTY: Mapping[str, Any] = MappingProxyType({})
_PLAIN = Ask()
_EMBED = Ask(purpose="embed")


class Gateway:
    """Calls models. Made by the bank; for one event loop; `close` it at the end."""

    def __init__(
        self,
        store: Store,
        config: GatewayConfig | None = None,
        *,
        environ: Mapping[str, str] = os.environ,
        selector: Selector | None = None,
        mask: Mask | None = None,
        clock: Clock = clocks.now,
        tripping: Tripping | None = None,
        backoff: Backoff | None = None,
        health: Health | None = None,
    ) -> None:
        """`mask` hides secrets; an answer that it would change is not cached.

        Raises `InvalidConfig` if something in the configuration cannot be used.
        """
        self.config = config = config or GatewayConfig()
        self.catalog = Catalog(config, environ)
        self.prices = Prices.load(config.prices)
        self.health = health or Health()
        self.ledger = Ledger(store, [Budget.configured(each) for each in config.budgets], clock)
        self.recorder = Recorder(store)
        self.cache = ResponseCache(store, config.cache_ttl, mask=mask)
        self.transport = Transport(connect=config.connect_timeout, silence=config.timeout)
        self.targets: dict[str, Target] = {}
        self.store = store
        self._clock = clock
        self._selector = selector or ByHealth()
        self._tripping = tripping
        self._backoff = backoff or Backoff(config.retries + 1, patience=_PATIENCE)
        self._flights = Flights()
        self._books = Books(
            self.ledger, self.recorder, self.prices, self.health, environ=environ, clock=clock
        )
        self._answers = Answers(self.cache, self.catalog, self._books, by_default=config.cache)

    def has(self, purpose: Purpose) -> bool:
        """Whether any model is configured for this purpose.

        Who has an algorithmic way asks first, and takes that way if there is none. Raises
        `InvalidInput` if there is no such purpose.
        """
        intake.purpose(purpose)
        return self.catalog.has(purpose)

    # Calls ------------------------------------------------------------------------------------

    async def complete(self, request: Any, ask: Ask = _PLAIN) -> Reply:
        """What a model answers.

        `request` is a `Request`, or anything that `wire.decode` takes: a text, messages.

        Raises `NoModel` if none is configured, `BudgetReached`, `DeadlineExceeded`, `InvalidInput`
        for a request that no provider could make sense of. If all candidates failed, `AllFailed`
        with what each failed with; if there was but one, its own error.
        """
        given, ask = intake.request(request), intake.asking(ask)

        async def attempt(candidate: Candidate, leg: Leg) -> Reply:
            provider = candidate.provider
            call = self._built(given, candidate, ask, stream=False)
            key = self._answers.key(candidate, ask, call)
            if key is not None and (found := await self._answers.find(key, candidate, ask, leg)):
                return found
            trial = self._trial(candidate, ask, leg, request=given, body=call.body)
            async with trial:
                sent = await self.transport.post(provider, call, trial.key, timeout=trial.timeout)
                trial.observe(sent.headers)
                answered = streams.read_answer(provider.wire, sent.body, trial.where)
                trial.answered(answered)
            await self._answers.keep(key, answered, trial)
            return trial.reply()

        return await self._first(ask, attempt)

    def stream(self, request: Any, ask: Ask = _PLAIN) -> Stream:
        """The same, as it arrives; see `Stream`.

        Until the first thing arrives, candidates are tried as for `complete`. What fails later is
        `StreamBroken`: it is not begun again by itself, since its reader has seen a part.
        """
        given, ask = intake.request(request), intake.asking(ask)

        async def begin(candidate: Candidate, leg: Leg) -> Begun:
            call = self._built(given, candidate, ask, stream=True)
            key = self._answers.key(candidate, ask, call)
            if key is not None and (found := await self._answers.find(key, candidate, ask, leg)):
                return Begun(deltas_of(found.message), lambda: found)
            trial = self._trial(candidate, ask, leg, request=given, body=call.body, streamed=True)
            begun = Begun(self._exchange(trial, call, key), trial.reply, lambda: trial.is_answered)
            await begun.wait()
            return begun

        return Stream(lambda: self._first(ask, begin), self._flights)

    async def embed(self, texts: Sequence[str], ask: Ask = _EMBED) -> Embedded:
        """A vector for each text, in their order.

        The reply names the model: vectors of different models cannot be compared. Raises as
        `complete`.
        """
        texts, ask = intake.texts(texts), intake.embedding(ask)

        async def attempt(candidate: Candidate, leg: Leg) -> Embedded:
            length = sum(map(len, texts)) // 3 + len(texts)
            trial = self._trial(candidate, ask, leg, texts=length)
            async with trial:
                vectors, usage = await self._vectors(texts, trial)
                trial.embedded(usage, len(vectors[0]) if vectors else 0)
            return Embedded(
                vectors=vectors,
                provider=candidate.provider.name,
                model=candidate.model,
                usage=usage,
                cost=trial.cost,
                outcome=trial.outcome,
            )

        return await self._first(ask, attempt)

    async def feedback(
        self, outcome: str, score: float, *, by: Literal["user", "judge"] = "user"
    ) -> None:
        """Say how good an answer was, from 0 to 1; `outcome` is the reply's.

        Raises `InvalidInput` if there is no such outcome, or score, or judge.
        """
        await self.recorder.feedback(outcome, intake.judgement(outcome, score), by)

    # What happened ----------------------------------------------------------------------------

    async def costs(
        self,
        by: outcomes.By = "model",
        *,
        since: datetime | None = None,
        until: datetime | None = None,
    ) -> list[outcomes.Row]:
        """What calls took and cost, in groups: the dearest first, days in their order.

        Raises `InvalidInput` for a group that there is not, and for a moment that is none.
        """
        since, until = intake.moment("since", since), intake.moment("until", until)
        await self.recorder.flush()
        rows = await outcomes.summary(self.store, by, since, until)
        return rows if by == "day" else sorted(rows, key=lambda row: (-(row.cost or 0), -row.calls))

    async def budgets(self) -> list[BudgetStanding]:
        """How the budgets stand."""
        return await self.ledger.status()

    async def has_key(self, provider: Provider) -> bool:
        """Whether calls to a provider have the key that they need."""
        try:
            await self._books.key(provider)
        except Unauthorized:
            return False
        return True

    async def settle(self) -> None:
        """Wait until everything that happened is written."""
        await self._books.settled()

    async def close(self) -> None:
        """End the calls that are under way, with `Closed`; write what is left; disconnect."""
        await self._flights.close()
        await self._books.close()
        await self.transport.close()

    # ------------------------------------------------------------------------------------------

    async def _first(self, ask: Ask, attempt: Callable[[Candidate, Leg], Awaitable[R]]) -> R:
        """What the first candidate that answers answers."""
        return await chain.first(
            ask,
            self._ordered(ask),
            attempt,
            seconds=self.config.deadline if ask.deadline is None else ask.deadline,
            backoff=self._backoff,
            flights=self._flights,
        )

    def _ordered(self, ask: Ask) -> list[Candidate]:
        candidates = self.catalog.candidates(ask)
        if len(candidates) == 1:
            return candidates
        standings = {
            candidate.name: self._standing(ask, target)
            for candidate in candidates
            if (target := self.targets.get(candidate.name)) is not None
        }
        return self._selector.order(ask, candidates, standings)

    def _standing(self, ask: Ask, target: Target) -> Standing:
        return Standing(
            state=target.breaker.state,
            health=self.health.view(ask.task or ask.purpose, target.name),
            paused=target.gate.view().paused,
        )

    def _trial(
        self,
        candidate: Candidate,
        ask: Ask,
        leg: Leg,
        *,
        request: Request | None = None,
        body: Mapping[str, Any] = _EMPTY,
        texts: int = 0,
        streamed: bool = False,
    ) -> Trial:
        target = self.targets.get(candidate.name)
        if target is None:
            target = self.targets[candidate.name] = Target(candidate, self._tripping)
        return Trial(
            self._books,
            target,
            ask,
            self.catalog.complexity(ask),
            leg,
            timeout=self.config.timeout,
            request=request,
            body=body,
            texts=texts,
            streamed=streamed,
        )

    def _built(
        self, request: Request, candidate: Candidate, ask: Ask, *, stream: bool
    ) -> requests.Call:
        """What is sent; under a budget it limits the answer, so that what is reserved holds."""
        provider, model = candidate.provider, candidate.model
        if provider.name == LOCAL:
            raise local.cannot_chat(ask.purpose)
        call = requests.build(request, provider, model, stream=stream)
        if not estimates.is_limited(call.body) and self.ledger.covers(ask):
            request = replace(request, max_tokens=provider.habits.default_max_tokens)
            call = requests.build(request, provider, model, stream=stream)
        return call

    async def _vectors(
        self, texts: Sequence[str], trial: Trial
    ) -> tuple[tuple[tuple[float, ...], ...], Usage | None]:
        provider, model = trial.candidate.provider, trial.candidate.model
        seconds = trial.timeout
        if provider.name == LOCAL:
            try:
                async with asyncio.timeout(seconds):
                    return await local.embed(texts, model)
            except TimeoutError:
                from perdure.gateway import outages

                raise outages.overdue(
                    where=trial.where, timeout=seconds, silence=0.0, began=False, silent=False
                ) from None
        call = requests.build_embeddings(texts, provider, model)
        sent = await self.transport.post(provider, call, trial.key, timeout=seconds)
        trial.observe(sent.headers)
        vectors, usage = streams.read_embeddings(sent.body)
        if len(vectors) != len(texts):
            raise BadAnswer(
                f"{trial.where} gave {len(vectors)} vectors for {len(texts)} texts.",
                hint="Send fewer texts at a time, or use another model.",
            )
        return vectors, usage

    async def _exchange(
        self, trial: Trial, call: requests.Call, key: str | None
    ) -> AsyncGenerator[Delta, None]:
        """What arrives of one answer."""
        provider = trial.candidate.provider
        decoder = streams.decoder(provider.wire, trial.where)
        parser = streams.sse.Parser()
        passed_on = False
        async with trial:
            try:
                # A stream may take as long as the whole call may; not so to begin, or to go on.
                async with self.transport.stream(
                    provider, call, trial.key, timeout=trial.remaining, patience=trial.timeout
                ) as incoming:
                    trial.observe(incoming.headers)
                    async for chunk in incoming:
                        for event in parser.feed(chunk):
                            for delta in decoder.feed(event):
                                trial.arrived()
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
                trial.partial = decoder.so_far()
                raise broken(exc, trial.where, trial.partial) from exc
            except (asyncio.CancelledError, GeneratorExit):
                trial.partial = decoder.so_far()
                raise
            trial.answered(answered)
        await self._answers.keep(key, answered, trial)

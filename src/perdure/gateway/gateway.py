"""The gateway: every model call of a bank goes through it.

    reply = await bank.gateway.complete("What is a turn?")
    async with bank.gateway.stream(Request(messages=…, tools=…), Ask(agent="planner")) as stream:
        async for delta in stream:
            …
    vectors = (await bank.gateway.embed(["a text"])).vectors

The walk of a call: `catalog` names the candidates for its purpose and complexity, the selector puts
them in order, and they are tried one after the other under one deadline, each of them again where
that makes sense (`retries`). `trial` is one try. The answer may come from the cache instead.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, TypeVar

from perdure import wire
from perdure.config import GatewayConfig
from perdure.core import clock as clocks
from perdure.core.clock import Clock
from perdure.core.errors import (
    AllFailed,
    BudgetReached,
    DeadlineExceeded,
    GatewayError,
    InvalidInput,
    StreamBroken,
    Unauthorized,
)
from perdure.core.ids import new_id
from perdure.core.messages import Usage
from perdure.gateway import local, outcomes, requests, retries, streams
from perdure.gateway.budgets import Budget
from perdure.gateway.builtin import LOCAL
from perdure.gateway.cache import Mask, ResponseCache, key_of
from perdure.gateway.calls import Answered, Ask, Delta, Embedded, Purpose, Reply, Request
from perdure.gateway.catalog import Candidate, Catalog
from perdure.gateway.health import Health
from perdure.gateway.ledger import Ledger
from perdure.gateway.ledger import Standing as BudgetStanding
from perdure.gateway.outcomes import Outcome, Recorder
from perdure.gateway.prices import Prices
from perdure.gateway.providers import Provider
from perdure.gateway.retries import Backoff, Deadline
from perdure.gateway.selector import ByHealth, Selector, Standing
from perdure.gateway.stream import Begun, Stream, deltas_of
from perdure.gateway.transport import Transport
from perdure.gateway.trial import Books, Target, Trial, broken
from perdure.storage.store import Store

R = TypeVar("R")

#: Where another candidate is left, a provider that wants to be left alone for longer than this is
#: not waited for.
_PATIENCE = 2.0
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
    ) -> None:
        """Raises `InvalidConfig` if something in the configuration cannot be used."""
        self.config = config = config or GatewayConfig()
        self.catalog = Catalog(config, environ)
        self.prices = Prices.load(config.prices)
        self.health = Health()
        self.ledger = Ledger(store, [Budget.configured(each) for each in config.budgets], clock)
        self.recorder = Recorder(store)
        self.cache = ResponseCache(store, config.cache_ttl, mask=mask)
        self.transport = Transport(connect=config.connect_timeout, silence=config.timeout)
        self.targets: dict[str, Target] = {}
        self._store = store
        self._clock = clock
        self._selector = selector or ByHealth()
        self._books = Books(
            self.ledger, self.recorder, self.prices, self.health, environ=environ, clock=clock
        )

    def has(self, purpose: Purpose) -> bool:
        """Whether any model is configured for this purpose.

        Who has an algorithmic way asks first, and takes that way if there is none.
        """
        return self.catalog.has(purpose)

    # Calls ------------------------------------------------------------------------------------

    async def complete(self, request: Any, ask: Ask = _PLAIN) -> Reply:
        """What a model answers.

        `request` is a `Request`, or anything that `wire.decode` takes: a text, messages.

        Raises `NoModel` if none is configured, `BudgetReached`, `DeadlineExceeded`, `InvalidInput`
        for a request that no provider could make sense of. If all candidates failed, `AllFailed`
        with what each failed with; if there was but one, its own error.
        """
        asked = _request(request)

        async def attempt(candidate: Candidate, position: int, deadline: Deadline) -> Reply:
            call = requests.build(
                asked, self._chatting(candidate, ask), candidate.model, stream=False
            )
            key = self._cache_key(candidate, ask, call.body)
            if key is not None and (found := await self._cached(key, candidate, ask, position)):
                return found
            trial = self._trial(candidate, ask, deadline, request=asked, position=position)
            async with trial:
                provider = candidate.provider
                sent = await self.transport.post(
                    provider, call, trial.key, timeout=self._timeout(deadline)
                )
                trial.observe(sent.headers)
                answered = streams.read_answer(provider.wire, sent.body, trial.where)
                trial.answered(answered)
            await self._keep(key, answered, ask)
            return trial.reply()

        return await self._first(ask, attempt)

    def stream(self, request: Any, ask: Ask = _PLAIN) -> Stream:
        """The same, as it arrives; see `Stream`.

        Until the first thing arrives, candidates are tried as for `complete`. What fails later is
        `StreamBroken`: it is not begun again by itself, since its reader has seen a part.
        """
        asked = _request(request)

        async def begin(candidate: Candidate, position: int, deadline: Deadline) -> Begun:
            provider = self._chatting(candidate, ask)
            call = requests.build(asked, provider, candidate.model, stream=True)
            key = self._cache_key(candidate, ask, call.body)
            if key is not None and (found := await self._cached(key, candidate, ask, position)):
                return Begun(deltas_of(found.message), lambda: found)
            trial = self._trial(
                candidate, ask, deadline, request=asked, position=position, streamed=True
            )
            begun = Begun(self._exchange(trial, call, deadline, key), trial.reply)
            await begun.wait()
            return begun

        return Stream(lambda: self._first(ask, begin))

    async def embed(self, texts: Sequence[str], ask: Ask = _EMBED) -> Embedded:
        """A vector for each text, in their order.

        The reply names the model: vectors of different models cannot be compared. Raises as
        `complete`.
        """
        if isinstance(texts, str) or not texts:
            raise InvalidInput("There is nothing to embed.", hint="Give a list of texts.")
        if ask.purpose != "embed":
            raise InvalidInput(
                f"Texts are not embedded for {ask.purpose}.", hint='Use Ask(purpose="embed").'
            )

        async def attempt(candidate: Candidate, position: int, deadline: Deadline) -> Embedded:
            provider, model = candidate.provider, candidate.model
            length = sum(map(len, texts)) // 4 + 1
            trial = self._trial(candidate, ask, deadline, texts=length, position=position)
            async with trial:
                vectors, usage = await self._vectors(texts, trial, deadline)
                trial.embedded(usage, len(vectors[0]) if vectors else 0)
            return Embedded(
                vectors=vectors,
                provider=provider.name,
                model=model,
                usage=usage,
                cost=trial.cost,
                outcome=trial.outcome,
            )

        return await self._first(ask, attempt)

    async def feedback(self, outcome: str, score: float, *, by: str = "user") -> None:
        """Say how good an answer was, from 0 to 1; `outcome` is the reply's.

        Raises `InvalidInput` if there is no such outcome, or score, or judge.
        """
        await self.recorder.feedback(outcome, score, by)  # type: ignore[arg-type]  # it is checked

    # What happened ----------------------------------------------------------------------------

    async def costs(
        self,
        by: outcomes.By = "model",
        *,
        since: datetime | None = None,
        until: datetime | None = None,
    ) -> list[outcomes.Row]:
        """What calls took and cost, in groups, the dearest first."""
        await self.recorder.flush()
        return await outcomes.summary(self._store, by, since, until)

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

    async def reach(self, candidate: Candidate, *, seconds: float) -> None:
        """See whether a model's server is there and takes the key; no tokens are spent.

        Raises the `GatewayError` that a call would meet there.
        """
        provider = candidate.provider
        if provider.name != LOCAL:
            key = await self._books.key(provider)
            await self.transport.reach(provider, key, timeout=seconds)

    async def settle(self) -> None:
        """Wait until everything that happened is written."""
        await self._books.settled()

    async def close(self) -> None:
        """Write what is left and end the connections."""
        await self._books.close()
        await self.transport.close()

    # ------------------------------------------------------------------------------------------

    async def _first(
        self, ask: Ask, attempt: Callable[[Candidate, int, Deadline], Awaitable[R]]
    ) -> R:
        """What the first candidate that answers answers."""
        seconds = self.config.deadline if ask.deadline is None else ask.deadline
        deadline = Deadline(seconds)
        candidates = self._ordered(ask)
        errors = list[GatewayError]()
        for position, candidate in enumerate(candidates):
            policy = self._policy(is_last=position == len(candidates) - 1)
            tries = 0
            while True:
                tries += 1
                if deadline.passed:
                    raise _late(seconds, errors)
                try:
                    return await attempt(candidate, position, deadline)
                except (StreamBroken, BudgetReached):
                    raise
                except GatewayError as exc:
                    errors.append(exc)
                    wait = retries.pause(
                        policy,
                        tries,
                        exc,
                        remaining=deadline.remaining(),
                        random=random.random,
                    )
                    if wait is None:
                        break
                    await asyncio.sleep(wait)
        if deadline.passed:
            raise _late(seconds, errors)
        raise _failed(ask, candidates, errors)

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

    def _policy(self, *, is_last: bool) -> Backoff:
        attempts = self.config.retries + 1
        return Backoff(attempts) if is_last else Backoff(attempts, patience=_PATIENCE)

    def _trial(
        self,
        candidate: Candidate,
        ask: Ask,
        deadline: Deadline,
        *,
        request: Request | None = None,
        texts: int = 0,
        position: int = 0,
        streamed: bool = False,
    ) -> Trial:
        target = self.targets.get(candidate.name)
        if target is None:
            target = self.targets[candidate.name] = Target(candidate)
        return Trial(
            self._books,
            target,
            ask,
            self.catalog.complexity(ask),
            deadline,
            request=request,
            texts=texts,
            position=position,
            streamed=streamed,
        )

    def _timeout(self, deadline: Deadline) -> float:
        return min(self.config.timeout, deadline.remaining())

    @staticmethod
    def _chatting(candidate: Candidate, ask: Ask) -> Any:
        if candidate.provider.name == LOCAL:
            raise local.cannot_chat(ask.purpose)
        return candidate.provider

    async def _vectors(
        self, texts: Sequence[str], trial: Trial, deadline: Deadline
    ) -> tuple[tuple[tuple[float, ...], ...], Usage | None]:
        provider, model = trial.candidate.provider, trial.candidate.model
        if provider.name == LOCAL:
            return await local.embed(texts, model)
        call = requests.build_embeddings(texts, provider, model)
        sent = await self.transport.post(provider, call, trial.key, timeout=self._timeout(deadline))
        trial.observe(sent.headers)
        return streams.read_embeddings(sent.body)

    async def _exchange(
        self, trial: Trial, call: requests.Call, deadline: Deadline, key: str | None
    ) -> AsyncIterator[Delta]:
        """What arrives of one answer."""
        provider = trial.candidate.provider
        decoder = streams.decoder(provider.wire, trial.where)
        parser = streams.sse.Parser()
        passed_on = False
        async with trial:
            try:
                # A stream may take as long as the call may; how long it may be silent is bounded.
                async with self.transport.stream(
                    provider, call, trial.key, timeout=deadline.remaining()
                ) as incoming:
                    trial.observe(incoming.headers)
                    async for chunk in incoming:
                        for event in parser.feed(chunk):
                            for delta in decoder.feed(event):
                                trial.arrived()
                                passed_on = True
                                yield delta
                        if decoder.done:
                            break
                    for event in parser.close():
                        for delta in decoder.feed(event):
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
        await self._keep(key, answered, trial.ask)

    # The cache --------------------------------------------------------------------------------

    def _cache_key(self, candidate: Candidate, ask: Ask, body: Mapping[str, Any]) -> str | None:
        wanted = self.config.cache if ask.cache is None else ask.cache
        if not wanted:
            return None
        provider = candidate.provider
        return key_of(provider.name, provider.base_url, candidate.model, body)

    async def _cached(
        self, key: str, candidate: Candidate, ask: Ask, position: int
    ) -> Reply | None:
        started = self._clock()
        found = await self.cache.get(key)
        if found is None:
            return None
        id, took = new_id(), max(0, self._clock() - started) / clocks.SECOND
        provider, model = candidate.provider.name, candidate.model
        self.recorder.note(
            Outcome(
                id=id,
                started=started,
                purpose=ask.purpose,
                provider=provider,
                model=model,
                success=True,
                agent=ask.agent,
                session=ask.session,
                task=ask.task,
                complexity=self.catalog.complexity(ask),
                latency=took,
                cost=0,
                cached=True,
                fallback=position,
            )
        )
        return Reply(
            message=found.message,
            finish=found.finish,
            provider=provider,
            model=model,
            cost=0,
            cached=True,
            outcome=id,
            fallback=position,
            latency=took,
        )

    async def _keep(self, key: str | None, answered: Answered, ask: Ask) -> None:
        if key is not None:
            await self.cache.put(key, answered, agent=ask.agent, session=ask.session)


def _request(given: Any) -> Request:
    if isinstance(given, Request):
        return given
    messages = wire.decode(given)
    if not messages:
        raise InvalidInput("There are no messages to send.", hint="Give at least one.")
    return Request(messages=messages)


def _late(seconds: float, errors: Sequence[GatewayError]) -> DeadlineExceeded:
    last = f" The last try: {errors[-1].message}" if errors else ""
    return DeadlineExceeded(
        f"No model answered within {seconds:g} s.{last}",
        hint="Allow more time (Ask.deadline, or gateway.deadline), or add a faster model.",
    )


def _failed(
    ask: Ask, candidates: Sequence[Candidate], errors: Sequence[GatewayError]
) -> GatewayError:
    if len(candidates) == 1 and errors:
        return errors[-1]
    said = " ".join(dict.fromkeys(error.message for error in errors[-3:]))
    return AllFailed(
        f"None of {len(candidates)} models for {ask.purpose} answered, in {len(errors)} tries."
        f" {said}",
        hint="`perdure models` shows how they stand; the error's `errors` has all reasons.",
        errors=tuple(errors),
    )

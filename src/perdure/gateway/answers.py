"""Answers that the cache has, as replies to calls."""

from __future__ import annotations

from perdure.core import clock as clocks
from perdure.core.ids import new_id
from perdure.gateway.books import Books
from perdure.gateway.cache import ResponseCache, key_of
from perdure.gateway.calls import Answered, Ask, Reply
from perdure.gateway.catalog import Candidate, Catalog
from perdure.gateway.chain import Leg
from perdure.gateway.outcomes import Outcome
from perdure.gateway.requests import Call
from perdure.gateway.trial import Trial

#: Seconds that an answer waits until it is cached.
_PATIENCE = 1.0


class Answers:
    """The response cache, as calls use it."""

    def __init__(
        self, cache: ResponseCache, catalog: Catalog, books: Books, *, by_default: bool
    ) -> None:
        self._cache = cache
        self._catalog = catalog
        self._books = books
        self._by_default = by_default

    def key(self, candidate: Candidate, ask: Ask, call: Call) -> str | None:
        """The key of a request; None if it is not to be cached."""
        if not (self._by_default if ask.cache is None else ask.cache):
            return None
        provider = candidate.provider
        # Headers may say which version answers, and for whom.
        headers = {**call.headers, **provider.headers}
        place = f"{provider.base_url}{call.path}"
        return key_of(provider.name, place, candidate.model, call.body, headers)

    async def find(self, key: str, candidate: Candidate, ask: Ask, leg: Leg) -> Reply | None:
        """The answer to the same request, noted as an outcome that cost nothing; or None."""
        started = self._books.clock()
        found = await self._cache.get(key)
        if found is None:
            return None
        id, took = new_id(), max(0, self._books.clock() - started) / clocks.SECOND
        provider, model = candidate.provider.name, candidate.model
        self._books.recorder.note(
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
                complexity=self._catalog.complexity(ask),
                latency=took,
                cost=0,
                cached=True,
                fallback=leg.position,
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
            fallback=leg.position,
            latency=took,
        )

    async def keep(self, key: str | None, answered: Answered, trial: Trial) -> None:
        """Cache an answer, if its request has a key and nothing in it is secret."""
        if key is None or trial.holds_secret(answered.message):
            return
        ask = trial.ask
        putting = self._cache.put(key, answered, agent=ask.agent, session=ask.session)
        # The answer is there: a bank that is slow must not hold it up for long.
        await self._books.carry_on(putting, patience=_PATIENCE)

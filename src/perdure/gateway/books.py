"""What all calls of a gateway share: the models as they stand, and what is noted about calls."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping
from typing import Any

from perdure.core.clock import Clock
from perdure.core.errors import Unauthorized
from perdure.gateway import keys
from perdure.gateway.breaker import Breaker, Tripping
from perdure.gateway.catalog import Candidate
from perdure.gateway.health import Health
from perdure.gateway.ledger import Ledger
from perdure.gateway.limits import Gate
from perdure.gateway.outcomes import Recorder
from perdure.gateway.prices import Prices
from perdure.gateway.providers import Provider


async def key_of(provider: Provider, environ: Mapping[str, str]) -> str | None:
    """A provider's key. Raises `Unauthorized` if one is needed and there is none."""
    if not provider.key_variable:
        return None
    found = await keys.key_for(provider, environ)
    if found is None and provider.needs_key:
        raise Unauthorized(
            f"There is no key for {provider.name}.",
            hint=f"Set {provider.key_variable}, or keep it in the system's keyring:"
            f" keyring set {keys.SERVICE} {provider.key_variable}.",
        )
    return None if found is None else found.reveal()


class Target:
    """A model that was called, and how it stands."""

    def __init__(self, candidate: Candidate, tripping: Tripping | None = None) -> None:
        self.candidate = candidate
        self.name = candidate.name
        self.breaker = Breaker(self.name, tripping)
        self.gate = Gate(self.name, concurrency=candidate.provider.concurrency)


class Books:
    """Where calls find keys and budgets, and leave what became of them."""

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
        self._chores: set[asyncio.Task[Any]] = set()

    async def key(self, provider: Provider) -> str | None:
        """The key. Raises `Unauthorized` if one is needed and there is none."""
        return await key_of(provider, self.environ)

    async def carry_on(self, chore: Coroutine[Any, Any, object], *, patience: float) -> None:
        """Wait for something that must not fail, and not for long: it is done in any case."""
        task = asyncio.create_task(chore)
        self._chores.add(task)
        task.add_done_callback(self._chores.discard)
        await asyncio.wait([task], timeout=patience)

    async def settled(self) -> None:
        """Wait until everything that happened is written."""
        await self._drained()
        await self.recorder.flush()

    async def close(self) -> None:
        """Write what is left."""
        await self._drained()
        await self.recorder.close()

    async def _drained(self) -> None:
        while self._chores:
            await asyncio.wait(self._chores)
        await self.ledger.close()

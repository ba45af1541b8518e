"""Never two reflections of one agent at once: a lease, renewed while the work goes on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from perdure.core.clock import SECOND, new_id, to_datetime
from perdure.core.errors import Conflict, PerdureError
from perdure.reflection.reflection_records import ReflectionLease
from perdure.storage.options import STRONG
from perdure.storage.store import Store
from perdure.storage.transaction import Transaction

#: Seconds after which a process that says nothing has lost it.
LEASE = 60.0


class LeaseHolder:
    """The right to reflect for an agent, until it is lost."""

    def __init__(self, store: Store, agent: str, seconds: float) -> None:
        self._store = store
        self._agent = agent
        self._seconds = seconds
        self.owner = new_id()

    async def take(self) -> None:
        """Raises `Conflict` if another process has it."""

        async def body(transaction: Transaction) -> ReflectionLease | None:
            leases = transaction.collection(ReflectionLease)
            found = await leases.get(self._agent)
            if found is not None and found.owner != self.owner and found.until > transaction.now():
                return found
            await leases.put(self._mine())
            return None

        other = await self._store.transact(body, STRONG)
        if other is not None:
            raise Conflict(
                "reflection",
                self._agent,
                message=f"Another process reflects for {self._agent} now.",
                hint=f"Wait for it; if it died, its lease runs out at"
                f" {to_datetime(other.until):%H:%M:%S} UTC.",
            )

    async def refusal(self, transaction: Transaction) -> Conflict | None:
        """Why nothing is to be committed, if so: another process took over. If one does so
        meanwhile, the commit fails.
        """
        found = await transaction.collection(ReflectionLease).get(self._agent)
        if found is not None and found.owner == self.owner:
            return None
        return Conflict(
            "reflection",
            self._agent,
            message=f"Another process took over the reflection of {self._agent}.",
            hint="It goes on there.",
        )

    async def renew(self) -> None:
        while True:
            await asyncio.sleep(self._seconds / 3)
            with suppress(PerdureError):  # whoever commits checks it
                await self.take()

    async def release(self) -> None:
        async def body(transaction: Transaction) -> None:
            leases = transaction.collection(ReflectionLease)
            found = await leases.get(self._agent)
            if found is not None and found.owner == self.owner:
                await leases.delete(self._agent)

        with suppress(PerdureError):  # it runs out by itself
            await self._store.transact(body)

    def _mine(self) -> ReflectionLease:
        until = self._store.now() + int(self._seconds * SECOND)
        return ReflectionLease(self._agent, self.owner, until)


@asynccontextmanager
async def held(store: Store, agent: str, seconds: float = LEASE) -> AsyncIterator[LeaseHolder]:
    """Hold the lease of an agent. Raises `Conflict` if another process has it."""
    lease = LeaseHolder(store, agent, seconds)
    await lease.take()
    renewing = asyncio.create_task(lease.renew(), name="perdure-reflection-lease")
    try:
        yield lease
    finally:
        renewing.cancel()
        await asyncio.wait({renewing})
        await lease.release()

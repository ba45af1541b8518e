"""The lease of an agent: one process at a time writes for it, and a late one cannot.

The row holds a token that grows with each holder. Every write transaction of the agent reads the
row first (`HeldLease.check`): the store compares its version at the commit, so what a process
writes that was overtaken, stopped or cut off is refused as a whole, however late it comes. Side
effects outside the store cannot be fenced: see `agent_tools`.

A lease is taken over at once if its process is dead and was on this host; from another host when
its time has run out, or when it has not been renewed for as long while we looked, whatever the
clocks say.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from contextlib import suppress

import msgspec

from perdure.agents.agent_records import AgentLease
from perdure.agents.process_identity import ProcessIdentity, is_dead, this_process
from perdure.core.clock import SECOND, new_id
from perdure.core.errors import Conflict, LeaseLost, PerdureError
from perdure.storage.store import Store
from perdure.storage.transaction import Transaction

_log = logging.getLogger("perdure.agents")


class HeldLease:
    """The right to write for an agent."""

    def __init__(self, agent: str, token: int, owner: str) -> None:
        self.agent = agent
        self.token = token
        self.owner = owner
        self.lost = False
        self.renewed = time.monotonic()

    async def check(self, transaction: Transaction) -> None:
        """Before the first write of each transaction. Raises `LeaseLost`."""
        found = await transaction.collection(AgentLease).get(self.agent)
        # Tokens begin anew when an agent was forgotten: the owner counts, too.
        own = found is not None and (found.token, found.owner) == (self.token, self.owner)
        if self.lost or not own:
            self.lost = True
            raise LeaseLost(
                f"Another process works for {self.agent} now.",
                hint="Nothing was written; that process goes on with its messages.",
            )


class AgentLeases:
    """The leases that this process holds or asks for. `seconds` is how long one lasts."""

    def __init__(self, store: Store, *, seconds: float) -> None:
        self.seconds = seconds
        self.owner = new_id()
        self.held: dict[str, HeldLease] = {}
        #: Called with an agent whose lease was lost.
        self.on_lost: Callable[[str], None] = lambda _: None
        self._store = store
        self._process = this_process()
        #: The token and time of leases of others, and when we first saw them so.
        self._seen: dict[str, tuple[tuple[int, int], float]] = {}

    async def take(self, agent: str) -> HeldLease | None:
        """None if somebody else has it."""
        held = self.held.get(agent)
        if held is not None and not held.lost:
            return held

        async def take(transaction: Transaction) -> HeldLease | None:
            leases = transaction.collection(AgentLease)
            found = await leases.get(agent) or AgentLease(agent=agent)
            if not self._is_free(found):
                return None
            taken = self._renewed(found, found.token + 1)
            await leases.put(taken)
            return HeldLease(agent, taken.token, self.owner)

        try:
            async with self._store.transaction() as transaction:
                taken = await take(transaction)
        except Conflict:
            return None  # another process was first
        if taken is not None:
            self.held[agent] = taken
            self._seen.pop(agent, None)
        return taken

    async def renew(self, *, after: float = 0.0) -> None:
        """Those that were not renewed for `after` seconds. One that fails is tried again at the
        next beat: the store may be away for a moment, and the lease lasts for three.
        """
        due = time.monotonic() - after
        for held in [each for each in self.held.values() if each.renewed <= due]:
            began = time.monotonic()

            async def renew(transaction: Transaction, held: HeldLease = held) -> None:
                await held.check(transaction)
                leases = transaction.collection(AgentLease)
                found = await leases.get(held.agent)
                assert found is not None  # noqa: S101  # it was checked
                await leases.put(self._renewed(found, held.token))

            try:
                await self._store.transact(renew)
            except LeaseLost:
                self._drop(held)
            except PerdureError as exc:  # the others must not wait for it
                _log.warning("the lease of %s was not renewed: %s", held.agent, exc)
            else:
                held.renewed = began

    async def release(self, held: HeldLease) -> None:
        """Let others have it at once. Never raises for one that was lost."""
        if self.held.get(held.agent) is held:
            del self.held[held.agent]

        async def free(transaction: Transaction) -> None:
            await held.check(transaction)
            freed = AgentLease(agent=held.agent, token=held.token)
            await transaction.collection(AgentLease).put(freed)

        with suppress(LeaseLost):
            await self._store.transact(free)

    def _drop(self, held: HeldLease) -> None:
        held.lost = True
        if self.held.get(held.agent) is held:
            del self.held[held.agent]
        self.on_lost(held.agent)

    def _renewed(self, lease: AgentLease, token: int) -> AgentLease:
        process = self._process
        return msgspec.structs.replace(
            lease,
            token=token,
            owner=self.owner,
            until=self._store.now() + int(self.seconds * SECOND),
            host=process.host,
            boot=process.boot,
            pid=process.pid,
            process=process.started,
        )

    def _is_free(self, lease: AgentLease) -> bool:
        if not lease.owner or lease.owner == self.owner or lease.until <= self._store.now():
            return True
        if is_dead(ProcessIdentity(lease.host, lease.boot, lease.pid, lease.process)):
            return True
        # Clocks may differ, or have been set: what counts then is that nobody renews it.
        state, now = (lease.token, lease.until), time.monotonic()
        seen, since = self._seen.get(lease.agent, (None, now))
        if seen != state:
            self._seen[lease.agent] = state, now
            return False
        return now - since >= self.seconds


async def beat(leases: AgentLeases) -> None:
    """Renew what is held, until cancelled."""
    while True:
        await asyncio.sleep(leases.seconds / 3)
        await leases.renew(after=leases.seconds / 4)

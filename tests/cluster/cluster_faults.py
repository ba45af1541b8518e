"""What goes wrong in a cluster: each fault begins, lasts for a while, and is mended."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable

from perdure.agents.agent_records import AgentLease
from perdure.core.errors import PerdureError
from perdure.storage.store import Store
from tests.cluster.cluster_hosts import ClusterHosts, PerdureHost


class ClusterFaults:
    """`each` is all kinds of faults, one after the other. `store` is for looking at leases."""

    def __init__(self, cluster: ClusterHosts, store: Store, *, lease: float, clocks: bool) -> None:
        self._cluster, self._store, self._lease = cluster, store, lease
        self._clocks = clocks
        self._dice = random.Random(7)
        #: How often each kind happened, and how long agents of a dead host stood still.
        self.count: dict[str, int] = {}
        self.takeovers: list[float] = []
        self.wrong: list[str] = []

    async def one_of_each(
        self, between: Callable[[], Awaitable[None]], enough: Callable[[], bool]
    ) -> None:
        """Let everything go wrong once, in another order each time, with some calls between; less
        if it is enough.
        """
        kinds = [
            self.server_dies,
            self.worker_dies,
            self.host_dies,
            self.server_stands_still,
            self.host_is_parted_from_the_database,
            self.host_is_parted_from_everybody,
            self.host_is_parted_from_clients,
            self.host_is_parted_from_valkey_and_s3,
            self.databases_are_parted,
            self.link_is_slow,
            self.database_process_dies,
            self.database_dies,
            self.valkey_dies,
            self.s3_dies,
            self.failover_after_death,
            self.failover_after_parting,
        ]
        if self._clocks:
            kinds.append(self.clocks_differ)
        self._dice.shuffle(kinds)
        for kind in kinds:
            if enough():
                return
            began, name = time.monotonic(), kind.__name__.replace("_", " ")
            await kind()
            self.count[name] = self.count.get(name, 0) + 1
            seconds = time.monotonic() - began
            await between()
            print(f"  {name}: {seconds:.1f} s", flush=True)
            for host in self._cluster.hosts:
                self.wrong += await asyncio.to_thread(host.ended)

    # Processes --------------------------------------------------------------------------------

    async def server_dies(self) -> None:
        await self._dies("serve")

    async def worker_dies(self) -> None:
        await self._dies("worker")

    async def host_dies(self) -> None:
        """All of it, for longer than a lease."""
        host = self._any()
        held = {each.agent: each for each in await self._leases() if self._is_of(each, host)}
        began = time.monotonic()
        host.kill()
        watch = asyncio.create_task(self._watch_takeover(host, held, began))
        await asyncio.sleep(self._lease * 1.5)
        await asyncio.to_thread(host.start)
        await watch

    async def server_stands_still(self) -> None:
        host = self._any()
        host.stand_still("serve")
        await asyncio.sleep(self._lease * 1.5)
        host.go_on("serve")

    async def _dies(self, name: str) -> None:
        host = self._any()
        host.kill(name)
        await asyncio.sleep(2)  # RestartSec
        await asyncio.to_thread(host.start)

    # The network ------------------------------------------------------------------------------

    async def host_is_parted_from_the_database(self) -> None:
        await self._parted(self._any().name, "db1", "db2")

    async def host_is_parted_from_everybody(self) -> None:
        host = self._any()
        self._cluster.network.isolate(host.name)
        await self._heal_after(self._lease * 1.5)

    async def host_is_parted_from_clients(self) -> None:
        await self._parted(self._any().name, "clients")

    async def host_is_parted_from_valkey_and_s3(self) -> None:
        await self._parted(self._any().name, "valkey", "s3")

    async def databases_are_parted(self) -> None:
        """Nothing can be acknowledged meanwhile."""
        await self._parted("db1", "db2")

    async def link_is_slow(self) -> None:
        self._cluster.network.slow(
            self._any().name, self._cluster.databases.primary, 0.03, loss=0.02
        )
        await self._heal_after(10)

    async def _parted(self, host: str, *others: str) -> None:
        for other in others:
            self._cluster.network.part(host, other)
        await self._heal_after(self._dice.uniform(4, 12))

    async def _heal_after(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
        self._cluster.network.heal()

    # What all share ---------------------------------------------------------------------------

    async def database_process_dies(self) -> None:
        await asyncio.to_thread(self._cluster.kill_backend)

    async def database_dies(self) -> None:
        databases = self._cluster.databases
        await asyncio.to_thread(databases.kill, databases.primary)
        await asyncio.sleep(1)
        await asyncio.to_thread(databases.start, databases.primary)

    async def valkey_dies(self) -> None:
        await asyncio.to_thread(self._cluster.kill_valkey)
        await asyncio.sleep(3)
        await asyncio.to_thread(self._cluster.start_valkey)

    async def s3_dies(self) -> None:
        await asyncio.to_thread(self._cluster.kill_s3)
        await asyncio.sleep(3)
        await asyncio.to_thread(self._cluster.start_s3)

    async def failover_after_death(self) -> None:
        databases = self._cluster.databases
        await asyncio.to_thread(databases.kill, databases.primary)
        await asyncio.to_thread(databases.promote)
        await asyncio.sleep(5)
        await asyncio.to_thread(databases.make_standby)

    async def failover_after_parting(self) -> None:
        """The old primary lives, and is reached by nobody; it is ended before it could be."""
        databases = self._cluster.databases
        old = databases.primary
        self._cluster.network.isolate(old)
        await asyncio.sleep(1)
        await asyncio.to_thread(databases.promote)
        await asyncio.sleep(20)
        await asyncio.to_thread(databases.kill, old)
        self._cluster.network.heal()
        await asyncio.to_thread(databases.make_standby)

    async def clocks_differ(self) -> None:
        for host, seconds in zip(self._cluster.hosts, (15, -15, 0), strict=False):
            host.set_clock(seconds)
        await asyncio.sleep(10)
        for host in self._cluster.hosts:
            host.set_clock(0)

    # Leases -----------------------------------------------------------------------------------

    async def _leases(self) -> list[AgentLease]:
        return await self._store.collection(AgentLease).query().values()

    @staticmethod
    def _is_of(lease: AgentLease, host: PerdureHost) -> bool:
        return bool(lease.owner) and lease.host.startswith(f"{host.name}/")

    async def _watch_takeover(
        self, host: PerdureHost, held: dict[str, AgentLease], began: float
    ) -> None:
        """Until every agent that a dead host had has another lease."""
        while held and time.monotonic() - began < 100:
            await asyncio.sleep(0.1)
            try:
                leases = {each.agent: each for each in await self._leases()}
            except PerdureError:
                continue
            for name, before in list(held.items()):
                now = leases.get(name)
                if now is None or now.owner not in {before.owner, ""}:
                    self.takeovers.append(time.monotonic() - began)
                    del held[name]
        self.wrong += [f"nobody took over {agent} from {host.name}" for agent in held]

    def _any(self) -> PerdureHost:
        return self._dice.choice(self._cluster.hosts)

"""Servers of one bank that die, stand still, or are cut off, while clients use all of them.

`make cluster` does the same at length, with hosts in networks of their own; see `__main__`.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path

import pytest

import perdure
from perdure.server.access_tokens import AccessTokens
from perdure.server.operations import TokenScope
from perdure.testing import ScriptedModel
from tests.cluster.agent_talk import make_agents, script
from tests.cluster.cluster_load import ClusterLoad
from tests.cluster.session_load import Servers
from tests.cluster.tcp_relay import TCPRelay
from tests.server.serve_process import ServeProcess
from tests.servers import PostgresServer

SCOPES = (TokenScope.READ, TokenScope.WRITE)
HOSTS = 3
#: Calls between two faults.
CALLS = 60


class SmallCluster:
    """Servers on loopback, each with its own way to the database."""

    def __init__(self, url: str, model: str, folder: Path, port: int) -> None:
        self._url, self._model, self._folder, self._port = url, model, folder, port
        self.relays: list[TCPRelay] = []
        self.processes: list[ServeProcess] = []

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        async with AsyncExitStack() as stack:
            for _ in range(HOSTS):
                self.relays.append(
                    await stack.enter_async_context(TCPRelay(self._port, dead_after=2.0))
                )
            for number in range(HOSTS):
                await self.start(number)
            try:
                yield
            finally:
                for relay in self.relays:
                    relay.heal()
                for process in self.processes:
                    process.__exit__(None, None, None)

    async def start(self, number: int) -> None:
        """Start a server; again on its port, if it was there."""
        folder = self._folder / f"host-{number}"
        folder.mkdir(exist_ok=True)
        before = self.processes[number].port if number < len(self.processes) else 0
        url = self._url.replace(f":{self._port}/", f":{self.relays[number].port}/")
        variables = {
            "PERDURE_BANK": f"{url}?application_name=host-{number}",
            "PERDURE_MODEL_CHAT": f"{self._model}#any",
            "PERDURE_AGENTS_LEASE": "4",
            "PERDURE_ARTIFACTS_FOLDER": str(self._folder / "artifacts"),
        }
        process = ServeProcess(folder, "--port", str(before), **variables)
        await asyncio.to_thread(process.start)
        self.processes[number : number + 1] = [process]

    def kill(self, number: int) -> None:
        process = self.processes[number]
        process.signal(signal.SIGKILL)
        process.__exit__(None, None, None)


@pytest.mark.slow
async def test_nothing_acknowledged_is_lost_or_doubled(
    postgres_server: PostgresServer, postgres_url: str, tmp_path: Path
) -> None:
    async with AsyncExitStack() as stack:
        model = await stack.enter_async_context(ScriptedModel(script))
        bank = await stack.enter_async_context(perdure.open(postgres_url))
        agents = await make_agents(bank, 3)
        token, _ = await AccessTokens(bank.store).make("load", scopes=SCOPES)
        cluster = SmallCluster(postgres_url, model.url, tmp_path, postgres_server.port)
        await stack.enter_async_context(cluster.running())
        servers = Servers([each.url for each in cluster.processes], token, timeout=3.0)
        stack.push_async_callback(servers.close)
        load = ClusterLoad(
            servers, agents, clients=6, sessions=3, length=150, patience=60.0, followers=2
        )
        async with load.running():
            await load.sessions.until(CALLS)
            cluster.kill(0)
            await load.sessions.until(CALLS)
            await cluster.start(0)
            cluster.relays[1].cut()
            await load.sessions.until(CALLS)
            cluster.relays[1].heal()
            os.kill(cluster.processes[2].process.pid, signal.SIGSTOP)
            with suppress(TimeoutError):  # stopped while it sends, it blocks others as long
                async with asyncio.timeout(5):
                    await load.sessions.until(CALLS)
            os.kill(cluster.processes[2].process.pid, signal.SIGCONT)
            cluster.relays[0].delay = 0.02
            await load.sessions.until(CALLS)
            await asyncio.to_thread(postgres_server.kill)
            await asyncio.to_thread(postgres_server.start)
            await load.sessions.until(CALLS)
            cluster.relays[0].delay = 0.0
        report = await load.finish(60)
        assert report.problems == []
        assert report.messages >= len(agents)
        assert report.stream_breaks > 0

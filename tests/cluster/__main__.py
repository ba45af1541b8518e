"""``make cluster``: three hosts, their databases and stores, in a network where all goes wrong.

Clients append, read, undo, fork, talk to agents and follow streams, while processes are killed,
hosts parted, links slowed, clocks set and the database fails over; then everything that they were
told is checked. Ends with 1 if anything was lost, doubled or out of order, or if too few calls
ended ok.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import resource
import shutil
import signal
import sys
import tempfile
import time
from contextlib import AsyncExitStack
from pathlib import Path

import perdure
from perdure.server.access_tokens import AccessTokens
from perdure.server.operations import TokenScope
from perdure.storage.registry import adapter_for
from perdure.storage.store import Store
from perdure.testing import ScriptedModel
from tests.cluster import namespace_network
from tests.cluster.agent_talk import make_agents, script
from tests.cluster.cluster_faults import ClusterFaults
from tests.cluster.cluster_hosts import FAKE_TIME, ClusterHosts
from tests.cluster.cluster_load import ClusterLoad, LoadReport
from tests.cluster.session_load import Servers
from tests.cluster.tcp_relay import TCPRelay

HOSTS, AGENTS, CLIENTS, SESSIONS, FOLLOWERS = 3, 4, 24, 16, 3
#: Seconds: the lease of an agent, and more than that until another host has it.
LEASE, SLACK = 10.0, 15.0
#: Operations between two faults are one of so many: everything goes wrong three times, about.
BETWEEN = 60
#: Seconds of quiet after which everything must be there.
CATCH_UP = 120.0
_MEMORY = Path("/dev/shm")


def main() -> int:
    options = argparse.ArgumentParser(prog="python -m tests.cluster", description=__doc__)
    options.add_argument(
        "--operations", type=int, default=100_000, help="at least so many that ended ok"
    )
    options.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    given = options.parse_args()
    if namespace_network.is_inside():
        return asyncio.run(run(given.operations, given.folder))
    missing = namespace_network.what_is_missing()
    if missing:
        print(
            f"make cluster needs hosts with networks of their own. {missing}\n"
            "The same in small, without them: pytest tests/cluster/test_chaos.py",
            file=sys.stderr,
        )
        return 2
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # ends what it began, and tidies up
    in_memory = _MEMORY.is_dir() and shutil.disk_usage(_MEMORY).free > 4 << 30
    with tempfile.TemporaryDirectory(
        prefix="perdure-cluster-", dir=_MEMORY if in_memory else None
    ) as folder:
        Path(folder).chmod(0o755)  # PostgreSQL does not run as root
        runtime = Path(folder, "runtime")
        runtime.mkdir(mode=0o700)
        os.environ |= {"TMPDIR": folder, "XDG_RUNTIME_DIR": str(runtime)}
        command = [sys.executable, "-m", "tests.cluster", "--folder", folder]
        return namespace_network.enter([*command, "--operations", str(given.operations)])


async def run(operations: int, folder: Path) -> int:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(max(soft, 10_240), hard), hard))
    fake_time = next((str(each) for each in Path("/").glob(FAKE_TIME)), "")
    if not fake_time:
        print("No clock is set: libfaketime is missing (Debian: apt-get install faketime).")
    began = time.monotonic()
    print("Starting PostgreSQL twice, S3, Valkey and three hosts ...", flush=True)
    async with AsyncExitStack() as stack:
        cluster = ClusterHosts(folder, lease=LEASE, fake_time=fake_time)
        stack.callback(cluster.close)
        token, agents = await _prepare(cluster)
        model = await stack.enter_async_context(ScriptedModel(script))
        port = int(model.url.rpartition(":")[2].partition("/")[0])
        here = cluster.network.here.address
        relay = await stack.enter_async_context(TCPRelay(port, listen=here))
        await cluster.start(f"http://{here}:{relay.port}/v1", HOSTS)
        store = Store(adapter_for(cluster.databases.url))
        await store.open()
        stack.push_async_callback(store.close)
        servers = Servers([host.url for host in cluster.hosts], token, timeout=10.0)
        stack.push_async_callback(servers.close)
        load = ClusterLoad(
            servers,
            agents,
            clients=CLIENTS,
            sessions=SESSIONS,
            length=300,
            patience=90.0,
            followers=FOLLOWERS,
        )
        faults = ClusterFaults(cluster, store, lease=LEASE, clocks=bool(fake_time))
        history = load.sessions.history

        async def between() -> None:
            await load.sessions.until(max(50, operations // BETWEEN))
            print(f"{history.count:9,} operations ok", end="", flush=True)

        def enough() -> bool:
            return rounds > 1 and history.count >= operations

        rounds = 0
        async with load.running():
            while not rounds or history.count < operations:
                rounds += 1
                rate = history.count / (time.monotonic() - began)
                print(f"Round {rounds}, {history.count:,} operations ok, {rate:.0f}/s", flush=True)
                await faults.one_of_each(between, enough)
        print("All is quiet; reading everything ...", flush=True)
        report = await load.finish(CATCH_UP)
        problems = [*report.problems, *faults.wrong, *_too_late(faults.takeovers)]
    print(_summary(report, faults, time.monotonic() - began))
    for problem in problems[:50]:
        print(f"  {problem}")
    print(f"{len(problems)} problems" if problems else "No problems")
    return 1 if problems else 0


async def _prepare(cluster: ClusterHosts) -> tuple[str, list[str]]:
    async with perdure.open(cluster.databases.url) as bank:
        scopes = (TokenScope.READ, TokenScope.WRITE)
        token, _ = await AccessTokens(bank.store).make("load", scopes=scopes)
        return token, await make_agents(bank, AGENTS)


def _too_late(takeovers: list[float]) -> list[str]:
    return [f"an agent stood still for {t:.1f} s" for t in takeovers if t > LEASE + SLACK]


def _summary(report: LoadReport, faults: ClusterFaults, seconds: float) -> str:
    verdict, takeovers = report.verdict, sorted(faults.takeovers)
    middle = takeovers[len(takeovers) // 2] if takeovers else 0.0
    told = ", ".join(f"{n} {code}" for code, n in sorted(report.errors.items()))
    ended = report.outcomes
    return (
        f"{ended['ok']:,} operations ended ok, {ended['failed']:,} failed (reads), "
        f"{ended['unknown']:,} with an unknown outcome, "
        f"in {seconds:.0f} s, {report.messages} messages to agents "
        f"(slowest answer {report.slowest_answer:.0f} s), "
        f"{report.artifacts} artifacts, "
        f"{sum(faults.count.values())} faults of {len(faults.count)} kinds; "
        f"lost {len(verdict.lost)}, doubled {len(verdict.doubled)}, "
        f"phantoms {len(verdict.phantoms)}, changed {len(verdict.changed)}, "
        f"disordered {len(verdict.disordered)}; "
        f"{len(takeovers)} takeovers of agents, half within {middle:.1f} s, "
        f"all within {max(takeovers, default=0.0):.1f} s (lease {LEASE:.0f} s); "
        f"streams were interrupted {report.stream_breaks} times; told to clients: {told or 'none'}"
    )


if __name__ == "__main__":
    sys.exit(main())

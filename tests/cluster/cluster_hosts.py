"""The hosts of a cluster: two databases, S3, Valkey, and those that run Perdure."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import time
import urllib.error
import urllib.request
from contextlib import ExitStack, suppress
from pathlib import Path

import psycopg

from tests.cluster.namespace_network import HostNetwork, NetworkHost
from tests.patience import VARIABLES
from tests.postgres_replica import PostgresReplica
from tests.s3_server import CREDENTIALS, S3Server
from tests.server.serve_process import PERDURE, environment
from tests.servers import PostgresServer
from tests.valkey_server import ValkeyServer

#: Where Debian keeps what lets a process see another time, seen from the root.
FAKE_TIME = "usr/lib/*-linux-gnu/faketime/libfaketimeMT.so.1"
PORT = 7788
_DATABASE_PORT = 5432
_PATIENCE = 60.0
#: A host name of its own: a process that is dead on another host is not seen to be.
_NAMED = ["unshare", "--uts", "sh", "-c", 'hostname "$0" && exec "$@"']
#: WAL that a standby still needs is there when it comes back.
_REPLICATED = {"wal_keep_size": "512MB", "wal_sender_timeout": "10s", "wal_receiver_timeout": "10s"}


class Databases:
    """A primary and its synchronous standby, on two hosts, whose parts change."""

    def __init__(self, first: NetworkHost, second: NetworkHost) -> None:
        self._hosts = [first, second]
        with first.inside():
            primary = self._made(first)
        self.servers: dict[str, PostgresServer] = {first.name: primary}
        self.primary, self.standby = first.name, second.name
        self.name = "bank"
        self._ask(f"CREATE DATABASE {self.name}")
        self.make_standby()

    @property
    def url(self) -> str:
        places = ",".join(f"{host.address}:{_DATABASE_PORT}" for host in self._hosts)
        return f"postgresql://postgres@{places}/{self.name}?target_session_attrs=read-write"

    def make_standby(self) -> None:
        """Make the other host a standby, without which nothing is acknowledged from now on."""
        host, source = self._host(self.standby), self.servers[self.primary]
        old = self.servers.pop(host.name, None)
        if old is not None:
            old.dispose()
        with host.inside():
            self.servers[host.name] = PostgresReplica(
                source, address=host.address, port=_DATABASE_PORT, **_REPLICATED
            )
        self._ask("ALTER SYSTEM SET synchronous_standby_names = '*'")
        self._ask("SELECT pg_reload_conf()")
        self._wait_until("SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'sync'")

    def promote(self) -> None:
        """Make the standby the primary; the one that was must be dead, or reached by nobody."""
        self.primary, self.standby = self.standby, self.primary
        self._ask("ALTER SYSTEM SET synchronous_standby_names = ''")
        self._ask("SELECT pg_reload_conf()")
        self._ask("SELECT pg_promote(true, 30)")
        self._wait_until("SELECT (NOT pg_is_in_recovery())::int")

    def kill(self, name: str) -> None:
        with self._host(name).inside():
            self.servers[name].kill()

    def start(self, name: str) -> None:
        with self._host(name).inside():
            self.servers[name].start()

    def dispose(self) -> None:
        for server in self.servers.values():
            server.dispose()

    def _made(self, host: NetworkHost) -> PostgresServer:
        return PostgresServer(address=host.address, port=_DATABASE_PORT, **_REPLICATED)

    def _host(self, name: str) -> NetworkHost:
        return next(host for host in self._hosts if host.name == name)

    def _ask(self, text: str) -> int:
        """Ask the primary, on its own host."""
        with self._host(self.primary).inside(), self.servers[self.primary].connect() as db:
            db.execute("SET synchronous_commit = local")
            found = db.execute(text)
            return int((found.fetchone() or [0])[0] or 0) if found.description else 0

    def _wait_until(self, text: str) -> None:
        deadline = time.monotonic() + _PATIENCE
        while not self._ask(text):
            assert time.monotonic() < deadline, f"the databases do not get there: {text}"
            time.sleep(0.1)


class PerdureHost:
    """One host with `perdure serve` and `perdure worker`, which are started again when they die."""

    def __init__(
        self, host: NetworkHost, folder: Path, variables: dict[str, str], fake_time: str
    ) -> None:
        self.host, self.name = host, host.name
        self.url = f"http://{host.address}:{PORT}"
        self._folder = folder / host.name
        self._folder.mkdir()
        self._clock = self._folder / "clock"
        self.set_clock(0)
        # Deadlines of recall are those that users have: agents must not wait for an index.
        plain = {k: v for k, v in environment(self._folder).items() if k not in VARIABLES}
        self._variables = {**plain, **variables}
        if fake_time:
            self._variables |= {
                "LD_PRELOAD": fake_time,
                "FAKETIME_TIMESTAMP_FILE": str(self._clock),
                "FAKETIME_CACHE_DURATION": "1",
                "FAKETIME_DONT_FAKE_MONOTONIC": "1",
                "DONT_FAKE_MONOTONIC": "1",
                "NO_FAKE_STAT": "1",
            }
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    def set_clock(self, seconds: int) -> None:
        """How far its clock is ahead."""
        self._clock.write_text(f"{seconds:+d}s\n")

    def start(self) -> None:
        """Start what does not run, and wait until it answers."""
        self._begin("serve", "--host", self.host.address, "--port", str(PORT))
        self._begin("worker", "--concurrency", "4")
        deadline = time.monotonic() + _PATIENCE
        while not self._answers():
            served = self.processes["serve"]
            assert served.poll() is None, self.said("serve")
            assert time.monotonic() < deadline, f"{self.name} does not answer"
            time.sleep(0.1)

    def kill(self, *names: str) -> None:
        """With kill -9; both, unless one is named."""
        for name in names or ("serve", "worker"):
            process = self.processes.pop(name, None)
            if process is not None:
                process.kill()
                process.wait()

    def stand_still(self, name: str) -> None:
        self.processes[name].send_signal(signal.SIGSTOP)

    def go_on(self, name: str) -> None:
        self.processes[name].send_signal(signal.SIGCONT)

    def said(self, name: str) -> str:
        return (self._folder / f"{name}.log").read_text(errors="replace")[-4_000:]

    def ended(self) -> list[str]:
        """What ended by itself, with what it said."""
        return [
            f"{self.name}: {name} ended with {process.returncode}: {self.said(name)}"
            for name, process in self.processes.items()
            if process.poll() is not None
        ]

    def _begin(self, name: str, *options: str) -> None:
        if name in self.processes:
            return
        with self.host.inside(), (self._folder / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(
                [*_NAMED, self.name, *PERDURE, name, "--json", *options],
                env=self._variables,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def _answers(self) -> bool:
        with self.host.inside(), suppress(OSError, urllib.error.URLError):
            urllib.request.urlopen(f"{self.url}/healthz", timeout=2).close()
            return True
        return False


class ClusterHosts:
    """All hosts of a cluster. Made in the network's own namespaces; `close` stops everything."""

    def __init__(self, folder: Path, *, lease: float, fake_time: str) -> None:
        self.network = HostNetwork()
        add = self.network.add
        self._stack = ExitStack()
        self.databases = Databases(add("db1"), add("db2"))
        self._stack.callback(self.databases.dispose)
        self._valkey_host, self._s3_host = add("valkey"), add("s3")
        with self._valkey_host.inside():
            self._valkey = ValkeyServer(address=self._valkey_host.address)
        self._stack.callback(self._valkey.dispose)
        with self._s3_host.inside():
            self._s3 = S3Server(address=self._s3_host.address)
            artifacts = self._s3.url(options="&allow_http=yes")
        self._stack.callback(self._s3.dispose)
        os.environ.update(CREDENTIALS)
        valkey = f"valkey://{self._valkey_host.address}:{self._valkey.port}"
        self._folder, self._fake_time = folder, fake_time
        self.variables = {
            "PERDURE_BANK": self.databases.url,
            "PERDURE_ARTIFACTS_URL": artifacts,
            "PERDURE_AGENTS_WORKING_STORE": valkey,
            "PERDURE_CACHE_SHARED": valkey,
            "PERDURE_CACHE_ENTRIES": "10000",
            "PERDURE_AGENTS_LEASE": str(lease),
        }
        self.hosts: list[PerdureHost] = []

    async def start(self, model: str, count: int) -> None:
        """Start so many hosts with Perdure, which ask a model at this address."""
        variables = {**self.variables, "PERDURE_MODEL_CHAT": f"{model}#any"}
        for number in range(1, count + 1):
            place = self.network.add(f"host{number}")
            self.hosts.append(PerdureHost(place, self._folder, variables, self._fake_time))
        for host in self.hosts:
            await asyncio.to_thread(host.start)

    def kill_valkey(self) -> None:
        self._valkey.kill()

    def start_valkey(self) -> None:
        with self._valkey_host.inside():
            self._valkey.start()

    def kill_s3(self) -> None:
        self._s3.kill()

    def start_s3(self) -> None:
        with self._s3_host.inside():
            self._s3.start()

    def kill_backend(self) -> None:
        """Kill one process of the primary, which ends all others and recovers."""
        primary = self.databases.servers[self.databases.primary]
        with (
            self.network.hosts[self.databases.primary].inside(),
            suppress(psycopg.Error),
            primary.connect() as db,
        ):
            row = db.execute(
                "SELECT pid FROM pg_stat_activity WHERE application_name = 'perdure' LIMIT 1"
            ).fetchone()
            if row is not None:
                os.kill(row[0], signal.SIGKILL)

    def close(self) -> None:
        for host in self.hosts:
            host.kill()
        self._stack.close()

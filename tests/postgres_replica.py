"""A streaming replica of a test server, whose lag a test decides."""

from __future__ import annotations

import subprocess
import time
from typing import Any
from urllib.parse import quote

from psycopg.conninfo import conninfo_to_dict

from tests.servers import PostgresServer

_PATIENCE = 30.0


class PostgresReplica(PostgresServer):
    """A real hot standby of another server, made with pg_basebackup."""

    def __init__(self, primary: PostgresServer, **settings: Any) -> None:
        self._primary = primary
        super().__init__(**settings)

    def beside(self, url: str, more: str = "") -> str:
        """The address of a bank on the primary, with this replica in it."""
        name = conninfo_to_dict(url)["dbname"]
        own = f"postgresql://postgres@{self.address}:{self.port}/{name}{more}"
        return f"{url}{'&' if '?' in url else '?'}replica={quote(own, safe='')}"

    def pause(self) -> None:
        """From now on, what it shows stays as it is."""
        self.catch_up()
        with self.connect() as db:
            db.execute("SELECT pg_wal_replay_pause()")

    def resume(self) -> None:
        """Go on, and catch up."""
        with self.connect() as db:
            db.execute("SELECT pg_wal_replay_resume()")
        self.catch_up()

    def catch_up(self) -> None:
        """Wait until it shows all that the primary shows now."""
        with self._primary.connect() as db:
            row = db.execute("SELECT pg_current_wal_flush_lsn()::text").fetchone()
        assert row is not None
        deadline = time.monotonic() + _PATIENCE
        with self.connect() as db:
            while not self._has_replayed(db, row[0]):
                assert time.monotonic() < deadline, f"the replica does not follow:\n{self._log()}"
                time.sleep(0.005)

    def promote(self) -> None:
        """Make it a primary of its own, as after a failure."""
        with self.connect() as db:
            db.execute("SELECT pg_promote(true, 30)")

    # ------------------------------------------------------------------------------------------

    @staticmethod
    def _has_replayed(db: object, lsn: str) -> bool:
        row = db.execute(  # type: ignore[attr-defined]
            "SELECT pg_last_wal_replay_lsn() >= %s::pg_lsn", (lsn,)
        ).fetchone()
        return bool(row[0])

    def _initdb(self) -> None:
        command = [str(self._bin / "pg_basebackup"), "-D", str(self.data_dir)]
        source = ["-h", self._primary.address, "-p", str(self._primary.port), "-U", "postgres"]
        subprocess.run(
            [*command, *source, "--checkpoint=fast", "--write-recovery-conf", "--no-sync"],
            check=True,
            cwd=self._home,
            env=self._env,
            stdout=subprocess.DEVNULL,
            **self._user,
        )

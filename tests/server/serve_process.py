"""``perdure serve`` as a process of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit

import httpx2

from tests.patience import VARIABLES

PERDURE = [sys.executable, "-m", "perdure"]


def environment(folder: Path) -> dict[str, str]:
    """A home and a bank in a folder of the test."""
    kept = {name: of for name, of in os.environ.items() if not name.startswith("PERDURE_")}
    return {
        **kept,
        **VARIABLES,
        "HOME": str(folder),
        "XDG_CONFIG_HOME": str(folder / "config"),
        "XDG_DATA_HOME": str(folder / "data"),
        "PERDURE_BANK": f"sqlite:///{folder / 'bank.db'}",
    }


class ServeProcess:
    """Runs on a free port over the bank ``bank.db`` in a folder. Killed at the end, unless it was
    stopped.
    """

    def __init__(self, folder: Path, *options: str, **variables: str) -> None:
        self._options = ["serve", "--json", "--port", "0", *options]
        self._environment = {**environment(folder), **variables}

    def __enter__(self) -> Self:
        return self

    def start(self) -> Self:
        """Returns when it has told its address."""
        self.process = subprocess.Popen(
            [*PERDURE, *self._options],
            env=self._environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, self.process.communicate()[1]
        said = json.loads(line)
        self.url: str = said["url"]
        self.code: str = said["code"]
        self.proxy: str = said["proxy"]
        self.port = urlsplit(self.url).port or 0
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate()

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def ended(self) -> tuple[int, str]:
        """Its exit code, and what it said on stderr, when it has ended by itself."""
        _, said = self.process.communicate(timeout=100)
        return self.process.returncode, said

    def log_in(self) -> str:
        """A token with every scope, by the code."""
        answer = httpx2.post(f"{self.url}/api/v1/login", json={"code": self.code})
        token: str = answer.raise_for_status().json()["token"]
        return token

"""Processes of several hosts over one bank on PostgreSQL."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeAlias

import pytest

from tests.server.serve_process import PERDURE, ServeProcess, environment


class WorkerProcess:
    """``perdure worker`` as a process of its own, in a folder as its home. Killed at the end,
    unless it was stopped.
    """

    def __init__(self, folder: Path, *options: str, **variables: str) -> None:
        self.process = subprocess.Popen(
            [*PERDURE, "worker", "--json", *options],
            env={**environment(folder), **variables},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> Self:
        """Returns when it works."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, self.process.communicate()[1]
        self.said: dict[str, Any] = json.loads(line)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate()

    def kill(self) -> None:
        os.kill(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def ended(self, number: signal.Signals = signal.SIGTERM) -> tuple[int, dict[str, Any], str]:
        """Tell it to stop: its exit code, how jobs ended that it began, and what was on stderr."""
        self.process.send_signal(number)
        out, err = self.process.communicate(timeout=100)
        return self.process.returncode, json.loads(out)["ended"] if out else {}, err


#: Starts a process as on a host of its own; keywords are variables of its environment.
StartWorker: TypeAlias = Callable[..., WorkerProcess]
StartServer: TypeAlias = Callable[..., ServeProcess]


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[tuple[StartWorker, StartServer]]:
    with ExitStack() as stack:
        count = 0

        def folder() -> Path:
            nonlocal count
            count += 1
            made = tmp_path / f"host-{count}"
            made.mkdir()
            return made

        def worker(*options: str, **variables: str) -> WorkerProcess:
            return stack.enter_context(WorkerProcess(folder(), *options, **variables))

        def server(*options: str, **variables: str) -> ServeProcess:
            return stack.enter_context(ServeProcess(folder(), *options, **variables).start())

        yield worker, server


@pytest.fixture
def start_worker(hosts: tuple[StartWorker, StartServer]) -> StartWorker:
    return hosts[0]


@pytest.fixture
def start_server(hosts: tuple[StartWorker, StartServer]) -> StartServer:
    return hosts[1]

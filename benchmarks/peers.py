"""The peers as contestants. They live in an environment of their own, and in their own process.

The process answers one line of JSON with another; `peer_worker` is its end of the line. It keeps
time itself, so the line is not on the clock, and it idles while others have their turn.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.harness import Block, Report

ROOT = Path(__file__).parent.parent
VARIABLE = "PERDURE_PEERS_PYTHON"
NAME = "OpenAI Agents SQLiteSession"
HOW = f"make .venv-peers/.peers (or set {VARIABLE} to a Python that has openai-agents)"


class Peer:
    """A running peer."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def ask(self, operation: str, **details: Any) -> Any:
        """Have it do something, and wait for its answer."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"operation": operation, **details}) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"The peer ended during {operation!r}; see its message above.")
        return json.loads(line)

    def timed(self, operation: str, **details: Any) -> Block:
        """Have it do a block of work."""
        answer = self.ask(operation, **details)
        return Block(answer["seconds"], answer["samples"])


def python() -> Path | None:
    """The interpreter of the peers' environment, if there is one."""
    named = os.environ.get(VARIABLE)
    path = Path(named) if named else ROOT / ".venv-peers/bin/python"
    return path if path.is_file() else None


@contextmanager
def running(report: Report) -> Iterator[Peer | None]:
    """The peer, or None and a line that says how to get it."""
    interpreter = python()
    if interpreter is None:
        report.say(f"no peer to compare with: {HOW}")
        yield None
        return
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environ["OPENAI_AGENTS_DISABLE_TRACING"] = "1"
    process = subprocess.Popen(
        [str(interpreter), "-m", "benchmarks.peer_worker"],
        cwd=ROOT,
        env=environ,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:  # closes the pipe, which ends the process, and waits for it
        yield Peer(process)


def facts() -> dict[str, str]:
    """What the peers are, for the results' list of versions."""
    if python() is None:
        return {}
    with running(Report()) as peer:
        return dict(peer.ask("facts")) if peer is not None else {}

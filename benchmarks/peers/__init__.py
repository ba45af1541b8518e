"""The peers as contestants. They live in an environment of their own, each in its own process.

The process answers one line of JSON with another; `worker` is its end of the line. It keeps time
itself, so the line is not on the clock, and it idles while others have their turn.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from benchmarks.harness import Block, Report

ROOT = Path(__file__).parent.parent.parent
VARIABLE = "PERDURE_PEERS_PYTHON"
#: By the module that drives it, what it is called.
NAMES: Mapping[str, str] = {
    "openai_session": "OpenAI Agents SQLiteSession",
    "adk_session": "Google ADK SqliteSessionService",
    "llama_index_memory": "LlamaIndex Memory",
    "langgraph_saver": "LangGraph SqliteSaver",
}
#: The one for contests between single records, where the others are far behind.
FASTEST = "openai_session"
NAME = NAMES[FASTEST]
HOW = f"make .venv-peers/.peers (or set {VARIABLE} to a Python that has requirements/peers.txt)"


class Peer:
    """A running peer."""

    def __init__(self, module: str, process: subprocess.Popen[str]) -> None:
        self.module = module
        self._process = process

    @property
    def name(self) -> str:
        return NAMES[self.module]

    def ask(self, operation: str, **details: Any) -> Any:
        """Have it do something, and wait for its answer."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"operation": operation, **details}) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self.name} ended during {operation!r}; see its message above.")
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
def running(report: Report, module: str = FASTEST) -> Iterator[Peer | None]:
    """A peer, or None and a line that says how to get it."""
    interpreter = python()
    if interpreter is None:
        report.say(f"no peer to compare with: {HOW}")
        yield None
        return
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environ |= {"OPENAI_AGENTS_DISABLE_TRACING": "1", "LANGSMITH_TRACING": "false"}
    process = subprocess.Popen(
        [str(interpreter), "-m", "benchmarks.peers.worker", module],
        cwd=ROOT,
        env=environ,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:  # closes the pipe, which ends the process, and waits for it
        yield Peer(module, process)


@contextmanager
def all_running(report: Report) -> Iterator[Sequence[Peer]]:
    """Every peer; none, and a line that says how to get them, without their environment."""
    with ExitStack() as stack:
        modules = NAMES if python() is not None else (FASTEST,)  # one line is enough
        found = [stack.enter_context(running(report, module)) for module in modules]
        yield [peer for peer in found if peer is not None]


def facts() -> dict[str, str]:
    """What the peers are, for the results' list of versions."""
    if python() is None:
        return {}
    with all_running(Report()) as peers:
        return {fact: value for peer in peers for fact, value in peer.ask("facts").items()}

"""The peers as contestants. They live in environments of their own, each in its own process.

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
#: Who calls models, as the gateway does. It wants other versions than the peers above.
LITELLM = "LiteLLM SDK"
LITELLM_VARIABLE = "PERDURE_LITELLM_PYTHON"
LITELLM_HOW = (
    f"make .venv-litellm/.litellm (or set {LITELLM_VARIABLE} to a Python that has"
    " requirements/litellm.txt)"
)
#: Where the integrations run beside the frameworks' own stores.
FRAMEWORKS_VARIABLE = "PERDURE_FRAMEWORKS_PYTHON"
FRAMEWORKS_HOW = (
    f"make .venv-frameworks/.frameworks (or set {FRAMEWORKS_VARIABLE} to a Python that has"
    " requirements/frameworks.txt and Perdure)"
)
#: What would have peers talk to others than us.
_QUIET = {
    "OPENAI_AGENTS_DISABLE_TRACING": "1",
    "LANGSMITH_TRACING": "false",
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",  # else it fetches prices
    "LITELLM_MODE": "PRODUCTION",  # else it reads .env files
    "HF_HUB_OFFLINE": "1",
}


class Peer:
    """A running peer."""

    def __init__(self, module: str, name: str, process: subprocess.Popen[str]) -> None:
        self.module = module
        self.name = name
        self._process = process

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
    return _interpreter(VARIABLE, ".venv-peers")


def litellm_python() -> Path | None:
    """The same for LiteLLM's."""
    return _interpreter(LITELLM_VARIABLE, ".venv-litellm")


def _interpreter(variable: str, environment: str) -> Path | None:
    named = os.environ.get(variable)
    path = Path(named) if named else ROOT / environment / "bin/python"
    return path if path.is_file() else None


@contextmanager
def running(report: Report, module: str = FASTEST) -> Iterator[Peer | None]:
    """A peer, or None and a line that says how to get it."""
    interpreter = python()
    if interpreter is None:
        report.say(f"no peer to compare with: {HOW}")
        yield None
        return
    with _process(interpreter, "benchmarks.peers.worker", module) as process:
        yield Peer(module, NAMES[module], process)


@contextmanager
def framework_running(report: Report, module: str) -> Iterator[Peer | None]:
    """A peer, or an integration of ours, in the frameworks' environment."""
    interpreter = _interpreter(FRAMEWORKS_VARIABLE, ".venv-frameworks")
    if interpreter is None:
        report.say(f"no frameworks to compare with: {FRAMEWORKS_HOW}")
        yield None
        return
    with _process(interpreter, "benchmarks.peers.worker", module) as process:
        yield Peer(module, NAMES.get(module, module), process)


@contextmanager
def litellm_running(report: Report) -> Iterator[Peer | None]:
    """LiteLLM, or None and a line that says how to get it."""
    interpreter = litellm_python()
    if interpreter is None:
        report.say(f"no {LITELLM} to compare with: {LITELLM_HOW}")
        yield None
        return
    with _process(interpreter, "benchmarks.peers.litellm_sdk") as process:
        yield Peer("litellm_sdk", LITELLM, process)


def _process(interpreter: Path, *program: str) -> subprocess.Popen[str]:
    """Left as a context manager, it closes the pipe, which ends the process, and waits for it."""
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return subprocess.Popen(
        [str(interpreter), "-m", *program],
        cwd=ROOT,
        env=environ | _QUIET,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


@contextmanager
def all_running(report: Report) -> Iterator[Sequence[Peer]]:
    """Every peer; none, and a line that says how to get them, without their environment."""
    with ExitStack() as stack:
        modules = NAMES if python() is not None else (FASTEST,)  # one line is enough
        found = [stack.enter_context(running(report, module)) for module in modules]
        yield [peer for peer in found if peer is not None]


def facts() -> dict[str, str]:
    """What the peers are, for the results' list of versions."""
    report = Report()
    with all_running(report) as peers, litellm_running(report) as litellm:
        everyone = [*peers, *([litellm] if litellm is not None else [])]
        return {fact: value for peer in everyone for fact, value in peer.ask("facts").items()}

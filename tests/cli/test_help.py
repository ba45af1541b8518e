from __future__ import annotations

import shlex
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import typer

import perdure
from perdure.cli.app import app
from tests.cli.conftest import Run

EXPECTED = {
    *("import", "sessions", "show", "turn", "tail", "fork", "export", "forget"),
    *("context", "simulate", "renditions"),
    *("ask", "models", "costs", "batches", "run", "runs"),
    *("worker", "jobs", "jobs list", "jobs retry"),
    *("proxy", "serve", "mcp", "token", "token make", "token list", "token revoke"),
    *("recall", "share", "index", "index check", "index rebuild"),
    "agent",
    *(f"agent {each}" for each in ("add", "list", "show", "ask", "send", "messages", "retry")),
    *(f"agent {each}" for each in ("questions", "answer", "schedule", "schedules", "unschedule")),
    *(f"agent {each}" for each in ("versions", "pause", "resume", "remove", "cancel")),
    "memory",
    *(f"memory {each}" for each in ("add", "list", "show", "edit", "merge", "pin", "unpin")),
    *(f"memory {each}" for each in ("retire", "restore", "delete", "history", "audit")),
    "memory import",
    *("reflect", *(f"reflect {each}" for each in ("run", "list", "show", "undo"))),
    *("inbox", *(f"inbox {each}" for each in ("list", "show", "accept", "dismiss"))),
    "task",
    *(f"task {each}" for each in ("add", "list", "ready", "claim", "release", "done", "block")),
    *(f"task {each}" for each in ("unblock", "edit", "reopen", "note", "show", "graph")),
    *(f"task {each}" for each in ("import", "export", "sync")),
    *(f"project {each}" for each in ("status", "reconcile", "rewind")),
    *("project", *(f"project {each}" for each in ("init", "remove", "plugin"))),
    *(f"project {each}" for each in ("recall", "index")),
    *(f"project {each}" for each in ("show", "checkpoint", "link", "unlink")),
    *(f"project {each}" for each in ("preamble", "refresh", "sessions", "journal", "note", "set")),
    *(f"project {each}" for each in ("share", "unshare", "repair", "merge-driver")),
    *("project goal", *(f"project goal {each}" for each in ("add", "edit", "done"))),
    "project milestone",
    *(f"project milestone {each}" for each in ("add", "edit", "finish")),
    "team",
    *(f"team {each}" for each in ("run", "list", "show", "recap", "replay", "decide", "undo")),
    "reference",
    *(f"reference {each}" for each in ("add", "list", "show", "check", "remove")),
    "canon",
    *(f"canon {each}" for each in ("list", "show", "write", "promote", "history")),
    *(f"canon {each}" for each in ("restore", "remove")),
    *("agent stats", "agent episodes", "agent rate", "agent evolve"),
    *(f"agent evolve {each}" for each in ("show", "accept", "dismiss", "revert")),
    *("artifacts", *(f"artifacts {each}" for each in ("list", "check", "collect", "move"))),
    *("audit", "metrics", "verify", "conformance", "doctor", "pause", "resume"),
    "uninstall",
    *("bank", "bank init", "bank info", "bank migrate", "bank encrypt", "bank decrypt"),
    *("bank backup", "bank backups", "bank restore", "bank copy"),
    *("keys", "keys make", "keys list", "keys rotate", "keys shred"),
    *("schema", "schema list", "schema show", "schema proto", "schema check"),
}
#: Commands that hold others.
GROUPS = {
    "agent",
    "agent evolve",
    "artifacts",
    "bank",
    "canon",
    "inbox",
    "index",
    "jobs",
    "keys",
    "memory",
    "project",
    "project goal",
    "project milestone",
    "reference",
    "reflect",
    "schema",
    "task",
    "team",
    "token",
}


def commands(group: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    for name, command in group.commands.items():
        place = f"{path} {name}".strip()
        yield place, command
        if hasattr(command, "commands"):
            yield from commands(command, place)


COMMANDS = dict(commands(typer.main.get_command(app)))


def test_every_command_is_there() -> None:
    assert set(COMMANDS) == EXPECTED


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_and_option_is_documented(name: str, run: Run) -> None:
    command = COMMANDS[name]
    assert command.help
    for parameter in command.params:
        assert getattr(parameter, "help", None), f"{name} {parameter.name}"
    result = run(*name.split(), "--help")
    assert result.exit_code == 0
    assert command.help.splitlines()[0] in result.stdout


@pytest.mark.parametrize("name", sorted(EXPECTED - GROUPS))
def test_every_command_speaks_json(name: str, run: Run) -> None:
    assert "--json" in run(*name.split(), "--help").stdout


@pytest.mark.parametrize("name", sorted(EXPECTED - GROUPS))
def test_every_command_has_an_example_that_can_be_called(name: str, run: Run) -> None:
    *_, heading, line = run(*name.split(), "--help").stdout.strip().splitlines()
    assert heading.strip() == "Example:"
    words = shlex.split(line.rpartition(" | ")[2])
    assert words[: 1 + len(name.split())] == ["perdure", *name.split()]
    given = words[1 + len(name.split()) :]
    # Fails with `UsageError` for options that there are not, and for arguments too few or many.
    COMMANDS[name].make_context(name, given)


def test_the_version(run: Run) -> None:
    result = run("--version")
    assert (result.exit_code, result.stdout) == (0, f"perdure {perdure.__version__}\n")


@pytest.mark.parametrize("args", [["nonsense"], ["verify", "--nonsense"], ["conformance"]])
def test_usage_errors_exit_with_2_and_say_where_help_is(args: list[str], run: Run) -> None:
    result = run(*args)
    assert result.exit_code == 2
    assert not result.stdout
    assert "--help' for help" in result.stderr


@pytest.mark.parametrize("args", [["--help"], ["--version"], ["bank", "--help"], ["nonsense"]])
def test_help_loads_nothing_that_takes_time(args: list[str]) -> None:
    heavy = ["apsw", "asyncio", "msgspec", "obstore", "perdure.bank", "platformdirs", "rich"]
    code = f"""
import sys
from perdure.cli.app import app
app({args}, standalone_mode=False) if {args} != ["nonsense"] else None
print([name for name in {heavy} if name in sys.modules], file=sys.stderr)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr == "[]\n"

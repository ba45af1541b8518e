"""Starts a client so that it speaks to the proxy: what each one needs to be told.

Nothing of a client's own files is changed, and its login is its own: Claude Code is told by
variables, opencode by a variable with configuration, Codex by options. Codex keeps its built-in
provider, because it lists and resumes only conversations of the provider in use.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import sys
import tomllib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path, PurePath
from typing import Any

import msgspec

from perdure.core.errors import InvalidInput

_CLIENTS = frozenset({"claude", "codex", "opencode"})
#: What a terminal sends to everybody in front of it, and so to the client, too.
_KEYS = frozenset({signal.SIGINT, signal.SIGQUIT} if os.name == "posix" else {signal.SIGINT})
_SIGNALS = [
    getattr(signal, name)
    for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2")
    if hasattr(signal, name)
]


class CommandNotRun(InvalidInput):
    """The client could not be started. `code` is the exit code that shells give for it."""

    def __init__(self, message: str, *, hint: str, code: int) -> None:
        super().__init__(message, hint=hint)
        self.code = code


class ClientLaunch(msgspec.Struct, frozen=True):
    """How a client is started."""

    command: tuple[str, ...]
    variables: dict[str, str]


def find_command(command: Sequence[str]) -> tuple[str, ...]:
    """The command with its program's path. Raises `CommandNotRun` if there is no such program, or
    it may not be run.
    """
    if not command:
        raise InvalidInput(
            "No command is given.", hint="Write it behind two dashes: perdure proxy -- claude"
        )
    program = command[0]
    if found := shutil.which(program):
        return (found, *command[1:])
    if Path(program).is_dir() and PurePath(program).name != program:
        raise CommandNotRun(f"{program!r} is a folder.", hint="Name a program in it.", code=126)
    if there := shutil.which(program, os.F_OK):
        raise CommandNotRun(
            f"{there!r} is not executable.",
            hint="Make it so (chmod +x), or write what runs it in front, such as python.",
            code=126,
        )
    raise CommandNotRun(
        f"There is no command {program!r}.",
        hint="Install it, or write the path of the program.",
        code=127,
    )


def own_upstreams(command: Sequence[str], environment: Mapping[str, str]) -> dict[str, str]:
    """Where the client would send its requests without us, if that is not the public API."""
    found = {
        "anthropic": environment.get("ANTHROPIC_BASE_URL", ""),
        "openai": environment.get("OPENAI_BASE_URL", ""),
    }
    if client_of(command) == "codex":
        _, found["openai"] = _codex_provider(environment)
    return {name: url for name, url in found.items() if url}


def launch_for(
    command: Sequence[str], address: str, environment: Mapping[str, str], folder: str
) -> ClientLaunch:
    """How to start a client in a folder, so that it sends its requests to this address, which has
    the token in its path.
    """
    client = client_of(command)
    if client == "codex":
        return ClientLaunch(_codex_command(command, address, environment), {})
    if client == "opencode":
        given = _opencode_settings(environment.get("OPENCODE_CONFIG_CONTENT", ""), address, folder)
        return ClientLaunch(tuple(command), {"OPENCODE_CONFIG_CONTENT": given})
    variables = {
        "ANTHROPIC_BASE_URL": address,
        "ANTHROPIC_CUSTOM_HEADERS": "\n".join(
            [
                *filter(None, [environment.get("ANTHROPIC_CUSTOM_HEADERS", "")]),
                *(f"{name}: {value}" for name, value in _headers(folder).items()),
            ]
        ),
        # Tells what each request is for.
        "CLAUDE_CODE_GATEWAY_HINT_HEADERS": "1",
    }
    if client != "claude":
        variables["OPENAI_BASE_URL"] = f"{address}/v1"
    return ClientLaunch(tuple(command), {name: text for name, text in variables.items() if text})


def client_of(command: Sequence[str]) -> str:
    """The client that a command starts, by the program's name; empty for any other."""
    name = PurePath(command[0]).name.lower().partition(".")[0]
    return name if name in _CLIENTS else ""


def _headers(folder: str) -> dict[str, str]:
    """A header holds plain characters only. Other folders are those of the run's token."""
    plain = folder.isascii() and folder.isprintable()
    return {"x-perdure-project": folder} if plain else {}


def _codex_command(
    command: Sequence[str], address: str, environment: Mapping[str, str]
) -> tuple[str, ...]:
    provider, _ = _codex_provider(environment)
    # Codex takes the parts between dots as they are.
    place = f"model_providers.{provider}.base_url" if provider else "openai_base_url"
    settings = (f"{place}={_quoted(f'{address}/v1')}", "features.enable_request_compression=false")
    options = [each for setting in settings for each in ("-c", setting)]
    return (command[0], *options, *command[1:])


def _codex_provider(environment: Mapping[str, str]) -> tuple[str, str]:
    """The name of a provider of the user's own, and where the requests of Codex go."""
    home = environment.get("CODEX_HOME") or Path.home() / ".codex"
    found: dict[str, Any] = {}
    with suppress(OSError, ValueError):
        found = tomllib.loads(Path(home, "config.toml").read_text("utf-8"))
    name, providers = found.get("model_provider"), found.get("model_providers")
    own = providers.get(name) if isinstance(providers, dict) and isinstance(name, str) else None
    if isinstance(name, str) and isinstance(own, dict) and isinstance(own.get("base_url"), str):
        return name, own["base_url"]
    address = found.get("openai_base_url")
    return "", address if isinstance(address, str) else ""


def _opencode_settings(given: str, address: str, folder: str) -> str:
    """What is configured already, and where the providers are."""
    try:
        settings = msgspec.json.decode(given) if given else {}
    except msgspec.MsgspecError:
        settings = {}  # opencode would refuse it as well
    options = {"baseURL": f"{address}/v1", "headers": _headers(folder)}
    providers = {name: {"options": options} for name in ("anthropic", "openai")}
    return msgspec.json.encode(_merged(settings, {"provider": providers})).decode()


def _merged(one: Any, other: Any) -> Any:
    if not isinstance(one, dict) or not isinstance(other, dict):
        return other
    return one | {name: _merged(one.get(name), value) for name, value in other.items()}


def _quoted(text: str) -> str:
    """As a string of TOML."""
    return msgspec.json.encode(text).decode()


async def run_client(launch: ClientLaunch) -> int:
    """Run the client in the foreground, with our terminal, and pass signals on to it. Returns its
    exit code; of one that a signal ended, 128 and the signal's number. Raises `CommandNotRun`.
    """
    try:
        process = await asyncio.create_subprocess_exec(
            *launch.command, env={**os.environ, **launch.variables}
        )
    except OSError as exc:  # no program, or its interpreter is not there
        raise CommandNotRun(
            f"{launch.command[0]!r} cannot be run: {exc.strerror}.",
            hint="Look at its first line, which names what runs it.",
            code=126,
        ) from exc

    def pass_on(number: int) -> None:
        at_terminal = number in _KEYS and sys.stdin.isatty()
        if not at_terminal:
            with suppress(ProcessLookupError):
                process.send_signal(number)

    loop = asyncio.get_running_loop()
    caught = []
    for number in _SIGNALS:
        with suppress(NotImplementedError, RuntimeError, ValueError):  # not on Windows
            loop.add_signal_handler(number, pass_on, number)
            caught.append(number)
    try:
        code = await process.wait()
    finally:
        for number in caught:
            loop.remove_signal_handler(number)
    return code if code >= 0 else 128 - code

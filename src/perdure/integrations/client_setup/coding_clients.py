"""What each coding client needs in its own files: hooks, and Perdure as an MCP server.

============  ==================================  ==================================================
client        hooks                               MCP server
============  ==================================  ==================================================
Claude Code   ``.claude/settings.local.json`` of  ``.mcp.json``, allowed by the same settings
              the main work tree: all work trees
              read it
Codex         ``.codex/hooks.json``, which the    ``.codex/config.toml``
              user reviews once in Codex
============  ==================================  ==================================================

Files that are made here are kept out of git by ``info/exclude``: they hold paths of this machine.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import sys
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from perdure.integrations.client_hooks.client_hook_script import SCRIPT_NAME
from perdure.integrations.client_setup.file_edits import Change, with_lines, without_lines

SERVER = "perdure"
BEGIN = "# >>> perdure: memory of this project (`perdure project remove` takes it out)\n"
END = "# <<< perdure\n"
#: Events of each client, and the seconds that a hook may take at most. Those that record return at
#: once; Codex cuts SessionEnd at three.
EVENTS: Mapping[str, Mapping[str, int]] = {
    "claude-code": {
        "SessionStart": 10,
        "UserPromptSubmit": 10,
        "PostToolUse": 10,
        "Stop": 10,
        "SubagentStop": 10,
        "PreCompact": 10,
        "SessionEnd": 3,
    },
    "codex": {
        "SessionStart": 10,
        "UserPromptSubmit": 10,
        "PostToolUse": 10,
        "Stop": 10,
        "PreCompact": 10,
        "SessionEnd": 3,
    },
}


class ClientFile(msgspec.Struct, frozen=True):
    """One file of a client, and how our part is put in, which raises ValueError if the file is not
    what it should be. How it is taken out: see `TAKE_OUT`.
    """

    path: Path
    put_in: Change


class ClientPlaces(msgspec.Struct, frozen=True):
    """Where the files of clients are. `main` is the main work tree, `tree` the one that is set up;
    `home` is the folder of the project's own files. Without `hooks` there is only the MCP server.
    """

    tree: Path
    main: Path
    home: Path
    hooks: bool = True


class CodingClient(msgspec.Struct, frozen=True):
    """A client that can be set up."""

    name: str
    title: str
    program: str
    #: The folder of its user's settings.
    folder: Callable[[], Path]
    files: Callable[[ClientPlaces], tuple[ClientFile, ...]]
    #: What the user has to do afterwards.
    note: str = ""

    def is_here(self, tree: Path) -> bool:
        return (
            shutil.which(self.program) is not None
            or self.folder().is_dir()
            or (tree / self.folder().name).is_dir()
        )


def mcp_command() -> list[str]:
    """The command of the MCP server, by this Python: the client may have another PATH."""
    return [sys.executable, "-P", "-m", "perdure", "mcp"]


def hook_command(home: Path, client: str, event: str) -> str:
    """One line that sh, bash, zsh and fish run alike. Without the script it does nothing: a shell
    that cannot find its script may exit with 2, which clients take for a refusal.
    """
    script = shlex.quote(str(home / SCRIPT_NAME))
    return f"[ -r {script} ] && sh {script} {client} {event} || true"


# Claude Code ----------------------------------------------------------------------------------


def _claude_files(places: ClientPlaces) -> tuple[ClientFile, ...]:
    return (
        ClientFile(
            places.main / ".claude" / "settings.local.json",
            lambda text: _json(text, lambda data: _allow(_hooked(data, places, "claude-code"))),
        ),
        ClientFile(places.tree / ".mcp.json", _with_server),
    )


def _allow(settings: dict[str, Any]) -> dict[str, Any]:
    names = settings.setdefault("enabledMcpjsonServers", [])
    if not isinstance(names, list):
        raise ValueError("enabledMcpjsonServers is no list")  # noqa: TRY004 (it is the file's)
    if SERVER not in names:
        names.append(SERVER)
    return settings


def _disallow(settings: dict[str, Any]) -> dict[str, Any]:
    names = settings.get("enabledMcpjsonServers")
    if isinstance(names, list) and SERVER in names:
        names.remove(SERVER)
        if not names:
            del settings["enabledMcpjsonServers"]
    return settings


def _with_server(text: str | None) -> str | None:
    def change(data: dict[str, Any]) -> dict[str, Any]:
        servers = data.setdefault("mcpServers", {})
        if not isinstance(servers, dict):
            raise ValueError("mcpServers is no object")  # noqa: TRY004
        command, *args = mcp_command()
        servers.setdefault(
            SERVER, {"type": "stdio", "command": command, "args": args, "alwaysLoad": True}
        )
        return data

    return _json(text, change)


def _without_server(text: str | None) -> str | None:
    def change(data: dict[str, Any]) -> dict[str, Any]:
        servers = data.get("mcpServers")
        if isinstance(servers, dict) and _is_ours(servers.get(SERVER)):
            del servers[SERVER]
            if not servers:
                del data["mcpServers"]
        return data

    return _json(text, change)


def _is_ours(server: Any) -> bool:
    """Whether we wrote it, perhaps for another Python: users write it otherwise."""
    args = server.get("args") if isinstance(server, dict) else None
    return args == mcp_command()[1:]


# Codex ----------------------------------------------------------------------------------------


def _codex_files(places: ClientPlaces) -> tuple[ClientFile, ...]:
    return (
        ClientFile(
            places.tree / ".codex" / "hooks.json",
            lambda text: _json(text, lambda data: _hooked(data, places, "codex")),
        ),
        ClientFile(places.tree / ".codex" / "config.toml", _with_codex_server),
    )


def _with_codex_server(text: str | None) -> str:
    command, *args = mcp_command()
    lines = (
        f"[mcp_servers.{SERVER}]",
        f"command = {json.dumps(command, ensure_ascii=False)}",
        f"args = {json.dumps(args)}",
        "startup_timeout_sec = 20",
    )
    rest = without_lines(text, BEGIN, END) or ""
    servers = _toml(rest).get("mcp_servers", {})
    if isinstance(servers, dict) and SERVER in servers:  # the user's own
        return rest
    changed = with_lines(text, BEGIN, END, lines)
    _toml(changed)
    return changed


def _toml(text: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as exc:
        raise ValueError(str(exc)) from exc


# Hooks, which both write alike ----------------------------------------------------------------


def _hooked(data: dict[str, Any], places: ClientPlaces, client: str) -> dict[str, Any]:
    data = _unhooked(data)
    if not places.hooks:
        return data
    hooks = data.setdefault("hooks", {})
    for event, seconds in EVENTS[client].items():
        groups = hooks.setdefault(event, [])
        command = hook_command(places.home, client, event)
        groups.append({"hooks": [{"type": "command", "command": command, "timeout": seconds}]})
    return data


def _unhooked(data: dict[str, Any]) -> dict[str, Any]:
    """Without hooks that run our script, wherever it is."""
    hooks = data.get("hooks")
    if hooks is None:
        return data
    if not isinstance(hooks, dict) or not all(isinstance(each, list) for each in hooks.values()):
        raise ValueError("hooks is no object of lists")
    left: dict[str, Any] = {}
    for event, groups in hooks.items():
        rest = [new for group in groups if (new := _group_without_ours(group)) is not None]
        if rest or not groups:
            left[event] = rest
    if left or not hooks:
        data["hooks"] = left
    else:
        del data["hooks"]
    return data


def _group_without_ours(group: Any) -> Any:
    hooks = group.get("hooks") if isinstance(group, dict) else None
    if not isinstance(hooks, list):
        return group
    rest = [each for each in hooks if not _runs_ours(each)]
    if len(rest) == len(hooks):
        return group
    return {**group, "hooks": rest} if rest else None


def _runs_ours(hook: Any) -> bool:
    command = hook.get("command") if isinstance(hook, dict) else None
    places = (f"perdure/{SCRIPT_NAME}", f".perdure/local/{SCRIPT_NAME}")
    return isinstance(command, str) and any(place in command for place in places)


def _json(text: str | None, change: Callable[[dict[str, Any]], dict[str, Any]]) -> str | None:
    """A JSON object, changed; an object that became empty is no file. What did not change keeps its
    bytes.
    """
    try:
        data = {} if not (text or "").strip() else json.loads(text or "")
    except ValueError as exc:
        raise ValueError(f"it is no JSON: {exc}") from exc
    if not isinstance(data, dict):
        raise ValueError("it is no JSON object")  # noqa: TRY004
    before = json.dumps(data)
    changed = change(data)
    if json.dumps(changed) == before:
        return text
    if not changed:
        return None
    indent: int | str = 2
    for line in (text or "").splitlines()[1:2]:
        indent = line[: len(line) - len(line.lstrip())] or 2
    return json.dumps(changed, indent=indent, ensure_ascii=False) + "\n"


def _claude_folder() -> Path:
    return Path(os.environ.get("CLAUDE_CONFIG_DIR") or Path.home() / ".claude")


def _codex_folder() -> Path:
    return Path(os.environ.get("CODEX_HOME") or Path.home() / ".codex")


def _without_block(text: str | None) -> str | None:
    return without_lines(text, BEGIN, END) or None


#: How our part is taken out of a file, by the file's name. Each raises ValueError if the file is
#: not what it should be, and gives None if nothing is left.
TAKE_OUT: Mapping[str, Change] = {
    "settings.local.json": lambda text: _json(text, lambda data: _disallow(_unhooked(data))),
    ".mcp.json": _without_server,
    "hooks.json": lambda text: _json(text, _unhooked),
    "config.toml": _without_block,
    "exclude": _without_block,
}
CLIENTS: Mapping[str, CodingClient] = {
    client.name: client
    for client in (
        CodingClient("claude-code", "Claude Code", "claude", _claude_folder, _claude_files),
        CodingClient(
            *("codex", "Codex", "codex", _codex_folder, _codex_files),
            note="Codex runs hooks that you have reviewed: start it here and look at /hooks.",
        ),
    )
}

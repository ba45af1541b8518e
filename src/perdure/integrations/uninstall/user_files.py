"""What Perdure, or its user with it, put into files of shells and clients outside of projects."""

from __future__ import annotations

import json
import shutil
import subprocess
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from perdure.core.errors import Unavailable
from perdure.integrations.client_setup.coding_clients import CLIENTS, SERVER
from perdure.integrations.client_setup.file_edits import read_bytes, replace_file

_PLUGIN, _MARKETPLACE = "perdure@perdure", "perdure"
#: Seconds that Claude Code gets to take its plugin out.
_PATIENCE = 120.0
_UNITS = ("/etc/systemd/system", "~/.config/systemd/user")


class UserFile(msgspec.Struct, frozen=True):
    """One thing that can be taken out. `work` raises a `PerdureError` if it cannot."""

    what: str
    work: Callable[[], None]


def user_files() -> list[UserFile]:
    """What is there now. Raises `Corrupted` for a file that cannot be read."""
    return [*_completion(), *_claude_plugin()]


# Completion of shells, as `perdure --install-completion` makes it --------------------------------


def _completion() -> Iterator[UserFile]:
    home = Path.home()
    bash = home / ".bash_completions" / "perdure.sh"
    line = f"source '{bash}'\n"
    profile = home / ".bashrc"
    text = (read_bytes(profile) or b"").decode(errors="surrogateescape")
    if line in text:
        yield UserFile(f"the line of completion in {profile}", lambda: _without_line(profile, line))
    zsh, fish = home / ".zfunc" / "_perdure", home / ".config/fish/completions/perdure.fish"
    for file in (bash, zsh, fish):
        if file.is_file():
            yield UserFile(f"completion: {file}", lambda file=file: _unlink(file))  # type: ignore[misc]


def _without_line(profile: Path, line: str) -> None:
    """The line, and the empty one before it, which came with it."""
    text = (read_bytes(profile) or b"").decode(errors="surrogateescape")
    before, found, after = text.partition(line)
    if not found:
        return
    if before.endswith("\n") and (before.endswith("\n\n") or not after):
        before = before[:-1]
    try:
        replace_file(profile, f"{before}{after}".encode(errors="surrogateescape"))
    except OSError as exc:
        raise _unwritable(profile, exc) from exc


def _unlink(file: Path) -> None:
    try:
        file.unlink(missing_ok=True)
    except OSError as exc:
        raise _unwritable(file, exc) from exc
    for folder in file.parents:
        if folder == Path.home():
            return
        try:
            folder.rmdir()
        except OSError:
            return  # others use it


# The plugin of Claude Code, which its user installed ----------------------------------------------


def _claude_plugin() -> Iterator[UserFile]:
    if plugin_parts():
        what = "the plugin of Claude Code (`claude plugin uninstall`)"
        yield UserFile(what, _remove_plugin)


def plugin_parts() -> list[list[str]]:
    """The commands of Claude Code that take our plugin, and where it came from, out again."""
    plugins = CLIENTS["claude-code"].folder() / "plugins"
    found = []
    installed = _read_json(plugins / "installed_plugins.json").get("plugins")
    if isinstance(installed, dict) and _PLUGIN in installed:
        found.append(["plugin", "uninstall", _PLUGIN])
    if _MARKETPLACE in _read_json(plugins / "known_marketplaces.json"):
        found.append(["plugin", "marketplace", "remove", _MARKETPLACE])
    return found


def _remove_plugin() -> None:
    commands = plugin_parts()
    told = " && ".join(f"claude {' '.join(each)}" for each in commands)
    program = shutil.which("claude")
    if program is None:
        raise Unavailable(
            "The plugin of Claude Code stays: `claude` is not on the path.", hint=f"Run: {told}"
        )
    for command in commands:
        try:
            done = subprocess.run(  # noqa: S603 (Claude Code, with words of ours)
                [program, *command],
                capture_output=True,
                stdin=subprocess.DEVNULL,
                text=True,
                check=False,
                timeout=_PATIENCE,
            )
        except (OSError, subprocess.TimeoutExpired) as exc:
            raise Unavailable(f"Claude Code cannot be run: {exc}.", hint=f"Run: {told}") from exc
        if done.returncode:
            said = (done.stderr or done.stdout).strip()[-300:]
            raise Unavailable(f"Claude Code keeps the plugin: {said}", hint=f"Run: {told}")
    # Its copy, which Claude Code would keep for some days.
    shutil.rmtree(CLIENTS["claude-code"].folder() / "plugins/cache/perdure", ignore_errors=True)


# What somebody wrote, which stays -----------------------------------------------------------------


def mentions() -> list[str]:
    """Where somebody made Perdure known: to be told, not changed."""
    found = []
    claude = Path.home() / ".claude.json"
    known = _read_json(claude)
    projects = known.get("projects")
    for folder, settings in projects.items() if isinstance(projects, dict) else ():
        if _has_server(settings, "mcpServers"):
            found.append(f"the MCP server of {folder} in {claude} (`claude mcp remove {SERVER}`)")
    if _has_server(known, "mcpServers"):
        found.append(f"the MCP server in {claude} (`claude mcp remove {SERVER}`)")
    opencode = Path.home() / ".config/opencode/opencode.json"
    if _has_server(_read_json(opencode), "mcp"):
        found.append(f"the MCP server in {opencode}")
    codex = CLIENTS["codex"].folder() / "config.toml"
    settings = _read_toml(codex)
    found += [
        f"[{section}.{SERVER}] in {codex}"
        for section in ("mcp_servers", "model_providers")
        if _has_server(settings, section)
    ]
    for folder in _UNITS:
        found += [str(unit) for unit in sorted(Path(folder).expanduser().glob("perdure*.service"))]
    return found


def _has_server(settings: Any, section: str) -> bool:
    servers = settings.get(section) if isinstance(settings, dict) else None
    return isinstance(servers, dict) and SERVER in servers


def _read_json(file: Path) -> dict[str, Any]:
    try:
        found = json.loads(file.read_bytes())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _read_toml(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text("utf-8"))
    except (OSError, ValueError):
        return {}


def _unwritable(path: Path, exc: OSError) -> Unavailable:
    return Unavailable(f"{path} cannot be changed: {exc.strerror}.", hint="Mend its rights.")

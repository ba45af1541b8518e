"""Real coding agents from the npm registry, pinned, in a cache folder outside the project."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
from pathlib import Path

import platformdirs

PACKAGES = {
    "@anthropic-ai/claude-code-linux-x64": "2.1.325",
    "@openai/codex": "0.166.0",
    "opencode-linux-x64": "1.18.33",
}
#: Where the programs are inside the packages.
_PROGRAMS = {
    "claude": "@anthropic-ai/claude-code-linux-x64/claude",
    "codex": "@openai/codex-linux-x64/vendor/x86_64-unknown-linux-musl/bin/codex",
    "opencode": "opencode-linux-x64/bin/opencode",
}


def cache_folder() -> Path:
    """One for each choice of versions."""
    mark = hashlib.sha256(json.dumps(PACKAGES, sort_keys=True).encode()).hexdigest()[:8]
    given = os.environ.get("PERDURE_CLIENTS")
    base = Path(given) if given else Path(platformdirs.user_cache_dir("perdure")) / "clients"
    return base / mark


def program(client: str) -> Path:
    return cache_folder() / "node_modules" / _PROGRAMS[client]


def missing() -> list[str]:
    return [client for client in _PROGRAMS if not program(client).exists()]


def install() -> str:
    """Install what is missing (a gigabyte, once). Returns why that is not possible, or nothing."""
    if not missing():
        return ""
    if os.uname().sysname != "Linux" or os.uname().machine != "x86_64":
        return "the clients are pinned as programs for Linux on x86-64"
    npm = shutil.which("npm")
    if npm is None:
        return "npm is not installed"
    folder = cache_folder()
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "package.json").write_text(json.dumps({"private": True}))
    wanted = [f"{name}@{version}" for name, version in PACKAGES.items()]
    options = ["--silent", "--no-audit", "--no-fund", "--ignore-scripts", "--force"]
    done = subprocess.run(
        [npm, "install", *options, *wanted], cwd=folder, check=False, capture_output=True, text=True
    )
    if done.returncode or missing():
        return f"npm could not install the clients: {done.stderr.strip()[-300:]}"
    return ""

"""Real repositories for tests of projects."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

#: No configuration of the machine, and the same author everywhere.
VARIABLES = {
    "GIT_CONFIG_GLOBAL": "/dev/null",
    "GIT_CONFIG_SYSTEM": "/dev/null",
    "GIT_AUTHOR_NAME": "Ada",
    "GIT_AUTHOR_EMAIL": "ada@example.com",
    "GIT_COMMITTER_NAME": "Ada",
    "GIT_COMMITTER_EMAIL": "ada@example.com",
}


def run(folder: Path, *command: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        cwd=folder,
        env={**VARIABLES, **os.environ, **variables},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )


def git(folder: Path, *args: str, **variables: str) -> str:
    """What git prints on stdout; it has to succeed and to say nothing of hooks."""
    done = run(folder, "git", *args, **variables)
    assert done.returncode == 0, (args, done.stderr)
    assert "perdure" not in done.stderr, done.stderr
    return done.stdout.strip()


def new_repository(folder: Path, *options: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    git(folder, "init", "-q", "-b", "main", *options)
    commit(folder, "first")
    return folder


def commit(folder: Path, name: str, text: str = "") -> str:
    (folder / f"{name}.txt").write_text(text or f"{name}\n")
    git(folder, "add", "-A", "--", f"{name}.txt")
    git(folder, "commit", "-q", "-m", name)
    return git(folder, "rev-parse", "HEAD")


def all_bytes(folder: Path) -> dict[str, tuple[bytes, int]]:
    """Every file below a folder: its bytes, or where it links to, and its rights."""
    found: dict[str, tuple[bytes, int]] = {}
    for path in sorted(folder.rglob("*")):
        if path.is_symlink():
            found[str(path.relative_to(folder))] = os.fsencode(path.readlink()), 0
        elif path.is_file():
            found[str(path.relative_to(folder))] = path.read_bytes(), path.stat().st_mode
        elif not any(path.iterdir()):
            found[f"{path.relative_to(folder)}/"] = b"", 0
    return found

"""The real npm package `ai`, in a folder outside the repository, and chats driven by it."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import pytest

VERSION = "7.0.170"
_SCRIPT = Path(__file__).parent / "ai_chat.mjs"


@cache
def ai_sdk() -> Path:
    """Where it is installed, once for all runs. Skips the test where npm is missing or cannot."""
    for program in ("node", "npm"):
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not on this machine")
    cache_folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = cache_folder / "perdure-tests" / f"ai-{VERSION}"
    stamp = folder / ".installed"
    if not stamp.exists():
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "package.json").write_text('{"private": true}')
        done = subprocess.run(
            ["npm", "install", "--ignore-scripts", "--no-audit", "--no-fund", f"ai@{VERSION}"],
            cwd=folder,
            check=False,
            capture_output=True,
            text=True,
        )
        if done.returncode:
            pytest.skip(f"npm cannot install ai@{VERSION}: {done.stderr.strip()[-200:]}")
        stamp.touch()
    return folder


async def drive(api: str, token: str, *steps: list[Any], **body: Any) -> dict[str, Any]:
    """What a chat of the SDK holds after these steps; `body` goes with every request."""
    given = json.dumps({"steps": steps, "body": body})
    process = await asyncio.create_subprocess_exec(
        "node", str(_SCRIPT), api, token, given, cwd=ai_sdk(), stdout=-1, stderr=-1
    )
    async with asyncio.timeout(120):
        out, err = await process.communicate()
    assert process.returncode == 0, err.decode()
    found: dict[str, Any] = json.loads(out.decode().splitlines()[-1])
    return found

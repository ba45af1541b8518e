"""A repository with a project, a bank, and the official client over real pipes."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any, Literal, TypeAlias

import pytest
from mcp import Client
from mcp.client.stdio import StdioServerParameters, stdio_client

import perdure
from perdure.core.client_agents import session_of_client
from perdure.project.project_location import ProjectLocation, ProjectSettings

Mode: TypeAlias = Literal["auto", "legacy"]
Connect: TypeAlias = Callable[..., AbstractAsyncContextManager[Client]]
PROJECT = "pr_00112233445566ff"


class Workplace:
    """A folder, and the bank of whoever works in it."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.folder = home / "demo"
        self.folder.mkdir()
        self.bank = f"sqlite:///{home / 'memory.db'}"

    def git(self, *args: str) -> str:
        who = ("-c", "user.name=Ada", "-c", "user.email=ada@example.org")
        done = subprocess.run(
            ("git", *who, *args), cwd=self.folder, capture_output=True, text=True, check=True
        )
        return done.stdout.strip()

    def init(self) -> None:
        self.git("init", "-q", "-b", "main")
        self.git("commit", "-q", "--allow-empty", "-m", "Begin")
        settings = ProjectSettings(project=PROJECT, name="demo", bank=self.bank)
        ProjectLocation.find(self.folder).write_settings(settings)

    async def told(self, client: str, folder: Path, *texts: str, id: str = "one") -> str:
        """A conversation of a client; returns its session's name."""
        async with perdure.open(self.bank) as bank:
            session = await bank.session(session_of_client(client, str(folder), id))
            await session.describe({"cwd": str(folder)})
            for text in texts:
                await session.append(
                    [{"role": "user", "content": text}, {"role": "assistant", "content": "Noted."}]
                )
            await bank.settle()
            return session.name

    def command(self, *options: str) -> list[str]:
        return [sys.executable, "-m", "perdure", *options, "mcp"]

    @property
    def environment(self) -> dict[str, str]:
        return {**os.environ, "PERDURE_BANK": self.bank, "HOME": str(self.home)}


@pytest.fixture
def place(tmp_path: Path) -> Workplace:
    return Workplace(tmp_path)


@pytest.fixture
def connect(place: Workplace) -> Connect:
    @asynccontextmanager
    async def connected(
        mode: Mode = "auto", *, folder: Path | None = None, **options: Any
    ) -> AsyncIterator[Client]:
        command, *arguments = place.command()
        started = StdioServerParameters(
            command=command, args=arguments, env=place.environment, cwd=folder or place.folder
        )
        async with Client(stdio_client(started), mode=mode, **options) as client:
            yield client

    return connected

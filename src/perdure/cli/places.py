"""Finding the bank a command means, and what it takes on disk.

Commands that only look must not make anything: opening an address makes what is missing, so they
ask first whether there is a bank.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from perdure.artifacts.addresses import S3Address
from perdure.bank import Bank
from perdure.cli import terminal
from perdure.config import Config
from perdure.core.errors import Unavailable
from perdure.storage import urls

if TYPE_CHECKING:
    from perdure.cli.options import Settings


class FolderUse(msgspec.Struct, frozen=True):
    """What a folder takes on disk."""

    folder: str
    exists: bool
    files: int = 0
    bytes: int = 0

    def __str__(self) -> str:
        if not self.exists:
            return f"{self.folder} (none yet)"
        files = terminal.plural(self.files, "file")
        return f"{self.folder} ({files}, {terminal.format_size(self.bytes)})"


@asynccontextmanager
async def existing_bank(settings: Settings, config: Config) -> AsyncIterator[Bank]:
    """The bank of a configuration, open for looking: without background work.

    Raises `Unavailable` if there is none; it is not made.
    """
    bank = Bank(config=config)
    if not await bank.store.adapter.exists():
        named = f" --bank {shlex.quote(urls.shown(bank.url))}" if settings.bank is not None else ""
        raise Unavailable(
            f"There is no bank at {urls.location(bank.url)}.",
            hint=f"Make one with `perdure bank init{named}`.",
        )
    async with bank.looked_at():
        yield bank


def folder_use(folder: Path | S3Address) -> FolderUse | S3Address:
    """What a folder takes. Files that vanish or cannot be seen meanwhile are not counted.

    A place on S3 is only named: to list it takes long, and may cost.
    """
    if isinstance(folder, S3Address):
        return folder
    if not folder.is_dir():
        return FolderUse(str(folder), exists=False)
    files = total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            try:
                total += (Path(parent) / name).lstat().st_size
            except OSError:
                continue
            files += 1
    return FolderUse(str(folder), True, files, total)

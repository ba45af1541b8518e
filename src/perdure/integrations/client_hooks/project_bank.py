"""The bank of a project, as a hook finds it: by the project's own folder."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec

from perdure import config as configuration
from perdure.bank import Bank
from perdure.core.errors import NotFound, Unavailable
from perdure.project.project_location import ProjectLocation, initialised
from perdure.storage import registry


def location_of(home: Path, folder: str) -> ProjectLocation:
    """The project of a folder, if it is the one of these settings; else that of `home` itself.
    Raises `NotFound` if neither is there any more.
    """
    if folder and Path(folder).is_dir():
        found = ProjectLocation.find(Path(folder))
        if found.folder == home:
            return found
    top = home.parent.parent  # of .git/perdure, and of .perdure/local
    found = ProjectLocation.find(top)
    if found.folder != home:
        raise NotFound(f"The work tree of {home} is gone.", hint="Open the project elsewhere.")
    return found


@asynccontextmanager
async def project_bank(location: ProjectLocation, *, works: bool = False) -> AsyncIterator[Bank]:
    """The bank, without background work unless it `works`. Raises `NotFound`, `Unavailable`."""
    settings = initialised(location)
    config = configuration.load(None)
    if settings.bank:
        config = msgspec.structs.replace(config, bank=settings.bank)
    bank = Bank(config=config)
    if not await bank.store.adapter.exists():
        raise Unavailable(
            f"There is no bank at {registry.location(bank.url)}.",
            hint="Run `perdure project init` again.",
        )
    async with bank if works else bank.looked_at():
        yield bank

"""A bank to be thrown away."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from perdure.bank import Bank
from perdure.config import Config


@asynccontextmanager
async def scratch_bank() -> AsyncIterator[Bank]:
    """A bank in a folder of its own, which nobody else can read, and which is gone afterwards.

    It has nothing of the user's own settings: no model is ever called for it. (A bank in memory
    searches all its rows for each page: a session of some thousand rounds would take minutes.)
    """
    with TemporaryDirectory(prefix="perdure-") as folder:
        async with Bank(f"sqlite:///{Path(folder) / 'scratch.db'}", config=Config()) as bank:
            yield bank

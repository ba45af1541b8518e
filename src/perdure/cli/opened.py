"""Doing one thing with the bank that a command means."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from perdure.bank import Bank
    from perdure.cli.options import Settings

T = TypeVar("T")


def with_bank(settings: Settings, work: Callable[[Bank], Awaitable[T]]) -> T:
    """What came of the work. The bank is open without background work; it is not made."""
    import asyncio

    from perdure.cli import places

    async def opened() -> T:
        async with places.existing_bank(settings, settings.load()) as bank:
            return await work(bank)

    return asyncio.run(opened())

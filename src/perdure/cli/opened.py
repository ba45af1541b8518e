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


def change_bank(
    settings: Settings, work: Callable[[Bank], Awaitable[T]], tell: Callable[[T], None]
) -> None:
    """Do work that may write what recall finds, and tell what came of it.

    That is told first. Then what was written gets its vectors, if the model comes with Perdure,
    which takes most of a second to be loaded; to end the command meanwhile loses nothing.
    """

    async def done(bank: Bank) -> None:
        tell(await work(bank))
        await bank.index.embeddings.settle_own()

    with_bank(settings, done)

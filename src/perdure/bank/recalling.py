"""When a bank recalls: nobody who only opens or reads it waits for recall."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable
from typing import TYPE_CHECKING

from perdure.history.log import Written
from perdure.history.records import SessionRecord
from perdure.storage.transaction import Transaction

if TYPE_CHECKING:
    from perdure.recall.recall import Recall

#: Seconds after which recall begins its work, if nothing is appended before.
_BEGIN_AFTER = 0.5


class Recalling:
    """Recall, made when it is first needed and begun with the first append, or a little later."""

    def __init__(self, make: Callable[[], Recall]) -> None:
        self._make = make
        self._beginning: asyncio.Task[None] | None = None

    @functools.cached_property
    def recall(self) -> Recall:
        return self._make()

    def begin_soon(self) -> None:
        """Have the work in the background begin by itself."""
        self._beginning = asyncio.create_task(self._begin(), name="perdure-recall")

    async def _begin(self) -> None:
        await asyncio.sleep(_BEGIN_AFTER)
        await self.recall.start()

    async def hook(self, transaction: Transaction, written: Written) -> None:
        """Index what an importer appends, in the transaction that appends it."""
        if written.bulk:
            await self.recall.hook(transaction, written)

    def note(self, written: Written) -> None:
        """Index what was appended, soon."""
        self.recall.note(written)

    def missed(self, record: SessionRecord, first: int, last: int) -> None:
        """Index what a killed process appended."""
        self.recall.missed(record, first, last)

    async def settle(self) -> None:
        """Wait until everything is indexed and has its vector."""
        await self.recall.start()
        await self.recall.settle()

    async def stop(self) -> None:
        """End what is under way in the background; what is left is done later."""
        if self._beginning is not None:
            self._beginning.cancel()
            await asyncio.wait({self._beginning})
        if "recall" in self.__dict__:
            await self.recall.stop()

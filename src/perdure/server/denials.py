"""What was denied, in the bank's audit trail, whatever the number.

The first denial of a kind is written at once; further ones within a minute are counted and written
as one entry. At most `MOST_KINDS` kinds are told apart in a minute, so a flood of denials writes
some lines a minute.
"""

from __future__ import annotations

from perdure.core.errors import Denied
from perdure.storage.store import Store


class DenialLog:
    """Counts denials."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def note(self, denied: Denied, caller: str, operation: str, peer: str) -> None:
        pass

    async def settle(self) -> None:
        pass

"""An index that only remembers what was put into it, once that is committed."""

from __future__ import annotations

from perdure.recall.values import Note
from perdure.storage.transaction import Transaction


class Shelf:
    """What `RecallIndex` takes, by group and number."""

    def __init__(self) -> None:
        self.texts = dict[tuple[str, int], str]()
        self.notes = dict[tuple[str, int], Note]()

    async def put(
        self, transaction: Transaction, group: str, ordinal: int, text: str, note: Note
    ) -> None:
        def keep() -> None:
            self.texts[group, ordinal] = text
            self.notes[group, ordinal] = note

        transaction.after_commit(keep)

    async def withdraw(self, transaction: Transaction, group: str, ordinal: int) -> None:
        def drop() -> None:
            self.texts.pop((group, ordinal), None)
            self.notes.pop((group, ordinal), None)

        transaction.after_commit(drop)

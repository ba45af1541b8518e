"""How far a file was imported: kept in the bank, in the same transaction as what was imported.

A place is an offset and a number of steps taken of the line that begins there. To go on, a new
reader reads the file from its start and leaves out the steps taken: readers give the same steps
for the same lines. Where a file ended, its reader was asked for what it held back, which can
change later steps; so those offsets are part of the place.

The checksum covers the bytes before the offset. If it differs, the file is another one.
"""

from __future__ import annotations

import hashlib

import msgspec

from perdure.core.errors import Conflict, PerdureError
from perdure.history.import_cursors import Cursor, FilePosition, Stamp
from perdure.storage.options import Options
from perdure.storage.store import Store
from perdure.storage.transaction import Transaction


class Overtaken(PerdureError):
    """Another process imports the same file, and was faster."""


def cursor_key(session: str, conversation: str) -> str:
    name = conversation.encode("utf-8", "surrogatepass")
    return f"{session}/{hashlib.sha256(name).hexdigest()[:16]}"


class Bookmark:
    """The cursor of one file, as this process knows it."""

    def __init__(self, store: Store, key: str) -> None:
        self._store = store
        self._version = 0
        self.cursor = Cursor(key)
        #: Goes into the next cursor: see there.
        self.paused = False

    async def load(self) -> Cursor:
        found = await self._store.collection(Cursor).fetch(self.cursor.id)
        if found is not None:
            self.cursor, self._version = found.value, found.version
            self.paused = self.cursor.paused
        return self.cursor

    @property
    def used(self) -> bool:
        return self._version > 0

    def at(self, place: FilePosition, stamp: Stamp = Stamp(), *, anew: bool = False) -> Cursor:  # noqa: B008
        cursor = msgspec.structs.replace(self.cursor, place=place, stamp=stamp, anew=anew)
        return msgspec.structs.replace(cursor, paused=self.paused)

    def begin_anew(self) -> None:
        """Start over as if nothing had been imported and the session not been forgotten."""
        self.cursor = Cursor(self.cursor.id)

    async def move(self, transaction: Transaction, cursor: Cursor) -> None:
        """Move the cursor in the transaction that writes what was read.
        Raises `Overtaken` if it is not where this process left it.
        """
        cursors = transaction.collection(Cursor)
        found = await cursors.fetch(cursor.id)
        if (0 if found is None else found.version) != self._version:
            raise _overtaken()
        await cursors.put(cursor)
        transaction.after_commit(lambda: self._moved(cursor))

    def _moved(self, cursor: Cursor) -> None:
        self._version += 1
        self.cursor = cursor

    async def put(self, cursor: Cursor) -> None:
        """Move the cursor without writing anything. Raises `Overtaken`."""
        options = Options(expected=self._version)
        try:
            cursors = self._store.collection(Cursor)
            self._version = await cursors.put(cursor, options)
        except Conflict as exc:
            raise _overtaken() from exc
        self.cursor = cursor


def _overtaken() -> Overtaken:
    return Overtaken(hint="Import the file again; nothing was written twice.")

"""How far a file was imported: kept in the bank, in the same transaction as what was imported.

A place in a file is an offset and a number of steps: every step of the lines in front of the offset
was taken, and so many of the line that begins there. To go on, a file is read again from its start
by a new reader, and the steps that were taken are left out; readers give the same steps for the
same lines. At the end of a file a reader is asked for what it holds back, which can change what it
says later: so the offsets where that was done are part of the place.

The checksum covers the bytes in front of the offset. If it does not fit, the file is not the one
that was imported, or no longer.
"""

from __future__ import annotations

import hashlib

import msgspec

from perdure.core.errors import Conflict, PerdureError
from perdure.history.records import ImportCursor
from perdure.storage.adapter import Options
from perdure.storage.store import Store
from perdure.storage.transaction import Transaction


class Place(msgspec.Struct, frozen=True, array_like=True):
    """How far a file was read."""

    offset: int = 0
    #: Steps taken of the line that begins there.
    steps: int = 0
    checksum: int = 0
    #: Where the reader was asked for what it held back.
    ends: tuple[int, ...] = ()
    #: The steps were taken of what it held back at the last of them, and not all were.
    ending: bool = False

    @property
    def is_start(self) -> bool:
        return not self.offset and not self.steps


class Stamp(msgspec.Struct, frozen=True, array_like=True):
    """What tells cheaply that a file has not changed."""

    path: str = ""
    size: int = -1
    modified: int = -1


class Cursor(msgspec.Struct, frozen=True):
    """How far a file was imported into a session."""

    id: str  # session/hash of the conversation's name
    place: Place = Place()
    #: The file as it was when all of it had been imported.
    stamp: Stamp = Stamp()
    #: The turn that it was writing to: what comes next may belong to it.
    turn: int = 0
    #: The file was written anew since, and not all of it was compared with what the session has.
    anew: bool = False


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

    async def load(self) -> Cursor:
        found = await self._store.collection(ImportCursor).fetch(self.cursor.id)
        if found is not None:
            self.cursor, self._version = _read(found.value), found.version
        return self.cursor

    @property
    def used(self) -> bool:
        """Whether anything of this conversation was imported into this session."""
        return self._version > 0

    def at(self, place: Place, stamp: Stamp = Stamp(), *, anew: bool = False) -> Cursor:  # noqa: B008
        """The cursor at another place, in the same turn."""
        return Cursor(self.cursor.id, place, stamp, self.cursor.turn, anew)

    async def move(self, transaction: Transaction, cursor: Cursor) -> None:
        """Move the cursor in the transaction that writes what was read.

        It has moved when that is committed. Raises `Overtaken` if it is not where this process left
        it.
        """
        cursors = transaction.collection(ImportCursor)
        found = await cursors.fetch(cursor.id)
        if (0 if found is None else found.version) != self._version:
            raise _overtaken()
        await cursors.put(_stored(cursor))
        transaction.after_commit(lambda: self._moved(cursor))

    def _moved(self, cursor: Cursor) -> None:
        self._version += 1
        self.cursor = cursor

    async def put(self, cursor: Cursor) -> None:
        """Move the cursor where nothing was written: what was read came to nothing.

        Raises `Overtaken` if it is not where this process left it.
        """
        options = Options(expected=self._version)
        try:
            cursors = self._store.collection(ImportCursor)
            self._version = await cursors.put(_stored(cursor), options)
        except Conflict as exc:
            raise _overtaken() from exc
        self.cursor = cursor


def _overtaken() -> Overtaken:
    return Overtaken(hint="Import the file again; nothing was written twice.")


# The stored form ---------------------------------------------------------------------------------


def _stored(cursor: Cursor) -> ImportCursor:
    place, stamp = cursor.place, cursor.stamp
    state = {
        "ends": " ".join(map(str, place.ends)),
        "ending": "yes" if place.ending else "",
        "turn": str(cursor.turn) if cursor.turn else "",
        "anew": "yes" if cursor.anew else "",
        "size": str(stamp.size) if stamp.path else "",
        "modified": str(stamp.modified) if stamp.path else "",
    }
    return ImportCursor(
        id=cursor.id,
        source=stamp.path,
        offset=place.offset,
        written=place.steps,
        fingerprint=place.checksum.to_bytes(4),
        state={name: value for name, value in state.items() if value},
    )


def _read(record: ImportCursor) -> Cursor:
    state = record.state
    ends = tuple(int(offset) for offset in state.get("ends", "").split())
    checksum = int.from_bytes(record.fingerprint)
    place = Place(record.offset, record.written, checksum, ends, "ending" in state)
    stamp = Stamp()
    if record.source:
        stamp = Stamp(record.source, int(state["size"]), int(state["modified"]))
    return Cursor(record.id, place, stamp, int(state.get("turn", 0)), "anew" in state)

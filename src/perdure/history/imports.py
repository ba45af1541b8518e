"""How far files were imported into sessions. Kept here, and not with the importers: it is forgotten
with its session.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from perdure.storage.records import Key, system_record


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


@system_record("imports")
class Cursor(msgspec.Struct, frozen=True, omit_defaults=True):
    """How far a file was imported into a session."""

    id: Annotated[str, Key()]  # session/hash of the conversation's name
    place: Place = Place()
    #: The file as it was when all of it had been imported.
    stamp: Stamp = Stamp()
    #: The turn that it was writing to: what comes next may belong to it.
    turn: int = 0
    #: The file was written anew since, and not all of it was compared with what the session has.
    anew: bool = False

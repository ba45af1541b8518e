"""What hooks gave to a conversation so far, so that nothing is given twice: one small file each."""

from __future__ import annotations

import time
from pathlib import Path

import msgspec

from perdure.project.project_location import write_atomically

_FOLDER = "conversations"
#: Keys that are remembered of one conversation, and seconds for which an idle one is.
_MOST, _KEPT = 2_000, 30 * 86_400


class ConversationNotes(msgspec.Struct, frozen=True, omit_defaults=True):
    """Of one conversation. `preamble` tells which one was given: see `session_start`."""

    preamble: str = ""
    #: What stands in it, by the names of hits.
    shown: tuple[str, ...] = ()

    def with_shown(self, keys: tuple[str, ...]) -> ConversationNotes:
        return msgspec.structs.replace(self, shown=(*self.shown, *keys)[-_MOST:])


def notes_path(home: Path, conversation: str) -> Path:
    """As `session_start` names it."""
    name = "".join(char for char in conversation if char.isalnum() or char in "-_")
    return home / _FOLDER / f"{name[:80]}.json"


def read_notes(home: Path, conversation: str) -> ConversationNotes:
    """Empty if there are none, or if they are damaged."""
    try:
        data = notes_path(home, conversation).read_bytes()
        return msgspec.json.decode(data, type=ConversationNotes)
    except (OSError, msgspec.DecodeError):
        return ConversationNotes()


def write_notes(home: Path, conversation: str, notes: ConversationNotes) -> None:
    """Raises OSError."""
    path = notes_path(home, conversation)
    path.parent.mkdir(exist_ok=True)
    write_atomically(path, msgspec.json.encode(notes))


def drop_old_notes(home: Path) -> None:
    for path in (home / _FOLDER).glob("*.json"):
        try:
            if time.time() - path.stat().st_mtime > _KEPT:
                path.unlink()
        except OSError:
            continue  # another process was first

"""What an importer makes of a file: steps, in the order of the file.

A reader is given one record after the other and yields what they come to. It does no I/O and knows
nothing of banks, so it can be tested with a list of lines.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from perdure.core.messages import Message
from perdure.importers.decoding import decode

#: What the id begins with that a reader gives to the pieces of a reply that has no name of its own.
PIECE = "piece-"


class Say(msgspec.Struct, frozen=True):
    """A message was said."""

    message: Message
    #: The conversation inside the file that it belongs to: "" is the file's own, any other a part
    #: of it, such as a sub-agent's, which becomes a session of its own.
    to: str = ""


class Open(msgspec.Struct, frozen=True):
    """A turn begins here with these tags.

    Prompts open turns by themselves. With `always` one begins whatever was said before.
    """

    tags: dict[str, str] = {}
    always: bool = False
    to: str = ""


class Undo(msgspec.Struct, frozen=True):
    """The newest turns of this conversation were taken back."""

    turns: int
    to: str = ""


class Describe(msgspec.Struct, frozen=True):
    """Facts about the conversation, for its session's state; later ones win."""

    facts: dict[str, Any]
    to: str = ""


class Spawn(msgspec.Struct, frozen=True):
    """A tool call of this conversation started a sub-agent: the conversation `child`."""

    child: str
    call: str
    to: str = ""


class Begun(msgspec.Struct, frozen=True):
    """This conversation was started by another one, perhaps by a known tool call of it."""

    by: str
    call: str = ""
    to: str = ""


Step = Say | Open | Undo | Describe | Spawn | Begun


class Report:
    """How many records were read, and how many of them were skipped, and why.

    Reasons are few and short: of an unknown kind of record its name is part of the reason, but
    only of the first kinds, so that a file full of nonsense does not fill the memory.
    """

    _KINDS = 200

    def __init__(self) -> None:
        self.read = 0
        self.skipped: dict[str, int] = {}

    @property
    def used(self) -> int:
        return self.read - sum(self.skipped.values())

    def skip(self, reason: str, count: int = 1) -> None:
        if reason not in self.skipped and len(self.skipped) >= self._KINDS:
            reason = "other"
        self.skipped[reason] = self.skipped.get(reason, 0) + count


class Reader:
    """Reads the records of one file. Derive from it, one class for each format.

    The same records must always give the same steps: importing again reads them again, and leaves
    out the steps that were taken. A reader may hold something back until it knows more (a reply,
    until it is whole), but in bounded amounts.
    """

    #: A last line without its newline waits for it. JSON tells by itself whether it is complete.
    whole_lines = False

    def __init__(self) -> None:
        self.report = Report()

    def decode(self, line: bytes) -> Any:
        """The record in a line. Raises `Broken` if there is none."""
        return decode(line)

    def read(self, record: Any) -> Iterable[Step]:
        """What a record comes to."""
        raise NotImplementedError

    def finish(self) -> Iterable[Step]:
        """What was held back: the file ends here, for now. It may grow, and reading go on."""
        return ()

    def skip(self, reason: str) -> tuple[()]:
        """Count the record as skipped."""
        self.report.skip(reason)
        return ()


def word(value: Any) -> str:
    """The value, if it is text: files hold anything in any place."""
    return value if isinstance(value, str) else ""


def kind(value: Any) -> str:
    """A name taken from a file, fit to be shown in a reason."""
    if not isinstance(value, str) or not value:
        return "without a type" if value is None or value == "" else "with a strange type"
    shown = "".join(char if char.isprintable() else "?" for char in value[:40])
    return shown if len(value) <= 40 else f"{shown}…"

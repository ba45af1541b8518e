"""What an importer is: files of a format, their reader, and the steps it yields."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from perdure.core.messages import Message, encode
from perdure.history.import_cursors import Stamp
from perdure.history.log_records import MAX_NAME
from perdure.importers.transcript_source import RecordSource, TranscriptSource, decode

#: Bytes that the names of a format and of a sub-agent may add to that of a conversation.
_ROOM = MAX_NAME - 50
_unfit = re.compile(r"[^\w.@+=:-]+")


class Transcript(msgspec.Struct, frozen=True, kw_only=True):
    """A file with a conversation."""

    path: Path
    #: The conversation's own name: the same file under another path has the same.
    id: str
    agent: str = ""
    #: The tool call that started it, if something beside the file tells.
    call: str = ""
    facts: dict[str, Any] = {}
    #: The folder that its client worked in: its project. None if nothing is said in it yet.
    folder: str | None = None
    session: str = ""  # the session it was exported from
    skip: str = ""  # why the file is not imported
    #: Its records, if it is one of many conversations in a file: JSON each, asked for whenever it
    #: is read. Raises OSError. Then the stamp tells that they have not changed.
    records: Callable[[], Iterable[bytes]] | None = None
    stamp: Stamp | None = None


class Importer:
    """One format. Derive from it, give `reader`, and register an instance under its name."""

    #: What the files in a folder are called.
    patterns: Sequence[str] = ("*.jsonl", "*.jsonl.zst")
    #: Conversations are named by their files: another file of the same name is another
    #: conversation. Otherwise the format has names of its own.
    named_by_file = True
    #: The client whose conversations these are. Their agent is the client in its project, and what
    #: the proxy recorded of them is known again; see `perdure.core.client_agents`.
    client = ""
    #: Whether its files grow while they are used, and can be watched. Exports do not.
    grows = True

    def reader(self, transcript: Transcript) -> TranscriptReader:
        raise NotImplementedError

    def places(self) -> Sequence[Path]:
        """Where to look when no path is given."""
        return ()

    def transcripts(self, path: Path) -> Iterable[Transcript]:
        """The transcripts at a path, which exists; sub-agents follow the one that started them."""
        for file in files(path, self.patterns):
            yield Transcript(path=file, id=stem(file))

    def folder(self, transcript: Transcript) -> str | None:
        """The folder that the conversation's client worked in; None if nothing is said in it yet.
        Asked only if there is a `client`. Raises OSError.
        """
        return ""

    def open(self, transcript: Transcript) -> TranscriptSource:
        """The lines of the file. Raises OSError."""
        if transcript.records is not None:
            return RecordSource(transcript.path, transcript.records)
        return TranscriptSource(transcript.path)


def files(path: Path, patterns: Iterable[str]) -> Iterator[Path]:
    """The file itself, or the matching files below the folder, sorted by path."""
    if not path.is_dir():
        yield path
        return
    found = {file for pattern in patterns for file in path.rglob(pattern)}
    yield from sorted(file for file in found if file.is_file())


def unreadable(path: Path, why: str) -> Transcript:
    """Stands for what a file would hold if it could be read: it is counted."""

    def fail() -> Iterable[bytes]:
        raise OSError(why)

    return Transcript(path=path, id=stem(path), records=fail, stamp=Stamp(str(path), 1), folder="")


def stem(path: Path) -> str:
    return Path(path.name.removesuffix(".zst")).stem or path.name


def name_of(*parts: str) -> str:
    """A part of a session's name; different parts give different names."""
    names = [_unfit.sub("-", part).strip("-.") or "unnamed" for part in parts if part]
    name = ".".join(names)
    if len(name.encode()) <= _ROOM:
        return name
    mark = hashlib.sha256("\0".join(parts).encode("utf-8", "surrogatepass")).hexdigest()[:12]
    return f"{name.encode()[: _ROOM - 13].decode(errors='ignore')}-{mark}"


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
    Prompts open turns by themselves. With `always` one begins in any case.
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


class ReadReport:
    """How many records were read and skipped, and why.
    Unknown kinds of records are named only up to a limit, so memory stays bounded.
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


class TranscriptReader:
    """Reads the records of one file. Derive from it, one class for each format.

    The same records must always give the same steps: importing again reads them again and leaves
    out the steps taken. A reader may hold something back (a reply, until it is whole), in bounded
    amounts.
    """

    #: A last line without its newline waits for it. JSON tells by itself whether it is complete.
    whole_lines = False

    def __init__(self) -> None:
        self.report = ReadReport()

    def decode(self, line: bytes) -> Any:
        """The record in a line. Raises `Broken` if there is none."""
        return decode(line)

    def read(self, record: Any) -> Iterable[Step]:
        raise NotImplementedError

    def finish(self) -> Iterable[Step]:
        """What was held back: the file ends here, for now. It may grow, and reading go on."""
        return ()

    def skip(self, reason: str) -> tuple[()]:
        self.report.skip(reason)
        return ()

    def skip_part(self, reason: str) -> None:
        """Count a part of a record that is used otherwise: as a record of its own."""
        self.report.read += 1
        self.report.skip(reason)


def stored_form(message: Message) -> bytes:
    """The message as it would be stored; nothing if it cannot be."""
    try:
        return encode([message])
    except (TypeError, ValueError, OverflowError, RecursionError):
        return b""


def word(value: Any) -> str:
    """The value, if it is text: files hold anything in any place."""
    return value if isinstance(value, str) else ""


def kind(value: Any) -> str:
    """A name taken from a file, fit to be shown in a reason."""
    if not isinstance(value, str) or not value:
        return "without a type" if value is None or value == "" else "with a strange type"
    shown = "".join(char if char.isprintable() else "?" for char in value[:40])
    return shown if len(value) <= 40 else f"{shown}…"

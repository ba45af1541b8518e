"""Detects the format of transcripts.

Many records look the same in several formats: ``{"role": "user", "content": "hi"}``. So a file's
format is that of its first record that only one format can have; of the others, a folder is taken
together. If nothing tells, it is a plain chat.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec

from perdure.core.errors import InvalidInput
from perdure.history.import_cursors import FilePosition
from perdure.importers import Broken, Say, decode, importer_for
from perdure.importers.importer import Transcript, files
from perdure.importers.step_feed import StepFeed
from perdure.importers.transcript_source import DamagedFile, JsonDocument
from perdure.wire.detection import wire_of

#: Formats that tell themselves.
KNOWN = ("perdure", "claude-code", "codex", "openai-chat", "anthropic")
#: Those that any list of messages may be; the first is taken if nothing tells.
_CHATS = ("openai-chat", "anthropic")
_BY_WIRE = {"chat": "openai-chat", "messages": "anthropic", "responses": "codex"}
_CLAUDE = frozenset({"sessionId", "parentUuid", "leafUuid"})
#: Records of a file that are looked at.
_RECORDS = 200
_PATTERNS = ("*.jsonl", "*.jsonl.zst", "*.json", "*.json.zst")


class DetectedFormat(msgspec.Struct, frozen=True):
    """What to read as what, and the files that cannot be read."""

    formats: dict[Path, str]
    unread: tuple[Path, ...] = ()


def detect_format(path: Path, given: str | None = None) -> DetectedFormat:
    """The formats of the file at a path, or of those in a folder. A folder with files of one format
    is read as a whole, so that what is beside them is found. `given` is the user's choice. Raises
    `InvalidInput` if there is no such path or format, or nothing that can be read.
    """
    path = path.expanduser()
    if not path.exists():
        raise InvalidInput(f"There is no {path}.", hint="Name a file, or a folder of them.")
    if given is not None:
        return DetectedFormat({path: given}, _not_of(given, path))
    told = {file: format_of(file) for file in files(path, _PATTERNS)}
    known = {name for name in told.values() if name}
    if "" in told.values():  # chats that tell nothing themselves
        chats = [name for name in _CHATS if name in known]
        usual = chats[0] if len(chats) == 1 else _CHATS[0]
        told = {file: usual if name == "" else name for file, name in told.items()}
        known.add(usual)
    if not known:
        raise InvalidInput(
            f"{path} holds no transcript of a known format.",
            hint=f"Name transcripts, and with --format one of {', '.join(sorted(KNOWN))}.",
        )
    formats = {file: name for file, name in told.items() if name}
    expected = {file for name in known for file in _files_of(name, path)}
    unread = tuple(file for file, name in told.items() if name is None and file in expected)
    if len(known) == 1 and set(formats) <= expected:
        formats = {path: known.pop()}
    return DetectedFormat(formats, unread)


def format_of(file: Path) -> str | None:
    """Empty if it may be any chat, None if nothing in it can be read."""
    if any(each.session for each in importer_for("perdure").transcripts(file)):
        return "perdure"  # it says so in its first line
    try:
        for record in islice(_records(file), _RECORDS):
            if (found := _format_of(record)) is not None:
                return found
        return "" if _is_chat(file) else None
    except (OSError, DamagedFile):
        return None


def _files_of(format: str, path: Path) -> list[Path]:  # noqa: A002 (that is what it is)
    return [each.path for each in importer_for(format).transcripts(path)]


def _not_of(given: str, path: Path) -> tuple[Path, ...]:
    """The files in a folder that cannot be of a format, although they look so by their names."""
    if not path.is_dir() or given not in KNOWN:
        return ()
    fitting = {given, "", *_CHATS} if given in _CHATS else {given}
    return tuple(file for file in _files_of(given, path) if format_of(file) not in fitting)


def _records(file: Path) -> Iterator[Any]:
    """What stands in a file, lists item by item. Raises OSError, `DamagedFile`."""
    with JsonDocument(file) as source:
        if source.binary():
            return
        for line in source.lines():
            try:
                record = decode(line.data)
            except Broken:
                continue
            yield from record if isinstance(record, list) else [record]


def _format_of(record: Any) -> str | None:
    """The format that a record is of; None if it may be of several."""
    if not isinstance(record, dict):
        return None
    if "role" in record:
        return _BY_WIRE.get(wire_of(record) or "")
    if isinstance(record.get("payload"), dict) or {"session", "items"} <= record.keys():
        return "codex"
    if not _CLAUDE.isdisjoint(record):
        return "claude-code"
    if isinstance(said := record.get("messages"), list):
        if "system" in record:
            return "anthropic"
        marks = (wire_of(each) for each in said[:_RECORDS] if isinstance(each, dict))
        return _BY_WIRE.get(next(filter(None, marks), ""))
    return "openai-chat" if "choices" in record else None


def _is_chat(file: Path) -> bool:
    """Whether something is said at the beginning of a file. Raises OSError."""
    feed = StepFeed(importer_for(_CHATS[0]), Transcript(path=file, id=file.name), FilePosition())
    try:
        steps = [*feed.pull().steps, *feed.finish().steps]
    finally:
        feed.close()
    return any(isinstance(taken.step, Say) for taken in steps)

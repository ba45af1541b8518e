"""Conversations of opencode, from July 2025 on: ``~/.local/share/opencode``.

Newer versions keep them in a database, ``opencode.db``: a row for each session, message and part,
with the rest as JSON. Older ones have a file for each, below ``storage``: ``session/<project>/*``,
``message/<session>/*`` and ``part/<message>/*``. `opencode export` makes a document of a session.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from perdure.history.import_cursors import Stamp
from perdure.importers.foreign_sqlite import ForeignDatabase, is_sqlite
from perdure.importers.importer import Importer, Transcript, unreadable, word
from perdure.importers.message_parts import items, mapping
from perdure.importers.opencode_reader import OpencodeReader
from perdure.importers.transcript_source import MAX_LINE, Broken, decode

_encode = msgspec.json.encode


class OpencodeImporter(Importer):
    """Reads opencode's sessions; those of sub-agents are linked to the calls that started them."""

    named_by_file = False
    client = "opencode"

    def reader(self, transcript: Transcript) -> OpencodeReader:
        return OpencodeReader()

    def places(self) -> Sequence[Path]:
        data = Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share")
        database = os.environ.get("OPENCODE_DB", "")
        found = data / "opencode" / database  # an absolute path stays what it is
        return [found] if database and database != ":memory:" else [data / "opencode"]

    def transcripts(self, path: Path) -> Iterable[Transcript]:
        try:
            if path.is_dir():
                yield from _in_folder(path)
            elif is_sqlite(path):
                yield from _in_database(path)
            else:
                yield _exported(path)
        except OSError as exc:
            yield unreadable(path, exc.strerror or str(exc))


def _in_folder(folder: Path) -> Iterator[Transcript]:
    known = set[str]()
    for path in sorted(folder.glob("*.db")):
        try:
            for transcript in _in_database(path):
                known.add(transcript.id)
                yield transcript
        except OSError as exc:
            yield unreadable(path, exc.strerror or str(exc))
    # Its own migration leaves the files where they were.
    storage = folder / "storage" if (folder / "storage").is_dir() else folder
    found = [_stored(storage, path) for path in sorted((storage / "session").glob("*/*.json"))]
    found.sort(key=lambda each: (bool(each.facts.get("parent")), each.id))
    yield from (each for each in found if each.id not in known)
    for path in sorted(folder.glob("*.json")):
        yield _exported(path)


def _transcript(path: Path, info: dict[str, Any], **how: Any) -> Transcript:
    found = {
        "cwd": info.get("directory"),
        "title": info.get("title"),
        "version": info.get("version"),
        "parent": info.get("parentID"),
    }
    facts = {name: value for name, value in found.items() if isinstance(value, str) and value}
    session = word(info.get("id")) or path.stem
    return Transcript(path=path, id=session, folder=word(info.get("directory")), facts=facts, **how)


def _head(info: dict[str, Any]) -> Iterator[bytes]:
    if parent := word(info.get("parentID")):
        yield _encode({"parent": parent})


def _tail(info: dict[str, Any]) -> Iterator[bytes]:
    if reverted := word(mapping(info.get("revert")).get("messageID")):
        yield _encode({"reverted": reverted})


# The database -----------------------------------------------------------------------------------


_SESSIONS = """
    SELECT id, parent_id, directory, title, version, revert,
        (SELECT count(*) FROM message WHERE session_id = session.id),
        (SELECT count(*) || '/' || coalesce(sum(time_updated), 0) FROM message
            WHERE session_id = session.id),
        (SELECT count(*) || '/' || coalesce(sum(time_updated), 0) FROM part
            WHERE session_id = session.id)
    FROM session ORDER BY parent_id IS NOT NULL, time_created, id
"""
_MESSAGES = "SELECT id FROM message WHERE session_id = ? ORDER BY time_created, id"
_MESSAGE = "SELECT data FROM message WHERE id = ?"
_PARTS = "SELECT data FROM part WHERE message_id = ? ORDER BY id"
#: What newer versions begin to write beside the messages, and perhaps instead of them.
_NEXT = "SELECT type FROM session_message WHERE session_id = ? ORDER BY seq"


def _in_database(path: Path) -> Iterator[Transcript]:
    database = ForeignDatabase(path)
    if not {"id", "directory", "title"} <= database.columns("session"):
        raise OSError("it has no sessions of opencode")
    has_next = bool(database.columns("session_message"))
    for session, parent, directory, title, version, revert, *state in database.rows(_SESSIONS):
        info = {"id": session, "parentID": parent, "directory": directory, "title": title}
        info |= {"version": version, "revert": _decoded(revert)}
        changed = zlib.crc32(repr((title, revert, *state)).encode())
        yield _transcript(
            path,
            info,
            records=partial(_rows, database, info, has_next=has_next),
            stamp=Stamp(f"{path}#{session}", max(state[0], 1), changed),
        )


def _rows(database: ForeignDatabase, info: dict[str, Any], *, has_next: bool) -> Iterator[bytes]:
    yield from _head(info)
    messages = database.rows(_MESSAGES, info["id"])
    for (message,) in messages:
        parts = [_raw(part) for (part,) in database.rows(_PARTS, message)]
        for (data,) in database.rows(_MESSAGE, message):
            yield _encode({"id": message, "info": _raw(data), "parts": parts})
    if has_next and not messages:
        for (kind,) in database.rows(_NEXT, info["id"]):
            yield _encode({"session_message": kind})
    yield from _tail(info)


def _raw(data: Any) -> msgspec.Raw:
    return msgspec.Raw(data.encode() if isinstance(data, str) else bytes(data or b"null"))


def _decoded(data: Any) -> Any:
    try:
        return decode(data.encode()) if isinstance(data, str) else None
    except Broken:
        return None


# Files ------------------------------------------------------------------------------------------


def _stored(storage: Path, path: Path) -> Transcript:
    """A session of older versions."""
    info = _document(path)
    session = word(info.get("id")) or path.stem
    return _transcript(
        path,
        {**info, "id": session},
        records=partial(_files, storage, {**info, "id": session}),
        stamp=_state(storage, path, session),
    )


def _files(storage: Path, info: dict[str, Any]) -> Iterator[bytes]:
    yield from _head(info)
    for path in sorted((storage / "message" / info["id"]).glob("*.json")):
        parts = sorted((storage / "part" / path.stem).glob("*.json"))
        found = [msgspec.Raw(part.read_bytes()) for part in parts]
        yield _encode({"id": path.stem, "info": msgspec.Raw(path.read_bytes()), "parts": found})
    yield from _tail(info)


def _state(storage: Path, path: Path, session: str) -> Stamp:
    """Tells that none of a session's files has changed."""
    messages = sorted((storage / "message" / session).glob("*.json"))
    found = [path, *messages]
    for message in messages:
        found += sorted((storage / "part" / message.stem).glob("*.json"))
    state = [(each.name, each.stat().st_size, each.stat().st_mtime_ns) for each in found]
    return Stamp(f"{path}#{session}", len(found), zlib.crc32(repr(state).encode()))


def _exported(path: Path) -> Transcript:
    document = _document(path)
    info = mapping(document.get("info"))
    if not info or not isinstance(document.get("messages"), list):
        return unreadable(path, "it is no session that opencode exported")
    messages = items(document["messages"])
    lines = [_encode({"id": mapping(each.get("info")).get("id"), **each}) for each in messages]
    lines = [*_head(info), *lines, *_tail(info)]
    return _transcript(
        path,
        info,
        records=lambda: iter(lines),
        stamp=Stamp("", len(lines), zlib.crc32(b"\n".join(lines))),
    )


def _document(path: Path) -> dict[str, Any]:
    """Raises OSError."""
    if path.stat().st_size > MAX_LINE:
        raise OSError("it is too long")
    try:
        return mapping(decode(path.read_bytes()))
    except Broken:
        return {}

"""Conversations of Cursor: ``User/globalStorage/state.vscdb``, a database of keys and values.

``composerData:<id>`` is a conversation with a list of its messages, ``bubbleId:<id>:<bubble>`` one
of them. In older versions (2024) the messages are in the list. Which folder a conversation belongs
to is in it, or in ``User/workspaceStorage/*``.
"""

from __future__ import annotations

import os
import sys
import zlib
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import msgspec

from perdure.history.import_cursors import Stamp
from perdure.importers.cursor_reader import CursorReader
from perdure.importers.foreign_sqlite import ForeignDatabase
from perdure.importers.importer import Importer, Transcript, unreadable, word
from perdure.importers.message_parts import items, mapping
from perdure.importers.transcript_source import Broken, decode

_encode = msgspec.json.encode
_COMPOSERS = "composerData:"
_STATE = """
    SELECT count(*), coalesce(max(rowid), 0), coalesce(sum(octet_length(value)), 0)
    FROM cursorDiskKV WHERE key >= ? AND key < ?
"""
_VALUE = "SELECT value FROM cursorDiskKV WHERE key = ? AND value IS NOT NULL"
_KEYS = "SELECT key FROM cursorDiskKV WHERE key >= ? AND key < ? ORDER BY rowid"
_ITEM = "SELECT value FROM ItemTable WHERE key = ?"
#: The list of a workspace's conversations, and the chats of versions before 2024's composer.
_OWN = "composer.composerData"
_CHATS = "workbench.panel.aichat.view.aichat.chatdata"


class CursorImporter(Importer):
    """Reads what Cursor keeps of its agents and chats."""

    named_by_file = False
    client = "cursor"

    def reader(self, transcript: Transcript) -> CursorReader:
        return CursorReader()

    def places(self) -> Sequence[Path]:
        if sys.platform == "darwin":
            settings = Path.home() / "Library" / "Application Support"
        else:
            settings = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")
        return [settings / "Cursor" / "User"]

    def transcripts(self, path: Path) -> Iterable[Transcript]:
        databases = sorted(path.rglob("state.vscdb")) if path.is_dir() else [path]
        databases.sort(key=lambda each: each.parent.name != "globalStorage")
        folders = _Workspaces()
        for database in databases:
            if database.parent.parent.name == "workspaceStorage":
                yield from folders.add(database)
        for database in databases:
            if database.parent.name == "globalStorage" and not path.is_dir():
                for other in sorted((database.parent.parent / "workspaceStorage").glob("*/*")):
                    if other.name == "state.vscdb":
                        list(folders.add(other))
            try:
                yield from _conversations(database, folders)
            except OSError as exc:
                yield unreadable(database, exc.strerror or str(exc))


class _Workspaces:
    """Which folder a conversation belongs to, as the workspaces tell."""

    def __init__(self) -> None:
        self._folders: dict[str, str] = {}

    def add(self, path: Path) -> Iterator[Transcript]:
        """Note a workspace; yields what stands for chats in it that cannot be read."""
        try:
            told = decode((path.parent / "workspace.json").read_bytes())
        except (OSError, Broken):
            told = None
        folder = _path(mapping(told).get("folder") or mapping(told).get("workspace"))
        try:
            database = ForeignDatabase(path)
            if not database.columns("ItemTable"):
                return
            for composer in items(mapping(_value(database, _ITEM, _OWN)).get("allComposers")):
                self._folders[word(composer.get("composerId"))] = folder
            tabs = items(mapping(_value(database, _ITEM, _CHATS)).get("tabs"))
        except OSError:  # it is told when conversations are looked for in it
            return
        if tabs:
            lines = [_encode({"tab": word(tab.get("tabId"))}) for tab in tabs]
            stamp = Stamp(str(path), len(lines), zlib.crc32(b"".join(lines)))
            name = f"chats-{path.parent.name}"
            yield Transcript(
                path=path, id=name, folder=folder, records=partial(iter, lines), stamp=stamp
            )

    def folder(self, composer: str, told: dict[str, Any]) -> str:
        uri = mapping(mapping(told.get("workspaceIdentifier")).get("uri"))
        own = word(uri.get("fsPath")) or word(uri.get("path")) or _path(uri.get("external"))
        return own or self._folders.get(composer, "")


def _conversations(path: Path, folders: _Workspaces) -> Iterator[Transcript]:
    database = ForeignDatabase(path)
    if not database.columns("cursorDiskKV"):
        if path.parent.parent.name != "workspaceStorage":
            raise OSError("it has no conversations of Cursor")
        return
    for (key,) in database.rows(_KEYS, _COMPOSERS, _COMPOSERS[:-1] + ";"):
        for (value,) in database.rows(_VALUE, key):
            found = _conversation(database, key.removeprefix(_COMPOSERS), value, folders)
            if found is not None:
                yield found


def _conversation(
    database: ForeignDatabase, composer: str, value: Any, folders: _Workspaces
) -> Transcript | None:
    """None for a window where nobody said anything."""
    told = _decoded(value)
    place = f"{database.path}#{composer}"
    if not isinstance(told, dict):
        line = value.encode() if isinstance(value, str) else bytes(value)
        stamp = Stamp(place, 1, zlib.crc32(line))
        records = partial(iter, [line])
        return Transcript(path=database.path, id=composer, folder="", records=records, stamp=stamp)
    listed = items(told.get("fullConversationHeadersOnly")) or items(told.get("conversation"))
    (state,) = database.rows(_STATE, *_range(composer))
    if not listed and not state[0]:
        return None
    folder = folders.folder(composer, told)
    mode = word(told.get("unifiedMode")) or word(told.get("forceMode"))
    facts = {"title": word(told.get("name")), "cwd": folder, "mode": mode}
    return Transcript(
        path=database.path,
        id=composer,
        folder=folder,
        facts={fact: value for fact, value in facts.items() if value},
        records=partial(_records, database, composer, told, listed),
        stamp=Stamp(place, 1, zlib.crc32(_encode((state, told)))),
    )


def _records(
    database: ForeignDatabase, composer: str, told: dict[str, Any], listed: list[dict[str, Any]]
) -> Iterator[bytes]:
    """The messages, as the conversation lists them; then what is not in its list."""
    model = word(mapping(told.get("modelConfig")).get("modelName"))
    named = [word(each.get("bubbleId")) for each in listed]
    keys = [key for (key,) in database.rows(_KEYS, *_range(composer))]
    there = {key.rpartition(":")[2] for key in keys}
    if not named:
        named, listed = [key.rpartition(":")[2] for key in keys], [{} for _ in keys]
    last = named[-1] if told.get("status") == "generating" else ""
    for name, header in zip(named, listed, strict=True):
        if name == last and header.get("type") != 1:
            yield _encode({"unfinished": name})
        elif name in there:
            for (value,) in database.rows(_VALUE, f"bubbleId:{composer}:{name}"):
                yield b'{"bubble":%s,"model":%s}' % (_raw(value), _encode(model))
        elif "text" in header:
            yield _encode({"bubble": header, "model": model})
        else:
            yield _encode({"missing": name})
    for name in sorted(there - set(named)):
        yield _encode({"outside": name})


def _range(composer: str) -> tuple[str, str]:
    return f"bubbleId:{composer}:", f"bubbleId:{composer};"


def _raw(value: Any) -> bytes:
    """On one line, if it is JSON; broken if it is not."""
    data = value.encode() if isinstance(value, str) else bytes(value or b"null")
    try:
        return msgspec.json.format(data, indent=-1)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return data


def _value(database: ForeignDatabase, sql: str, key: str) -> Any:
    found = database.rows(sql, key)
    return _decoded(found[0][0]) if found else None


def _decoded(value: Any) -> Any:
    try:
        return decode(value.encode() if isinstance(value, str) else bytes(value or b""))
    except Broken:
        return None


def _path(uri: Any) -> str:
    return unquote(urlsplit(uri).path) if isinstance(uri, str) else ""

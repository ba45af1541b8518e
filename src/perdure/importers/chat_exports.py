"""The conversations in the exports of chat services: their names, and what is no conversation."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import msgspec

from perdure.history.import_cursors import Stamp
from perdure.importers.export_archive import ExportArchive
from perdure.importers.importer import Transcript, stem, unreadable
from perdure.importers.message_parts import mapping
from perdure.importers.transcript_source import Broken, decode

_encode = msgspec.json.encode

Records: TypeAlias = Callable[[], Iterable[bytes]]
#: A conversation's name, facts and records; without a name it is none.
Read: TypeAlias = Callable[[dict[str, Any]], tuple[str, dict[str, Any], Records]]
#: Of an archive, of the place of a document in it, and of the document, if it is not too long.
Made: TypeAlias = Callable[[ExportArchive, str, bytes | None], Transcript]


def exported_conversations(path: Path, members: str, made: Made) -> Iterator[Transcript]:
    """Those of all archives at a path, which are zips, folders or single documents. What holds no
    conversation is counted under the archive's name.
    """
    for archive in _archives(path, members):
        yield from _in_archive(archive, members, made)


def _archives(path: Path, members: str) -> list[Path]:
    """A folder may be an archive that was unpacked, or hold several."""
    if not path.is_dir() or any(path.rglob(members)):
        return [path]
    return sorted(path.rglob("*.zip"))


def _in_archive(path: Path, members: str, made: Made) -> Iterator[Transcript]:
    """The conversations of an archive, and what stands for the files that hold none."""
    try:
        archive = ExportArchive(path)
    except OSError as exc:
        yield unreadable(path, exc.strerror or str(exc))
        return
    try:
        taken = archive.matching(members)
        for name in taken:
            number = 0
            try:
                for number, data in enumerate(archive.documents(name, "conversations"), 1):
                    yield made(archive, f"{name}, conversation {number}", data)
            except OSError as exc:
                where = f"{name} behind conversation {number}" if number else name
                yield unreadable(path, f"{where}: {exc.strerror or exc}")
        others = [name for name in archive.names if name not in taken]
        if others or not taken:
            yield _others(path, others)
    finally:
        archive.close()


def conversation_of(
    archive: ExportArchive, where: str, data: bytes | None, read: Read
) -> Transcript:
    """The conversation in a document; what stands for it, if it cannot be read."""
    if data is None:
        return unreadable(archive.path, f"{where}: it is too long")
    try:
        told = mapping(decode(data))
    except Broken as exc:
        return unreadable(archive.path, f"{where}: {exc}")
    name, facts, records = read(told)
    if not name:
        return unreadable(archive.path, f"{where}: it is no conversation of this format")
    known = {fact: value for fact, value in facts.items() if isinstance(value, str) and value}
    stamp = Stamp("", len(data), zlib.crc32(data))
    return Transcript(path=archive.path, id=name, facts=known, records=records, stamp=stamp)


def _others(path: Path, names: list[str]) -> Transcript:
    lines = [_encode({"file": name}) for name in names] or [_encode({"nothing": True})]
    stamp = Stamp("", len(lines), zlib.crc32(b"\n".join(lines)))
    return Transcript(path=path, id=stem(path), records=partial(iter, lines), stamp=stamp)

"""A memory as another system has it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import msgspec

from perdure.importers.importer import ReadReport
from perdure.importers.transcript_source import MAX_LINE, Broken, decode
from perdure.recall.memory_records import MAX_TEXT, MemoryKind

_Read: TypeAlias = "Callable[[Path, ReadReport], Iterator[FoundMemory]]"


class FoundMemory(msgspec.Struct, frozen=True, kw_only=True):
    """One memory. Times are microseconds since 1970; None if unknown."""

    #: Its name there; of one without, its text.
    id: str
    text: str
    kind: MemoryKind = "fact"
    tags: tuple[str, ...] = ()
    #: The user, agent or project that it is about.
    about: str = ""
    time: int | None = None
    changed: int | None = None


class MemoryFiles(NamedTuple):
    """How a system's memories are found and read."""

    #: Where they are, if the system has one place for them.
    place: Callable[[], Path | None]
    #: The memories in a file; counts what else is in it. Raises OSError if it cannot be read.
    read: _Read


def pieces(found: FoundMemory) -> Iterator[FoundMemory]:
    """The memory, in parts if it is longer than a memory may be."""
    text, number = found.text.strip(), 1
    while len(text) > MAX_TEXT:
        at = max(text.rfind(end, MAX_TEXT // 2, MAX_TEXT) for end in ("\n", ". ", " "))
        at = at + 1 if at > 0 else MAX_TEXT
        yield msgspec.structs.replace(found, id=f"{found.id}#{number}", text=text[:at].strip())
        text, number = text[at:].strip(), number + 1
    name = found.id if number == 1 else f"{found.id}#{number}"
    yield msgspec.structs.replace(found, id=name, text=text)


def documents(path: Path, report: ReadReport) -> Iterator[Any]:
    """A JSON document, or lines of them. Raises OSError."""
    if path.stat().st_size > MAX_LINE:
        raise OSError(f"it is longer than {MAX_LINE:,} bytes")
    data = path.read_bytes()
    if not data.strip():
        raise OSError("it is empty")
    try:
        yield decode(data)
        return
    except Broken as exc:
        broken = exc
    faults: list[str] = []
    is_known = False
    for number, line in enumerate(data.splitlines(), 1):
        try:
            if line.strip():
                yield decode(line)
                is_known = True
        except Broken as exc:
            faults.append(f"line {number}: {exc}" if number < 10 else str(exc))
    if not is_known:
        raise OSError(str(broken)) from broken
    for fault in faults:
        report.skip(fault)

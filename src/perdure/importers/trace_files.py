"""Files of traces: the model calls in them, by conversation, in the order of time."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from perdure.history.import_cursors import Stamp
from perdure.importers.importer import Importer, Transcript, files, stem, unreadable
from perdure.importers.trace_reader import TraceReader
from perdure.importers.transcript_source import Broken, DamagedFile, JsonDocument, decode

_encode = msgspec.json.encode
#: Bytes of model calls that are kept in memory until all are known and can be put in order.
_MOST = 1024**3


class ModelCall(NamedTuple):
    """A call, as `TraceReader` reads it."""

    conversation: str
    #: Its place in the conversation.
    order: tuple[int, str]
    record: dict[str, Any]


class TraceImporter(Importer):
    """A format of traces. Derive from it, and give `calls`. A conversation may be spread over all
    files at a path; its name is the format's own.
    """

    patterns: Sequence[str] = ("*.json", "*.jsonl", "*.json.zst", "*.jsonl.zst")
    named_by_file = False
    grows = False

    def reader(self, transcript: Transcript) -> TraceReader:
        return TraceReader()

    def calls(self, records: Iterable[Any], others: dict[str, int]) -> Iterator[ModelCall]:
        """The model calls in all records; counts the others."""
        raise NotImplementedError

    def transcripts(self, path: Path) -> Iterable[Transcript]:
        others: dict[str, int] = {}
        broken: list[Transcript] = []
        found: dict[str, list[tuple[tuple[int, str], bytes]]] = {}
        size = 0
        for call in self.calls(_records(files(path, self.patterns), others, broken), others):
            line = _encode(call.record)
            size += len(line)
            if size > _MOST:
                yield unreadable(path, "it has more than 1 GiB of model calls: name fewer files")
                return
            found.setdefault(call.conversation, []).append((call.order, line))
        for name, calls in found.items():
            calls.sort(key=lambda each: each[0])
            yield _transcript(path, name, [line for _, line in calls])
        yield from broken
        if others:
            told = [_encode({"other": what, "count": times}) for what, times in others.items()]
            yield _transcript(path, stem(path), told)


def _transcript(path: Path, name: str, lines: list[bytes]) -> Transcript:
    stamp = Stamp("", sum(map(len, lines)), zlib.crc32(b"\n".join(lines)))
    return Transcript(path=path, id=name, records=partial(iter, lines), stamp=stamp)


def _records(
    paths: Iterable[Path], others: dict[str, int], broken: list[Transcript]
) -> Iterator[Any]:
    """Documents, and lines of them, of all files; lists item by item."""
    for path in paths:
        try:
            with JsonDocument(path) as source:
                if source.binary():
                    others["binary file"] = others.get("binary file", 0) + 1
                    continue
                is_empty = True
                for line in source.lines():
                    is_empty = is_empty and not line.oversized and not line.data.strip()
                    if line.oversized:
                        others["line too long"] = others.get("line too long", 0) + 1
                    elif line.data.strip():
                        yield from _items(line.data, others)
                if is_empty:
                    others["empty file"] = others.get("empty file", 0) + 1
        except (OSError, DamagedFile) as exc:
            broken.append(unreadable(path, str(exc)))


def _items(data: bytes, others: dict[str, int]) -> Iterator[Any]:
    try:
        record = decode(data)
    except Broken as exc:
        others[str(exc)] = others.get(str(exc), 0) + 1
    else:
        yield from record if isinstance(record, list) else [record]

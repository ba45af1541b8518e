"""Memories that other memory systems keep: brought into a bank, each once.

    imported = await import_memories(bank, "mem0", "export.json", agent="planner")
    imported.added, imported.skipped

They belong to an agent of the system and of the one that they were about (``mem0@alice``), unless
one is named, and have the tag ``imported from mem0``. Which ones were imported is noted by the ids
that they have there, in the transaction that writes them. So importing again adds what is new and
changes what was changed there, except what a person has changed here; what was deleted or forgotten
here does not come back.
"""

from __future__ import annotations

import hashlib
import zlib
from importlib import import_module
from pathlib import Path

import msgspec

from perdure.bank import Bank
from perdure.core.client_agents import agent_of_client
from perdure.core.errors import InvalidInput, PerdureError
from perdure.core.input_types import require_path
from perdure.history.import_cursors import Cursor, Stamp
from perdure.importers.importer import ReadReport
from perdure.importers.memory_files.found_memory import FoundMemory, MemoryFiles, pieces
from perdure.recall.memory_records import MAX_TAG, MAX_TAGS, machine
from perdure.storage.transaction import Transaction

_FORMATS = {"claude-mem": "claude_mem", "letta": "letta", "mem0": "mem0"}


class MemoryImport(msgspec.Struct):
    """What became of the memories of a file."""

    added: int = 0
    #: They were changed there since the last time.
    changed: int = 0
    #: They are here already: imported before, or said in the same words.
    known: int = 0
    #: They were changed there, but a person changed, retired or deleted them here.
    kept: int = 0
    agents: list[str] = []
    #: Records that hold no memory, by kind; and what is wrong with a file.
    skipped: dict[str, int] = {}


def memory_formats() -> list[str]:
    return sorted(_FORMATS)


async def import_memories(
    bank: Bank,
    format: str,  # noqa: A002 (that is what it is)
    path: Path | str | None = None,
    *,
    agent: str | None = None,
    only: str | None = None,
) -> MemoryImport:
    """Import the memories in a file; by default in the system's own, if it has one.

    `agent` gets all of them. `only` takes those that are about this user, agent or project.
    Raises `InvalidInput` if there is no such format or file.
    """
    files = _files(format)
    place = files.place() if path is None else require_path(path, "path").expanduser()
    if place is None or not place.is_file():
        told = f"There is no {place}." if place is not None else f"{format} needs a path."
        raise InvalidInput(told, hint="Name the file with the memories.")
    run = _Run(bank, format, agent)
    try:
        for found in files.read(place, run.report):
            if only is None or found.about == only:
                await run.take(found)
            else:
                run.report.skip("about somebody else")
    except OSError as exc:
        raise InvalidInput(
            f"{place} cannot be read: {exc.strerror or exc}.",
            hint="Name a file of the format; what was read before that is imported.",
        ) from exc
    run.result.skipped = run.report.skipped
    return run.result


def _files(name: str) -> MemoryFiles:
    if name not in _FORMATS:
        raise InvalidInput(
            f"There are no memories of the format {name!r}.",
            hint=f"Use one of {', '.join(memory_formats())}.",
        )
    found = import_module(f"{__name__}.{_FORMATS[name]}")
    return MemoryFiles(found.place, found.read)


class _Run:
    """Keeps memories of one system, and counts what became of them."""

    def __init__(self, bank: Bank, source: str, agent: str | None) -> None:
        self._bank, self._source, self._agent = bank, source, agent
        self.report, self.result = ReadReport(), MemoryImport()

    async def take(self, found: FoundMemory) -> None:
        owner = self._agent or agent_of_client(self._source, "", found.about or "all")
        for piece in pieces(found):
            try:
                outcome = await self._keep(piece, owner)
            except PerdureError as exc:
                self.report.skip(exc.message)
                continue
            setattr(self.result, outcome, getattr(self.result, outcome) + 1)
            if owner not in self.result.agents:
                self.result.agents.append(owner)

    async def _keep(self, found: FoundMemory, owner: str) -> str:
        """What became of it: a field of `MemoryImport`."""
        name = hashlib.sha256(found.id.encode("utf-8", "replace")).hexdigest()[:24]
        key = f"memories:{self._source}:{owner}/{name}"
        tags, author = _tags(self._source, found), machine(f"import from {self._source}")
        words = zlib.crc32(found.text.encode("utf-8", "replace"))
        moment = found.changed or found.time or 0

        async def body(transaction: Transaction) -> str:
            cursors = transaction.collection(Cursor)
            memories = self._bank.memories.within(transaction)
            cursor = await cursors.get(key)
            if cursor is None:
                made = await memories.add(
                    owner, found.text, kind=found.kind, tags=tags, time=found.time, by=author
                )
                await cursors.put(Cursor(key, stamp=Stamp(made.name, words, moment)))
                return "added" if made.seen == 1 else "known"
            stamp = cursor.stamp
            if stamp.size == words or moment < stamp.modified:
                return "known"
            await cursors.put(Cursor(key, stamp=Stamp(stamp.path, words, moment)))
            memory = await memories.get(stamp.path)
            if memory is None or memory.by_person or not memory.is_active:
                return "kept"
            await memories.edit(stamp.path, text=found.text, tags=tags, by=author)
            return "changed"

        return await self._bank.store.transact(body)


def _tags(source: str, found: FoundMemory) -> list[str]:
    """Its own tags as they fit, and where it is from."""
    own = dict.fromkeys(" ".join(tag.split())[:MAX_TAG] for tag in found.tags if tag.strip())
    return [f"imported from {source}", *list(own)[: MAX_TAGS - 1]]

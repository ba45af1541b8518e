"""The background import: reads the spool of the clients' hooks, and the transcripts that it names.

One process at a time, by a lock; a hook that finds it held has left its line in the spool, and
whoever holds the lock looks at the spool again before it ends. Transcripts are read from where the
last import stopped, and what the proxy recorded meanwhile is known (`importers.known_messages`): a
line that is read twice adds nothing. Lines stay in the spool until their transcripts are read.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec

from perdure.bank import Bank
from perdure.core.errors import NotFound, PerdureError
from perdure.importers import import_files
from perdure.integrations.client_hooks.attended import is_attended
from perdure.integrations.client_hooks.conversation_notes import drop_old_notes
from perdure.integrations.client_hooks.hook_failures import note_failure
from perdure.integrations.client_hooks.project_bank import location_of, project_bank
from perdure.project.hook_spool import HookSpool, SpoolLine
from perdure.project.project_location import ProjectLocation, write_atomically

_LOCK, _STATE = "import.lock", "import.json"
#: Clients whose transcripts can be read.
_FORMATS = ("claude-code", "codex")
#: Seconds after which a client has written the last line of what it said.
_SETTLE = 0.3
#: Rounds over the spool before it ends: whoever writes meanwhile starts another.
_ROUNDS = 20
#: Seconds that it goes on with files of the repository that are not indexed yet.
_INDEXING = 5.0
_FIELDS = 4


class ImportState(msgspec.Struct, frozen=True, omit_defaults=True):
    """How far the spool was read, and what the last import did; for doctor."""

    position: dict[str, int] = {}
    #: Seconds since 1970.
    time: int = 0
    messages: int = 0
    transcripts: int = 0


def read_state(home: Path) -> ImportState:
    """Damaged or gone: transcripts are read again, which adds nothing."""
    try:
        return msgspec.json.decode((home / _STATE).read_bytes(), type=ImportState)
    except (OSError, msgspec.DecodeError):
        return ImportState()


def import_spooled(home: Path) -> None:
    """Import until the spool is empty. Returns at once if another process does so."""
    spool = HookSpool(home, "clients")
    while True:
        with _lock(home / _LOCK) as held:
            if not held:
                return
            for _ in range(_ROUNDS):
                time.sleep(_SETTLE)
                if not asyncio.run(_import_once(home, spool)):
                    break
        # A hook may have written, and found the lock held, just before it was let go.
        if spool.is_empty():
            return


@contextmanager
def _lock(path: Path) -> Iterator[bool]:
    """Whether this process has it. It is let go by whatever ends the process."""
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True
    finally:
        os.close(file)


async def _import_once(home: Path, spool: HookSpool) -> bool:
    """One round; False if there was nothing new."""
    state = read_state(home)
    read = spool.read(state.position)
    spool.discard(state.position)
    if not read.lines:
        # Also at the start of a session: a preamble that is out of date is made anew.
        if not state.position or read.position != state.position:
            _write(home, msgspec.structs.replace(state, position=read.position))
        await _refresh_only(home)
        return False
    location = location_of(home, _folder(read.lines))
    async with project_bank(location, works=True) as bank:
        messages, transcripts = await _import(bank, home, read.lines)
        await refresh(bank, location, [path for _, path in _named(read.lines)])
        await bank.index.embeddings.settle_own()  # found by meaning, too, in the next prompt
    done = ImportState(dict(read.position), int(time.time()), messages, transcripts)
    _write(home, done)
    drop_old_notes(home)
    return True


async def _refresh_only(home: Path) -> None:
    location = location_of(home, "")
    async with project_bank(location) as bank:
        await refresh(bank, location)


async def refresh(bank: Bank, location: ProjectLocation, transcripts: Sequence[Path] = ()) -> None:
    """Bring the project up to date with what was said and committed; makes the preamble. A rewrite
    of history waits for a decision if somebody is there, of whose conversation the hook is.
    """
    project = bank.project(location.root)
    asks = is_attended(transcripts)
    for _ in range(_ROUNDS):
        if not (await project.refresh(asks=asks)).more:
            break
    with suppress(PerdureError):  # of what it is, `refresh` has told
        await project.files.refresh(_INDEXING)  # nobody waits for this process


async def _import(bank: Bank, home: Path, lines: Sequence[SpoolLine]) -> tuple[int, int]:
    """Messages that were added, and transcripts that were read. What is wrong with one stops no
    other.
    """
    messages = transcripts = 0
    for client, path in dict.fromkeys(_named(lines)):
        try:
            found = await import_files(bank, client, [path])
        except PerdureError as exc:
            if path.exists():  # an ended client may have deleted it
                note_failure(home, "import", client, f"{path}: {exc}")
            continue
        transcripts += 1
        messages += sum(each.messages for each in found.sessions)
    return messages, transcripts


def _named(lines: Sequence[SpoolLine]) -> Iterator[tuple[str, Path]]:
    for line in lines:
        if len(line.fields) < _FIELDS:
            continue
        client, _, transcript, _ = line.fields[:_FIELDS]
        path = _text(transcript)
        if client in _FORMATS and path:
            yield client, Path(path)


def _folder(lines: Sequence[SpoolLine]) -> str:
    """The newest folder that is named: that of the work tree which is used."""
    folders = (_text(line.fields[3]) for line in reversed(lines) if len(line.fields) >= _FIELDS)
    return next((folder for folder in folders if folder), "")


def _text(written: str) -> str:
    """A string as JSON has it between its quotes."""
    try:
        found = json.loads(f'"{written}"')
    except ValueError:
        return ""
    return found if isinstance(found, str) else ""


def _write(home: Path, state: ImportState) -> None:
    if not home.is_dir():
        raise NotFound(f"{home} is gone.", hint="The project was removed meanwhile.")
    write_atomically(home / _STATE, msgspec.json.encode(state))

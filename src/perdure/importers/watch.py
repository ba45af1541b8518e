"""Follows files as they grow.

Sizes and times are polled: it works on every system and file system, and a look at a thousand files
takes some milliseconds. A reply that may still grow is held back until a second of silence.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path

from perdure.importers.cursors import Overtaken
from perdure.importers.files import ImportedFile, on_its_way
from perdure.importers.importer import Transcript
from perdure.importers.restoring import RestoredFile
from perdure.importers.run import Heard, Run

#: Seconds between two looks at files that are being written, and at all others.
_POLL = 0.1
_LOOK = 1.0
#: Seconds of silence after which what was held back is complete.
_SILENCE = 1.0
#: Files that stay open after they fell silent.
_OPEN = 16


class _Watched:
    """A file that is followed."""

    def __init__(self, transcript: Transcript) -> None:
        self.transcript = transcript
        self.file: ImportedFile | RestoredFile | None = None
        self.seen: tuple[int, int, int] | None = None
        self.changed = 0.0
        self.finished = True

    def close(self) -> None:
        if self.file is not None:
            self.file.close()
            self.file = None


async def watch_files(run: Run, paths: Sequence[Path], heard: Heard) -> None:
    """Import the files and what is added to them, and new files, until cancelled."""
    watched: dict[Path, _Watched] = {}
    loop = asyncio.get_running_loop()
    told: set[str] = set()
    next_look = 0.0
    try:
        while True:
            began = loop.time()
            if began >= next_look:
                for path in paths:
                    for transcript in await asyncio.to_thread(_found, run, path):
                        watched.setdefault(transcript.path, _Watched(transcript))
                looking = list(watched.values())
                # A search that takes long is made less often.
                next_look = loop.time() + max(_LOOK, 10 * (loop.time() - began))
            else:
                looking = [item for item in watched.values() if not item.finished]
            for item in looking:
                await _look(run, item, loop.time())
                _tell(run, heard, told)
            _limit(watched)
            await asyncio.sleep(_POLL)
    finally:
        for item in watched.values():
            item.close()


def _found(run: Run, path: Path) -> list[Transcript]:
    return list(run.importer.transcripts(path)) if path.exists() else []


async def _look(run: Run, item: _Watched, now: float) -> None:
    try:
        state = item.transcript.path.stat()
    except OSError:
        item.close()  # it was deleted, or moved: what was imported stays
        item.finished = True
        return
    seen = state.st_size, state.st_mtime_ns, state.st_ino
    try:
        if seen != item.seen:
            if item.seen is not None and (seen[0] < item.seen[0] or seen[2] != item.seen[2]):
                item.close()  # it was written anew
            item.seen, item.changed, item.finished = seen, now, False
            item.file = item.file or on_its_way(run, item.transcript)
            await item.file.advance()
            if time.time() - state.st_mtime >= _SILENCE:  # nobody is writing it
                item.finished = True
                await item.file.finish()
                item.close()
        elif not item.finished and now - item.changed >= _SILENCE:
            item.finished = True
            if item.file is not None:
                await item.file.finish()
    except Overtaken:
        item.close()
        item.seen = None


def _tell(run: Run, heard: Heard, told: set[str]) -> None:
    """Tell what was added. What was merely skipped is told once, and then with the next news."""
    for session in run.result.sessions:
        new = session.skipped and session.name not in told
        if session.messages or session.undone or new:
            told.add(session.name)
            run.result.drop(session.name)
            heard(session)


def _limit(watched: dict[Path, _Watched]) -> None:
    """Close files that have been silent for long: they are read again if they grow."""
    quiet = [item for item in watched.values() if item.file is not None and item.finished]
    for item in sorted(quiet, key=lambda item: item.changed)[:-_OPEN]:
        item.close()

"""Imports one file, in pieces of about a megabyte.

A piece and its cursor are committed in one transaction, so a killed process loses and doubles
nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

from perdure.history.import_cursors import Cursor, FilePosition, Stamp
from perdure.importers.export_restore import RestoredFile
from perdure.importers.import_cursor import Bookmark, Overtaken
from perdure.importers.import_run import ARRIVING, FORGOTTEN, Heard, ImportRun, ImportSessions
from perdure.importers.import_writer import ImportWriter
from perdure.importers.importer import Transcript
from perdure.importers.step_feed import FileChanged, StepBatch, StepFeed
from perdure.importers.transcript_source import DamagedFile, UnreadableFile, readable, stamp_of

#: How often a file is begun anew because another process imports it, too.
_ATTEMPTS = 20


async def import_path(run: ImportRun, path: Path) -> None:
    found = iter(run.importer.transcripts(path))
    while (transcript := await asyncio.to_thread(next, found, None)) is not None:
        await import_file(run, transcript)


async def import_file(run: ImportRun, transcript: Transcript) -> None:
    """Import what is new in a file. Faults are reported, not raised."""
    for _ in range(_ATTEMPTS):
        file = await on_its_way(run, transcript)
        try:
            await file.advance()
            await file.finish()
        except Overtaken:  # go on where the other process is
            continue
        else:
            return
        finally:
            file.close()
    raise Overtaken(hint="Let one process at a time import it.")


async def on_its_way(run: ImportRun, transcript: Transcript) -> ImportedFile | RestoredFile:
    if transcript.session:
        return RestoredFile(run, transcript)
    if run.is_shared and transcript.folder is None:
        with contextlib.suppress(OSError):  # it is told when the file itself is read
            folder = await asyncio.to_thread(run.importer.folder, transcript)
            transcript = msgspec.structs.replace(transcript, folder=folder)
    return ImportedFile(run, transcript)


class ImportedFile:
    """Imports one file."""

    def __init__(self, run: ImportRun, transcript: Transcript) -> None:
        self._transcript = transcript
        self._run = run
        self._sessions = ImportSessions(run, transcript)
        self._bookmark = Bookmark(run.bank.store, "")
        self._writer = ImportWriter(run, self._sessions, self._bookmark)
        self._feed: StepFeed | None = None
        self._stamp = Stamp()
        self._counted = 0, dict[str, int]()
        #: Its session may get another name: nothing is said in the file yet.
        self.is_nameless = run.is_shared and transcript.folder is None
        #: An answer is arriving in its session, and will be in the file: come back later.
        self.is_early = False

    def close(self) -> None:
        if self._feed is not None:
            self._feed.close()
            self._feed = None

    async def advance(self) -> None:
        """Import what there is, except what may still grow. Raises `Overtaken`."""
        try:
            with readable():
                self._stamp = self._transcript.stamp or stamp_of(self._transcript.path)
            if self._feed is not None and self._feed.document:
                self.close()
            feed = self._feed or await self._open()
            while feed is not None:
                if not await self._may_go_on():
                    return
                batch = await _pulled(feed)
                await self._write(feed, batch)
                if not batch.more:
                    return
        except UnreadableFile as exc:
            self._sessions.report(f"cannot be read: {exc}")

    async def _may_go_on(self) -> bool:
        """Look at what others wrote to the session. False while an answer is arriving in it."""
        self.is_early = not await self._writer.compare()
        if self.is_early:
            self.close()
            self._sessions.report(ARRIVING)
        return not self.is_early

    async def finish(self) -> None:
        """Import what was held back: the file ends here, for now. Raises `Overtaken`."""
        feed = self._feed
        if feed is None or not await self._may_go_on():
            return
        batch = await asyncio.to_thread(feed.finish)
        if feed.cut_off:
            feed.report.read += 1
            feed.report.skip("truncated last line")
        await self._write(feed, batch, self._stamp)
        await self._writer.finish(batch.place, self._stamp)

    async def _open(self) -> StepFeed | None:
        if self._stamp.size == 0:
            self._sessions.report("empty file")
            return None
        self._sessions.start()
        while (bookmark := await self._sessions.bookmark()) is not None:
            cursor = self._go_on(bookmark)
            if cursor.stamp == self._stamp:
                await self._sessions.tie()
                self._run.result.of(self._sessions.name()).known = bool(cursor.own)
                return None
            if self._transcript.skip:
                await self._pass_over()
                return None
            if not await self._may_go_on():
                return None
            feed = None
            if not cursor.anew:
                feed = await self._fitting(cursor.place)
            if feed is None and not self._run.importer.named_by_file:
                # The file was written anew, but it is the same conversation.
                await self._writer.compare_all()
                with readable():
                    feed = StepFeed(self._run.importer, self._transcript, FilePosition())
            self._feed = feed
            if feed is not None:
                return feed
        self._sessions.report(FORGOTTEN)
        return None

    def _go_on(self, bookmark: Bookmark) -> Cursor:
        self._bookmark = bookmark
        self._writer = ImportWriter(self._run, self._sessions, bookmark)
        self._sessions.turn = bookmark.cursor.turn
        return bookmark.cursor

    async def _fitting(self, place: FilePosition) -> StepFeed | None:
        """The file from this place on, if it still begins with what was imported."""
        with readable():
            feed = StepFeed(self._run.importer, self._transcript, place)
        try:
            batch = await _pulled(feed)
            again = batch.again
            while batch.more and not batch.steps:
                batch = await _pulled(feed)
                again += batch.again
            batch = batch._replace(again=again)
        except FileChanged:
            feed.close()
            return None
        except BaseException:
            feed.close()
            raise
        self._feed = feed
        self._run.result.of(self._sessions.name())  # it comes before what is inside of it
        await self._write(feed, batch)
        return feed

    async def _pass_over(self) -> None:
        def count() -> int:
            with self._run.importer.open(self._transcript) as source:
                try:
                    return sum(1 for line in source.lines() if line.data.strip())
                except DamagedFile:
                    return 1

        with readable():
            lines = await asyncio.to_thread(count)
        found = self._run.result.of(self._sessions.name())
        found.read += lines
        found.skip({self._transcript.skip: lines})
        await self._bookmark.put(self._bookmark.at(FilePosition(), self._stamp))

    async def _write(self, feed: StepFeed, batch: StepBatch, end: Stamp | None = None) -> None:
        await self._writer.write(batch, end)
        report, name = feed.report, self._sessions.name()
        read, skipped = self._counted
        self._counted = report.read, dict(report.skipped)
        found = self._run.result.of(name)
        found.known = bool(self._bookmark.cursor.own)
        found.read += report.read - read
        new = {reason: count - skipped.get(reason, 0) for reason, count in report.skipped.items()}
        found.skip({reason: count for reason, count in new.items() if count})
        total = 0 if feed.compressed else self._stamp.size
        self._run.progress(f"importing {name}", feed.position, total)


async def _pulled(feed: StepFeed) -> StepBatch:
    with readable():
        return await asyncio.to_thread(feed.pull)


#: Seconds between two looks at files that are being written, and at all others.
_POLL = 0.1
_LOOK = 1.0
#: Seconds of silence after which what was held back is complete.
_SILENCE = 1.0
#: Files that stay open after they fell silent.
_OPEN = 16


class _Watched:
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

    def is_now(self, transcript: Transcript) -> None:
        """One of many conversations in a file has its own stamp, and other records when it grew."""
        if transcript.stamp != self.transcript.stamp:
            self.close()
            self.transcript = transcript

    def state(self) -> tuple[tuple[int, int, int], float]:
        """Changes when it does; and when it last did, in seconds. Raises OSError."""
        found, stamp = self.transcript.path.stat(), self.transcript.stamp
        if stamp is not None:
            return (0, stamp.modified, stamp.size), time.time()
        return (found.st_size, found.st_mtime_ns, found.st_ino), found.st_mtime


async def watch_files(run: ImportRun, paths: Sequence[Path], heard: Heard) -> None:
    """Import the files and what is added to them, and new files, until cancelled."""
    watched: dict[tuple[Path, str, str], _Watched] = {}
    loop = asyncio.get_running_loop()
    told: set[str] = set()
    next_look = 0.0
    try:
        while True:
            began = loop.time()
            if began >= next_look:
                for path in paths:
                    for transcript in await asyncio.to_thread(_found, run, path):
                        key = transcript.path, transcript.id, transcript.agent
                        watched.setdefault(key, _Watched(transcript)).is_now(transcript)
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


def _found(run: ImportRun, path: Path) -> list[Transcript]:
    return list(run.importer.transcripts(path)) if path.exists() else []


async def _look(run: ImportRun, item: _Watched, now: float) -> None:
    try:
        seen, modified = item.state()
    except OSError:
        item.close()  # it was deleted, or moved: what was imported stays
        item.finished = True
        return
    try:
        if seen != item.seen:
            if item.seen is not None and (seen[0] < item.seen[0] or seen[2] != item.seen[2]):
                item.close()  # it was written anew
            if isinstance(item.file, ImportedFile) and item.file.is_nameless:
                item.close()
            item.seen, item.changed, item.finished = seen, now, False
            item.file = item.file or await on_its_way(run, item.transcript)
            await item.file.advance()
            if isinstance(item.file, ImportedFile) and item.file.is_early:
                item.seen = None
            elif time.time() - modified >= _SILENCE:  # nobody is writing it
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


def _tell(run: ImportRun, heard: Heard, told: set[str]) -> None:
    """Report additions. Records that were only skipped are reported once, then with the next
    news.
    """
    for session in run.result.sessions:
        new = session.skipped and session.name not in told
        if session.messages or session.undone or new:
            told.add(session.name)
            run.result.drop(session.name)
            heard(session)


def _limit(watched: dict[tuple[Path, str, str], _Watched]) -> None:
    quiet = [item for item in watched.values() if item.file is not None and item.finished]
    for item in sorted(quiet, key=lambda item: item.changed)[:-_OPEN]:
        item.close()

"""Restores an exported session: turns with their times, tags and state.

The file's turns and those it opened in its session match one by one. So a later export adds what
is new and an older one nothing. What was forgotten here stays forgotten; what was forgotten there
after it was imported stays here.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import msgspec

from perdure.core.messages import Message, event
from perdure.core.turns import Status, Turn
from perdure.history.import_cursors import Cursor, FilePosition, Stamp
from perdure.history.log_records import SessionRecord
from perdure.history.session_export import End, Header, restored_state
from perdure.history.turn_log import Written
from perdure.importers.export_reader import Portion, portions
from perdure.importers.import_cursor import Bookmark
from perdure.importers.import_run import FORGOTTEN, ImportRun, ImportSessions
from perdure.importers.import_writer import append_counted, cursor_behind
from perdure.importers.importer import ReadReport, Transcript
from perdure.importers.transcript_source import TranscriptSource, UnreadableFile, readable, stamp_of
from perdure.sessions.session import Session

_GONE = "forgotten"
#: Nothing is added to such turns.
_SETTLED = ("undone", "forgotten")


class _Kept(msgspec.Struct):
    number: int
    status: Status | None = None
    known: int = 0
    masked: dict[str, int] = {}
    resumed: bool = False


class RestoredFile:
    """Imports one export. Keeps nothing open between its methods."""

    def __init__(self, run: ImportRun, transcript: Transcript) -> None:
        self._run = run
        self._transcript = transcript
        self._sessions = ImportSessions(run, transcript)
        self._bookmark = Bookmark(run.bank.store, "")
        self._session: Session | None = None
        self._size = 0
        self._header = Header(name=transcript.session, agent="")

    def close(self) -> None:
        pass

    async def advance(self) -> None:
        """An export is written in one go, so it is read at once."""

    async def finish(self) -> None:
        """Import what is new. Raises `Overtaken` if another process imports the same file."""
        try:
            with readable():
                stamp = stamp_of(self._transcript.path)
            self._size = stamp.size
            there = await self._found(stamp)
            if there is not None:
                await self._restore(there, stamp)
        except UnreadableFile as exc:
            self._sessions.report(f"cannot be read: {exc}")

    async def _found(self, stamp: Stamp) -> list[_Kept] | None:
        self._sessions.start()
        self._session = None
        while (bookmark := await self._sessions.bookmark()) is not None:
            self._bookmark = bookmark
            if bookmark.cursor.stamp == stamp:
                self._run.result.of(self._sessions.name())
                return None
            if bookmark.used or not await self._sessions.is_taken():
                there = await self._compared(bookmark.cursor)
                if there is not None:
                    return there
        self._sessions.report(FORGOTTEN)
        return None

    async def _compared(self, cursor: Cursor) -> list[_Kept] | None:
        found, left = list[_Kept](), list[Message]()
        if not cursor.own:
            return found
        async with (
            aclosing(self._stored(cursor)) as turns,
            aclosing(self._read(ReadReport())) as entries,
        ):
            async for entry in entries:
                if not isinstance(entry, Portion):
                    continue
                opening = entry.opening
                if entry.first:
                    turn = await anext(turns, None)
                    if turn is None:
                        break
                    if turn.started != opening.started:
                        return None
                    found.append(_Kept(turn.number, turn.status, masked=turn.masked))
                    left = list(turn.messages)
                    if opening.status == _GONE and [each.name for each in left] == [_GONE]:
                        found[-1].status = None  # it was about to be made a tombstone
                for message in entry.messages:
                    while left and left[0].partial and not message.partial:
                        left.pop(0)  # it had not arrived yet
                    if not left:
                        break
                    if not _alike(left.pop(0), message):
                        return None
                    found[-1].known += 1
        return found

    async def _stored(self, cursor: Cursor) -> AsyncGenerator[Turn]:
        session = await self._run.bank.existing_session(self._sessions.name())
        own = set(cursor.turns)
        async for turn in session.read(min(own), max(own), undone=True):
            if turn.number in own:
                yield turn

    async def _restore(self, there: list[_Kept], stamp: Stamp) -> None:
        report, gone = ReadReport(), list[int]()
        turns, skipped = 0, 0
        kept, status = _Kept(0), None
        whole = False
        async with aclosing(self._read(report)) as entries:
            async for entry in entries:
                if isinstance(entry, Header):
                    self._header = entry
                elif isinstance(entry, End):
                    whole = True
                else:
                    status = entry.opening.status
                    if entry.first:
                        turns += 1
                        kept = there[turns - 1] if turns <= len(there) else _Kept(0)
                        skipped = kept.known
                    new = entry.messages[skipped:]
                    skipped = max(skipped - len(entry.messages), 0)
                    await self._add(entry, kept, new)
                    if entry.last and status == _GONE and kept.status is None:
                        gone.append(kept.number)
                    elif entry.last and status == "undone" and kept.status not in _SETTLED:
                        await self._undo(kept.number)
        if whole or self._session is not None:
            session = await self._get()
            if whole and status == "closed":
                await _close(session, kept.number)
            if gone:
                await self._run.bank.forget(session.name, turns=gone)
            if turns == (own := sum(1 for _ in self._bookmark.cursor.turns)):  # it is not older
                await self._describe(session, own)
        found = self._run.result.of(self._sessions.name())
        found.read += report.read
        found.skip(report.skipped)
        if self._bookmark.used or whole:
            await self._bookmark.put(self._bookmark.at(FilePosition(), stamp))

    async def _read(self, report: ReadReport) -> AsyncGenerator[Header | Portion | End]:
        path = self._transcript.path
        with readable():
            source = await asyncio.to_thread(TranscriptSource, path)
        with source:
            entries = portions(source, report)
            while True:
                with readable():
                    entry = await asyncio.to_thread(next, entries, None)
                if entry is None:
                    return
                name = self._sessions.name()
                total = 0 if source.compressed else self._size
                self._run.progress(f"importing {name}", source.position, total)
                yield entry

    async def _add(self, portion: Portion, kept: _Kept, new: list[Message]) -> None:
        opening = portion.opening
        if kept.status in _SETTLED:
            return
        if portion.first and portion.last and not new and not kept.number:
            # So the turns behind it keep their numbers.
            new = [event(_GONE if opening.status == _GONE else "missing")]
        if not new:
            return
        session = await self._get()
        how: dict[str, Any] = {"times": (opening.started, opening.ended)}
        if not kept.number:
            how |= {"fresh": True, "tags": opening.tags, "masked": opening.masked or None}
        elif kept.status is not None and not kept.resumed:
            await session.resume(kept.number)
            more = {kind: n - kept.masked.get(kind, 0) for kind, n in opening.masked.items()}
            how["masked"] = {kind: n for kind, n in more.items() if n > 0} or None
            kept.resumed = True

        def moved(written: Written) -> Cursor:
            kept.number = kept.number or written.first
            return cursor_behind(self._bookmark.at(FilePosition()), written)

        await append_counted(self._run, self._bookmark, session, new, moved, **how)

    async def _undo(self, number: int) -> None:
        session = await self._get()
        undone = await session.undo(numbers=[number])
        self._run.result.of(session.name).undone += len(undone)

    async def _get(self) -> Session:
        if self._session is None:
            header = self._header
            self._session = await self._run.bank.session(
                self._sessions.name(),
                type=header.type,
                state=restored_state(header),
                tags=header.tags,
                link=header.link,
            )
        return self._session

    async def _describe(self, session: Session, turns: int) -> None:
        header, state = self._header, restored_state(self._header)
        if any(session.state.get(fact) != value for fact, value in state.items()):
            await session.describe(state)
        if self._run.is_given or (await session.head()).turn != turns:
            return  # others write to it, too
        if header.archived is not None and session.record.archived is None:
            await session.archive()

        def same(record: SessionRecord | None) -> SessionRecord:
            assert record is not None  # noqa: S101 (it was there a moment ago)
            return msgspec.structs.replace(
                record,
                type=header.type,
                tags=header.tags,
                last_active=header.active,
                archived=header.archived,
            )

        await self._run.bank.collection(SessionRecord).change(session.name, same)


async def _close(session: Session, number: int) -> None:
    head = await session.head()
    if head.turn == number and not head.closed and not head.mark.closed:
        await session.close_turn()


def _alike(stored: Message, said: Message) -> bool:
    return _outline(stored) == _outline(said)


def _outline(message: Message) -> tuple[Any, ...]:
    calls = [call.id for call in message.calls]
    results = [result.call for result in message.results]
    return message.role, message.name, message.id, message.time, len(message.parts), calls, results

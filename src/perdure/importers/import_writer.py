"""Writes steps to a bank: each append and its cursor in one transaction."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import Any, Self

import msgspec

from perdure.bank.session import Session
from perdure.core.messages import Message
from perdure.history.import_cursors import Cursor, FilePosition, Stamp, with_turns
from perdure.history.log_records import TurnCount, turn_key
from perdure.history.piece_packing import RoundWritten
from perdure.history.turn_log import Written
from perdure.importers.import_cursor import Bookmark
from perdure.importers.import_run import ImportRun, ImportSessions
from perdure.importers.importer import PIECE, Open, Say, Undo, stored_form
from perdure.importers.step_feed import StepBatch
from perdure.storage.transaction import Transaction

#: One append takes at most so many bytes of messages, unless a single one is larger.
_APPEND_BYTES = 1024 * 1024


class ImportWriter:
    """Writes the steps of a file. Raises `Overtaken` if another process imports the same file."""

    def __init__(self, run: ImportRun, sessions: ImportSessions, bookmark: Bookmark) -> None:
        self._run = run
        self._sessions = sessions
        self._bookmark = bookmark
        #: What the session has already, of a file that was written anew.
        self.known: KnownMessages | None = None
        self._tags: dict[str, dict[str, str]] = {}  # by conversation
        #: Conversations whose newest turn was undone: the next message is not part of it.
        self._fresh: set[str] = set()
        self._waiting: list[Message] = []
        self._to = ""
        self._size = 0

    async def write(self, batch: StepBatch, end: Stamp | None = None) -> None:
        """Write the steps in appends of about a megabyte; `end` is the file, if it ends here."""
        for noted in batch.again:
            if isinstance(noted, Open):
                self._tags[noted.to] = noted.tags
            elif not isinstance(noted, Say | Undo):
                self._sessions.note(noted)
        place = FilePosition()  # behind the last step
        for step, next_place in batch.steps:
            if isinstance(step, Say):
                await self._say(step, place)
            elif isinstance(step, Undo | Open):
                await self._append(self._at(place))
                await self._turn(step, next_place)
            else:
                self._sessions.note(step)
            place = next_place
        stop = self._at(batch.place) if end is None else self._bookmark.at(batch.place, end)
        await self._append(stop)

    async def finish(self, place: FilePosition, stamp: Stamp) -> None:
        """The file ends here, for now; steps after the last message count, too."""
        await self._sessions.describe_all()
        before, cursor = self._bookmark.cursor, self._bookmark.at(place, stamp)
        # While nothing was said, it may be a document that is being written: it has no place.
        silent = before.place.is_start and self.known is None
        if cursor != before and not place.is_start and not silent:
            await self._bookmark.put(cursor)

    async def _say(self, step: Say, place: FilePosition) -> None:
        message = step.message if self.known is None else self.known.news(step.message)
        if message is None:
            return
        size = len(stored_form(message))
        if not size:
            self._run.result.of(self._sessions.name()).skip({"message that cannot be stored": 1})
            return
        if step.to != self._to or self._size + size > _APPEND_BYTES:
            await self._append(self._at(place))
        self._to = step.to
        self._waiting.append(message)
        self._size += size

    async def _turn(self, step: Undo | Open, place: FilePosition) -> None:
        if isinstance(step, Undo):
            if self.known is None or self.known.passed:
                await self._undo(step, self._at(place))
            return
        self._tags[step.to] = step.tags
        if step.always:
            await (await self._sessions.get(step.to)).close_turn()

    async def _append(self, cursor: Cursor) -> None:
        messages, self._waiting, self._size = self._waiting, [], 0
        if not messages:
            return
        to, session = self._to, await self._sessions.get(self._to)

        def moved(written: Written) -> Cursor:
            return cursor if to else cursor_behind(cursor, written)

        how: dict[str, Any] = {"tags": self._tags.get(to, {}), "fresh": to in self._fresh}
        await append_counted(self._run, self._bookmark, session, messages, moved, **how)
        self._fresh.discard(to)

    async def _undo(self, step: Undo, cursor: Cursor) -> None:
        """Undo the newest turns of the file: the session may hold others, too."""
        session = await self._sessions.get(step.to)
        head = await session.head()
        numbers = cursor.turns if not step.to else iter(range(head.turn, 0, -1))
        newest = list(islice((n for n in numbers if not head.is_undone(n)), step.turns))

        async def hook(transaction: Transaction, _: Written) -> None:
            await self._bookmark.move(transaction, msgspec.structs.replace(cursor, turn=0))

        undone = await session.undo(numbers=newest, within=hook)
        self._fresh.add(step.to)
        self._run.result.of(session.name).undone += len(undone)

    def _at(self, place: FilePosition) -> Cursor:
        """Where to go on. A file that was written anew is compared from its start."""
        if self.known is None:
            return self._bookmark.at(place)
        return self._bookmark.at(FilePosition(), anew=True)


async def append_counted(
    run: ImportRun,
    bookmark: Bookmark,
    session: Session,
    messages: Sequence[Message],
    moved: Callable[[Written], Cursor],
    **how: Any,
) -> None:
    """Append messages and move the cursor; counts both. `how` goes to `Session.append`."""
    counted = _Counted()

    async def hook(transaction: Transaction, written: Written) -> None:
        await bookmark.move(transaction, moved(written))
        await counted.note(transaction, written)

    await session.append(messages, within=hook, count=True, **how)
    found = run.result.of(session.name)
    found.add(counted.rounds)
    records = run.bank.collection(TurnCount)
    found.tokens += _tokens(await records.get_many(counted.keys)) - counted.before


def cursor_behind(cursor: Cursor, written: Written) -> Cursor:
    opened = [each.turn for each in written.rounds if each.round == 1 and not each.before]
    own = with_turns(cursor.own, opened)
    return msgspec.structs.replace(cursor, turn=written.last, own=own)


class _Counted:
    """What one append wrote, as its hook saw it last, and the tokens that were there before."""

    def __init__(self) -> None:
        self.rounds: Sequence[RoundWritten] = ()
        self.keys: list[str] = []
        self.before = 0

    async def note(self, transaction: Transaction, written: Written) -> None:
        name, records = written.session.id, transaction.collection(TurnCount)
        self.rounds = written.rounds
        turns = dict.fromkeys(round.turn for round in written.rounds)
        self.keys = [turn_key(name, turn) for turn in turns]
        self.before = _tokens(await records.get_many(self.keys[:1]))


def _tokens(records: Sequence[TurnCount | None]) -> int:
    return sum(record.tokens for record in records if record is not None)


class KnownMessages:
    """Tells which messages of a file a session has already.

    They match by ids of tool calls, the provider's id of a reply, or their time and number;
    without these a message is always new. Of a forgotten turn only its times are known: what was
    said between them stays forgotten.
    """

    def __init__(self) -> None:
        self._parts: dict[str, int] = {}
        self._forgotten: list[tuple[int, int]] = []  # from when to when
        #: Something new was seen. What comes before was there already, undone turns included.
        self.passed = False

    @classmethod
    async def of(cls, session: Session, own: Iterable[int] = ()) -> Self:
        known, opened = cls(), set(own)
        async for turn in session.read(undone=True):
            if turn.status == "forgotten" and turn.number in opened:
                known._forgotten.append((turn.started, turn.ended))
            for message in turn.messages:
                name = _identity(message)
                known._parts[name] = known._parts.get(name, 0) + _weight(message)
        return known

    def news(self, message: Message) -> Message | None:
        if self._is_forgotten(message):
            return None
        name = _identity(message)
        left = self._parts.get(name, 0) if name else 0
        self._parts[name] = max(left - _weight(message), 0)
        if left >= _weight(message):
            return None
        self.passed = True
        if not left:
            return message
        return msgspec.structs.replace(message, parts=message.parts[left:], usage=None)

    def _is_forgotten(self, message: Message) -> bool:
        moment = message.time
        return moment is not None and any(
            started <= moment <= ended for started, ended in self._forgotten
        )


def _weight(message: Message) -> int:
    return max(len(message.parts), 1)


def _identity(message: Message) -> str:
    if message.results:
        return "results " + " ".join(result.call for result in message.results)
    if message.id and not message.id.startswith(PIECE):
        return f"id {message.id}"
    if message.calls:
        return "calls " + " ".join(call.id for call in message.calls)
    return "" if message.time is None else f"{message.role} {message.name} {message.time}"

"""Writes steps to a bank: each append and its cursor in one transaction."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import islice
from typing import Any

import msgspec

from perdure.config.pauses import Pauses
from perdure.core.messages import Message
from perdure.core.turns import is_prompt
from perdure.history.hook_context import without_hook_context
from perdure.history.import_cursors import Cursor, FilePosition, Stamp, with_turns
from perdure.history.log_records import AnswerDraft, Head, SessionRecord, TurnCount, turn_key
from perdure.history.piece_packing import RoundWritten
from perdure.history.turn_log import Written
from perdure.importers.import_cursor import Bookmark
from perdure.importers.import_run import ImportRun, ImportSessions
from perdure.importers.importer import Open, Say, Undo, stored_form
from perdure.importers.known_messages import KnownMessages, is_put_in
from perdure.importers.step_feed import StepBatch
from perdure.sessions.session import Session
from perdure.storage.transaction import Transaction

#: One append takes at most so many bytes of messages, unless a single one is larger.
_APPEND_BYTES = 1024 * 1024


class ImportWriter:
    """Writes the steps of a file. Raises `Overtaken` if another process imports the same file."""

    def __init__(self, run: ImportRun, sessions: ImportSessions, bookmark: Bookmark) -> None:
        self._run = run
        self._sessions = sessions
        self._bookmark = bookmark
        #: The file was written anew, and is compared from its start.
        self._anew = False
        #: What sessions have that may be in the file, by conversation; empty: nothing.
        self._known: dict[str, KnownMessages] = {}
        #: The pieces and the newest turn of the session that are known, or were in the file.
        self._pieces, self._newest = bookmark.cursor.pieces, bookmark.cursor.newest
        #: The turns of the file's conversation as they were compared, and turns taken back that
        #: the session may know of.
        self._line: dict[str, list[int]] = {}
        self._taken_back: dict[str, int] = {}
        self._resumed: dict[str, int] = {}  # the turn that what comes next belongs to
        #: What programs put in, until it is known whether what follows it is new.
        self._put_in: dict[str, list[Message]] = {}
        self._tags: dict[str, dict[str, str]] = {}  # by conversation
        #: Conversations whose newest turn was undone: the next message is not part of it.
        self._fresh: set[str] = set()
        self._pauses = Pauses()
        #: Conversations whose prompt was said in a pause.
        self._paused = {""} if bookmark.paused else set[str]()
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
        for to in list(self._taken_back):
            await self._undo(to, self._at(place))
        before, known = self._bookmark.cursor, self._known.get("")
        if known is not None:
            self._pieces, self._newest = known.in_step((self._pieces, self._newest))
        cursor = msgspec.structs.replace(
            self._bookmark.at(place, stamp),
            pieces=self._pieces,
            newest=self._newest,
            turn=self._line[""][-1] if self._line.get("") else before.turn,
        )
        # While nothing was said, it may be a document that is being written: it has no place.
        silent = before.place.is_start and not self._known
        if cursor != before and not place.is_start and not silent:
            await self._bookmark.put(cursor)
        self._known, self._line, self._put_in, self._anew = {}, {}, {}, False

    async def compare_all(self) -> None:
        """The file was written anew: compare it with all that the session has."""
        self._anew, self._known = True, {}
        await self._known_in("", self._sessions.name())

    async def compare(self) -> bool:
        """Compare what comes next with what others wrote to the session since, if they did.
        False if an answer is arriving there, which the file may have in part: come back later.
        """
        name = self._sessions.name()
        if not self._run.is_shared:
            return True
        head = await self._run.bank.collection(Head).get(name)
        if head is None:
            return True
        drafts, now = self._run.bank.collection(AnswerDraft), self._run.bank.store.now()
        for draft in await drafts.get_many([turn_key(name, turn) for turn in head.answering]):
            if draft is not None and draft.writer(now) == "alive":
                return False
        if head.pieces != self._pieces:
            await self._known_in("", name)
        return True

    async def _known_in(self, to: str, name: str) -> KnownMessages:
        """What a session has, and what others wrote to it since this was asked last."""
        bank, known = self._run.bank, self._known.get(to)
        session = await bank.session(name)
        if known is None and (to or self._anew or not self._pieces):
            own = None if self._run.is_shared else self._bookmark.cursor.turns
            known, head = await KnownMessages.of(bank, session, own)
        else:
            known, head = known or KnownMessages(bank, name), await session.head()
            await known.add_behind(head, self._pieces, self._newest)
        self._known[to] = known
        if not to:
            self._pieces, self._newest = head.pieces, head.turn
        return known

    async def _news(self, step: Say, place: FilePosition) -> list[Message]:
        """What of a message the session does not have, and what was put in before it."""
        to, message = step.to, step.message
        known = await self._comparison(to)
        if known is None:
            return [message]
        news = await known.news(message)
        if news is not None and is_put_in(message):
            self._put_in.setdefault(to, []).append(message)
            return []
        put_in = self._put_in.pop(to, [])
        if news is not message:  # it is known, at least in part, and so is what was put in
            self._taken_back.pop(to, None)
            await self._append(self._at(place))
            line = self._line.setdefault(to, [])
            if known.turn and known.turn not in line[-1:]:
                line.append(known.turn)
                self._resumed[to] = known.turn
            return [] if news is None else [news]
        if self._taken_back.get(to):
            await self._append(self._at(place))
            await self._undo(to, self._at(place))
        return [*put_in, message]

    async def _comparison(self, to: str) -> KnownMessages | None:
        """What a conversation is compared with; None if it is not."""
        known = self._known.get(to)
        if known is not None or not self._known:
            return known
        name = self._sessions.name(to)
        found = await self._run.bank.collection(SessionRecord).get(name)
        return None if found is None else await self._known_in(to, name)

    async def _say(self, step: Say, place: FilePosition) -> None:
        if self._was_paused(step):
            found = self._run.result.of(self._sessions.name())
            found.skip({"message said while Perdure was paused": 1})
            return
        own = without_hook_context(step.message)
        if own is None:
            self._run.result.of(self._sessions.name()).skip({"put in by our own hook": 1})
            return
        if own is not step.message:
            step = msgspec.structs.replace(step, message=own)
        for message in await self._news(step, place):
            size = len(stored_form(message))
            if not size:
                found = self._run.result.of(self._sessions.name())
                found.skip({"message that cannot be stored": 1})
                continue
            if step.to != self._to or self._size + size > _APPEND_BYTES:
                await self._append(self._at(place))
            self._to = step.to
            self._waiting.append(message)
            self._size += size

    def _was_paused(self, step: Say) -> bool:
        """Whether it was said in a pause, or answers a prompt of one."""
        if self._pauses.covers(step.message.time):
            self._paused.add(step.to)
        elif is_prompt(step.message):
            self._paused.discard(step.to)
        if not step.to:
            self._bookmark.paused = "" in self._paused
        return step.to in self._paused

    async def _turn(self, step: Undo | Open, place: FilePosition) -> None:
        if isinstance(step, Undo):
            self._taken_back[step.to] = self._taken_back.get(step.to, 0) + step.turns
            if not self._known:
                await self._undo(step.to, self._at(place))
            return
        self._tags[step.to] = step.tags
        if step.always:
            await (await self._sessions.get(step.to)).close_turn()

    async def _append(self, cursor: Cursor) -> None:
        messages, self._waiting, self._size = self._waiting, [], 0
        while messages:
            try:
                await self._write(messages, cursor)
            except _OthersWrote:
                known = await self._known_in("", self._sessions.name())
                news = [await known.news(message) for message in messages]
                messages = [message for message in news if message is not None]
            else:
                return

    async def _write(self, messages: list[Message], cursor: Cursor) -> None:
        """Raises `_OthersWrote` if they did, and then writes nothing."""
        to, session = self._to, await self._sessions.get(self._to)
        turn = self._resumed.pop(to, 0)
        if turn and not (await session.head()).is_undone(turn):
            await session.resume(turn)

        def moved(written: Written) -> Cursor:
            if to:
                return cursor
            if self._run.is_shared and written.head.pieces - len(written.pieces) != self._pieces:
                raise _OthersWrote
            return cursor_behind(cursor, written, compared=bool(self._known))

        how: dict[str, Any] = {"tags": self._tags.get(to, {}), "fresh": to in self._fresh}
        written = await append_counted(self._run, self._bookmark, session, messages, moved, **how)
        if not to:
            self._pieces, self._newest = written.head.pieces, written.head.turn
        if self._known:
            line = self._line.setdefault(to, [])
            line += [each.turn for each in written.rounds if each.turn not in line[-1:]]
        self._fresh.discard(to)

    async def _undo(self, to: str, cursor: Cursor) -> None:
        """Undo the newest turns of the file: the session may hold others, too."""
        count, line = self._taken_back.pop(to, 0), self._line.get(to, [])
        session = await self._sessions.get(to)
        head = await session.head()
        newest = [line.pop() for _ in range(min(count, len(line)))]
        numbers = cursor.turns if not to else iter(range(head.turn, 0, -1))
        more = (n for n in numbers if not head.is_undone(n) and n not in newest)
        newest += islice(more, count - len(newest))
        newest = [number for number in newest if not head.is_undone(number)]
        self._fresh.add(to)
        if self._known and not newest:
            return

        async def hook(transaction: Transaction, _: Written) -> None:
            await self._bookmark.move(transaction, msgspec.structs.replace(cursor, turn=0))

        undone = await session.undo(numbers=newest, within=hook)
        self._run.result.of(session.name).undone += len(undone)

    def _at(self, place: FilePosition) -> Cursor:
        """Where to go on. What is being compared is compared again from where that began."""
        if self._anew:
            return self._bookmark.at(FilePosition(), anew=True)
        return self._bookmark.cursor if self._known else self._bookmark.at(place)


class _OthersWrote(Exception):
    """The session is not as it was when the file was compared with it."""


async def append_counted(
    run: ImportRun,
    bookmark: Bookmark,
    session: Session,
    messages: Sequence[Message],
    moved: Callable[[Written], Cursor],
    **how: Any,
) -> Written:
    """Append messages and move the cursor; counts both. `how` goes to `Session.append`."""
    counted, last = _Counted(), list[Written]()

    async def hook(transaction: Transaction, written: Written) -> None:
        await bookmark.move(transaction, moved(written))
        await counted.note(transaction, written)
        last[:] = [written]

    await session.append(messages, within=hook, count=True, **how)
    found = run.result.of(session.name)
    found.add(counted.rounds)
    records = run.bank.collection(TurnCount)
    found.tokens += _tokens(await records.get_many(counted.keys)) - counted.before
    return last[0]


def cursor_behind(cursor: Cursor, written: Written, *, compared: bool = False) -> Cursor:
    """`compared`: what others wrote is still being compared, and so is this, if it is repeated."""
    opened = [each.turn for each in written.rounds if each.round == 1 and not each.before]
    own = with_turns(cursor.own, opened)
    if not compared:
        head = written.head
        cursor = msgspec.structs.replace(cursor, pieces=head.pieces, newest=head.turn)
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

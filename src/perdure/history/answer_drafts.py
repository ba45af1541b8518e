"""Drafts: an answer is kept as one row, named in the head of its session, while it arrives.

It belongs to the turn that waited for it when it began, whatever is appended meanwhile, and
whichever process completes it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import msgspec

from perdure.core import messages as canonical
from perdure.core.errors import Conflict, InvalidInput
from perdure.core.messages import Message
from perdure.core.turns import ConversationState, Turn, TurnSplitter, WriterStatus
from perdure.history.answer_feed import AnswerFeed
from perdure.history.intake import Intake
from perdure.history.log_records import AnswerDraft, Head, turn_key
from perdure.history.turn_log import AppendHook, AppendRequest, TurnLog, WriteCursor, Written
from perdure.history.turn_reader import TurnReader
from perdure.storage.collection_reader import Stored
from perdure.storage.concurrency import retry_conflicts
from perdure.storage.options import STRONG, Options
from perdure.storage.store import Store
from perdure.storage.transaction import Transaction

DraftGuard = Callable[[Transaction], Awaitable[None]]


class Partial(msgspec.Struct, frozen=True):
    """An incomplete answer."""

    turn: int
    message: Message
    #: When it began, and when it last grew. Microseconds.
    started: int
    updated: int
    #: ``alive`` if somebody still writes it: its last heartbeat is younger than 15 seconds.
    writer: WriterStatus


class AnswerDrafts:
    """Keeps the draft of one answer."""

    def __init__(  # noqa: PLR0917 (what the writer of a session has)
        self,
        store: Store,
        log: TurnLog,
        reader: TurnReader,
        intake: Intake,
        cursor: WriteCursor,
        writing: asyncio.Lock,
        *,
        resumes: bool = False,
        guard: DraftGuard | None = None,
    ) -> None:
        self._store = store
        self._log = log
        self._reader = reader
        self._intake = intake
        self._cursor = cursor
        self._writing = writing
        self._resumes = resumes  # What somebody began: it is there, or others were first.
        self._guard = guard  # Runs in every transaction: what it raises writes nothing.
        self._version = 0
        self._updated = 0
        self._behind: ConversationState | None = None  # If the answer itself opens its turn.

    @property
    def session(self) -> str:
        return self._cursor.record.id

    @property
    def feed(self) -> AnswerFeed:
        return self._log.answers

    def now(self) -> int:
        return self._store.now()

    async def place(self) -> int:
        async with self._writing:
            head = await self._log.refresh(self._cursor)
            own = self._cursor.own
            mark = head.mark if own is None or own.turn >= head.turn else own
            if head.closed and mark is head.mark:
                mark = ConversationState(head.turn)
            if mark.fresh:
                # Another writer may still take this number; then the answer goes behind that turn.
                self._behind = ConversationState(head.turn)
                return head.newest + 1
            return TurnSplitter(mark).feed(Message("assistant"))[0]

    async def save_draft(
        self, turn: int, message: Message, started: int, *, grew: bool, alive: bool
    ) -> None:
        """Nothing moves to the artifact store: the draft will be replaced. Not `alive`: the writer
        leaves it as it is. Raises `InvalidInput` if it is resumed and gone.
        """
        (masked,), _ = await self._intake.masked((message,))
        now = self.now()
        self._updated = now if grew else self._updated or now
        draft = AnswerDraft(
            id=turn_key(self.session, turn),
            content=canonical.encode((masked,)),
            started=started,
            updated=self._updated,
            heartbeat=now if alive else 0,
        )
        if self._version:
            try:
                await self._put(draft)
                return
            except Conflict:
                pass  # it was dropped, or forgotten, or somebody else goes on with it, too
        await self._announce(turn, draft)

    async def _put(self, draft: AnswerDraft) -> None:
        if self._guard is None:
            drafts = self._store.collection(AnswerDraft)
            self._version = await drafts.put(draft, Options(expected=self._version))
            return
        async with self._store.transaction() as transaction:
            await self._guard(transaction)
            await transaction.collection(AnswerDraft).put(draft, Options(expected=self._version))
        self._version = transaction.version("perdure_drafts", draft.id)

    async def finish_draft(
        self, turn: int, message: Message, within: AppendHook | None = None
    ) -> Turn:
        """The answer is written and the draft deleted in one transaction. Raises `InvalidInput` if
        it is resumed and gone: nothing is written twice.
        """

        async def attempt(_: int) -> Turn:
            version = (await self._found(turn)).version if self._resumes else None
            return await self._finish(turn, message, version, within)

        return await (retry_conflicts(attempt) if self._resumes else attempt(0))

    async def close(self, partial: Partial) -> Turn:
        """Write the incomplete answer as part of its turn, marked as partial. Raises `InvalidInput`
        if the draft is gone, `Conflict` if another process takes it right now.
        """
        found = await self._found(partial.turn)
        draft = found.value  # it may have grown since the caller saw it
        message = msgspec.structs.replace(draft.message, partial=True, ended=draft.updated)
        return await self._finish(partial.turn, message, found.version)

    async def _found(self, turn: int, *, inside: Transaction | None = None) -> Stored[AnswerDraft]:
        executor = inside or self._store
        key = turn_key(self.session, turn)
        found = await executor.collection(AnswerDraft).fetch(key, STRONG)
        if found is None:
            raise InvalidInput(
                f"T-{turn} of {self.session} has no partial answer any more.",
                hint="Others completed, closed or dropped it; partials() tells what there is.",
            )
        return found

    async def drop(self, partial: Partial) -> None:
        def change(head: Head) -> Head:
            left = tuple(turn for turn in head.answering if turn != partial.turn)
            return msgspec.structs.replace(head, answering=left)

        async def inside(transaction: Transaction, _: Head) -> None:
            await transaction.collection(AnswerDraft).delete(turn_key(self.session, partial.turn))

        async with self._writing:
            await self._log.change_head(self._cursor, change, inside)

    async def _announce(self, turn: int, draft: AnswerDraft) -> None:
        def change(head: Head) -> Head:
            answering = tuple(sorted({*head.answering, turn}))
            return msgspec.structs.replace(head, answering=answering)

        async def inside(transaction: Transaction, _: Head) -> None:
            if self._guard is not None:
                await self._guard(transaction)
            if self._resumes:
                await self._found(turn, inside=transaction)
            await transaction.collection(AnswerDraft).put(draft)

            def saved() -> None:
                self._version = transaction.version("perdure_drafts", draft.id)

            transaction.after_commit(saved)

        async with self._writing:
            await self._log.change_head(self._cursor, change, inside)

    async def _finish(
        self,
        turn: int,
        message: Message,
        version: int | None,
        within: AppendHook | None = None,
    ) -> Turn:
        taken = await self._intake.take((message,))
        order = AppendRequest(
            messages=taken.messages,
            masked=taken.masked,
            artifacts=taken.moved,
            there=taken.there,
            answered=turn,
            draft=version,
        )
        # A writer of its own: the session may have begun another turn meanwhile.
        writer = WriteCursor(self._cursor.record)
        writer.own = await self._mark(writer, turn)
        hooks = [hook for hook in (self._guarded(), within) if hook is not None]
        written = await self._log.write(writer, order, hooks)
        await self._adopt(writer)
        if taken.moved:
            await self._intake.confirm(taken)
        (done,) = written.turns()
        return done

    def _guarded(self) -> AppendHook | None:
        guard = self._guard
        if guard is None:
            return None

        async def hook(transaction: Transaction, _: Written) -> None:
            await guard(transaction)

        return hook

    async def _mark(self, writer: WriteCursor, turn: int) -> ConversationState:
        head = await self._log.refresh(writer)
        if self._behind is not None:
            return self._behind
        if turn < head.turn or (turn == head.turn and head.mark.fresh):
            return await self._reader.mark(writer.record, turn)
        return head.mark if turn == head.turn else ConversationState(head.turn)

    async def _adopt(self, writer: WriteCursor) -> None:
        done = writer.own
        assert done is not None  # noqa: S101 (for the type checker)
        assert writer.head is not None  # noqa: S101 (for the type checker)
        async with self._writing:
            own = self._cursor.own
            newest = done.turn == writer.head.turn
            if newest if own is None or self._behind else own.turn == done.turn:
                self._cursor.own = done
            if self._cursor.version < writer.version:
                self._cursor.head, self._cursor.version = writer.head, writer.version

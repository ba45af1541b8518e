"""Writes to a session: messages, streamed answers, undoing."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from itertools import islice
from typing import Any

import msgspec

from perdure import wire
from perdure.context.composer import Composer
from perdure.context.context import Context
from perdure.context.echoes import strip_echo
from perdure.context.injection_records import prompt_digest
from perdure.core import clock
from perdure.core.errors import Conflict, InvalidInput
from perdure.core.input_types import require_mapping, require_text
from perdure.core.messages import Message, assistant
from perdure.core.turns import ConversationState, Position, Turn
from perdure.history.answer_drafts import AnswerDrafts, DraftGuard, Partial
from perdure.history.intake import resolved
from perdure.history.log_records import (
    AnswerDraft,
    Head,
    SessionRecord,
    TurnSpan,
    agent_of,
    line_at,
    newest,
    turn_key,
    undone_at,
)
from perdure.history.strategies.raw_rounds import prompt_of
from perdure.history.streamed_answers import StreamedAnswer
from perdure.history.turn_log import AppendHook, AppendRequest, WriteCursor, Written
from perdure.recall.scoping.lines import note_undone
from perdure.services import Services
from perdure.sessions.validation import count_in, runs, tags_of, turn_number
from perdure.storage.options import Options
from perdure.storage.state_records import StateRecord
from perdure.storage.transaction import Transaction

_RECENT = 8  # Pieces in which the call is looked for that a result belongs to.
_BEGUN = 64  # Prompts of contexts whose turns are remembered.


class _Answer(msgspec.Struct, frozen=True):
    messages: tuple[Message, ...]
    #: None: they open one.
    own: ConversationState | None
    opens: bool = False


class SessionWriter:
    """Writes to one conversation. The methods are those of `Session`, which documents them."""

    def __init__(self, services: Services, record: SessionRecord, composer: Composer) -> None:
        self.intake = services.intake(record.id)
        self.intake.recent_messages = self._recent
        #: Where it stands; `record` changes when others change the session.
        self.cursor = WriteCursor(record)
        self._services = services
        self._heads = services.store.collection(Head)
        self._composer = composer
        self._writing = asyncio.Lock()  # Held while writing: `cursor` moves with each append.
        self._begun = dict[tuple[int, bytes], int]()  # Turns by expected turn and prompt.

    @property
    def record(self) -> SessionRecord:
        return self.cursor.record

    async def current(self) -> SessionRecord:
        """A fork's is read again: its line changes when its parent is forgotten."""
        if self.record.line:
            found = await self._services.store.collection(SessionRecord).get(self.record.id)
            self.cursor.record = found or self.record
        return self.record

    async def head(self) -> Head:
        found = await self._heads.get(self.record.id)
        return Head(self.record.id) if found is None else found

    async def current_state(self) -> tuple[SessionRecord, Head]:
        return await self.current(), await self.head()

    async def append(
        self,
        messages: Any,
        *,
        context: Context | None,
        key: str | None,
        tags: Mapping[str, str] | None,
        expected: str | int | Position | None,
        within: AppendHook | None,
        options: Options,
        count: bool,
        fresh: bool,
        times: tuple[int, int] | None,
        masked: Mapping[str, int] | None,
    ) -> Turn | list[Turn]:
        answer = None
        if context is not None:
            answer = await self._answered(messages, context)
            decoded = answer.messages
        else:
            decoded = wire.decode(messages)
        if not decoded:
            raise InvalidInput("There are no messages to append.", hint="Give at least one.")
        newest = None if expected is None else turn_number(expected)
        taken = await self.intake.take(decoded)
        order = AppendRequest(
            messages=taken.messages,
            tags=self.intake.plain(tags_of(tags)) if tags else {},
            masked=taken.masked if masked is None else dict(require_mapping(masked, "masked")),
            key=None if key is None else require_text(key, "key"),
            expected=newest,
            artifacts=taken.moved,
            there=taken.there,
            options=options,
            bulk=count,
            fresh=fresh,
            times=times,
        )
        hooks = [] if within is None else [within]
        if count:
            services = self._services
            hooks += [services.recall.hook, services.token_counts.now(taken.moved)]
        async with self._writing:
            own = self.cursor.own
            if answer is not None and (
                own is None or answer.own is None or own.turn != answer.own.turn
            ):
                self.cursor.own = answer.own
            written = await self._services.log.write(self.cursor, order, hooks)
        if taken.moved:
            await self.intake.confirm(taken)
        if context is None:
            await self._composer.injections.written(written)
        elif answer is not None and answer.opens and written.rounds:
            self._begun[context.turn, prompt_digest(context.prompt)] = written.first
            while len(self._begun) > _BEGUN:
                self._begun.pop(next(iter(self._begun)))
            await self._composer.moved(context, written.first)
        if written.repeated is not None:
            head = await self.head()
            turns = await self._services.reader.turns(self.record, head, *written.repeated)
            await self.resume(written.repeated[1])  # what follows goes where it would have gone
        else:
            turns = written.turns()
        return turns[0] if len(turns) == 1 else turns

    async def close_turn(self) -> None:
        head = await self.change_head(lambda head: msgspec.structs.replace(head, closed=True))
        self.cursor.own = ConversationState(head.turn)

    async def undo(
        self, turns: int, numbers: Sequence[int] | None, within: AppendHook | None
    ) -> list[int]:
        turns = count_in(turns, "undone") if numbers is None else turns
        undone = list[int]()

        def change(head: Head) -> Head:
            if numbers is None:
                live = (n for n in range(head.turn, 0, -1) if not head.is_undone(n))
                undone[:] = islice(live, turns)
            else:
                given = sorted({n for n in numbers if 0 < n <= head.turn}, reverse=True)
                undone[:] = [n for n in given if not head.is_undone(n)]
            spans = [TurnSpan(first, last) for first, last in runs(reversed(undone))]
            return msgspec.structs.replace(
                head,
                undone=(*head.undone, *spans),
                mark=ConversationState(head.turn, fresh=True) if head.turn in undone else head.mark,
                answering=tuple(turn for turn in head.answering if turn not in undone),
            )

        async def inside(transaction: Transaction, head: Head) -> None:
            for turn in undone:
                await transaction.collection(AnswerDraft).delete(turn_key(self.record.id, turn))
            await note_undone(transaction, head)
            if within is not None:
                await within(transaction, Written(self.record, head, (), ()))

        head = await self.change_head(change, inside)
        own = self.cursor.own
        if head.mark.fresh or (own is not None and own.turn in undone):
            self.cursor.own = ConversationState(head.turn) if head.mark.fresh else None
        return undone[::-1]

    async def resume(self, turn: str | int | Position) -> None:
        number = turn_number(turn)
        async with self._writing:
            self.cursor.own = await self._services.reader.mark(self.record, number)

    async def leave_turn(self) -> None:
        async with self._writing:
            self.cursor.own = None

    async def describe(self, facts: Mapping[str, Any]) -> None:
        plain = self.intake.plain(require_mapping(facts, "facts"))

        def change(found: SessionRecord) -> SessionRecord:
            return msgspec.structs.replace(found, state={**found.state, **plain})

        await self.change_record(change)

    async def archive(self) -> None:
        moment = clock.to_datetime(self._services.store.now())

        async def inside(transaction: Transaction, _: Head) -> None:
            records = transaction.collection(SessionRecord)
            found = await records.get(self.record.id) or self.record
            archived = msgspec.structs.replace(found, last_active=None, archived=moment)
            await records.put(archived)
            transaction.after_commit(lambda: setattr(self.cursor, "record", archived))

        # The head gets a new version: so others who write to the session learn of it.
        await self.change_head(lambda head: head, inside)

    # Answers that arrive piece by piece -------------------------------------------------------

    def answer(
        self, model: str, resume: Partial | None, guard: DraftGuard | None
    ) -> StreamedAnswer:
        heartbeat = self._services.config.history.heartbeat
        model = require_text(model, "model")
        drafts = self._drafts(resumes=resume is not None, guard=guard)
        return StreamedAnswer(drafts, model=model, heartbeat=heartbeat, resumed=resume)

    async def partials(self) -> list[Partial]:
        head = await self.head()
        drafts = self._services.store.collection(AnswerDraft)
        found = await drafts.get_many([turn_key(self.record.id, turn) for turn in head.answering])
        now = self._services.store.now()
        return [
            Partial(turn, draft.message, draft.started, draft.updated, draft.writer(now))
            for turn, draft in zip(head.answering, found, strict=True)
            if draft is not None
        ]

    async def close_partial(self, partial: Partial) -> Turn:
        return await self._drafts().close(partial)

    async def drop_partial(self, partial: Partial) -> None:
        await self._drafts().drop(partial)

    def _drafts(self, *, resumes: bool = False, guard: DraftGuard | None = None) -> AnswerDrafts:
        services = self._services
        return AnswerDrafts(
            services.store,
            services.log,
            services.reader,
            self.intake,
            self.cursor,
            self._writing,
            resumes=resumes,
            guard=guard,
        )

    # The session itself -----------------------------------------------------------------------

    async def change_record(self, change: Callable[[SessionRecord], SessionRecord]) -> None:
        """Raises `InvalidInput` if the session was forgotten."""
        name = self.record.id

        def changed(found: SessionRecord | None) -> SessionRecord:
            if found is None:
                raise InvalidInput(f"The session {name} is gone.", hint="Open it again.")
            return change(found)

        records = self._services.store.collection(SessionRecord)
        self.cursor.record = await records.change(name, changed)

    async def change_head(
        self,
        change: Callable[[Head], Head],
        within: Callable[[Transaction, Head], Awaitable[None]] | None = None,
    ) -> Head:
        """Repeated if others write first."""
        async with self._writing:
            return await self._services.log.change_head(self.cursor, change, within)

    async def fork(self, name: str, at: str | int | Position | None) -> SessionRecord:
        agent = agent_of(name)
        head, own = await self.head(), await self.current()
        number = newest(head) if at is None else turn_number(at)
        if number < 1 or number > head.turn:
            raise InvalidInput(
                f"{self.record.id} has no turn T-{number} to fork at.",
                hint=f"Its newest is T-{head.turn}." if head.turn else "Append something first.",
            )
        piece, link = await self._services.reader.end_of(own, head, number)
        now = self._services.store.now()
        record = SessionRecord(
            id=name,
            type=own.type,
            state=own.state,
            last_active=clock.to_datetime(now),
            tags=own.tags,
            agent=agent,
            strategy=own.strategy,
            budget=own.budget,
            parent=self.record.id,
            line=line_at(own, number, piece),
            root=link,
        )
        fresh = Head(
            name,
            ConversationState(number, fresh=True),
            pieces=piece,
            link=link,
            time=now,
            undone=undone_at(head, number),
        )
        taken = ""

        async def write(transaction: Transaction) -> None:
            nonlocal taken
            taken = await _taken(transaction, name)
            if taken:
                return
            await transaction.collection(SessionRecord).put(record, Options(expected=0))
            await transaction.collection(Head).put(fresh, Options(expected=0))
            # A parent that is being forgotten has no head any more.
            if await transaction.collection(Head).get(self.record.id) is None:
                raise InvalidInput(
                    f"{self.record.id} was forgotten.", hint="There is nothing to fork."
                )

        # Others may write to the parent meanwhile: then once more, with what was found.
        await self._services.store.transact(write)
        if taken:
            raise Conflict(
                "perdure_sessions",
                name,
                message=f"There is a {taken} {name} already.",
                hint="Choose another name for the fork, or open that one with bank.session(…).",
            )
        return record

    async def _answered(self, messages: Any, context: Context) -> _Answer:
        """What is new of an answer to a context, and the turn of its prompt, whatever was written
        meanwhile and by whom.
        """
        said = answer_in(messages, context, self.record.id)
        turn, own = context.turn, self.cursor.own
        if context.prompt:
            found = await self._turn_begun_by(context)
            if found is None:
                joined = own if own is not None and own.turn == turn else None
                return _Answer((*context.prompt, *said), joined, opens=True)
            turn = found
        if own is None or own.turn != turn:
            own = await self._services.reader.mark(self.record, turn)
        return _Answer(said, own)

    async def _turn_begun_by(self, context: Context) -> int | None:
        """The turn that a context's prompt opened; None if it is not written yet."""
        digest = prompt_digest(context.prompt)
        head = await self.head()
        known = self._begun.get((context.turn, digest))
        if known is not None:
            return None if head.is_undone(known) else known
        if head.turn < context.turn or context.turn <= self.record.forked_at:
            return None
        if head.is_undone(context.turn):
            return None
        # Somebody else may have written it: another process that goes on with our work.
        mark = await self._services.reader.mark(self.record, context.turn)
        if mark.closed:
            return None
        turn = await self._services.reader.turn(self.record, head, context.turn)
        prompt = prompt_of(turn.rounds[0].messages if turn.rounds else ())
        whole = await resolved(prompt, self._services.artifacts)
        return context.turn if prompt_digest(whole) == digest else None

    async def _recent(self) -> list[Message]:
        pieces = await self._services.reader.latest(self.record, _RECENT)
        return [message for piece in pieces for message in piece.messages()]


def answer_in(messages: Any, context: Context, session: str) -> tuple[Message, ...]:
    """What is new of an answer to a context of this session. Raises `InvalidInput`."""
    if not isinstance(context, Context):
        raise InvalidInput(
            f"{context!r} is no context.", hint="Give what session.context(…) returned."
        )
    if context.session != session:
        raise InvalidInput(
            f"This context is one of {context.session}.", hint="Append the answer there."
        )
    said = wire.decode(assistant(messages) if isinstance(messages, str) else messages)
    return tuple(_by_model(each, context.model) for each in strip_echo(said, context))


def _by_model(message: Message, model: str) -> Message:
    """A reply that does not say who gave it was given by the model that was asked."""
    if not model or message.model or message.role != "assistant":
        return message
    return msgspec.structs.replace(message, model=model)


async def _taken(transaction: Transaction, name: str) -> str:
    """What has this name already; empty if nothing has."""
    if await transaction.collection(SessionRecord).get(name) is not None:
        return "session"
    return "" if await transaction.collection(StateRecord).get(name) is None else "context"

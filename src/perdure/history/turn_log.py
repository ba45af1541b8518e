"""The turn log: append-only, the source of truth.

`TurnLog.write` cuts messages into turns, turns into pieces, links each piece to the chain, and
commits pieces and head in one transaction. It reads nothing and changes one small row, so it costs
the same at turn 10 and at turn 100,000. The first writer wins; the other plans again on the new
head, unless it said which turn it expects to be the newest.

Two writers may have a turn open at the same time. Each one's messages go to the turn that it opened
itself, so turns are never mixed, and an overtaken turn can still be finished.

The first append after a pause leaves a mark in its transaction (`jobs.marks`). Listeners are called
with each append in this process, and with turns that a killed process left a mark about. The mark
is removed when all work that covers `TURNS` is done. No append waits for it.

A turn that refers to artifacts commits only if none of them is condemned: see
`perdure.artifacts.artifact_collector`. Content that was deleted between our put and our commit,
because nothing referred to it yet, is put again.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Iterable, Sequence
from itertools import accumulate, groupby
from operator import attrgetter

import msgspec

from perdure.artifacts import INLINE_BELOW, Artifact, ArtifactStore
from perdure.core import clock
from perdure.core import messages as canonical
from perdure.core.errors import Conflict, InvalidInput, Unavailable
from perdure.core.messages import Message
from perdure.core.turns import ConversationState, Round, Turn
from perdure.history import chain
from perdure.history.answer_feed import AnswerFeed
from perdure.history.log_records import (
    AnswerDraft,
    Head,
    Receipt,
    SessionRecord,
    TurnPiece,
    Use,
    piece_key,
    turn_key,
    turn_prefix,
)
from perdure.history.piece_packing import RoundWritten, cut, packed
from perdure.jobs import GoOn, Runner
from perdure.storage.concurrency import ATTEMPTS, back_off, retry_conflicts
from perdure.storage.options import DEFAULT, STRONG, Options
from perdure.storage.record_references import CONDEMNED, NEEDED, Condemned
from perdure.storage.records import type_of
from perdure.storage.store import Store
from perdure.storage.transaction import Transaction

#: A session's `last_active` is at most so much behind its newest turn.
TOUCH_AFTER = 60 * clock.SECOND
_NEW = Options(expected=0)
#: Begins the keys of uses that are not a turn's; no session's name begins with a space.
KEPT = " kept/"
_PIECES, _HEADS = type_of(TurnPiece), type_of(Head)
_TURN = attrgetter("turn")
TURNS = "turns"  # The mark of an append, about its session, from its first turn on.
_RECOVER_EVERY, _RECOVER_AFTER = 60.0, 5.0  # Seconds between two checks for marks.


class Written(msgspec.Struct, frozen=True, gc=False):
    """What one append writes: given to hooks inside its transaction."""

    session: SessionRecord
    head: Head
    pieces: tuple[TurnPiece, ...]
    rounds: tuple[RoundWritten, ...]
    #: The keyed append was written before: nothing was written now.
    repeated: tuple[int, int] | None = None
    bulk: bool = False  # See `AppendRequest.bulk`.

    @property
    def first(self) -> int:
        return self.rounds[0].turn if self.rounds else self.repeated[0] if self.repeated else 0

    @property
    def last(self) -> int:
        return self.rounds[-1].turn if self.rounds else self.repeated[1] if self.repeated else 0

    def turns(self) -> list[Turn]:
        """What this append wrote of each turn."""
        found: list[Turn] = []
        pieces_of = groupby(self.pieces, _TURN)
        for number, rounds in groupby(self.rounds, _TURN):
            pieces = list(next(pieces_of)[1])  # both are in the order of turns
            is_open = number == self.head.turn and not self.head.mark.closed
            found.append(
                Turn(
                    session=self.session.id,
                    number=number,
                    rounds=tuple([Round(round.round, round.messages) for round in rounds]),
                    status="open" if is_open else "closed",
                    started=pieces[0].time,
                    ended=pieces[-1].ended,
                    tags=pieces[0].tags,
                    masked=pieces[0].masked,
                    version=pieces[-1].number,
                )
            )
        return found


Listener = Callable[[Written], None]  # Called after each commit of this process. Must be quick.
Recovery = Callable[[SessionRecord, int, int], None]  # Called with turns of a killed process.
#: Runs inside the append's transaction, perhaps more than once; what it puts there is committed
#: with the turn or not at all.
AppendHook = Callable[[Transaction, Written], Awaitable[None]]


class WriteCursor(msgspec.Struct):
    """What one `Session` knows between its appends."""

    record: SessionRecord
    head: Head | None = None
    version: int = 0
    created: int = 0  # the head, in microseconds
    own: ConversationState | None = None  # Where the turn stands that this writer wrote to last.


class AppendRequest(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The options of an append."""

    messages: tuple[Message, ...]
    tags: dict[str, str] = {}
    masked: dict[str, int] = {}
    key: str | None = None
    expected: int | None = None
    #: The answer to this turn has arrived: its draft goes, which must have this version.
    answered: int | None = None
    draft: int | None = None
    fresh: bool = False  # The first message opens a turn, whatever it is and whatever is open.
    bulk: bool = False  # By an importer: counted in a hook, and leaves no mark.
    times: tuple[int, int] | None = None  # Beginning and end, if not now. Microseconds.
    artifacts: tuple[bytes, ...] = ()  # Moved out. Large ones are stored already.
    there: tuple[str, ...] = ()  # Artifacts that existed before.
    #: Artifacts that messages refer to and that were deleted, with no content to put them again.
    lost: tuple[str, ...] = ()
    options: Options = DEFAULT


class TurnLog:
    """Writes turns into a store."""

    def __init__(self, store: Store, artifacts: ArtifactStore, jobs: Runner) -> None:
        self._store = store
        self._artifacts = artifacts
        self._jobs = jobs
        self._hooks: list[AppendHook] = []
        self._listeners: list[tuple[Listener, Recovery]] = []
        #: Sessions in which others may have left something undone.
        self._doubtful: dict[str, SessionRecord] = {}
        self._recover_soon = jobs.idle("recovering turns", self._recover, covers=TURNS)
        jobs.every("abandoned turns", _RECOVER_EVERY, self._find_abandoned, first=_RECOVER_AFTER)
        self._made = False
        self._watchers: dict[str, set[asyncio.Event]] = {}
        self._followers: list[Callable[[str], None]] = []
        self.answers = AnswerFeed()

    def join(self, hook: AppendHook) -> None:
        """Run a hook inside every append's transaction, so that an index can join it."""
        self._hooks.append(hook)

    def listen(self, note: Listener, missed: Recovery) -> None:
        self._listeners.append((note, missed))

    async def write(
        self, writer: WriteCursor, order: AppendRequest, hooks: Sequence[AppendHook] = ()
    ) -> Written:
        """Append messages. Raises `Conflict` if the newest turn is not the expected one, or if
        others keep writing first for a very long time; `InvalidInput` if the session is gone.
        """
        with self._jobs.writing():
            written = await self._write(writer, order, hooks)
            if written.rounds:
                for note, _ in self._listeners:
                    note(written)
        return written

    async def _write(
        self, writer: WriteCursor, order: AppendRequest, hooks: Sequence[AppendHook]
    ) -> Written:
        for attempt in range(ATTEMPTS):
            if writer.head is None:
                await self.refresh(writer)
            assert writer.head is not None  # noqa: S101 (for the type checker)
            if order.expected not in (None, writer.head.turn):
                repeated = await self._unless_expected(writer, order)
                if repeated is not None:
                    return repeated
            written, own = self._plan(writer, order)
            try:
                await self._commit(writer, order, written, hooks)
            except Conflict as exc:
                if exc.collection == "perdure_receipts":
                    repeated = await self._repeated(writer, order.key)
                    if repeated is not None:
                        return repeated
                if attempt == ATTEMPTS - 1 or exc.collection == "perdure_drafts":
                    raise
                if exc.collection == CONDEMNED:
                    order = await self._put_again(order, exc)
                await self._reload(writer)
                if attempt:
                    await back_off(attempt)
            else:
                writer.head, writer.own = written.head, own
                self.notify(writer.record.id)
                return written
        raise AssertionError("unreachable")

    async def refresh(self, writer: WriteCursor) -> Head:
        found = await self._store.collection(Head).fetch(writer.record.id)
        if found is None:
            raise InvalidInput(
                f"The session {writer.record.id} does not exist any more.",
                hint="It was forgotten; open it again with bank.session(…) to begin anew.",
            )
        writer.head, writer.version = found.value, found.version
        writer.created = found.created_us
        return found.value

    async def change_head(
        self,
        writer: WriteCursor,
        change: Callable[[Head], Head],
        within: Callable[[Transaction, Head], Awaitable[None]] | None = None,
    ) -> Head:
        """Repeated if others write first."""

        async def attempt(_: int) -> Head:
            head = await self.refresh(writer)
            changed = change(head)
            async with self._store.transaction() as transaction:
                await transaction.collection(Head).put(changed, Options(expected=writer.version))
                transaction.expect("perdure_heads", head.id, writer.version, writer.created)
                if within is not None:
                    await within(transaction, changed)
            writer.head = changed
            writer.version = transaction.version("perdure_heads", changed.id)
            self.notify(writer.record.id)
            return changed

        return await retry_conflicts(attempt)

    def look(self, record: SessionRecord) -> None:
        self._doubtful[record.id] = record
        self._recover_soon()

    async def _recover(self, go_on: GoOn) -> bool:
        """Also marks of living processes: nobody has to wait for them."""
        while self._doubtful:
            name, record = self._doubtful.popitem()
            try:
                await self._recover_session(record)
            except BaseException:
                self._doubtful.setdefault(name, record)
                raise
            if not go_on():
                break
        return bool(self._doubtful)

    async def _recover_session(self, record: SessionRecord) -> None:
        marks = await self._jobs.marks(TURNS, record.id)
        if marks:
            head = await self._store.collection(Head).get(record.id)
            first = max(min(mark.first for mark in marks), record.forked_at + 1)
            if head is not None and first <= head.turn:
                for _, missed in self._listeners:
                    missed(record, first, head.turn)
            for mark in marks:
                await self._jobs.adopt(mark)

    async def _find_abandoned(self) -> None:
        now, sessions = self._store.now(), self._store.collection(SessionRecord)
        for mark in await self._jobs.marks(TURNS):
            if mark.is_abandoned(now):
                record = await sessions.get(mark.key)
                if record is not None:
                    self.look(record)
                else:
                    await self._jobs.adopt(mark)

    def watch(self, session: str) -> asyncio.Event:
        """An event that is set when this process writes to the session. Give it back to `leave`."""
        event = asyncio.Event()
        self._watchers.setdefault(session, set()).add(event)
        return event

    def leave(self, session: str, event: asyncio.Event) -> None:
        watching = self._watchers.get(session, set())
        watching.discard(event)
        if not watching:
            self._watchers.pop(session, None)

    def follow(self, changed: Callable[[str], None]) -> Callable[[], None]:
        """Call a function with the name of each session that this process writes to or changes.
        Returns what ends it.
        """
        self._followers.append(changed)
        return lambda: self._followers.remove(changed)

    def notify(self, session: str) -> None:
        for changed in self._followers:
            changed(session)
        for event in self._watchers.get(session, ()):
            event.set()

    def _plan(self, writer: WriteCursor, order: AppendRequest) -> tuple[Written, ConversationState]:
        head = writer.head
        assert head is not None  # noqa: S101 (for the type checker)
        session, now = writer.record.id, self._store.now()
        rounds, newest, own = cut(head, writer.own, order.messages, fresh=order.fresh)
        pieces: list[TurnPiece] = []
        number, link = head.pieces, head.link
        for together, content in packed(rounds):
            number += 1
            first = together[0]
            opens = first.round == 1 and first.before == 0
            began, ended = order.times or _times(together, now)
            breaks = tuple(accumulate([len(round.messages) for round in together[:-1]]))
            tags = order.tags if opens else {}
            masked = {} if pieces else order.masked
            salt = chain.new_salt()
            commitment = chain.commitment(salt, (breaks, began, ended, tags, masked), content)
            link = chain.link(link, number, first.turn, first.round, commitment)
            piece = TurnPiece(
                id=piece_key(session, first.turn, number),
                content=content,
                salt=salt,
                link=link,
                round=first.round,
                breaks=breaks,
                time=began,
                ended=ended,
                session=session if opens else None,
                masked=masked,
                tags=tags,
            )
            pieces.append(piece)
        answering = head.answering
        if order.answered is not None:
            answering = tuple(turn for turn in answering if turn != order.answered)
        changed = Head(
            session,
            newest,
            number,
            head.messages + len(order.messages),
            link,
            now,
            pieces[-1].ended if pieces else head.said,
            closed=head.closed and newest == head.mark,  # written to was an older turn
            undone=head.undone,
            forgets=head.forgets,
            answering=answering,
        )
        written = Written(writer.record, changed, tuple(pieces), tuple(rounds), bulk=order.bulk)
        return written, own

    async def _commit(
        self,
        writer: WriteCursor,
        order: AppendRequest,
        written: Written,
        hooks: Sequence[AppendHook],
    ) -> None:
        record, head = writer.record, written.head
        if not self._made:
            await self._store.declare(TurnPiece, Head)
            self._made = True
        try:
            async with self._store.transaction(order.options) as transaction:
                # Straight to the writes: the way through two collections takes as long again.
                writes = [_PIECES.encode(piece, None, 0) for piece in written.pieces]
                writes.append(_HEADS.encode(head, None, writer.version))
                await transaction.write(writes, DEFAULT)
                transaction.expect("perdure_heads", record.id, writer.version, writer.created)
                if order.key is not None:
                    receipt = Receipt(
                        receipt_key(record.id, order.key), written.first, written.last
                    )
                    await transaction.collection(Receipt).put(receipt, _NEW)
                if uses := _uses(record.id, written.rounds):
                    await self._refer(transaction, order, uses)
                if order.answered is not None:
                    key = turn_key(record.id, order.answered)
                    await transaction.collection(AnswerDraft).delete(
                        key, Options(expected=order.draft)
                    )
                if record.last_active is None or head.time - _micro(record) > TOUCH_AFTER:
                    record = await self._touched(transaction, record)
                for hook in (*self._hooks, *hooks):
                    await hook(transaction, written)
                if written.rounds and not order.bulk:
                    await self._jobs.mark(transaction, TURNS, record.id, written.first)
        except (asyncio.CancelledError, Unavailable):
            # It may have been committed all the same: who listens looks at the log.
            for _, missed in self._listeners:
                missed(writer.record, written.first, written.last)
            raise
        writer.version = transaction.version("perdure_heads", record.id)
        writer.record = record

    async def _refer(self, transaction: Transaction, order: AppendRequest, uses: list[Use]) -> None:
        known = transaction.collection(Use)
        for artifact in order.there:
            used = await known.query().where("artifact", "=", artifact).exists()
            # Then it is somebody's own; unless it was a turn's that was forgotten meanwhile.
            if not used and not await self._is_condemned(artifact):
                await known.put(Use(f"{KEPT}{artifact.partition(':')[2]}", artifact))
        for content in order.artifacts:
            if len(content) < INLINE_BELOW:
                await self._artifacts.put(content, transaction=transaction)
        await known.put_many(uses)
        if self._store.capabilities >= NEEDED:
            await transaction.ready(type_of(Condemned))
            needed = [use.artifact for use in uses if use.artifact not in order.lost]
            await transaction.write((), DEFAULT, [(CONDEMNED, artifact) for artifact in needed])

    async def _is_condemned(self, artifact: str) -> bool:
        if not self._store.capabilities >= NEEDED:
            return False
        return await self._store.collection(Condemned).get(artifact, STRONG) is not None

    async def _put_again(self, order: AppendRequest, exc: Conflict) -> AppendRequest:
        """If the content is not at hand, the message keeps a reference to what is gone, and
        `verify` reports it: what was said is not lost.
        """
        for content in order.artifacts:
            if (await asyncio.to_thread(Artifact.of, content)).hash == exc.key:
                await self._artifacts.put(content)
                there = tuple(artifact for artifact in order.there if artifact != exc.key)
                return msgspec.structs.replace(order, there=there)
        return msgspec.structs.replace(order, lost=(*order.lost, exc.key))

    async def _touched(self, transaction: Transaction, record: SessionRecord) -> SessionRecord:
        """Note that the session is in use; one that was archived comes back."""
        records = transaction.collection(SessionRecord)
        found = await records.get(record.id)
        if found is None:
            return record
        moment = clock.to_datetime(self._store.now())
        touched = msgspec.structs.replace(found, last_active=moment, archived=None)
        await records.put(touched)
        return touched

    async def _unless_expected(self, writer: WriteCursor, order: AppendRequest) -> Written | None:
        """Raises `Conflict` if the newest turn is another than expected, unless this is a
        repetition of the append that wrote it (same key).
        """
        head = await self.refresh(writer)
        if order.expected is None or order.expected == head.turn:
            return None
        repeated = await self._repeated(writer, order.key)
        if repeated is None:
            raise _unexpected(head, order.expected)
        return repeated

    async def _reload(self, writer: WriteCursor) -> None:
        found = await self._store.collection(SessionRecord).get(writer.record.id)
        writer.record = found or writer.record
        writer.head = None

    async def _repeated(self, writer: WriteCursor, key: str | None) -> Written | None:
        if key is None:
            return None
        found = await self._store.collection(Receipt).get(receipt_key(writer.record.id, key))
        if found is None:
            return None
        head = await self.refresh(writer)
        return Written(writer.record, head, (), (), repeated=(found.first, found.last))


def _times(rounds: Iterable[RoundWritten], now: int) -> tuple[int, int]:
    """When the first of some messages was said and the last ended, as far as they tell."""
    began = said = ended = None
    for round in rounds:
        for message in round.messages:
            if message.time is not None:
                said = message.time
                began = said if began is None else began
            ended = message.ended
    return (now if began is None else began), ended or (now if said is None else said)


def _uses(session: str, rounds: Iterable[RoundWritten]) -> list[Use]:
    return [
        use_of(artifact, session, round.turn)
        for round in rounds
        for artifact in canonical.references(round.messages)
    ]


def use_of(artifact: str, session: str, turn: int) -> Use:
    return Use(f"{turn_prefix(session, turn)}{artifact.partition(':')[2]}", artifact)


def receipt_key(session: str, key: str) -> str:
    """Hashed: a caller's key may be long, or hold what a key of the store cannot."""
    return f"{session}/{hashlib.sha256(key.encode('utf-8', 'surrogatepass')).hexdigest()[:32]}"


def _micro(record: SessionRecord) -> int:
    return 0 if record.last_active is None else clock.from_datetime(record.last_active)


def _unexpected(head: Head, expected: int) -> Conflict:
    wanted = f"T-{expected}" if expected else "none"
    found = f"T-{head.turn}" if head.turn else "none"
    return Conflict(
        "perdure_heads",
        head.id,
        expected=expected,
        found=head.turn,
        message=f"The newest turn of {head.id} was expected to be {wanted} but is {found}.",
    )

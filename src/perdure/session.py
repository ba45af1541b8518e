"""A session: one conversation of an agent, turn by turn.

session = await bank.session("planner/auth")
await session.append([{"role": "user", "content": "…"}, {"role": "assistant", "content": "…"}])
for turn in await session.turns():
print(turn.id, turn.prompt)
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from datetime import datetime
from itertools import groupby, islice
from typing import TYPE_CHECKING, Any, overload

import msgspec

from perdure import wire
from perdure.context import tools as history_tools
from perdure.context.board import Entry
from perdure.context.composer import Composer, Prompted
from perdure.context.composer import Rooms as ContextRooms
from perdure.context.context import Context
from perdure.context.desk import Rendering, SessionDesk
from perdure.context.echoes import strip_echo
from perdure.core import clock
from perdure.core.errors import Conflict, InvalidInput
from perdure.core.levels import Level, parse_level
from perdure.core.messages import Message, ToolResult
from perdure.core.turns import Mark, Position, Round, Turn, is_prompt
from perdure.gateway.calls import Tool
from perdure.history import lines
from perdure.history.answers import Answer, Partial, unpacked
from perdure.history.drafts import Drafting, Pen
from perdure.history.epochs import Epoch
from perdure.history.intake import Intake, Taken, resolved
from perdure.history.log import Hook, Order, TurnLog, Writer, Written
from perdure.history.manifest import Place
from perdure.history.meter import Meter
from perdure.history.pruning import prune_tool_results
from perdure.history.reading import Reader, position
from perdure.history.records import (
    Draft,
    Head,
    SessionRecord,
    Span,
    agent_of,
    turn_key,
)
from perdure.history.strategies import parse_strategy
from perdure.storage.adapter import DEFAULT, Options
from perdure.storage.store import Store
from perdure.storage.transaction import Transaction

if TYPE_CHECKING:
    from perdure.artifacts import ArtifactStore
    from perdure.config import PruneRule

#: Seconds between two looks for what other processes wrote.
_POLL = 0.2
#: Pieces in which the call is looked for that a result belongs to.
_RECENT = 8


class Said(msgspec.Struct, frozen=True):
    """A message and where it stands: what `Session.tail` yields."""

    turn: int
    round: int
    message: Message

    @property
    def id(self) -> str:
        """``T-183.4``."""
        return str(Position(self.turn, self.round))


class Rooms(msgspec.Struct, frozen=True):
    """What sessions of one bank share."""

    store: Store
    log: TurnLog
    reader: Reader
    meter: Meter
    artifacts: ArtifactStore
    rules: tuple[PruneRule, ...]
    heartbeat: float
    contexts: ContextRooms


class Session:
    """One conversation. Made by `Bank.session`.

    Any number of sessions objects, tasks and processes may write to the same conversation: turns
    get their numbers one after the other, and each writer's messages go to the turn that it opened.
    """

    def __init__(self, rooms: Rooms, record: SessionRecord, intake: Intake) -> None:
        self._rooms = rooms
        self._intake = intake
        intake.recall = self._recent
        self._writer = Writer(record)
        self._writing = asyncio.Lock()
        self._composer = Composer(rooms.contexts)
        self._desk = SessionDesk(rooms.contexts, self._composer, self._standing)

    def __repr__(self) -> str:
        return f"<Session {self.name}>"

    @property
    def name(self) -> str:
        """``agent/name``."""
        return self._writer.record.id

    @property
    def agent(self) -> str:
        return self._writer.record.agent

    @property
    def state(self) -> dict[str, Any]:
        """What `describe` keeps with the session."""
        return self._writer.record.state

    @property
    def record(self) -> SessionRecord:
        """The session as it is stored."""
        return self._writer.record

    async def head(self) -> Head:
        """Where the session stands: its newest turn and so on."""
        found = await self._rooms.store.collection(Head).get(self.name)
        return Head(self.name) if found is None else found

    # Writing ----------------------------------------------------------------------------------

    async def append(
        self,
        messages: Any,
        *,
        context: Context | None = None,
        key: str | None = None,
        tags: Mapping[str, str] | None = None,
        expected: str | int | Position | None = None,
        within: Hook | None = None,
        options: Options = DEFAULT,
        count: bool = False,
        fresh: bool = False,
        times: tuple[int, int] | None = None,
        masked: Mapping[str, int] | None = None,
    ) -> Turn | list[Turn]:
        """Write what happened: a whole turn, several, or the next messages of an open one.

        Takes canonical messages, dicts of any of the wire formats, SDK objects, or a text (a
        prompt). Secrets are masked and large content is moved out first; then everything is
        written in one transaction, whose cost does not depend on the length of the history.

        Returns the turn with the rounds that were written now; a list, if there are several turns.

        `context` is what was sent to get these messages: its prompt is written in front of them,
        unless it is there already, and nothing of what was injected or repeated is.

        `key` makes the append idempotent: with the same key it is written once, and later calls
        return what the first one wrote. `expected` names the newest turn (0 for none); if it is
        another, `Conflict` is raised and nothing is written. `within` runs inside the transaction.
        `tags` go to each turn that begins. `count` counts tokens at once, not a moment later.
        `fresh` opens a turn with the first message, whatever it is and whatever is open; `times`
        (microseconds) says when it began and ended. Both are for bringing back what was exported.

        Raises `InvalidInput` for what is no message, `Conflict`, and what the store raises.
        """
        decoded = wire.decode(messages)
        if context is not None:
            decoded = await self._answered(decoded, context)
        if not decoded:
            raise InvalidInput("There are no messages to append.", hint="Give at least one.")
        newest = None if expected is None else _turn_number(expected)
        taken = await self._intake.take(decoded)
        order = Order(
            messages=taken.messages,
            tags=self._intake.plain(_tags(tags)) if tags else {},
            masked=taken.masked if masked is None else dict(masked),
            key=key,
            expected=newest,
            artifacts=taken.inside,
            there=taken.there,
            options=options,
            fresh=fresh,
            times=times,
        )
        written = await self._write(order, taken, within, count=count)
        if context is None:
            await self._composer.written(written)
        if written.repeated is not None:
            head = await self.head()
            turns = await self._rooms.reader.turns(self.record, head, *written.repeated)
            await self.resume(written.repeated[1])  # what follows goes where it would have gone
        else:
            turns = _turns_of(written)
        return turns[0] if len(turns) == 1 else turns

    async def close_turn(self) -> None:
        """Close the newest turn, whatever it waits for: the next message opens another."""
        head = await self._change_head(lambda head: msgspec.structs.replace(head, closed=True))
        self._writer.own = Mark(head.turn)

    async def undo(
        self,
        turns: int = 1,
        *,
        numbers: Sequence[int] | None = None,
        within: Hook | None = None,
    ) -> list[int]:
        """Take back the newest turns, or those of these numbers; returns what was undone now.

        They are kept, and readers that ask for them get them, but they are no longer part of the
        conversation; an answer that was arriving for one of them is dropped. Numbers go on: the
        next turn does not take theirs.
        """
        undone = list[int]()

        def change(head: Head) -> Head:
            if numbers is None:
                live = (n for n in range(head.turn, 0, -1) if not head.is_undone(n))
                undone[:] = islice(live, turns)
            else:
                given = sorted({n for n in numbers if 0 < n <= head.turn}, reverse=True)
                undone[:] = [n for n in given if not head.is_undone(n)]
            spans = [Span(first, last) for first, last in _runs(reversed(undone))]
            return msgspec.structs.replace(
                head,
                undone=(*head.undone, *spans),
                mark=Mark(head.turn, fresh=True) if head.turn in undone else head.mark,
                answering=tuple(turn for turn in head.answering if turn not in undone),
            )

        async def inside(transaction: Transaction, head: Head) -> None:
            for turn in undone:
                await transaction.collection(Draft).delete(turn_key(self.name, turn))
            if within is not None:
                await within(transaction, Written(self.record, head, (), ()))

        head = await self._change_head(change, inside)
        own = self._writer.own
        if head.mark.fresh or (own is not None and own.turn in undone):
            self._writer.own = Mark(head.turn) if head.mark.fresh else None
        return undone[::-1]

    async def resume(self, turn: str | int | Position) -> None:
        """Let what is appended next go on with this turn, as if this object had opened it.

        Without it, a prompt that a new process appends opens a turn of its own.
        """
        number = _turn_number(turn)
        async with self._writing:
            self._writer.own = await self._rooms.reader.mark(self.record, number)

    async def describe(self, facts: Mapping[str, Any]) -> None:
        """Merge facts into the session's state. Secrets in them are masked."""
        plain = self._intake.plain(facts)

        def change(found: SessionRecord | None) -> SessionRecord:
            if found is None:
                raise InvalidInput(f"The session {self.name} is gone.", hint="Open it again.")
            return msgspec.structs.replace(found, state={**found.state, **plain})

        records = self._rooms.store.collection(SessionRecord)
        self._writer.record = await records.change(self.name, change)

    async def archive(self) -> None:
        """Take the session out of use. It is kept; appending to it brings it back."""
        moment = clock.to_datetime(self._rooms.store.now())

        async def inside(transaction: Transaction, _: Head) -> None:
            records = transaction.collection(SessionRecord)
            found = await records.get(self.name) or self.record
            archived = msgspec.structs.replace(found, active=None, archived=moment)
            await records.put(archived)
            transaction.after_commit(lambda: setattr(self._writer, "record", archived))

        # The head gets a new version: so others who write to the session learn of it.
        await self._change_head(lambda head: head, inside)

    # Answers that arrive ----------------------------------------------------------------------

    def answer(self, *, model: str = "", resume: Partial | None = None) -> Answer:
        """An answer to the open turn that arrives piece by piece; see `history.answers`.

        With `resume`, it goes on where a partial one stopped.
        """
        desk = Drafting(self._pen)
        return Answer(
            desk, desk.place, model=model, heartbeat=self._rooms.heartbeat, resumed=resume
        )

    async def partials(self) -> list[Partial]:
        """Answers that are arriving, or were when their process died."""
        head = await self.head()
        drafts = self._rooms.store.collection(Draft)
        found = await drafts.get_many([turn_key(self.name, turn) for turn in head.answering])
        return [
            Partial(turn, unpacked(draft.content), draft.started, draft.updated)
            for turn, draft in zip(head.answering, found, strict=True)
            if draft is not None
        ]

    async def close_partial(self, partial: Partial) -> Turn:
        """Make what arrived of an answer part of its turn, marked as partial.

        Raises `InvalidInput` if it is no longer there, `Conflict` if others take it right now.
        """
        return await Drafting(self._pen).close(partial)

    async def drop_partial(self, partial: Partial) -> None:
        """Throw away what arrived of an answer."""
        await Drafting(self._pen).drop(partial)

    # Reading ----------------------------------------------------------------------------------

    async def turns(
        self,
        limit: int = 20,
        *,
        before: str | int | Position | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        tags: Mapping[str, str] | None = None,
        undone: bool = False,
        resolve: bool = False,
        prune: bool = False,
    ) -> list[Turn]:
        """The newest turns, oldest of them first; for the page in front give `before`.

        `since` and `until` (aware datetimes) and `tags` choose turns by their beginning. Turns that
        were undone are left out unless asked for. `resolve` fetches content from the artifact
        store; `prune` does too, and shortens tool results by the rules of `history.pruning`.
        """
        if limit < 1:
            raise InvalidInput(f"{limit} turns cannot be read.", hint="Ask for 1 or more.")
        head, reader, record = await self.head(), self._rooms.reader, await self._current()
        numbers = await reader.numbers(
            record,
            head,
            limit=limit,
            before=None if before is None else _turn_number(before),
            since=_moment(since),
            until=_moment(until),
            tags=_tags(tags),
            undone=undone,
        )
        found = list[Turn]()
        for first, last in _runs(numbers):
            found += await reader.turns(record, head, first, last)
        return [await self._shown(turn, resolve=resolve, prune=prune) for turn in found]

    @overload
    async def turn(
        self,
        id: str | int | Position,
        *,
        level: None = None,
        resolve: bool = False,
        prune: bool = False,
    ) -> Turn: ...
    @overload
    async def turn(self, id: str | int | Position, *, level: Level | str) -> Rendering: ...
    async def turn(
        self,
        id: str | int | Position,
        *,
        level: Level | str | None = None,
        resolve: bool = False,
        prune: bool = False,
    ) -> Turn | Rendering:
        """One turn, whatever became of it; of ``T-12.3``, that round alone.

        With a `level`, its words at R, S, C or T; made now, if they are not there yet.

        Raises `InvalidInput` if there is no such turn, round or level.
        """
        place = position(id, self.record)
        if level is not None:
            return await self._desk.rendering(place, parse_level(level))
        head = await self.head()
        turn = await self._rooms.reader.turn(await self._current(), head, place.turn)
        if place.round is not None:
            rounds = tuple(round for round in turn.rounds if round.number == place.round)
            if not rounds:
                raise InvalidInput(
                    f"{turn.id} of {self.name} has no round {place.round}.",
                    hint=f"It has {len(turn.rounds)}.",
                )
            turn = msgspec.structs.replace(turn, rounds=rounds)
        return await self._shown(turn, resolve=resolve, prune=prune)

    async def read(
        self, first: int = 1, last: int | None = None, *, undone: bool = False
    ) -> AsyncIterator[Turn]:
        """All turns in their order, a few at a time in memory."""
        head = await self.head()
        async for turn in self._rooms.reader.walk(await self._current(), head, first, last):
            if undone or not head.is_undone(turn.number):
                yield turn

    async def tail(self, *, after: str | int | Position | None = None) -> AsyncIterator[Said]:
        """Messages as they are appended, by whatever process; ends when its consumer stops.

        Begins with what comes next, or with what stands behind the turn `after` (0: with all).
        """
        log, reader, name = self._rooms.log, self._rooms.reader, self.name
        event = log.watch(name)
        try:
            head = await self.head()
            seen = head.pieces
            if after is not None:
                first = _turn_number(after) + 1
                record = await self._current()
                async for turn in reader.walk(record, head, first, arriving=False):
                    if not head.is_undone(turn.number):
                        for said in _said(turn):
                            yield said
            while True:
                event.clear()
                head = await self.head()
                if head.pieces > seen:
                    for piece in await reader.chained(self.record, seen, head):
                        for round, messages in piece.by_round():
                            for message in messages:
                                yield Said(piece.turn, round, message)
                    seen = head.pieces
                try:
                    async with asyncio.timeout(_POLL):
                        await event.wait()
                except TimeoutError:
                    pass
        finally:
            log.leave(name, event)

    async def resolve(self, messages: Iterable[Message]) -> tuple[Message, ...]:
        """The messages with what lies in the artifact store put back in."""
        return await resolved(messages, self._rooms.artifacts)

    # Contexts ---------------------------------------------------------------------------------

    async def context(
        self,
        prompt: Any = None,
        *,
        system: str = "",
        tools: Iterable[Tool | Mapping[str, Any]] = (),
        model: str = "",
        budget: int | None = None,
        keep: bool = True,
    ) -> Context:
        """What to send to a model: the history within the budget, and the prompt.

        Without a prompt, the open turn goes on: after results of its tools were appended. `tools`
        are yours; add `perdure.HISTORY_TOOLS` to let the model reach its past (see `run_tool`).
        `model` tells which reasoning is still valid. `budget` counts tokens of messages, not those
        of system text and tools. Send what `Context.to_chat`, `to_responses` or `to_messages`
        gives, and append the answer with ``context=``. With `keep` off nothing is written down: to
        look at what would be sent.

        Raises `BudgetTooSmall` if the prompt does not fit or the budget is below 500, and
        `InvalidInput` if there is neither a prompt nor an open turn.
        """
        said = wire.decode(prompt) if prompt is not None else ()
        if said and not all(map(is_prompt, said)):
            raise InvalidInput(
                "A prompt is what a user says.",
                hint="Append replies and results of tools; then call context() without a prompt.",
            )
        masked, _ = await self._intake.masked(said)
        record, head = await self._standing()
        return await self._composer.compose(
            Prompted(
                record=record,
                head=head,
                own=self._writer.own,
                prompt=masked,
                system=system,
                tools=tools,
                model=model,
                budget=budget,
                keep=keep,
            )
        )

    async def past_context(self, at: str | int | Position) -> Context:
        """What was sent for a turn, or for a round of it, put together again byte for byte.

        Turns that were forgotten since are tombstones. Raises `InvalidInput` if nothing was sent
        through `context` for it.
        """
        place = position(at, self.record)
        record, head = await self._standing()
        return await self._composer.past(record, head, Place(place.turn, place.round or 1))

    async def set_fidelity(
        self, id: str | int | Position, level: Level | str, *, now: bool = False
    ) -> str:
        """Show a turn at this level: from the next epoch on, or from the next request on.

        Says what that costs. Raises `InvalidInput` if it cannot be done.
        """
        place = position(id, self.record)
        return await self._desk.set_fidelity(place.turn, parse_level(level), now=now)

    async def board(self) -> Sequence[Entry]:
        """What stands on the board, oldest first."""
        return await self._desk.board()

    async def run_tool(self, name: str, arguments: str | Mapping[str, Any]) -> str:
        """Do what a model asked for by one of `perdure.HISTORY_TOOLS`; the answer is for it.

        Never raises for what the model wrote: it is told what to do instead.
        """
        return await history_tools.run(self._desk, name, arguments)

    async def epochs(self) -> list[Epoch]:
        """When, why and how the gradient was recalculated, oldest first."""
        return await self._rooms.contexts.desk.epochs.all(self.name)

    async def change_strategy(
        self, strategy: str | None = None, *, budget: int | None = None
    ) -> None:
        """Show the history by another strategy, or in another budget, from now on."""
        if strategy is not None:
            parse_strategy(strategy)
        if budget is not None:
            self._composer.budget_of(self.record, budget)

        def change(found: SessionRecord | None) -> SessionRecord:
            if found is None:
                raise InvalidInput(f"The session {self.name} is gone.", hint="Open it again.")
            return msgspec.structs.replace(
                found,
                strategy=found.strategy if strategy is None else strategy,
                budget=found.budget if budget is None else budget,
            )

        records = self._rooms.store.collection(SessionRecord)
        self._writer.record = await records.change(self.name, change)

    # Forks ------------------------------------------------------------------------------------

    async def fork(self, name: str, at: str | int | Position | None = None) -> Session:
        """Another session that shares this one's turns up to `at` (the newest), and goes on alone.

        Nothing is copied. Raises `Conflict` if the name is taken, `InvalidInput` if there is no
        such turn.
        """
        agent = agent_of(name)
        head, own = await self.head(), await self._current()
        number = lines.newest(head) if at is None else _turn_number(at)
        if number < 1 or number > head.turn:
            raise InvalidInput(
                f"{self.name} has no turn T-{number} to fork at.",
                hint=f"Its newest is T-{head.turn}." if head.turn else "Append something first.",
            )
        piece, link = await self._rooms.reader.end_of(own, head, number)
        now = self._rooms.store.now()
        record = SessionRecord(
            id=name,
            type=own.type,
            state=own.state,
            active=clock.to_datetime(now),
            tags=own.tags,
            agent=agent,
            strategy=own.strategy,
            budget=own.budget,
            parent=self.name,
            line=lines.line_at(own, number, piece),
            root=link,
        )
        fresh = Head(
            name,
            Mark(number, fresh=True),
            pieces=piece,
            link=link,
            time=now,
            undone=lines.undone_at(head, number),
        )
        records = self._rooms.store.collection(SessionRecord)
        if await records.get(name) is not None:
            raise Conflict(
                "perdure_sessions",
                name,
                message=f"There is a session {name} already.",
                hint="Choose another name for the fork, or open that one with bank.session(…).",
            )
        async with self._rooms.store.transaction() as transaction:
            await transaction.collection(SessionRecord).put(record, Options(expected=0))
            await transaction.collection(Head).put(fresh, Options(expected=0))
            # A parent that is being forgotten has no head any more.
            if await transaction.collection(Head).get(self.name) is None:
                raise InvalidInput(f"{self.name} was forgotten.", hint="There is nothing to fork.")
        return Session(self._rooms, record, self._intake.of(name))

    # ------------------------------------------------------------------------------------------

    async def _standing(self) -> tuple[SessionRecord, Head]:
        return await self._current(), await self.head()

    async def _answered(
        self, decoded: tuple[Message, ...], context: Context
    ) -> tuple[Message, ...]:
        """What is new of an answer to a context, behind its prompt if that is not written yet."""
        fresh = strip_echo(decoded, context)
        if not context.prompt or (await self.head()).turn >= context.turn:
            return fresh
        return (*context.prompt, *fresh)

    async def _write(
        self, order: Order, taken: Taken, within: Hook | None = None, *, count: bool = False
    ) -> Written:
        hooks = [] if within is None else [within]
        async with self._writing:
            if count:
                hooks.append(self._rooms.meter.now(taken.moved))
                written = await self._rooms.log.write(self._writer, order, hooks)
            else:
                written = await self._commit(self._writer, order, hooks)
        if taken.moved:
            await self._intake.confirm(taken)
        return written

    async def _commit(self, writer: Writer, order: Order, hooks: Iterable[Hook] = ()) -> Written:
        """Write, and have it counted."""
        log, meter = self._rooms.log, self._rooms.meter
        with meter.append():
            written = await log.write(writer, order, (*hooks, meter.mark))
            meter.note(written)
        return written

    async def _recent(self) -> list[Message]:
        """What was said last."""
        pieces = await self._rooms.reader.latest(self.record, _RECENT)
        return [message for piece in pieces for message in piece.messages()]

    async def _current(self) -> SessionRecord:
        """The record. A fork's is read again: its line changes when its parent is forgotten."""
        if self.record.line:
            found = await self._rooms.store.collection(SessionRecord).get(self.name)
            self._writer.record = found or self.record
        return self.record

    async def _change_head(self, change: Any, within: Any = None) -> Head:
        async with self._writing:
            return await self._rooms.log.change_head(self._writer, change, within)

    @property
    def _pen(self) -> Pen:
        rooms = self._rooms
        return Pen(
            rooms.store,
            rooms.log,
            rooms.reader,
            self._intake,
            self._writer,
            self._writing,
            self._commit,
            _turns_of,
        )

    async def _shown(self, turn: Turn, *, resolve: bool, prune: bool) -> Turn:
        if not resolve and not prune:
            return turn
        rounds = list[Round]()
        for round in turn.rounds:
            messages = round.messages
            if resolve or prune:  # what was moved out is what is most worth pruning
                messages = await self.resolve(messages)
            if prune:
                messages = self._pruned(turn.number, round.number, messages)
            rounds.append(msgspec.structs.replace(round, messages=messages))
        return msgspec.structs.replace(turn, rounds=tuple(rounds))

    def _pruned(self, turn: int, round: int, messages: Iterable[Message]) -> tuple[Message, ...]:
        def pointer(_: ToolResult) -> str:
            return str(Position(turn, round))

        return tuple(prune_tool_results(messages, self._rooms.rules, pointer=pointer))


def _moment(given: Any) -> int | None:
    if given is not None and not isinstance(given, datetime):
        raise InvalidInput(
            f"{given!r} is not a time.", hint="Use an aware datetime, such as datetime.now(UTC)."
        )
    return None if given is None else clock.from_datetime(given)


def _tags(given: Any) -> dict[str, str]:
    """Tags, checked. They come from callers who may not run a type checker."""
    if given is None:
        return {}
    if isinstance(given, Mapping) and all(isinstance(value, str) for value in given.values()):
        return dict(given)
    raise InvalidInput(
        f"{given!r} cannot be tags.", hint='Give names and texts: {"topic": "auth"}.'
    )


def _turn_number(text: str | int | Position) -> int:
    """The turn that is meant; 0 stands for the place in front of the first."""
    if text == 0 and not isinstance(text, bool):
        return 0
    return Position.parse(text).turn


def _turns_of(written: Written) -> list[Turn]:
    """The turns as far as they were written now."""
    session, turns = written.session.id, list[Turn]()
    pieces_of = {
        number: list(pieces) for number, pieces in groupby(written.pieces, lambda p: p.turn)
    }
    for number, rounds in groupby(written.rounds, lambda round: round.turn):
        pieces = pieces_of[number]
        newest = number == written.head.turn
        is_open = newest and not written.head.mark.closed
        turns.append(
            Turn(
                session=session,
                number=number,
                rounds=tuple(Round(round.round, round.messages) for round in rounds),
                status="open" if is_open else "closed",
                started=pieces[0].time,
                ended=pieces[-1].ended,
                tags=pieces[0].tags,
                masked=pieces[0].masked,
            )
        )
    return turns


def _said(turn: Turn) -> Iterable[Said]:
    for round in turn.rounds:
        for message in round.messages:
            yield Said(turn.number, round.number, message)


def _runs(numbers: Iterable[int]) -> list[tuple[int, int]]:
    """Neighbouring numbers together, so that each run is one read."""
    runs = list[tuple[int, int]]()
    for number in numbers:
        if runs and runs[-1][1] == number - 1:
            runs[-1] = (runs[-1][0], number)
        else:
            runs.append((number, number))
    return runs

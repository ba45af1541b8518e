"""Writing to a session: what happened, and what is taken back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any

import msgspec

from perdure import wire
from perdure.context.context import Context
from perdure.context.echoes import strip_echo
from perdure.context.injections import prompt_digest
from perdure.core import clock
from perdure.core.errors import InvalidInput
from perdure.core.messages import Message, assistant
from perdure.core.turns import Mark, Position, Turn
from perdure.history.intake import Taken, resolved
from perdure.history.log import Hook, Order, Written
from perdure.history.records import Draft, Head, SessionRecord, Span, turn_key
from perdure.history.strategies.rounds import prompt_of
from perdure.recall.scoping.lines import note_undone
from perdure.session.conversation import Conversation, turns_of
from perdure.session.given import count_in, runs, tags_of, turn_number
from perdure.storage.options import DEFAULT, Options
from perdure.storage.transaction import Transaction

#: Prompts of contexts whose turns are remembered.
_BEGUN = 64


class _Answer(msgspec.Struct, frozen=True):
    """Messages that answer a context, and where the turn stands that they go on with."""

    messages: tuple[Message, ...]
    #: None: they open one.
    own: Mark | None
    opens: bool = False


class Writing(Conversation):
    """The role of a session that writes."""

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
        answer = None
        if context is not None:
            answer = await self._answered(messages, context)
            decoded = answer.messages
        else:
            decoded = wire.decode(messages)
        if not decoded:
            raise InvalidInput("There are no messages to append.", hint="Give at least one.")
        newest = None if expected is None else turn_number(expected)
        taken = await self._intake.take(decoded)
        order = Order(
            messages=taken.messages,
            tags=self._intake.plain(tags_of(tags)) if tags else {},
            masked=taken.masked if masked is None else dict(masked),
            key=key,
            expected=newest,
            artifacts=taken.moved,
            there=taken.there,
            options=options,
            bulk=count,
            fresh=fresh,
            times=times,
        )
        written = await self._write(order, taken, within, count=count, answer=answer)
        if context is None:
            await self._composer.written(written)
        elif answer is not None and answer.opens and written.rounds:
            self._begun[context.turn, prompt_digest(context.prompt)] = written.first
            while len(self._begun) > _BEGUN:
                self._begun.pop(next(iter(self._begun)))
            await self._composer.moved(context, written.first)
        if written.repeated is not None:
            head = await self.head()
            turns = await self._rooms.reader.turns(self.record, head, *written.repeated)
            await self.resume(written.repeated[1])  # what follows goes where it would have gone
        else:
            turns = turns_of(written)
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
        turns = count_in(turns, "undone") if numbers is None else turns
        undone = list[int]()

        def change(head: Head) -> Head:
            if numbers is None:
                live = (n for n in range(head.turn, 0, -1) if not head.is_undone(n))
                undone[:] = islice(live, turns)
            else:
                given = sorted({n for n in numbers if 0 < n <= head.turn}, reverse=True)
                undone[:] = [n for n in given if not head.is_undone(n)]
            spans = [Span(first, last) for first, last in runs(reversed(undone))]
            return msgspec.structs.replace(
                head,
                undone=(*head.undone, *spans),
                mark=Mark(head.turn, fresh=True) if head.turn in undone else head.mark,
                answering=tuple(turn for turn in head.answering if turn not in undone),
            )

        async def inside(transaction: Transaction, head: Head) -> None:
            for turn in undone:
                await transaction.collection(Draft).delete(turn_key(self.name, turn))
            await note_undone(transaction, head)
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
        number = turn_number(turn)
        async with self._writing:
            self._writer.own = await self._rooms.reader.mark(self.record, number)

    async def describe(self, facts: Mapping[str, Any]) -> None:
        """Merge facts into the session's state. Secrets in them are masked."""
        plain = self._intake.plain(facts)

        def change(found: SessionRecord) -> SessionRecord:
            return msgspec.structs.replace(found, state={**found.state, **plain})

        await self._change_record(change)

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

    # ------------------------------------------------------------------------------------------

    async def _answered(self, messages: Any, context: Context) -> _Answer:
        """What is new of an answer to a context, and the turn that it belongs to.

        That is the turn of its prompt, whatever was written meanwhile and by whom.
        """
        if not isinstance(context, Context):
            raise InvalidInput(
                f"{context!r} is no context.", hint="Give what session.context(…) returned."
            )
        if context.session != self.name:
            raise InvalidInput(
                f"This context is one of {context.session}.", hint="Append the answer there."
            )
        said = wire.decode(assistant(messages) if isinstance(messages, str) else messages)
        said = tuple(_by_model(each, context.model) for each in strip_echo(said, context))
        turn, own = context.turn, self._writer.own
        if context.prompt:
            found = await self._turn_begun_by(context)
            if found is None:
                joined = own if own is not None and own.turn == turn else None
                return _Answer((*context.prompt, *said), joined, opens=True)
            turn = found
        if own is None or own.turn != turn:
            own = await self._rooms.reader.mark(self.record, turn)
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
        mark = await self._rooms.reader.mark(self.record, context.turn)
        if mark.closed:
            return None
        turn = await self._rooms.reader.turn(self.record, head, context.turn)
        prompt = prompt_of(turn.rounds[0].messages if turn.rounds else ())
        whole = await resolved(prompt, self._rooms.artifacts)
        return context.turn if prompt_digest(whole) == digest else None

    async def _write(
        self,
        order: Order,
        taken: Taken,
        within: Hook | None = None,
        *,
        count: bool = False,
        answer: _Answer | None = None,
    ) -> Written:
        hooks = [] if within is None else [within]
        async with self._writing:
            own = self._writer.own
            if answer is not None and (
                own is None or answer.own is None or own.turn != answer.own.turn
            ):
                self._writer.own = answer.own
            if count:
                hooks.append(self._rooms.meter.now(taken.moved))
            written = await self._rooms.log.write(self._writer, order, hooks)
        if taken.moved:
            await self._intake.confirm(taken)
        return written


def _by_model(message: Message, model: str) -> Message:
    """A reply that does not say who gave it was given by the model that was asked."""
    if not model or message.model or message.role != "assistant":
        return message
    return msgspec.structs.replace(message, model=model)

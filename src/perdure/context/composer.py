"""Composes the contexts of one session: history, injection and prompt, within a budget.

One walk: how the session's strategy shows its history (`history.strategies`), what is injected with
this prompt (`board`, `injections`), all laid out (`assembly`) as a `Context`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from perdure.config import HistoryConfig
from perdure.context.beside import Draft, Injections
from perdure.context.context import Context, checked_tools, compose
from perdure.context.encoding import Encoder
from perdure.context.injections import Frame, Injection, prompt_digest
from perdure.context.system import REMINDER_TOKENS, reminder, with_explanation
from perdure.core.errors import BudgetTooSmall, InvalidInput
from perdure.core.messages import Message
from perdure.core.turns import ConversationState
from perdure.gateway.calls import Tool
from perdure.history.intake import resolved
from perdure.history.lines import owners
from perdure.history.log import Written
from perdure.history.manifest import Place
from perdure.history.packing import cut
from perdure.history.records import Head, SessionRecord
from perdure.history.shown import Injected, Shown
from perdure.history.strategies import Ask, Desk, Look, Name, Strategy, parse_strategy
from perdure.history.strategies.gradient import Gradient
from perdure.history.strategies.regular import Regular
from perdure.history.strategies.rounds import prompt_of, room_for
from perdure.recall.tool_names import NAMES
from perdure.storage.store import Store

if TYPE_CHECKING:
    from perdure.recall.recall import Recall

LEAST_BUDGET = 500
#: Turns in which a model may follow a reminder.
REMINDED_FOR = 5


class Rooms(msgspec.Struct, frozen=True):
    """What composers of one bank share."""

    store: Store
    desk: Desk
    config: HistoryConfig
    #: Gives recall, which is made when it is first needed. None: nothing is recalled.
    recalling: Callable[[], Recall] | None = None
    #: Plain data without secrets; None: as it is.
    plain: Callable[[Mapping[str, Any]], dict[str, Any]] | None = None

    @property
    def recall(self) -> Recall | None:
        return None if self.recalling is None else self.recalling()


class Prompted(msgspec.Struct, frozen=True, kw_only=True):
    """What a context is asked for."""

    record: SessionRecord
    head: Head
    #: Where the turn stands that this writer wrote to last.
    own: ConversationState | None = None
    #: Without secrets; empty to go on with the open turn.
    prompt: tuple[Message, ...] = ()
    system: str = ""
    tools: Iterable[Tool | Mapping[str, Any]] = ()
    model: str = ""
    budget: int | None = None
    #: Put beside the prompt what it brings to mind.
    recall: bool = True
    #: Write down what is decided. Otherwise it is as if nobody had asked.
    keep: bool = True


class Composer:
    """Makes the contexts of one session, and remembers what it sent."""

    def __init__(self, rooms: Rooms) -> None:
        self._rooms = rooms
        self._strategies = dict[Name, Strategy]()
        self._encoder = Encoder()
        self._injections = Injections(rooms)
        self._frames = rooms.store.collection(Frame)
        self._composing = asyncio.Lock()
        self._requests = 0

    def strategy(self, record: SessionRecord) -> Strategy:
        """The strategy that a session's history is shown by."""
        name = parse_strategy(record.strategy or self._rooms.config.strategy)
        if name not in self._strategies:
            desk = self._rooms.desk
            self._strategies[name] = Gradient(desk) if name == "gradient" else Regular(desk)
        return self._strategies[name]

    def budget_of(self, record: SessionRecord, asked: int | None = None) -> int:
        """The budget that holds. Raises `BudgetTooSmall`."""
        budget = asked if asked is not None else record.budget or self._rooms.config.budget
        if budget < LEAST_BUDGET:
            raise BudgetTooSmall(budget, LEAST_BUDGET)
        return budget

    async def compose(self, asked: Prompted) -> Context:
        """The context of a prompt, or of the open turn; one after the other.

        Raises `BudgetTooSmall` if the prompt does not fit, `InvalidInput` if there is neither a
        prompt nor an open turn.
        """
        async with self._composing:
            before = self._injections.snapshot()
            try:
                return await self._composed(asked)
            finally:
                if not asked.keep:  # looking leaves no trace
                    self._injections.restore(before)

    async def _composed(self, asked: Prompted) -> Context:
        record, head = asked.record, asked.head
        self._requests += 1
        self._injections.refresh(head.forgets)
        strategy, budget = self.strategy(record), self.budget_of(record, asked.budget)
        turn = _turn_of(asked)
        tools = checked_tools(asked.tools)
        reaches = any(tool.name in NAMES for tool in tools)
        tagged = strategy.name == "gradient"
        system = with_explanation(asked.system, tools=reaches) if tagged else asked.system
        frame = Frame.of(record.id, system, tools)
        room = room_for(self._rooms.desk.counter, asked.prompt, budget)

        async def injected(first: int, last: int) -> Sequence[Injected]:
            found = await self._injections.sent(record, first, last)
            return [each.shown for each in found if each.text]

        ask = Ask(
            record=record,
            head=head,
            budget=budget,
            fixed=room,
            turn=turn,
            prompted=bool(asked.prompt),
            model=asked.model,
            now=self._rooms.store.now(),
            injected=injected,
            request=self._requests,
            keep=asked.keep,
        )

        draft = Draft(
            asked=asked,
            turn=turn,
            budget=budget,
            prompt=room,
            note=reminder(tools=reaches) if tagged else "",
            frame=frame.digest,
            strategy=strategy.name,
        )
        injection, shown = await self._shown(strategy, ask, draft)
        if asked.keep:
            await self._injections.keep(record, injection, frame)
        return compose(
            shown,
            turn=turn,
            budget=budget,
            prompt=asked.prompt,
            injection=injection.shown if asked.prompt and injection.text else None,
            system=system,
            tools=tools,
            model=asked.model,
            session=record.id,
            encoder=self._encoder,
        )

    async def past(self, record: SessionRecord, head: Head, place: Place) -> Context:
        """What was sent for a round, put together again.

        Raises `InvalidInput` if nothing was composed for its turn, or if it was forgotten.
        """
        store, desk = self._rooms.store, self._rooms.desk
        turn = await desk.reader.turn(record, head, place.turn)
        (owned,) = owners(record, place.turn, place.turn)
        if owned.session != record.id:  # a fork was not asked: its parent was
            records, heads = store.collection(SessionRecord), store.collection(Head)
            owner, stood = await records.get(owned.session), await heads.get(owned.session)
            if owner is not None and stood is not None:
                return await Composer(self._rooms).past(owner, stood, place)
        known = await self._injections.sent(record, place.turn, place.turn)
        if not known or turn.status == "forgotten":
            raise InvalidInput(
                f"Nothing is known of what was sent for T-{place.turn}.",
                hint="It was not composed by session.context(…), or was forgotten.",
            )
        if place.round > len(turn.rounds) + (turn.status == "open"):
            raise InvalidInput(
                f"T-{place.turn} has no round {place.round}.", hint=f"It has {len(turn.rounds)}."
            )
        sent = known[0]
        frame = await self._frames.get(f"{record.id}/{sent.frame}") or Frame(id=f"{record.id}/")
        prompted = place.round == 1
        opening = prompt_of(turn.rounds[0].messages if turn.rounds else ())
        prompt = await resolved(opening, desk.artifacts) if prompted else ()
        room = room_for(desk.counter, prompt, sent.budget)

        async def injected(first: int, last: int) -> Sequence[Injected]:
            found = await self._injections.sent(record, first, last)
            return [each.shown for each in found if each.text]

        ask = Ask(
            record=record,
            head=head,
            budget=sent.budget,
            fixed=room + (sent.tokens if prompted else 0),
            turn=place.turn,
            prompted=prompted,
            model=sent.model,
            now=0,
            injected=injected,
            keep=False,
        )
        then = msgspec.structs.replace(record, strategy=sent.strategy or record.strategy)
        return compose(
            await self.strategy(then).past(ask, place),
            turn=place.turn,
            budget=sent.budget,
            prompt=prompt,
            injection=sent.shown if prompted and sent.text else None,
            system=frame.system,
            tools=frame.tools_of(),
            model=sent.model,
            session=record.id,
        )

    async def moved(self, context: Context, turn: int) -> None:
        """Note that the prompt of a context became another turn than was thought."""
        if turn != context.turn:
            digest = prompt_digest(context.prompt)
            await self._injections.withdraw(context.turn, digest, same=True)

    async def written(self, written: Written) -> None:
        """Forget what was composed for a prompt, if another one was written in its place."""
        await self._injections.written(written)

    async def reminders(self, record: SessionRecord, turn: int) -> frozenset[str]:
        """What the prompts of this turn and of those shortly before it were sent reminders of."""
        found = await self._injections.sent(record, turn - REMINDED_FOR + 1, turn)
        return frozenset(key for each in found for key in each.ticklers)

    # ------------------------------------------------------------------------------------------

    async def _shown(self, strategy: Strategy, ask: Ask, draft: Draft) -> tuple[Injection, Shown]:
        """What is injected with this prompt, and what is shown beside it."""
        if not ask.prompted:
            look = Look(await strategy.standing_since(ask))
            injection = await self._injections.of(draft, look)
            return injection, await _beside(strategy, ask, injection)
        injection, shown, is_last = await self._tried(strategy, ask, draft)
        if not is_last:
            # An epoch removed what stood in full: on the board, recalled before, as it was said.
            self._injections.drop(injection)
            injection, shown, _ = await self._tried(strategy, ask, draft)
        while repeated := self._injections.repeated(ask.record, injection, shown):
            injection = self._injections.without(draft, injection, repeated)
            shown = await _beside(strategy, ask, injection)
        return injection, shown

    async def _tried(
        self, strategy: Strategy, ask: Ask, draft: Draft
    ) -> tuple[Injection, Shown, bool]:
        """The same, and whether what stands beside it is what it was built for."""
        fixed = ask.fixed + REMINDER_TOKENS.get(draft.note, 0)
        look = await strategy.look(msgspec.structs.replace(ask, fixed=fixed), draft.reserve)
        injection = await self._injections.of(draft, look)
        try:
            shown = await _beside(strategy, ask, injection)
        except BudgetTooSmall:
            if not injection.recalls or not self._injections.is_new(injection):
                raise
            # What is recalled makes way for what has to be said.
            injection = self._injections.without(draft, injection)
            shown = await _beside(strategy, ask, injection)
        return injection, shown, shown.epoch == look.epoch


async def _beside(strategy: Strategy, ask: Ask, injection: Injection) -> Shown:
    """What is shown beside an injection. Raises `BudgetTooSmall`."""
    fixed = ask.fixed + (injection.tokens if ask.prompted else 0)
    if fixed > ask.budget:
        raise BudgetTooSmall(ask.budget, fixed)
    return await strategy.show(msgspec.structs.replace(ask, fixed=fixed))


def _turn_of(asked: Prompted) -> int:
    """The turn that is asked for."""
    head = asked.head
    if asked.prompt:
        rounds, _, _ = cut(head, asked.own, asked.prompt)
        return rounds[0].turn
    own = asked.own
    if own is not None and 0 < own.turn < head.turn and not own.fresh and not own.closed:
        return own.turn  # others have begun turns meanwhile
    if not head.turn or head.closed or head.mark.fresh or head.mark.closed:
        raise InvalidInput(
            f"{asked.record.id} has no open turn to go on with.",
            hint="Give a prompt, or append one first.",
        )
    return head.turn

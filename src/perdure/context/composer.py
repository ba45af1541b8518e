"""Composes the contexts of one session: history, injection and prompt, within a budget.

One walk: how the session's strategy shows its history (`history.strategies`), what is injected with
this prompt (`board`, `injections`), all laid out (`assembly`) as a `Context`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from perdure.config import HistoryConfig
from perdure.context import board as boards
from perdure.context import tools as history_tools
from perdure.context.board import Board
from perdure.context.context import Context, checked_tools, compose
from perdure.context.encoding import Encoder
from perdure.context.injections import (
    Frame,
    Injection,
    build,
    injection_of,
    prompt_digest,
    standing,
)
from perdure.context.system import REMINDER_TOKENS, reminder, with_explanation
from perdure.core.errors import BudgetTooSmall, InvalidInput
from perdure.core.messages import Message
from perdure.core.turns import Mark
from perdure.gateway.calls import Tool
from perdure.history.intake import resolved
from perdure.history.lines import owners
from perdure.history.log import Written
from perdure.history.manifest import Place
from perdure.history.packing import cut
from perdure.history.records import Head, SessionRecord, turn_key
from perdure.history.shown import Injected, Shown
from perdure.history.strategies import Ask, Desk, Name, Strategy, parse_strategy
from perdure.history.strategies.gradient import Gradient
from perdure.history.strategies.regular import Regular
from perdure.history.strategies.rounds import prompt_of, room_for
from perdure.storage.store import Store

LEAST_BUDGET = 500
#: Injections that are remembered at most; then they are read again.
_KNOWN = 1_000


#: Says what a prompt of a session brings to mind: the memory layer that stands beside it.
Recall = Callable[[SessionRecord, Sequence[Message]], Awaitable[str]]


class Rooms(msgspec.Struct, frozen=True):
    """What composers of one bank share."""

    store: Store
    desk: Desk
    config: HistoryConfig
    #: None: nothing is recalled.
    recall: Recall | None = None
    #: Plain data without secrets; None: as it is.
    plain: Callable[[Mapping[str, Any]], dict[str, Any]] | None = None


class Prompted(msgspec.Struct, frozen=True, kw_only=True):
    """What a context is asked for."""

    record: SessionRecord
    head: Head
    #: Where the turn stands that this writer wrote to last.
    own: Mark | None = None
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


class _Draft(msgspec.Struct, frozen=True):
    """What an injection is built for."""

    asked: Prompted
    turn: int
    budget: int
    note: str
    frame: str


class Composer:
    """Makes the contexts of one session, and remembers what it sent."""

    def __init__(self, rooms: Rooms) -> None:
        self._rooms = rooms
        self._strategies = dict[Name, Strategy]()
        self._encoder = Encoder()
        self._injections = rooms.store.collection(Injection)
        self._frames = rooms.store.collection(Frame)
        #: By turn; None where there is none.
        self._known = dict[int, Injection | None]()
        self._composing = asyncio.Lock()
        self._requests = self._forgets = 0
        #: What was written down last.
        self._written: Injection | None = None
        self._framed = ""

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
            before = dict(self._known)
            try:
                return await self._composed(asked)
            finally:
                if not asked.keep:  # looking leaves no trace
                    self._known = before

    async def _composed(self, asked: Prompted) -> Context:
        record, head = asked.record, asked.head
        self._requests += 1
        if head.forgets != self._forgets or len(self._known) > _KNOWN:
            self._known, self._forgets = {}, head.forgets
        strategy, budget = self.strategy(record), self.budget_of(record, asked.budget)
        turn = _turn_of(asked)
        tools = checked_tools(asked.tools)
        reaches = any(tool.name in history_tools.NAMES for tool in tools)
        tagged = strategy.name == "gradient"
        system = with_explanation(asked.system, tools=reaches) if tagged else asked.system
        frame = Frame.of(record.id, system, tools)
        room = room_for(self._rooms.desk.counter, asked.prompt, budget)

        async def injected(first: int, last: int) -> Sequence[Injected]:
            found = await self._injected(record, first, last)
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
        draft = _Draft(asked, turn, budget, reminder(tools=reaches) if tagged else "", frame.digest)
        since = await strategy.standing_since(ask)
        injection, shown = await self._shown(strategy, ask, draft, since)
        if asked.prompt and (later := await strategy.standing_since(ask)) != since:
            # An epoch removed what stood in full on the board: it is sent again.
            injection, shown = await self._shown(strategy, ask, draft, later)
        if asked.keep:
            await self._keep(injection, frame)
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
        known = await self._injected(record, place.turn, place.turn)
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
            found = await self._injected(record, first, last)
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
        known = self._known.get(context.turn)
        if turn == context.turn or known is None:
            return
        if known.prompt == prompt_digest(context.prompt):
            self._known.pop(context.turn)
            await self._injections.delete(known.id)

    async def written(self, written: Written) -> None:
        """Forget what was composed for a prompt, if another one was written in its place."""
        for round in written.rounds:
            known = self._known.get(round.turn)
            if known is None or round.round > 1 or round.before:
                continue
            prompt = prompt_of(round.messages)
            if prompt and known.prompt and known.prompt != prompt_digest(prompt):
                self._known[round.turn] = None
                await self._injections.delete(known.id)

    # ------------------------------------------------------------------------------------------

    async def _shown(
        self, strategy: Strategy, ask: Ask, draft: _Draft, since: int
    ) -> tuple[Injection, Shown]:
        """What is injected with this prompt, and what is shown beside it."""
        known = await self._injected(ask.record, since, ask.turn)
        injection = self._known[ask.turn] = await self._injection(draft, known)
        fixed = ask.fixed + (injection.tokens if ask.prompted else 0)
        if fixed > ask.budget:
            raise BudgetTooSmall(ask.budget, fixed)
        return injection, await strategy.show(msgspec.structs.replace(ask, fixed=fixed))

    async def _injection(self, draft: _Draft, known: Sequence[Injection]) -> Injection:
        """What is injected with the prompt of this turn: built once, unless the prompt changes.

        `known` is what stands in the window.
        """
        asked, turn = draft.asked, draft.turn
        for before in known:
            same = not asked.prompt or before.prompt == prompt_digest(asked.prompt)
            if before.turn == turn and same:
                return before
        session, counter = asked.record.id, self._rooms.desk.counter
        board = await self._rooms.store.collection(Board).get(session) or Board(session)
        on_board = boards.render(
            board.entries,
            turn,
            standing(each for each in known if each.turn != turn),
            cap=boards.cap_for(draft.budget),
            counter=counter,
        )
        recall, memory = self._rooms.recall, ""
        if recall is not None and asked.recall and asked.prompt:
            memory = await recall(asked.record, asked.prompt)
        text = build(board=on_board.text, memory=memory, note=draft.note)
        alone = bool(draft.note) and not on_board.text and not memory
        tokens = REMINDER_TOKENS[draft.note] if alone else counter.count(text) + 1 if text else 0
        return injection_of(
            session,
            turn,
            text,
            tokens,
            prompt=asked.prompt,
            board=on_board.full,
            frame=draft.frame,
            budget=draft.budget,
            model=asked.model,
            strategy=self.strategy(asked.record).name,
        )

    async def _keep(self, injection: Injection, frame: Frame) -> None:
        """Write down what is sent, if it is not written yet."""
        if injection is self._written and frame.digest == self._framed:
            return
        async with self._rooms.store.transaction() as transaction:
            if frame.digest != self._framed:
                await transaction.collection(Frame).put(self._without_secrets(frame))
            await transaction.collection(Injection).put(injection)
        self._written, self._framed = injection, frame.digest

    def _without_secrets(self, frame: Frame) -> Frame:
        """As it is stored. What is rebuilt of it later lacks secrets that were sent."""
        plain = self._rooms.plain
        if plain is None:
            return frame
        data = plain({"system": frame.system, "tools": msgspec.json.decode(frame.tools)})
        return msgspec.structs.replace(
            frame, system=data["system"], tools=msgspec.json.encode(data["tools"])
        )

    async def _injected(self, record: SessionRecord, first: int, last: int) -> list[Injection]:
        """What was injected into these turns, by whoever."""
        missing = [n for n in range(max(first, 1), last + 1) if n not in self._known]
        for owned in owners(record, missing[0], missing[-1]) if missing else ():
            here = [n for n in missing if owned.first <= n <= owned.last]
            rows = await self._injections.get_many(turn_key(owned.session, n) for n in here)
            self._known |= dict(zip(here, rows, strict=True))
        found = [self._known.get(n) for n in range(max(first, 1), last + 1)]
        return [each for each in found if each is not None]


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

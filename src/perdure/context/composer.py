"""Composes the contexts of one session: history, injection and prompt, within a budget."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from perdure.context.context import Context, checked_tools, compose
from perdure.context.injection_records import Frame, Injection, prompt_digest
from perdure.context.injections import Injections, recall_reserve
from perdure.context.prompt_encoder import PromptEncoder
from perdure.context.system_prompt import reminder, with_explanation
from perdure.core.band_marks import BandMarks, marks_of
from perdure.core.errors import BudgetTooSmall, InvalidInput
from perdure.core.messages import Message
from perdure.core.tokens import TokenScale
from perdure.core.turns import ConversationState
from perdure.gateway.calls import Tool
from perdure.history.intake import resolved
from perdure.history.log_records import Head, SessionRecord, owners
from perdure.history.manifest import Injected, RoundId, ShownHistory
from perdure.history.piece_packing import cut
from perdure.history.strategies.gradient_strategy import GradientStrategy
from perdure.history.strategies.one_shot_strategy import OneShotStrategy
from perdure.history.strategies.raw_rounds import prompt_of, room_for
from perdure.history.strategies.regular_strategy import RegularStrategy
from perdure.history.strategies.segment_strategy import SegmentStrategy
from perdure.history.strategies.strategy import (
    ContextRequest,
    ReadInjected,
    Strategy,
    WindowPreview,
)
from perdure.history.strategies.strategy_registry import parse_strategy, strategy_factory
from perdure.recall.tool_names import NAMES
from perdure.services import Services

LEAST_BUDGET = 500
_TOO_LITTLE = 8  # An epoch is due if not even this part is left of the room for what is recalled.
REMINDED_FOR = 5  # Turns in which a model may follow a reminder.


class Composer:
    """Makes the contexts of one session, and remembers what it sent."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._strategies = dict[str, Strategy]()
        self._encoder = PromptEncoder()
        self.injections = Injections(services)
        self._frames = services.store.collection(Frame)
        self._composing = asyncio.Lock()
        self._requests = 0

    def strategy(self, record: SessionRecord) -> Strategy:
        name = parse_strategy(record.strategy or self._services.config.history.strategy)
        if name not in self._strategies:
            self._strategies[name] = self._make(name)
        return self._strategies[name]

    def _make(self, name: str) -> Strategy:
        parts = self._services
        reading = parts.reader, parts.artifacts, parts.token_counts
        if name == "gradient":
            return GradientStrategy(*reading, parts.renditions, parts.epochs)
        if name == "regular":
            return RegularStrategy(*reading)
        if name == "one-shot":
            return OneShotStrategy(*reading, parts.store)
        return SegmentStrategy(name, strategy_factory(name), *reading, parts.renditions)

    def budget_of(self, record: SessionRecord, asked: int | None = None) -> int:
        """Raises `BudgetTooSmall`."""
        default = record.budget or self._services.config.history.budget
        budget = asked if asked is not None else default
        if budget < LEAST_BUDGET:
            raise BudgetTooSmall(budget, LEAST_BUDGET)
        return budget

    def marks_of(self, record: SessionRecord) -> BandMarks:
        configured = self._services.config.history
        if record.profile:
            return marks_of(record.profile)
        return marks_of(configured.marks or configured.profile)

    async def compose(
        self,
        record: SessionRecord,
        head: Head,
        own: ConversationState | None = None,
        prompt: tuple[Message, ...] = (),
        *,
        system: str = "",
        tools: Iterable[Tool | Mapping[str, Any]] = (),
        model: str = "",
        budget: int | None = None,
        recall: bool = True,
        keep: bool = True,
        reminders: Sequence[str] = (),
    ) -> Context:
        """The context of a prompt, or of the open turn; one call at a time. See `Session.context`.

        The prompt has no secrets in it. `own` is the state of the turn that this writer wrote to
        last. Raises `BudgetTooSmall` if the prompt does not fit, `InvalidInput` if there is neither
        a prompt nor an open turn.
        """
        async with self._composing:
            strategy, offered = self.strategy(record), checked_tools(tools)
            most, turn = self.budget_of(record, budget), _turn_of(record, head, own, prompt)
            scale = await self._scale(strategy, record, model, 0 if prompt else turn)
            room = scale.ours(most)
            before = self.injections.snapshot()
            try:
                names = NAMES.intersection(tool.name for tool in offered)
                notes = list[str](self._services.mask_data({"notes": [*reminders]})["notes"])
                fixed, reserve = room_for(self._services.counter, prompt, room), 0
                if strategy.tagged:
                    system = with_explanation(system, names)
                    notes.insert(0, reminder(names, past=turn > 1))
                elif isinstance(strategy, OneShotStrategy) and prompt:
                    notes.insert(0, await strategy.brief(record, room - fixed))
                frame = Frame.of(record.id, system, offered)
                self._requests += 1
                self.injections.refresh(head.forgets)
                settings = self._services.config.recall
                if recall and prompt and settings.on:
                    recalled = settings.full_tokens + settings.tickler_tokens
                    reserve = recall_reserve(room, fixed, recalled)
                request = ContextRequest(
                    record=record,
                    head=head,
                    turn=turn,
                    prompted=bool(prompt),
                    prompt=prompt,
                    budget=room,
                    scale=scale,
                    fixed=fixed,
                    reserve=reserve,
                    least=reserve // _TOO_LITTLE,
                    model=model,
                    recall=recall,
                    reminder="\n".join(filter(None, notes)),
                    tools=names,
                    frame=frame.digest,
                    strategy=strategy.name,
                    now=self._services.store.now(),
                    injected=self._read_injected(record),
                    marks=self.marks_of(record),
                    number=self._requests,
                    keep=keep,
                )
                injection, shown = await self._shown(strategy, request)
                if keep:
                    await self.injections.keep(record, injection, frame)
            except BudgetTooSmall as exc:
                raise BudgetTooSmall(most, scale.theirs(exc.needed)) from exc
            finally:
                if not keep:  # looking leaves no trace
                    self.injections.restore(before)
        return compose(
            shown,
            turn=request.turn,
            budget=most,
            prompt=prompt,
            injection=injection.shown if prompt and injection.text else None,
            system=system,
            tools=offered,
            model=model,
            session=record.id,
            encoder=self._encoder,
            scale=scale,
        )

    async def show(
        self,
        record: SessionRecord,
        head: Head,
        *,
        budget: int,
        fixed: int = 0,
        recall: bool = False,
        board: bool = False,
        keep: bool = True,
    ) -> ShownHistory:
        """What is shown of the history with the newest turn as it goes on, for those who write the
        messages themselves. `budget` and what is taken of it (`fixed`) are o200k tokens.

        With `recall`, what the turn's prompt brings to mind is injected in front of it, and with
        either, the board; only before its first reply, so that they stay where they were sent.
        Raises `BudgetTooSmall`.
        """
        async with self._composing:
            strategy = self.strategy(record)
            self.injections.refresh(head.forgets)
            request = ContextRequest(
                record=record,
                head=head,
                turn=head.turn,
                prompted=False,
                budget=budget,
                fixed=fixed,
                strategy=strategy.name,
                now=self._services.store.now(),
                injected=self._read_injected(record),
                marks=self.marks_of(record),
                keep=keep,
            )
            asked = (recall or board) and keep
            if asked and head.mark.round == 1 and not head.mark.replied:
                await self._inject(strategy, self._numbered(request), recall=recall)
            return await strategy.show(self._numbered(request))

    def _numbered(self, request: ContextRequest) -> ContextRequest:
        self._requests += 1
        return msgspec.structs.replace(request, number=self._requests)

    async def _inject(self, strategy: Strategy, request: ContextRequest, *, recall: bool) -> None:
        """Build and keep what is injected in front of the open turn's prompt, if it fits."""
        services, record = self._services, request.record
        turn = await services.reader.turn(record, request.head, request.turn)
        said = prompt_of(turn.rounds[0].messages if turn.rounds else ())
        prompt = await resolved(said, services.artifacts)
        if not prompt:
            return
        try:
            preview = await strategy.preview(request)
        except BudgetTooSmall:
            return
        frame, settings = Frame.of(record.id, "", ()), services.config.recall
        reserve = 0
        if recall and settings.on:
            most = settings.full_tokens + settings.tickler_tokens
            reserve = recall_reserve(request.budget, request.fixed, most)
        asked = msgspec.structs.replace(
            request,
            prompted=True,
            prompt=prompt,
            reserve=reserve,
            recall=recall,
            frame=frame.digest,
        )
        injection = await self.injections.of(asked, preview)
        if injection.text:
            await self.injections.keep(record, injection, frame)

    async def _scale(
        self, strategy: Strategy, record: SessionRecord, model: str, going_on: int
    ) -> TokenScale:
        """How the model's provider counts. What others than the gradient show follows from their
        budget alone, so a turn that goes on keeps the scale it began with: `past` shows the same.
        """
        if going_on and not isinstance(strategy, GradientStrategy):
            for sent in await self.injections.sent(record, going_on, going_on):
                return sent.scale
        return await self._services.token_counts.calibrations.scale(model)

    def _read_injected(self, record: SessionRecord) -> ReadInjected:
        async def injected(first: int, last: int) -> Sequence[Injected]:
            found = await self.injections.sent(record, first, last)
            return [each.shown for each in found if each.text]

        return injected

    async def past(self, record: SessionRecord, head: Head, place: RoundId) -> Context:
        """What was sent for a round. Raises `InvalidInput` if nothing was composed for its turn, or
        if it was forgotten.
        """
        services = self._services
        store, reader = services.store, services.reader
        turn = await reader.turn(record, head, place.turn)
        (owned,) = owners(record, place.turn, place.turn)
        if owned.session != record.id:  # a fork was not asked: its parent was
            records, heads = store.collection(SessionRecord), store.collection(Head)
            owner, stood = await records.get(owned.session), await heads.get(owned.session)
            if owner is not None and stood is not None:
                return await Composer(services).past(owner, stood, place)
        known = await self.injections.sent(record, place.turn, place.turn)
        if not known or turn.status == "forgotten":
            raise InvalidInput(
                f"Nothing is known of what was sent for T-{place.turn}.",
                hint="It came through the proxy, was not composed by session.context(…), or was"
                " forgotten.",
            )
        if place.round > len(turn.rounds) + (turn.status == "open"):
            raise InvalidInput(
                f"T-{place.turn} has no round {place.round}.", hint=f"It has {len(turn.rounds)}."
            )
        sent = known[0]
        frame = await self._frames.get(f"{record.id}/{sent.frame}") or Frame(id=f"{record.id}/")
        prompted = place.round == 1
        opening = prompt_of(turn.rounds[0].messages if turn.rounds else ())
        prompt = await resolved(opening, services.artifacts) if prompted else ()
        room = room_for(services.counter, prompt, sent.budget)
        request = ContextRequest(
            record=record,
            head=head,
            budget=sent.budget,
            scale=sent.scale,
            fixed=room + (sent.tokens if prompted else 0),
            turn=place.turn,
            prompted=prompted,
            model=sent.model,
            now=0,
            injected=self._read_injected(record),
            keep=False,
        )
        then = msgspec.structs.replace(record, strategy=sent.strategy or record.strategy)
        return compose(
            await self.strategy(then).past(request, place),
            turn=place.turn,
            budget=sent.scale.theirs(sent.budget),
            prompt=prompt,
            injection=sent.shown if prompted and sent.text else None,
            system=frame.system,
            tools=frame.tools_of(),
            model=sent.model,
            session=record.id,
            scale=sent.scale,
        )

    async def moved(self, context: Context, turn: int) -> None:
        """The prompt of a context got another turn number than expected."""
        if turn != context.turn:
            digest = prompt_digest(context.prompt)
            await self.injections.withdraw(context.turn, digest, same=True)

    async def reminders(self, record: SessionRecord, turn: int) -> frozenset[str]:
        found = await self.injections.sent(record, turn - REMINDED_FOR + 1, turn)
        return frozenset(key for each in found for key in each.ticklers)

    async def _shown(
        self, strategy: Strategy, request: ContextRequest
    ) -> tuple[Injection, ShownHistory]:
        if not request.prompted:
            preview = WindowPreview(await strategy.standing_since(request))
            injection = await self.injections.of(request, preview)
            return injection, await _show_with(strategy, request, injection)
        injection, shown, is_last = await self._tried(strategy, request)
        if not is_last:
            # An epoch removed what stood in full: on the board, recalled before, as it was said.
            self.injections.drop(injection)
            injection, shown, _ = await self._tried(strategy, request)
        while repeated := self.injections.repeated(request.record, injection, shown):
            injection = self.injections.without(request, injection, repeated)
            shown = await _show_with(strategy, request, injection)
        return injection, shown

    async def _tried(
        self, strategy: Strategy, request: ContextRequest
    ) -> tuple[Injection, ShownHistory, bool]:
        fixed = request.fixed + self.injections.reminder_tokens(request.reminder)
        bare = msgspec.structs.replace(request, fixed=fixed)
        try:
            preview = await strategy.preview(bare)
        except BudgetTooSmall:
            if not request.reserve:
                raise
            # What is recalled makes way for what has to be said.
            request = msgspec.structs.replace(request, reserve=0, least=0, recall=False)
            preview = await strategy.preview(msgspec.structs.replace(bare, reserve=0, least=0))
        injection = await self.injections.of(request, preview)
        try:
            shown = await _show_with(strategy, request, injection)
        except BudgetTooSmall:
            if not injection.recalls or not self.injections.is_new(injection):
                raise
            injection = self.injections.without(request, injection)  # the same
            shown = await _show_with(strategy, request, injection)
        return injection, shown, shown.epoch == preview.epoch


async def _show_with(
    strategy: Strategy, request: ContextRequest, injection: Injection
) -> ShownHistory:
    """The history beside an injection. Raises `BudgetTooSmall`."""
    taken = injection.tokens if request.prompted else 0
    fixed = request.fixed + taken
    if fixed > request.budget:
        raise BudgetTooSmall(request.budget, fixed)
    least = max(request.least - taken, 0)  # of what was set aside, the rest is the history's
    return await strategy.show(
        msgspec.structs.replace(request, fixed=fixed, reserve=0, least=least)
    )


def _turn_of(
    record: SessionRecord, head: Head, own: ConversationState | None, prompt: tuple[Message, ...]
) -> int:
    if prompt:
        rounds, _, _ = cut(head, own, prompt)
        return rounds[0].turn
    if own is not None and 0 < own.turn < head.turn and not own.fresh and not own.closed:
        return own.turn  # others have begun turns meanwhile
    if not head.turn or head.closed or head.mark.fresh or head.mark.closed:
        raise InvalidInput(
            f"{record.id} has no open turn to go on with.",
            hint="Give a prompt, or append one first.",
        )
    return head.turn

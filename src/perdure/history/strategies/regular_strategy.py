"""Whole rounds, the newest that fit."""

from __future__ import annotations

from collections.abc import Sequence

from perdure.artifacts import ArtifactStore
from perdure.core.errors import BudgetTooSmall
from perdure.core.messages import Message
from perdure.core.tokens import count_messages
from perdure.history.manifest import Injected, Native, RoundId, ShownHistory
from perdure.history.reduce_messages import reduced
from perdure.history.strategies.raw_rounds import RawRound, RawRounds
from perdure.history.strategies.strategy import ContextRequest, VisibleRounds, WindowPreview
from perdure.history.token_counts import TokenCounts
from perdure.history.turn_reader import TurnReader

_STEP = 50  # Turns that are read first, from the newest back.


class RegularStrategy:
    """Shows the newest rounds whole, and nothing older. No result loses its call. The prompt of the
    turn under way is always shown.
    """

    name = "regular"
    tagged = False

    def __init__(
        self, reader: TurnReader, artifacts: ArtifactStore, token_counts: TokenCounts
    ) -> None:
        self._rounds = RawRounds(reader, artifacts, token_counts)

    async def standing_since(self, request: ContextRequest) -> int:
        return request.turn

    async def preview(self, request: ContextRequest) -> WindowPreview:
        """What is shown for sure; more is, if not all of the reserve is used."""
        whole = request.budget - request.fixed
        room, found = whole - request.reserve, list[VisibleRounds]()
        for each in reversed(await self._enough(request, self._rounds)):
            room -= each.tokens
            if room < 0:
                break
            found.append(VisibleRounds("R", each.place, each.place))
        return WindowPreview(request.turn, visible=found, room=whole // 2)

    async def show(self, request: ContextRequest) -> ShownHistory:
        return await self._fitted(request, await self._enough(request, self._rounds))

    async def past(self, request: ContextRequest, place: RoundId) -> ShownHistory:
        said = await self._enough(request, self._rounds.with_tombstones(), place)
        return await self._fitted(request, said)

    async def _fitted(self, request: ContextRequest, said: Sequence[RawRound]) -> ShownHistory:
        room, under_way = request.budget - request.fixed, not request.prompted
        opening = tuple[Message, ...]()
        injected = list[Injected]()
        if under_way:
            opening = (
                await self._rounds.prompt(request.record, request.head, request.turn)
            ).messages
            injected += await request.injected(request.turn, request.turn)
        room -= sum(each.tokens for each in injected)
        aside = count_messages(self._rounds.counter, opening)
        shown = list[Native]()
        for each in reversed(said):
            left = room if each.place == RoundId(request.turn) else room - aside
            if each.tokens <= left:
                shown.append(_native(each, request))
            elif not shown and under_way:
                shown.append(self._reduced(each, request, left))
            else:
                break
            room -= shown[-1].tokens
        shown.reverse()
        if room < 0:
            raise BudgetTooSmall(request.budget, request.budget - room)
        apart = bool(shown) and shown[0].place > RoundId(request.turn)
        return ShownHistory(
            rounds=tuple(shown),
            injected=tuple(injected),
            open_turn=request.turn if under_way else None,
            prompt=opening if apart else (),
            tagged=False,
            raw=sum(each.tokens for each in said),
        )

    async def _enough(
        self, request: ContextRequest, rounds: RawRounds, before: RoundId | None = None
    ) -> list[RawRound]:
        if before is None and not request.prompted:
            before = RoundId(request.turn + 1)  # a turn that was overtaken goes on alone
        newest = request.head.turn if before is None else before.turn
        step = _STEP
        while True:
            first = max(newest - step, 1)
            found = await rounds.since(request.record, request.head, RoundId(first))
            said = [each for each in found if before is None or each.place < before]
            if first == 1 or sum(each.tokens for each in said) > request.budget:
                return said
            step *= 4

    def _reduced(self, each: RawRound, request: ContextRequest, room: int) -> Native:
        messages = reduced(each.messages, str(each.place), room, self._rounds.counter)
        tokens = count_messages(self._rounds.counter, messages)
        if tokens > room:
            raise BudgetTooSmall(request.budget, request.budget + tokens - room)
        return Native(each.place, messages, tokens, each.tokens, thinking=True, reduced=True)


class OpenTurn(RegularStrategy):
    """Shows the turn under way alone."""

    async def _enough(
        self, request: ContextRequest, rounds: RawRounds, before: RoundId | None = None
    ) -> list[RawRound]:
        if request.prompted:
            return []
        found = await rounds.since(request.record, request.head, RoundId(request.turn))
        return [
            each
            for each in found
            if each.place.turn == request.turn and (before is None or each.place < before)
        ]


def _native(each: RawRound, request: ContextRequest) -> Native:
    # What is dropped from the front changes what thinking is bound to: only that of the turn under
    # way is still what its provider expects.
    thinking = not request.prompted and each.place.turn == request.turn
    return Native(each.place, each.messages, each.tokens, each.tokens, thinking=thinking)

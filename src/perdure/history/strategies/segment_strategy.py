"""Shows what a `HistoryStrategy` gives, as a `Strategy`: turns are recorded, segments measured,
fitted into the budget and laid out.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

import msgspec

from perdure.artifacts import ArtifactStore
from perdure.core.errors import InvalidInput
from perdure.core.levels import parse_level
from perdure.core.tokens import count_messages
from perdure.core.turns import Position, Turn
from perdure.history.gradient_planner import TURN_TAGS
from perdure.history.log_records import ENDLESS, Head, SessionRecord, TurnSpan
from perdure.history.manifest import Element, Native, RoundId, ShownBlock, ShownHistory
from perdure.history.renditions.rendition_service import RenditionService
from perdure.history.renditions.rendition_store import RoundAtLevel
from perdure.history.strategies.epoch_planner import LEAD
from perdure.history.strategies.history_strategy import (
    HistorySegment,
    HistoryStrategy,
    SessionHistory,
    StrategyFactory,
)
from perdure.history.strategies.raw_rounds import RawRounds, sent_tokens
from perdure.history.strategies.regular_strategy import OpenTurn
from perdure.history.strategies.strategy import ContextRequest, VisibleRounds, WindowPreview
from perdure.history.token_counts import TokenCounts
from perdure.history.turn_reader import TurnReader
from perdure.history.turn_tags import element

_WHY = "as the strategy {} gave it"
_STEP = 50  # Turns that are read at once.


class _Shown(msgspec.Struct, frozen=True):
    """A part of a segment as it stands in a prompt: text, or the rounds of a turn."""

    first: RoundId
    tokens: int
    block: ShownBlock | None = None
    rounds: tuple[Native, ...] = ()


class _Recorded(msgspec.Struct):
    """A strategy, and what it was told."""

    strategy: HistoryStrategy
    record: SessionRecord
    head: Head
    upto: int = 0
    #: Tokens of the turns that it was told of, by number; and the numbers in their order.
    tokens: dict[int, int] = {}
    numbers: list[int] = []

    @property
    def key(self) -> tuple[tuple[TurnSpan, ...], int]:
        return self.head.undone, self.head.forgets


class SegmentStrategy:
    """Shows one session as somebody's strategy says."""

    tagged = True

    def __init__(  # noqa: PLR0917 (the rooms that it works in)
        self,
        name: str,
        make: StrategyFactory,
        reader: TurnReader,
        artifacts: ArtifactStore,
        token_counts: TokenCounts,
        renditions: RenditionService,
    ) -> None:
        self.name = name
        self._make = make
        self._reader = reader
        self._rounds = RawRounds(reader, artifacts, token_counts)
        self._under_way = OpenTurn(reader, artifacts, token_counts)
        self._renditions = renditions
        self._counter = self._rounds.counter
        self._recorded: _Recorded | None = None
        #: The turn that was asked for last, and what was given for it.
        self._given: tuple[int, Sequence[_Shown]] = (0, ())

    async def standing_since(self, request: ContextRequest) -> int:
        return request.turn

    async def preview(self, request: ContextRequest) -> WindowPreview:
        room = request.budget - request.fixed
        found = list[VisibleRounds]()
        for each in _newest(await self._history(request, room), room - request.reserve - LEAD):
            if each.block is not None:
                of = each.block.element
                found.append(VisibleRounds(of.level, of.first, of.last))
            found += [VisibleRounds("R", native.place, native.place) for native in each.rounds]
        return WindowPreview(request.turn, visible=found, room=room // 2)

    async def show(self, request: ContextRequest) -> ShownHistory:
        shown = await self._under_way.show(request)
        room = self._room(request, shown)
        return self._with(shown, _newest(await self._history(request, room), room))

    async def past(self, request: ContextRequest, place: RoundId) -> ShownHistory:
        """As the strategy says now, of the turns that there were."""
        shown = await self._under_way.past(request, place)
        room = self._room(request, shown)
        recorded = await self._told(request, None)
        return self._with(shown, _newest(await self._asked(recorded, room), room))

    def _room(self, request: ContextRequest, shown: ShownHistory) -> int:
        """Tokens for what was before the turn under way."""
        taken = sum(each.tokens for each in shown.rounds)
        taken += sum(each.tokens for each in shown.injected)
        return (
            request.budget - request.fixed - LEAD - taken - sent_tokens(self._counter, shown.prompt)
        )

    def _with(self, shown: ShownHistory, history: Sequence[_Shown]) -> ShownHistory:
        natives = tuple(native for each in history for native in each.rounds)
        blocks = tuple(each.block for each in history if each.block is not None)
        raw = sum(b.element.raw for b in blocks) + sum(n.raw for n in natives)
        return msgspec.structs.replace(
            shown,
            blocks=blocks,
            rounds=(*natives, *shown.rounds),
            tagged=True,
            raw=shown.raw + raw,
        )

    async def _history(self, request: ContextRequest, room: int) -> Sequence[_Shown]:
        """What was given for the turn stays as long as it goes on: requests extend each other."""
        recorded = await self._told(request, self._recorded)
        if recorded is not self._recorded:
            self._recorded, self._given = recorded, (0, ())
        turn, given = self._given
        if turn != request.turn or request.prompted:
            given = await self._asked(recorded, room)
            self._given = request.turn, given
        return given

    async def _told(self, request: ContextRequest, before: _Recorded | None) -> _Recorded:
        """A strategy that knows every turn before the one that is asked for."""
        record, head = request.record, request.head
        recorded = before
        if recorded is None or recorded.key != (head.undone, head.forgets):
            recorded = self._new(record, head)
        elif recorded.upto >= request.turn:
            recorded = self._new(record, head)  # an earlier turn goes on
        recorded.record, recorded.head = record, head
        while recorded.upto < request.turn - 1:
            first = recorded.upto + 1
            last = min(first + _STEP - 1, request.turn - 1)
            turns = await self._reader.turns(record, head, first, last, arriving=False)
            for turn in turns:
                if not head.is_undone(turn.number) and turn.status != "forgotten":
                    recorded.tokens[turn.number] = self._raw_tokens(turn)
                    recorded.numbers.append(turn.number)
                    await recorded.strategy.record_turn(turn)
            recorded.upto = last
        return recorded

    def _new(self, record: SessionRecord, head: Head) -> _Recorded:
        async def measure(segment: HistorySegment) -> int:
            return sum(each.tokens for each in await self._laid(made, segment))

        history = SessionHistory(record.id, self._counter.count, measure)
        made = _Recorded(self._make(history), record, head)
        return made

    async def _asked(self, recorded: _Recorded, room: int) -> list[_Shown]:
        """Raises `InvalidInput` for what is no history."""
        found, last = list[_Shown](), 0
        for segment in await recorded.strategy.get_history(max(room, 0)):
            parts = await self._laid(recorded, segment)
            if parts[0].first.turn <= last:
                raise self._wrong(f"{parts[0].first} stands behind T-{last}", "oldest first")
            last = self._numbers(recorded, segment)[-1]
            found += parts
        return found

    async def _laid(self, recorded: _Recorded, segment: HistorySegment) -> list[_Shown]:
        numbers, level = self._numbers(recorded, segment), parse_level(segment.level)
        if segment.content is not None:
            return [self._text(recorded, numbers, segment, segment.content)]
        if level == "R":
            return await self._raw(recorded, numbers)
        found = list[_Shown]()
        for number in numbers:
            text = await self._rendered(recorded, number, segment)
            found.append(self._text(recorded, [number], segment, text))
        return found

    def _numbers(self, recorded: _Recorded, segment: HistorySegment) -> list[int]:
        if not segment.turns:
            raise self._wrong(f"{segment!r} names no turns", "segments with the ids of turns")
        numbers = [Position.parse(each).turn for each in segment.turns]
        for turn, number in zip(segment.turns, numbers, strict=True):
            if number not in recorded.tokens:
                raise self._wrong(f"{turn} is not among the turns before", "turns it was told of")
        at = bisect_left(recorded.numbers, numbers[0])
        if numbers != recorded.numbers[at : at + len(numbers)]:
            raise self._wrong(f"{', '.join(segment.turns)} are no neighbours", "neighbouring turns")
        return numbers

    def _wrong(self, what: str, wanted: str) -> InvalidInput:
        return InvalidInput(
            f"The strategy {self.name} gave no history: {what}.", hint=f"It has to give {wanted}."
        )

    def _text(
        self, recorded: _Recorded, numbers: Sequence[int], segment: HistorySegment, body: str
    ) -> _Shown:
        first, last = RoundId(numbers[0]), RoundId(numbers[-1])
        raw = sum(recorded.tokens[number] for number in numbers)
        bare = Element(parse_level(segment.level), first, last, whole=True, tokens=0, raw=raw)
        text = element(bare.name, bare.level, body)
        tokens = self._counter.count(text) + 1
        made = msgspec.structs.replace(bare, tokens=tokens)
        return _Shown(first, tokens, ShownBlock(made, text, _WHY.format(self.name)))

    def _raw_tokens(self, turn: Turn) -> int:
        counted = turn.tokens
        return count_messages(self._counter, turn.messages) if counted is None else counted

    async def _raw(self, recorded: _Recorded, numbers: Sequence[int]) -> list[_Shown]:
        said = await self._rounds.since(recorded.record, recorded.head, RoundId(numbers[0]))
        found = list[_Shown]()
        for number in numbers:
            rounds = [each for each in said if each.place.turn == number]
            natives = tuple(Native(e.place, e.messages, e.tokens, e.tokens) for e in rounds)
            if natives:
                tokens = sum(each.tokens for each in natives) + TURN_TAGS
                found.append(_Shown(natives[0].place, tokens, rounds=natives))
        return found or [_Shown(RoundId(numbers[0]), 0)]

    async def _rendered(self, recorded: _Recorded, number: int, segment: HistorySegment) -> str:
        record, head, renditions = recorded.record, recorded.head, self._renditions
        if segment.level == "T":
            made = await renditions.tinies(record, head, [number])
            wanted = [(number, made[number].variant)] if number in made else []
            return "\n".join(await renditions.tiny_texts(record, head, wanted))
        sizes = await renditions.sizes(record, head, RoundId(number), RoundId(number, ENDLESS))
        rounds = [RoundAtLevel(each.place, segment.level, each.variant) for each in sizes]
        return "\n".join(filter(None, await renditions.texts(record, head, rounds)))


def _newest(parts: Sequence[_Shown], room: int) -> Sequence[_Shown]:
    """The newest that fit, without a gap."""
    for at in range(len(parts) - 1, -1, -1):
        room -= parts[at].tokens
        if room < 0:
            return parts[at + 1 :]
    return parts

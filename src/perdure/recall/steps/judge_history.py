"""What a judge is told of a session: older turns at T, newer ones at C, the newest as it was said.

It has a cap of its own. From one prompt to the next it grows at its end only: where T ends, and
with what it begins, changes once in `_STEP` turns. So a provider's cache reads what was sent
before.
"""

from __future__ import annotations

from collections.abc import Sequence

from perdure.core.tokens import EstimatedCounter
from perdure.history.log_records import Head, SessionRecord, owners
from perdure.history.manifest import RoundId
from perdure.history.renditions.rendition_records import rendition_key
from perdure.history.renditions.rendition_service import RenditionService
from perdure.history.turn_reader import TurnReader
from perdure.recall.values import Question

#: Turns that are at C at least; at most twice as many, less one.
_STEP = 16
#: Shares of the cap: for all turns at T, for all at C, for the newest. Tokens are estimated; the
#: rest is for what that may be off.
_TINY, _COMPACT, _NEWEST = 0.4, 0.3, 0.1
#: Turns at T that are looked at, at most.
_MOST = 512

_estimate = EstimatedCounter().count


class JudgeHistory:
    """The history of the session that was asked about last. For one event loop."""

    def __init__(self, renditions: RenditionService, reader: TurnReader) -> None:
        self._renditions, self._reader = renditions, reader
        self._key: tuple[object, ...] = ()
        self._tiny: list[str] = []
        self._compact: dict[int, str] = {}

    async def lines(self, question: Question, most: int) -> list[str]:
        """A line for each turn, oldest first, in at most about `most` tokens."""
        record, head = question.record, question.head
        if not head.turn or not most:
            return []
        edge = max(head.turn // _STEP - 1, 0) * _STEP
        key = (record.id, head.forgets, head.undone, edge, most)
        if key != self._key:
            tiny = await self._at_tiny(record, head, edge, int(most * _TINY))
            self._key, self._tiny, self._compact = key, tiny, {}
        each = int(most * _COMPACT) // (2 * _STEP)
        await self._add_compact(record, head, edge, each)
        newest = await self._raw(record, head, int(most * _NEWEST))
        middle = [line for turn, line in self._compact.items() if turn < head.turn]
        return [*self._tiny, *middle, *newest]

    async def _at_tiny(self, record: SessionRecord, head: Head, last: int, most: int) -> list[str]:
        numbers = [n for n in range(max(last - _MOST, 0) + 1, last + 1) if not head.is_undone(n)]
        made = await self._renditions.tinies(record, head, numbers)
        wanted = [(number, made[number].variant) for number in numbers if number in made]
        texts = await self._renditions.tiny_texts(record, head, wanted)
        lines = list[str]()
        for (number, _), text in zip(reversed(wanted), reversed(texts), strict=True):
            line = _line(number, text)
            most -= _estimate(line) + 1
            if most < 0:
                break
            lines.append(line)
        return lines[::-1]

    async def _add_compact(self, record: SessionRecord, head: Head, edge: int, most: int) -> None:
        first = max(self._compact, default=edge) + 1
        if first >= head.turn:
            return
        for turn in await self._reader.turns(record, head, first, head.turn - 1):
            if head.is_undone(turn.number):
                continue
            owned = next(owners(record, turn.number, turn.number)).session
            rounds = {
                rendition_key(owned, turn.number, each.number): (
                    RoundId(turn.number, each.number),
                    each.messages,
                )
                for each in turn.rounds
                if each.messages
            }
            found = await self._renditions.shortened(rounds) if rounds else {}
            text = " ".join(each.compact for each in found.values())
            self._compact[turn.number] = _line(turn.number, _cut(text, 4 * most))

    async def _raw(self, record: SessionRecord, head: Head, most: int) -> Sequence[str]:
        if head.is_undone(head.turn):
            return []
        turn = await self._reader.turn(record, head, head.turn)
        text = await self._renditions.raw(turn.messages)
        return [_line(head.turn, _cut(text, 4 * most))] if text else []


def _line(turn: int, text: str) -> str:
    return f"T-{turn}: {' '.join(text.split())}"


def _cut(text: str, most: int) -> str:
    """Of a long text its beginning and its end."""
    half = most // 2
    return text if len(text) <= most else f"{text[:half]} […] {text[-half:]}"

"""What a judge is told of a session: older turns at T, newer ones at C, the newest as it was said.

It has a cap of its own. From one prompt to the next it grows at its end only: where T ends, and
with what it begins, changes once in `_STEP` turns. So a provider's cache reads what was sent
before.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

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
#: Sessions whose lines are kept, at most.
_SESSIONS = 32

_estimate = EstimatedCounter().count


class _Told(NamedTuple):
    """Lines of a session, as they were made. Never changed: several may read them at once."""

    key: tuple[object, ...]
    turn: int  # The newest then. A session that has fewer now was begun anew.
    tiny: Sequence[str]
    compact: Mapping[int, str]


class JudgeHistory:
    """The histories of the sessions that were asked about last. For one event loop."""

    def __init__(self, renditions: RenditionService, reader: TurnReader) -> None:
        self._renditions, self._reader = renditions, reader
        self._told: dict[str, _Told] = {}

    async def lines(self, question: Question, most: int) -> list[str]:
        """A line for each turn, oldest first, in at most about `most` tokens."""
        record, head = question.record, question.head
        if not head.turn or not most:
            return []
        edge = max(head.turn // _STEP - 1, 0) * _STEP
        key = (head.forgets, head.undone, edge, most)
        told = self._told.get(record.id)
        if told is None or told.key != key or told.turn > head.turn:
            tiny = await self._at_tiny(record, head, edge, int(most * _TINY))
            told = _Told(key, head.turn, tiny, {})
        each = int(most * _COMPACT) // (2 * _STEP)
        first = max(told.compact, default=edge) + 1
        added = await self._at_compact(record, head, first, each)
        told = told._replace(turn=head.turn, compact={**told.compact, **added})
        self._told.pop(record.id, None)
        self._told[record.id] = told
        while len(self._told) > _SESSIONS:
            self._told.pop(next(iter(self._told)))
        newest = await self._raw(record, head, int(most * _NEWEST))
        return [*told.tiny, *told.compact.values(), *newest]

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

    async def _at_compact(
        self, record: SessionRecord, head: Head, first: int, most: int
    ) -> dict[int, str]:
        lines = dict[int, str]()
        if first >= head.turn:
            return lines
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
            lines[turn.number] = _line(turn.number, _cut(text, 4 * most))
        return lines

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

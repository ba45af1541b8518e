"""What is stored of renditions, for the turns that a session sees: what they take, their words.

A session's line runs through the logs of its ancestors (`history.lines`), and so do its renditions.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import NamedTuple, TypeVar

import msgspec

from perdure.core.errors import Corrupted
from perdure.core.levels import Level
from perdure.core.messages import Message
from perdure.history.lines import Owned, owners
from perdure.history.log import TURNS
from perdure.history.manifest import Place
from perdure.history.records import Head, SessionRecord, TurnCount, turn_key
from perdure.history.renditions import packing
from perdure.history.renditions.craft import Craft
from perdure.history.renditions.making import Made
from perdure.history.renditions.records import Rendition, Tiny, Variant, rendition_key
from perdure.history.renditions.sources import Sources
from perdure.jobs import marks_of
from perdure.storage.keys import numbered
from perdure.storage.store import Store

T = TypeVar("T")

#: Turns whose content is read together, and keys that are.
_READ, KEYS_AT_ONCE = 16, 512
#: Turns in front of a fork that its parent may still have added to.
_NEAR = 20

_log = logging.getLogger(__name__)


class Wanted(NamedTuple):
    """A round's words: at which level, and in which variant of its renditions."""

    place: Place
    level: Level
    variant: int = 0


class Stretch(msgspec.Struct, frozen=True):
    """Turns of a line in one log, and the first of them that has to be read to know it."""

    owned: Owned
    doubtful: int


class Shelf:
    """Reads stored renditions."""

    def __init__(self, store: Store, sources: Sources, craft: Craft) -> None:
        self._store = store
        self._sources = sources
        self._craft = craft
        self._rows = store.collection(Rendition)
        self._tinies = store.collection(Tiny)
        self._counts = store.collection(TurnCount)

    async def texts(self, record: SessionRecord, head: Head, wanted: Sequence[Wanted]) -> list[str]:
        """The words of rounds at R, S or C, not escaped; empty for those that are forgotten.

        What cannot be read any more is made anew by the algorithm of today.
        """
        found = dict[Wanted, str]()
        turns = sorted({each.place.turn for each in wanted})
        for stretch in await self.stretches(record, head, turns):
            owned = stretch.owned
            here = [n for n in turns if owned.first <= n <= owned.last]
            for a, b in runs(here, _READ):
                part = msgspec.structs.replace(owned, first=a, last=b)
                some = [each for each in wanted if a <= each.place.turn <= b]
                found |= await self._texts_of(part, some)
        return [found.get(each, "") for each in wanted]

    async def tiny_texts(
        self, record: SessionRecord, head: Head, wanted: Sequence[tuple[int, int]]
    ) -> list[str]:
        """The words of turns at T, by turn and variant; empty for those that are forgotten."""
        found = dict[tuple[int, int], str]()
        turns = sorted({turn for turn, _ in wanted})
        for stretch in await self.stretches(record, head, turns):
            owned = stretch.owned
            here = [each for each in wanted if owned.first <= each[0] <= owned.last]
            for some in portions(here, KEYS_AT_ONCE):
                keys = [turn_key(owned.session, turn) for turn, _ in some]
                rows = await self._tinies.get_many(keys)
                for (turn, at), row in zip(some, rows, strict=True):
                    if row is not None and at < len(row.variants) and row.variants[at].recipe:
                        found[turn, at] = row.variants[at].text
                        continue
                    part = msgspec.structs.replace(owned, first=turn, last=turn)
                    for told in await self._sources.told(part):
                        found[turn, at] = (await self._craft.tiny(told.rounds.values())).text
        return [found.get(each, "") for each in wanted]

    async def known(self, owned: Owned, doubtful: int) -> dict[int, list[Made]]:
        """The turns of which all is there, in front of the first doubtful one."""
        session, found = owned.session, dict[int, list[Made]]()
        last = min(owned.last, doubtful - 1)
        if owned.first > last:
            return found
        start = turn_key(session, owned.first - 1)
        counts = await self._counts.behind(start, f"{session}/", limit=last - owned.first + 1)
        rows = {row.id: row for row in await self.rows_of(owned)}
        for count in counts:
            rounds = list[Made]()
            for round, counted in enumerate(count.counted, 1):
                row = rows.get(rendition_key(session, count.turn, round))
                at = None if row is None else row.best(counted.messages)
                if row is None or at is None:
                    break
                used = row.variants[at]
                place = Place(count.turn, round)
                made = Made(place, counted.tokens, used.smooth, used.compact, at, used.recipe)
                rounds.append(made)
            if count.turn <= last and len(rounds) == count.rounds:
                found[count.turn] = rounds
        return found

    async def rows_of(self, owned: Owned) -> list[Rendition]:
        """The rows of the rounds of these turns."""
        found, prefix = list[Rendition](), f"{owned.session}/"
        start, end = (f"{prefix}{numbered(n)}" for n in (owned.first, owned.last + 1))
        while True:
            page = await self._rows.behind(start, prefix, limit=KEYS_AT_ONCE)
            found += [row for row in page if row.id < end]
            if len(page) < KEYS_AT_ONCE or page[-1].id >= end:
                return found
            start = page[-1].id

    async def stretches(
        self, record: SessionRecord, head: Head, numbers: Sequence[int]
    ) -> list[Stretch]:
        """Whose logs hold these turns, and from where on their rows cannot be trusted.

        Messages may have been added that nobody has counted yet: a mark tells from where on. And a
        fork does not see what was added to its parent's last turns later.
        """
        found = list[Stretch]()
        if not numbers:
            return found
        for owned in owners(record, numbers[0], min(numbers[-1], head.turn)):
            marked = await marks_of(self._store, TURNS, owned.session)
            doubtful = min([mark.first for mark in marked], default=head.turn)
            if owned.session == record.id:
                own = msgspec.structs.replace(owned, piece=head.pieces)
                found.append(Stretch(own, min(doubtful, head.turn)))
            else:
                end = next(s.turn for s in record.line if s.turn >= owned.last)
                found.append(Stretch(owned, min(doubtful, end - _NEAR + 1)))
        return found

    # ------------------------------------------------------------------------------------------

    async def _texts_of(self, owned: Owned, wanted: Sequence[Wanted]) -> dict[Wanted, str]:
        session = owned.session
        keys = [rendition_key(session, *_numbers(each.place)) for each in wanted]
        rows = await self._rows.get_many(keys)
        told = {each.number: each for each in await self._sources.told(owned)}
        found = dict[Wanted, str]()
        for each, row in zip(wanted, rows, strict=True):
            turn, round = _numbers(each.place)
            if turn not in told or round not in told[turn].rounds:
                continue
            messages, variant = told[turn].rounds[round], None
            if row is not None and each.variant < len(row.variants):
                variant = row.variants[each.variant]
                messages = messages[: variant.messages]
            full = await self._sources.full(messages)
            if each.level == "R":
                from perdure.history.renditions import algorithm

                found[each] = algorithm.raw(full)
            else:
                smooth, compact = await self._unpacked(variant, full, each.place)
                found[each] = smooth if each.level == "S" else compact
            await self._craft.jobs.breathe()
        return found

    async def _unpacked(
        self, variant: Variant | None, full: tuple[Message, ...], place: Place
    ) -> tuple[str, str]:
        ground = packing.ground(full)
        if variant is not None and variant.packed:
            try:
                return packing.unpack(variant.packed, ground)
            except Corrupted as exc:
                _log.warning("%s is made anew: %s", place, exc)
        return packing.unpack((await self._craft.variant(full, place)).packed, ground)


def _numbers(place: Place) -> tuple[int, int]:
    return place.turn, place.round


def portions(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    for start in range(0, len(items), size):
        yield items[start : start + size]


def runs(numbers: Sequence[int], most: int) -> Iterator[tuple[int, int]]:
    """Neighbouring numbers together, so that each run is one read; at most so many."""
    first = before = None
    for number in numbers:
        if first is None or before is None or number != before + 1 or number - first >= most:
            if first is not None and before is not None:
                yield first, before
            first = number
        before = number
    if first is not None and before is not None:
        yield first, before

"""Reads the renditions of the turns that a session sees, through its ancestors' logs; makes what is
missing.

A transaction stores what was made from pieces read after the turn's count, and commits only if that
count is unchanged. Forgetting a turn deletes its count before its content, and again afterwards: so
nothing made from a turn is stored once it is forgotten.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, TypeVar

import msgspec

from perdure.core.errors import Corrupted
from perdure.core.levels import Level
from perdure.core.messages import Message
from perdure.history.log_records import Head, Owned, SessionRecord, TurnCount, owners, turn_key
from perdure.history.manifest import RoundId
from perdure.history.renditions import rendition_packing
from perdure.history.renditions.rendition_maker import RenditionMaker, TurnMessages
from perdure.history.renditions.rendition_records import (
    MOST_VARIANTS,
    Rendition,
    Tiny,
    TinyVariant,
    Variant,
    is_stale,
    lacking,
    rendition_key,
)
from perdure.history.token_counts import TokenCounts
from perdure.history.turn_log import TURNS
from perdure.jobs import marks_of
from perdure.storage.collection import Collection
from perdure.storage.store import Store
from perdure.storage.transaction import Transaction

T = TypeVar("T")
S = TypeVar("S", bound=msgspec.Struct)

_READ, KEYS_AT_ONCE = 32, 512  # Turns whose content, and keys that, are read together.
#: Turns that are as near to each other are read with those between them.
_APART = 8
_NEAR = 20  # Turns in front of a fork that its parent may still have added to.
_GATHER = 60.0  # Seconds for which a round waits for the others of an open turn, before a model.

_log = logging.getLogger(__name__)


class RoundSizes(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A round's tokens at R, S and C, and the variant they are of."""

    place: RoundId
    raw: int
    smooth: int
    compact: int
    variant: int
    recipe: str = ""


class RoundRun(msgspec.Struct, frozen=True):
    """Rounds of a turn, and the tokens that they have together at C."""

    places: Sequence[RoundId]
    cap: int


class TinySize(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A turn's tokens at T, and the variant they are of."""

    tokens: int
    variant: int


class MakeRequest(NamedTuple):
    """What is to be made."""

    incomplete: bool = False  # Also of rounds in which more is expected.
    #: T of turns: of those that are closed, or of all.
    tiny: bool = False
    open_tiny: bool = False
    stale: bool = False  # Once more, where an older recipe made it.
    models: frozenset[Level] = frozenset()  # The levels that models are to work on.
    polite: bool = False  # Slowly, while somebody appends.
    #: The first round of interest, if only one turn is looked at, and the piece that it begins in.
    round: int = 1
    piece: int = 0


class TurnRenditions(msgspec.Struct, frozen=True, gc=False):
    """A turn, and its renditions now."""

    told: TurnMessages
    closed: bool
    rounds: list[RoundSizes]
    tiny: TinySize | None
    left: bool = False  # Something of it was left for later, since others were to go first.


class RoundAtLevel(NamedTuple):
    """A round at a level, in a variant of its renditions."""

    place: RoundId
    level: Level
    variant: int = 0


class ShortenedRound(NamedTuple):
    """S and C of a round, and their tokens."""

    smooth: str
    compact: str
    smooth_tokens: int
    compact_tokens: int


class LineStretch(msgspec.Struct, frozen=True):
    """Turns of a line in one log, and the first of them that has to be read again."""

    owned: Owned
    doubtful: int


class RenditionStore:
    """Reads stored renditions; makes and stores those that are missing."""

    def __init__(self, store: Store, maker: RenditionMaker, counts: TokenCounts) -> None:
        self._store = store
        self._maker = maker
        self._token_counts = counts
        self._rows = store.collection(Rendition)
        self._tinies = store.collection(Tiny)
        self._counts = store.collection(TurnCount)

    async def texts(
        self,
        record: SessionRecord,
        head: Head,
        wanted: Sequence[RoundAtLevel],
    ) -> list[str]:
        """The words of rounds at R, S or C, not escaped; empty for forgotten ones. What cannot be
        read any more is made anew by the current algorithm.
        """
        found = dict[RoundAtLevel, str]()
        turns = sorted({each.place.turn for each in wanted})
        for owned in _owned(record, head, turns):
            here = [n for n in turns if owned.first <= n <= owned.last]
            for a, b in runs(here, _READ, _APART):
                part = msgspec.structs.replace(owned, first=a, last=b)
                some = [each for each in wanted if a <= each.place.turn <= b]
                found |= await self._texts_of(part, some)
        return [found.get(each, "") for each in wanted]

    async def run_texts(
        self, record: SessionRecord, head: Head, wanted: Sequence[RoundRun], smooth: Sequence[str]
    ) -> list[str]:
        """C of runs of rounds, each of one turn, told together: see `run_text`. `smooth` is what
        stands in the window at S. Empty for forgotten ones.
        """
        found = dict[int, TurnMessages]()
        turns = sorted({run.places[0].turn for run in wanted if run.places})
        for owned in _owned(record, head, turns):
            for number in (n for n in turns if owned.first <= n <= owned.last):
                part = msgspec.structs.replace(owned, first=number, last=number)
                found |= {each.number: each for each in await self._maker.told(part)}
        texts = list[str]()
        for run in wanted:
            told = found[run.places[0].turn].rounds if run.places[0].turn in found else {}
            said = [told[place.round] for place in run.places if place.round in told]
            texts.append(await self._maker.run_text(said, run.cap, smooth) if said else "")
        return texts

    async def tiny_texts(
        self,
        record: SessionRecord,
        head: Head,
        wanted: Sequence[tuple[int, int]],
    ) -> list[str]:
        """The words of turns at T, by turn and variant; empty for forgotten ones."""
        found = dict[tuple[int, int], str]()
        turns = sorted({turn for turn, _ in wanted})
        for owned in _owned(record, head, turns):
            here = [each for each in wanted if owned.first <= each[0] <= owned.last]
            for some in portions(here, KEYS_AT_ONCE):
                keys = [turn_key(owned.session, turn) for turn, _ in some]
                for (turn, at), row in zip(some, await self._tinies.get_many(keys), strict=True):
                    if row is not None and at < len(row.variants) and row.variants[at].recipe:
                        found[turn, at] = row.variants[at].text
                        continue
                    part = msgspec.structs.replace(owned, first=turn, last=turn)
                    for told in await self._maker.told(part):
                        found[turn, at] = (await self._maker.tiny(told.rounds.values())).text
        return [found.get(each, "") for each in wanted]

    async def known(self, owned: Owned, doubtful: int) -> dict[int, list[RoundSizes]]:
        session, found = owned.session, dict[int, list[RoundSizes]]()
        last = min(owned.last, doubtful - 1)
        if owned.first > last:
            return found
        start = turn_key(session, owned.first - 1)
        counts = await self._counts.behind(start, f"{session}/", limit=last - owned.first + 1)
        rows = {row.id: row for row in await self.rows_of(owned)}
        for count in counts:
            rounds = list[RoundSizes]()
            for round, counted in enumerate(count.counted, 1):
                row = rows.get(rendition_key(session, count.turn, round))
                at = None if row is None else row.best(counted.messages)
                if row is None or at is None:
                    break
                used = row.variants[at]
                place = RoundId(count.turn, round)
                made = RoundSizes(place, counted.tokens, used.smooth, used.compact, at, used.recipe)
                rounds.append(made)
            if count.turn <= last and len(rounds) == count.rounds:
                found[count.turn] = rounds
        return found

    async def rows_of(self, owned: Owned) -> list[Rendition]:
        found, end = list[Rendition](), turn_key(owned.session, owned.last + 1)
        start = turn_key(owned.session, owned.first)
        async for row in self._rows.walk(f"{owned.session}/", after=start):
            if row.id >= end:
                break
            found.append(row)
        return found

    async def stretches(
        self,
        record: SessionRecord,
        head: Head,
        numbers: Sequence[int],
    ) -> list[LineStretch]:
        """Whose logs hold these turns, and from where on their rows cannot be trusted: messages may
        have been added that are not counted yet (a mark says from where on), and a fork does not
        see what was added to its parent's last turns later.
        """
        found = list[LineStretch]()
        if not numbers:
            return found
        for owned in _owned(record, head, numbers):
            marks = await marks_of(self._store, TURNS, owned.session)
            doubtful = min([mark.first for mark in marks], default=head.turn)
            if owned.session == record.id:
                found.append(LineStretch(owned, min(doubtful, head.turn)))
            else:
                end = next(s.turn for s in record.line if s.turn >= owned.last)
                found.append(LineStretch(owned, min(doubtful, end - _NEAR + 1)))
        return found

    async def shortened(
        self, rounds: Mapping[str, tuple[RoundId, tuple[Message, ...]]]
    ) -> dict[str, ShortenedRound]:
        """S and C of rounds of any sessions, by `rendition_key`, in one read. What is not there is
        made, and not stored: that is done in the background.
        """
        found = dict[str, ShortenedRound]()
        rows = await _or_nothing(self._rows, rounds)
        for (key, (place, messages)), row in zip(rounds.items(), rows, strict=True):
            at = None if row is None else row.best(len(messages))
            if row is None or at is None:
                variant = await self._maker.variant(messages, place)
            else:
                variant = row.variants[at]
            texts = await self._unpacked(variant, await self._maker.full(messages), place)
            found[key] = ShortenedRound(*texts, variant.smooth, variant.compact)
            await self._maker.jobs.breathe()
        return found

    async def tiny_of(
        self, turns: Mapping[tuple[str, int], TurnMessages]
    ) -> dict[tuple[str, int], TinyVariant]:
        """The same of turns at T, by session and number."""
        found = dict[tuple[str, int], TinyVariant]()
        rows = await _or_nothing(self._tinies, [turn_key(*place) for place in turns])
        for (place, turn), row in zip(turns.items(), rows, strict=True):
            at = None if row is None else row.best(turn.messages)
            if row is None or at is None:
                found[place] = await self._maker.tiny(turn.rounds.values())
            else:
                found[place] = row.variants[at]
        return found

    async def _texts_of(
        self, owned: Owned, wanted: Sequence[RoundAtLevel]
    ) -> dict[RoundAtLevel, str]:
        session = owned.session
        keys = [rendition_key(session, each.place.turn, each.place.round) for each in wanted]
        rows = await self._rows.get_many(keys)
        told = {each.number: each for each in await self._maker.told(owned)}
        found = dict[RoundAtLevel, str]()
        for each, row in zip(wanted, rows, strict=True):
            turn, round = each.place.turn, each.place.round
            if turn not in told or round not in told[turn].rounds:
                continue
            messages, variant = told[turn].rounds[round], None
            if row is not None and each.variant < len(row.variants):
                variant = row.variants[each.variant]
                messages = messages[: variant.messages]
            full = await self._maker.full(messages)
            if each.level == "R":
                from perdure.history.renditions import algorithm

                found[each] = algorithm.raw(full)
            else:
                smooth, compact = await self._unpacked(variant, full, each.place)
                found[each] = smooth if each.level == "S" else compact
            await self._maker.jobs.breathe()
        return found

    async def _unpacked(
        self, variant: Variant | None, full: tuple[Message, ...], place: RoundId
    ) -> tuple[str, str]:
        ground = rendition_packing.ground(full)
        if variant is not None and variant.packed:
            try:
                return rendition_packing.unpack(variant.packed, ground)
            except Corrupted as exc:
                _log.warning("%s is made anew: %s", place, exc)
        return rendition_packing.unpack((await self._maker.variant(full, place)).packed, ground)

    async def make(
        self,
        owned: Owned,
        head: Head,
        wish: MakeRequest,
        go_on: Callable[[], bool] = lambda: True,
    ) -> list[TurnRenditions]:
        """Make what is missing of these turns, store it, and return all renditions. Once `go_on`
        says no, the rest is left; one thing is made in any case. Leaves out forgotten turns. Raises
        `Corrupted` if a piece of the log is damaged.
        """
        made = _Made()
        found, uncounted = await self._attempt(owned, head, wish, go_on, made)
        if uncounted:
            await self._token_counts.count(owned.session, min(uncounted), max(uncounted))
            found, _ = await self._attempt(owned, head, wish, go_on, made)
        return found

    async def _attempt(
        self, owned: Owned, head: Head, wish: MakeRequest, go_on: Callable[[], bool], made: _Made
    ) -> tuple[list[TurnRenditions], list[int]]:
        session = owned.session
        keys = [turn_key(session, turn) for turn in range(owned.first, owned.last + 1)]

        async def body(transaction: Transaction) -> tuple[list[TurnRenditions], list[int]]:
            # Before the pieces: see above.
            stored = await transaction.collection(TurnCount).get_many(keys)
            counts = {count.turn: count for count in stored if count is not None}
            told = await self._maker.told(owned, round=wish.round, piece=wish.piece)
            uncounted = [each.number for each in told if not _is_counted(each, counts)]
            if uncounted and not made.counted:
                made.counted = True
                return [], uncounted
            there = [each for each in told if each.number in counts]
            batch = _Batch(self._maker, session, head, wish, made)
            await batch.load(transaction, there)
            found = [await batch.turned(each, counts[each.number], go_on) for each in there]
            await batch.store(transaction)
            return found, []

        return await self._store.transact(body)


class _Made(msgspec.Struct):
    """What was made already: a transaction that is repeated does not make it again."""

    variants: dict[tuple[RoundId, int], Variant] = {}
    tinies: dict[tuple[int, int], TinyVariant] = {}
    tokens: dict[tuple[RoundId, int], int] = {}
    counted: bool = False  # Counting was tried.


class _Batch:
    def __init__(
        self, maker: RenditionMaker, session: str, head: Head, wish: MakeRequest, made: _Made
    ) -> None:
        self._maker = maker
        self._session = session
        self._head = head
        self._wish = wish
        self._made = made
        self._rows: dict[str, Rendition] = {}
        self._tinies: dict[str, Tiny] = {}
        self._changed: dict[str, Rendition] = {}
        self._changed_tinies: dict[str, Tiny] = {}
        self._for_models: dict[int, bool] = {}  # Turns, and whether nothing of them is to come.
        self._new: set[int] = set()  # Turns of which something was made now.

    async def load(self, transaction: Transaction, told: Sequence[TurnMessages]) -> None:
        keys = [
            rendition_key(self._session, each.number, round)
            for each in told
            for round in each.rounds
        ]
        rows = await transaction.collection(Rendition).get_many(keys)
        self._rows = {row.id: row for row in rows if row is not None}
        if self._wish.tiny:
            keys = [turn_key(self._session, each.number) for each in told]
            tinies = await transaction.collection(Tiny).get_many(keys)
            self._tinies = {row.id: row for row in tinies if row is not None}

    async def store(self, transaction: Transaction) -> None:
        await transaction.collection(Rendition).put_many(self._changed.values())
        await transaction.collection(Tiny).put_many(self._changed_tinies.values())
        for turn, is_whole in self._for_models.items():
            delay = 0.0 if is_whole else _GATHER
            await self._maker.ask_model(
                transaction, self._session, turn, delay, anew=turn in self._new
            )

    async def turned(
        self, told: TurnMessages, count: TurnCount, go_on: Callable[[], bool]
    ) -> TurnRenditions:
        wish, closed = self._wish, told.is_closed(self._head)
        rounds, left = list[RoundSizes](), False
        for round, messages in told.rounds.items():
            place = RoundId(told.number, round)
            row = self._row(place)
            at = row.best(len(messages))
            if at is None or self._is_old(row.variants[at].recipe):
                if not (wish.incomplete or closed or told.is_complete(round)):
                    continue
                if self._is_worn(go_on):
                    left = True
                    continue
                variant = await self._variant(place, messages)
                variants = (*row.variants[: MOST_VARIANTS - 1], variant)
                row = self._changed[row.id] = msgspec.structs.replace(row, variants=variants)
                at = len(variants) - 1
                self._new.add(told.number)
            if lacking(row, wish.models):  # somebody may have read it, and so made it, before us
                self._for_models[told.number] = closed and wish.tiny
            used = row.variants[at]
            counted = count.of(round)
            raw = counted.tokens
            if counted.messages != len(messages):
                raw = await self._tokens(place, messages)
            rounds.append(RoundSizes(place, raw, used.smooth, used.compact, at, used.recipe))
        tiny = None
        if wish.tiny and (closed or wish.open_tiny):
            tiny = await self._tiny(told, go_on, closed=closed)
            left = left or tiny is None
        return TurnRenditions(told, closed, rounds, tiny, left)

    async def _tiny(
        self, told: TurnMessages, go_on: Callable[[], bool], *, closed: bool
    ) -> TinySize | None:
        key, messages = turn_key(self._session, told.number), told.messages
        row = self._changed_tinies.get(key) or self._tinies.get(key) or Tiny(key)
        at = row.best(messages)
        if at is None or self._is_old(row.variants[at].recipe):
            if self._is_worn(go_on):
                return None
            known = self._made.tinies.get((told.number, messages))
            if known is None:
                known = await self._maker.tiny(told.rounds.values())
                self._made.tinies[told.number, messages] = known
            if not closed:  # one for each message would fill the row: it is made again if asked for
                return TinySize(known.tokens, len(row.variants))
            variants = (*row.variants[: MOST_VARIANTS - 1], known)
            row = self._changed_tinies[key] = msgspec.structs.replace(row, variants=variants)
            at = len(variants) - 1
            self._new.add(told.number)
        if lacking(row, self._wish.models):
            self._for_models[told.number] = closed
        return TinySize(row.variants[at].tokens, at)

    def _is_worn(self, go_on: Callable[[], bool]) -> bool:
        return bool(self._made.variants or self._made.tinies) and not go_on()

    def _is_old(self, recipe: str) -> bool:
        """Whether to make it again. Not what a model made: that is for a model to better."""
        if not self._wish.stale:
            return False
        from perdure.history.renditions import algorithm

        return is_stale(recipe, recipe=algorithm.RECIPE, prompt=None)

    def _row(self, place: RoundId) -> Rendition:
        key = rendition_key(self._session, place.turn, place.round)
        return self._changed.get(key) or self._rows.get(key) or Rendition(key)

    async def _variant(self, place: RoundId, messages: tuple[Message, ...]) -> Variant:
        known = self._made.variants.get((place, len(messages)))
        if known is None:
            begun = time.perf_counter()
            known = await self._maker.variant(messages, place)
            self._made.variants[place, len(messages)] = known
            if self._wish.polite:
                await self._maker.jobs.give_way(time.perf_counter() - begun)
        return known

    async def _tokens(self, place: RoundId, messages: tuple[Message, ...]) -> int:
        known = self._made.tokens.get((place, len(messages)))
        if known is None:
            known = self._made.tokens[place, len(messages)] = await self._maker.tokens(messages)
        return known


def _is_counted(told: TurnMessages, counts: dict[int, TurnCount]) -> bool:
    count = counts.get(told.number)
    return count is not None and all(
        count.of(round).messages >= len(messages) for round, messages in told.rounds.items()
    )


async def _or_nothing(rows: Collection[S], keys: Iterable[str]) -> list[S | None]:
    """Rows by key; none, if one of them is damaged: they can all be made again."""
    wanted = list(keys)
    try:
        return await rows.get_many(wanted)
    except Corrupted:
        return [None] * len(wanted)


def portions(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    for start in range(0, len(items), size):
        yield items[start : start + size]


def _owned(record: SessionRecord, head: Head, numbers: Sequence[int]) -> list[Owned]:
    """Whose logs hold these turns, which are in order."""
    if not numbers:
        return []
    return [
        msgspec.structs.replace(owned, piece=head.pieces) if owned.session == record.id else owned
        for owned in owners(record, numbers[0], min(numbers[-1], head.turn))
    ]


def runs(numbers: Sequence[int], most: int, gap: int = 1) -> Iterator[tuple[int, int]]:
    """Neighbouring numbers together, so that each run is one read; at most so many.

    Those are neighbours that are not further apart than `gap`.
    """
    first = before = None
    for number in numbers:
        if first is None or before is None or number - before > gap or number - first >= most:
            if first is not None and before is not None:
                yield first, before
            first = number
        before = number
    if first is not None and before is not None:
        yield first, before

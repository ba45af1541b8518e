"""Makes what is missing of some turns, and stores it: S and C of their rounds, T of themselves.

What a transaction stores is made from pieces that were read after the turn's count, and it commits
only if that count is still the same. Forgetting a turn deletes its count before its content, and
again afterwards: so nothing that was made from a turn is stored once it is forgotten.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec

from perdure.core.messages import Message
from perdure.history.lines import Owned
from perdure.history.manifest import Place
from perdure.history.records import Head, TurnCount, turn_key
from perdure.history.renditions.craft import Craft
from perdure.history.renditions.records import (
    MOST_VARIANTS,
    Rendition,
    Tiny,
    TinyVariant,
    Variant,
    Work,
    is_stale,
    rendition_key,
    work_of,
    working,
    working_tiny,
)
from perdure.history.renditions.sources import Sources, Told
from perdure.history.token_counts import TokenCounts
from perdure.storage.store import Store
from perdure.storage.transaction import Transaction


class Made(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What a round takes at R, S and C, in tokens, and which variant of its renditions that is."""

    place: Place
    raw: int
    smooth: int
    compact: int
    variant: int
    recipe: str = ""


class MadeTiny(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What a turn takes at T, and which variant that is."""

    tokens: int
    variant: int


class Wish(NamedTuple):
    """What is to be made."""

    #: Also of rounds in which more is expected.
    incomplete: bool = False
    #: T of turns: of those that are closed, or of all.
    tiny: bool = False
    open_tiny: bool = False
    #: Once more, where an older recipe made it.
    stale: bool = False
    #: When a model is to work on what is new, in microseconds: of closed turns, of open ones.
    due: int | None = None
    due_open: int | None = None
    #: Slowly, while somebody appends.
    polite: bool = False
    #: The first round of interest, if only one turn is looked at, and the piece that it begins in.
    round: int = 1
    piece: int = 0


class Turned(msgspec.Struct, frozen=True, gc=False):
    """A turn, and what there is of it now."""

    told: Told
    closed: bool
    rounds: list[Made]
    tiny: MadeTiny | None
    #: Something of it was left for later, since others were to go first.
    left: bool = False


class Maker:
    """Makes and stores renditions of the turns in a store."""

    def __init__(self, store: Store, sources: Sources, craft: Craft, counts: TokenCounts) -> None:
        self._store = store
        self._sources = sources
        self._counts = counts
        self.craft = craft

    async def make(
        self,
        owned: Owned,
        head: Head,
        wish: Wish,
        go_on: Callable[[], bool] = lambda: True,
    ) -> list[Turned]:
        """Make what is missing of these turns, and store it; returns all there is then.

        Once `go_on` says no, what is made is stored, and the rest is left; one thing is made in any
        case. Turns that are forgotten are not among the results. Raises `Corrupted` if a piece of
        the log is damaged.
        """
        made = _Made()
        for counted in (False, True):
            found, uncounted = await self._attempt(owned, head, wish, go_on, made)
            if not uncounted or counted:
                return found
            await self._counts.count(owned.session, min(uncounted), max(uncounted))
        raise AssertionError("unreachable")

    async def _attempt(
        self, owned: Owned, head: Head, wish: Wish, go_on: Callable[[], bool], made: _Made
    ) -> tuple[list[Turned], list[int]]:
        session = owned.session
        keys = [turn_key(session, turn) for turn in range(owned.first, owned.last + 1)]

        async def body(transaction: Transaction) -> tuple[list[Turned], list[int]]:
            # Before the pieces: see above.
            stored = await transaction.collection(TurnCount).get_many(keys)
            counts = {count.turn: count for count in stored if count is not None}
            told = await self._sources.told(owned, round=wish.round, piece=wish.piece)
            uncounted = [each.number for each in told if not _is_counted(each, counts)]
            if uncounted and not made.counted:
                made.counted = True
                return [], uncounted
            there = [each for each in told if each.number in counts]
            batch = _Batch(self.craft, session, head, wish, made)
            await batch.load(transaction, there)
            found = [await batch.turned(each, counts[each.number], go_on) for each in there]
            await batch.store(transaction)
            return found, []

        return await self._store.transact(body)


class _Made(msgspec.Struct):
    """What was made already: a transaction that is repeated does not make it again."""

    variants: dict[tuple[Place, int], Variant] = {}
    tinies: dict[tuple[int, int], TinyVariant] = {}
    tokens: dict[tuple[Place, int], int] = {}
    #: Counting was tried.
    counted: bool = False


class _Batch:
    """Rows of some turns, as a transaction finds and leaves them."""

    def __init__(self, craft: Craft, session: str, head: Head, wish: Wish, made: _Made) -> None:
        self._craft = craft
        self._session = session
        self._head = head
        self._wish = wish
        self._made = made
        self._rows: dict[str, Rendition] = {}
        self._tinies: dict[str, Tiny] = {}
        self._changed: dict[str, Rendition] = {}
        self._changed_tinies: dict[str, Tiny] = {}

    async def load(self, transaction: Transaction, told: Sequence[Told]) -> None:
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

    async def turned(self, told: Told, count: TurnCount, go_on: Callable[[], bool]) -> Turned:
        wish, closed = self._wish, told.is_closed(self._head)
        rounds, left = list[Made](), False
        for round, messages in told.rounds.items():
            place = Place(told.number, round)
            row = self._row(place)
            at = row.best(len(messages))
            if at is None or self._is_old(row.variants[at].recipe):
                if not (wish.incomplete or closed or told.is_complete(round)):
                    continue
                if self._is_worn(go_on):
                    left = True
                    continue
                variant = await self._variant(place, messages)
                at = self._put(row, variant, wish.due if closed else wish.due_open)
                row = self._row(place)
            used = row.variants[at]
            counted = count.of(round)
            raw = counted.tokens
            if counted.messages != len(messages):
                raw = await self._tokens(place, messages)
            rounds.append(Made(place, raw, used.smooth, used.compact, at, used.recipe))
        tiny = None
        if wish.tiny and (closed or wish.open_tiny):
            tiny = await self._tiny(told, go_on, closed=closed)
            left = left or tiny is None
        return Turned(told, closed, rounds, tiny, left)

    async def _tiny(
        self, told: Told, go_on: Callable[[], bool], *, closed: bool
    ) -> MadeTiny | None:
        key, messages = turn_key(self._session, told.number), told.messages
        row = self._changed_tinies.get(key) or self._tinies.get(key) or Tiny(key)
        at = row.best(messages)
        if at is None or self._is_old(row.variants[at].recipe):
            if self._is_worn(go_on):
                return None
            known = self._made.tinies.get((told.number, messages))
            if known is None:
                known = await self._craft.tiny(told.rounds.values())
                self._made.tinies[told.number, messages] = known
            if not closed:  # one for each message would fill the row: it is made again if asked for
                return MadeTiny(known.tokens, len(row.variants))
            variants = (*row.variants[: MOST_VARIANTS - 1], known)
            due = self._wish.due
            work = Work(due) if due is not None else work_of(row)
            row = working_tiny(Tiny(key, variants), work)
            self._changed_tinies[key] = row
            at = len(variants) - 1
        return MadeTiny(row.variants[at].tokens, at)

    def _is_worn(self, go_on: Callable[[], bool]) -> bool:
        """Whether to stop: something was made, and others are to go first."""
        return bool(self._made.variants or self._made.tinies) and not go_on()

    def _is_old(self, recipe: str) -> bool:
        """Whether to make it again. Not what a model made: that is for a model to better."""
        if not self._wish.stale:
            return False
        from perdure.history.renditions import algorithm

        return is_stale(recipe, recipe=algorithm.RECIPE, prompt=None)

    def _row(self, place: Place) -> Rendition:
        key = rendition_key(self._session, place.turn, place.round)
        return self._changed.get(key) or self._rows.get(key) or Rendition(key)

    def _put(self, row: Rendition, variant: Variant, due: int | None) -> int:
        variants = (*row.variants[: MOST_VARIANTS - 1], variant)
        self._changed[row.id] = working(
            Rendition(row.id, variants), Work(due) if due is not None else work_of(row)
        )
        return len(variants) - 1

    async def _variant(self, place: Place, messages: tuple[Message, ...]) -> Variant:
        known = self._made.variants.get((place, len(messages)))
        if known is None:
            begun = time.perf_counter()
            known = await self._craft.variant(messages, place)
            self._made.variants[place, len(messages)] = known
            if self._wish.polite:
                await self._craft.jobs.give_way(time.perf_counter() - begun)
        return known

    async def _tokens(self, place: Place, messages: tuple[Message, ...]) -> int:
        known = self._made.tokens.get((place, len(messages)))
        if known is None:
            known = self._made.tokens[place, len(messages)] = await self._craft.tokens(messages)
        return known


def _is_counted(told: Told, counts: dict[int, TurnCount]) -> bool:
    count = counts.get(told.number)
    return count is not None and all(
        count.of(round).messages >= len(messages) for round, messages in told.rounds.items()
    )

"""Makes renditions by the algorithm, without blocking the event loop. The algorithm is loaded when
something is first made: a process that only reads does not wait for it.
"""

from __future__ import annotations

import asyncio
import importlib
import logging
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import groupby
from typing import TypeVar

import msgspec

from perdure.artifacts import ArtifactStore
from perdure.core.errors import Corrupted
from perdure.core.messages import Message
from perdure.core.tokens import Counter, count_messages
from perdure.history.intake import weight, with_words
from perdure.history.log_records import Head, Owned, TurnPiece, turn_key, turn_prefix
from perdure.history.manifest import RoundId
from perdure.history.renditions import rendition_packing
from perdure.history.renditions.rendition_records import TASK, TinyVariant, Variant
from perdure.history.token_counts import TokenCounts
from perdure.history.turn_reader import TurnReader, mark_of
from perdure.history.turn_tags import escape
from perdure.jobs import Job, JobState, Runner
from perdure.storage.record_keys import numbered
from perdure.storage.store import Store
from perdure.storage.transaction import Transaction

_HEAVY = 256  # Characters above which a round is worked on in a thread.
#: Seconds for which a thread may keep the interpreter to itself while we work in another.
_SWITCH = 0.0001
_TINY = 40  # Tokens of a turn at T that is merely cut.

_log = logging.getLogger(__name__)

_ALGORITHM = "perdure.history.renditions.algorithm"

R = TypeVar("R")


class TurnMessages(msgspec.Struct, frozen=True, gc=False):
    """The messages of a turn, round by round."""

    number: int
    rounds: dict[int, tuple[Message, ...]]
    begins: dict[int, int]  # Where each round begins: the number of a piece.

    @property
    def messages(self) -> int:
        return sum(map(len, self.rounds.values()))

    def is_complete(self, round: int) -> bool:
        if round < max(self.rounds):
            return True
        mark = mark_of(1, self.rounds[round])
        return mark.replied and not mark.waiting

    def is_closed(self, head: Head) -> bool:
        if self.number < head.turn or head.closed or head.mark.fresh:
            return True
        mark = mark_of(1, self.rounds[max(self.rounds)])
        return mark.closed


class RenditionMaker:
    """Makes texts by the algorithm; stores nothing."""

    def __init__(
        self,
        store: Store,
        reader: TurnReader,
        artifacts: ArtifactStore,
        counts: TokenCounts,
        jobs: Runner,
    ) -> None:
        self._reader = reader
        self._artifacts = artifacts
        self._pieces = store.collection(TurnPiece)
        self._counts = counts
        self.jobs = jobs
        self._is_loaded = False

    @property
    def counter(self) -> Counter:
        return self._counts.counter

    async def variant(self, messages: tuple[Message, ...], place: RoundId) -> Variant:
        full = await self.full(messages)
        return await self.worked(weight(full), lambda: _variant_of(full, place, self.counter))

    async def tiny(self, rounds: Iterable[tuple[Message, ...]]) -> TinyVariant:
        full = [await self.full(messages) for messages in rounds]
        return await self.worked(sum(map(weight, full)), lambda: _tiny_of(full, self.counter))

    async def run_text(
        self, rounds: Iterable[tuple[Message, ...]], cap: int, smooth: Sequence[str]
    ) -> str:
        full = [await self.full(messages) for messages in rounds]
        heavy = sum(map(weight, full)) + sum(map(len, smooth))
        return await self.worked(heavy, lambda: _run_of(full, cap, smooth, self.counter))

    async def merged(self, parts: Sequence[str], cap: int) -> str:
        """One text of at most `cap` tokens; see `merged_text.merge`."""
        return await self.worked(sum(map(len, parts)), lambda: _merged(parts, cap, self.counter))

    async def tokens(self, messages: tuple[Message, ...]) -> int:
        full = await self.full(messages)
        return await self.worked(weight(full), lambda: count_messages(self.counter, full))

    async def load(self) -> None:
        """Import the algorithm, in a thread: it takes long."""
        if not self._is_loaded:
            await asyncio.to_thread(importlib.import_module, _ALGORITHM)
            self._is_loaded = True

    async def worked(self, weight: int, work: Callable[[], R]) -> R:
        """The result of work on so many characters, without holding others up."""
        await self.load()
        await self.jobs.breathe()
        if weight > _HEAVY:
            with _sharing():
                return await asyncio.to_thread(work)
        return work()

    async def ask_model(
        self,
        transaction: Transaction,
        session: str,
        turn: int,
        delay: float = 0.0,
        *,
        anew: bool = True,
    ) -> None:
        """Queue a turn for models, after so many seconds; unless `anew`, not if it was given up."""
        key = turn_key(session, turn)
        if not anew:
            job = await transaction.collection(Job).get(f"{TASK}/{key}")
            if job is not None and job.state is JobState.FAILED:
                return
        await self.jobs.enqueue(transaction, TASK, [session, turn], key=key, delay=delay)

    async def told(self, owned: Owned, *, round: int = 1, piece: int = 0) -> list[TurnMessages]:
        """The messages of these turns without forgotten ones. Of a single turn, only from this
        round on, which begins in this piece.
        """
        if piece:
            prefix = turn_prefix(owned.session, owned.first)
            pieces = await self._pieces.behind(f"{prefix}{numbered(piece - 1)}", prefix)
            pieces = [each for each in pieces if each.number <= owned.piece]
        else:
            pieces = await self._reader.pieces(owned)
        return [turn for _, turn in _turns(pieces, round)]

    async def scattered(self, turns: Sequence[Owned]) -> dict[tuple[str, int], TurnMessages]:
        """The messages of single turns of any sessions, by session and number, in one read. Leaves
        out forgotten and damaged ones.
        """
        try:
            pieces = await self._reader.scattered(turns)
            return {(session, turn.number): turn for session, turn in _turns(pieces)}
        except Corrupted:  # one turn hides no other
            if len(turns) == 1:
                return {}
            parts = [await self.scattered([each]) for each in turns]
            return {place: turn for part in parts for place, turn in part.items()}

    async def full(self, messages: Iterable[Message]) -> tuple[Message, ...]:
        """With the text that is in the artifact store; no media. A missing artifact stays a
        reference.
        """
        return await with_words(messages, self._artifacts)


class _Sharing:
    """While our threads work, others get the interpreter fifty times as often: a wait is otherwise
    5 ms, and an append waits several times.
    """

    def __init__(self) -> None:
        self._threads = 0
        self._usual = 0.0

    @contextmanager
    def __call__(self) -> Iterator[None]:
        if not self._threads:
            self._usual = sys.getswitchinterval()
            sys.setswitchinterval(min(self._usual, _SWITCH))
        self._threads += 1
        try:
            yield
        finally:
            self._threads -= 1
            if not self._threads:
                sys.setswitchinterval(self._usual)


_sharing = _Sharing()


def _run_of(
    full: Sequence[tuple[Message, ...]], cap: int, smooth: Sequence[str], counter: Counter
) -> str:
    from perdure.history.renditions.line_choice import names_in_line
    from perdure.history.renditions.run_text import run_text

    shown = {name for text in smooth for name in names_in_line(text)}
    return rendition_packing.clean(run_text(full, cap, shown, counter))


def _merged(parts: Sequence[str], cap: int, counter: Counter) -> str:
    from perdure.history.renditions import algorithm

    return algorithm.merge(parts, cap, counter)


def _variant_of(full: tuple[Message, ...], place: RoundId, counter: Counter) -> Variant:
    from perdure.history.renditions import algorithm

    try:
        smooth, compact = map(rendition_packing.clean, algorithm.both(full, str(place)))
    except Exception:  # noqa: BLE001 (one text must not keep all others from theirs)
        _log.exception("%s could not be shortened, and is cut", place)
        whole = rendition_packing.clean(algorithm.raw(full))
        smooth, compact = (
            algorithm.truncate(whole, counter.count(whole) * share // 100, counter)
            for share in (50, 15)
        )
    return packed_variant(full, smooth, compact, counter, algorithm.RECIPE)


def packed_variant(
    full: tuple[Message, ...], smooth: str, compact: str, counter: Counter, recipe: str
) -> Variant:
    """The texts have to be `clean`."""
    return Variant(
        rendition_packing.pack(smooth, compact, rendition_packing.ground(full)),
        counter.count(escape(smooth)),
        counter.count(escape(compact)),
        len(full),
        recipe,
    )


def _tiny_of(full: Sequence[tuple[Message, ...]], counter: Counter) -> TinyVariant:
    from perdure.history.renditions import algorithm

    try:
        text = rendition_packing.clean(algorithm.tiny(full, counter))
    except Exception:  # noqa: BLE001 (as above)
        _log.exception("a turn could not be shortened, and is cut")
        whole = rendition_packing.clean(algorithm.raw([each for said in full for each in said]))
        text = algorithm.truncate(whole, _TINY, counter)
    return TinyVariant(text, counter.count(escape(text)), sum(map(len, full)), algorithm.RECIPE)


def _turns(pieces: Iterable[TurnPiece], first: int = 1) -> Iterator[tuple[str, TurnMessages]]:
    """Sessions and turns, from this round on, without forgotten ones."""
    for place, of_turn in groupby(pieces, lambda piece: piece.id.rpartition(".")[0]):
        rounds, begins = dict[int, tuple[Message, ...]](), dict[int, int]()
        for part in of_turn:
            if part.forgotten:
                continue
            for round, messages in part.by_round():
                if round >= first:
                    begins.setdefault(round, part.number)
                    rounds[round] = (*rounds.get(round, ()), *messages)
        if rounds:
            session, _, number = place.rpartition("/")
            yield session, TurnMessages(int(number), rounds, begins)

"""Counts the tokens of each round, exactly, and stores them.

Counting 5 KB takes longer than storing them. So an append only notes what is to be counted; it is
counted when nobody writes, when `settle` or `count` asks, and when the bank is closed. Importers
count at once. Where a provider returned its own figure, a model's calibration learns from the
difference: budgets are converted by it (`Calibrations.scale`).
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from itertools import islice
from typing import Annotated

import msgspec

from perdure.artifacts import ArtifactStore
from perdure.core.errors import ArtifactMissing, Corrupted, InvalidKey
from perdure.core.messages import Message, Reasoning, bare_model, references
from perdure.core.tokens import (
    Calibration,
    Counter,
    TokenScale,
    count_message,
    o200k,
    observe,
    steps,
)
from perdure.history.intake import PendingContents, ReferencedContents, resolved
from perdure.history.log_records import (
    ENDLESS,
    Head,
    Owned,
    RoundCount,
    SessionRecord,
    TurnCount,
    turn_key,
)
from perdure.history.piece_packing import RoundWritten
from perdure.history.turn_log import TURNS, AppendHook, Written
from perdure.history.turn_reader import TurnReader
from perdure.jobs import GoOn, Runner
from perdure.storage.records import Key, system_record
from perdure.storage.store import Store
from perdure.storage.transaction import Transaction

_FEW, _BATCH = 8, 64  # Rounds stored together: few at first, an append may come.
#: Rounds noted at most; of what comes above, only the turn is remembered, and read again.
_NOTED = 2_000
_SLICE = 0.002  # Seconds of counting after which others get a turn on the event loop.
_TURNS = 64  # Turns that are read together.

_log = logging.getLogger(__name__)


class TokenCounts:
    """Counts what was appended through one bank."""

    def __init__(
        self,
        store: Store,
        reader: TurnReader,
        artifacts: ArtifactStore,
        jobs: Runner,
        counter: Counter | None = None,
    ) -> None:
        self._store = store
        self._reader = reader
        self._artifacts = artifacts
        self._counter = counter
        self.calibrations = Calibrations(store, lambda: self.counter)
        self._noted: deque[_Noted] = deque()
        #: Sessions to be read again, from this turn on.
        self._missed: dict[str, int] = {}
        self._wake = jobs.idle("counting tokens", self._work, covers=TURNS, closing=math.inf)

    @property
    def counter(self) -> Counter:
        if self._counter is None:
            self._counter = o200k()
        return self._counter

    def note(self, written: Written) -> None:
        """Queue these rounds, unless they were counted inside the append."""
        if written.bulk or not written.rounds:
            return
        name = written.session.id
        if len(self._noted) + len(written.rounds) > _NOTED:
            self.missed(written.session, written.first, written.last)
        else:
            self._noted.extend([_Noted(name, round) for round in written.rounds])
            self._wake()

    def missed(self, record: SessionRecord, first: int, last: int) -> None:
        del last
        self._missed[record.id] = min(first, self._missed.get(record.id, ENDLESS))
        self._wake()

    def now(self, moved: Sequence[bytes]) -> AppendHook:
        """A hook for bulk writers that counts inside the append, which moves these contents out."""
        contents = PendingContents(moved, self._artifacts)

        async def hook(transaction: Transaction, written: Written) -> None:
            noted = [_Noted(written.session.id, round) for round in written.rounds]
            counted = await self._counted(noted, contents)
            await transaction.collection(TurnCount).put_many(counted)

        return hook

    async def _work(self, go_on: GoOn) -> bool:
        is_first = True
        while self._missed and (is_first or go_on()):
            is_first = False
            name, first = self._missed.popitem()
            try:
                head = await self._store.collection(Head).get(name)
                if head is not None:
                    await self.count(name, first, head.turn)
            except Corrupted as exc:
                _log.warning("the turns of %s cannot all be counted: %s", name, exc)
            except BaseException:  # cancelled, too: else its mark would go
                self._missed[name] = min(first, self._missed.get(name, ENDLESS))
                raise
        some = _FEW
        while self._noted and (is_first or go_on()):
            is_first = False
            batch = list(islice(self._noted, some))
            some = min(some * 2, _BATCH)
            await self._count_rounds(batch)
            await self.calibrations.learn(
                message for noted in batch for message in noted.round.messages
            )
            for _ in batch:
                self._noted.popleft()
        return bool(self._noted or self._missed)

    async def count(self, session: str, turn: int, end: int) -> None:
        while turn <= end:
            last = min(turn + _TURNS - 1, end)
            pieces = await self._reader.pieces(Owned(session, turn, last))
            said: dict[tuple[int, int], list[Message]] = {}
            for piece in pieces:
                for round, messages in piece.by_round():
                    said.setdefault((piece.turn, round), []).extend(messages)
            await self._count_rounds(
                [
                    _Noted(session, RoundWritten(at, round, tuple(messages), 0))
                    for (at, round), messages in said.items()
                ]
            )
            turn = last + 1

    async def _count_rounds(self, noted: Sequence[_Noted]) -> None:
        """Count rounds and store it, unless others have counted as much or the session is gone."""
        counted = await self._counted(noted)

        async def body(transaction: Transaction) -> None:
            names = list(dict.fromkeys(_session_of(each) for each in counted))
            # Forgetting takes the head, then changes the record: so that we notice is checked. The
            # head itself is not, because it changes with every append.
            await transaction.collection(SessionRecord).get_many(names)
            heads = await self._store.collection(Head).get_many(names)
            there = {head.id for head in heads if head is not None}
            records = transaction.collection(TurnCount)
            stored = await records.get_many([each.id for each in counted])
            news = [
                merged
                for new, old in zip(counted, stored, strict=True)
                if _session_of(new) in there and (merged := _merged(new, old)) != old
            ]
            await records.put_many(news)

        if counted:
            await self._store.transact(body)

    async def _counted(
        self, noted: Sequence[_Noted], pending: PendingContents | None = None
    ) -> list[TurnCount]:
        """`pending`: the rounds are not in the store yet; it has what was moved out of them."""
        begun = {item.key for item in noted if item.round.round == 1 and not item.round.before}
        asked = [item.key for item in noted if not (pending and item.key in begun)]
        stored = await self._store.collection(TurnCount).get_many(dict.fromkeys(asked))
        known = {found.id: found for found in stored if found is not None}
        changed = dict[str, TurnCount]()
        for item in noted:
            key, round = item.key, item.round
            count, said = known.get(key, TurnCount(key)), round.messages
            before = count.of(round.round)
            if before.messages >= round.before + len(said):
                continue  # it was counted meanwhile
            if before.messages != round.before:
                # Others wrote to it too, and have not counted yet: begin anew.
                before, said = RoundCount(), await self._whole(item.session, round)
                said = (*said, *round.messages) if pending else said
            tokens = await self._tokens(said, pending or self._artifacts)
            now = RoundCount(before.tokens + tokens, before.messages + len(said))
            changed[key] = known[key] = count.having(round.round, now)
        return list(changed.values())

    async def _tokens(self, messages: tuple[Message, ...], contents: ReferencedContents) -> int:
        loop = asyncio.get_running_loop()
        started, tokens = loop.time(), 0
        for count in steps(self.counter, await _full(messages, contents)):
            tokens += count
            if loop.time() - started > _SLICE:
                await asyncio.sleep(0)
                started = loop.time()
        return tokens

    async def _whole(self, session: str, round: RoundWritten) -> tuple[Message, ...]:
        """All that the store has of a round; nothing, if it is damaged."""
        try:
            pieces = await self._reader.pieces(Owned(session, round.turn, round.turn))
            return tuple(
                message
                for piece in pieces
                for number, messages in piece.by_round()
                if number == round.round
                for message in messages
            )
        except Corrupted as exc:
            _log.warning("a round of %s cannot be counted: %s", session, exc)
            return ()


class _Noted(msgspec.Struct, frozen=True):
    session: str
    round: RoundWritten

    @property
    def key(self) -> str:
        return turn_key(self.session, self.round.turn)


async def _full(messages: tuple[Message, ...], contents: ReferencedContents) -> tuple[Message, ...]:
    if not references(messages):
        return messages
    try:
        return await resolved(messages, contents)
    except (ArtifactMissing, Corrupted):
        return messages


def _session_of(record: TurnCount) -> str:
    return record.id.rpartition("/")[0]


def _merged(new: TurnCount, old: TurnCount | None) -> TurnCount:
    if old is not None:
        for round, counted in enumerate(old.counted, 1):
            if counted.messages > new.of(round).messages:
                new = new.having(round, counted)
    return new


@system_record("calibrations")
class CalibrationRecord(msgspec.Struct, frozen=True):
    """How a model's own token counts compare with ours."""

    id: Annotated[str, Key()]  # `bare_model`: who serves it counts alike
    calibration: Calibration


class Calibrations:
    """The calibrations of all models."""

    def __init__(self, store: Store, counter: Callable[[], Counter]) -> None:
        self._store = store
        self._counter = counter

    async def of(self, model: str) -> Calibration:
        with suppress(InvalidKey):  # a model's name can be anything
            return self._known(
                await self._store.collection(CalibrationRecord).get(bare_model(model))
            )
        return self._known(None)

    async def scale(self, model: str) -> TokenScale:
        """How the model's provider counts; as we do, while nothing is known of it."""
        return (await self.of(model)).scale if model else TokenScale()

    def _known(self, found: CalibrationRecord | None) -> Calibration:
        """What was learned with another counter says nothing about this one."""
        name = self._counter().name
        if found is None or found.calibration.counter != name:
            return Calibration(counter=name)
        return found.calibration

    async def learn(self, messages: Iterable[Message]) -> None:
        samples: dict[str, list[tuple[int, int]]] = {}
        for message in messages:
            theirs = message.usage.output if message.usage is not None else None
            if theirs and message.model and not _hides(message):
                ours = count_message(self._counter(), message)
                samples.setdefault(bare_model(message.model), []).append((ours, theirs))
        records = self._store.collection(CalibrationRecord)
        for model, pairs in samples.items():

            def learnt(
                found: CalibrationRecord | None,
                model: str = model,
                pairs: list[tuple[int, int]] = pairs,
            ) -> CalibrationRecord:
                known = self._known(found)
                for ours, theirs in pairs:
                    known = observe(known, ours, theirs)
                return CalibrationRecord(model, known)

            with suppress(InvalidKey):
                await records.change(model, learnt)


def _hides(message: Message) -> bool:
    hidden = (message.usage.reasoning or 0) if message.usage is not None else 0
    if hidden or message.partial or references((message,)):
        return True
    return any(isinstance(part, Reasoning) for part in message.parts)

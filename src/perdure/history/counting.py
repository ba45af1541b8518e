"""What rounds come to in tokens, and storing it. `meter` knows when."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

import msgspec

from perdure.artifacts import ArtifactStore
from perdure.core.errors import ArtifactMissing, Corrupted
from perdure.core.messages import Message, references
from perdure.core.tokens import Counter, steps
from perdure.history.intake import Contents, Pending, resolved
from perdure.history.lines import Owned
from perdure.history.packing import RoundWritten
from perdure.history.reading import Reader
from perdure.history.records import Counted, Head, SessionRecord, TurnCount, turn_key
from perdure.storage.store import Store
from perdure.storage.transaction import Transaction

#: Seconds of counting after which others get a turn on the event loop.
_SLICE = 0.002
#: Turns that are read together.
_TURNS = 64

_log = logging.getLogger(__name__)


class Noted(msgspec.Struct, frozen=True):
    """A round that is to be counted."""

    session: str
    round: RoundWritten

    @property
    def key(self) -> str:
        return turn_key(self.session, self.round.turn)


class Counting:
    """Counts rounds. `counter` is asked for when there is something to count: it loads slowly."""

    def __init__(
        self,
        store: Store,
        reader: Reader,
        artifacts: ArtifactStore,
        counter: Callable[[], Counter],
    ) -> None:
        self._store = store
        self._reader = reader
        self._artifacts = artifacts
        self._counter = counter

    async def turns(self, session: str, turn: int, end: int) -> None:
        """Count these turns as the store has them, and store it."""
        while turn <= end:
            last = min(turn + _TURNS - 1, end)
            pieces = await self._reader.pieces(Owned(session, turn, last))
            said: dict[tuple[int, int], list[Message]] = {}
            for piece in pieces:
                for round, messages in piece.by_round():
                    said.setdefault((piece.turn, round), []).extend(messages)
            await self.rounds(
                [
                    Noted(session, RoundWritten(at, round, tuple(messages), 0))
                    for (at, round), messages in said.items()
                ]
            )
            turn = last + 1

    async def rounds(self, noted: Sequence[Noted]) -> None:
        """Count rounds and store it, unless others have counted as much or the session is gone."""
        counted = await self.counted(noted)

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

    async def counted(
        self, noted: Sequence[Noted], pending: Pending | None = None
    ) -> list[TurnCount]:
        """The counts of these rounds' turns, with what was counted of them before.

        `pending` says that the rounds are not in the store yet, and has what was moved out of them.
        """
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
                before, said = Counted(), await self._whole(item.session, round)
                said = (*said, *round.messages) if pending else said
            tokens = await self._tokens(said, pending or self._artifacts)
            now = Counted(before.tokens + tokens, before.messages + len(said))
            changed[key] = known[key] = count.having(round.round, now)
        return list(changed.values())

    async def _tokens(self, messages: tuple[Message, ...], contents: Contents) -> int:
        loop = asyncio.get_running_loop()
        started, tokens = loop.time(), 0
        for count in steps(self._counter(), await _full(messages, contents)):
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


async def _full(messages: tuple[Message, ...], contents: Contents) -> tuple[Message, ...]:
    """The messages with what was moved out of them, which a raw prompt would carry."""
    if not any(True for _ in references(messages)):
        return messages
    try:
        return await resolved(messages, contents)
    except (ArtifactMissing, Corrupted):
        return messages


def _session_of(record: TurnCount) -> str:
    return record.id.rpartition("/")[0]


def _merged(new: TurnCount, old: TurnCount | None) -> TurnCount:
    """Of each round what covers more of it."""
    if old is not None:
        for round, counted in enumerate(old.counted, 1):
            if counted.messages > new.of(round).messages:
                new = new.having(round, counted)
    return new

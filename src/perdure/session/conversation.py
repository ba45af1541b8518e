"""What a session is and where it stands: what its roles share.

The roles are `Writing`, `Answering`, `Reading`, `Contexts`, `Recalling` and `Shared`, a module
each. They use what stands here, and never one another.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from itertools import groupby
from typing import TYPE_CHECKING, Any

import msgspec

from perdure.context.composer import Composer
from perdure.context.composer import Rooms as ContextRooms
from perdure.context.desk import SessionDesk
from perdure.core.errors import InvalidInput
from perdure.core.messages import Message
from perdure.core.turns import Round, Turn
from perdure.history.intake import Intake
from perdure.history.log import TurnLog, Writer, Written
from perdure.history.reading import Reader
from perdure.history.records import Head, SessionRecord
from perdure.history.token_counts import TokenCounts
from perdure.storage.store import Store
from perdure.storage.transaction import Transaction

if TYPE_CHECKING:
    from perdure.artifacts import ArtifactStore
    from perdure.config import PruneRule

#: Pieces in which the call is looked for that a result belongs to.
_RECENT = 8


class Rooms(msgspec.Struct, frozen=True):
    """What sessions of one bank share."""

    store: Store
    log: TurnLog
    reader: Reader
    meter: TokenCounts
    artifacts: ArtifactStore
    rules: tuple[PruneRule, ...]
    heartbeat: float
    contexts: ContextRooms


class Conversation:
    """One conversation, and one who writes to it."""

    def __init__(self, rooms: Rooms, record: SessionRecord, intake: Intake) -> None:
        self._rooms = rooms
        self._intake = intake
        intake.recall = self._recent
        self._writer = Writer(record)
        #: Held while this writer writes: its place in the conversation moves with each append.
        self._writing = asyncio.Lock()
        #: The turns that prompts of contexts opened, by the turn that was expected and the prompt.
        self._begun = dict[tuple[int, bytes], int]()
        self._composer = Composer(rooms.contexts)
        self._desk = SessionDesk(rooms.contexts, self._composer, self._standing)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name}>"

    @property
    def name(self) -> str:
        """``agent/name``."""
        return self._writer.record.id

    @property
    def agent(self) -> str:
        return self._writer.record.agent

    @property
    def state(self) -> dict[str, Any]:
        """What `describe` keeps with the session."""
        return self._writer.record.state

    @property
    def record(self) -> SessionRecord:
        """The session as it is stored."""
        return self._writer.record

    async def head(self) -> Head:
        """Where the session stands: its newest turn and so on."""
        found = await self._rooms.store.collection(Head).get(self.name)
        return Head(self.name) if found is None else found

    # For the roles ----------------------------------------------------------------------------

    async def _current(self) -> SessionRecord:
        """The record. A fork's is read again: its line changes when its parent is forgotten."""
        if self.record.line:
            found = await self._rooms.store.collection(SessionRecord).get(self.name)
            self._writer.record = found or self.record
        return self.record

    async def _standing(self) -> tuple[SessionRecord, Head]:
        """The record and the head, as they are now."""
        return await self._current(), await self.head()

    async def _recent(self) -> list[Message]:
        """What was said last."""
        pieces = await self._rooms.reader.latest(self.record, _RECENT)
        return [message for piece in pieces for message in piece.messages()]

    async def _change_head(
        self,
        change: Callable[[Head], Head],
        within: Callable[[Transaction, Head], Awaitable[None]] | None = None,
    ) -> Head:
        """Change where the session stands, again if others write first."""
        async with self._writing:
            return await self._rooms.log.change_head(self._writer, change, within)

    async def _change_record(self, change: Callable[[SessionRecord], SessionRecord]) -> None:
        """Change the session as it is stored. Raises `InvalidInput` if it was forgotten."""

        def changed(found: SessionRecord | None) -> SessionRecord:
            if found is None:
                raise InvalidInput(f"The session {self.name} is gone.", hint="Open it again.")
            return change(found)

        records = self._rooms.store.collection(SessionRecord)
        self._writer.record = await records.change(self.name, changed)


def turns_of(written: Written) -> list[Turn]:
    """The turns as far as they were written now."""
    session, turns = written.session.id, list[Turn]()
    pieces_of = {
        number: list(pieces) for number, pieces in groupby(written.pieces, lambda p: p.turn)
    }
    for number, rounds in groupby(written.rounds, lambda round: round.turn):
        pieces = pieces_of[number]
        newest = number == written.head.turn
        is_open = newest and not written.head.mark.closed
        turns.append(
            Turn(
                session=session,
                number=number,
                rounds=tuple(Round(round.round, round.messages) for round in rounds),
                status="open" if is_open else "closed",
                started=pieces[0].time,
                ended=pieces[-1].ended,
                tags=pieces[0].tags,
                masked=pieces[0].masked,
            )
        )
    return turns

"""Reads a session: its turns, and new messages as they are appended."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping
from typing import Any

import msgspec

from perdure.core.clock import When
from perdure.core.errors import NotFound
from perdure.core.input_types import require_text
from perdure.core.messages import ArtifactPointer, Message, ToolResult
from perdure.core.turns import Position, Round, Turn
from perdure.history.intake import resolved
from perdure.history.log_records import Head, SessionRecord
from perdure.history.turn_reader import position
from perdure.history.turn_search import FoundTurn, search
from perdure.services import Services
from perdure.sessions.session_writer import SessionWriter
from perdure.sessions.validation import (
    MOST_HITS,
    count_in,
    moment,
    number_in,
    runs,
    tags_of,
    turn_number,
)

_POLL = 0.2  # Seconds between two looks for what other processes wrote.


class TailMessage(msgspec.Struct, frozen=True):
    """A message and its place: what `Session.tail` yields."""

    turn: int
    round: int
    message: Message

    @property
    def id(self) -> str:
        return str(Position(self.turn, self.round))


class SessionReader:
    """What a `Session` offers to those who only read it."""

    def __init__(self, services: Services, writer: SessionWriter) -> None:
        self._services = services
        self._writer = writer

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name}>"

    @property
    def name(self) -> str:
        return self.record.id

    @property
    def agent(self) -> str:
        return self.record.agent

    @property
    def state(self) -> dict[str, Any]:
        """The state that `describe` stores."""
        return self.record.state

    @property
    def record(self) -> SessionRecord:
        return self._writer.record

    async def current_record(self) -> SessionRecord:
        """As it is now: a fork's line changes when its parent is forgotten."""
        return await self._writer.current()

    async def head(self) -> Head:
        return await self._writer.head()

    async def turns(
        self,
        limit: int = 20,
        *,
        before: str | int | Position | None = None,
        since: When | None = None,
        until: When | None = None,
        tags: Mapping[str, str] | None = None,
        undone: bool = False,
        resolve: bool = False,
        prune: bool = False,
    ) -> list[Turn]:
        """The newest turns, oldest of them first; for the page before them give `before`.

        `since` (inclusive), `until` (exclusive) and `tags` select turns by their beginning. Times
        are datetimes, dates, or texts such as ``"2026-02-12"`` and ``"3d"`` (see
        `perdure.core.clock.moment`); a date as `until` includes that day. Undone turns are left out
        unless `undone`. `resolve` fetches content from the artifact store. `prune` shortens tool
        results by the rules of `history.pruning`; of one that lies there, the pointer stays and
        shows the shortened text, unless `resolve`.
        """
        limit, now = count_in(limit, "read"), self._services.store.now()
        head, record = await self.head(), await self._writer.current()
        reader = self._services.reader
        numbers = await reader.numbers(
            record,
            head,
            limit=limit,
            before=None if before is None else turn_number(before),
            since=moment(since, now),
            until=moment(until, now, last=True),
            tags=tags_of(tags),
            undone=undone,
        )
        found: list[Turn] = []
        for first, last in runs(numbers):
            found += await reader.turns(record, head, first, last)
        if resolve or prune:
            return [await self._shown(turn, resolve=resolve, prune=prune) for turn in found]
        return found

    async def turn(
        self, id: str | int | Position, *, resolve: bool = False, prune: bool = False
    ) -> Turn:
        """One turn, also an undone or forgotten one; of ``T-12.3``, that round alone. Raises
        `InvalidInput` if there is no such turn or round.
        """
        place, head = position(id, self.record), await self.head()
        turn = await self._services.reader.turn(await self._writer.current(), head, place.turn)
        if place.round is not None:
            rounds = tuple(round for round in turn.rounds if round.number == place.round)
            if not rounds:
                raise NotFound(
                    f"{turn.id} of {self.name} has no round {place.round}.",
                    hint=f"It has {len(turn.rounds)}.",
                )
            turn = msgspec.structs.replace(turn, rounds=rounds)
        return await self._shown(turn, resolve=resolve, prune=prune)

    async def read(
        self, first: int = 1, last: int | None = None, *, undone: bool = False
    ) -> AsyncIterator[Turn]:
        """All turns in order, a few at a time in memory."""
        head, record = await self.head(), await self._writer.current()
        async for turn in self._services.reader.walk(record, head, first, last):
            if undone or not head.is_undone(turn.number):
                yield turn

    async def search(self, query: str, *, limit: int = 20) -> list[FoundTurn]:
        """Rounds of the newest 5,000 turns that have at least half of the words of a query, those
        with most of them first; without an index. Recall finds more.
        """
        limit = number_in(limit, "limit", MOST_HITS)
        query = require_text(query, "query")
        record, head = await self._writer.current(), await self.head()
        return await search(self._services.reader, record, head, query, limit)

    async def tail(
        self, *, after: str | int | Position | None = None
    ) -> AsyncIterator[TailMessage]:
        """Messages as they are appended, by any process, until the consumer stops. Begins with the
        next one, or behind the turn `after` (0: with all).
        """
        log, reader, name = self._services.log, self._services.reader, self.name
        event = log.watch(name)
        try:
            head = await self.head()
            seen = head.pieces
            if after is not None:
                first = turn_number(after) + 1
                record = await self._writer.current()
                async for turn in reader.walk(record, head, first, arriving=False):
                    if not head.is_undone(turn.number):
                        for said in _said(turn):
                            yield said
            while True:
                event.clear()
                head = await self.head()
                if head.pieces > seen:
                    for piece in await reader.chained(self.record, seen, head):
                        for round, messages in piece.by_round():
                            for message in messages:
                                yield TailMessage(piece.turn, round, message)
                    seen = head.pieces
                try:
                    async with asyncio.timeout(_POLL):
                        await event.wait()
                except TimeoutError:
                    pass
        finally:
            log.leave(name, event)

    async def resolve(self, messages: Iterable[Message]) -> tuple[Message, ...]:
        """The messages with content from the artifact store put back in."""
        return await resolved(messages, self._services.artifacts)

    async def _shown(self, turn: Turn, *, resolve: bool, prune: bool) -> Turn:
        if not resolve and not prune:
            return turn
        rounds: list[Round] = []
        for round in turn.rounds:
            # Also for pruning: what was moved out is what is most worth it.
            messages = await self.resolve(round.messages)
            if prune:
                messages = self._pruned(turn.number, round, messages, whole=resolve)
            rounds.append(msgspec.structs.replace(round, messages=messages))
        return msgspec.structs.replace(turn, rounds=tuple(rounds))

    def _pruned(
        self, turn: int, round: Round, messages: Iterable[Message], *, whole: bool
    ) -> tuple[Message, ...]:
        from perdure.history.pruning import keep_pointers, prune_tool_results

        place, settings = str(Position(turn, round.number)), self._services.config.history
        moved = {
            result.call: part.artifact
            for message in round.messages
            for result in message.results
            for part in result.content
            if isinstance(part, ArtifactPointer)
        }

        def pointer(result: ToolResult) -> str:
            return ", ".join(filter(None, (place, moved.get(result.call))))

        pruned = prune_tool_results(
            messages, settings.prune, pointer=pointer, tokens=settings.prune_tokens
        )
        return pruned if whole else tuple(map(keep_pointers, round.messages, pruned))


def _said(turn: Turn) -> Iterable[TailMessage]:
    for round in turn.rounds:
        for message in round.messages:
            yield TailMessage(turn.number, round.number, message)

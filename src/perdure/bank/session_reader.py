"""Reads a session: its turns, and new messages as they are appended."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping

import msgspec

from perdure.bank.session_writer import SessionWriter
from perdure.bank.validation import count_in, moment, runs, tags_of, turn_number
from perdure.core.clock import When
from perdure.core.errors import InvalidInput
from perdure.core.messages import Message, ToolResult
from perdure.core.turns import Position, Round, Turn
from perdure.history.intake import resolved
from perdure.history.turn_reader import position
from perdure.services import Services

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
    """Reads one conversation. The methods are those of `Session`, which documents them."""

    def __init__(self, services: Services, writer: SessionWriter) -> None:
        self._services = services
        self._writer = writer

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
        limit, now = count_in(limit, "read"), self._services.store.now()
        head, reader, record = (
            await self._writer.head(),
            self._services.reader,
            await self._writer.current(),
        )
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
        found = list[Turn]()
        for first, last in runs(numbers):
            found += await reader.turns(record, head, first, last)
        return [await self._shown(turn, resolve=resolve, prune=prune) for turn in found]

    async def turn(
        self,
        id: str | int | Position,
        *,
        resolve: bool,
        prune: bool,
    ) -> Turn:
        place = position(id, self._writer.record)
        head = await self._writer.head()
        turn = await self._services.reader.turn(await self._writer.current(), head, place.turn)
        if place.round is not None:
            rounds = tuple(round for round in turn.rounds if round.number == place.round)
            if not rounds:
                raise InvalidInput(
                    f"{turn.id} of {self._writer.record.id} has no round {place.round}.",
                    hint=f"It has {len(turn.rounds)}.",
                )
            turn = msgspec.structs.replace(turn, rounds=rounds)
        return await self._shown(turn, resolve=resolve, prune=prune)

    async def read(
        self, first: int = 1, last: int | None = None, *, undone: bool = False
    ) -> AsyncIterator[Turn]:
        head = await self._writer.head()
        async for turn in self._services.reader.walk(
            await self._writer.current(), head, first, last
        ):
            if undone or not head.is_undone(turn.number):
                yield turn

    async def tail(
        self, *, after: str | int | Position | None = None
    ) -> AsyncIterator[TailMessage]:
        log, reader, name = self._services.log, self._services.reader, self._writer.record.id
        event = log.watch(name)
        try:
            head = await self._writer.head()
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
                head = await self._writer.head()
                if head.pieces > seen:
                    for piece in await reader.chained(self._writer.record, seen, head):
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
        return await resolved(messages, self._services.artifacts)

    async def _shown(self, turn: Turn, *, resolve: bool, prune: bool) -> Turn:
        if not resolve and not prune:
            return turn
        rounds = list[Round]()
        for round in turn.rounds:
            messages = round.messages
            if resolve or prune:  # what was moved out is what is most worth pruning
                messages = await self.resolve(messages)
            if prune:
                messages = self._pruned(turn.number, round.number, messages)
            rounds.append(msgspec.structs.replace(round, messages=messages))
        return msgspec.structs.replace(turn, rounds=tuple(rounds))

    def _pruned(self, turn: int, round: int, messages: Iterable[Message]) -> tuple[Message, ...]:
        from perdure.history.pruning import prune_tool_results

        def pointer(_: ToolResult) -> str:
            return str(Position(turn, round))

        return tuple(
            prune_tool_results(
                messages, tuple(self._services.config.history.prune), pointer=pointer
            )
        )


def _said(turn: Turn) -> Iterable[TailMessage]:
    for round in turn.rounds:
        for message in round.messages:
            yield TailMessage(turn.number, round.number, message)

"""Reading a session: its turns, and what is said from now on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping
from typing import overload

import msgspec

from perdure.context.desk import Rendering
from perdure.core.clock import When
from perdure.core.errors import InvalidInput
from perdure.core.levels import Level, parse_level
from perdure.core.messages import Message, ToolResult
from perdure.core.turns import Position, Round, Turn
from perdure.history.intake import resolved
from perdure.history.reading import position
from perdure.session.conversation import Conversation
from perdure.session.given import count_in, moment, runs, tags_of, turn_number

#: Seconds between two looks for what other processes wrote.
_POLL = 0.2


class Said(msgspec.Struct, frozen=True):
    """A message and where it stands: what `Session.tail` yields."""

    turn: int
    round: int
    message: Message

    @property
    def id(self) -> str:
        """``T-183.4``."""
        return str(Position(self.turn, self.round))


class Reading(Conversation):
    """The role of a session that reads."""

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
        """The newest turns, oldest of them first; for the page in front give `before`.

        `since`, `until` and `tags` choose turns by their beginning: from the one time on, before
        the other, which are datetimes, dates, or texts such as ``"2026-02-12"`` and ``"3d"`` (see
        `perdure.core.clock.moment`); a date as `until` is all of that day. Turns that were undone
        are left out unless asked for.
        `resolve` fetches content from the artifact store; `prune` does too, and shortens tool
        results by the rules of `history.pruning`.
        """
        limit, now = count_in(limit, "read"), self._rooms.store.now()
        head, reader, record = await self.head(), self._rooms.reader, await self._current()
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

    @overload
    async def turn(
        self,
        id: str | int | Position,
        *,
        level: None = None,
        resolve: bool = False,
        prune: bool = False,
    ) -> Turn: ...
    @overload
    async def turn(self, id: str | int | Position, *, level: Level | str) -> Rendering: ...
    async def turn(
        self,
        id: str | int | Position,
        *,
        level: Level | str | None = None,
        resolve: bool = False,
        prune: bool = False,
    ) -> Turn | Rendering:
        """One turn, whatever became of it; of ``T-12.3``, that round alone.

        With a `level`, its words at R, S, C or T; made now, if they are not there yet.

        Raises `InvalidInput` if there is no such turn, round or level.
        """
        place = position(id, self.record)
        if level is not None:
            return await self._desk.rendering(place, parse_level(level))
        head = await self.head()
        turn = await self._rooms.reader.turn(await self._current(), head, place.turn)
        if place.round is not None:
            rounds = tuple(round for round in turn.rounds if round.number == place.round)
            if not rounds:
                raise InvalidInput(
                    f"{turn.id} of {self.name} has no round {place.round}.",
                    hint=f"It has {len(turn.rounds)}.",
                )
            turn = msgspec.structs.replace(turn, rounds=rounds)
        return await self._shown(turn, resolve=resolve, prune=prune)

    async def read(
        self, first: int = 1, last: int | None = None, *, undone: bool = False
    ) -> AsyncIterator[Turn]:
        """All turns in their order, a few at a time in memory."""
        head = await self.head()
        async for turn in self._rooms.reader.walk(await self._current(), head, first, last):
            if undone or not head.is_undone(turn.number):
                yield turn

    async def tail(self, *, after: str | int | Position | None = None) -> AsyncIterator[Said]:
        """Messages as they are appended, by whatever process; ends when its consumer stops.

        Begins with what comes next, or with what stands behind the turn `after` (0: with all).
        """
        log, reader, name = self._rooms.log, self._rooms.reader, self.name
        event = log.watch(name)
        try:
            head = await self.head()
            seen = head.pieces
            if after is not None:
                first = turn_number(after) + 1
                record = await self._current()
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
                                yield Said(piece.turn, round, message)
                    seen = head.pieces
                try:
                    async with asyncio.timeout(_POLL):
                        await event.wait()
                except TimeoutError:
                    pass
        finally:
            log.leave(name, event)

    async def resolve(self, messages: Iterable[Message]) -> tuple[Message, ...]:
        """The messages with what lies in the artifact store put back in."""
        return await resolved(messages, self._rooms.artifacts)

    # ------------------------------------------------------------------------------------------

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

        return tuple(prune_tool_results(messages, self._rooms.rules, pointer=pointer))


def _said(turn: Turn) -> Iterable[Said]:
    for round in turn.rounds:
        for message in round.messages:
            yield Said(turn.number, round.number, message)

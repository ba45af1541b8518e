"""Whole rounds, the newest that fit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from perdure.core.errors import BudgetTooSmall
from perdure.core.messages import Message
from perdure.core.tokens import count_messages
from perdure.history.manifest import Place
from perdure.history.reducing import reduced
from perdure.history.shown import Injected, Native, Shown
from perdure.history.strategies import Ask, Desk, Look, Name, Visible
from perdure.history.strategies.rounds import Rounds, Said

#: Turns that are read first, from the newest back.
_STEP = 50


class Regular:
    """Shows the newest rounds whole, and nothing of what is older.

    A round is never torn apart, so no result loses its call. The prompt of the turn under way is
    always shown.
    """

    name: Final[Name] = "regular"

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self._rounds = Rounds(desk.reader, desk.artifacts, desk.meter)

    async def standing_since(self, ask: Ask) -> int:
        return ask.turn

    async def look(self, ask: Ask, reserve: int = 0) -> Look:
        """What will stand in the window for sure; more does, if not all of the reserve is used."""
        room, found = ask.budget - ask.fixed - reserve, list[Visible]()
        for each in reversed(await self._enough(ask, self._rounds)):
            room -= each.tokens
            if room < 0:
                break
            found.append(Visible("R", each.place, each.place))
        return Look(ask.turn, visible=found)

    async def show(self, ask: Ask) -> Shown:
        return await self._fitted(ask, await self._enough(ask, self._rounds))

    async def past(self, ask: Ask, place: Place) -> Shown:
        """What was shown when a round was asked for: `ask` is that request, as it was."""
        rounds = Rounds(self._desk.reader, self._desk.artifacts, self._desk.meter, tombstones=True)
        said = await self._enough(ask, rounds, place)
        return await self._fitted(ask, said)

    async def _fitted(self, ask: Ask, said: Sequence[Said]) -> Shown:
        room, under_way = ask.budget - ask.fixed, not ask.prompted
        opening = tuple[Message, ...]()
        injected = list[Injected]()
        if under_way:
            opening = (await self._rounds.prompt(ask.record, ask.head, ask.turn)).messages
            injected += await ask.injected(ask.turn, ask.turn)
        room -= sum(each.tokens for each in injected)
        aside = count_messages(self._desk.counter, opening)
        shown = list[Native]()
        for each in reversed(said):
            left = room if each.place == Place(ask.turn) else room - aside
            if each.tokens <= left:
                shown.append(_native(each, ask))
            elif not shown and under_way:
                shown.append(self._reduced(each, ask, left))
            else:
                break
            room -= shown[-1].tokens
        shown.reverse()
        if room < 0:
            raise BudgetTooSmall(ask.budget, ask.budget - room)
        apart = bool(shown) and shown[0].place > Place(ask.turn)
        return Shown(
            rounds=tuple(shown),
            injected=tuple(injected),
            open_turn=ask.turn if under_way else None,
            prompt=opening if apart else (),
            tagged=False,
            raw=sum(each.tokens for each in said),
        )

    async def _enough(self, ask: Ask, rounds: Rounds, before: Place | None = None) -> list[Said]:
        """The newest rounds, of those before a place, and more than fit if there are."""
        if before is None and not ask.prompted:
            before = Place(ask.turn + 1)  # a turn that was overtaken goes on alone
        newest = ask.head.turn if before is None else before.turn
        step = _STEP
        while True:
            first = max(newest - step, 1)
            found = await rounds.since(ask.record, ask.head, Place(first))
            said = [each for each in found if before is None or each.place < before]
            if first == 1 or sum(each.tokens for each in said) > ask.budget:
                return said
            step *= 4

    def _reduced(self, each: Said, ask: Ask, room: int) -> Native:
        messages = reduced(each.messages, str(each.place), room, self._desk.counter)
        tokens = count_messages(self._desk.counter, messages)
        if tokens > room:
            raise BudgetTooSmall(ask.budget, ask.budget + tokens - room)
        return Native(each.place, messages, tokens, each.tokens, thinking=True, reduced=True)


def _native(each: Said, ask: Ask) -> Native:
    # What is dropped from the front changes what thinking is bound to: only that of the turn under
    # way is still what its provider expects.
    thinking = not ask.prompted and each.place.turn == ask.turn
    return Native(each.place, each.messages, each.tokens, each.tokens, thinking=thinking)

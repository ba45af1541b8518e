"""Whole rounds, the newest that fit."""

from __future__ import annotations

from typing import Final

from perdure.core.errors import BudgetTooSmall
from perdure.core.tokens import count_messages
from perdure.history.manifest import Place
from perdure.history.reducing import reduced
from perdure.history.shown import Native, Shown
from perdure.history.strategies import Ask, Desk, Name
from perdure.history.strategies.rounds import Rounds, Said, prompt_of

#: Turns that are read at once, from the newest back.
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

    async def show(self, ask: Ask) -> Shown:
        room = ask.budget - ask.fixed
        said = await self._enough(ask, room)
        under_way = not ask.prompted
        opening = tuple(
            message
            for each in said
            if under_way and each.place == Place(ask.turn)
            for message in prompt_of(each.messages)
        )
        injected = await ask.injected(ask.turn, ask.turn) if under_way else ()
        room -= sum(each.tokens for each in injected)
        shown = list[Native]()
        for each in reversed(said):
            needed = (
                0 if each.place == Place(ask.turn) else count_messages(self._desk.counter, opening)
            )
            left = room - needed if under_way else room
            if each.tokens <= left:
                shown.append(_native(each, ask, each.tokens))
                room -= each.tokens
                continue
            if not shown and under_way:
                shown.append(self._reduced(each, ask, left))
                room -= shown[-1].tokens
            break
        shown.reverse()
        if under_way and shown and shown[0].place > Place(ask.turn):
            prompt = opening
        else:
            prompt = ()
        if room < 0:
            raise BudgetTooSmall(ask.budget, ask.budget - room)
        return Shown(
            rounds=tuple(shown),
            injected=tuple(injected),
            open_turn=ask.turn if under_way else None,
            prompt=prompt,
            tagged=False,
            raw=sum(each.tokens for each in said),
        )

    async def _enough(self, ask: Ask, room: int) -> list[Said]:
        """The newest rounds, more than fit if there are."""
        first = ask.head.turn
        while True:
            first = max(first - _STEP, 1)
            said = list(await self._rounds.since(ask.record, ask.head, Place(first)))
            if first == 1 or sum(each.tokens for each in said) > room:
                return said

    def _reduced(self, each: Said, ask: Ask, room: int) -> Native:
        messages = reduced(each.messages, str(each.place), room, self._desk.counter)
        tokens = count_messages(self._desk.counter, messages)
        if tokens > room:
            raise BudgetTooSmall(ask.budget, ask.budget + tokens - room)
        return Native(each.place, messages, tokens, each.tokens, thinking=True, reduced=True)


def _native(each: Said, ask: Ask, tokens: int) -> Native:
    # What is dropped from the front changes what thinking is bound to: only that of the turn under
    # way is still what its provider expects.
    thinking = not ask.prompted and each.place.turn == ask.turn
    return Native(each.place, each.messages, tokens, each.tokens, thinking=thinking)

"""How to show a history in a way of one's own: the public protocol.

    class Headlines:
        '''Every turn in a line, the last three as they were said.'''

        def __init__(self, history: perdure.SessionHistory) -> None:
            self.turns: list[str] = []

        async def record_turn(self, turn: perdure.Turn) -> None:
            self.turns.append(turn.id)

        async def get_history(self, budget: int) -> list[perdure.HistorySegment]:
            old, recent = self.turns[:-3], self.turns[-3:]
            return [
                *(perdure.HistorySegment((turn,), "T") for turn in old),
                *(perdure.HistorySegment((turn,), "R") for turn in recent),
            ]

    perdure.register_strategy("headlines", Headlines)

The turn under way is no business of a strategy: it stands behind what it gives, as it is said.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol, TypeAlias

import msgspec

from perdure.core.levels import Level
from perdure.core.turns import Turn


class HistorySegment(msgspec.Struct, frozen=True):
    """Neighbouring turns, shown at one level."""

    #: Their ids, oldest first: ``("T-5", "T-6")``.
    turns: tuple[str, ...]
    level: Level = "R"
    #: The words that stand for them; None: those that Perdure has at this level, of R the messages
    #: themselves.
    content: str | None = None


class HistoryStrategy(Protocol):
    """Decides what is shown of one session's history. An object of its own is made for each open
    session, and made again when turns were undone or forgotten. Whatever it raises goes to the
    caller of `Session.context`.
    """

    async def record_turn(self, turn: Turn) -> None:
        """Take note of a turn. Each turn before the one that is asked for comes once, oldest first,
        before the history is asked for: all of them when a session is opened.
        """

    async def get_history(self, budget: int) -> Sequence[HistorySegment]:
        """What to show in so many o200k tokens, oldest first, each turn at most once. If it is
        more, the oldest of it is left out. Asked for each prompt, perhaps more than once; what was
        given stays while its turn goes on. A prompt can be put together again later if this
        depends on nothing but the turns and the budget.
        """


class SessionHistory:
    """What a strategy is told about its session."""

    def __init__(
        self,
        session: str,
        count: Callable[[str], int],
        measure: Callable[[HistorySegment], Awaitable[int]],
    ) -> None:
        self.session = session
        self._count = count
        self._measure = measure

    def count(self, text: str) -> int:
        """The o200k tokens of a text."""
        return self._count(text)

    async def tokens(self, segment: HistorySegment) -> int:
        """What a segment takes in a prompt, with its tags. Makes renditions that are missing.
        Raises `InvalidInput` if it names no turns before the one that is asked for.
        """
        return await self._measure(segment)


StrategyFactory: TypeAlias = Callable[[SessionHistory], HistoryStrategy]

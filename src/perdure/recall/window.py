"""What stands in the window that a prompt is sent in: so that it is not recalled."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from perdure.core.levels import Level
from perdure.core.turns import Position
from perdure.history.manifest import Place
from perdure.history.records import Head, SessionRecord
from perdure.history.strategies import VisibleRounds


class Window(msgspec.Struct, frozen=True):
    """A session as a prompt finds it. Keys are as `recall.keys.everywhere` has them."""

    record: SessionRecord
    head: Head
    #: What stands there in full: rounds as they were said, and what was recalled before.
    shown: frozenset[str] = frozenset()
    #: What it has a reminder of.
    reminded: frozenset[str] = frozenset()
    #: What stands there at S or C.
    lower: Sequence[VisibleRounds] = ()

    def level(self, turn: str) -> Level | None:
        """S or C, if a round of the session's line (``T-12.3``) stands there so."""
        if "#" in turn:
            return None
        position = Position.parse(turn)
        place = Place(position.turn, position.round or 1)
        for each in self.lower:
            if each.first <= place <= each.last:
                return each.level
        return None

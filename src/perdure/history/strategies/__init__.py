"""Ways to show a history in a window of fixed size, behind one interface.

========  =====================================================================================
regular   whole rounds, the newest that fit; the oldest are dropped
gradient  all of it: the newest raw, the older the shorter, ancient stretches merged
========  =====================================================================================

The log is the same for all of them; a session can change its strategy at any time.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Literal, NamedTuple, Protocol

import msgspec

from perdure.artifacts import ArtifactStore
from perdure.core.errors import InvalidInput
from perdure.core.levels import Level
from perdure.core.tokens import Counter
from perdure.history.epochs import Epochs
from perdure.history.manifest import Place
from perdure.history.reading import Reader
from perdure.history.records import Head, SessionRecord
from perdure.history.renditions.rendition_service import Scribe
from perdure.history.shown import Injected, Shown
from perdure.history.token_counts import TokenCounts

Name = Literal["regular", "gradient"]
NAMES: tuple[Name, ...] = ("regular", "gradient")

#: Reads what was injected into the turns from one to another.
InjectedIn = Callable[[int, int], Awaitable[Sequence[Injected]]]


class Ask(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be shown, to whom, in how much room."""

    record: SessionRecord
    head: Head
    budget: int
    #: What the new prompt and its injection take.
    fixed: int = 0
    #: The turn that is asked for: under way if there are rounds of it, else about to begin.
    turn: int
    #: Whether a new prompt follows what is shown.
    prompted: bool
    model: str = ""
    #: Microseconds.
    now: int
    injected: InjectedIn
    #: Tells requests apart; 0 if it is not known whether this is another one.
    request: int = 0
    #: Record an epoch, if one is made. Otherwise it is as if nobody had asked.
    keep: bool = True


class Visible(NamedTuple):
    """Rounds of a window, from `first` to `last`, at one level."""

    level: Level
    first: Place
    last: Place


class Look(NamedTuple):
    """A window, before the injection of its prompt is known."""

    #: The first turn whose injection stands in it.
    since: int
    #: How often it was planned anew.
    epoch: int = 0
    #: What stands in it at R, S or C. What is at R stands there whole, round by round.
    visible: Sequence[Visible] = ()


class Desk(msgspec.Struct, frozen=True):
    """What strategies work with; one for all sessions of a bank."""

    reader: Reader
    artifacts: ArtifactStore
    meter: TokenCounts
    scribe: Scribe
    epochs: Epochs

    @property
    def counter(self) -> Counter:
        """Read when it is first needed: it takes a while."""
        return self.meter.counter


class Strategy(Protocol):
    """Decides what is shown of one session's history."""

    @property
    def name(self) -> Name: ...

    async def standing_since(self, ask: Ask) -> int:
        """The first turn whose injection still stands in the window."""

    async def look(self, ask: Ask, reserve: int = 0) -> Look:
        """What will stand in the window beside a prompt; it is planned anew now, if that is due.

        `reserve` is what an injection may take beyond `fixed`. Raises `BudgetTooSmall`.
        """

    async def show(self, ask: Ask) -> Shown:
        """What is shown, in at most `budget` tokens less `fixed`.

        Raises `BudgetTooSmall` if that cannot be done.
        """

    async def past(self, ask: Ask, place: Place) -> Shown:
        """What was shown when a round was asked for: `ask` is that request, as it was.

        Turns that were forgotten since are tombstones.
        """


def parse_strategy(text: object) -> Name:
    """The strategy of this name. Raises `InvalidInput` if there is none."""
    for name in NAMES:
        if text == name:
            return name
    raise InvalidInput(
        f"{text!r} is no history strategy.", hint=f"The strategies are {' and '.join(NAMES)}."
    )

"""Ways to show a history in a window of fixed size, behind one interface.

========  =====================================================================================
regular   whole rounds, the newest that fit; the oldest are dropped
gradient  all of it: the newest raw, the older the shorter, ancient stretches merged
one-shot  none of it: the turn under way alone, behind a specification, its tasks and its log
========  =====================================================================================

Others are added through `history_strategy`, a smaller protocol; `segment_strategy` adapts it to
this one. The log is the same for all of them; a session can change its strategy at any time.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple, Protocol

import msgspec

from perdure.core.band_marks import FULL, BandMarks
from perdure.core.levels import Level
from perdure.core.messages import Message
from perdure.core.tokens import TokenScale
from perdure.history.log_records import Head, SessionRecord
from perdure.history.manifest import Injected, RoundId, ShownHistory

ReadInjected = Callable[[int, int], Awaitable[Sequence[Injected]]]  # From one turn to another.


class ContextRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A prompt to be composed: the session, the budget, what goes with it."""

    record: SessionRecord
    head: Head
    #: The turn that is asked for: under way if there are rounds of it, else about to begin.
    turn: int
    prompted: bool  # Whether a new prompt follows the history.
    prompt: tuple[Message, ...] = ()  # The new prompt, without secrets.
    budget: int  # Of all messages, in o200k tokens.
    scale: TokenScale = TokenScale()  # How the model's provider counts: the caller's budget did so.
    #: What the new prompt takes of it, and its injection once that is known.
    fixed: int = 0
    #: What its injection may take beyond that: set aside where the window is planned anew …
    reserve: int = 0
    #: … which is due if there is less room than this for it.
    least: int = 0
    model: str = ""
    recall: bool = False  # Put beside the prompt what it brings to mind.
    reminder: str = ""  # Lines about the history's tools and the caller's, sent with the prompt.
    tools: frozenset[str] = frozenset()  # Ours that the model was given.
    frame: str = ""  # The digest of system text and tools.
    strategy: str = ""  # The strategy that shows the history.
    #: Microseconds.
    now: int
    injected: ReadInjected
    marks: BandMarks = FULL  # How full the gradient plans its window.
    number: int = 0  # Tells requests apart; 0 if it is not known whether this is another one.
    keep: bool = True  # Write down what is decided. Otherwise it is as if nobody had asked.


class VisibleRounds(NamedTuple):
    """Rounds of a window, from `first` to `last`, at one level."""

    level: Level
    first: RoundId
    last: RoundId


class WindowPreview(NamedTuple):
    """A window, before the injection of its prompt is known."""

    since: int  # The first turn whose injection stands in it.
    epoch: int = 0  # How often it was planned anew.
    visible: Sequence[VisibleRounds] = ()  # At R, S or C. What is at R is there whole.
    room: int = 0  # Tokens that an injection may take beyond `ContextRequest.fixed`.


class Strategy(Protocol):
    """Decides what is shown of one session's history."""

    @property
    def name(self) -> str: ...

    @property
    def tagged(self) -> bool:
        """Whether turns stand in elements named after them, which a model must be told of."""

    async def standing_since(self, request: ContextRequest) -> int:
        """The first turn whose injection is still in the window."""

    async def preview(self, request: ContextRequest) -> WindowPreview:
        """What will be in the window with a prompt, and what it leaves for an injection; planned
        anew, if that is due, but not recorded: `show` does that. Raises `BudgetTooSmall`.
        """

    async def show(self, request: ContextRequest) -> ShownHistory:
        """At most `budget` tokens less `fixed`. Raises `BudgetTooSmall` if that cannot be done."""

    async def past(self, request: ContextRequest, place: RoundId) -> ShownHistory:
        """What was shown for a round: `request` is that request, as it was. Turns that were
        forgotten since are tombstones.
        """

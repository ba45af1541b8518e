"""What is asked of recall, and what it answers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, TypeAlias

import msgspec

from perdure.core.levels import Level
from perdure.history.log_records import Head, SessionRecord

Kind: TypeAlias = Literal["turn", "memory", "reference"]
#: How far recall came before its deadline.
Stage: TypeAlias = Literal["none", "keyword", "vector", "filters", "judge"]
#: What a step failed with that was not done in time.
LATE = "deadline"
#: What a step failed with that models could have done.
NO_MODEL = "no model is configured for it: by algorithm"
#: Candidates that a search answers with at most.
MOST_CANDIDATES = 200
STAGES: tuple[Stage, ...] = ("none", "keyword", "vector", "filters", "judge")


class Note(msgspec.Struct, frozen=True, array_like=True, omit_defaults=True, gc=False):
    """What the index knows about a passage beside its words. A few bytes for each."""

    #: When it was said: seconds since 1970.
    time: int = 0
    #: Terms in each field.
    lengths: tuple[int, int, int] = (0, 0, 0)
    #: What was said ends with a question.
    asks: bool = False
    #: Who said it, folded, where a name is known: that of the message, or one written before it.
    speaker: str = ""
    #: Tools that were called, in order, without repetition.
    tools: tuple[str, ...] = ()
    #: Tags of the turn, and what is known of its branch, its task's type and its outcome under
    #: these very names: ``branch``, ``task``, ``outcome``.
    tags: dict[str, str] = {}
    #: What was said tells when something was or will be: see `words.tells_time`.
    timed: bool = False
    #: A user told a model how things are to be done from now on: see `words.sets_rule`.
    binds: bool = False


class Filters(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a hit must be. Empty: anything."""

    kinds: tuple[Kind, ...] = ()
    #: Only of these agents, or of these sessions; never more than the scope allows.
    agents: tuple[str, ...] = ()
    sessions: tuple[str, ...] = ()
    #: Only turns of this session's own line.
    line: bool = False
    #: Only words of these: ``user``, ``assistant``, ``tool``.
    roles: tuple[str, ...] = ()
    #: Only rounds in which one of these tools was called.
    tools: tuple[str, ...] = ()
    branch: str = ""
    task: str = ""
    outcome: str = ""
    tags: dict[str, str] = {}
    #: Microseconds since 1970, both included.
    since: int | None = None
    until: int | None = None


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """What is asked of recall, and on whose behalf."""

    text: str
    record: SessionRecord
    head: Head
    filters: Filters = Filters()
    #: Hits at most.
    limit: int = 10
    #: Now. Microseconds.
    moment: int
    #: Look at all that the bank holds for this agent's reader, not at the default scope:
    #: sessions of other agents only if they are shared, nevertheless.
    wide: bool = False
    #: Tokens of a passage at most, where there is little room; 0 for as many as usual.
    passage: int = 0
    #: Only these turns, by session and number, as far as the scope has them; None: all.
    only: tuple[tuple[str, int], ...] | None = None
    #: What has less than this share of the best score is not chosen, unless by a model.
    likely: float = 0.1


class Reason(msgspec.Struct, frozen=True, gc=False):
    """A part of a score: what spoke for it, and how much."""

    name: str
    share: float


#: Tells what spoke for something, most important first.
Reasons: TypeAlias = Callable[[], tuple[Reason, ...]]


def because(*reasons: Reason) -> Reasons:
    """Reasons that are known already."""
    return lambda: reasons


class Candidate(msgspec.Struct, frozen=True, kw_only=True):
    """Something that may answer a question: a round, a memory, a reference layer."""

    kind: Kind
    #: `Spot.place` of its part 0; below 0 if the index was not asked.
    place: int
    #: ``planner/auth#T-12.3``, ``M-7``, the name of a reference layer.
    key: str
    #: The session of a turn.
    session: str = ""
    turn: int = 0
    round: int = 0
    #: From 0 to 1: how likely it is to be what was asked for.
    score: float = 0.0
    #: What spoke for it. Asked only for what is shown.
    tell: Reasons = because()
    note: Note = Note()
    #: The question names it by its key: its score says nothing about the others.
    named: bool = False

    @property
    def reasons(self) -> tuple[Reason, ...]:
        """What spoke for it, most important first."""
        return self.tell()

    @property
    def why(self) -> str:
        """The same in words: ``token, refresh (own words) · said by Ann · in May 2023``."""
        return " · ".join(reason.name for reason in self.reasons)


class Hit(msgspec.Struct, frozen=True, kw_only=True):
    """Something that was recalled. The first seven are what `perdure recall --json` prints."""

    kind: Kind
    #: ``T-12.3`` in this session's line, ``other/session#T-12.3`` elsewhere; empty if no turn.
    turn: str = ""
    #: What `history_get_turn`, `memory_get` or `reference_get` fetch it by.
    key: str
    #: The fidelity of `text`.
    level: Level
    score: float
    why: str
    text: str
    #: When it was said or last changed. Microseconds.
    time: int = 0
    tokens: int = 0
    #: Shown in full, or as a one-line reminder.
    full: bool = True
    #: It comes along with a neighbour that was found.
    neighbour: bool = False
    #: What filters look at: see `Note`.
    tools: tuple[str, ...] = ()
    tags: dict[str, str] = {}


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """What a step of recall took, and what came of it."""

    name: str
    took_ms: float
    #: Candidates behind it.
    left: int = 0
    #: Why it did not count: `LATE`, or what went wrong.
    failed: str = ""


class Recalled(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of recall."""

    stage: Stage = "none"
    took_ms: float = 0.0
    hits: Sequence[Hit] = ()
    steps: Sequence[Step] = ()
    #: Why something may be missing, in sentences that say what to do. Usually none.
    notes: tuple[str, ...] = ()


class Shown(msgspec.Struct, frozen=True, gc=False):
    """Words, their fidelity, and what they take."""

    level: Level
    text: str
    tokens: int
    #: What it is fetched by, and when it was last changed, if the index does not say.
    key: str = ""
    time: int = 0
    #: The key of what is to be read before it: a memory that contradicts it, and holds.
    behind: str = ""

"""The records of reflection: runs, what they changed, how far each session is read.

Runs of an agent are numbered from 1: ``planner/R-3``. Keys: ``planner/00000003`` for a run and for
what it changed, ``planner/00000003/extract-1`` for an answer that is not used yet.
"""

from __future__ import annotations

import re
from typing import Annotated, Literal, TypeAlias, get_args

import msgspec

from perdure.core.errors import InvalidInput, NotFound
from perdure.history.log_records import checked_agent
from perdure.recall.memory_records import LastNumber, Memory
from perdure.storage.record_keys import numbered
from perdure.storage.records import Compressed, Indexed, Key, system_record
from perdure.storage.transaction import Transaction

#: ``stopped`` did only a part, because money or a model was missing; ``refused`` did not begin.
ReflectionState: TypeAlias = Literal[
    "extracting", "consolidating", "applying", "done", "stopped", "refused", "undone"
]
#: A run in one of these is taken up again by whoever comes next.
UNFINISHED: tuple[ReflectionState, ...] = ("extracting", "consolidating", "applying")
Trigger: TypeAlias = Literal["hand", "schedule"]
RunMode: TypeAlias = Literal["", "live", "batch"]
Phase: TypeAlias = Literal["extract", "consolidate"]
PHASES: tuple[Phase, ...] = get_args(Phase)
#: ``intended`` was written before it was sent: whether it was answered is not known yet.
CallState: TypeAlias = Literal["intended", "answered", "failed"]

_name = re.compile(r"([^#]+)/[Rr]-([1-9]\d{0,7})", re.ASCII).fullmatch


class SessionSpan(msgspec.Struct, frozen=True, array_like=True):
    """Turns of a session that a run reads, all of them closed."""

    session: str
    first: int
    last: int


class RunCall(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One question to a model."""

    id: str
    phase: Phase
    #: The turns that it asks about, from behind those of the one before it; of a consolidation,
    #: none in particular.
    span: SessionSpan | None = None
    #: Which part, if that is more than one request holds.
    part: int = 0
    #: Sessions by what the question calls them, and the versions of memories that it shows, by key:
    #: its answer may come a day later.
    names: dict[str, str] = {}
    versions: dict[str, int] = {}
    state: CallState = "intended"
    model: str = ""
    tokens: int = 0
    #: Picodollars; None if unknown.
    cost: int | None = None
    error: str = ""


class RunCounts(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What came of a run, by kind of operation, and why operations were refused."""

    applied: dict[str, int] = {}
    proposed: int = 0
    #: What it left in the inbox, proposals included.
    messages: int = 0
    refused: dict[str, int] = {}


@system_record("reflection_runs")
class ReflectionRun(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One pass over what an agent's sessions have new. Times are microseconds."""

    id: Annotated[str, Key()]  # agent/number
    agent: Annotated[str, Indexed()]
    state: Annotated[ReflectionState, Indexed()]
    trigger: Trigger = "hand"
    #: Empty if no model is configured: then an algorithm does what it can.
    mode: RunMode = ""
    started: int
    ended: int | None = None
    spans: tuple[SessionSpan, ...] = ()
    #: All sessions that it looks at.
    sessions: tuple[str, ...] = ()
    calls: tuple[RunCall, ...] = ()
    counts: RunCounts = RunCounts()
    #: What was spent, as providers counted it.
    tokens: int = 0
    cost: int | None = None
    #: What it may take at most; picodollars, None if unknown.
    expected_tokens: int = 0
    expected_cost: int | None = None
    #: Tokens of the day's budget that were left before and after; None if it has no limit. And
    #: picodollars.
    left_before: int | None = None
    left_after: int | None = None
    cost_left_before: int | None = None
    cost_left_after: int | None = None
    #: Turns, and sessions, that did not fit: the next run reads them.
    waiting_turns: int = 0
    waiting_sessions: int = 0
    #: Tokens of the broad view, and of one request.
    view: int = 0
    window: int = 0
    #: Why it stopped, or did not begin.
    why: str = ""

    @property
    def number(self) -> int:
        return int(self.id[-8:])

    @property
    def name(self) -> str:
        """``planner/R-3``."""
        return f"{self.agent}/R-{self.number}"

    @property
    def is_finished(self) -> bool:
        return self.state not in UNFINISHED

    def calls_key(self, phase: Phase) -> str:
        """What the questions of a phase are known by: at most one batch has them."""
        return f"reflection/{self.id}/{phase}"


class RunPreview(msgspec.Struct, frozen=True, kw_only=True):
    """What a run would read and may take, at most."""

    agent: str
    mode: RunMode = ""
    sessions: int
    turns: int
    #: Questions to models, and their tokens with the answers; the consolidation is counted.
    questions: int
    tokens: int
    #: Picodollars; None if a price is unknown.
    cost: int | None = None
    #: Tokens, and picodollars, that are left of the day's budget; None if there is no limit.
    left: int | None
    cost_left: int | None = None
    #: Turns, and sessions, that do not fit: the next run reads them.
    waiting_turns: int = 0
    waiting_sessions: int = 0
    #: Operations, where no model is needed to know them.
    operations: tuple[str, ...] = ()


class MemoryRevision(msgspec.Struct, frozen=True, omit_defaults=True):
    """A memory before and after a run; None if it was not there, or is not any more."""

    before: Memory | None = None
    after: Memory | None = None

    @property
    def id(self) -> str:
        found = self.after or self.before
        return found.id if found is not None else ""


class AppliedOperation(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An operation of a run, in words for `perdure reflect show`."""

    op: str
    keys: tuple[str, ...] = ()
    text: str = ""
    evidence: tuple[str, ...] = ()
    #: Why it was not applied; empty if it was.
    refused: str = ""


@system_record("reflection_changes")
class RunChanges(msgspec.Struct, frozen=True, kw_only=True):
    """All that a run changed: what `undo` needs. Forgetting a turn deletes what it is cited in."""

    id: Annotated[str, Key()]  # agent/number
    revisions: Annotated[tuple[MemoryRevision, ...], Compressed()] = ()
    operations: tuple[AppliedOperation, ...] = ()
    #: Keys of messages that it left in the inbox.
    messages: tuple[str, ...] = ()

    @property
    def is_empty(self) -> bool:
        return not self.revisions and not self.messages


@system_record("reflection_answers")
class RunAnswer(msgspec.Struct, frozen=True):
    """What a model answered, until the run is over: it is not asked again."""

    id: Annotated[str, Key()]  # agent/number/call
    text: Annotated[str, Compressed()]


@system_record("reflection_cursors")
class ReflectionCursor(msgspec.Struct, frozen=True, omit_defaults=True):
    """How far a session was read; of an agent, when its topics were last weighed."""

    id: Annotated[str, Key()]  # a session, or an agent
    turn: int = 0
    #: Microseconds.
    time: int = 0
    #: How often what is behind that turn was read in vain.
    tries: int = 0
    #: The last turn that was ever read: what is read again is no new evidence.
    newest: int = 0


@system_record("reflection_leases")
class ReflectionLease(msgspec.Struct, frozen=True, omit_defaults=True):
    """Who reflects for an agent, and how long that one may be silent."""

    id: Annotated[str, Key()]  # agent
    owner: str = ""
    #: Microseconds.
    until: int = 0


def run_id(agent: str, number: int) -> str:
    return f"{agent}/{numbered(number)}"


def parse_run(text: str) -> str:
    """The id of the run that ``planner/R-3`` names. Raises `InvalidInput`."""
    found = _name(str(text).strip())
    if found is None:
        raise InvalidInput(f"{text!r} does not name a run.", hint="Write planner/R-3.")
    return run_id(checked_agent(found[1]), int(found[2]))


def no_run(text: str) -> NotFound:
    return NotFound(f"There is no run {text}.", hint="`perdure reflect list` lists them.")


async def next_number(transaction: Transaction, key: str) -> int:
    """A number that was not given before under this key."""
    numbers = transaction.collection(LastNumber)
    last = await numbers.get(key) or LastNumber(key)
    await numbers.put(LastNumber(key, last.last + 1))
    return last.last + 1

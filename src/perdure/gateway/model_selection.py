"""How models have been doing lately, and the order of candidates that follows.

Each call leaves a mark that fades with time and with later calls. A model's *preference* is

    preference = (successes + GOOD_WILL) / (calls + GOOD_WILL)

It is 1 without data, falls with each failure, and recovers with successes and by itself.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import msgspec

from perdure.gateway.breaker import State
from perdure.gateway.calls import CallOptions

if TYPE_CHECKING:
    from perdure.gateway.catalog import ModelCandidate


#: Calls without a failure that every model starts with.
GOOD_WILL = 2.0
#: Below this preference a model goes behind those that do better. Without data one failure is
#: enough, for a minute or two; after ten successes it takes five.
HEALTHY = 0.7

#: A mark fades by this with each later call: about the last ten count.
_PER_CALL = 0.9
#: Kinds of work and models that are remembered; the ones not called for longest are forgotten.
_MAX_ENTRIES = 4_096


class HealthView(msgspec.Struct, frozen=True):
    """How a model did at a kind of work; without data, as if nothing had failed."""

    preference: float = 1.0
    #: The share of calls that succeeded; None without data.
    success: float | None = None
    #: Seconds that a successful call takes; None without data.
    latency: float | None = None
    #: How many calls this rests on, the older ones counting less.
    calls: float = 0.0

    @property
    def healthy(self) -> bool:
        return self.preference >= HEALTHY


class ModelHealth:
    """How calls went, by task and ``provider/model``. Marks halve in `half_life` seconds.

    In memory; `gateway.model_memory` keeps it over a restart.
    """

    def __init__(
        self, *, half_life: float = 120.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._half_life = half_life
        self._clock = clock
        self._marks: dict[tuple[str, str], HealthMarks] = {}

    def note(self, task: str, name: str, *, ok: bool, latency: float | None = None) -> None:
        """Remember how a call went. Leave out failures that are the caller's own."""
        now = self._clock()
        # Taken out and put in again: the dict is in the order of the last call.
        marks = self._marks.pop((task, name), None) or HealthMarks(now)
        self._marks[task, name] = marks
        if len(self._marks) > _MAX_ENTRIES:
            del self._marks[next(iter(self._marks))]
        fading = self._fading(marks, now) * _PER_CALL
        marks.at = now
        marks.calls = marks.calls * fading + 1.0
        marks.successes = marks.successes * fading + ok
        if ok and latency is not None:
            marks.timed = marks.timed * fading + 1.0
            marks.seconds = marks.seconds * fading + latency
        else:
            marks.timed *= fading
            marks.seconds *= fading

    def view(self, task: str, name: str) -> HealthView:
        marks = self._marks.get((task, name))
        return HealthView() if marks is None else self._shown(marks)

    def views(self) -> dict[tuple[str, str], HealthView]:
        return {key: self._shown(marks) for key, marks in sorted(self._marks.items())}

    def memory(self, name: str) -> dict[str, HealthMarks]:
        """The marks of a model by task, each with its age in seconds instead of its time."""
        now = self._clock()
        return {
            task: msgspec.structs.replace(marks, at=now - marks.at)
            for (task, model), marks in self._marks.items()
            if model == name
        }

    def restore(self, name: str, memory: dict[str, HealthMarks], elapsed: float) -> None:
        """Take over marks that are so many seconds older now, unless there are newer ones."""
        now = self._clock()
        for task, marks in memory.items():
            aged = msgspec.structs.replace(marks, at=now - marks.at - elapsed)
            self._marks.setdefault((task, name), aged)

    def _shown(self, marks: HealthMarks) -> HealthView:
        fading = self._fading(marks, self._clock())
        calls, successes = marks.calls * fading, marks.successes * fading
        return HealthView(
            preference=(successes + GOOD_WILL) / (calls + GOOD_WILL),
            success=marks.successes / marks.calls,
            latency=marks.seconds / marks.timed if marks.timed > 1e-12 else None,
            calls=calls,
        )

    def _fading(self, marks: HealthMarks, now: float) -> float:
        return float(0.5 ** ((now - marks.at) / self._half_life))


class HealthMarks(msgspec.Struct, array_like=True):
    """Calls of one kind of work at one model, the older ones counting less."""

    at: float  # When the last one was, in seconds by the clock of its `ModelHealth`.
    calls: float = 0.0
    successes: float = 0.0
    timed: float = 0.0
    seconds: float = 0.0


class CandidateStatus(msgspec.Struct, frozen=True):
    """What is known of a candidate when choosing."""

    state: State = "closed"
    health: HealthView = HealthView()
    #: Seconds until its gate lets anybody in.
    paused: float = 0.0


class Selector(Protocol):
    """Puts candidates in the order in which they are to be tried."""

    def order(
        self,
        options: CallOptions,
        candidates: list[ModelCandidate],
        statuses: Mapping[str, CandidateStatus],
    ) -> list[ModelCandidate]:
        """The order in which to ask; one that is left out is not asked. Must be quick, not raise.

        `statuses` are by candidate name; one without has never been called.
        """


@runtime_checkable
class PreparedSelector(Selector, Protocol):
    """A selector that has to read something before it can choose."""

    async def prepare(self, options: CallOptions) -> None:
        """Called before `order`. Must not raise."""


class HealthSelector:
    """The configured order, adjusted by health: the default.

    A candidate that does badly at this work, or would hold up the call for more than `patience`
    seconds, goes behind those that do well; one whose circuit is open goes last. Otherwise the
    order stays, which keeps a conversation where its prompt cache is.
    """

    def __init__(self, *, patience: float = 1.0) -> None:
        self._patience = patience

    def order(
        self,
        options: CallOptions,
        candidates: list[ModelCandidate],
        statuses: Mapping[str, CandidateStatus],
    ) -> list[ModelCandidate]:
        return sorted(candidates, key=lambda each: self.rank(statuses.get(each.name)))

    def rank(self, status: CandidateStatus | None) -> int:
        """0 if it does well, 1 if it does badly or holds up the call, 2 if its circuit is open."""
        if status is None:
            return 0
        if status.state == "open":
            return 2
        return int(not status.health.healthy or status.paused > self._patience)

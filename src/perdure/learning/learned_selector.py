"""The learned choice of a model, for each agent and kind of task.

The model with the greatest expected utility answers (`learning.utility`), behind its breaker. Some
calls are chosen beforehand, by a hash, to be judged. On those the selector explores: it takes the
model whose utility may be greatest, expectation plus `EXPLORATION` standard deviations of quality.
So nothing is tried out of which nothing is learnt.

A session keeps its model for a *stretch*: until it was silent for `sticky` seconds, for at most
`LONGEST_STRETCH` calls, or until the model's breaker opens. So its prompt cache is used. A stretch
is explored and judged as a whole, or not at all.

Without a judge and without any label there is nothing to learn from: the order is that of the
configuration, adjusted by health, as it is for calls without an agent.
"""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Literal, Protocol

import msgspec

from perdure.core.clock import SECOND, Clock, now
from perdure.gateway.calls import CallOptions, Complexity
from perdure.gateway.catalog import ModelCandidate
from perdure.gateway.model_selection import CandidateStatus, HealthSelector
from perdure.gateway.outcomes import CANCELLED, Outcome
from perdure.gateway.quality import BROKEN_CALL
from perdure.learning.call_estimates import CallEstimates
from perdure.learning.learned_book import CallEvent, LabelEvent
from perdure.learning.learned_memory import EVERYONE, LearnedMemory
from perdure.learning.model_profiles import ModelProfiles
from perdure.learning.quality_estimates import QualityEstimates
from perdure.learning.utility import utility

#: Standard deviations that a judged call adds to what is expected of a model.
EXPLORATION = 1.5
LONGEST_STRETCH = 20
#: Answers that are useless at sight count as failures: nothing said, filtered, no JSON, broken
#: calls.
VETO = BROKEN_CALL
#: Failures that say nothing about the model: what was asked was wrong, or nobody wanted the answer.
_NOT_THE_MODEL = frozenset({CANCELLED, "rejected", "too_long", "no_model", "budget", "error"})
#: Stretches that are remembered, and how much of what waits for its label is still expected after
#: each further one that is judged.
_MOST_STRETCHES = 10_000
_STILL_EXPECTED = 0.99
_PICODOLLARS = 1e12


class SelectionSettings(msgspec.Struct, frozen=True, kw_only=True):
    """As in the configuration, section `learning`."""

    cost_weight: float = 4.0
    latency_weight: float = 0.004
    judge_share: float = 0.1
    #: Seconds.
    sticky: float = 300.0
    shared: bool = True


class TestedSession(msgspec.Struct, frozen=True):
    """What a test or a promotion says about a session's calls of a task."""

    #: The model that answers first; empty: as chosen here.
    model: str = ""
    is_tested: bool = False


UNTESTED = TestedSession()


class SessionTests(Protocol):
    """Tests by session (`learning.experiments`)."""

    async def load(self, agent: str, session: str) -> None:
        """Must not raise."""

    def session(self, options: CallOptions) -> TestedSession: ...


class Stretch(msgspec.Struct):
    """Calls of a session that go to one model."""

    #: Names, the best first.
    order: tuple[str, ...]
    judged: bool
    #: When the last call was. Microseconds.
    last: int
    calls: int = 1


class ExpectedUtility(msgspec.Struct, frozen=True, kw_only=True):
    """What is expected of a model at a task, and what follows for its utility."""

    model: str
    tier: str
    success: float
    quality: float
    #: The standard deviation of the quality.
    uncertainty: float
    dollars: float
    seconds: float
    utility: float


class TaskChoice(msgspec.Struct, frozen=True, kw_only=True):
    """Which models an agent's calls of a task ask, the first one first, and why."""

    task: str
    #: What puts them in order: ``promoted``, a test that the first one won; ``learned``, their
    #: utility; ``configured``, as long as nothing is rated; or another selector.
    by: Literal["promoted", "learned", "configured", "table", "seed"]
    models: list[ExpectedUtility]


class LearnedSelector:
    """See the module. `may_judge` says whether calls can be judged now, by model and budget."""

    def __init__(
        self,
        profiles: Callable[[], ModelProfiles],
        memory: LearnedMemory | None = None,
        settings: SelectionSettings | None = None,
        *,
        may_judge: Callable[[], bool] = lambda: False,
        recent: Callable[[], Awaitable[list[Outcome]]] | None = None,
        tests: SessionTests | None = None,
        clock: Clock = now,
    ) -> None:
        """`profiles` are asked for when first needed: they come from the gateway that this is for.
        `recent` are the last outcomes of other processes, from which stretches are taken up;
        `tests` say which model a session is to have, and whether it is a part of a test.
        """
        self.memory = memory or LearnedMemory()
        self.settings = settings or SelectionSettings()
        self._profiles = profiles
        self._may_judge = may_judge
        self._recent = recent
        self._tests = tests
        self._clock = clock
        self._health = HealthSelector()
        self._stretches: dict[tuple[str, str, str], Stretch] = {}
        #: Labels on their way: by agent, then by task and model.
        self._expected: dict[str, dict[tuple[str, str], float]] = {}

    async def prepare(self, options: CallOptions) -> None:
        """Read what is known of the agent. Never raises."""
        if options.agent:
            await self.load(options.agent)
            if self._recent is not None:
                recent, self._recent = self._recent, None
                self.restore(await recent())
            if self._tests is not None:
                await self._tests.load(options.agent, options.session)

    async def load(self, agent: str) -> None:
        """Read what is known of an agent's calls, and of those of all. Never raises."""
        await self.memory.load(agent)
        if self.settings.shared:
            await self.memory.load(EVERYONE)

    def decides(self, agent: str) -> bool:
        """Whether there is anything to choose by: a judge, or a label."""
        return self._judges() or self._has_labels(agent)

    def order(
        self,
        options: CallOptions,
        candidates: list[ModelCandidate],
        statuses: Mapping[str, CandidateStatus],
    ) -> list[ModelCandidate]:
        may_judge = self._judges()
        if not self._learns(options) or not self.decides(options.agent):
            return self._health.order(options, candidates, statuses)
        tested = self._tests.session(options) if self._tests is not None else UNTESTED
        ranks = {each.name: self._health.rank(statuses.get(each.name)) for each in candidates}
        healthy = min(ranks.values())
        now, key = self._clock(), _stretch_key(options)
        stretch = self._stretches.pop(key, None)
        if stretch is not None and self._goes_on(stretch, now, ranks, healthy):
            stretch.last, stretch.calls = now, stretch.calls + 1
        else:
            share = 1.0 if tested.is_tested else self.settings.judge_share
            judged = may_judge and is_chosen(options.call or _words(key), share)
            # A test compares two ways of working: what is tried out besides would blur it.
            explore = judged and not (tested.is_tested or tested.model)
            found = self.expected(options, candidates, explore=explore)
            if tested.model:
                found.sort(key=lambda each: each.model != tested.model)
            stretch = Stretch(tuple(each.model for each in found), judged, now)
            if judged:
                self._expect(options, found, ranks)
        self._stretches[key] = stretch
        if len(self._stretches) > _MOST_STRETCHES:
            del self._stretches[next(iter(self._stretches))]
        places = {name: place for place, name in enumerate(stretch.order)}
        last = len(places)
        return sorted(candidates, key=lambda each: (ranks[each.name], places.get(each.name, last)))

    def expected(
        self, options: CallOptions, candidates: Sequence[ModelCandidate], *, explore: bool = False
    ) -> list[ExpectedUtility]:
        """Every candidate, the best first; with `explore`, by what its utility may be."""
        profiles, settings = self._profiles(), self.settings
        named = {each.name: each for each in candidates}
        task, complexity = _task(options), profiles.complexity(options)
        own = self.memory.book(options.agent)
        everyone = self.memory.book(EVERYONE) if settings.shared else None
        qualities = QualityEstimates(
            own, everyone, lambda name: profiles.tier(named[name]) if name in named else "medium"
        )
        calls = CallEstimates(
            own, lambda name: profiles.price(named[name]) if name in named else 0.0
        )
        waiting = self._expected.get(options.agent, {}) if explore else {}
        found = list[ExpectedUtility]()
        for name, candidate in named.items():
            pending = waiting.get((task, name), 0.0)
            quality = qualities.of(name, task, complexity, pending=pending)
            deviation = quality.variance**0.5
            bonus = EXPLORATION * deviation if explore else 0.0
            success, dollars = calls.success(name), calls.dollars(name, task)
            seconds = calls.seconds(name, task)
            worth = utility(
                success=success,
                quality=quality.mean + bonus,
                dollars=dollars,
                seconds=seconds,
                cost_weight=settings.cost_weight,
                latency_weight=settings.latency_weight,
            )
            found.append(
                ExpectedUtility(
                    model=name,
                    tier=profiles.tier(candidate),
                    success=success,
                    quality=quality.mean,
                    uncertainty=deviation,
                    dollars=dollars,
                    seconds=seconds,
                    utility=worth,
                )
            )
        return sorted(found, key=lambda each: -each.utility)  # stable: ties stay as configured

    def note(self, outcome: Outcome) -> None:
        """Learn from a call that ended. Never waits, never raises."""
        if not _teaches(outcome) or outcome.cached or outcome.error in _NOT_THE_MODEL:
            return
        is_veto = outcome.quality_by == "heuristic" and (
            outcome.quality is not None and outcome.quality <= VETO
        )
        dollars = None if outcome.cost is None else outcome.cost / _PICODOLLARS
        event = CallEvent(
            _task(outcome),
            _complexity(outcome),
            outcome.name,
            outcome.success and not is_veto,
            dollars if outcome.success else None,
            # A batch takes as long as it takes.
            outcome.latency if outcome.success and not outcome.batched else None,
        )
        self.memory.note(outcome.agent, event)

    def rate(self, outcome: Outcome, replaces: float | None = None) -> None:
        """Learn from the label of an outcome; `replaces` is the one that it had before."""
        if not _teaches(outcome) or outcome.quality is None or outcome.quality_by == "heuristic":
            return
        task = _task(outcome)
        event = LabelEvent(task, _complexity(outcome), outcome.name, outcome.quality, replaces)
        self.memory.note(outcome.agent, event)
        if self.settings.shared:
            self.memory.note(EVERYONE, event)
        waiting = self._expected.get(outcome.agent, {})
        if (task, outcome.name) in waiting:
            waiting[task, outcome.name] = max(0.0, waiting[task, outcome.name] - 1.0)

    def is_judged(self, outcome: Outcome) -> bool:
        """Whether the call was chosen beforehand to be judged."""
        stretch = self._stretches.get(
            (outcome.agent, _task(outcome), outcome.session or outcome.call)
        )
        return stretch is not None and stretch.judged

    def restore(self, outcomes: Iterable[Outcome]) -> None:
        """Take up the stretches of a process before this one, from its last outcomes in order."""
        for outcome in outcomes:
            if not (_teaches(outcome) and outcome.session and outcome.success):
                continue
            key = (outcome.agent, _task(outcome), outcome.session)
            stretch = self._stretches.get(key)
            if stretch is not None and stretch.order[0] == outcome.name:
                stretch.last, stretch.calls = outcome.started, stretch.calls + 1
            else:
                # Whether it was judged is not taken over: a new stretch will be, soon enough.
                self._stretches[key] = Stretch((outcome.name,), False, outcome.started)

    def _goes_on(self, stretch: Stretch, now: int, ranks: Mapping[str, int], healthy: int) -> bool:
        return (
            now - stretch.last < self.settings.sticky * SECOND
            and stretch.calls < LONGEST_STRETCH
            and ranks.get(stretch.order[0]) == healthy
        )

    def _expect(
        self, options: CallOptions, found: list[ExpectedUtility], ranks: Mapping[str, int]
    ) -> None:
        waiting = self._expected.setdefault(options.agent, {})
        for key in waiting:
            waiting[key] *= _STILL_EXPECTED
        best = min(found, key=lambda each: ranks[each.model])  # the first of the healthy
        key = (_task(options), best.model)
        waiting[key] = waiting.get(key, 0.0) + 1.0

    def _judges(self) -> bool:
        return self._may_judge() and self.settings.judge_share > 0

    def _learns(self, options: CallOptions) -> bool:
        return bool(options.agent) and options.purpose == "chat"

    def _has_labels(self, agent: str) -> bool:
        return bool(
            self.memory.book(agent).labels
            or (self.settings.shared and self.memory.book(EVERYONE).labels)
        )


def is_chosen(name: str, share: float) -> bool:
    """Whether a hash of the name falls into this share: the same answer in every process."""
    digest = hashlib.blake2b(
        name.encode("utf-8", "surrogatepass"), digest_size=8, person=b"perdure-judge"
    )
    return int.from_bytes(digest.digest()) < share * 2**64


def _stretch_key(options: CallOptions) -> tuple[str, str, str]:
    return options.agent, _task(options), options.session or options.call


def _words(key: tuple[str, str, str]) -> str:
    return "\n".join(key)


def _task(of: CallOptions | Outcome) -> str:
    return of.task or of.purpose


def _teaches(outcome: Outcome) -> bool:
    return bool(outcome.agent) and outcome.purpose == "chat"


def _complexity(outcome: Outcome) -> Complexity:
    return outcome.complexity or "moderate"  # type: ignore[return-value]  # rows of before

"""From one candidate to the next, until one answers: retries and fallbacks under one deadline."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TypeVar

import msgspec

from perdure.core.errors import (
    AllFailed,
    BudgetReached,
    DeadlineExceeded,
    GatewayError,
    ProviderDown,
)
from perdure.gateway import retries
from perdure.gateway.calls import Ask
from perdure.gateway.catalog import Candidate
from perdure.gateway.failures import Unreachable, one_line
from perdure.gateway.flights import Flights
from perdure.gateway.retries import Backoff, Deadline

R = TypeVar("R")

#: Where another candidate is left, one that wants to be left alone for longer than this is not
#: waited for, and one that took longer than this to fail is not asked again.
_IMPATIENCE = 2.0
#: A candidate's share of the time is not less than this many seconds, as long as there are so many:
#: in less, none would answer.
_LEAST_SHARE = 0.5
#: Candidates whose reasons are told when all failed, and characters of each.
_MOST_REASONS = 5
_LONGEST_REASON = 160
#: A call that failed waits so many times for a circuit to be tried again.
_MOST_REFUSALS = 6
#: What a call does knows its deadline and keeps to it. Whatever does not, a bank that hangs, is cut
#: off so many seconds later.
_GRACE = 0.05


class NotSent(Exception):  # never seen outside of the gateway
    """What kept a call from being made. The provider was not asked."""

    def __init__(self, reason: GatewayError) -> None:
        self.reason = reason
        super().__init__(str(reason))


class Leg(msgspec.Struct, frozen=True):
    """One candidate's part of the way."""

    #: How many candidates failed before this one.
    position: int
    #: Of the whole call.
    deadline: Deadline
    #: By which this candidate has to answer, or to begin to: time is left for those after it.
    share: Deadline
    #: Seconds that the candidate may keep the call waiting before it takes it.
    patience: float


async def first(
    ask: Ask,
    candidates: Sequence[Candidate],
    attempt: Callable[[Candidate, Leg], Awaitable[R]],
    *,
    seconds: float,
    backoff: Backoff,
    flights: Flights,
) -> R:
    """What the first candidate that answers answers.

    Each is tried as `backoff` says, one after the other. A candidate whose circuit is open, or who
    has no room for the call soon enough, is passed over at once; so is one without a key. Only if
    none is left, a call that has failed waits until the circuit is tried again.

    While others are left, a candidate gets its share of the time that remains, with all of its
    tries; one that cannot be reached is not tried again. The last one gets all of the rest.

    A pause that would not end before the deadline is not made: the error of the last try is told
    at once. Raises `DeadlineExceeded` when the time is up, `AllFailed` if all failed or, if there
    is but one candidate, its error; `BudgetReached` if that kept any of them from being asked.
    """
    deadline = Deadline(seconds)
    errors = list[GatewayError]()
    reasons = dict[str, GatewayError]()

    def failed(candidate: Candidate, error: GatewayError) -> None:
        errors.append(error)
        reasons[candidate.name] = error

    async def walk() -> R:
        for position, candidate in enumerate(candidates):
            is_last = position == len(candidates) - 1
            patience = backoff.patience if is_last else min(backoff.patience, _IMPATIENCE)
            share = _share(deadline, len(candidates) - position)
            leg = Leg(position, deadline, share, patience)
            course = _Course(msgspec.structs.replace(backoff, patience=patience), is_last=is_last)
            while True:
                if deadline.passed:
                    raise TimeoutError
                course.begin()
                try:
                    return await attempt(candidate, leg)
                except BudgetReached as exc:
                    failed(candidate, exc)
                    wait = None  # a cheaper one may fit
                except GatewayError as exc:
                    failed(candidate, exc)
                    wait = course.failed(exc, share.remaining())
                except NotSent as exc:
                    failed(candidate, exc.reason)
                    wait = course.refused(exc.reason, share.remaining())
                if wait is None:
                    break
                await asyncio.sleep(wait)
        if deadline.passed:
            raise TimeoutError
        raise _failed(ask, candidates, errors, reasons)

    try:
        return await flights.run(walk, seconds + _GRACE)
    except TimeoutError:
        raise _late(seconds, errors) from None


def _share(deadline: Deadline, left: int) -> Deadline:
    """What the first of so many candidates gets of the time that remains."""
    if left == 1:
        return deadline
    remaining = deadline.remaining()
    return Deadline(min(remaining, max(_LEAST_SHARE, remaining / left)))


class _Course:
    """How it goes with one candidate: whether, and when, it is asked again."""

    def __init__(self, policy: Backoff, *, is_last: bool) -> None:
        self._policy = policy
        self._is_last = is_last
        self._tries = 0
        self._refusals = 0
        self._began = 0.0

    def begin(self) -> None:
        self._began = time.monotonic()

    def failed(self, error: GatewayError, remaining: float) -> float | None:
        """Seconds until it is asked again; None if it is not."""
        self._tries += 1
        took = time.monotonic() - self._began
        if not self._is_last and (took > self._policy.patience or isinstance(error, Unreachable)):
            return None
        return self._pause(self._policy, self._tries, error, remaining)

    def refused(self, error: GatewayError, remaining: float) -> float | None:
        """The same, for a call that was not made."""
        self._refusals += 1
        # Several calls that fail at the same time open the circuit for each other's next try, so
        # that a short trouble would end them all.
        waits = self._is_last and self._tries and isinstance(error, ProviderDown)
        if not waits or self._refusals > _MOST_REFUSALS:
            return None
        patient = msgspec.structs.replace(self._policy, attempts=_MOST_REFUSALS + 1)
        return self._pause(patient, self._refusals, error, remaining)

    @staticmethod
    def _pause(
        policy: Backoff, attempt: int, error: GatewayError, remaining: float
    ) -> float | None:
        return retries.pause(policy, attempt, error, remaining=remaining, random=random.random)


def _late(seconds: float, errors: Sequence[GatewayError]) -> DeadlineExceeded:
    last = f" The last try: {errors[-1].message}" if errors else ""
    return DeadlineExceeded(
        f"No model answered within {seconds:g} s.{last}",
        hint="Allow more time (Ask.deadline, or gateway.deadline), or add a faster model.",
    )


def _failed(
    ask: Ask,
    candidates: Sequence[Candidate],
    errors: Sequence[GatewayError],
    reasons: Mapping[str, GatewayError],
) -> GatewayError:
    reached = next((error for error in errors if isinstance(error, BudgetReached)), None)
    if reached is not None:
        return reached
    if len(candidates) == 1 and errors:
        return errors[-1]
    said = [_reason(name, error) for name, error in reasons.items()]
    if len(said) > _MOST_REASONS:
        said[_MOST_REASONS:] = [f"And {len(said) - _MOST_REASONS} more."]
    return AllFailed(
        f"None of {len(candidates)} models for {ask.purpose} answered, in {len(errors)} tries."
        f" {' '.join(said)}",
        hint="`perdure models` shows how they stand; the error's `errors` has all reasons.",
        errors=tuple(errors),
    )


def _reason(name: str, error: GatewayError) -> str:
    """Why a candidate failed, in one sentence that names it."""
    said = error.message if name in error.message else f"{name}: {error.message}"
    return one_line(said, _LONGEST_REASON)

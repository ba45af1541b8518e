"""Retries and fallbacks under one deadline: candidates are tried until one answers."""

from __future__ import annotations

import asyncio
import math
import random
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from typing import TypeVar

import msgspec

from perdure.core.errors import (
    AllFailed,
    BudgetReached,
    Closed,
    DeadlineExceeded,
    GatewayError,
    ProviderDown,
    RateLimited,
)
from perdure.gateway.calls import CallOptions
from perdure.gateway.catalog import ModelCandidate
from perdure.gateway.provider_errors import Unreachable, one_line

R = TypeVar("R")

#: If another candidate is left: seconds above which a pause is not waited for, and a slow failure
#: not retried.
_IMPATIENCE = 2.0
#: Least seconds of a candidate's share, while there are so many: in less, none would answer.
_LEAST_SHARE = 0.5
#: Candidates whose reasons are told when all failed, and characters of each.
_MOST_REASONS = 5
_LONGEST_REASON = 160
#: A call that failed waits so many times for a circuit to be tried again.
_MOST_REFUSALS = 6
#: Seconds after the deadline at which what does not keep to it (a bank that hangs) is cut off.
_GRACE = 0.05
#: Seconds for a call to put its things away when the gateway is closed.
_CLOSE_PATIENCE = 5.0


class NotSent(Exception):  # never seen outside of the gateway
    """Why a call was not made. The provider was not asked."""

    def __init__(self, reason: GatewayError) -> None:
        self.reason = reason
        super().__init__(str(reason))


class Backoff(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How often, and after how long, the same request goes to the same model again."""

    #: Tries in all, the first one included.
    attempts: int = 3
    #: The pause before the second try is between 0 and this many seconds; it doubles from there …
    base: float = 0.5
    #: … up to this.
    cap: float = 8.0
    #: A provider that asks for a longer pause than this is not waited for.
    patience: float = 20.0


class Deadline:
    """The moment by which everything has to be done; None for no limit."""

    __slots__ = ("_clock", "_ends")

    def __init__(self, seconds: float | None, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._ends = math.inf if seconds is None else clock() + seconds

    def remaining(self) -> float:
        """Seconds left, never below 0; infinite without a limit."""
        return max(0.0, self._ends - self._clock())

    @property
    def passed(self) -> bool:
        return self._clock() >= self._ends


class CandidateShare(msgspec.Struct, frozen=True):
    """One candidate's share of a call's time."""

    position: int
    #: Of the whole call.
    deadline: Deadline
    #: By which this candidate has to answer, or to begin to: time is left for those after it.
    ends: Deadline
    #: Seconds that the candidate may keep the call waiting before it takes it.
    patience: float


async def first(
    options: CallOptions,
    candidates: Sequence[ModelCandidate],
    attempt: Callable[[ModelCandidate, CandidateShare], Awaitable[R]],
    *,
    seconds: float,
    backoff: Backoff,
    open_calls: OpenCalls,
) -> R:
    """The answer of the first candidate that answers.

    Each is retried as `backoff` says. One whose circuit is open, that has no room soon enough, or
    that has no key is skipped at once; only if none is left, a call that has failed waits for a
    circuit's next probe. While others are left, a candidate gets a share of the remaining time; the
    last one gets the rest. A pause that would pass the deadline is not made.

    Raises `DeadlineExceeded`; `AllFailed`, or the error of the only candidate; `BudgetReached` if
    that kept any of them from being asked.
    """
    deadline = Deadline(seconds)
    errors = list[GatewayError]()
    reasons = dict[str, GatewayError]()

    async def walk() -> R:
        for position, candidate in enumerate(candidates):
            is_last = position == len(candidates) - 1
            patience = backoff.patience if is_last else min(backoff.patience, _IMPATIENCE)
            ends = _share(deadline, len(candidates) - position)
            share = CandidateShare(position, deadline, ends, patience)
            policy = msgspec.structs.replace(backoff, patience=patience)
            retries = _Retries(policy, is_last=is_last)
            while True:
                if deadline.passed:
                    raise TimeoutError
                began = time.monotonic()
                try:
                    return await attempt(candidate, share)
                except BudgetReached as exc:
                    error: GatewayError = exc
                    wait = None  # a cheaper one may fit
                except GatewayError as exc:
                    error = exc
                    took = time.monotonic() - began
                    wait = retries.failed(exc, took, ends.remaining())
                except NotSent as exc:
                    error = exc.reason
                    wait = retries.refused(error, ends.remaining())
                errors.append(error)
                reasons[candidate.name] = error
                if wait is None:
                    break
                await asyncio.sleep(wait)
        if deadline.passed:
            raise TimeoutError
        raise _failed(options, candidates, errors, reasons)

    try:
        return await open_calls.run(walk, seconds + _GRACE)
    except TimeoutError:
        last = f" The last try: {errors[-1].message}" if errors else ""
        raise DeadlineExceeded(
            f"No model answered within {seconds:g} s.{last}",
            hint="Allow more time (CallOptions.deadline, gateway.deadline), or add a faster model.",
        ) from None


def pause(
    policy: Backoff,
    attempt: int,
    error: GatewayError,
    *,
    remaining: float,
    random: Callable[[], float] = random.random,
) -> float | None:
    """Seconds to wait after try number `attempt` (from 1) failed; None to give up.

    Full jitter, so that callers who failed together do not return together: uniform below an
    exponentially growing bound. A pause that the provider asked for is waited out in full, plus the
    jitter of the first pause. A pause that reaches `remaining` is never made. `random` is in [0,
    1).
    """
    if not error.retryable or attempt >= policy.attempts:
        return None
    asked = error.retry_after if isinstance(error, RateLimited | ProviderDown) else None
    if asked is None:
        # 2.0 ** 1024 overflows; by then the cap has been reached for long.
        wait = random() * min(policy.cap, policy.base * 2.0 ** min(attempt - 1, 64))
    elif asked > policy.patience:
        return None
    else:
        wait = max(asked, 0.0) + random() * min(policy.base, policy.cap)
    return wait if wait < remaining else None


def _share(deadline: Deadline, left: int) -> Deadline:
    if left == 1:
        return deadline
    remaining = deadline.remaining()
    return Deadline(min(remaining, max(_LEAST_SHARE, remaining / left)))


class _Retries:
    def __init__(self, policy: Backoff, *, is_last: bool) -> None:
        self._policy = policy
        self._is_last = is_last
        self._tries = 0
        self._refusals = 0

    def failed(self, error: GatewayError, took: float, remaining: float) -> float | None:
        self._tries += 1
        if not self._is_last and (took > self._policy.patience or isinstance(error, Unreachable)):
            return None
        return pause(self._policy, self._tries, error, remaining=remaining)

    def refused(self, error: GatewayError, remaining: float) -> float | None:
        self._refusals += 1
        # Several calls that fail at the same time open the circuit for each other's next try, so
        # that a short trouble would end them all.
        waits = self._is_last and self._tries and isinstance(error, ProviderDown)
        if not waits or self._refusals > _MOST_REFUSALS:
            return None
        patient = msgspec.structs.replace(self._policy, attempts=_MOST_REFUSALS + 1)
        return pause(patient, self._refusals, error, remaining=remaining)


def _failed(
    options: CallOptions,
    candidates: Sequence[ModelCandidate],
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
        f"None of {len(candidates)} models for {options.purpose} answered, in {len(errors)} tries."
        f" {' '.join(said)}",
        hint="`perdure models` shows how they stand; the error's `errors` has all reasons.",
        errors=tuple(errors),
    )


def _reason(name: str, error: GatewayError) -> str:
    said = error.message if name in error.message else f"{name}: {error.message}"
    return one_line(said, _LONGEST_REASON)


class OpenCalls:
    """The calls under way, so that closing the gateway can end them. For one event loop."""

    def __init__(self) -> None:
        self._scopes: set[asyncio.Timeout] = set()
        #: What to close at the end, by whose it is: streams that are being read.
        self.streams: dict[object, Callable[[], Awaitable[None]]] = {}
        self._idle = asyncio.Event()
        self._closed = False

    async def run(self, work: Callable[[], Awaitable[R]], seconds: float | None = None) -> R:
        """Cancels `work` on an error: `TimeoutError` after `seconds`, `Closed` with the gateway."""
        self._check()
        scope = asyncio.timeout(seconds)
        try:
            async with scope:
                self._scopes.add(scope)
                return await work()
        except TimeoutError:
            if scope.expired():
                self._check()
            raise
        finally:
            self._scopes.discard(scope)
            if not self._scopes:
                self._idle.set()

    def _check(self) -> None:
        if self._closed:
            raise Closed(
                "The gateway is closed.", hint="Call models while their bank is open."
            ) from None

    async def close(self) -> None:
        self._closed = True
        now = asyncio.get_running_loop().time()
        if self._scopes:
            self._idle.clear()
            for scope in self._scopes:
                if not scope.expired():
                    scope.reschedule(now)
            with suppress(TimeoutError):
                await asyncio.wait_for(self._idle.wait(), _CLOSE_PATIENCE)
        # Nobody reads them at this moment: those who did have just been told.
        while self.streams:
            await self.streams.popitem()[1]()

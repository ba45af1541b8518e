"""When to try the same model again: a pure policy, and the deadline that it keeps to."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

import msgspec

from perdure.core.errors import GatewayError, ProviderDown, RateLimited


class Backoff(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How often, and after how long, the same request goes to the same model again."""

    #: Tries in all, the first one included.
    attempts: int = 3
    #: The pause before the second try is between 0 and this many seconds; it doubles from there …
    base: float = 0.5
    #: … up to this.
    cap: float = 8.0
    #: A provider that wants to be left alone for longer than this is not waited for: another
    #: candidate may have time now.
    patience: float = 20.0


def pause(
    policy: Backoff,
    attempt: int,
    error: GatewayError,
    *,
    remaining: float,
    random: Callable[[], float],
) -> float | None:
    """Seconds to wait after the try number `attempt` (from 1) failed; None to give up.

    Full jitter: uniform between nothing and an exponentially growing bound, so that callers who
    failed together do not return together. What the provider itself asked for is waited out in
    full, and the jitter of the first pause comes on top. A pause that ends with or after
    `remaining` is never made. `random` gives numbers in [0, 1).
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


class Deadline:
    """The moment by which everything has to be done: queueing, tries, fallbacks.

    Made once for a call and handed down. None stands for no limit.
    """

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

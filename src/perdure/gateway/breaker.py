"""Circuit breaker: a model that keeps failing is not called for a while, then probed by one call.

closed     calls pass; failures are counted
open       none passes until the next probe is due
half open  one probe at a time: it closes the circuit, or opens it again for longer
"""

from __future__ import annotations

import random as dice
import time
from collections.abc import Callable
from functools import partial
from types import TracebackType
from typing import Literal, Self, TypeAlias

import msgspec

from perdure.core.errors import (
    BadAnswer,
    ProviderDown,
    RateLimited,
    Rejected,
    StreamBroken,
)

State: TypeAlias = Literal["closed", "open", "half_open"]

#: Parts of the sliding window: what is older than the window is forgotten part by part.
_PARTS = 10


class BreakerPolicy(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """When a circuit opens (failures in a row, or their share in a window), and for how long."""

    failures: int = 5
    share: float = 0.5
    window: float = 60.0
    calls: int = 20
    #: Seconds until the first probe. Doubles with each probe that fails, up to the cap, and is
    #: shortened by up to a half at random, so that many processes do not probe together.
    rest: float = 5.0
    cap: float = 300.0


class BreakerView(msgspec.Struct, frozen=True):
    """The state of a circuit. Times are in seconds."""

    state: State
    since: float
    #: Seconds until the next probe; None unless it is open.
    next_probe: float | None
    #: Failures in a row.
    failures: int
    #: The share of failures in the window; None if there were no calls.
    share: float | None


class BreakerMemory(msgspec.Struct, frozen=True, array_like=True):
    """What a circuit takes along into another process."""

    is_open: bool
    #: Seconds until the next probe; 0 unless it is open.
    next_probe: float
    openings: int
    failures: int


def counts(error: BaseException) -> bool | None:
    """Whether a call ended by the provider's failure. False for a refused request: it is alive.
    None for a call that was cancelled or failed on our side.
    """
    if isinstance(error, ProviderDown | BadAnswer | StreamBroken):
        return True
    return False if isinstance(error, Rejected | RateLimited) else None


class Breaker:
    """The circuit of one model of one provider: ``with breaker.attempt(): …``.

    While it is open nobody passes; while it is half open, one at a time; a cancelled probe makes
    room for the next. Calls that began before a change of state do not change it again when they
    end. Memory is bounded.
    """

    def __init__(
        self,
        where: str,
        tripping: BreakerPolicy | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
        random: Callable[[], float] = dice.random,
    ) -> None:
        self._where = where
        self._tripping = tripping or BreakerPolicy()
        self._clock = clock
        self._random = random
        self._state: State = "closed"
        self._since = clock()
        self._probe_at = 0.0
        self._probing = False
        self._openings = 0  # since it was last closed for good
        #: Tells attempts apart that began in different states.
        self._era = 0
        self._in_a_row = 0
        self._window = _Window(self._tripping.window)

    @property
    def state(self) -> State:
        """An open circuit whose probe is due counts as half open."""
        if self._state == "open" and self._clock() >= self._probe_at:
            return "half_open"
        return self._state

    def check(self) -> None:
        """Raise what `attempt` would raise now, without taking a permit."""
        now = self._clock()
        if self._state == "open" and now < self._probe_at:
            raise self._refusal(self._probe_at - now)
        if self._state == "half_open" and self._probing:
            raise self._refusal(None)

    def attempt(self) -> BreakerPermit:
        """How the block ends is how the call ended.

        Raises `ProviderDown` if the circuit is open or being probed, with `retry_after` if known.
        """
        self.check()
        if self._state == "open":
            self._enter("half_open", self._clock())
        self._probing = self._state == "half_open"
        return BreakerPermit(partial(self._ended, self._era))

    def view(self) -> BreakerView:
        now = self._clock()
        state = self.state
        due = self._state == "open" and state == "half_open"
        failed, calls = self._window.sums(now)
        return BreakerView(
            state=state,
            since=now - (self._probe_at if due else self._since),
            next_probe=self._probe_at - now if state == "open" else None,
            failures=self._in_a_row,
            share=failed / calls if calls else None,
        )

    def memory(self) -> BreakerMemory:
        """A circuit that is being probed counts as open, with its next probe due."""
        waits = max(0.0, self._probe_at - self._clock()) if self._state == "open" else 0.0
        return BreakerMemory(self._state != "closed", waits, self._openings, self._in_a_row)

    def restore(self, memory: BreakerMemory, elapsed: float) -> None:
        """Go on where another left off so many seconds ago; an open circuit is probed in time."""
        now = self._clock()
        self._openings, self._in_a_row = memory.openings, memory.failures
        if memory.is_open:
            self._probe_at = now + min(memory.next_probe - elapsed, self._tripping.cap)
            self._enter("open", now)

    def _ended(self, era: int, error: BaseException | None) -> None:
        if era != self._era:
            return
        now = self._clock()
        failed = error is not None and counts(error)
        if self._state == "half_open":
            self._probing = False
            if failed:
                self._in_a_row += 1
                self._open(now)
            elif failed is False:
                self._close(now)
        elif failed:
            self._in_a_row += 1
            self._window.add(now, failed=True)
            if self._tripped(now):
                self._open(now)
        elif error is None:
            self._in_a_row = 0
            self._window.add(now, failed=False)
            if now - self._since >= self._tripping.cap:
                self._openings = 0  # it has held for long: the next opening is a first one again

    def _tripped(self, now: float) -> bool:
        if self._in_a_row >= self._tripping.failures:
            return True
        failed, calls = self._window.sums(now)
        return calls >= self._tripping.calls and failed >= self._tripping.share * calls

    def _open(self, now: float) -> None:
        rest = min(self._tripping.cap, self._tripping.rest * 2.0 ** min(self._openings, 64))
        self._openings += 1
        self._probe_at = now + rest * (1.0 - self._random() / 2)
        self._enter("open", now)

    def _close(self, now: float) -> None:
        self._in_a_row = 0
        self._window = _Window(self._tripping.window)
        self._enter("closed", now)

    def _enter(self, state: State, now: float) -> None:
        self._state = state
        self._since = now
        self._probing = False
        self._era += 1

    def _refusal(self, seconds: float | None) -> ProviderDown:
        when = "is being tried now" if seconds is None else f"is tried again in {seconds:.3g} s"
        return ProviderDown(
            f"{self._where} has failed {self._in_a_row} times in a row, or too often, and {when}.",
            hint="Wait, or add another model to fall back to.",
            retry_after=seconds,
        )


class BreakerPermit:
    """One call that a breaker let pass. Enter it once; how it ends is noted."""

    __slots__ = ("_ended",)

    def __init__(self, ended: Callable[[BaseException | None], None]) -> None:
        self._ended: Callable[[BaseException | None], None] | None = ended

    def end(self, error: BaseException | None = None) -> None:
        """Note how the call ended, before the block does; only the first call counts."""
        if self._ended is not None:
            ended, self._ended = self._ended, None
            ended(error)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.end(error)


class _Window:
    def __init__(self, seconds: float) -> None:
        self._part = seconds / _PARTS
        self._counts: list[tuple[int, int, int]] = []  # number of the part, failures, calls

    def add(self, now: float, *, failed: bool) -> None:
        number = int(now // self._part)
        if self._counts and self._counts[-1][0] == number:
            _, failures, calls = self._counts.pop()
        else:
            failures, calls = 0, 0
            self._counts = [part for part in self._counts if part[0] > number - _PARTS]
        self._counts.append((number, failures + failed, calls + 1))

    def sums(self, now: float) -> tuple[int, int]:
        oldest = int(now // self._part) - _PARTS
        recent = [part for part in self._counts if part[0] > oldest]
        return sum(part[1] for part in recent), sum(part[2] for part in recent)

"""Rate limits, read from headers, and a gate that keeps to them.

gate = Gate("openai/gpt-5", concurrency=64)
async with gate.slot(tokens=1_200, remaining=deadline.remaining()) as slot:
    sent = await transport.post(…)
    slot.observe(rate_limits.read(sent.headers))
"""

from __future__ import annotations

import asyncio
import math
import re
import time
from collections import deque
from collections.abc import Callable
from datetime import datetime
from types import TracebackType
from typing import Self

import msgspec

from perdure.core.errors import RateLimited
from perdure.gateway.calls import Headers, RateLimits


def read(headers: Headers, *, now: float | None = None) -> RateLimits | None:
    """Limits from OpenAI's ``x-ratelimit-*`` or Anthropic's ``anthropic-ratelimit-*`` headers.

    None if there are none; unreadable ones are left out. `now` is seconds since 1970.
    """
    found: dict[str, str] = {}
    for key, value in headers.items():
        name = key.lower()
        if name.startswith("x-ratelimit-"):
            found[name[12:]] = value
        elif name.startswith("anthropic-ratelimit-"):
            # “requests-remaining” there is “remaining-requests” here.
            kind, _, what = name[20:].rpartition("-")
            found[f"{what}-{kind}"] = value
    if not found:
        return None
    at = time.time() if now is None else now
    # Anthropic's “tokens” is whichever of input and output is the closer one; not always there.
    tokens = "tokens" if "remaining-tokens" in found else "input-tokens"
    limits = RateLimits(
        requests=_count(found.get("remaining-requests")),
        requests_reset=_seconds(found.get("reset-requests"), at),
        tokens=_count(found.get(f"remaining-{tokens}")),
        tokens_reset=_seconds(found.get(f"reset-{tokens}"), at),
    )
    return None if limits == _NOTHING else limits


class GateView(msgspec.Struct, frozen=True):
    """How a gate stands, for showing it."""

    active: int
    waiting: int
    #: Seconds until anybody is let in; 0 if it is open.
    paused: float
    #: What is left until the next reset, as far as it is known.
    requests: int | None
    tokens: int | None


class Gate:
    """Limits calls to one model of one provider. For one event loop; `clock` must go as the loop's.

    Guarantees: never more than `concurrency` callers inside, entering in order; a cancelled caller
    leaves nothing behind. While the provider has nothing left or asked for a pause, callers wait;
    one that would wait beyond its deadline or patience gets `RateLimited` with `retry_after` at
    once.

    Not guaranteed: that the provider never refuses; others may use the same key, and tokens are an
    estimate. A count without a time of reset is ignored, and one whose reset has come is forgotten.
    """

    def __init__(
        self, where: str, *, concurrency: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._where = where
        self._concurrency = concurrency
        self._clock = clock
        self._requests = _Left()
        self._tokens = _Left()
        self._paused_until = -math.inf
        self._active = 0
        #: Calls that the provider may not have counted yet, and the tokens that they may take.
        self._unseen = 0
        self._unseen_tokens = 0
        self._waiting: deque[_Waiter] = deque()
        self._timer: asyncio.TimerHandle | None = None

    def slot(
        self, *, tokens: int = 0, remaining: float = math.inf, patience: float = math.inf
    ) -> GateSlot:
        """An async context manager for a call of about so many tokens.

        Entering raises `RateLimited` if `remaining` seconds are not enough, or if the provider
        asked for a pause of more than `patience` seconds. Queueing behind other calls does not
        count as a pause.
        """
        return GateSlot(self, tokens, remaining, patience)

    def pause(self, seconds: float) -> None:
        """Let nobody in for so many seconds. Never shortens a pause."""
        self._paused_until = max(self._paused_until, self._clock() + seconds)
        self._advance()

    def view(self) -> GateView:
        now = self._clock()
        return GateView(
            active=self._active,
            waiting=len(self._waiting),
            paused=max(0.0, self._opens(0, now) - now),
            requests=self._requests.at(now),
            tokens=self._tokens.at(now),
        )

    async def _enter(self, tokens: int, remaining: float, patience: float) -> None:
        now = self._clock()
        opens = self._opens(tokens, now)
        if opens <= now and self._has_room(now) and not self._waiting:
            self._admit(tokens)
            return
        if opens >= now + min(remaining, patience):
            raise self._refusal(opens - now)
        loop = asyncio.get_running_loop()
        waiter = _Waiter(loop.create_future(), tokens, now + remaining, patience)
        self._waiting.append(waiter)
        self._advance()
        timeout = asyncio.timeout(None if remaining == math.inf else remaining)
        try:
            async with timeout:
                await waiter.future
        except BaseException as exc:
            if waiter.future.done() and not waiter.future.cancelled():
                if waiter.future.exception() is None:
                    # Let in, and cancelled before it could notice.
                    self._leave(tokens, seen=False)
            elif waiter in self._waiting:
                self._waiting.remove(waiter)
                self._advance()
            if isinstance(exc, TimeoutError) and timeout.expired():
                raise self._busy() from None
            raise

    def _has_room(self, now: float) -> bool:
        """When a used-up limit is refilled, the amount is unknown: one call goes ahead, the others
        follow when its answer tells.
        """
        unsure = self._requests.is_unsure(now) or self._tokens.is_unsure(now)
        return self._active < self._concurrency and not (unsure and self._unseen)

    def _admit(self, tokens: int) -> None:
        self._active += 1
        self._unseen += 1
        self._unseen_tokens += tokens
        self._requests.take(1)
        self._tokens.take(tokens)

    def _leave(self, tokens: int, *, seen: bool) -> None:
        self._active -= 1
        if not seen:
            self._seen(tokens)
        self._advance()

    def _seen(self, tokens: int) -> None:
        self._unseen -= 1
        self._unseen_tokens -= tokens

    def _observe(self, limits: RateLimits | None) -> None:
        # The provider has counted the call that brought this; those on their way, perhaps not.
        now = self._clock()
        limits = limits or _NOTHING
        self._requests.set(limits.requests, limits.requests_reset, self._unseen, now)
        self._tokens.set(limits.tokens, limits.tokens_reset, self._unseen_tokens, now)
        self._advance()

    def _opens(self, tokens: int, now: float) -> float:
        return max(
            self._paused_until,
            self._requests.allows(1, now),
            self._tokens.allows(max(1, tokens), now),
        )

    def _advance(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if not self._waiting:
            return
        now = self._clock()
        while self._waiting and self._has_room(now):
            first = self._waiting[0]
            opens = self._opens(first.tokens, now)
            if opens > now and not first.gives_up(opens, now):
                self._timer = asyncio.get_running_loop().call_later(opens - now, self._advance)
                break
            self._waiting.popleft()
            if first.future.done():
                continue  # cancelled a moment ago
            if opens > now:
                first.future.set_exception(self._refusal(opens - now))
            else:
                self._admit(first.tokens)
                first.future.set_result(None)
        shut = self._opens(0, now)
        if shut > now:
            for waiter in [w for w in self._waiting if w.gives_up(shut, now)]:
                self._waiting.remove(waiter)
                if not waiter.future.done():
                    waiter.future.set_exception(self._refusal(shut - now))

    def _refusal(self, seconds: float) -> RateLimited:
        return RateLimited(
            f"{self._where} has no room for another call for {seconds:.3g} s, which is longer than"
            " this one may wait.",
            hint="Wait, allow more time, or add another model to fall back to.",
            retry_after=seconds,
        )

    def _busy(self) -> RateLimited:
        return RateLimited(
            f"{self._where} is busy: {self._active} calls are running, {len(self._waiting)} more"
            " wait, and the time for this one is up.",
            hint="Send fewer at a time, allow more time, or raise the provider's concurrency.",
        )


class GateSlot:
    """One caller's place in a gate. Enter it once."""

    __slots__ = ("_gate", "_patience", "_remaining", "_seen", "_tokens")

    def __init__(self, gate: Gate, tokens: int, remaining: float, patience: float) -> None:
        self._gate = gate
        self._tokens = tokens
        self._remaining = remaining
        self._patience = patience
        self._seen = False

    def observe(self, limits: RateLimits | None) -> None:
        """Call it as soon as an answer's headers are there; also with None: the provider has
        counted the call.
        """
        if not self._seen:
            self._seen = True
            self._gate._seen(self._tokens)  # noqa: SLF001  # two halves of one thing
        self._gate._observe(limits)  # noqa: SLF001

    async def __aenter__(self) -> Self:
        await self._gate._enter(self._tokens, self._remaining, self._patience)  # noqa: SLF001
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._gate._leave(self._tokens, seen=self._seen)  # noqa: SLF001


class _Waiter(msgspec.Struct, eq=False):  # each is itself only
    future: asyncio.Future[None]
    tokens: int
    until: float
    patience: float

    def gives_up(self, opens: float, now: float) -> bool:
        return opens >= min(self.until, now + self.patience)


class _Left:
    __slots__ = ("_left", "_until")

    def __init__(self) -> None:
        self._left = 0
        self._until = -math.inf

    def at(self, now: float) -> int | None:
        return max(0, self._left) if now < self._until else None

    def allows(self, need: int, now: float) -> float:
        return self._until if now < self._until and self._left < need else -math.inf

    def is_unsure(self, now: float) -> bool:
        """Whether it was used up, and refilled by an unknown amount."""
        return self._left <= 0 and -math.inf < self._until <= now

    def take(self, amount: int) -> None:
        self._left -= amount

    def set(self, left: int | None, reset: float | None, unseen: int, now: float) -> None:
        if left is not None and reset is not None:
            self._left = left - unseen
            self._until = now + reset
        elif self._until <= now:
            self._until = -math.inf  # it is not told any more


_NOTHING = RateLimits()
_spans = re.compile(r"([\d.]+)(h|ms|m|s)", re.IGNORECASE)
_SECONDS = {"h": 3_600.0, "m": 60.0, "s": 1.0, "ms": 0.001}


def _count(text: str | None) -> int | None:
    try:
        return None if text is None else max(0, int(text))
    except ValueError:
        return None


def span(text: str) -> float | None:
    """Seconds of ``1m30s``, ``6m0s``, ``17ms`` or ``1h2m3.5s``; None for anything else."""
    parts = _spans.findall(text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        return None
    try:
        return sum(float(number) * _SECONDS[unit.lower()] for number, unit in parts)
    except ValueError:
        return None


def _seconds(text: str | None, now: float) -> float | None:
    """Seconds from now: of ``1m30s``, a number, or a time (RFC 3339, or since 1970)."""
    if text is None:
        return None
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if value >= 1e12:
        value = value / 1_000 - now
    elif value >= 1e9:
        value -= now
    elif math.isnan(value):
        found = span(text)
        value = _until(text, now) if found is None else found
    return max(0.0, value) if math.isfinite(value) else None


def _until(text: str, now: float) -> float:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return math.nan
    return moment.timestamp() - now if moment.tzinfo is not None else math.nan

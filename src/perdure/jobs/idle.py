"""Idle work: begun after a pause in writing, done in slices, one piece at a time.

An append must never be slower because of later work. So idle work begins some tens of milliseconds
after the last write, stops when another begins, and waits longer the next time where that happens
often. All kinds share these pauses and run one after the other, in the order of registration. Where
writes never pause, each gets a few milliseconds now and then.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TypeAlias

import msgspec

from perdure.core.errors import InvalidInput, PerdureError

GoOn: TypeAlias = Callable[[], bool]  # Tells work whether to go on; asked between two units of it.
Wake: TypeAlias = Callable[[], None]  # Says that there is something to do. Never waits.
#: Does some of what there is to do, at least one unit, until it is told to stop; whether there is
#: more. Called again after a pause if it raises.
Work: TypeAlias = Callable[[GoOn], Awaitable[bool]]

#: Seconds without a write after which work begins. Where writes keep coming while it is done, it
#: waits for twice as long the next time, and so on up to the second figure.
_IDLE, _LONGEST_IDLE = 0.05, 0.4
#: Where writes never pause, work that has waited for its patience gets a moment of so many seconds,
#: with so many between two of them.
PATIENCE, _MOMENT, _BETWEEN = 1.0, 0.004, 0.25
#: Seconds before work that failed is tried again; doubled with each failure in a row.
_FIRST_RETRY, _LONGEST_RETRY = 0.1, 60.0
CANCEL_PATIENCE = 5.0  # Seconds that cancelled work has to end before it is left to itself.
_SLICE = 0.002  # Seconds of work after which others get a turn on the event loop.
_LOOKS = 20  # How often somebody who writes is looked after before there is work again.
_TOLD = 1.0  # Seconds between two times at which marks are told what is done, while more is not.
_REST = 25  # Who is polite rests so many times as long as it works, while others write.

_log = logging.getLogger(__name__)


class _Idle(msgspec.Struct, eq=False):
    name: str
    work: Work
    covers: str
    patience: float
    closing: float
    waits: bool = False
    #: Since when it waits, and until when it is left alone because it failed.
    since: float = 0.0
    not_before: float = 0.0
    failures: int = 0


class IdleWork:
    """Drives idle work. `finished` is called for a kind when all that covers it is done."""

    def __init__(
        self,
        finished: Callable[[str], Awaitable[None]],
        left: Callable[[str, Iterable[str]], Awaitable[None]],
    ) -> None:
        # `left` is called for a kind of which some work is done, with the names of that.
        self._finished, self._left = finished, left
        self._works: dict[str, _Idle] = {}
        self._writers = 0
        #: When somebody last wrote, and how long it has to be ago.
        self._last = -math.inf
        self._quiet = _IDLE
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None
        self._lock = asyncio.Lock()
        self._is_on = False
        self._told = -math.inf  # When marks were last told what of their work is done.
        self._slice = 0.0  # When the slice began that is being worked.

    def add(
        self,
        name: str,
        work: Work,
        *,
        covers: str = "",
        patience: float = PATIENCE,
        closing: float = 0.0,
    ) -> Wake:
        """Do work when nobody writes; call the returned function when there is some.

        `covers` is a kind of mark that stays until this work is done, too. `patience` is for how
        many seconds the work waits where writers never pause; `closing` how many it gets when the
        runner is stopped. Work runs in the order of registration.
        """
        if name in self._works:
            raise InvalidInput(f"Idle work {name!r} exists.", hint="Choose another name.")
        idle = self._works[name] = _Idle(name, work, covers, patience, closing)

        def wake() -> None:
            if not idle.waits:
                idle.waits, idle.since = True, time.monotonic()
                self._arm()

        return wake

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Around a write that idle work must not delay. No mark is removed meanwhile."""
        if self._task is not None:
            self._quiet = min(self._quiet * 2, _LONGEST_IDLE)
        self._writers += 1
        try:
            yield
        finally:
            self._writers -= 1
            self._last = time.monotonic()

    def hold_off(self) -> None:
        """Somebody waits for what they read: begin after another pause, as behind a write."""
        self._last = time.monotonic()

    def is_idle(self) -> bool:
        return not self._writers and time.monotonic() - self._last >= self._quiet

    async def breathe(self) -> None:
        """Call between two units of work: lets others run, and a writer end first."""
        if self._writers:
            # It gives way several times itself, and would find us at work each time.
            for _ in range(_LOOKS):
                await asyncio.sleep(_SLICE / 2)
                if not self._writers:
                    break
            self._slice = time.perf_counter()
        elif time.perf_counter() - self._slice > _SLICE:
            await asyncio.sleep(0)
            self._slice = time.perf_counter()

    async def give_way(self, worked: float) -> None:
        """For work outside of pauses: rest for a multiple of the seconds worked, if writes come."""
        if not self.is_idle():
            await asyncio.sleep(min(worked * _REST, 1.0))

    def start(self) -> None:
        self._is_on = True
        self._arm()

    async def settle(self, name: str = "") -> None:
        """Do everything now, or all of one name. Raises what the work raises."""
        works = [self._works[name]] if name else list(self._works.values())
        async with self._lock:
            while waiting := [work for work in works if work.waits]:
                for work in waiting:
                    await self._call(work, _always)
            await self._clear()

    async def stop(self, grace: float) -> None:
        """Give each work its last seconds, and end. What is left has its mark, or its row.

        Work that goes on for `grace` seconds after it was told to stop is cancelled.
        """
        was_on, self._is_on = self._is_on, False
        self._disarm()
        if self._task is not None:
            await _end(self._task, grace)
        if was_on:
            closing = sum(work.closing for work in self._works.values())
            last = asyncio.create_task(self._close(), name="perdure-idle-close")
            await _end(last, closing + grace)

    async def _close(self) -> None:
        await self._pass(lambda work: _for(work.closing) if work.closing else None)

    def _arm(self) -> None:
        waiting = [work.not_before for work in self._works.values() if work.waits]
        if self._is_on and waiting and self._timer is None and self._task is None:
            pause = max(_IDLE, min(waiting) - time.monotonic())
            self._timer = asyncio.get_running_loop().call_later(pause, self._when_due)

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _when_due(self) -> None:
        self._timer = None
        now, is_idle = time.monotonic(), self.is_idle()
        if not is_idle and not any(self._is_impatient(work, now) for work in self._works.values()):
            self._arm()
            return
        choose = self._in_a_pause if is_idle else self._in_a_moment
        self._task = asyncio.get_running_loop().create_task(self._run(choose), name="perdure-idle")

    def _is_impatient(self, work: _Idle, now: float) -> bool:
        return work.waits and now - work.since >= work.patience and now >= work.not_before

    def _in_a_pause(self, work: _Idle) -> GoOn | None:
        ready = time.monotonic() >= work.not_before and self._may_go_on()
        return self._may_go_on if ready else None

    def _in_a_moment(self, work: _Idle) -> GoOn | None:
        now = time.monotonic()
        if not self._is_impatient(work, now):
            return None
        work.since = now - work.patience + _BETWEEN
        return _for(_MOMENT)

    def _may_go_on(self) -> bool:
        return self._is_on and self.is_idle()

    async def _run(self, choose: Callable[[_Idle], GoOn | None]) -> None:
        try:
            await self._pass(choose)
        finally:
            self._task = None
            self._arm()

    async def _pass(self, choose: Callable[[_Idle], GoOn | None]) -> None:
        async with self._lock:
            for work in list(self._works.values()):
                go_on = choose(work) if work.waits else None
                if go_on is None:
                    continue
                try:
                    await self._call(work, go_on)
                except Exception as exc:  # noqa: BLE001
                    # The outermost loop: what fails now is tried again, and keeps nobody else.
                    self._failed(work, exc)
            if self.is_idle():  # nobody came while we were at work
                self._quiet = max(self._quiet / 2, _IDLE)
            try:
                await self._clear()
            except PerdureError as exc:
                _log.warning("marks of what is done could not be taken away: %s", exc)

    async def _call(self, work: _Idle, go_on: GoOn) -> None:
        work.waits = False
        more = True
        try:
            more = await work.work(go_on)
            work.failures, work.not_before = 0, 0.0
        finally:
            if more and not work.waits:
                work.waits, work.since = True, work.since or time.monotonic()

    def _failed(self, work: _Idle, exc: Exception) -> None:
        pause = min(_FIRST_RETRY * 2**work.failures, _LONGEST_RETRY)
        work.failures = min(work.failures + 1, 16)
        work.not_before = time.monotonic() + pause
        known = isinstance(exc, PerdureError)
        message = "%s failed, and is tried again in %.1f s: %s"
        _log.warning(message, work.name, pause, exc, exc_info=None if known else exc)

    async def _clear(self) -> None:
        """Take away the marks of what is done, and say what of the others is."""
        works = self._works.values()
        for kind in {work.covers for work in works if work.covers}:
            if self._writers:  # they rely on their mark, and wake us when they are done
                return
            some = [work for work in works if work.covers == kind]
            done = [work.name for work in some if not work.waits]
            if len(done) == len(some):
                await self._finished(kind)
            elif done and (not self._is_on or time.monotonic() >= self._told + _TOLD):
                self._told = time.monotonic()
                await self._left(kind, done)


async def _end(task: asyncio.Task[None], grace: float) -> None:
    await asyncio.wait({task}, timeout=grace)
    task.cancel()
    if not (await asyncio.wait({task}, timeout=CANCEL_PATIENCE))[0]:
        _log.error("%s does not end when cancelled; it is left to itself", task.get_name())


def _always() -> bool:
    return True


def _for(seconds: float) -> GoOn:
    end = 0.0

    def go_on() -> bool:
        nonlocal end
        end = end or time.monotonic() + seconds
        return time.monotonic() < end

    return go_on

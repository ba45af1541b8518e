"""What was denied, in the bank's audit trail, whatever the number.

The first denial of a kind is written at once. Further ones within a minute are counted, and written
as one entry. So many kinds are told apart in a minute, the rest is one kind: a flood of denials
leaves some lines a minute, and what it sent is never stored.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter

import msgspec

from perdure.core.actors import acting_as
from perdure.core.errors import Denied, PerdureError
from perdure.storage.audit import AuditTrail

#: Kinds that are told apart in one period.
MOST_KINDS = 20
#: Seconds.
PERIOD = 60.0
_log = logging.getLogger("perdure.server")


class DenialKind(msgspec.Struct, frozen=True):
    """Denials that are counted together."""

    status: int
    caller: str
    operation: str
    peer: str


_OTHERS = DenialKind(0, "nobody", "various", "various")


class DenialLog:
    """Counts denials and writes them to the trail, beside the requests."""

    def __init__(self, trail: AuditTrail, *, period: float = PERIOD) -> None:
        self._trail = trail
        self._period = period
        #: How many of each kind are not written yet.
        self._counts = Counter[DenialKind]()
        self._timer: asyncio.TimerHandle | None = None
        self._writing = set[asyncio.Task[None]]()

    def note(self, denied: Denied, kind: DenialKind) -> None:
        if kind not in self._counts and len(self._counts) >= MOST_KINDS:
            kind = _OTHERS
        if kind in self._counts:
            self._counts[kind] += 1
            return
        self._counts[kind] = 0
        self._write(kind, 1, denied.message)
        if self._timer is None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(self._period, self._end_period)

    async def settle(self) -> None:
        """Write what was counted."""
        self._end_period()
        while self._writing:
            await asyncio.wait(self._writing)

    def _end_period(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        counts, self._counts = self._counts, Counter()
        for kind, count in counts.items():
            if count:
                self._write(kind, count, "More of the same.")

    def _write(self, kind: DenialKind, count: int, message: str) -> None:
        writing = asyncio.create_task(self._record(kind, count, message), name="perdure-denial")
        self._writing.add(writing)
        writing.add_done_callback(self._writing.discard)

    async def _record(self, kind: DenialKind, count: int, message: str) -> None:
        reason = f"{kind.status or ''} from {kind.peer}: {message[:200]}".strip()
        try:
            with acting_as(kind.caller, reason=reason):
                await self._trail.record_denial(kind.operation, count=count)
        except PerdureError as exc:  # nobody waits for it, and the request was denied all the same
            _log.warning("A denial could not be recorded: %s", exc)

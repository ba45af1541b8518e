"""Writes that are done once, though they may be sent twice.

A connection can break during a write. So each write has a number, its *ticket*, and its script
keeps ticket and answer in the writer's slot, in the same step. It is simply sent again: a script
that finds the ticket returns the kept answer; one that finds a later ticket, because it was
delivered late, does nothing. A server that lost the write has lost the ticket with it.

A slot keeps its last ticket only; a writer has as many slots as it ever had concurrent writes.
Closing removes them; those of a killed process are swept after a day.
"""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import Sequence

from valkey import exceptions as vk

from perdure.core.errors import Closed, DeadlineExceeded, Unavailable
from perdure.storage.backends.valkey.links import (
    Pauses,
    ValkeyLink,
    ValkeyPool,
    is_busy,
    is_lost,
    translated,
)
from perdure.storage.backends.valkey.rows import ValkeyNames
from perdure.storage.backends.valkey.scripts import SWEEP_TICKETS, Script

Answer = list[bytes | int]


#: Microseconds after which nobody sends a write again that was done then.
_LONG_AGO = 24 * 3_600 * 1_000_000


class _Slot:
    __slots__ = ("name", "ticket")

    def __init__(self, name: bytes) -> None:
        self.name = name
        self.ticket = 0


class _Job:
    __slots__ = ("args", "begun", "expired", "keys", "script", "withdrawn")

    def __init__(self, script: Script, keys: Sequence[bytes], args: Sequence[bytes | int]) -> None:
        self.script = script
        self.keys = keys
        self.args = args
        #: It was sent, and how it ended is not known yet.
        self.begun = False
        self.expired = False
        self.withdrawn = False

    def check(self, *, lost: bool) -> None:
        """Raises `CancelledError` if the caller has gone, unless it may be done already."""
        if not lost and (self.withdrawn or self.expired):
            raise asyncio.CancelledError


class ValkeyWriter:
    """Runs scripts that write. Used from one event loop."""

    def __init__(self, links: ValkeyPool, names: ValkeyNames) -> None:
        self._links = links
        self._names = names
        self._id = uuid.uuid4().hex
        self._idle: list[_Slot] = []
        self._slots: list[_Slot] = []
        self._running: set[asyncio.Task[Answer]] = set()
        self._closed = False

    async def run(
        self,
        script: Script,
        keys: Sequence[bytes],
        args: Sequence[bytes | int],
        deadline: float | None = None,
    ) -> Answer:
        """Run the script; `keys` and `args` follow those of the ticket; the first of `args` is
        the moment.

        Cancelled, it is withdrawn unless it was sent, and completed if it was; either way nothing
        is in flight when `CancelledError` is raised. A missed deadline does the same
        (`DeadlineExceeded`). Raises `Unavailable` after `links.PATIENCE` seconds without the
        server; it says so if it is unknown whether the write was done.
        """
        if self._closed:
            raise Closed("This store is closed.", hint="Open it again.")
        job = _Job(script, keys, args)
        task = asyncio.create_task(self._carry_out(job))
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        try:
            await asyncio.wait([task], timeout=deadline)
            if not task.done():
                job.expired = True
                await _end(job, task)
        except asyncio.CancelledError:
            job.withdrawn = True
            ending = asyncio.create_task(_end(job, task))
            while not ending.done():
                # Cancelled again: the caller is told as soon as the outcome is certain.
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.wait([ending])
            if not task.cancelled():
                task.exception()  # seen
            raise
        return task.result()

    async def close(self) -> None:
        """Finish what was accepted, then remove our slots."""
        if self._closed:
            return
        self._closed = True
        while self._running:
            await asyncio.wait(self._running)
        if self._slots:
            # If the server is away, they are swept some day.
            with contextlib.suppress(vk.ValkeyError, OSError):
                async with self._links.one() as link:
                    names = [slot.name for slot in self._slots]
                    await link.call(b"HDEL", self._names.tickets, *names)

    async def _carry_out(self, job: _Job) -> Answer:
        slot = self._idle.pop() if self._idle else self._new_slot()
        slot.ticket += 1
        try:
            with translated(self._links.server):
                return await self._send(job, slot)
        except asyncio.CancelledError:
            if job.expired:
                raise DeadlineExceeded(
                    "The write was not sent in the time allowed; nothing was written.",
                    hint="Repeat it, or allow more time.",
                ) from None
            raise
        finally:
            self._idle.append(slot)

    async def _send(self, job: _Job, slot: _Slot) -> Answer:
        keys = [self._names.meta, self._names.tickets, *job.keys]
        args = [slot.ticket, *job.args, slot.name]
        pauses, lost = Pauses(), False
        while True:
            try:
                async with self._links.one() as link:
                    job.check(lost=lost)
                    job.begun = True
                    answer: Answer = await link.run(job.script, keys, args)
                    return answer
            except (vk.ValkeyError, OSError) as exc:
                if is_lost(exc):
                    lost = job.begun
                elif is_busy(exc):
                    job.begun = lost
                else:
                    raise
                if pauses.are_over:
                    raise (self._unknown() if lost else exc) from exc
            await pauses.next()

    def _new_slot(self) -> _Slot:
        slot = _Slot(f"{self._id}:{len(self._slots)}".encode())
        self._slots.append(slot)
        return slot

    def _unknown(self) -> Unavailable:
        return Unavailable(
            f"The connection to {self._links.server.label} broke during a write, and the server did"
            " not come back to tell its outcome: it is unknown whether the write was done.",
            hint="When the server is back, read the record to see.",
        )


async def sweep_tickets(link: ValkeyLink, names: ValkeyNames, moment: int) -> None:
    """Remove slots in which nothing was written for a day."""
    await link.run(SWEEP_TICKETS, [names.tickets], [moment - _LONG_AGO])


async def _end(job: _Job, task: asyncio.Task[Answer]) -> None:
    """Stop a write that was not sent; wait for one that was."""
    if not job.begun:
        task.cancel()
    await asyncio.wait([task])

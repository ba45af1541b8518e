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

from perdure.core.errors import Unavailable
from perdure.storage.backends.server_writer import ServerWriter, WriteJob
from perdure.storage.backends.valkey.links import ValkeyLink, ValkeyPool, is_busy, is_lost
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


class ValkeyWriter(ServerWriter):
    """Runs scripts that write."""

    def __init__(self, links: ValkeyPool, names: ValkeyNames) -> None:
        super().__init__()
        self._links = links
        self._names = names
        self._id = uuid.uuid4().hex
        self._idle: list[_Slot] = []
        self._slots: list[_Slot] = []

    async def run(
        self,
        script: Script,
        keys: Sequence[bytes],
        args: Sequence[bytes | int],
        deadline: float | None = None,
    ) -> Answer:
        """Run the script; `keys` and `args` follow those of the ticket; the first of `args` is
        the moment. See `ServerWriter` for deadlines and cancelling.

        Raises `Unavailable` after `PATIENCE` seconds without the server; it says so if it is
        unknown whether the write was done.
        """
        job = WriteJob()
        return await self._see_through(job, self._carry_out(job, script, keys, args), deadline)

    async def _carry_out(
        self, job: WriteJob, script: Script, keys: Sequence[bytes], args: Sequence[bytes | int]
    ) -> Answer:
        slot = self._idle.pop() if self._idle else self._new_slot()
        slot.ticket += 1
        all_keys = [self._names.meta, self._names.tickets, *keys]
        all_args = [slot.ticket, *args, slot.name]
        lost = False

        async def attempt(link: ValkeyLink) -> Answer:
            nonlocal lost
            job.check()
            job.sent = True
            try:
                answer: Answer = await link.run(script, all_keys, all_args)
            except self._links.errors as exc:
                lost = lost or is_lost(exc)
                job.sent = lost
                raise
            return answer

        try:
            with self._links.translated():
                try:
                    return await self._links.patiently(attempt)
                except self._links.errors as exc:
                    if lost and (is_lost(exc) or is_busy(exc)):
                        raise self._unknown() from exc
                    raise
        finally:
            self._idle.append(slot)

    async def _end(self, job: WriteJob, task: asyncio.Task[Answer]) -> None:
        if not job.sent:
            task.cancel()
        await asyncio.wait([task])

    async def _forget(self) -> None:
        if self._slots:
            names = [slot.name for slot in self._slots]
            # If the server is away, they are swept some day.
            with contextlib.suppress(vk.ValkeyError, OSError):
                await self._links.use(lambda link: link.call(b"HDEL", self._names.tickets, *names))

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

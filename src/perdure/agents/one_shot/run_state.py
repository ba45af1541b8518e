"""How a run stands: its record, written under the lease, and what its caps have left."""

from __future__ import annotations

import time
from collections.abc import Callable

import msgspec

from perdure.agents.agent_lease import HeldLease
from perdure.agents.one_shot.run_records import RunIteration, RunRecord, RunStatus
from perdure.core.display import plural
from perdure.gateway.outcomes import Outcome
from perdure.gateway.prices import dollars
from perdure.history.turn_log import AppendHook, Written
from perdure.storage.store import Store
from perdure.storage.transaction import Transaction

replace = msgspec.structs.replace


class RunEvent(msgspec.Struct, frozen=True):
    """Something was done, and is written down."""

    run: str
    iteration: int
    phase: str
    text: str


Progress = Callable[[RunEvent], None]


class RunState:
    """The record of a run that this process works on. Every write checks the lease first, and
    raises `LeaseLost` if another process has it.
    """

    def __init__(
        self, store: Store, record: RunRecord, lease: HeldLease, progress: Progress | None
    ) -> None:
        self.record = record
        self._store = store
        self._lease = lease
        self._progress = progress
        self._began, self._before = time.monotonic(), record.active

    async def iterations(self) -> list[RunIteration]:
        """Oldest first."""
        found = self._store.collection(RunIteration).query().prefix(f"{self.record.id}/")
        return sorted(await found.values(), key=lambda each: each.number)

    async def save(self, iteration: RunIteration | None, record: RunRecord | None = None) -> None:
        kept = self.record if record is None else record
        await self._store.transact(lambda tx: self._put(tx, kept, iteration))

    def within(self, iteration: RunIteration, record: RunRecord) -> AppendHook:
        """Saves both in the transaction of an append; the iteration gets the turn's number."""

        async def hook(transaction: Transaction, written: Written) -> None:
            turn = iteration.turn or written.first
            await self._put(transaction, record, replace(iteration, turn=turn))

        return hook

    async def fence(self, transaction: Transaction, _: Written) -> None:
        """For appends that save nothing else."""
        await self._lease.check(transaction)

    async def put_fenced(self, row: msgspec.Struct) -> None:
        async def put(transaction: Transaction) -> None:
            await self._lease.check(transaction)
            await transaction.collection(type(row)).put(row)

        await self._store.transact(put)

    async def finish(self, status: RunStatus, reason: str, question: str = "") -> None:
        record = replace(self.record, status=status, reason=reason, question=question)
        await self.save(None, record)
        self.tell(record.iterations, status, reason)

    def tell(self, iteration: int, phase: str, text: str) -> None:
        if self._progress is not None:
            self._progress(RunEvent(self.record.id, iteration, phase, text))

    async def _put(
        self, transaction: Transaction, record: RunRecord, iteration: RunIteration | None
    ) -> None:
        await self._lease.check(transaction)
        record = replace(record, updated=self._store.now(), active=self._active())
        await transaction.collection(RunRecord).put(record)
        if iteration is not None:
            await transaction.collection(RunIteration).put(iteration)
        self.record = record

    # Caps -------------------------------------------------------------------------------------

    def cap(self) -> str:
        """The cap that is reached, in words; empty if none is."""
        record, settings = self.record, self.record.settings
        if record.iterations >= settings.max_runs:
            return f"It had all of its {plural(settings.max_runs, 'run')}."
        if record.cost >= settings.max_cost:
            return f"It spent {dollars(record.cost)} of {dollars(settings.max_cost)}."
        if self.seconds_left() <= 0:
            return f"Its {settings.max_seconds / 3600:g} hours are over."
        return ""

    def seconds_left(self) -> float:
        return self.record.settings.max_seconds - self._active()

    def charged(self, cost: int | None, known: int = 0, tokens: int = 0) -> RunRecord:
        """The record with this cost (picodollars). If it is None, it is unknown, but for a `known`
        part; `tokens` are those of the rest, if somebody counted them.
        """
        record = self.record
        if cost is None:
            return replace(
                record,
                cost=record.cost + known,
                unknown_costs=record.unknown_costs + 1,
                unpriced_tokens=record.unpriced_tokens + tokens,
            )
        return replace(record, cost=record.cost + cost)

    async def noted_cost(self, since: int) -> int | None:
        """What the gateway noted for the session since then; None if it noted nothing."""
        rows = self._store.collection(Outcome).query().where("session", "=", self.record.session)
        costs = [each.cost for each in await rows.values() if each.started >= since]
        known = [cost for cost in costs if cost is not None]
        return sum(known) if known and len(known) == len(costs) else None

    def _active(self) -> float:
        return self._before + time.monotonic() - self._began

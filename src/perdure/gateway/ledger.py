"""Budgets: reserved before a call and settled after it.

A budget limits tokens, money or both, for a period: for everything, one purpose, one agent, or each
agent. A reservation counts as spent from before the call; settling replaces it by what the call
took. A process that dies in between has spent what it reserved.

What does not fit is refused at once. Calls of all processes that share the bank count together,
exactly. Within a process, waiting work goes into one transaction: settlements first, then
reservations in order. An answer that takes more than its reservation counts in full, and may exceed
the limit; nothing more is allowed then.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from functools import partial
from typing import TypeAlias

import msgspec

from perdure.core import clock as clocks
from perdure.core.clock import Clock
from perdure.core.errors import BudgetReached, InvalidConfig, InvalidInput
from perdure.gateway.budgets import (
    EACH,
    Budget,
    BudgetHold,
    BudgetPeriod,
    BudgetRoom,
    BudgetStatus,
    Reservation,
    fits,
    hold_for,
    reached,
    reserved,
    settled,
)
from perdure.gateway.calls import CallOptions, indexable
from perdure.storage.store import Store
from perdure.storage.transaction import Transaction

_log = logging.getLogger(__name__)


class _Work(msgspec.Struct):
    reservation: Reservation
    done: asyncio.Future[None]
    took: tuple[int, int] | None = None  # tokens, picodollars


#: A reservation to be made or, with tokens and picodollars that were taken, settled.
_Claim: TypeAlias = tuple[Reservation, tuple[int, int] | None]


class Ledger:
    """Keeps the budgets of a bank. For one event loop."""

    def __init__(
        self, store: Store, budgets: Sequence[Budget] = (), clock: Clock = clocks.now
    ) -> None:
        names = [budget.name for budget in budgets]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise InvalidConfig(
                f"Two budgets have the same name, {twice[0]!r}.",
                hint="Give each a name of its own.",
            )
        self._store = store
        self._budgets = tuple(budgets)
        self._clock = clock
        self._waiting: list[_Work] = []
        self._worker: asyncio.Task[None] | None = None

    def covers(self, options: CallOptions) -> bool:
        return any(budget.covers(options) for budget in self._budgets)

    async def reserve(
        self,
        options: CallOptions,
        tokens: int,
        cost: int | None,
        *,
        model: str = "",
        assumed: int = 0,
        at_home: bool = False,
    ) -> Reservation:
        """Reserve room in every budget that covers the call, or in none.

        `tokens` and `cost` (picodollars; None is unknown) are what it may take; `model`, and
        `assumed` (how many tokens stand for an answer of unknown length), are for messages.
        Cancelled, nothing stays reserved. Without a budget, the bank is not touched.

        Raises `BudgetReached` if it does not fit, or if its cost is unknown and a budget limits
        money; `StorageError` if the bank does not answer: make no call then.
        """
        holds = self._holds(options, cost, model=model, at_home=at_home)
        if not holds:
            return Reservation()
        reservation = Reservation(holds, max(0, tokens), max(0, cost or 0), assumed)
        done = asyncio.get_running_loop().create_future()
        self._submit(_Work(reservation, done))
        try:
            await done
        except asyncio.CancelledError:
            # If the cancellation was seen by the future, the worker sees it there.
            if not done.cancelled() and done.exception() is None:
                self._release(reservation)
            raise
        return reservation

    async def reserve_many(
        self,
        transaction: Transaction,
        options: CallOptions,
        amounts: Sequence[tuple[int, int | None]],
        *,
        model: str = "",
        assumed: int = 0,
    ) -> tuple[BudgetHold, ...]:
        """Reserve room for many calls, tokens and picodollars each, as a part of a transaction; or
        for none of them. Each is settled by itself, with what is returned: `settle_many`.

        Raises as `reserve`.
        """
        costs = [cost for _, cost in amounts]
        total = None if None in costs else sum(cost or 0 for cost in costs)
        holds = self._holds(options, total, model=model)
        wanted = Reservation(holds, sum(tokens for tokens, _ in amounts), total or 0, assumed)
        collection = transaction.collection(BudgetPeriod)
        found = await collection.get_many([hold.key for hold in holds])
        for hold, there in zip(holds, found, strict=True):
            spending = there or hold.empty()
            if not fits(hold, spending, wanted):
                raise reached(hold, spending, wanted)
            held = msgspec.structs.replace(spending, held=spending.held + len(amounts) - 1)
            await collection.put(reserved(held, wanted))
        return holds

    async def settle_many(
        self, transaction: Transaction, calls: Sequence[tuple[Reservation, int, int | None]]
    ) -> None:
        """Replace reservations by what the calls took, as a part of a transaction. A cost of None
        is unknown: the reserved cost counts.
        """
        claims: list[_Claim] = [
            (held, (max(0, tokens), held.cost if cost is None else max(0, cost)))
            for held, tokens, cost in calls
            if held.holds
        ]
        if claims:
            await _carry_out(claims, transaction)

    async def settle(self, reservation: Reservation, tokens: int, cost: int | None) -> None:
        """Replace a reservation by what the call took, in the period in which it was made.

        A cost of None is unknown: the reserved cost counts. Settling twice does nothing. Cancelled,
        it is still done. Raises `StorageError`: what was reserved counts as spent then.
        """
        done = self._settlement(reservation, tokens, cost)
        if done is not None:
            await done

    def post(self, reservation: Reservation, tokens: int, cost: int | None) -> None:
        """Settle without waiting, before later reservations. Never raises; on an error, what
        was reserved counts as spent.
        """
        done = self._settlement(reservation, tokens, cost)
        if done is not None:
            done.add_done_callback(_let_go)

    async def status(self) -> list[BudgetStatus]:
        """Each budget in its current period; of budgets per agent, one for each that spent."""
        now = self._clock()
        periods = self._store.collection(BudgetPeriod)
        statuses = list[BudgetStatus]()
        for budget in self._budgets:
            period, renews = budget.period(now)
            key = f"{budget.name}/{period}"
            if budget.agent == EACH:
                found = await periods.query().prefix(f"{key}/").values()
                found.sort(key=lambda spending: spending.agent)
            else:
                found = [await periods.get(key) or BudgetPeriod(id=key)]
            statuses += [
                BudgetStatus(
                    budget=budget,
                    agent=spending.agent,
                    period=period,
                    renews=renews,
                    spending=spending,
                )
                for spending in found
            ]
        return statuses

    def limits(self, options: CallOptions) -> BudgetRoom:
        """What calls like this may take of fresh budgets."""
        covering = [budget for budget in self._budgets if budget.covers(options)]
        tokens = [budget.tokens for budget in covering if budget.tokens is not None]
        costs = [budget.cost for budget in covering if budget.cost is not None]
        return BudgetRoom(min(tokens, default=None), min(costs, default=None))

    async def room(self, options: CallOptions) -> BudgetRoom:
        """What calls like this may still reserve now, in all budgets that cover them."""
        now = self._clock()
        covering = [budget for budget in self._budgets if budget.covers(options)]
        holds = [hold_for(budget, options, now) for budget in covering]
        found = await self._store.collection(BudgetPeriod).get_many([hold.key for hold in holds])
        left = [
            BudgetStatus(
                budget=hold.budget,
                agent=hold.agent,
                period="",
                renews=hold.renews,
                spending=spending or hold.empty(),
            )
            for hold, spending in zip(holds, found, strict=True)
        ]
        tokens = [each.tokens_left for each in left if each.tokens_left is not None]
        costs = [each.cost_left for each in left if each.cost_left is not None]
        return BudgetRoom(min(tokens, default=None), min(costs, default=None))

    async def forget(self, agent: str) -> None:
        """Forget what an agent spent of per-agent budgets; its running calls count no more."""
        if not agent:
            return
        await (
            self._store.collection(BudgetPeriod)
            .query()
            .where("agent", "=", indexable(agent))
            .delete()
        )

    async def close(self) -> None:
        while self._worker is not None and not self._worker.done():
            await asyncio.wait([self._worker])

    def _holds(
        self, options: CallOptions, cost: int | None, *, model: str, at_home: bool = False
    ) -> tuple[BudgetHold, ...]:
        covering = [budget for budget in self._budgets if budget.covers(options, at_home=at_home)]
        limited = next((budget for budget in covering if budget.cost is not None), None)
        if cost is None and limited is not None:
            raise BudgetReached(
                f"The price of {model or 'the model'} is unknown, so the budget"
                f" {limited.name!r}, which limits money, cannot be kept.",
                hint="Set a price in gateway.prices, or a budget in tokens.",
            )
        now = self._clock()
        return tuple(hold_for(budget, options, now) for budget in covering)

    def _settlement(
        self, reservation: Reservation, tokens: int, cost: int | None
    ) -> asyncio.Future[None] | None:
        if not reservation.holds or reservation.settled:
            return None
        reservation.settled = True
        spent = reservation.cost if cost is None else max(0, cost)
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._submit(_Work(reservation, done, (max(0, tokens), spent)))
        return done

    def _submit(self, work: _Work) -> None:
        self._waiting.append(work)
        if self._worker is None or self._worker.done():
            self._worker = asyncio.create_task(self._work(), name="perdure-ledger")

    def _release(self, reservation: Reservation) -> None:
        reservation.settled = True
        done = asyncio.get_running_loop().create_future()
        self._submit(_Work(reservation, done, (0, 0)))
        done.cancel()  # nobody waits for it

    async def _work(self) -> None:
        batch: list[_Work] = []
        try:
            while self._waiting:
                batch, self._waiting = self._waiting, []
                # A reservation that nobody waits for any more is not made; a settlement is.
                batch = [work for work in batch if work.took or not work.done.cancelled()]
                batch.sort(key=lambda work: work.took is None)  # stable: settlements come first
                refused = await self._carried_out(batch)
                for place, work in enumerate(batch):
                    self._answer(work, refused.get(place))
        finally:
            # Cancelled: nobody may wait for ever. Otherwise all of them have their answer.
            for work in (*batch, *self._waiting):
                work.done.cancel()

    async def _carried_out(self, batch: list[_Work]) -> dict[int, Exception]:
        try:
            claims = [(work.reservation, work.took) for work in batch]
            return await self._store.transact(partial(_carry_out, claims))
        except InvalidInput as exc:
            if len(batch) == 1:
                return {0: exc}
        except Exception as exc:  # noqa: BLE001  # it belongs to those who wait
            return dict.fromkeys(range(len(batch)), exc)
        # One of them cannot be stored: that must not keep the others from it.
        alone = [await self._carried_out([work]) for work in batch]
        return {place: found[0] for place, found in enumerate(alone) if found}

    def _answer(self, work: _Work, error: Exception | None) -> None:
        if work.done.cancelled():
            if work.took is None and error is None:
                self._release(work.reservation)  # made for somebody who has gone
        elif error is not None:
            work.done.set_exception(error)
        else:
            work.done.set_result(None)


def _let_go(done: asyncio.Future[None]) -> None:
    """Without this, asyncio complains of a result that nobody awaits."""
    if not done.cancelled() and (error := done.exception()) is not None:
        _log.warning("a call could not be settled, and counts as all that it reserved: %s", error)


async def _carry_out(claims: Sequence[_Claim], transaction: Transaction) -> dict[int, Exception]:
    collection = transaction.collection(BudgetPeriod)
    wanted = list({hold.key: None for reservation, _ in claims for hold in reservation.holds})
    periods = dict(zip(wanted, await collection.get_many(wanted), strict=True))
    changed = dict[str, BudgetPeriod]()
    refused = dict[int, Exception]()
    for place, (held, took) in enumerate(claims):
        if took is None:
            found = [(hold, periods[hold.key] or hold.empty()) for hold in held.holds]
            full = next((each for each in found if not fits(*each, held)), None)
            if full is not None:
                refused[place] = reached(*full, held)
                continue
            new = [reserved(spending, held) for _, spending in found]
        else:
            # A period that is gone was forgotten, and what was reserved in it with it.
            new = [
                settled(spending, held, *took)
                for hold in held.holds
                if (spending := periods[hold.key])
            ]
        for spending in new:
            periods[spending.id] = changed[spending.id] = spending
    await collection.put_many(changed.values())
    return refused

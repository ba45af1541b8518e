"""Budgets: how much may be spent, reserved before a call and settled after it.

A budget limits tokens, money, or both, over a time: for everything, or for one purpose, one agent,
or each agent by itself. What was spent on it lies in the bank, in one `Pot` for each period. A
reservation is counted there as if it were spent, before the call is made; settling replaces it by
what the call took. So a process that dies in between, however it dies, has spent what it reserved.

A reservation that does not fit is refused at once, though others may turn out smaller. Calls of
all processes that share the bank count together, exactly. Within a process, those that wait while
the bank is busy are carried out together, in one transaction: settlements first, then reservations
in the order in which they came.

An answer that takes more than was reserved for it is counted in full, and may take the pot over its
limit: nothing more is allowed then.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Sequence
from functools import partial
from typing import Annotated

import msgspec

from perdure.core import clock as clocks
from perdure.core.clock import Clock
from perdure.core.errors import BudgetReached, InvalidConfig, InvalidInput
from perdure.core.figures import plural
from perdure.gateway.budgets import EACH, Budget
from perdure.gateway.calls import Ask
from perdure.gateway.names import indexable
from perdure.gateway.prices import dollars
from perdure.storage.records import Indexed, Key, system_record
from perdure.storage.store import Store
from perdure.storage.transaction import Transaction

_log = logging.getLogger(__name__)


@system_record("budgets")
class Pot(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """What was spent on a budget in one of its periods."""

    id: Annotated[str, Key()]  # budget/period, and the agent's hash if each has its own
    #: Whose it is, if each agent has its own.
    agent: Annotated[str, Indexed()] = ""
    #: Settled. Calls that took nothing are not counted.
    calls: int = 0
    tokens: int = 0
    cost: int = 0
    #: Reserved, by calls that go on or whose process died.
    held: int = 0
    held_tokens: int = 0
    held_cost: int = 0


class Standing(msgspec.Struct, frozen=True, kw_only=True):
    """How a budget stands: its limits, and what is spent and reserved of them in this period."""

    budget: Budget
    #: Whose, if each agent has its own.
    agent: str
    period: str
    #: Microseconds; None if it never does.
    renews: int | None
    pot: Pot

    @property
    def tokens_left(self) -> int | None:
        """None if tokens are not limited."""
        limit = self.budget.tokens
        return None if limit is None else max(0, limit - self.pot.tokens - self.pot.held_tokens)

    @property
    def cost_left(self) -> int | None:
        """Picodollars; None if money is not limited."""
        limit = self.budget.cost
        return None if limit is None else max(0, limit - self.pot.cost - self.pot.held_cost)


class Hold(msgspec.Struct, frozen=True):
    """What a reservation holds in one pot."""

    key: str
    agent: str
    budget: Budget
    #: When the pot's period ends. Microseconds; None if it never does.
    renews: int | None

    def empty(self) -> Pot:
        """The pot before anything was spent."""
        return Pot(id=self.key, agent=self.agent)


class Reservation(msgspec.Struct):
    """Room in every budget that a call counts on. Made by `Ledger.reserve`."""

    holds: tuple[Hold, ...] = ()
    tokens: int = 0
    cost: int = 0
    #: Tokens of an answer whose length was not asked for.
    assumed: int = 0
    settled: bool = False


class _Work(msgspec.Struct):
    """Something that waits to be carried out: a reservation or, with what it took, its end."""

    reservation: Reservation
    done: asyncio.Future[None]
    took: tuple[int, int] | None = None  # tokens, picodollars


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

    def covers(self, ask: Ask) -> bool:
        """Whether any budget limits such a call."""
        return any(budget.covers(ask) for budget in self._budgets)

    async def reserve(
        self,
        ask: Ask,
        tokens: int,
        cost: int | None,
        *,
        model: str = "",
        assumed: int = 0,
        at_home: bool = False,
    ) -> Reservation:
        """Make room for a call in every budget that it counts on, or in none.

        `tokens` and `cost` (picodollars) are what the call may take; None is an unknown cost.
        For messages are `model`, and `assumed`: how many of the tokens stand for an answer whose
        length was not asked for. For `at_home` see `Budget.covers`. Without a budget that covers
        the call, nothing is read or written. Cancelled, nothing stays reserved.

        Raises `BudgetReached` if it does not fit, or costs what nobody knows and a budget limits
        money. Raises `StorageError` if the bank does not answer: no call should be made then.
        """
        covering = [budget for budget in self._budgets if budget.covers(ask, at_home=at_home)]
        if not covering:
            return Reservation()
        limited = next((budget for budget in covering if budget.cost is not None), None)
        if cost is None and limited is not None:
            raise BudgetReached(
                f"The price of {model or 'the model'} is unknown, so the budget"
                f" {limited.name!r}, which limits money, cannot be kept.",
                hint="Set a price in gateway.prices, or a budget in tokens.",
            )
        now = self._clock()
        holds = tuple(_hold(budget, ask, now) for budget in covering)
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

    async def settle(self, reservation: Reservation, tokens: int, cost: int | None) -> None:
        """Replace a reservation by what the call took, in the period in which it was made.

        A cost of None is unknown: what was reserved is taken for it. A call that was not charged
        for is settled with nothing. Settling twice does nothing. Cancelled, it is still done.

        Raises `StorageError` if the bank does not answer: what was reserved counts as spent then.
        """
        done = self._settlement(reservation, tokens, cost)
        if done is not None:
            await done

    def post(self, reservation: Reservation, tokens: int, cost: int | None) -> None:
        """Settle without waiting: every reservation that is asked for from now on comes after it.

        Never raises; if the bank does not answer, what was reserved counts as spent.
        """
        done = self._settlement(reservation, tokens, cost)
        if done is not None:
            done.add_done_callback(_let_go)

    async def status(self) -> list[Standing]:
        """How each budget stands in its current period; of those for each agent, all that spent."""
        now = self._clock()
        pots = self._store.collection(Pot)
        standings = list[Standing]()
        for budget in self._budgets:
            period, renews = budget.period(now)
            key = f"{budget.name}/{period}"
            if budget.agent == EACH:
                found = await pots.query().prefix(f"{key}/").values()
                found.sort(key=lambda pot: pot.agent)
            else:
                found = [await pots.get(key) or Pot(id=key)]
            standings += [
                Standing(budget=budget, agent=pot.agent, period=period, renews=renews, pot=pot)
                for pot in found
            ]
        return standings

    async def forget(self, agent: str) -> None:
        """Forget what an agent spent of budgets that each agent has for itself.

        Calls that go on are not counted in them any more.
        """
        if not agent:
            return
        await self._store.collection(Pot).query().where("agent", "=", indexable(agent)).delete()

    async def close(self) -> None:
        """Wait for what was accepted."""
        while self._worker is not None and not self._worker.done():
            await asyncio.wait([self._worker])

    # ------------------------------------------------------------------------------------------

    def _settlement(
        self, reservation: Reservation, tokens: int, cost: int | None
    ) -> asyncio.Future[None] | None:
        """What to wait for; None if there is nothing to settle."""
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
        """Carry out whatever waits, together, until nothing does."""
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
        """What was refused, and why, by its place."""
        try:
            return await self._store.transact(partial(_carry_out, batch))
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
    """Nobody waits for this one, so nobody is told; asyncio would complain."""
    if not done.cancelled() and (error := done.exception()) is not None:
        _log.warning("a call could not be settled, and counts as all that it reserved: %s", error)


async def _carry_out(batch: list[_Work], transaction: Transaction) -> dict[int, Exception]:
    """Apply the batch to the pots; returns what was refused, by its place."""
    collection = transaction.collection(Pot)
    wanted = list({hold.key: None for work in batch for hold in work.reservation.holds})
    pots = dict(zip(wanted, await collection.get_many(wanted), strict=True))
    changed = dict[str, Pot]()
    refused = dict[int, Exception]()
    for place, work in enumerate(batch):
        held = work.reservation
        if work.took is None:
            found = [(hold, pots[hold.key] or hold.empty()) for hold in held.holds]
            full = next((each for each in found if not _fits(*each, held)), None)
            if full is not None:
                refused[place] = _reached(*full, held)
                continue
            new = [_reserved(pot, held) for _, pot in found]
        else:
            # A pot that is gone was forgotten, and what was reserved in it with it.
            new = [
                _settled(pot, held, *work.took) for hold in held.holds if (pot := pots[hold.key])
            ]
        for pot in new:
            pots[pot.id] = changed[pot.id] = pot
    await collection.put_many(changed.values())
    return refused


def _fits(hold: Hold, pot: Pot, wanted: Reservation) -> bool:
    limits = hold.budget
    tokens = pot.tokens + pot.held_tokens + wanted.tokens
    cost = pot.cost + pot.held_cost + wanted.cost
    return (limits.tokens is None or tokens <= limits.tokens) and (
        limits.cost is None or cost <= limits.cost
    )


def _reserved(pot: Pot, wanted: Reservation) -> Pot:
    return msgspec.structs.replace(
        pot,
        held=pot.held + 1,
        held_tokens=pot.held_tokens + wanted.tokens,
        held_cost=pot.held_cost + wanted.cost,
    )


def _settled(pot: Pot, held: Reservation, tokens: int, cost: int) -> Pot:
    # Never below nothing: if the agent was forgotten meanwhile, the pot is a new one.
    return msgspec.structs.replace(
        pot,
        calls=pot.calls + (1 if tokens or cost else 0),
        tokens=pot.tokens + tokens,
        cost=pot.cost + cost,
        held=max(0, pot.held - 1),
        held_tokens=max(0, pot.held_tokens - held.tokens),
        held_cost=max(0, pot.held_cost - held.cost),
    )


def _hold(budget: Budget, ask: Ask, now: int) -> Hold:
    period, renews = budget.period(now)
    if budget.agent != EACH:
        return Hold(f"{budget.name}/{period}", "", budget, renews)
    # Names can be long, and hold what no key can.
    name = ask.agent.encode("utf-8", "surrogatepass")
    digest = hashlib.blake2b(name, digest_size=16).hexdigest()
    return Hold(f"{budget.name}/{period}/{digest}", indexable(ask.agent), budget, renews)


def _reached(hold: Hold, pot: Pot, wanted: Reservation) -> BudgetReached:
    budget = hold.budget
    standing = Standing(budget=budget, agent=hold.agent, period="", renews=hold.renews, pot=pot)
    left = list[str]()
    if (tokens := standing.tokens_left) is not None:
        left.append(f"{tokens:,} of {budget.tokens:,} tokens")
    if (cost := standing.cost_left) is not None:
        left.append(f"{dollars(cost)} of {dollars(budget.cost or 0)}")
    whose = f" of {hold.agent!r}" if budget.agent == EACH else ""
    needs = f"{wanted.tokens:,} tokens"
    if budget.cost is not None:
        needs += f" and {dollars(wanted.cost)}"
    if hold.renews is None:
        when = "It does not renew: raise it to go on."
    else:
        when = f"It renews at {clocks.to_datetime(hold.renews):%Y-%m-%d %H:%M} UTC; or raise it."
    return BudgetReached(
        f"The budget {budget.name!r}{whose} does not allow the call, which may take {needs}:"
        f" {' and '.join(left)} are left{_held(pot)}.",
        hint=_shorter(standing, wanted) + when,
    )


def _shorter(standing: Standing, wanted: Reservation) -> str:
    """That a shorter answer may fit, if its length was only assumed."""
    least = wanted.tokens - wanted.assumed
    tokens, cost = standing.tokens_left, standing.cost_left
    if not wanted.assumed or cost == 0 or (tokens is not None and tokens <= least):
        return ""
    return f"Set max_tokens: without it, an answer of {wanted.assumed:,} tokens was assumed. "


def _held(pot: Pot) -> str:
    return f", besides what {plural(pot.held, 'call')} reserved" if pot.held else ""

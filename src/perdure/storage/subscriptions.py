"""Delivery of events: at least once, in order per key, also after a crash.

    async def index(event: EventReceived) -> None: ...

    subscriptions = Subscriptions(store)
    await subscriptions.subscribe("search", index, ["note.*"])
    await subscriptions.deliver()

A subscriber is durable by its name: a record holds its position in the outbox and the lease of the
process that delivers to it. What is promised:

* Each event that matches reaches the handler at least once, whichever process emitted it. It comes
  again if the process dies, or loses its lease, before the progress is saved; a handler must bear
  that (`EventReceived.id` tells repetitions).
* Events with the same key come in the order of their commits. Events of different keys, and events
  without a key, are in no particular order.
* An event whose handler raises, or takes longer than the timeout, is *parked*: copied to a row of
  its own and tried again later, after 1, 2, 4 … seconds. Events of its key wait behind it, other
  keys go on. After the last attempt it is *given up*: kept, listed by `given_up`, and its key goes
  on. `retry` brings it back, on its own: its turn in the order has passed.
* One process at a time delivers to a subscriber. When it dies, another takes over as soon as its
  lease has run out.

What is not: a process that is stopped (not dead) for longer than the lease may, when it goes on,
finish one call of the handler while another process has already taken over. An event that kills
the process is not counted as an attempt. Leases assume clocks that agree to a few seconds.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from contextlib import suppress

import msgspec

from perdure.core.clock import SECOND, new_id
from perdure.core.errors import Conflict, InvalidInput
from perdure.core.input_types import require_text
from perdure.storage import record_keys
from perdure.storage.adapter import Capability
from perdure.storage.delivery import (
    FAILED,
    RETRYING,
    Delivery,
    EventReceived,
    GivenUp,
    Handler,
    Parked,
    Subscriber,
    Subscription,
    parked_key,
    received,
)
from perdure.storage.options import Options
from perdure.storage.store import Store
from perdure.storage.transaction import Transaction

__all__ = ["EventReceived", "GivenUp", "Handler", "Subscriptions"]

_log = logging.getLogger(__name__)

#: Events that nobody subscribes to are kept this long, for a subscriber that is yet to come.
KEEP_UNREAD = 7 * 86_400 * SECOND
_PAGE = 1_000
_EVER = 2**62


class Subscriptions:
    """The subscribers that this process delivers to.

    `attempts` per event before it is given up; `timeout` in seconds for one call of a handler (the
    lease is three times that); `batch` events are delivered between two saves.
    """

    def __init__(
        self, store: Store, *, attempts: int = 10, timeout: float = 20.0, batch: int = 100
    ) -> None:
        self.store = store
        self.owner = new_id()
        self.attempts = attempts
        self.timeout = timeout
        self.batch = batch
        self._subscriptions: dict[str, Subscription] = {}

    async def subscribe(
        self,
        name: str,
        handler: Handler,
        topics: str | Sequence[str] = "*",
        *,
        from_start: bool = False,
    ) -> None:
        """Let `deliver` pass events of these topics (``note.added``, ``note.*``, ``*``).

        A new name starts with events from now on (one being committed may or may not be among
        them), or with the oldest still kept. A known one resumes; new topics apply from there on.
        """
        self.store.require(Capability.OUTBOX)
        require_text(name, "name")
        if name in self._subscriptions or not name or "/" in name:
            raise InvalidInput(
                f"The subscriber name {name!r} is taken here, empty or has a slash.",
                hint="Choose another one.",
            )
        record_keys.check(parked_key(name, 0))
        subscription = Subscription(name, handler, _patterns(topics))
        await self.store.declare(Subscriber, Parked)
        subscribers = self.store.collection(Subscriber)
        if await subscribers.get(name) is None:
            position = "" if from_start else await self._end()
            with suppress(Conflict):  # another process was first: its position counts
                await subscribers.put(Subscriber(name, position), Options(expected=0))
        self._subscriptions[name] = subscription

    async def deliver(self) -> int:
        """Deliver what is due; returns how many events. Cancelled, it saves its progress.

        Subscribers are served concurrently; those that another process delivers to are skipped.
        """
        passes = [self._pass(subscription) for subscription in self._subscriptions.values()]
        results = await asyncio.gather(*passes, return_exceptions=True)
        errors = [result for result in results if isinstance(result, BaseException)]
        for error in errors[1:]:
            _log.error("delivery failed, too: %s", error)
        if errors:
            raise errors[0]
        return sum(result for result in results if isinstance(result, int))

    async def given_up(self, name: str, limit: int = 100) -> list[GivenUp]:
        query = self.store.collection(Parked).query().where("subscriber", "=", name)
        rows = await query.where("state", "=", FAILED).order_by("event").limit(limit).values()
        return [GivenUp(received(row), row.attempts, row.error) for row in rows]

    async def retry(self, name: str) -> int:
        async def bring_back(transaction: Transaction) -> int:
            parked = transaction.collection(Parked)
            query = parked.query().where("subscriber", "=", name).where("state", "=", FAILED)
            rows = [
                msgspec.structs.replace(row, state=RETRYING, due=self.store.now(), attempts=0)
                for row in await query.values()
            ]
            await parked.put_many(rows)
            return len(rows)

        count = await self.store.transact(bring_back)
        if count:
            self.store.on_events()
        return count

    async def forget(self, name: str) -> None:
        """Remove a subscriber for good; until then the outbox keeps what it has not been given."""

        async def remove(transaction: Transaction) -> None:
            await transaction.collection(Subscriber).delete(name)
            parked = transaction.collection(Parked).query().where("subscriber", "=", name)
            await parked.delete()

        self._subscriptions.pop(name, None)
        await self.store.transact(remove)

    async def release(self) -> None:
        """Release the leases, so that another process need not wait for them to run out."""
        subscribers = self.store.collection(Subscriber)
        for subscription in self._subscriptions.values():
            async with subscription.lock:
                subscription.held = None
                found = await subscribers.fetch(subscription.name)
                if found is None or found.value.owner != self.owner:
                    continue
                free = msgspec.structs.replace(found.value, owner="", until=0)
                with suppress(Conflict):
                    await subscribers.put(free, Options(expected=found.version))

    async def trim(self) -> int:
        """Delete events that all subscribers passed, or after `KEEP_UNREAD` without any."""
        self.store.require(Capability.OUTBOX)
        adapter = self.store.adapter
        trimmed = 0
        while True:
            # First the events, then the positions: what is committed in between is not on the page.
            page, end = await adapter.events("", _PAGE)
            subscribers = await self.store.collection(Subscriber).query().values()
            before, count = self.store.now() - KEEP_UNREAD, len(page)
            if subscribers:
                before, needed = _EVER, set[int]()
                for position in {subscriber.position for subscriber in subscribers}:
                    following, _ = await adapter.events(position, 1)
                    needed.update(event.id for event in following)
                ids = [event.id for event in page]
                count = next((place for place, id in enumerate(ids) if id in needed), count)
                if count < len(page):
                    page, end = await adapter.events("", count) if count else ([], "")
                    if [event.id for event in page] != ids[:count]:
                        return trimmed  # somebody else is trimming
            gone = await adapter.trim(end, before) if page else 0
            trimmed += gone
            if gone < _PAGE:
                return trimmed

    async def _pass(self, subscription: Subscription) -> int:
        async with subscription.lock:
            # Memory is trusted only after a pass that ended well, and while the lease lasts:
            # nobody else writes the record then.
            held, subscription.held = subscription.held, None
            if held is None or held.value.until <= self.store.now():
                held = await self.store.collection(Subscriber).fetch(subscription.name)
                if held is None or _is_held_by_other(held.value, self.owner, self.store.now()):
                    return 0
            delivery = Delivery(self, subscription, held)
            try:
                await delivery.run()
            except Conflict:
                _log.info("another process delivers to %s now", subscription.name)
            else:
                subscription.held = delivery.held
            return delivery.saved

    async def _end(self) -> str:
        position = ""
        while True:
            events, position = await self.store.adapter.events(position, _PAGE)
            if len(events) < _PAGE:
                return position


def _is_held_by_other(record: Subscriber, owner: str, now: int) -> bool:
    return record.owner not in ("", owner) and record.until > now


def _patterns(topics: str | Sequence[str]) -> tuple[str, ...]:
    patterns = (topics,) if isinstance(topics, str) else tuple(topics)
    for pattern in patterns:
        if not pattern or "*" in pattern[:-1]:
            raise InvalidInput(
                f"{pattern!r} is not a topic pattern.",
                hint='Write a topic ("note.added"), the beginning of topics ("note.*"), or "*".',
            )
    if not patterns:
        raise InvalidInput("A subscriber needs a topic.", hint='Give at least one; "*" is all.')
    return patterns

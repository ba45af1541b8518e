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
from collections.abc import Awaitable, Callable, Collection, Sequence
from contextlib import suppress
from typing import Annotated, Any, TypeAlias

import msgspec

from perdure.core.clock import SECOND
from perdure.core.errors import Conflict, InvalidInput, PerdureError
from perdure.core.ids import new_id
from perdure.storage import codecs, keys
from perdure.storage.adapter import (
    DEFAULT,
    Batch,
    Capability,
    Check,
    Delete,
    Delivered,
    Index,
    Options,
    Put,
)
from perdure.storage.collection import Stored
from perdure.storage.finder import Finder
from perdure.storage.records import Key, system_record, type_of
from perdure.storage.store import Store
from perdure.storage.transaction import Transaction

_log = logging.getLogger(__name__)

#: Events that nobody subscribes to are kept this long, for a subscriber that is yet to come.
KEEP_UNREAD = 7 * 86_400 * SECOND
FIRST_RETRY = SECOND
LONGEST_RETRY = 600 * SECOND

_RETRYING, _BEHIND, _FAILED = "retrying", "behind", "failed"
_PAGE = 1_000
_EVER = 2**62


class EventReceived(msgspec.Struct, frozen=True):
    """An event as a handler gets it: the payload is plain data, the time microseconds."""

    id: int
    topic: str
    key: str
    payload: Any
    at: int


Handler: TypeAlias = Callable[[EventReceived], Awaitable[None]]


class GivenUp(msgspec.Struct, frozen=True):
    """An event that could not be delivered, and why."""

    event: EventReceived
    attempts: int
    error: str


@system_record("subscribers")
class Subscriber(msgspec.Struct, frozen=True):
    """How far a subscriber has come, and who delivers to it until when."""

    name: Annotated[str, Key()]
    position: str
    owner: str = ""
    until: int = 0


@system_record(
    "parked",
    indexes=[
        Index(("subscriber", "due"), where=(("state", _RETRYING),)),
        Index(("subscriber", "state", "lane", "event")),
    ],
)
class Parked(msgspec.Struct, frozen=True):
    """An event that waits, with its content: the outbox need not keep it.

    The first of a lane is retrying, the others are behind it. The lane is the event's key; events
    without a key, and those that were given up, are in none ("").
    """

    id: Annotated[str, Key()]
    subscriber: str
    event: int
    topic: str
    key: str
    payload: bytes
    at: int
    lane: str
    state: str
    due: int = 0
    attempts: int = 0
    error: str = ""


class Subscriptions:
    """The subscribers that this process delivers to.

    `attempts` is how often an event is tried before it is given up; `timeout` the seconds one call
    of a handler may take, which also sets the length of the lease (three times that); `batch` how
    many events are delivered between two saves.
    """

    def __init__(
        self, store: Store, *, attempts: int = 10, timeout: float = 20.0, batch: int = 100
    ) -> None:
        self.store = store
        self.owner = new_id()
        self.attempts = attempts
        self.timeout = timeout
        self.batch = batch
        self._subscriptions: dict[str, _Subscription] = {}

    async def subscribe(
        self,
        name: str,
        handler: Handler,
        topics: str | Sequence[str] = "*",
        *,
        from_start: bool = False,
    ) -> None:
        """Let `deliver` hand events of these topics (``note.added``, ``note.*``, ``*``) over.

        A name that is new to the store starts with the events from now on (one that is being
        committed at this moment may or may not be among them), or with the oldest that is still
        kept. A known one goes on where it was; other topics than before apply from there on.
        """
        self.store.require(Capability.OUTBOX)
        if name in self._subscriptions or not name or "/" in name:
            raise InvalidInput(
                f"The subscriber name {name!r} is taken here, empty or has a slash.",
                hint="Choose another one.",
            )
        keys.check(_parked_key(name, 0))
        subscription = _Subscription(name, handler, _patterns(topics))
        await self.store.declare(Subscriber, Parked)
        subscribers = self.store.collection(Subscriber)
        if await subscribers.get(name) is None:
            position = "" if from_start else await self._end()
            with suppress(Conflict):  # another process was first: its position counts
                await subscribers.put(Subscriber(name, position), Options(expected=0))
        self._subscriptions[name] = subscription

    async def deliver(self) -> int:
        """One pass: hand over what is due for every subscriber; returns how many events were.

        Subscribers are served side by side. Skipped are those that another process delivers to.
        Cancelled, it saves what was delivered so far.
        """
        passes = [self._pass(subscription) for subscription in self._subscriptions.values()]
        results = await asyncio.gather(*passes, return_exceptions=True)
        errors = [result for result in results if isinstance(result, BaseException)]
        for error in errors[1:]:
            _log.error("delivery failed, too: %s", error)
        if errors:
            raise errors[0]
        return sum(result for result in results if isinstance(result, int))

    async def next_due(self) -> int | None:
        """When, on the store's clock, a parked event can be tried again; None if there is none."""
        found: list[int] = []
        for name in self._subscriptions:
            query = self.store.collection(Parked).query().where("state", "=", _RETRYING)
            first = await query.where("subscriber", "=", name).order_by("due").first()
            if first is not None:
                record = await self.store.collection(Subscriber).get(name)
                foreign = record is not None and record.owner not in ("", self.owner)
                found.append(max(first.value.due, record.until if record and foreign else 0))
        return min(found, default=None)

    async def given_up(self, name: str, limit: int = 100) -> list[GivenUp]:
        """The events that could not be delivered to a subscriber, oldest first."""
        query = self.store.collection(Parked).query().where("subscriber", "=", name)
        rows = await query.where("state", "=", _FAILED).order_by("event").limit(limit).values()
        return [GivenUp(_received(row), row.attempts, row.error) for row in rows]

    async def retry(self, name: str) -> int:
        """Try everything again that was given up; returns how many events that is."""

        async def bring_back(transaction: Transaction) -> int:
            parked = transaction.collection(Parked)
            query = parked.query().where("subscriber", "=", name).where("state", "=", _FAILED)
            rows = [
                msgspec.structs.replace(row, state=_RETRYING, due=self.store.now(), attempts=0)
                for row in await query.values()
            ]
            await parked.put_many(rows)
            return len(rows)

        count = await self.store.transact(bring_back)
        if count:
            self.store.on_events()
        return count

    async def forget(self, name: str) -> None:
        """Remove a subscriber with its position and its parked events, here and for good.

        Until then the outbox keeps everything that it has not been given.
        """

        async def remove(transaction: Transaction) -> None:
            await transaction.collection(Subscriber).delete(name)
            parked = transaction.collection(Parked).query().where("subscriber", "=", name)
            await parked.delete()

        self._subscriptions.pop(name, None)
        await self.store.transact(remove)

    async def release(self) -> None:
        """Give the leases back, so that another process need not wait until they run out."""
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
        """Delete events that every known subscriber has passed; returns how many.

        Parked events have their own copy and do not count. Without any subscriber, events older
        than `KEEP_UNREAD` are deleted.
        """
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

    # ------------------------------------------------------------------------------------------

    async def _pass(self, subscription: _Subscription) -> int:
        async with subscription.lock:
            # Memory is trusted only after a pass that ended well, and while the lease lasts:
            # nobody else writes the record then.
            held, subscription.held = subscription.held, None
            if held is None or held.value.until <= self.store.now():
                held = await self.store.collection(Subscriber).fetch(subscription.name)
                if held is None or _is_held_by_other(held.value, self.owner, self.store.now()):
                    return 0
            delivery = _Delivery(self, subscription, held)
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


class _Subscription:
    """A subscriber in this process."""

    def __init__(self, name: str, handler: Handler, patterns: tuple[str, ...]) -> None:
        self.name = name
        self.handler = handler
        self.lock = asyncio.Lock()
        #: The record as this process last wrote it.
        self.held: Stored[Subscriber] | None = None
        self._exact = frozenset(pattern for pattern in patterns if not pattern.endswith("*"))
        self._prefixes = tuple(pattern[:-1] for pattern in patterns if pattern.endswith("*"))

    def wants(self, topic: str) -> bool:
        return topic in self._exact or topic.startswith(self._prefixes)


class _Delivery:
    """One pass over what waits for one subscriber.

    Progress is saved once per batch: the position, the lease and the parked events in one commit,
    which fails if anybody else has written the subscriber's record. The lease is taken by that
    same write, before the first call of the handler.
    """

    def __init__(
        self, settings: Subscriptions, subscription: _Subscription, held: Stored[Subscriber]
    ) -> None:
        self.held = held
        #: Events delivered, and known to be.
        self.saved = 0
        self._store = settings.store
        self._settings = settings
        self._subscription = subscription
        self._lease = int(3 * settings.timeout * SECOND)
        self._moment = settings.store.now()
        self._position = held.value.position
        self._done: list[int] = []  # events behind the position that were dealt with
        self._changes: dict[str, Parked | None] = {}  # parked events to put or delete
        self._delivered = 0

    async def run(self) -> None:
        try:
            await self._retry_parked()
            await self._read_outbox()
        except asyncio.CancelledError:
            with suppress(PerdureError):  # then they are delivered again
                await self._save_part()
            raise

    # New events -------------------------------------------------------------------------------

    async def _read_outbox(self) -> None:
        limit = self._settings.batch
        while True:
            events, end = await self._store.adapter.events(self._position, limit)
            wanted = [event for event in events if self._subscription.wants(event.topic)]
            heads = await self._heads({event.key for event in wanted if event.key})
            for event in events:
                if self._subscription.wants(event.topic):
                    await self._receive(event, heads)
                self._done.append(event.id)
            self._position, self._done = end, []
            if events:
                await self._save()
            if len(events) < limit:
                break
        record = msgspec.structs.replace(self.held.value, position=self._position)
        self.held = msgspec.structs.replace(self.held, value=record)

    async def _heads(self, lanes: Collection[str]) -> dict[str, int]:
        """The lanes, of these, in which an event is being retried, and its id."""
        if not lanes:
            return {}
        query = self._parked(_RETRYING).where("lane", "in", sorted(lanes))
        return {parked.lane: parked.event for parked in await query.values()}

    async def _receive(self, event: Delivered, heads: dict[str, int]) -> None:
        name = self._subscription.name
        parked = Parked(
            id=_parked_key(name, event.id),
            subscriber=name,
            event=event.id,
            topic=event.topic,
            key=event.key,
            payload=event.payload,
            at=event.at,
            lane=event.key,
            state=_BEHIND,
        )
        head = heads.get(event.key) if event.key else None
        if head is None:
            kept = await self._hand_over(parked)
            if kept is not None:
                self._changes[kept.id] = kept
                if kept.state == _RETRYING and kept.lane:
                    heads[kept.lane] = event.id
        elif event.id > head:
            # One that is not was read before: the position started over, as it does when a bank
            # moves to another server.
            self._changes[parked.id] = parked

    # Parked events ----------------------------------------------------------------------------

    async def _retry_parked(self) -> None:
        due = self._parked(_RETRYING).where("due", "<=", self._moment).order_by("due")
        while heads := await due.limit(self._settings.batch).values():
            for head in heads:
                await self._resume(head)
            await self._save()

    async def _resume(self, head: Parked) -> None:
        """Retry the first of a lane; if it is through, go on with those behind it."""
        lane = [head]
        if head.lane:
            behind = self._parked(_BEHIND).where("lane", "=", head.lane).order_by("event")
            lane += await behind.limit(self._settings.batch).values()
        # Of a full page the last is left for the next round: those behind it need a head.
        tries = len(lane) if len(lane) <= self._settings.batch else len(lane) - 1
        for place in range(tries):
            parked = lane[place]
            kept = await self._hand_over(parked)
            self._changes[parked.id] = kept
            if kept is not None and kept.state == _RETRYING:
                return
            if place + 1 < len(lane):
                # Noted at once: wherever the pass is interrupted, the lane has a head.
                following = lane[place + 1]
                self._changes[following.id] = msgspec.structs.replace(
                    following, state=_RETRYING, due=self._moment
                )

    def _parked(self, state: str) -> Finder[Parked]:
        query = self._store.collection(Parked).query()
        return query.where("state", "=", state).where("subscriber", "=", self._subscription.name)

    # ------------------------------------------------------------------------------------------

    async def _hand_over(self, parked: Parked) -> Parked | None:
        """Call the handler. Returns None if that went well, else how the event is to be kept."""
        # Another's lease has run out, or we would not be here; ours may be about to.
        if self.held.value.until - self._store.now() < self._lease // 2:
            await self._save_part()
        attempts = parked.attempts + 1
        try:
            async with asyncio.timeout(self._settings.timeout):
                await self._subscription.handler(_received(parked))
        except (Exception, asyncio.CancelledError) as exc:
            # It is the subscriber's function: anything may come out of it.
            task = asyncio.current_task()
            if isinstance(exc, asyncio.CancelledError) and task and task.cancelling():
                raise  # it is this pass that is cancelled, not something inside the handler
            error = f"{type(exc).__name__}: {exc}"[:500]
        else:
            self._delivered += 1
            return None
        kept = msgspec.structs.replace(parked, attempts=attempts, error=error)
        what = f"event {parked.event} ({parked.topic}) for {self._subscription.name}"
        if attempts >= self._settings.attempts:
            _log.error("gave up on %s: %s", what, error)
            return msgspec.structs.replace(kept, state=_FAILED, lane="")
        _log.warning("%s failed: %s", what, error)
        delay = min(FIRST_RETRY << (attempts - 1), LONGEST_RETRY)
        return msgspec.structs.replace(kept, state=_RETRYING, due=self._store.now() + delay)

    async def _save_part(self) -> None:
        """Save what is done of a batch, if there is a position for it, and renew the lease."""
        if self._done:
            events, position = await self._store.adapter.events(self._position, len(self._done))
            if [event.id for event in events] != self._done:
                await self._write({})
                return
            self._position, self._done = position, []
        await self._save()

    async def _save(self) -> None:
        await self._write(self._changes)
        self._changes = {}
        self.saved += self._delivered
        self._delivered = 0

    async def _write(self, changes: dict[str, Parked | None]) -> None:
        moment, held = self._store.now(), self.held
        record = Subscriber(held.key, self._position, self._settings.owner, moment + self._lease)
        declared, parked = type_of(Subscriber), type_of(Parked)
        writes: list[Put | Delete] = [declared.encode(record, None, None)]
        for key, change in changes.items():
            writes.append(parked.encode(change, None, None) if change else Delete(parked.name, key))
        check = Check(declared.name, held.key, held.version, held.created_us)
        version, *_ = await self._store.commit(Batch(tuple(writes), (check,)), DEFAULT)
        self.held = Stored(held.key, record, version, held.created_us, moment)


def _received(parked: Parked) -> EventReceived:
    payload = codecs.BY_NAME["msgpack"].decode_plain(parked.payload)
    return EventReceived(parked.event, parked.topic, parked.key, payload, parked.at)


def _parked_key(subscriber: str, event: int) -> str:
    return f"{subscriber}/{event:020d}"


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

"""One delivery pass for one subscriber; `subscriptions` documents the guarantees."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection
from contextlib import suppress
from typing import Annotated, Any, Protocol, TypeAlias

import msgspec

from perdure.core.clock import SECOND
from perdure.core.errors import PerdureError
from perdure.storage import codecs
from perdure.storage.collection_reader import Stored
from perdure.storage.finder import QueryBuilder
from perdure.storage.options import DEFAULT
from perdure.storage.records import Key, system_record, type_of
from perdure.storage.rows import Batch, Check, Delete, Delivered, Index, Put
from perdure.storage.store import Store

_log = logging.getLogger(__name__)

FIRST_RETRY = SECOND
LONGEST_RETRY = 600 * SECOND

RETRYING, BEHIND, FAILED = "retrying", "behind", "failed"


class EventReceived(msgspec.Struct, frozen=True):
    """An event as a handler gets it: plain payload, time in microseconds."""

    id: int
    topic: str
    key: str
    payload: Any
    at: int


#: Async, or plain: a plain one runs on the event loop, and should be short.
Handler: TypeAlias = Callable[[EventReceived], Awaitable[object] | object]


class GivenUp(msgspec.Struct, frozen=True):
    """An event that could not be delivered, and why."""

    event: EventReceived
    attempts: int
    error: str


@system_record("subscribers")
class Subscriber(msgspec.Struct, frozen=True):
    """A subscriber's position, and who holds its lease until when."""

    name: Annotated[str, Key()]
    position: str
    owner: str = ""
    until: int = 0


@system_record(
    "parked",
    indexes=[
        Index(("subscriber", "due"), where=(("state", RETRYING),)),
        Index(("subscriber", "state", "lane", "event")),
    ],
)
class Parked(msgspec.Struct, frozen=True):
    """A waiting event with its content, so the outbox need not keep it.

    The lane is its key, or "". The lane's first event is retried; the others wait.
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


class DeliverySettings(Protocol):
    """Settings of the subscriptions that a delivery belongs to."""

    store: Store
    owner: str
    attempts: int
    timeout: float
    batch: int


class Subscription:
    """A subscriber in this process."""

    def __init__(self, name: str, handler: Handler, patterns: tuple[str, ...]) -> None:
        self.name = name
        self.handler = handler
        self.lock = asyncio.Lock()
        self.held: Stored[Subscriber] | None = None
        self._exact = frozenset(pattern for pattern in patterns if not pattern.endswith("*"))
        self._prefixes = tuple(pattern[:-1] for pattern in patterns if pattern.endswith("*"))

    def wants(self, topic: str) -> bool:
        return topic in self._exact or topic.startswith(self._prefixes)


class Delivery:
    """One delivery pass for one subscriber.

    Position, lease and parked events are saved once per batch in one commit, which fails if anybody
    else has written the subscriber's record. The same write takes the lease, before the first call
    of the handler.
    """

    def __init__(
        self, settings: DeliverySettings, subscription: Subscription, held: Stored[Subscriber]
    ) -> None:
        self.held = held
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
        if not lanes:
            return {}
        query = self._parked(RETRYING).where("lane", "in", sorted(lanes))
        return {parked.lane: parked.event for parked in await query.values()}

    async def _receive(self, event: Delivered, heads: dict[str, int]) -> None:
        name = self._subscription.name
        parked = Parked(
            id=parked_key(name, event.id),
            subscriber=name,
            event=event.id,
            topic=event.topic,
            key=event.key,
            payload=event.payload,
            at=event.at,
            lane=event.key,
            state=BEHIND,
        )
        head = heads.get(event.key) if event.key else None
        if head is None:
            kept = await self._hand_over(parked)
            if kept is not None:
                self._changes[kept.id] = kept
                if kept.state == RETRYING and kept.lane:
                    heads[kept.lane] = event.id
        elif event.id > head:
            # One that is not was read before: the position started over, as it does when a bank
            # moves to another server.
            self._changes[parked.id] = parked

    async def _retry_parked(self) -> None:
        due = self._parked(RETRYING).where("due", "<=", self._moment).order_by("due")
        while heads := await due.limit(self._settings.batch).values():
            for head in heads:
                await self._resume(head)
            await self._save()

    async def _resume(self, head: Parked) -> None:
        lane = [head]
        if head.lane:
            behind = self._parked(BEHIND).where("lane", "=", head.lane).order_by("event")
            lane += await behind.limit(self._settings.batch).values()
        # Of a full page the last is left for the next round: those behind it need a head.
        tries = len(lane) if len(lane) <= self._settings.batch else len(lane) - 1
        for place in range(tries):
            parked = lane[place]
            kept = await self._hand_over(parked)
            self._changes[parked.id] = kept
            if kept is not None and kept.state == RETRYING:
                return
            if place + 1 < len(lane):
                # Noted at once: wherever the pass is interrupted, the lane has a head.
                following = lane[place + 1]
                self._changes[following.id] = msgspec.structs.replace(
                    following, state=RETRYING, due=self._moment
                )

    def _parked(self, state: str) -> QueryBuilder[Parked]:
        query = self._store.collection(Parked).query()
        return query.where("state", "=", state).where("subscriber", "=", self._subscription.name)

    async def _hand_over(self, parked: Parked) -> Parked | None:
        # Another's lease has run out, or we would not be here; ours may be about to.
        if self.held.value.until - self._store.now() < self._lease // 2:
            await self._save_part()
        attempts = parked.attempts + 1
        try:
            async with asyncio.timeout(self._settings.timeout):
                answer = self._subscription.handler(received(parked))
                if isinstance(answer, Awaitable):
                    await answer
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
            return msgspec.structs.replace(kept, state=FAILED, lane="")
        _log.warning("%s failed: %s", what, error)
        delay = min(FIRST_RETRY << (attempts - 1), LONGEST_RETRY)
        return msgspec.structs.replace(kept, state=RETRYING, due=self._store.now() + delay)

    async def _save_part(self) -> None:
        """Save what is done of a batch, if its position is known, and renew the lease."""
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


def received(parked: Parked) -> EventReceived:
    payload = codecs.BY_NAME["msgpack"].decode_plain(parked.payload)
    return EventReceived(parked.event, parked.topic, parked.key, payload, parked.at)


def parked_key(subscriber: str, event: int) -> str:
    return f"{subscriber}/{event:020d}"

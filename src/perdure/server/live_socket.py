"""One client of ``/api/v1/live``: its subscriptions, and the queue of what it has not read yet."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, deque
from contextlib import suppress

import msgspec
from starlette.websockets import WebSocket, WebSocketDisconnect

from perdure.core.errors import Denied, InvalidInput, PerdureError
from perdure.history.log_records import agent_of, checked_agent
from perdure.server.access_tokens import AccessTokens
from perdure.server.denials import DenialKind, DenialLog
from perdure.server.error_answers import answer_of
from perdure.server.live_audience import LiveEvent, LiveScope, LiveSubscription
from perdure.server.live_events import (
    TOPICS,
    EventsSkipped,
    LiveCursor,
    LiveFault,
    SkippedTurns,
    Subscribe,
    SubscriptionBegan,
    SubscriptionEnded,
    SubscriptionLive,
    Unsubscribe,
    frame_text,
    read_frame,
)
from perdure.server.live_hub import LiveHub
from perdure.server.operations import ServerCall, SocketOperation, TokenScope
from perdure.server.run_tokens import RunTokens

_log = logging.getLogger("perdure.server")

PATH = "/api/v1/live"
MOST_SUBSCRIPTIONS = 100
MOST_FRAME = 256 << 10  # Characters of a client's message: a cursor names sessions.
MOST_FAULTS = 20  # Messages that cannot be read, until the socket is closed.
#: What waits for a slow reader: events, and characters in them.
MOST_EVENTS, MOST_WAITING = 1_000, 2 << 20
#: Sessions that a cursor may be behind in.
MOST_BEHIND = 2_000
_RECHECK = 30.0  # Seconds between two looks whether the token still holds.
_GOING_AWAY, _POLICY, _TOO_BIG = 1001, 1008, 1009


class SendQueue:
    """Texts for one socket, bounded. When it is full, live events are dropped until all that waits
    was read; then the reader is told what was dropped.
    """

    def __init__(self) -> None:
        self._waiting: deque[str] = deque()
        self._size = 0
        self._changed = asyncio.Event()
        self._skipped: dict[str, SkippedTurns] = {}
        self._skips: Counter[str] = Counter()
        self.overflowed = False

    @property
    def is_full(self) -> bool:
        return len(self._waiting) >= MOST_EVENTS or self._size >= MOST_WAITING

    def offer(self, event: LiveEvent) -> None:
        if not (self.overflowed or self.is_full):
            self.add(event.text)
            return
        self.overflowed = True
        if not event.cursor:
            self._skips[event.topic] += 1
            return
        known = self._skipped.get(event.session)
        self._skipped[event.session] = SkippedTurns(
            event.after if known is None else known.after,
            event.cursor,
            event.first if known is None else min(known.first, event.first),
            event.last if known is None else max(known.last, event.last),
        )

    def add(self, text: str) -> None:
        """Full or not."""
        self._waiting.append(text)
        self._size += len(text)
        self._changed.set()

    async def room(self) -> None:
        while self.is_full:
            self._changed.clear()
            await self._changed.wait()

    async def take(self) -> str:
        while not self._waiting:
            if self.overflowed:
                return self._told()
            self._changed.clear()
            await self._changed.wait()
        text = self._waiting.popleft()
        self._size -= len(text)
        self._changed.set()
        return text

    def _told(self) -> str:
        skips = self._skips
        event = EventsSkipped(self._skipped, skips["turns"], skips["answers"], skips["jobs"])
        self.overflowed, self._skipped, self._skips = False, {}, Counter()
        return frame_text(event)


class LiveSocket:
    """One connection. A `LiveReader`."""

    def __init__(self, hub: LiveHub, call: ServerCall, socket: WebSocket) -> None:
        self._hub = hub
        self._call = call
        self._socket = socket
        self._queue = SendQueue()
        self._subscriptions: dict[str, LiveSubscription] = {}
        self._catching_up: dict[str, asyncio.Task[None]] = {}
        self.offer = self._queue.offer

    async def run(self) -> None:
        """Until the client leaves, misbehaves, or the server is stopped."""
        try:
            await self._socket.accept()
        except OSError:  # the client has left already
            return
        stopping = self._call.server.stopping
        tasks = {
            asyncio.create_task(self._listen(), name="perdure-live-listen"),
            asyncio.create_task(self._speak(), name="perdure-live-speak"),
            asyncio.create_task(self._watch_token(), name="perdure-live-token"),
            asyncio.create_task(stopping.wait(), name="perdure-live-stop"),
        }
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for id in list(self._subscriptions):
                self._end(id)
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
        with suppress(WebSocketDisconnect, RuntimeError):  # the client may have been faster
            if stopping.is_set():
                await self._socket.close(_GOING_AWAY, "The server is being stopped.")
        for task in done:
            error = task.exception()
            if error is not None and not isinstance(error, WebSocketDisconnect):
                raise error

    def shorten_cursors(self) -> None:
        if self._queue.overflowed or self._queue.is_full:
            return
        for each in self._subscriptions.values():
            if not each.scope.session and not each.catching_up:
                self._queue.add(frame_text(SubscriptionLive(each.id, self._hub.cursor(each.scope))))

    async def _speak(self) -> None:
        while True:
            await self._socket.send_text(await self._queue.take())

    async def _watch_token(self) -> None:
        """Until the token is revoked or expires."""
        id, state = self._call.caller.token, self._call.server
        of_run, of_bank = state.part(RunTokens), state.part(AccessTokens)
        while True:
            await asyncio.sleep(_RECHECK)
            try:
                holds = of_run.caller_by_hash(id) or await of_bank.caller_by_hash(id)
            except PerdureError:  # the store is away: events wait for it, and so does this
                continue
            if not holds:
                await self._socket.close(_POLICY, "The token holds no more.")
                return

    async def _listen(self) -> None:
        faults = 0
        while True:
            await self._queue.room()  # who does not read is not listened to
            message = await self._socket.receive()
            if message["type"] == "websocket.disconnect":
                return
            text: str | bytes = message.get("text") or message.get("bytes") or ""
            if len(text) > MOST_FRAME:
                await self._socket.close(_TOO_BIG, f"Send at most {MOST_FRAME:,} characters.")
                return
            id = ""
            try:
                frame = read_frame(text)
                id = frame.id
                self._answer(frame)
            except Denied as exc:
                kind = DenialKind(exc.status, self._call.caller.name, PATH, self._peer())
                self._call.server.part(DenialLog).note(exc, kind)
                self._fault(exc, id)
            except PerdureError as exc:
                faults += 1
                self._fault(exc, id)
            except (msgspec.MsgspecError, ValueError, RecursionError) as exc:
                faults += 1
                self._fault(
                    InvalidInput(
                        f"This message cannot be understood: {exc}.", hint="See docs/live.md."
                    )
                )
            if faults >= MOST_FAULTS:
                await self._socket.close(_POLICY, "Too many messages cannot be understood.")
                return

    def _answer(self, frame: Subscribe | Unsubscribe) -> None:
        if isinstance(frame, Unsubscribe):
            if not self._end(frame.id):
                raise InvalidInput(
                    f"There is no subscription {frame.id!r}.", hint="It may have ended."
                )
            self._queue.add(frame_text(SubscriptionEnded(frame.id)))
            return
        if frame.id in self._subscriptions:
            raise InvalidInput(
                f"There is a subscription {frame.id!r}.", hint="Unsubscribe, or use another id."
            )
        if len(self._subscriptions) >= MOST_SUBSCRIPTIONS:
            raise InvalidInput(
                f"A socket has at most {MOST_SUBSCRIPTIONS} subscriptions.",
                hint="Subscribe to the agent, or to all.",
            )
        scope = self._scope(frame)
        subscription = LiveSubscription(self, frame.id, scope, frame.topics)
        self._subscriptions[frame.id] = subscription
        self._queue.add(frame_text(SubscriptionBegan(frame.id)))
        task = asyncio.create_task(
            self._catch_up(subscription, frame.after), name="perdure-live-catch-up"
        )
        self._catching_up[frame.id] = task

    def _scope(self, frame: Subscribe) -> LiveScope:
        """Raises `InvalidInput` unless it names one thing, `Denied` if that is another agent's."""
        if [bool(frame.session), bool(frame.agent), frame.all].count(True) != 1:
            raise InvalidInput(
                "Subscribe to a session, an agent, or all.", hint="Give exactly one of them."
            )
        if frame.after is not None and isinstance(frame.after, int) != bool(frame.session):
            raise InvalidInput(
                "This is not the cursor of such a subscription.",
                hint="A session's is a number; the others' is what `live` told.",
            )
        if frame.session:
            self._call.require_agent(agent_of(frame.session))
            return LiveScope(session=frame.session)
        if frame.agent:
            self._call.require_agent(checked_agent(frame.agent))
            return LiveScope(agent=frame.agent)
        # All that it may hear.
        return LiveScope(agent=self._call.caller.agent or "")

    def _end(self, id: str) -> bool:
        subscription = self._subscriptions.pop(id, None)
        if subscription is None:
            return False
        self._hub.unsubscribe(subscription)
        task = self._catching_up.pop(id, None)
        if task is not None:
            task.cancel()
        return True

    async def _catch_up(self, each: LiveSubscription, after: int | LiveCursor | None) -> None:
        try:
            await self._tell_missed(each, after)
        except PerdureError as exc:
            self._end_with(each, exc)
        except Exception:  # noqa: BLE001  # the outermost frame of a task
            _log.exception("A live subscription failed.")
            self._end_with(each, PerdureError("Something went wrong inside the server."))

    async def _tell_missed(self, each: LiveSubscription, after: int | LiveCursor | None) -> None:
        hub, scope = self._hub, each.scope
        told: dict[str, int] = {}
        names: list[str] = []
        if isinstance(after, int):
            told[scope.session] = after
        elif after is not None:
            told = {name: at for name, at in after.sessions.items() if scope.covers(name)}
            active = await hub.active(after.time, scope.agent, MOST_BEHIND)
            if len(told) > MOST_BEHIND or len(active) >= MOST_BEHIND:
                raise InvalidInput(
                    f"More than {MOST_BEHIND:,} sessions were written to since this cursor.",
                    hint="Subscribe without `after`, and read what was missed by the API.",
                )
            names = [*told, *active]
        await hub.subscribe(each, names)
        # Without a pause between its last look and the end of it, nothing falls in between.
        while after is not None and (behind := hub.sessions_behind(scope, told)):
            for name in behind:
                if name not in told:
                    moment = after.time if isinstance(after, LiveCursor) else 0
                    told[name] = await hub.written_before(name, moment)
                at = max(told[name], 0)
                events = await hub.missed_turns(name, at)
                told[name] = max([at, *(event.cursor for event in events)])
                if not events:
                    told[name] = max(at, hub.position(name))
                if "turns" in each.topics:
                    for event in events:
                        await self._queue.room()
                        self._queue.add(event.text)
        each.catching_up = False
        self._catching_up.pop(each.id, None)
        self._queue.add(frame_text(SubscriptionLive(each.id, hub.cursor(scope))))
        if "answers" in each.topics:
            for event in hub.arriving_answers(scope):
                self._queue.offer(event)

    def _end_with(self, each: LiveSubscription, error: PerdureError) -> None:
        self._catching_up.pop(each.id, None)
        self._end(each.id)
        self._fault(error, each.id)

    def _peer(self) -> str:
        client = self._socket.client
        return client.host if client else "unknown"

    def _fault(self, error: PerdureError, id: str = "") -> None:
        detail = answer_of(error).error
        self._queue.add(frame_text(LiveFault(detail.code, detail.message, detail.hint, id)))


async def live(call: ServerCall, socket: WebSocket) -> None:
    await LiveSocket(call.server.part(LiveHub), call, socket).run()


OPERATIONS = (
    SocketOperation(
        PATH,
        live,
        f"Events as they happen: {', '.join(TOPICS)}. See docs/live.md.",
        TokenScope.READ,
    ),
)

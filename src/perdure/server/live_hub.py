"""Follows the log once for all who are connected, and tells each of them what they subscribed to.

What this process writes wakes it. For what other processes write it asks the store, a few times a
second, whether others committed at all, which SQLite answers without reading; only then, or where a
store cannot tell, it reads which sessions changed. So a thousand idle sockets cost what one does,
and nothing is read while nobody is connected.

Turns are always read from the log, from where the last reading ended: none can be missed or come
twice, whichever process wrote them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator

import msgspec

from perdure.core.clock import SECOND
from perdure.core.errors import PerdureError
from perdure.core.messages import Message
from perdure.history.answer_feed import AnswerChange
from perdure.history.log_records import AnswerDraft, Head, TurnPiece
from perdure.jobs.job import Job
from perdure.server.live_audience import LiveAudience, LiveEvent, LiveScope, LiveSubscription
from perdure.server.live_events import (
    AnswerAlive,
    AnswerArriving,
    AnswerGrew,
    EventsSkipped,
    JobChanged,
    LiveCursor,
    SessionChanged,
    SkippedTurns,
    frame_text,
    growth,
    session_event,
    turn_event,
)
from perdure.server.live_log import SLACK, LogReader
from perdure.services import Services
from perdure.storage.adapter import Capability

_log = logging.getLogger("perdure.server")

#: Sessions that were written to so lately are named in cursors. Microseconds.
_RECENT = 180 * SECOND
_FORGET_AFTER = 600 * SECOND
_POLL = 0.25  # Seconds between two looks for what other processes wrote.
_SLOW_POLL = 1.0  # … for jobs, for writers that died, and after an error.
#: A look takes at most this share of the time.
_SHARE = 0.1
_CURSORS_EVERY = 60.0
_MOST_JOBS = 1_000


class _Known(msgspec.Struct):
    head: Head
    #: Of other processes, by turn.
    drafts: dict[int, AnswerDraft] = {}


class LiveHub:
    """One per server."""

    def __init__(self, services: Services) -> None:
        self._store = services.store
        self._turn_log = services.log
        self._answers = services.log.answers
        self._log = LogReader(services.store)
        self.audience = LiveAudience()
        self._publish = self.audience.publish
        self._known: dict[str, _Known] = {}
        #: What other processes wrote before this moment is known. Microseconds.
        self._checked = 0
        self._jobs: dict[str, Job] | None = None
        self._dirty: dict[str, None] = {}  # In the order in which they were written to.
        self._wake = asyncio.Event()
        self._looking = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None
        self._stops: list[Callable[[], None]] = []

    # Those who hear ---------------------------------------------------------------------------

    async def subscribe(self, subscription: LiveSubscription, names: Iterable[str] = ()) -> None:
        """When it returns, the state of the sessions in its scope that changed lately is known, and
        of those that are named.
        """
        self.audience.add(subscription)
        scope = subscription.scope
        async with self._looking:
            if self._task is None:
                self._checked = self._store.now()
                self._stops = [
                    self._turn_log.follow(self._changed),
                    self._answers.listen(self._answer_changed),
                ]
                self._task = asyncio.create_task(self._follow(), name="perdure-live")
                fresh = True
            else:
                fresh = False
            wanted = {*names}
            if scope.session:
                wanted.add(scope.session)
            else:
                wanted.update(await self._log.active(self._checked - _RECENT, scope.agent))
            await self._look_at(wanted, silently=fresh)

    def unsubscribe(self, subscription: LiveSubscription) -> None:
        self.audience.remove(subscription)
        if not self.audience.all:
            self._rest()

    async def close(self) -> None:
        task = self._task
        self._rest()
        if task is not None:
            await asyncio.wait({task})

    def _rest(self) -> None:
        if self._task is not None:
            self._task.cancel()
            self._task = None
        for stop in self._stops:
            stop()
        self._stops = []
        self._known.clear()
        self._dirty.clear()
        self._jobs = None

    # What is known ----------------------------------------------------------------------------

    def sessions_behind(self, scope: LiveScope, told: dict[str, int]) -> list[str]:
        """Sessions of which more is known than a reader was told."""
        names = [scope.session] if scope.session else list(self._known)
        return [
            name
            for name in names
            if name in self._known
            and scope.covers(name)
            and told.get(name, -1) < self._known[name].head.pieces
        ]

    def cursor(self, scope: LiveScope) -> int | LiveCursor:
        if scope.session:
            return self.position(scope.session)
        since = self._checked - _RECENT
        known = {
            name: known.head.pieces
            for name, known in self._known.items()
            if scope.covers(name) and known.head.time >= since
        }
        return LiveCursor(self._checked, known)

    def position(self, session: str) -> int:
        known = self._known.get(session)
        return 0 if known is None else known.head.pieces

    async def active(self, since: int, agent: str, most: int) -> list[str]:
        return await self._log.active(since, agent, most)

    async def written_before(self, session: str, moment: int) -> int:
        """Where a reader stands in a session that its cursor of this moment does not name."""
        known = self._known.get(session)
        if known is None:
            return 0
        return await self._log.written_before(session, known.head, moment - SLACK)

    async def missed_turns(self, session: str, after: int) -> list[LiveEvent]:
        """The turns behind a cursor, as events; too many are told as skipped."""
        known = self._known.get(session)
        if known is None:
            return []
        pieces = await self._log.pieces(session, after, known.head)
        return list(_turn_events(session, after, pieces, known.head))

    def arriving_answers(self, scope: LiveScope) -> list[LiveEvent]:
        """The answers that arrive right now, as far as they did."""
        own = [
            (session, turn, answer.so_far())
            for (session, turn), answer in self._answers.arriving.items()
            if scope.covers(session)
        ]
        others = [
            (session, turn, draft.message)
            for session, known in self._known.items()
            if scope.covers(session)
            for turn, draft in known.drafts.items()
        ]
        return [_answer_event(*each) for each in own + others]

    # Following --------------------------------------------------------------------------------

    def _changed(self, session: str) -> None:
        self._dirty[session] = None
        self._wake.set()

    async def _follow(self) -> None:
        loop = asyncio.get_running_loop()
        generation: int | None = None
        shared = Capability.SHARED in self._store.capabilities
        others, slowly, cursors = 0.0, 0.0, loop.time() + _CURSORS_EVERY  # When each is due.
        while True:
            began, dirty = loop.time(), dict[str, None]()
            try:
                if shared and began >= others:
                    now = self._store.now()
                    before, generation = generation, await self._store.adapter.generation()
                    if generation is None or generation != before:
                        await self._look_everywhere(now)
                    else:
                        self._checked = now
                    others = loop.time() + max(_POLL, (loop.time() - began) / _SHARE)
                if self._dirty:
                    async with self._looking:
                        dirty, self._dirty = self._dirty, {}
                        await self._look_at(name for name in dirty if self.audience.hears(name))
                if began >= slowly:
                    slowly = loop.time() + _SLOW_POLL
                    async with self._looking:
                        await self._look_at(name for name, of in self._known.items() if of.drafts)
                        await self._look_at_jobs()
                if began >= cursors:
                    cursors = loop.time() + _CURSORS_EVERY
                    self._forget_idle()
                    for reader in {each.reader for each in self.audience.all}:
                        reader.shorten_cursors()
            except Exception as exc:  # noqa: BLE001  # the outermost loop: readers must not starve
                ours = isinstance(exc, PerdureError)  # the store may be away for a while
                _log.warning("Live events wait: %s", exc, exc_info=None if ours else exc)
                await asyncio.sleep(_SLOW_POLL)
                generation = None
                self._dirty = {**dirty, **self._dirty, **dict.fromkeys(self._known)}
            if not self._dirty:
                try:
                    async with asyncio.timeout(_POLL):
                        await self._wake.wait()
                except TimeoutError:
                    pass
            self._wake.clear()

    async def _look_everywhere(self, now: int) -> None:
        async with self._looking:
            names = set(self.audience.sessions)
            names.update(name for name, known in self._known.items() if known.drafts)
            if self.audience.of_everything:
                names.update(await self._log.active(self._checked))
            else:
                for agent in list(self.audience.agents):
                    names.update(await self._log.active(self._checked, agent))
            await self._look_at(names)
            self._checked = now

    def _forget_idle(self) -> None:
        """Sessions to which nothing was written for a while: they would be read anew. Not while a
        reader catches up with one.
        """
        if any(each.catching_up for each in self.audience.all):
            return
        for name, known in list(self._known.items()):
            is_idle = known.head.time < self._checked - _FORGET_AFTER
            if is_idle and not known.drafts and name not in self.audience.sessions:
                del self._known[name]

    async def _look_at(self, names: Iterable[str], *, silently: bool = False) -> None:
        """Publish what is new in these sessions, or only take note of it. Call it while looking."""
        wanted = list(names)
        if not wanted:
            return
        heads = await self._log.heads(wanted)
        drafts = await self._log.drafts(
            [
                (name, turn)
                for name, head in heads.items()
                for turn in head.answering
                if (name, turn) not in self._answers.arriving
            ]
        )
        for name in wanted:
            head, known = heads.get(name), self._known.get(name)
            if head is None:
                if self._known.pop(name, None) is not None and known is not None:
                    self._publish_session(
                        msgspec.structs.replace(session_event(known.head), gone=True)
                    )
                continue
            if known is None and not silently:
                seen = await self._log.written_before(name, head, self._checked - SLACK)
            else:
                seen = head.pieces if known is None else known.head.pieces
            pieces = await self._log.pieces(name, seen, head) if head.pieces > seen else []
            for event in _turn_events(name, seen, pieces, head):
                self._publish(event)
            self._known[name] = _Known(head, {} if known is None else known.drafts)
            if known is not None and _differs(known.head, head):
                self._publish_session(session_event(head))
            of_others = {
                turn: drafts[name, turn] for turn in head.answering if (name, turn) in drafts
            }
            self._take_drafts(name, of_others)

    def _take_drafts(self, session: str, drafts: dict[int, AnswerDraft]) -> None:
        known, now = self._known[session], self._store.now()
        before = known.drafts
        known.drafts = {
            turn: draft for turn, draft in drafts.items() if draft.writer(now) == "alive"
        }
        for turn, draft in known.drafts.items():
            old = before.get(turn)
            if old is None:
                self._publish(_answer_event(session, turn, draft.message))
            elif draft.updated != old.updated:
                grown = growth(session, turn, old.message, draft.message)
                if grown is None:
                    self._publish(_answer_event(session, turn, draft.message))
                for delta in grown or ():
                    self._publish(LiveEvent("answers", session, frame_text(delta)))
            elif draft.heartbeat != old.heartbeat:
                self._publish(LiveEvent("answers", session, frame_text(AnswerAlive(session, turn))))
        for turn in before.keys() - known.drafts.keys():
            if (session, turn) not in self._answers.arriving:  # else this process goes on with it
                ended = AnswerArriving(
                    session=session, turn=turn, state="left" if turn in drafts else "ended"
                )
                self._publish(LiveEvent("answers", session, frame_text(ended)))

    def _answer_changed(self, change: AnswerChange) -> None:
        session, turn = change.session, change.turn
        if not self.audience.hears(session):
            return
        if change.kind == "grew":
            event: msgspec.Struct = AnswerGrew(
                session=session,
                turn=turn,
                part=change.part,
                of=change.of,
                at=change.at,
                text=change.text,
                id=change.id,
                name=change.name,
            )
        elif change.kind == "heartbeat":
            event = AnswerAlive(session, turn)
        elif change.kind == "began":
            self._publish(
                _answer_event(session, turn, self._answers.arriving[session, turn].so_far())
            )
            return
        else:
            event = AnswerArriving(
                session=session, turn=turn, state="ended" if change.kind == "written" else "left"
            )
        self._publish(LiveEvent("answers", session, frame_text(event)))

    async def _look_at_jobs(self) -> None:
        if not self.audience.wants("jobs"):
            self._jobs = None
            return
        query = self._store.collection(Job).query().order_by("id").limit(_MOST_JOBS)
        found = {job.id: job for job in await query.values()}
        before, self._jobs = self._jobs, found
        if before is None:
            return
        for job in found.values():
            old = before.get(job.id)
            if old is None or (old.state, old.attempts) != (job.state, job.attempts):
                self._publish_job(job)
        for name in before.keys() - found.keys():
            self._publish_job(before[name], done=True)

    def _publish_session(self, event: SessionChanged) -> None:
        self._publish(LiveEvent("turns", event.session, frame_text(event)))

    def _publish_job(self, job: Job, *, done: bool = False) -> None:
        _, _, key = job.id.partition("/")
        agent, _, rest = key.partition("/")
        session = f"{agent}/{rest.partition('/')[0]}" if rest else ""
        event = JobChanged(
            id=job.id,
            kind=job.kind,
            state="done" if done else job.state.value,
            attempts=job.attempts,
            error=job.error,
            session=session,
        )
        self._publish(LiveEvent("jobs", session, frame_text(event)))


def _turn_events(
    session: str, after: int, pieces: list[TurnPiece], head: Head
) -> Iterator[LiveEvent]:
    if pieces and pieces[0].number > after + 1:
        through, last = pieces[0].number - 1, pieces[0].turn
        text = frame_text(EventsSkipped({session: SkippedTurns(after, through, 0, last)}))
        yield LiveEvent("turns", session, text, after, through, 0, last)
    for piece in pieces:
        text, turn = frame_text(turn_event(session, piece, head)), piece.turn
        yield LiveEvent("turns", session, text, piece.number - 1, piece.number, turn, turn)


def _answer_event(session: str, turn: int, message: Message) -> LiveEvent:
    event = AnswerArriving(session=session, turn=turn, state="arriving", message=message)
    return LiveEvent("answers", session, frame_text(event))


def _differs(before: Head, after: Head) -> bool:
    return (before.undone, before.forgets, before.closed) != (
        after.undone,
        after.forgets,
        after.closed,
    )

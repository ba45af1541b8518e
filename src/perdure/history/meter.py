"""Counts tokens: exact, stored with each round, and never in the way of an append.

Counting 5 KB takes longer than storing them. So an append only notes what is to be counted, and the
meter counts when the process has nothing to write: some tens of milliseconds after the last append,
when `settle` or `count` asks, and when the bank is closed. Importers, which write in bulk, count at
once.

The first append after a pause leaves a mark in its transaction, which goes when all is counted. So
what a killed process left uncounted is found when its session is next opened.

Who makes something of what was counted (`history.renditions.scribe`) follows: it is given the same
idle moments, and the mark stays until it is done too.

`counting` knows what rounds come to. Where a provider returned its own figure for a reply, the two
are compared, and a model's calibration learns from it: see `calibrations`.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import islice
from typing import Protocol

import msgspec

from perdure.artifacts import ArtifactStore
from perdure.core.clock import SECOND
from perdure.core.errors import Conflict, Corrupted, PerdureError
from perdure.core.ids import new_id
from perdure.core.tokens import Counter, o200k
from perdure.history.calibrations import Calibrations
from perdure.history.counting import Counting, Noted
from perdure.history.intake import Pending
from perdure.history.lines import ENDLESS
from perdure.history.log import Hook, Written
from perdure.history.reading import Reader
from perdure.history.records import Head, SessionRecord, TurnCount, Uncounted
from perdure.storage.options import Options
from perdure.storage.store import Store
from perdure.storage.transaction import Transaction

#: Seconds without an append after which counting begins. Where appends keep coming while it is at
#: work, it waits for twice as long the next time, and so on up to the second figure.
_IDLE, _LONGEST_IDLE = 0.05, 0.4
#: Rounds whose counts are stored together; fewer while an append may come at any time.
_BATCH, _FEW = 64, 8
#: Rounds noted at most; of what comes above, only the turn is remembered, and read again.
_NOTED = 2_000
#: Who goes on writing without a pause renews its mark so often. One that was not renewed for three
#: times as long is of somebody who is dead.
_RENEW = 20 * SECOND
#: Where appends never pause, work that has waited for so many seconds gets a moment of so many,
#: with so many between two of them.
_PATIENCE, _MOMENT, _BETWEEN = 1.0, 0.004, 0.25
#: Seconds that whoever follows gets when the bank is closed; the mark tells of the rest.
_LAST_MOMENT = 0.25

_log = logging.getLogger(__name__)


class _Mark(msgspec.Struct, frozen=True):
    """A mark of ours, as it is stored."""

    first: int
    time: int
    version: int


class Follower(Protocol):
    """Works on what was counted, in the meter's idle moments."""

    @property
    def behind(self) -> bool:
        """Whether there is something left to do."""

    def follow(self, record: SessionRecord, first: int, last: int) -> None:
        """Note that messages were added to these turns."""

    def follow_bulk(self, record: SessionRecord, first: int, last: int) -> None:
        """Note that these turns were written at once."""

    async def work(self, go_on: Callable[[], bool]) -> None:
        """Do what is to be done, at least a little of it, for as long as `go_on` says so."""


class Meter:
    """Counts what was appended through one bank."""

    def __init__(
        self,
        store: Store,
        reader: Reader,
        artifacts: ArtifactStore,
        counter: Counter | None = None,
    ) -> None:
        self._store = store
        self._artifacts = artifacts
        self._counter = counter
        self._counting = Counting(store, reader, artifacts, lambda: self.counter)
        self.calibrations = Calibrations(store, lambda: self.counter)
        self._noted: deque[Noted] = deque()
        #: Sessions to be read again, from this turn on or from where others have left a mark.
        self._missed: dict[str, tuple[SessionRecord, int]] = {}
        self._follower: Follower | None = None
        self._process = new_id()
        self._marks: dict[str, _Mark] = {}
        #: Marks of others, whose work is done here.
        self._adopted: dict[str, int] = {}
        self._appending = 0
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None
        self._lock = asyncio.Lock()
        self._last = 0.0
        self._quiet = _IDLE
        #: Since when something waits; 0 if nothing does.
        self._since = 0.0
        self._stopped = False

    def join(self, follower: Follower) -> None:
        """Have somebody work on what was counted."""
        self._follower = follower

    @property
    def counter(self) -> Counter:
        if self._counter is None:
            self._counter = o200k()
        return self._counter

    @contextmanager
    def append(self) -> Iterator[None]:
        """Around an append that is to be noted: marks stay while one is under way."""
        self._appending += 1
        try:
            yield
        finally:
            self._appending -= 1

    async def mark(self, transaction: Transaction, written: Written) -> None:
        """Say in the append's transaction that there is something to count, unless it is said."""
        name, first, now = written.session.id, written.first, self._store.now()
        known = self._marks.get(name)
        if known is not None:
            if known.first <= first and abs(now - known.time) < _RENEW:
                return
            first = min(first, known.first)
        record = Uncounted(f"{name}/{self._process}", first, now)
        await transaction.collection(Uncounted).put(record)

        def done() -> None:
            version = transaction.version("perdure_uncounted", record.id)
            self._marks[name] = _Mark(record.first, record.time, version)

        transaction.after_commit(done)

    def note(self, written: Written) -> None:
        """Count these rounds before long."""
        if len(self._noted) + len(written.rounds) > _NOTED:
            self._miss(written.session, written.first)
        else:
            name = written.session.id
            self._noted.extend([Noted(name, round) for round in written.rounds])
        if self._follower is not None and written.rounds:
            self._follower.follow(written.session, written.first, written.last)
        self._last = asyncio.get_running_loop().time()
        if self._task is not None and not self._task.done():
            self._quiet = min(self._quiet * 2, _LONGEST_IDLE)
        self._wake()

    def counted(self, written: Written) -> None:
        """Let whoever follows work on what was counted inside its append."""
        if self._follower is not None and written.rounds:
            self._follower.follow_bulk(written.session, written.first, written.last)
            self._last = asyncio.get_running_loop().time()
            self._wake()

    def look(self, record: SessionRecord) -> None:
        """See whether a session has rounds that nobody counted."""
        self._miss(record, ENDLESS)
        self._wake()

    def now(self, moved: Sequence[bytes]) -> Hook:
        """A hook that counts inside the append, which moves these contents out: for bulk."""
        contents = Pending(moved, self._artifacts)

        async def hook(transaction: Transaction, written: Written) -> None:
            noted = [Noted(written.session.id, round) for round in written.rounds]
            counted = await self._counting.counted(noted, contents)
            await transaction.collection(TurnCount).put_many(counted)

        return hook

    async def count(self, session: str, first: int, last: int) -> None:
        """Count what is not counted of these turns of a session's own log, now."""
        await self._counting.turns(session, first, last)

    async def settle(self) -> None:
        """Count everything that is to be counted, but for what is damaged."""
        await self._settle(_BATCH, _always, _always)

    async def _settle(
        self, batch_size: int, go_on: Callable[[], bool], follow: Callable[[], bool]
    ) -> None:
        async with self._lock:
            while self._missed and go_on():
                name, (record, first) = self._missed.popitem()
                try:
                    await self._catch_up(record, first)
                except Corrupted as exc:
                    _log.warning("the turns of %s cannot all be counted: %s", name, exc)
                except PerdureError:
                    self._miss(record, first)
                    raise
            while self._noted and go_on():
                batch = list(islice(self._noted, batch_size))
                await self._counting.rounds(batch)
                await self.calibrations.learn(
                    message for noted in batch for message in noted.round.messages
                )
                for _ in batch:
                    self._noted.popleft()
            if self._follower is not None and self._follower.behind and follow():
                await self._follower.work(follow)
            if not self._is_behind:
                self._since = 0.0
                if self._idle():  # nobody came while we were at work
                    self._quiet = max(self._quiet / 2, _IDLE)
                await self._unmark()

    @property
    def _is_behind(self) -> bool:
        behind = self._follower is not None and self._follower.behind
        return bool(self._noted or self._missed or behind)

    async def stop(self) -> None:
        """Count what is left, and end."""
        self._stopped = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._task is not None:
            await self._task
        await self._run(_always, _for(_LAST_MOMENT))

    # ------------------------------------------------------------------------------------------

    def _miss(self, record: SessionRecord, first: int) -> None:
        _, known = self._missed.get(record.id, (record, ENDLESS))
        self._missed[record.id] = (record, min(first, known))

    def _wake(self) -> None:
        self._since = self._since or asyncio.get_running_loop().time()
        if self._timer is None and (self._task is None or self._task.done()):
            self._timer = asyncio.get_running_loop().call_later(_IDLE, self._when_idle)

    def _when_idle(self) -> None:
        loop = asyncio.get_running_loop()
        go_on, follow = self._idle, self._may_follow
        if not self._idle():
            if loop.time() - self._since < _PATIENCE:
                self._timer = loop.call_later(_IDLE, self._when_idle)
                return
            self._since = loop.time() - _PATIENCE + _BETWEEN
            go_on, follow = _for(_MOMENT), _for(_MOMENT)
        self._timer = None
        self._task = loop.create_task(self._run(go_on, follow), name="perdure-meter")

    def is_appending(self) -> bool:
        """Whether an append is under way."""
        return self._appending > 0

    @property
    def is_busy(self) -> bool:
        """Whether somebody has appended just now."""
        return not self._idle()

    def _may_follow(self) -> bool:
        """Whether there is time for what can be made later: not while a bank is being closed."""
        return self._idle() and not self._stopped

    def _idle(self) -> bool:
        return asyncio.get_running_loop().time() - self._last >= self._quiet

    async def _run(self, go_on: Callable[[], bool], follow: Callable[[], bool]) -> None:
        try:
            await self._settle(_FEW, go_on, follow)
        except PerdureError as exc:
            # Counts are a view: they are made at the next occasion, or when the session is opened.
            _log.warning("tokens could not be counted: %s", exc)
        else:
            if self._is_behind and not self._stopped:  # somebody appends again
                loop = asyncio.get_running_loop()
                self._timer = loop.call_later(_IDLE, self._when_idle)

    async def _unmark(self) -> None:
        """Take our marks away, now that all is counted."""
        if self._appending or not (self._marks or self._adopted):
            return  # who is appending relies on them, and notes something when it is done
        going, self._adopted = self._adopted, {}
        going |= {f"{name}/{self._process}": mark.version for name, mark in self._marks.items()}
        self._marks = {}
        records = self._store.collection(Uncounted)
        for key, version in going.items():
            # Who appends from now on leaves another mark, and that one stays.
            with suppress(Conflict):
                await records.delete(key, Options(expected=version))

    async def _catch_up(self, record: SessionRecord, first: int) -> None:
        """Count from this turn on, or from where somebody left a mark."""
        records = self._store.collection(Uncounted)
        marks = await records.query().prefix(f"{record.id}/").execute()
        marks = [mark for mark in marks if not mark.key.endswith(f"/{self._process}")]
        turn = max(min([first, *(mark.value.first for mark in marks)]), record.forked_at + 1)
        head = await self._store.collection(Head).get(record.id)
        if head is not None and turn <= head.turn:
            await self._counting.turns(record.id, turn, head.turn)
            if self._follower is not None:
                self._follower.follow(record, turn, head.turn)
        for mark in marks:
            if abs(self._store.now() - mark.value.time) > 3 * _RENEW:
                self._adopted[mark.key] = mark.version


def _always() -> bool:
    return True


def _for(seconds: float) -> Callable[[], bool]:
    """True for so many seconds, from the first call on."""
    time = asyncio.get_running_loop().time
    end = 0.0

    def go_on() -> bool:
        nonlocal end
        end = end or time() + seconds
        return time() < end

    return go_on

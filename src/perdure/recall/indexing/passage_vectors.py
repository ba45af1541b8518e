"""Vectors, added in the background: a passage is found by its words at once, by meaning soon.

What was indexed waits in memory, with its text. It is embedded in batches, in threads, when nobody
writes, and its vectors are kept. Nothing is lost if the process dies first, or if more comes than
may wait: the index knows which documents have no vector of the present model, and their texts are
read again. That is also how a change of the model is brought about. Several processes may do the
same work; it comes out the same.

An embedder that fails is asked again after a pause that grows. No append ever hears of it;
`Embeddings.failure` tells.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from typing import Any, NamedTuple, TypeAlias

from perdure.core.errors import Closed, PerdureError
from perdure.jobs import GoOn, Runner, Wake
from perdure.recall.embedders import Embedder, Wordllama
from perdure.recall.places import INDEX
from perdure.search.engine import Embedding, engine_of, has_search
from perdure.storage.store import Progress, Store

#: Passages that are embedded, and whose vectors are kept, together.
_BATCH = 256
#: Passages that wait in memory at most, and characters of them.
_MOST, _MOST_TEXT = 4_096, 4_000_000
#: Shares of that with which embedding begins beside who writes in bulk, and is waited for.
_MUCH, _TOO_MUCH = 0.25, 0.75
#: Seconds until the first look for what others left, so that short commands do without; between
#: two looks.
_FIRST_LOOK, _LOOK_EVERY = 2.0, 300.0
#: Seconds before an embedder that failed is asked again; doubled with each failure in a row.
_FIRST_RETRY, _LONGEST_RETRY = 1.0, 300.0

_log = logging.getLogger(__name__)

#: The texts of these places, as far as they can be read.
Read: TypeAlias = Callable[[Sequence[int]], Awaitable[Mapping[int, str]]]


def always() -> bool:
    """Go on."""
    return True


class Waiting(NamedTuple):
    """A document without a vector, and what is to be embedded."""

    place: int
    plain: str


class Embeddings:
    """Embeds what waits. Made for one event loop; `start` it, and `stop` it."""

    def __init__(
        self,
        store: Store,
        embedder: Embedder,
        read: Read,
        warm: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        self._load = warm
        self._store = store
        self._embedder = embedder
        self._read = read
        self._is_able = has_search(store.adapter)
        self._waiting: deque[Waiting] = deque()
        self._length = 0
        #: There may be documents without a vector that do not wait here.
        self._behind = True
        #: Where the look for them has come to, and how many of them could not be read.
        self._after, self._unread = -1, 0
        #: Everything was embedded by this model once, whoever did it.
        self._has_caught_up = False
        self._working = asyncio.Lock()
        #: Tell the runner that something waits, or may be behind.
        self._wake: Wake | None = None
        self._task: asyncio.Task[None] | None = None
        self._is_left = False
        self._retry: asyncio.TimerHandle | None = None
        self._is_warm = False
        self._failures = 0
        #: What the embedder last failed with; empty if it did not, or has worked since.
        self.failure = ""
        #: Documents whose text could not be read when they were last looked for.
        self.unreadable = 0

    @property
    def waiting(self) -> int:
        """How many passages of this process wait."""
        return len(self._waiting)

    def add(self, waiting: Sequence[Waiting]) -> None:
        """Embed these before long."""
        for each in waiting if self._is_able else ():
            if len(self._waiting) >= _MOST or self._length + len(each.plain) > _MOST_TEXT:
                self._behind = True
                break
            self._waiting.append(each)
            self._length += len(each.plain)
        if self._wake is not None:
            self._wake()

    async def make_room(self) -> None:
        """Embed what waits if that is much: for who writes in bulk, and would have to read again.

        It is begun here and goes on beside the caller, who is kept only if there is hardly any room
        left. What the embedder cannot do comes later.
        """
        if self._fullness() < _MUCH:
            return
        task = self._beside(self._drained)
        if self._fullness() >= _TOO_MUCH:
            await task

    def paused(self) -> AbstractAsyncContextManager[None]:
        """Nothing is written meanwhile; what is being written is waited for."""
        return self._working

    def look(self) -> None:
        """There may be documents without a vector that were not given to `add`."""
        self._behind = True
        if self._wake is not None:
            self._wake()

    def start(self, jobs: Runner) -> None:
        """Have the runner work when nobody writes."""
        if self._wake is None:
            self._wake = jobs.idle("embedding", self._in_a_pause)

            async def look() -> None:
                self.look()

            jobs.every("missing vectors", _LOOK_EVERY, look, first=_FIRST_LOOK)
        self._wake()

    async def stop(self) -> None:
        """End, and leave what waits to whoever opens the bank next."""
        if self._retry is not None:
            self._retry.cancel()
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task

    async def settle(self, progress: Progress | None = None) -> None:
        """Embed everything now. What the embedder cannot do stays; `failure` tells why."""
        async with self._working:
            try:
                await self._work(progress=progress)
            except PerdureError as exc:
                self._failed(exc)

    async def settle_own(self) -> None:
        """Embed what this process has written, if the model comes with Perdure.

        For commands, which end before anything is done in the background. What others left, and
        what a server would have to be asked for, is left to programs that have the bank open.
        """
        with suppress(PerdureError):  # there is no such model: `check` tells
            if self._waiting and self._embedder.name == Wordllama.name:
                await self._drained()

    # ------------------------------------------------------------------------------------------

    def _fullness(self) -> float:
        """How much of what may wait does."""
        return max(len(self._waiting) / _MOST, self._length / _MOST_TEXT)

    async def _drained(self) -> None:
        async with self._working:
            try:
                await self._drain()
            except PerdureError as exc:
                self._failed(exc)

    def _beside(self, work: Callable[[], Coroutine[Any, Any, None]]) -> asyncio.Task[None]:
        """Work in a task of its own, one at a time."""
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(work(), name="perdure-embed")
        return self._task

    async def _in_a_pause(self, go_on: GoOn) -> bool:
        """Some of the work. A model that is asked elsewhere keeps no other work waiting."""
        if not self._embedder.is_quick and (self._waiting or self._behind):
            self._beside(self._attempt)
            return False
        await self._attempt(go_on)
        return self._is_left

    async def _attempt(self, go_on: GoOn = always) -> None:
        """Work until it is told to stop. If the embedder is away, it is asked again later."""
        self._is_left = False
        try:
            async with self._working:
                await self._work(go_on)
            if not self._is_left:
                await self._warm()
        except Exception as exc:  # noqa: BLE001
            # Whoever waits for the runner does not wait for an embedder that is away.
            self._failed(exc)
            pause = min(_FIRST_RETRY * 2 ** (self._failures - 1), _LONGEST_RETRY)
            if self._wake is not None:
                self._retry = asyncio.get_running_loop().call_later(pause, self._wake)

    async def _warm(self) -> None:
        """Load what searching needs, once, before somebody asks and waits for it."""
        if self._is_warm:
            return
        self._is_warm = True
        if self._load is not None:
            await self._load()
        if self._is_able and self._embedder.name == Wordllama.name:  # others may cost something
            await self._embedder.embed(["warm"])

    async def _work(self, go_on: GoOn = always, progress: Progress | None = None) -> None:
        # Before what follows, because it gives room back that vectors can take.
        is_tended = await self._tend(go_on)
        if self._is_able:
            await self._drain(go_on)
            if self._behind and not self._waiting:
                self._behind = False
                try:
                    self._behind = not await self._catch_up(go_on, progress)
                except BaseException:
                    self._behind = True
                    raise
            is_tended = await self._tend(go_on)
        self._is_left = not is_tended or bool(self._is_able and (self._waiting or self._behind))

    async def _tend(self, go_on: GoOn) -> bool:
        """Do a step of what the index needs, and more if it may; whether that is all."""
        while await engine_of(self._store.adapter).tend(INDEX.name):
            if not go_on():
                return False
            await asyncio.sleep(0)
        return True

    async def _drain(self, go_on: GoOn = always) -> None:
        while self._waiting:
            batch = dict[int, str]()  # of what was written again while it waited, the newest
            while self._waiting and len(batch) < _BATCH:
                place, plain = self._waiting.popleft()
                batch[place] = plain
                self._length -= len(plain)
            try:
                await self._embed(batch)
            except BaseException:
                self._behind = True
                raise
            if not go_on():
                return

    async def _catch_up(self, go_on: GoOn, progress: Progress | None) -> bool:
        """Embed what has no vector of this model, in the order of places; whether that is all."""
        engine, model = engine_of(self._store.adapter), self._embedder.name
        others = await self._other_models(model) if self._has_caught_up else []
        done = 0
        while places := await engine.unembedded(INDEX.name, model, self._after, _BATCH):
            after = places[-1]
            for other in others:
                theirs = await engine.vectors(INDEX.name, other, places)
                held = {places[number] for number in theirs.at.tolist()}
                places = [place for place in places if place not in held]
            texts = await self._read(places)
            await self._embed(texts)
            done, self._after = done + len(texts), after
            self._unread += len(places) - len(texts)
            if progress is not None:
                progress("embedding", done, 0)
            await self._drain()
            if not go_on():
                return False
        self.unreadable, self._has_caught_up = self._unread, True
        self._after, self._unread = -1, 0
        return True

    async def _other_models(self, model: str) -> list[str]:
        """Models of others who have the bank open with another configuration.

        What they embed after us is left to them, or each would undo the other's work for ever.
        """
        state = await engine_of(self._store.adapter).state(INDEX.name)
        return [name for name, held in state.vectors.items() if name != model and held]

    async def _embed(self, texts: Mapping[int, str]) -> None:
        if not texts:
            return
        vectors = await self._embedder.embed(list(texts.values()))
        found = [Embedding(place, each) for place, each in zip(texts, vectors, strict=True)]
        await engine_of(self._store.adapter).embed(INDEX.name, self._embedder.name, found)
        self._failures, self.failure = 0, ""

    def _failed(self, exc: Exception) -> None:
        self._failures = min(self._failures + 1, 16)
        self.failure = f"{type(exc).__name__}: {exc}"
        if isinstance(exc, Closed):
            pass  # the bank was closed meanwhile: the next process goes on with it
        elif isinstance(exc, PerdureError):
            _log.warning("texts could not be embedded: %s", exc)
        else:
            _log.error("texts could not be embedded", exc_info=exc)

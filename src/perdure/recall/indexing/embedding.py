"""Vectors, added in the background: a passage is found by its words at once, by meaning soon.

What was committed waits in memory, with its text, until nothing has been written for a moment, or
for a second. It is embedded in batches, in threads, and its vectors are kept. Nothing is lost if
the process dies first, or if more comes than may wait: the index knows which documents have no
vector of the present model, and their texts are read again. That is also how a change of the model
is brought about. Several processes may do the same work; it comes out the same.

An embedder that fails is asked again after a pause that grows. No append ever hears of it;
`Embeddings.failure` tells.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from typing import NamedTuple, TypeAlias

from perdure.core.errors import PerdureError
from perdure.recall.embedders import Embedder, Wordllama
from perdure.recall.places import INDEX
from perdure.search.engine import Embedding, engine_of, has_search
from perdure.storage.store import Progress, Store

#: Seconds without an append after which embedding begins, and after which it begins anyway.
_IDLE, _PATIENCE = 0.1, 1.0
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
#: Seconds in which what was put off is written before the bank is closed.
_LONGEST_END = 2.0

_log = logging.getLogger(__name__)

#: The texts of these places, as far as they can be read.
Read: TypeAlias = Callable[[Sequence[int]], Awaitable[Mapping[int, str]]]
#: Writes what was put off, see `completing`; what can be embedded then, some at a time.
Complete: TypeAlias = Callable[[], AsyncIterator[Sequence["Waiting"]]]


class Waiting(NamedTuple):
    """A document without a vector, and what is to be embedded."""

    place: int
    plain: str


class Embeddings:
    """Embeds what waits. Made for one event loop; `start` it, and `stop` it."""

    def __init__(self, store: Store, embedder: Embedder, read: Read, complete: Complete) -> None:
        self._store = store
        self._embedder = embedder
        self._read = read
        self._complete = complete
        self._is_able = has_search(store.adapter)
        self._waiting: deque[Waiting] = deque()
        self._length = 0
        #: There may be documents without a vector that do not wait here.
        self._behind = True
        #: Everything was embedded by this model once, whoever did it.
        self._has_caught_up = False
        #: Since when something waits, and when the last of it came.
        self._since = self._last = 0.0
        self._woken = asyncio.Event()
        self._working = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None
        self._making_room: asyncio.Task[None] | None = None
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

    @property
    def is_able(self) -> bool:
        """Whether the backend keeps vectors."""
        return self._is_able

    def add(self, waiting: Sequence[Waiting]) -> None:
        """Embed these before long, and what was put off."""
        if not self._is_able:
            return
        self._hold(waiting)
        self._last = asyncio.get_running_loop().time()
        self._since = self._since or self._last
        self._woken.set()

    async def make_room(self) -> None:
        """Embed what waits if that is much: for who writes in bulk, and would have to read again.

        It is begun here and goes on beside the caller, who is kept only if there is hardly any room
        left. What the embedder cannot do comes later.
        """
        if self._fullness() < _MUCH:
            return
        if self._making_room is None or self._making_room.done():
            self._making_room = asyncio.create_task(self._drained(), name="perdure-embed-bulk")
        if self._fullness() >= _TOO_MUCH:
            await self._making_room

    def paused(self) -> AbstractAsyncContextManager[None]:
        """Nothing is written meanwhile; what is being written is waited for."""
        return self._working

    def look(self) -> None:
        """There may be documents without a vector that were not given to `add`."""
        self._behind = True
        self._woken.set()

    def start(self) -> None:
        """Begin to work in the background."""
        self._task = asyncio.create_task(self._serve(), name="perdure-embed")

    async def stop(self) -> None:
        """End, and leave what waits to whoever opens the bank next.

        What was put off is written, if that does not take long. Who opens the bank only ever for a
        moment would otherwise never find it.
        """
        was_working = self._task is not None
        for task in (self._task, self._making_room):
            if task is not None:
                task.cancel()
                with suppress(asyncio.CancelledError):
                    await task
        self._task = self._making_room = None
        if was_working:
            with suppress(PerdureError, TimeoutError):
                async with asyncio.timeout(_LONGEST_END), self._working:
                    await self._finish()

    async def settle(self, progress: Progress | None = None) -> None:
        """Embed everything now. What the embedder cannot do stays; `failure` tells why."""
        async with self._working:
            try:
                await self._work(progress)
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

    def _hold(self, waiting: Sequence[Waiting]) -> None:
        length = sum(len(each.plain) for each in waiting)
        if len(self._waiting) + len(waiting) > _MOST or self._length + length > _MOST_TEXT:
            self._behind = True
        else:
            self._waiting.extend(waiting)
            self._length += length

    def _fullness(self) -> float:
        """How much of what may wait does."""
        return max(len(self._waiting) / _MOST, self._length / _MOST_TEXT)

    async def _drained(self) -> None:
        async with self._working:
            try:
                await self._drain()
            except PerdureError as exc:
                self._failed(exc)

    async def _serve(self) -> None:
        pause = _FIRST_LOOK
        while True:
            if not await self._is_woken_within(pause):
                self._behind = True
            await self._quiet()
            pause = _LOOK_EVERY
            try:
                async with self._working:
                    await self._work()
                await self._warm()
            except Exception as exc:  # noqa: BLE001
                # The outermost loop: one bad run must not end all later ones.
                self._failed(exc)
                await asyncio.sleep(min(_FIRST_RETRY * 2 ** (self._failures - 1), _LONGEST_RETRY))
                self._woken.set()

    async def _warm(self) -> None:
        """Load what searching needs, once, before somebody asks and waits for it."""
        if self._is_warm:
            return
        self._is_warm = True
        await asyncio.to_thread(_load_ranking)
        if self._is_able and self._embedder.name == Wordllama.name:  # others may cost something
            await self._embedder.embed(["warm"])

    async def _is_woken_within(self, seconds: float) -> bool:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                return await self._woken.wait()
        return False

    async def _quiet(self) -> None:
        """Wait for a moment in which nothing is appended."""
        clock = asyncio.get_running_loop().time
        while self._since:
            until = min(self._last + _IDLE, self._since + _PATIENCE)
            if (left := until - clock()) <= 0:
                return
            await asyncio.sleep(left)

    async def _work(self, progress: Progress | None = None) -> None:
        self._woken.clear()
        self._since = 0.0
        await self._finish()
        # Before what follows, because it gives room back that vectors can take.
        await self._tend()
        if self._is_able:
            await self._drain()
            if self._behind:
                self._behind = False
                try:
                    await self._catch_up(progress)
                except BaseException:
                    self._behind = True
                    raise
            await self._tend()

    async def _tend(self) -> None:
        is_left = True
        while is_left:
            is_left = await engine_of(self._store.adapter).tend(INDEX.name)
            await asyncio.sleep(0)

    async def _finish(self) -> None:
        """Write what was put off: before its words are filed, and before it has a vector."""
        try:
            async for waiting in self._complete():
                self._hold(waiting)
        except BaseException:
            self._behind = True
            raise

    async def _drain(self) -> None:
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

    async def _catch_up(self, progress: Progress | None) -> None:
        """Embed what has no vector of this model, in the order of places."""
        engine, model = engine_of(self._store.adapter), self._embedder.name
        others = await self._other_models(model) if self._has_caught_up else []
        after, done, unreadable = -1, 0, 0
        while places := await engine.unembedded(INDEX.name, model, after, _BATCH):
            after = places[-1]
            for other in others:
                theirs = await engine.vectors(INDEX.name, other, places)
                held = {places[number] for number in theirs.at.tolist()}
                places = [place for place in places if place not in held]
            texts = await self._read(places)
            await self._embed(texts)
            done += len(texts)
            unreadable += len(places) - len(texts)
            if progress is not None:
                progress("embedding", done, 0)
            await self._drain()
        self.unreadable, self._has_caught_up = unreadable, True

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
        if isinstance(exc, PerdureError):
            _log.warning("texts could not be embedded: %s", exc)
        else:
            _log.error("texts could not be embedded", exc_info=exc)


def _load_ranking() -> None:
    """Imports that take some tenths of a second."""
    import perdure.recall.searching.meanings
    import perdure.recall.searching.ranking  # noqa: F401

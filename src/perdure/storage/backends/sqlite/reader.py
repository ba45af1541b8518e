"""Reads beside the writer: on the event loop when it is quick, in threads when it is not.

A point read or an indexed page takes some ten microseconds; a thread and back over a hundred. So
a read first runs on the event loop, limited to some steps of SQLite's virtual machine. If it
needs more, it is stopped and runs again in a thread, where its statement goes at once the next
time.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable
from typing import Any, TypeVar

import apsw

from perdure.core.errors import Closed, DeadlineExceeded
from perdure.storage.backends.sqlite.errors import READING, translate

T = TypeVar("T")
#: What a reader does: run statements on a connection and return what they gave.
Work = Callable[[apsw.Connection], T]

#: Steps of the virtual machine between two looks, and looks allowed on the event loop: together a
#: few hundred microseconds.
STEPS = 1_000
LOOKS = 8
#: Bytes of values that are read on the event loop.
BYTES = 1024 * 1024
_ENDLESS = 2**62
THREADS = 3


class Busy(Exception):
    """Raised by work that would keep the event loop waiting this time: a thread is to do it."""


class SQLiteReader:
    """Read connections to one database. Used from one event loop."""

    def __init__(self, connect: Callable[[], apsw.Connection], path: str, *, inline: bool) -> None:
        self._connect = connect
        self._path = path
        self._loop = asyncio.get_running_loop()
        self._quick = connect() if inline else None
        if self._quick is not None:
            self._quick.set_progress_handler(self._look, STEPS)
        self._looks = 0
        self._bytes = 0
        self._slow: set[str] = set()
        self._schema_version: object = None
        self._collections: set[str] = set()
        self._queue: queue.SimpleQueue[tuple[Work[Any], asyncio.Future[Any], list[Any]] | None]
        self._queue = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._idle = 0
        self._stopping = threading.Lock()  # so that nobody stops the read after the one they mean
        self._closed = False

    async def run(self, label: str, work: Work[T], deadline: float | None = None) -> T:
        """Run `work`. Reads with the same label are expected to take equally long."""
        if self._closed:
            raise _closed()
        if self._quick is not None and label not in self._slow:
            self._looks = self._bytes = 0
            try:
                return work(self._quick)
            except apsw.InterruptError:
                self._slow.add(label)
            except Busy:
                pass
            except READING as exc:
                raise translate(exc, self._path) from exc
            finally:
                self._looks = -(10**9)
                _end_transaction(self._quick)
        return await self._in_thread(work, deadline)

    async def aside(self, work: Work[T], deadline: float | None = None) -> T:
        """Run `work` in a thread."""
        if self._closed:
            raise _closed()
        return await self._in_thread(work, deadline)

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        for _ in self._threads:
            self._queue.put(None)
        for thread in self._threads:
            await asyncio.to_thread(thread.join)
        if self._quick is not None:
            self._quick.close()

    def lacks(self, collection: str) -> bool:
        """Whether there is no such collection, if that can be told on the event loop.

        SQLite counts changes to tables, by whomever: names are read again only after one.
        """
        if self._quick is None or self._closed:
            return False
        try:
            version = self._quick.pragma("schema_version")
            if version != self._schema_version:
                rows = self._quick.execute("SELECT name FROM perdure_collections")
                self._collections = {name for (name,) in rows}
                self._schema_version = version
        except apsw.Error:
            return False
        return collection not in self._collections

    def may_wait(self, db: apsw.Connection) -> bool:
        """Whether work on this connection may block; else it raises `Busy` instead."""
        return db is not self._quick

    def left(self, db: apsw.Connection) -> int:
        """How many bytes of values this read may still take where it runs."""
        return BYTES - self._bytes if db is self._quick else _ENDLESS

    def taken(self, db: apsw.Connection, size: int) -> None:
        """Note the bytes of a read; one with too many runs again in a thread."""
        if db is self._quick:
            self._bytes += size
            if self._bytes > BYTES:
                raise apsw.InterruptError("too much for the event loop")

    def _look(self) -> bool:
        """Whether to stop: called by SQLite while it works."""
        self._looks += 1
        return self._looks > LOOKS

    async def _in_thread(self, work: Work[T], deadline: float | None) -> T:
        if not self._idle and len(self._threads) < THREADS:
            thread = threading.Thread(target=self._serve, name="perdure-reader", daemon=True)
            self._threads.append(thread)
            thread.start()
        future: asyncio.Future[T] = self._loop.create_future()
        running: list[apsw.Connection] = []
        self._idle -= 1
        self._queue.put((work, future, running))
        try:
            async with asyncio.timeout(deadline):
                return await future
        except TimeoutError as exc:
            raise DeadlineExceeded(
                "The read did not end in the time allowed.",
                hint="Allow more time, or ask for less.",
            ) from exc
        finally:
            with self._stopping:
                if running:  # it is ours until the thread takes it off
                    running[0].interrupt()

    def _serve(self) -> None:
        db: apsw.Connection | None = None
        self._loop.call_soon_threadsafe(self._became_idle)
        try:
            while (item := self._queue.get()) is not None:
                work, future, running = item
                if future.done():
                    self._loop.call_soon_threadsafe(self._became_idle)
                    continue
                outcome: Any = None
                error: Exception | None = None
                try:
                    if db is None:
                        db = self._connect()
                    running.append(db)
                    outcome = work(db)
                except READING as exc:
                    error = translate(exc, self._path)
                    error.__cause__ = exc
                except Exception as exc:  # noqa: BLE001  # it belongs to the one who awaits
                    error = exc
                with self._stopping:
                    running.clear()
                if db is not None:
                    _end_transaction(db)
                self._loop.call_soon_threadsafe(self._finish, future, outcome, error)
        finally:
            if db is not None:
                db.close()

    def _became_idle(self) -> None:
        self._idle += 1

    def _finish(self, future: asyncio.Future[Any], outcome: Any, error: Exception | None) -> None:
        self._became_idle()
        if future.done():
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(outcome)


def _closed() -> Closed:
    return Closed("This bank is closed.", hint="Open it again with perdure.open(…).")


def _end_transaction(db: apsw.Connection) -> None:
    """A read may have been stopped while it ended its transaction: the next one would see the
    past.
    """
    if db.in_transaction:
        db.execute("ROLLBACK")

"""The same without `await`: a thin bridge to an event loop in a thread of its own.

There is one loop thread per process, shared by all banks opened this way. Objects that have async
methods are handed out wrapped: calling a method runs it on that loop and waits. Values come as they
are. Nothing is written twice: the async classes are the only implementation.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import os
import threading
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, TypeVar

from perdure.bank import Bank
from perdure.core.errors import Conflict, InvalidInput
from perdure.storage.concurrency import ATTEMPTS, back_off

R = TypeVar("R")


class _LoopThread:
    """The process's one event loop for synchronous callers, started when it is first needed."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        os.register_at_fork(after_in_child=self._forget)

    def get(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                threading.Thread(
                    target=self._loop.run_forever, name="perdure-loop", daemon=True
                ).start()
            return self._loop

    def _forget(self) -> None:
        # Threads do not survive a fork: the child starts its own when it needs one.
        self._lock = threading.Lock()
        self._loop = None


_thread = _LoopThread()


def open_sync(url: str | None = None, **settings: Any) -> SyncBank:
    """The bank at a URL, to be used in a plain ``with``. Takes what `perdure.open` takes.

    Raises `InvalidInput` inside a running event loop, which it would block.
    """
    return SyncBank(made_on_loop(lambda: Bank(url, **settings)))


def sync_loop() -> asyncio.AbstractEventLoop:
    """The loop on which everything lives that is opened without `await`."""
    return _thread.get()


def made_on_loop(make: Callable[[], R]) -> R:
    """What `make` gives on the loop's thread. Raises `InvalidInput` inside a running event loop."""

    async def made() -> R:
        return make()

    return _run(made())


class Bridge:
    """Stands for an async object; its methods wait instead of being awaited."""

    def __init__(self, target: Any) -> None:
        self._target = target

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._target, name)
        if inspect.isroutine(value):
            return functools.wraps(value)(functools.partial(_call, value))
        return _bridged(value)

    def __dir__(self) -> list[str]:
        """Also what the object that it stands for has, so that completion offers it."""
        public = (name for name in dir(self._target) if not name.startswith("_"))
        return sorted({*super().__dir__(), *public})

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return _call(self._target, *args, **kwargs)

    def __enter__(self) -> Any:
        entered = _run(self._target.__aenter__())
        return self if entered is self._target else _bridged(entered)

    def __exit__(self, *exc: object) -> bool | None:
        left: bool | None = _run(self._target.__aexit__(*exc))
        return left

    def __iter__(self) -> Iterator[Any]:
        return _iterate(aiter(self._target))

    def __repr__(self) -> str:
        return f"<sync {self._target!r}>"


class SyncBank(Bridge):
    """A `Bank` without `await`."""

    def transact(self, body: Callable[[Any], R], *options: Any) -> R:
        """`Bank.transact` with a plain function, which runs in the calling thread."""
        for attempt in range(ATTEMPTS):
            try:
                with self.transaction(*options) as transaction:
                    return body(transaction)
            except Conflict:
                if attempt == ATTEMPTS - 1:
                    raise
                _run(back_off(attempt))
        raise AssertionError("unreachable")


def _call(method: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call on the loop's thread and wait for whatever comes out."""

    async def call() -> Any:
        result = method(*args, **kwargs)
        return await result if inspect.isawaitable(result) else result

    return _bridged(_run(call()))


def _bridged(value: Any) -> Any:
    """Something with async methods, wrapped; anything else as it is."""
    if hasattr(value, "__anext__") and not hasattr(value, "__aenter__"):
        return _iterate(value)
    if type(value).__module__.startswith("perdure.") and _has_async(type(value)):
        return Bridge(value)
    if hasattr(value, "__aenter__") and not hasattr(value, "__enter__"):
        return Bridge(value)
    return value


@functools.cache
def _has_async(cls: type) -> bool:
    return any(
        inspect.iscoroutinefunction(member) or inspect.isasyncgenfunction(member)
        for base in cls.__mro__
        for name, member in vars(base).items()
        if not name.startswith("_")
    )


def _iterate(source: Any) -> Iterator[Any]:
    async def step() -> tuple[bool, Any]:
        try:
            return True, await source.__anext__()
        except StopAsyncIteration:
            return False, None

    try:
        while (found := _run(step()))[0]:
            yield _bridged(found[1])
    finally:
        if hasattr(source, "aclose"):
            _run(source.aclose())


def _run(work: Coroutine[Any, Any, R]) -> R:
    try:
        _refuse_in_loop()
    except InvalidInput:
        work.close()
        raise
    future = asyncio.run_coroutine_threadsafe(work, _thread.get())
    try:
        return future.result()
    finally:
        future.cancel()  # does nothing unless we were interrupted while waiting


def _refuse_in_loop() -> None:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise InvalidInput(
        "The synchronous bank cannot be used inside a running event loop: it would block it.",
        hint="Use `async with perdure.open(…)` here.",
    )

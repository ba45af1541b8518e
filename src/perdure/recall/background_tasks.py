"""Work that is not waited for any longer than it may take.

A thread that loads a model, a store that hangs, a model that sleeps: none of them ends because
somebody cancels it. Here such work is told to end and left alone; whoever waited goes on at once.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from perdure.core.errors import PerdureError

if TYPE_CHECKING:
    from perdure.recall.embedders import Embedder

T = TypeVar("T")

#: Seconds for work to put its things away when all is closed.
_PATIENCE = 2.0

_log = logging.getLogger(__name__)


class Underway:
    """Tasks that were begun and have not ended. For one event loop."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()

    def __len__(self) -> int:
        return len(self._tasks)

    def begin(self, work: Coroutine[Any, Any, T], *, awaited: bool = False) -> asyncio.Task[T]:
        """A task that is kept until it ends, whether or not anybody waits for it.

        If nobody asks for its result (`awaited`), a mistake in it is logged.
        """
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(_looked_at if awaited else _logged)
        return task

    async def within(self, work: Coroutine[Any, Any, T], seconds: float) -> T:
        """What `work` returns or raises.

        Raises `TimeoutError` if that takes longer than `seconds`: the work is cancelled then, and
        not waited for. So it is if the caller is cancelled.
        """
        task = self.begin(work, awaited=True)
        try:
            await asyncio.wait({task}, timeout=max(seconds, 0.0))
        finally:
            if not task.done():
                task.cancel()
        if not task.done():
            raise TimeoutError
        return task.result()

    async def close(self) -> None:
        """Cancel everything, and wait a moment for it to end."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(set(self._tasks), timeout=_PATIENCE)


def _looked_at(task: asyncio.Task[Any]) -> BaseException | None:
    """What a task failed with: asked for, nobody is warned of an error that came too late."""
    return None if task.cancelled() else task.exception()


def _logged(task: asyncio.Task[Any]) -> None:
    error = _looked_at(task)
    if error is not None and not isinstance(error, PerdureError | TimeoutError):
        _log.warning("What recall did beside others failed.", exc_info=error)


#: Texts whose vectors are kept until somebody asks for them, or asks again.
_MOST = 64


class Ahead:
    """An `Embedder` around another one. For one event loop."""

    def __init__(self, embedder: Embedder) -> None:
        self._embedder = embedder
        self._underway = Underway()
        self._begun: dict[str, asyncio.Task[list[bytes]]] = {}

    @property
    def name(self) -> str:
        return self._embedder.name

    @property
    def is_quick(self) -> bool:
        return self._embedder.is_quick

    def expect(self, text: str) -> None:
        """Begin to embed a text that will be asked for soon. Whoever does not ask loses nothing."""
        if text in self._begun:
            return
        if len(self._begun) >= _MOST:
            del self._begun[next(iter(self._begun))]
        task = self._begun[text] = self._underway.begin(self._embedder.embed([text]), awaited=True)

        def ended(_: object) -> None:
            if (task.cancelled() or task.exception()) and self._begun.get(text) is task:
                del self._begun[text]

        task.add_done_callback(ended)

    async def embed(self, texts: Sequence[str]) -> list[bytes]:
        """As the embedder does; what is being embedded is waited for, and what was is not again.

        Who is cancelled meanwhile does not end it: a model that is being loaded for the first
        question is there for the second.
        """
        task = self._begun.get(texts[0]) if len(texts) == 1 else None
        if task is None:
            return await self._embedder.embed(texts)
        return await asyncio.shield(task)

    async def close(self) -> None:
        """End what is under way."""
        await self._underway.close()

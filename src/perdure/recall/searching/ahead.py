"""An embedder that begins before it is asked: what a question means is found out while its words
are being looked for.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING

from perdure.recall.underway import Underway

if TYPE_CHECKING:
    from perdure.recall.embedders import Embedder

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

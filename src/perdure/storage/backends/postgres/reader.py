"""Reading: any connection will do, and a lost one is replaced."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

from perdure.core.errors import DeadlineExceeded
from perdure.storage.backends.postgres.address import Server
from perdure.storage.backends.postgres.errors import translated
from perdure.storage.backends.postgres.links import Connection, Link, Links

T = TypeVar("T")


class Reader:
    """Runs statements that change nothing, so that they may run twice."""

    def __init__(self, links: Links, server: Server) -> None:
        self._links = links
        self._server = server

    async def fetch(
        self, text: str, params: Sequence[Any] = (), deadline: float | None = None
    ) -> list[tuple[Any, ...]]:
        """The rows of one statement."""

        async def work(conn: Connection) -> list[tuple[Any, ...]]:
            cursor = await conn.execute(text, params, binary=True)
            return await cursor.fetchall()

        return await self.run(work, deadline)

    async def run(
        self, work: Callable[[Connection], Awaitable[T]], deadline: float | None = None
    ) -> T:
        """What `work` returns.

        Cancelled or out of time, psycopg asks the server to stop the statement.
        """

        async def attempt(link: Link) -> T:
            return await work(link.conn)

        with translated(self._server):
            try:
                async with asyncio.timeout(deadline):
                    return await self._links.patiently(attempt)
            except TimeoutError as exc:
                raise DeadlineExceeded(
                    "The read did not end in the time allowed.",
                    hint="Allow more time, or ask for less.",
                ) from exc

"""Connections, and retries.

A pool of our own: the client's repeats commands on its own account, and gives up at once when the
server is away. Here a call that may run twice is repeated for `PATIENCE` seconds, and a write as
`writer` says.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from valkey import exceptions as vk
from valkey.asyncio.connection import Connection, SSLConnection

from perdure.core.errors import (
    AccessDenied,
    Closed,
    DeadlineExceeded,
    NotAStore,
    PerdureError,
    StorageError,
    StorageFull,
    Unavailable,
)
from perdure.storage.backends.valkey.address import ValkeyServer
from perdure.storage.backends.valkey.scripts import Script

T = TypeVar("T")

#: Seconds a call waits for a server that has gone away, without a deadline.
PATIENCE = 30.0
#: Seconds within which a connection must be made.
_CONNECT = 5.0
#: Bytes a second that any connection must manage, beyond its patience.
_SLOWEST = 1_000_000


class ValkeyLink:
    """A connection. Nobody else has it while it is used."""

    def __init__(self, server: ValkeyServer) -> None:
        options: dict[str, Any] = {
            "host": server.host,
            "port": server.port,
            "db": server.database,
            "username": server.username,
            "password": server.password,
            "socket_timeout": None,
            "socket_connect_timeout": _CONNECT,
            "socket_keepalive": True,
            "client_name": "perdure",
        }
        if server.tls:
            options |= {"ssl_ca_certs": server.authority, "ssl_check_hostname": True}
        # Its methods have no types.
        self._conn: Any = (SSLConnection if server.tls else Connection)(**options)

    @property
    def is_open(self) -> bool:
        """Whether the server has not closed it, as far as is known."""
        return self._conn.is_connected and not self._conn._reader.at_eof()  # noqa: SLF001

    async def connect(self) -> None:
        try:
            async with asyncio.timeout(_CONNECT):
                await self._conn.connect()
        except TimeoutError as exc:
            await self.close()
            raise vk.TimeoutError("the server does not answer") from exc
        except BaseException:
            await self.close()
            raise

    async def call(self, *command: bytes | str | int) -> Any:
        """The server's answer to one command. Interrupted, the connection is closed."""
        packed = self._conn.pack_command(*command)
        patience = PATIENCE + sum(map(len, packed)) / _SLOWEST
        try:
            async with asyncio.timeout(patience):
                await self._conn.send_packed_command(packed)
                return await self._conn.read_response()
        except TimeoutError as exc:
            await self.close()
            raise vk.TimeoutError("the server does not answer") from exc
        except asyncio.CancelledError:
            await self.close()
            raise

    async def run(self, script: Script, keys: Sequence[bytes], args: Sequence[bytes | int]) -> Any:
        """What a script returns; loads it into the server if needed."""
        command = (b"EVALSHA", script.sha, len(keys), *keys, *args)
        try:
            return await self.call(*command)
        except vk.NoScriptError:
            await self.call(b"SCRIPT", b"LOAD", script.text)
            return await self.call(*command)

    async def close(self) -> None:
        await self._conn.disconnect(nowait=True)


class ValkeyPool:
    """Up to `ValkeyServer.pool` connections, made when needed. Used from one event loop."""

    def __init__(self, server: ValkeyServer) -> None:
        self.server = server
        self._idle: list[ValkeyLink] = []
        self._free = asyncio.Semaphore(server.pool)
        self._closed = False

    @contextlib.asynccontextmanager
    async def one(self) -> AsyncIterator[ValkeyLink]:
        """A connection that nobody else has meanwhile."""
        async with self._free:
            if self._closed:
                raise Closed("This store is closed.", hint="Open it again.")
            link = self._idle.pop() if self._idle else ValkeyLink(self.server)
            if not link.is_open:
                await link.close()
                await link.connect()
            try:
                yield link
            except BaseException as exc:
                if is_lost(exc):
                    await link.close()
                    await self._distrust()
                raise
            finally:
                if link.is_open and not self._closed:
                    self._idle.append(link)
                else:
                    await link.close()

    async def read(
        self, work: Callable[[ValkeyLink], Awaitable[T]], deadline: float | None = None
    ) -> T:
        """Run `work`, which changes nothing and may run again. Raises `DeadlineExceeded`, or
        after `PATIENCE` without a server `Unavailable`.
        """
        with translated(self.server):
            try:
                async with asyncio.timeout(deadline):
                    return await self.patiently(work)
            except TimeoutError as exc:
                raise DeadlineExceeded(
                    "The read did not end in the time allowed.",
                    hint="Allow more time, or ask for less.",
                ) from exc

    async def patiently(self, work: Callable[[ValkeyLink], Awaitable[T]]) -> T:
        """Run `work`, repeated while the server is away or not ready."""
        pauses = Pauses()
        while True:
            try:
                async with self.one() as link:
                    return await work(link)
            except (vk.ValkeyError, OSError) as exc:
                if not (is_lost(exc) or is_busy(exc)) or pauses.are_over:
                    raise
            await pauses.next()

    async def once_ready(self, work: Callable[[ValkeyLink], Awaitable[T]]) -> T:
        """Run `work`; waits for a server that is loading, but not for one that is away."""
        pauses = Pauses()
        while True:
            try:
                async with self.one() as link:
                    return await work(link)
            except vk.ValkeyError as exc:
                if not is_busy(exc) or pauses.are_over:
                    raise
            await pauses.next()

    async def close(self) -> None:
        if self._closed:
            return
        for _ in range(self.server.pool):
            await self._free.acquire()
        self._closed = True
        await self._distrust()
        for _ in range(self.server.pool):
            self._free.release()

    async def _distrust(self) -> None:
        """One connection broke, so the idle ones probably did, too."""
        idle, self._idle = self._idle, []
        for link in idle:
            await link.close()


class Pauses:
    """Growing pauses between attempts, for `PATIENCE` seconds in all."""

    def __init__(self) -> None:
        self._until = time.monotonic() + PATIENCE
        self._pause = 0.01

    @property
    def are_over(self) -> bool:
        return time.monotonic() + self._pause > self._until

    async def next(self) -> None:
        await asyncio.sleep(self._pause * random.uniform(0.5, 1.0))  # noqa: S311 (no secret)
        self._pause = min(self._pause * 2, 0.5)


_DENIED = (vk.AuthenticationError, vk.AuthorizationError, vk.NoPermissionError)
#: What a server says that will answer soon: it has done nothing yet.
_SOON = ("BUSY ", "TRYAGAIN ", "MASTERDOWN ", "CLUSTERDOWN ")
#: What a server says that cannot keep what it is given.
_CANNOT_KEEP = ("MISCONF ", "NOREPLICAS ")


def is_lost(exc: BaseException) -> bool:
    """Whether the connection is lost or failed, and another attempt may succeed."""
    if isinstance(exc, vk.AuthenticationError | vk.AuthorizationError | vk.BusyLoadingError):
        return False
    return isinstance(exc, vk.ConnectionError | vk.TimeoutError | vk.InvalidResponse | OSError)


def is_busy(exc: BaseException) -> bool:
    """Whether the server is there but not ready; it has not done what it was asked for."""
    if isinstance(exc, vk.BusyLoadingError):
        return True
    return isinstance(exc, vk.ResponseError) and str(exc).startswith(_SOON)


@contextmanager
def translated(server: ValkeyServer) -> Iterator[None]:
    """Turns the client's errors into Perdure's."""
    try:
        yield
    except (vk.ValkeyError, OSError) as exc:
        raise translate(exc, server) from exc


def translate(exc: BaseException, server: ValkeyServer) -> PerdureError:
    where, said = server.label, server.scrub(_said(exc))
    if isinstance(exc, _DENIED) or said.startswith("ACL failure"):
        return AccessDenied(
            f"The server refuses access to {where}: {said}.",
            hint="Check user and password; the user needs the commands of strings, hashes, sorted"
            f" sets and scripts, and INFO, on keys that begin with {server.prefix}:.",
        )
    if isinstance(exc, vk.ReadOnlyError) or "READONLY" in said:
        return Unavailable(
            f"{where} is a replica, which cannot be written to.",
            hint="Use the address of the primary server.",
        )
    if isinstance(exc, vk.OutOfMemoryError) or "OOM command" in said:
        return StorageFull(
            f"The server of {where} has reached its maxmemory; nothing was written.",
            hint="Delete records, give the server more memory, or let records expire.",
        )
    if isinstance(exc, vk.ResponseError) and said.startswith(_CANNOT_KEEP):
        return Unavailable(
            f"The server of {where} accepts no writes: {said}.",
            hint="Look at the server's disk, log and replicas.",
        )
    if "WRONGTYPE" in said:
        return NotAStore(
            f"Keys of {where} hold something that is not Perdure's.",
            hint="Use another prefix: ?prefix=….",
        )
    if is_lost(exc) or is_busy(exc):
        return Unavailable(
            f"The store {where} cannot be reached: {said}.",
            hint="Check that the server runs and that host and port are right.",
        )
    return StorageError(f"Valkey failed on {where}: {said}.", hint="The server's log may say more.")


def _said(exc: BaseException) -> str:
    lines = str(exc).strip().splitlines() or [type(exc).__name__]
    return lines[0].strip().rstrip(".")

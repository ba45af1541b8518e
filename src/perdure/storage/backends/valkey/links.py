"""Connections to a Valkey or Redis server, and what its errors mean."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar

from valkey import exceptions as vk
from valkey.asyncio.connection import Connection, SSLConnection

from perdure.core.errors import (
    AccessDenied,
    NotAStore,
    PerdureError,
    StorageError,
    StorageFull,
    Unavailable,
)
from perdure.storage.backends import server_pool
from perdure.storage.backends.server_pool import ServerPool
from perdure.storage.backends.valkey.address import ValkeyServer
from perdure.storage.backends.valkey.scripts import Script

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
    def is_ready(self) -> bool:
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
        patience = server_pool.PATIENCE + sum(map(len, packed)) / _SLOWEST
        try:
            async with asyncio.timeout(patience):
                await self._conn.send_packed_command(packed)
                return await self._conn.read_response()
        except TimeoutError as exc:
            await self.close()
            raise vk.TimeoutError("the server does not answer") from exc
        except BaseException as exc:
            if is_lost(exc) or isinstance(exc, asyncio.CancelledError):
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


class ValkeyPool(ServerPool[ValkeyLink]):
    """Connections to the server of a store."""

    errors: ClassVar[tuple[type[Exception], ...]] = (vk.ValkeyError, OSError)

    def __init__(self, server: ValkeyServer) -> None:
        super().__init__(server.pool)
        self.server = server

    async def connect(self) -> ValkeyLink:
        link = ValkeyLink(self.server)
        await link.connect()
        return link

    def is_lost(self, exc: BaseException) -> bool:
        return is_lost(exc)

    def is_passing(self, exc: BaseException) -> bool:
        return is_busy(exc)

    @contextmanager
    def translated(self) -> Iterator[None]:
        try:
            yield
        except (vk.ValkeyError, OSError) as exc:
            raise translate(exc, self.server) from exc


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

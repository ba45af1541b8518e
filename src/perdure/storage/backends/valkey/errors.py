"""Errors of Valkey as errors of Perdure."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from valkey import exceptions as vk

from perdure.core.errors import (
    AccessDenied,
    NotAStore,
    PerdureError,
    StorageError,
    StorageFull,
    Unavailable,
)
from perdure.storage.backends.valkey.address import Server

_DENIED = (vk.AuthenticationError, vk.AuthorizationError, vk.NoPermissionError)
#: What a server says that will answer soon: it has done nothing yet.
_SOON = ("BUSY ", "TRYAGAIN ", "MASTERDOWN ", "CLUSTERDOWN ")
#: What a server says that cannot keep what it is given.
_CANNOT_KEEP = ("MISCONF ", "NOREPLICAS ")


def is_lost(exc: BaseException) -> bool:
    """Whether the connection is gone or could not be made, and another attempt may succeed."""
    if isinstance(exc, vk.AuthenticationError | vk.AuthorizationError | vk.BusyLoadingError):
        return False
    return isinstance(exc, vk.ConnectionError | vk.TimeoutError | vk.InvalidResponse | OSError)


def is_busy(exc: BaseException) -> bool:
    """Whether the server is there but not ready; it has not done what it was asked for."""
    if isinstance(exc, vk.BusyLoadingError):
        return True
    return isinstance(exc, vk.ResponseError) and str(exc).startswith(_SOON)


@contextmanager
def translated(server: Server) -> Iterator[None]:
    """Turns whatever the client raises inside into an error that says what to do."""
    try:
        yield
    except (vk.ValkeyError, OSError) as exc:
        raise translate(exc, server) from exc


def translate(exc: BaseException, server: Server) -> PerdureError:
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
    """What the server or the client said, in one line without a full stop."""
    lines = str(exc).strip().splitlines() or [type(exc).__name__]
    return lines[0].strip().rstrip(".")

"""Errors of PostgreSQL as errors of Perdure."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
from psycopg import errors as pg

from perdure.core.errors import (
    AccessDenied,
    Corrupted,
    DeadlineExceeded,
    InvalidQuery,
    InvalidValue,
    NotAStore,
    PerdureError,
    StorageError,
    StorageFull,
    Unavailable,
)
from perdure.storage.backends.postgres.address import PostgresServer

#: What reading a damaged page, index or value can raise.
DAMAGE = (pg.DataCorrupted, pg.IndexCorrupted, pg.InternalError_, psycopg.DataError, UnicodeError)
#: SQLSTATEs of a server that is going away, coming up or full: the next connection may do.
_GONE = frozenset({"57P01", "57P02", "57P03", "57P05", "25P03", "53300"})
_STARTING = ("starting up", "shutting down", "recovery", "not yet accepting")
#: libpq reports a refused login without a SQLSTATE; these are the server's English words.
_DENIED = (
    "authentication failed",
    "no pg_hba.conf entry",
    "pg_hba.conf rejects",
    "no password supplied",
    "not permitted to log in",
    "permission denied",
)
#: "connection failed: connection to server at … failed: FATAL:  "
_PREAMBLE = re.compile(r"^(connection failed: )?(connection to server .* failed: )?(FATAL: +)?")


class Interfered(Exception):
    """Somebody else was in the way at a bad moment: the transaction can simply be run again."""


#: What a connection raises.
ERRORS = (psycopg.Error, Interfered, UnicodeError, OverflowError)


def is_lost(exc: BaseException) -> bool:
    """Whether the connection is lost or failed, and another attempt may succeed."""
    if not isinstance(exc, psycopg.OperationalError | psycopg.InterfaceError):
        return False
    if exc.sqlstate is not None:
        return exc.sqlstate in _GONE or exc.sqlstate.startswith("08")
    return not _is_refusal(str(exc))


def is_starting(exc: BaseException) -> bool:
    return isinstance(exc, psycopg.OperationalError) and any(
        words in str(exc) for words in _STARTING
    )


def is_interference(exc: BaseException) -> bool:
    """Whether the transaction failed only because others ran at the same time."""
    if isinstance(exc, pg.FeatureNotSupported):
        return "cached plan" in str(exc)  # a column changed its type under a prepared statement
    # The last is for a table that is to be changed, and that somebody has been reading for long.
    return isinstance(
        exc, Interfered | pg.SerializationFailure | pg.DeadlockDetected | pg.LockNotAvailable
    )


@contextmanager
def translated(server: PostgresServer) -> Iterator[None]:
    """Turns psycopg's errors into Perdure's."""
    try:
        yield
    except ERRORS as exc:
        raise translate(exc, server) from exc


def translate(exc: BaseException, server: PostgresServer) -> PerdureError:
    where, said = server.label, server.scrub(_said(exc))
    match exc:
        case UnicodeError() | OverflowError():
            return InvalidValue(
                f"PostgreSQL cannot hold this text or number: {said}.", hint="Change the value."
            )
        case Interfered() | pg.SerializationFailure() | pg.DeadlockDetected():
            return Unavailable(
                f"Others kept writing the same records in {where}; nothing was written.",
                hint="Try again.",
            )
        case pg.LockNotAvailable():
            return Unavailable(
                f"A table of the bank {where} cannot be changed while somebody reads it for long.",
                hint="Try again when that has ended; it may be a backup.",
            )
        case psycopg.Error() if _is_full(exc):
            return StorageFull(
                f"There is no room left for the bank {where}; nothing was written.",
                hint="Free some disk space on the server and repeat the call.",
            )
        case pg.DataCorrupted() | pg.IndexCorrupted():
            return Corrupted(
                f"The bank {where} is damaged: {said}.",
                hint="Run `perdure verify` to see which records; restore them from a backup.",
            )
        case pg.InsufficientPrivilege() | pg.ReadOnlySqlTransaction():
            return AccessDenied(
                f"The bank {where} may not be used like this: {said}.",
                hint="Use a role that may create, read and write in it, on the primary server.",
            )
        case pg.QueryCanceled():
            return DeadlineExceeded(
                f"The server of {where} stopped the statement: {said}.",
                hint="Allow more time; the server's statement_timeout may be too short.",
            )
        case pg.UndefinedTable() | pg.UndefinedColumn() | pg.InvalidSchemaName():
            return NotAStore(
                f"Tables of the bank {where} are missing or were changed: {said}.",
                hint="Restore them from a backup, or open another database.",
            )
        case pg.UndefinedFunction() | pg.AmbiguousFunction():
            return InvalidQuery(
                f"A value does not fit the column it is compared with: {said}.",
                hint="Compare text with text and numbers with numbers.",
            )
        case psycopg.DataError() | pg.DatatypeMismatch():
            return InvalidValue(
                f"PostgreSQL cannot take a value: {said}.", hint="Check its type and size."
            )
        case psycopg.OperationalError() | psycopg.InterfaceError():
            return _unreachable(exc, where, said)
        case _:
            return StorageError(
                f"PostgreSQL failed on {where}: {said}.",
                hint="Run `perdure doctor`; the server's log says more.",
            )


def _is_full(exc: psycopg.Error) -> bool:
    """Whether there is no room; PostgreSQL has no SQLSTATE for quotas and limits on file sizes."""
    return isinstance(exc, pg.DiskFull) or "could not extend file" in str(exc)


def _unreachable(exc: psycopg.Error, where: str, said: str) -> PerdureError:
    if (exc.sqlstate or "").startswith("28") or any(words in said for words in _DENIED):
        return AccessDenied(
            f"The server refuses the login to {where}: {said}.",
            hint="Check user, password and the server's pg_hba.conf.",
        )
    if _is_refusal(said):
        return Unavailable(
            f"The bank {where} cannot be opened: {said}.",
            hint="Make the database or role first, with createdb or createuser.",
        )
    return Unavailable(
        f"The bank {where} cannot be reached: {said}.",
        hint="Check that the server runs and that host and port are right.",
    )


def _is_refusal(text: str) -> bool:
    return "does not exist" in text or any(words in text for words in _DENIED)


def _said(exc: BaseException) -> str:
    if isinstance(exc, psycopg.Error) and exc.diag.message_primary:
        return exc.diag.message_primary
    lines = str(exc).strip().splitlines() or [type(exc).__name__]
    # The first line names the host, which our message does already, and then the reason.
    return _PREAMBLE.sub("", lines[0]).strip().rstrip(".?")

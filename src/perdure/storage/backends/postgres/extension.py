"""What takes part in the transactions of a PostgreSQL bank; see `perdure.storage.extension`.

A pipeline does not tell which statement failed. So a failed transaction with an extension in it
is run once more without: `Participant` gets the reason and notes that it lacks something. If the
extension was not at fault, the transaction fails again, and nothing is noted.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import psycopg
from psycopg import errors as pg

from perdure.storage.backends.postgres.errors import is_interference, is_lost
from perdure.storage.backends.postgres.links import Connection
from perdure.storage.extension import Extension, ExtensionChange


class LeftOut(Exception):
    """Run the transaction again: without extensions, if there is a reason; else, with them."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class Participant(Protocol):
    """What an extension does in one transaction."""

    async def send(self, conn: Connection) -> None: ...

    async def receive(self, conn: Connection) -> None:
        """Await the results. Raises `LeftOut` to have the transaction run again."""


class PostgresExtension(Extension):
    """Called by the adapter that it is attached to."""

    @abstractmethod
    def take_part(self, changes: Sequence[Any], left_out: str) -> Sequence[Participant]:
        """The participant for the changes; with a reason to leave them out, it notes that."""

    @abstractmethod
    def give_up(self, changes: Sequence[Any], reason: str) -> None:
        """The transaction was committed without these changes."""

    @abstractmethod
    async def scrub(self, conn: Connection) -> None:
        """Make unreadable what was deleted. Not in a transaction."""

    @abstractmethod
    async def clear(self, conn: Connection) -> None:
        """Remove everything: the store is about to hold other rows. In a transaction."""


@contextmanager
def suspected(changes: Sequence[ExtensionChange]) -> Iterator[None]:
    """Raises `LeftOut` for errors that a changed extension may have caused."""
    try:
        yield
    except psycopg.Error as exc:
        if not changes or is_lost(exc) or is_interference(exc) or isinstance(exc, pg.QueryCanceled):
            raise
        raise LeftOut(exc.diag.message_primary or type(exc).__name__) from exc

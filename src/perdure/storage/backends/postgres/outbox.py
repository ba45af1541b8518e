"""Events in order, though their ids become visible out of order.

Ids come from a sequence, so an id may be committed after a higher one was seen. An event also has
its transaction id, and PostgreSQL tells below which id all transactions are finished, the
*horizon*. Readers go by transaction id, then event id, up to the horizon: nothing is ever added
below it, so nothing is missed.

The order holds per key because a transaction locks the keys of its events *before* it gets its
id, until it has committed. See `locks`.

A position is ``era:transaction:event`` of an event that was read, whose commit is on disk. The
horizon would not do: ids up to it can be given out again after a crash. The era changes when the
bank moves to another server or is loaded from a snapshot; older positions, and those of other
backends, start over then.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import TypeAlias

from perdure.core.errors import InvalidInput
from perdure.storage.backends.postgres.address import lock_space
from perdure.storage.backends.postgres.links import Connection
from perdure.storage.rows import Delivered, Event

#: (transaction, event)
_Place: TypeAlias = tuple[str, int]

#: Keys are spread over this many locks; two that share one merely wait for each other.
LOCKS = 256


class Outbox:
    """The events of a bank."""

    def __init__(self, schema: str, era: int) -> None:
        self._era = era
        table = f"{schema}.perdure_outbox"
        # Arrays as parameters: one statement, whatever the number of events.
        self._lock = (
            f"SELECT pg_advisory_xact_lock({lock_space(schema)}, lock::int)"
            " FROM unnest(%s::bigint[]) AS lock"
        )
        self._emit = (
            f"INSERT INTO {table}(topic, key, payload, at)"
            " SELECT topic, key, payload, %s FROM unnest(%s::text[], %s::text[], %s::bytea[])"
            " WITH ORDINALITY AS event(topic, key, payload, place) ORDER BY place RETURNING id"
        )
        # Without the alias, ORDER BY would take the text for the number.
        self._read = (
            f"SELECT id, topic, key, payload, at, xid::text AS transaction FROM {table}"
            " WHERE (xid, id) > (%s::text::xid8, %s)"
            " AND xid < pg_snapshot_xmin(pg_current_snapshot()) ORDER BY xid, id LIMIT %s"
        )
        self._trim = (
            f"WITH gone AS (DELETE FROM {table}"
            " WHERE (xid, id) <= (%s::text::xid8, %s) AND at < %s RETURNING id)"
            " SELECT count(*) FROM gone"
        )

    def locks(self, events: Sequence[Event]) -> tuple[str, list[list[int]]]:
        """The statement, with its parameters, that a transaction has to begin with."""
        locks = {zlib.crc32(event.key.encode()) % LOCKS + 1 for event in events}
        return self._lock, [sorted(locks)]

    async def emit(self, conn: Connection, events: Sequence[Event], moment: int) -> None:
        await conn.row(
            self._emit,
            (
                moment,
                [event.topic for event in events],
                [event.key for event in events],
                [event.payload for event in events],
            ),
        )

    async def read(
        self, conn: Connection, position: str, limit: int
    ) -> tuple[list[Delivered], str]:
        """Up to `limit` events after a position, and the position after them."""
        params = (*self._parse(position), limit)
        rows = await conn.rows(self._read, params, binary=True)
        if not rows:
            return [], position
        last = rows[-1]
        return [Delivered(*row[:5]) for row in rows], f"{self._era}:{last[5]}:{last[0]}"

    async def trim(self, conn: Connection, position: str, before: int) -> int:
        """Delete events that were passed and are older than `before`."""
        return await conn.value(self._trim, (*self._parse(position), before)) or 0

    def _parse(self, position: str) -> _Place:
        if not position or position.isdecimal():  # of SQLite
            return "0", 0
        try:
            era, transaction, event = (int(part) for part in position.split(":"))
        except ValueError as exc:
            raise InvalidInput(
                f"{position!r} is not a position in this outbox.",
                hint="Pass one that events() returned, or the empty one.",
            ) from exc
        return (str(transaction), event) if era == self._era else ("0", 0)

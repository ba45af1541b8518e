"""Batches as SQL: what happens inside one write transaction.

A transaction locks every key it names, in one order, until it has committed: rows by writing
them, checked rows with FOR SHARE, and keys that must stay absent by inserting a row and deleting
it again, which makes other inserters wait. So commits are serializable among each other without
ever failing because of it: a `Conflict` is always real, and commits do not deadlock.

(SERIALIZABLE would protect checks only against its own kind. Three commits, of which the one in
the middle just writes, could still form a circle.)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from perdure.core.clock import Clock
from perdure.core.errors import Conflict
from perdure.storage import tables
from perdure.storage.adapter import newer_schema, no_collection
from perdure.storage.backends.postgres.errors import Interfered
from perdure.storage.backends.postgres.extension import PostgresExtension, suspected
from perdure.storage.backends.postgres.links import Connection
from perdure.storage.backends.postgres.outbox import Outbox
from perdure.storage.extension import Extensions
from perdure.storage.rows import Batch, Check, Delete, Fill, Layout, Put, Recode


class _Statements:
    def __init__(self, schema: str, layout: Layout, marked: Sequence[str]) -> None:
        table = f'{schema}."{layout.name}"'
        self.layout = layout
        self.marks = [tables.mark_of(column) for column in marked]
        declared = [f'"{column.name}"' for column in layout.columns]
        always = ["_type", "_schema", "_updated", "_expires", "_checksum", "_tags"]
        names = ["_key", "_version", "_created", *always, *declared, *self.marks, "_value"]
        marks = ["%s::text[]" if name == "_tags" else "%s" for name in names]
        # A row that has expired but was not swept yet counts as absent: its successor starts anew.
        dead = "t._expires <= excluded._updated"
        version = f"CASE WHEN {dead} THEN 1 ELSE t._version + 1 END"
        created = f"CASE WHEN {dead} THEN excluded._created ELSE t._created END"
        new = {name: f"excluded.{name}" for name in [*always, *declared, "_value"]}
        new |= {name: tables.mark(layout.schema, created, version) for name in self.marks}
        assign = ", ".join(f"{name} = {value}" for name, value in new.items())
        self.put = (
            f"INSERT INTO {table} AS t ({', '.join(names)}) VALUES({', '.join(marks)})"
            " ON CONFLICT (_key) DO UPDATE"
            f" SET _version = {version}, _created = {created}, {assign}"
            " WHERE t._schema <= excluded._schema{expected} RETURNING _version, _created"
        )
        self.put_expected = self.put.format(
            expected=f" AND CASE WHEN {dead} THEN 0 ELSE t._version END = %s"
        )
        self.put = self.put.format(expected="")
        state = "_version, _created, _expires"
        self.state = f"SELECT {state}, _schema FROM {table} WHERE _key = %s"
        self.lock = f"SELECT {state} FROM {table} WHERE _key = %s FOR SHARE"
        self.delete = f"DELETE FROM {table} WHERE _key = %s RETURNING {state}"
        self.guard = (
            f"INSERT INTO {table}(_key, _version, _created, _type, _schema, _updated, _checksum,"
            " _value) VALUES(%s, 0, 0, '', 0, 0, 0, '') ON CONFLICT (_key) DO NOTHING"
        )
        self.unguard = f"DELETE FROM {table} WHERE _key = %s AND _version = 0"
        #: Sets the columns to what is given, and says that they are right.
        self.columns = ", ".join(
            [
                *(f"{name} = %s" for name in declared),
                *(f"{name} = {tables.mark(layout.schema)}" for name in self.marks),
            ]
        )
        # Several processes may fill at once: what one has filled, the others leave.
        lacking = " OR ".join(
            f"{name} IS DISTINCT FROM {tables.mark(layout.schema)}" for name in self.marks
        )
        self.fill = (
            f"UPDATE {table} SET {self.columns} WHERE _key = %s AND _version = %s AND _created = %s"
            f"{f' AND ({lacking})' if lacking else ''}"
        )


class _Touch:
    __slots__ = ("_cursor", "_guarded", "absent", "created", "found", "key", "schema", "write")

    def __init__(self, key: str) -> None:
        self.key = key
        self.write: Put | Delete | None = None
        #: A check says that nothing may be there.
        self.absent = False
        #: Version and creation time of the living row before the batch; 0 if there was none.
        self.found = 0
        self.created = 0
        #: Its schema, where that stood in the way.
        self.schema = 0

    async def send(
        self, conn: Connection, statements: _Statements, moment: int, *, alone: bool
    ) -> None:
        write, key = self.write, self.key
        self._guarded = False
        if isinstance(write, Put):
            params = (
                key,
                1,
                moment,
                write.content_type,
                write.schema,
                moment,
                write.expires,
                write.checksum,
                _tags(write.tags) if statements.layout.tagged else None,
                *write.columns,
                *[tables.first_mark(statements.layout.schema, moment)] * len(statements.marks),
                write.value,
            )
            if write.expected is None:
                text = statements.put
            else:
                text, params = statements.put_expected, (*params, write.expected)
            self._cursor = await conn.execute(text, params, prepare=True, binary=True)
            return
        # A row found absent must stay so until the commit, if anything else depends on it.
        if write is None:
            self._guarded = self.absent
        else:
            self._guarded = not alone and not write.expected
        if self._guarded:
            await conn.execute(statements.guard, (key,))
        text = statements.lock if write is None else statements.delete
        self._cursor = await conn.execute(text, (key,), binary=True)
        if self._guarded and write is None:
            await conn.execute(statements.unguard, (key,))

    async def receive(self, conn: Connection, statements: _Statements, moment: int) -> None:
        row = await self._cursor.fetchone()
        if isinstance(self.write, Put):
            if row is not None:
                self.found = row[0] - 1
                self.created = row[1] if self.found else 0
                return
            # The row did not suit; it is locked, so it can be looked at.
            row = await conn.row(statements.state, (self.key,), binary=True)
            if row is None:
                raise Interfered
            self.schema = row[3]
        elif row is None and self._guarded:
            raise Interfered  # it was there when we guarded, and gone when we looked
        if row is not None and (row[2] is None or row[2] > moment):
            self.found, self.created = row[0], row[1]


class PostgresApplier:
    """Applies batches inside a transaction that the writer began."""

    def __init__(
        self,
        schema: str,
        outbox: Outbox,
        extensions: Extensions[PostgresExtension],
        clock: Clock,
    ) -> None:
        self._schema = schema
        self._outbox = outbox
        self._extensions = extensions
        self._clock = clock
        self._statements: dict[str, _Statements] = {}

    def define(self, layout: Layout, marked: Sequence[str]) -> None:
        self._statements[layout.name] = _Statements(self._schema, layout, marked)

    async def apply(self, conn: Connection, batch: Batch, left_out: str = "") -> list[int]:
        """Check, write and emit. Raises, to be rolled back, if anything does not hold. With
        `left_out`, a reason, extensions note that instead. Raises `LeftOut` if an extension
        may be at fault.
        """
        with suspected(() if left_out else batch.changes):
            return await self._apply(conn, batch, left_out)

    async def _apply(self, conn: Connection, batch: Batch, left_out: str) -> list[int]:
        moment = self._clock()
        touches = self._touches(batch)
        alone = len(touches) == 1 and not batch.events and not batch.checks
        for (collection, _), touch in touches.items():
            await touch.send(conn, self._of(collection), moment, alone=alone)
        if batch.events:
            await self._outbox.emit(conn, batch.events, moment)
        participants = [
            participant
            for extension, changes in self._extensions.parts(batch.changes)
            for participant in extension.take_part(changes, left_out)
        ]
        for participant in participants:
            await participant.send(conn)
        await conn.settle()
        for (collection, _), touch in touches.items():
            await touch.receive(conn, self._of(collection), moment)
        for check in batch.checks:
            _check(check, touches[check.collection, check.key])
        versions = [_expect(write, touches[write.collection, write.key]) for write in batch.writes]
        for participant in participants:
            await participant.receive(conn)
        return versions

    async def fill(self, conn: Connection, collection: str, fills: Sequence[Fill]) -> None:
        text = self._of(collection).fill
        for fill in sorted(fills, key=lambda fill: fill.key):
            params = (*fill.columns, fill.key, fill.version, fill.created)
            await conn.execute(text, params, prepare=True, binary=True)

    async def recode(
        self, conn: Connection, collection: str, recodes: Sequence[Recode], checks: Sequence[Check]
    ) -> int:
        """Locks and writes in the order of commits, so that neither can block the other for
        good.
        """
        moment = self._clock()
        touches = self._touches(Batch(checks=tuple(checks)))
        for place, touch in touches.items():
            if place[0] < collection:
                await touch.send(conn, self._of(place[0]), moment, alone=False)
        cursors = []
        for recode in sorted(recodes, key=lambda recode: recode.row.key):
            columns = "" if recode.columns is None else self._of(collection).columns
            tagged = recode.tags is not None and self._of(collection).layout.tagged
            text = _recoding(f'{self._schema}."{collection}"', columns, tagged=tagged)
            params = _recoded(recode, tagged=tagged)
            cursors.append(await conn.execute(text, params, prepare=True, binary=True))
        for place, touch in touches.items():
            if place[0] >= collection:
                await touch.send(conn, self._of(place[0]), moment, alone=False)
        await conn.settle()
        for place, touch in touches.items():
            await touch.receive(conn, self._of(place[0]), moment)
        for check in checks:
            _check(check, touches[check.collection, check.key])
        return sum([await cursor.fetchone() is not None for cursor in cursors])

    def _of(self, collection: str) -> _Statements:
        try:
            return self._statements[collection]
        except KeyError:
            raise no_collection(collection) from None

    def _touches(self, batch: Batch) -> dict[tuple[str, str], _Touch]:
        """The keys of a batch in the global lock order."""
        found: dict[tuple[str, str], _Touch] = {}
        for check in batch.checks:
            place = (check.collection, check.key)
            touch = found.setdefault(place, _Touch(check.key))
            touch.absent = touch.absent or not check.version
        for write in batch.writes:
            found.setdefault((write.collection, write.key), _Touch(write.key)).write = write
        return dict(sorted(found.items()))


def _recoding(table: str, columns: str, *, tagged: bool) -> str:
    """Replaces the bytes and these columns of a row that is still as it was read; other tags."""
    given = f", {columns}" if columns else ""
    given += ", _tags = %s::text[]" if tagged else ""
    return (
        f"UPDATE {table} SET _value = %s, _type = %s, _checksum = %s, _schema = %s{given}"
        " WHERE _key = %s AND _version = %s AND _created = %s AND _checksum = %s AND _schema <= %s"
        " RETURNING 1"
    )


def _recoded(recode: Recode, *, tagged: bool) -> tuple[Any, ...]:
    row = recode.row
    schema = row.schema if recode.schema is None else recode.schema
    return (
        recode.value,
        recode.content_type,
        recode.checksum,
        schema,
        *(recode.columns or ()),
        *([_tags(recode.tags or ())] if tagged else []),
        row.key,
        row.version,
        row.created,
        row.checksum,
        schema,
    )


def _tags(tags: Sequence[tuple[str, str]]) -> list[str] | None:
    return sorted({f"{name}={value}" for name, value in tags}) or None


def _check(check: Check, touch: _Touch) -> None:
    if touch.found != check.version or (touch.found and touch.created != check.created):
        raise Conflict(check.collection, check.key, expected=check.version, found=touch.found)


def _expect(write: Put | Delete, touch: _Touch) -> int:
    """The new version of the row. Raises if the write is not allowed."""
    if write.expected is not None and touch.found != write.expected:
        raise Conflict(write.collection, write.key, expected=write.expected, found=touch.found)
    if isinstance(write, Delete):
        return 0
    if touch.schema > write.schema:
        raise newer_schema(write.collection, write.key, touch.schema, write.schema)
    return touch.found + 1

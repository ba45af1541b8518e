"""Batches as SQL: what happens inside one write transaction."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import apsw

from perdure.core.clock import Clock
from perdure.core.errors import Conflict
from perdure.storage import tables
from perdure.storage.adapter import newer_schema, no_collection
from perdure.storage.backends.sqlite.extension import SQLiteExtension
from perdure.storage.extension import Extensions
from perdure.storage.rows import Batch, Check, Delete, Fill, Layout, Put, Recode

T = TypeVar("T")

#: When rows were made, by collection and key.
_Births = Mapping[tuple[str, str], int]
_NO_BIRTHS: _Births = {}
_COLLECTION = operator.attrgetter("collection")
#: From so many rows on, inserting them in one go pays for its savepoint.
_MANY = 4
#: Checks that are remembered as true.
_MOST_TRUE = 32


class Interned:
    """A table of texts and their ids, cached. Ids never change, so the cache never goes stale.
    Call `forget` after a rollback: ids given in it do not exist.
    """

    def __init__(self, table: str, column: str) -> None:
        self._insert = (
            f"INSERT INTO {table}({column}) VALUES(?) ON CONFLICT DO NOTHING RETURNING id"
        )
        self._lookup = f"SELECT id FROM {table} WHERE {column} = ?"
        self._reverse = f"SELECT {column} FROM {table} WHERE id = ?"
        self._ids: dict[str, int] = {}
        self.texts: dict[int, str] = {}
        self._fresh: list[str] = []

    def id(self, db: apsw.Connection, text: str) -> int:
        known = self._ids.get(text)
        if known is None:
            known = db.execute(self._lookup, (text,)).get
            if known is None:
                known = db.execute(self._insert, (text,)).get
                self._fresh.append(text)
            self._ids[text] = known
        return known

    def peek(self, db: apsw.Connection, text: str) -> int | None:
        known = self._ids.get(text)
        return db.execute(self._lookup, (text,)).get if known is None else known

    def text(self, db: apsw.Connection, id: int) -> str:
        known = self.texts.get(id)
        if known is None:
            known = self.texts[id] = db.execute(self._reverse, (id,)).get or ""
        return known

    def keep(self) -> None:
        self._fresh.clear()

    def forget(self) -> None:
        for text in self._fresh:
            self._ids.pop(text, None)
        self._fresh.clear()


class _Truths:
    """Checks found true, for as long as nobody has written since. Many commits check the same
    row, and SQLite tells cheaply whether another connection has written since our last
    commit.
    """

    def __init__(self, db: apsw.Connection) -> None:
        self._db = db
        self._version = -1  # of the file, as they were found
        self._looked = False  # at the version, in this transaction
        # By collection, and there by identity, which is cheaper than equality.
        self._true: dict[str, dict[int, Check]] = {}

    def holds(self, check: Check) -> bool:
        if not self._looked:
            self._looked = True
            version = self._db.data_version()
            if version != self._version:
                self._true.clear()
                self._version = version
        known = self._true.get(check.collection)
        return known is not None and known.get(id(check)) is check

    def add(self, check: Check) -> None:
        known = self._true.setdefault(check.collection, {})
        if len(known) == _MOST_TRUE:
            known.clear()
        known[id(check)] = check

    def written(self, collection: str) -> None:
        self._true.pop(collection, None)

    def keep(self) -> None:
        if self._looked:
            self._version = self._db.data_version()
            self._looked = False

    def forget(self) -> None:
        self._true.clear()
        self._looked = False


class SQLiteApplier:
    """Applies batches on the writer's connection, inside a transaction that the writer began."""

    def __init__(
        self, db: apsw.Connection, clock: Clock, extensions: Extensions[SQLiteExtension]
    ) -> None:
        self.db = db
        self._clock = clock
        self._statements: dict[str, Statements] = {}
        self.folders = Interned("perdure_folders", "path")
        self.types = Interned("perdure_types", "name")
        self.tags = Interned("perdure_tags", "tag")
        self._interned = (self.folders, self.types, self.tags)
        self._truths = _Truths(db)
        self._extensions = extensions

    def define(self, layout: Layout, marked: Sequence[str]) -> None:
        self._statements[layout.name] = Statements(layout, marked)

    def keep(self) -> None:
        for table in self._interned:
            table.keep()
        self._truths.keep()

    def forget(self) -> None:
        for table in self._interned:
            table.forget()
        self._truths.forget()

    def run(self, work: Callable[[SQLiteApplier], T]) -> T:
        """Let somebody else write on this connection."""
        self._truths.forget()
        return work(self)

    def apply(self, batch: Batch) -> list[int]:
        """Check, write and emit; raises before anything is visible if a check fails."""
        moment = self._clock()
        births = self._check_all(batch, moment) if batch.checks else _NO_BIRTHS
        versions: list[int] = []
        for collection, writes in itertools.groupby(batch.writes, _COLLECTION):
            versions += self._write(self._of(collection), list(writes), moment, births)
        for event in batch.events:
            self.db.execute(
                "INSERT INTO perdure_outbox(topic, key, payload, at) VALUES(?, ?, ?, ?)",
                (event.topic, event.key, event.payload, moment),
            )
        if batch.changes:
            for extension, changes in self._extensions.parts(batch.changes):
                extension.apply(self.db, changes)
        return versions

    def apply_together(self, batches: list[Batch]) -> list[list[int]]:
        """Apply several batches, in one go if they only put rows of one collection. Raises what
        one of them raises, having done a part: the caller rolls back.
        """
        if len(batches) >= _MANY and (puts := _plain_puts(batches)):
            statements, moment = self._of(puts[0].collection), self._clock()
            self._truths.written(puts[0].collection)
            # Batches of one writer share their checks: one look will do for all of them.
            for checks in {id(batch.checks): batch.checks for batch in batches}.values():
                for check in checks:
                    self._check(check, moment)
            if not statements.layout.tagged and self._insert_all(statements, puts, moment):
                return [[1] * len(batch.writes) for batch in batches]
        return [self.apply(batch) for batch in batches]

    def fill(self, collection: str, fills: list[Fill]) -> None:
        text = self._of(collection).fill
        self.db.executemany(
            text,
            [(*fill.columns, *self._place(fill.key), fill.version, fill.created) for fill in fills],
        )

    def recode(self, collection: str, recodes: Sequence[Recode], checks: Iterable[Check]) -> int:
        moment = self._clock()
        for check in checks:
            self._check(check, moment)
        done, plain = 0, []
        for recode in recodes:
            if recode.tags is not None and self._of(collection).layout.tagged:
                done += self._recode_tagged(self._of(collection), recode)
            else:
                plain.append(recode)
        # Those of one kind in one go: few batches have both.
        for whole in (False, True):
            rows = [self._recoded(r) for r in plain if (r.columns is not None) is whole]
            if rows:
                columns = self._of(collection).columns if whole else ""
                before = self.db.total_changes()
                self.db.executemany(recoding(collection, columns), rows)
                done += self.db.total_changes() - before
        return done

    def _recode_tagged(self, statements: Statements, recode: Recode) -> int:
        columns = "" if recode.columns is None else statements.columns
        text = f"{recoding(statements.layout.name, columns)} RETURNING _id"
        record = self.db.execute(text, self._recoded(recode)).get
        if record is None:
            return 0
        self.db.execute(statements.untag, (record,))
        self._tag(statements, record, recode.tags or ())
        return 1

    def _recoded(self, recode: Recode) -> tuple[Any, ...]:
        """What `recoding` binds, in its order."""
        row = recode.row
        schema = row.schema if recode.schema is None else recode.schema
        return (
            recode.value,
            self.types.id(self.db, recode.content_type),
            recode.checksum,
            schema,
            *(recode.columns or ()),
            *self._place(row.key),
            row.version,
            row.created,
            row.checksum,
            schema,
        )

    def _of(self, collection: str) -> Statements:
        try:
            return self._statements[collection]
        except KeyError:
            raise no_collection(collection) from None

    def _place(self, key: str) -> tuple[int, str]:
        cut = key.rfind("/") + 1
        return self.folders.id(self.db, key[:cut]), key[cut:]

    def _state(self, statements: Statements, key: str, moment: int) -> tuple[int, int] | None:
        params: tuple[int | str, ...] = self._place(key)
        if statements.layout.expires:
            params = (*params, moment)
        return self.db.execute(statements.state, params).get  # type: ignore[no-any-return]

    def _check_all(self, batch: Batch, moment: int) -> _Births:
        """Check, except for rows that the batch replaces, which their statement checks; returns
        when those were made.
        """
        births: dict[tuple[str, str], int] = {}
        replaced = {
            (write.collection, write.key): write.expected
            for write in batch.writes
            if write.expected and isinstance(write, Put)
        }
        for check in batch.checks:
            place = (check.collection, check.key)
            if (
                check.version
                and replaced.get(place) == check.version
                and place not in births
                and self._of(check.collection).replace
            ):
                births[place] = check.created
            else:
                self._check(check, moment)
        return births

    def _check(self, check: Check, moment: int) -> None:
        if self._truths.holds(check):
            return
        statements = self._of(check.collection)
        state = self._state(statements, check.key, moment)
        found = state[0] if state else 0
        if found != check.version or (state and state[1] != check.created):
            raise Conflict(check.collection, check.key, expected=check.version, found=found)
        if not statements.layout.expires:
            self._truths.add(check)

    def _expect(self, statements: Statements, write: Put | Delete, moment: int) -> None:
        state = self._state(statements, write.key, moment)
        found = state[0] if state else 0
        if found != write.expected:
            raise Conflict(write.collection, write.key, expected=write.expected, found=found)

    def _write(
        self,
        statements: Statements,
        writes: list[Put | Delete],
        moment: int,
        births: _Births,
    ) -> list[int]:
        self._truths.written(statements.layout.name)
        if len(writes) >= _MANY and not statements.layout.tagged:
            # One that must be absent is no different: where it is not, nothing is inserted.
            puts = [write for write in writes if isinstance(write, Put) and not write.expected]
            if len(puts) == len(writes) and self._insert_all(statements, puts, moment):
                return [1] * len(puts)
        return [
            self._put(
                statements,
                write,
                moment,
                births.get((write.collection, write.key)) if births else None,
            )
            if isinstance(write, Put)
            else self._delete(statements, write, moment)
            for write in writes
        ]

    def _insert_all(self, statements: Statements, puts: list[Put], moment: int) -> bool:
        """Insert rows in one go. False, and nothing done, if one of them exists."""
        db = self.db
        rows = [self._params(statements, put, moment) for put in puts]
        before = db.total_changes()
        db.execute("SAVEPOINT many")
        db.executemany(statements.insert, rows)
        done = db.total_changes() - before == len(puts)
        db.execute("RELEASE many" if done else "ROLLBACK TO many; RELEASE many")
        return done

    def _params(self, statements: Statements, put: Put, moment: int) -> tuple[Any, ...]:
        """What the statements bind, in the order of `Statements`."""
        key = put.key
        cut = key.rfind("/") + 1
        db = self.db
        return (
            self.folders.id(db, key[:cut]),
            key[cut:],
            moment,
            self.types.id(db, put.content_type),
            put.schema,
            put.checksum,
            put.value,
            *((put.expires, *put.columns) if statements.layout.expires else put.columns),
        )

    def _put(self, statements: Statements, put: Put, moment: int, born: int | None) -> int:
        layout = statements.layout
        db = self.db
        params = self._params(statements, put, moment)
        if put.expected is not None:
            if put.expected and statements.replace:
                db.execute(statements.replace, (*params, put.expected, born))
                if db.changes():
                    return put.expected + 1
                if born is not None:
                    self._check(Check(put.collection, put.key, put.expected, born), moment)
            # We hold the write lock: nothing changes between this look and the write.
            if put.expected or layout.expires:
                self._expect(statements, put, moment)
        db.execute(statements.insert, params)
        if db.changes():
            if layout.tagged:
                self._tag(statements, db.last_insert_rowid(), put.tags)
            return 1
        if put.expected == 0 and not layout.expires:
            self._expect(statements, put, moment)  # it is there: this raises
        row = db.execute(statements.update, params).get
        if row is None:
            stored = db.execute(statements.stored_schema, params[:2]).get
            raise newer_schema(put.collection, put.key, stored, put.schema)
        if layout.tagged:
            db.execute(statements.untag, (row[1],))
            self._tag(statements, row[1], put.tags)
        version: int = row[0]
        return version

    def _tag(self, statements: Statements, record: int, tags: tuple[tuple[str, str], ...]) -> None:
        for name, value in set(tags):
            self.db.execute(statements.tag, (record, self.tags.id(self.db, f"{name}={value}")))

    def _delete(self, statements: Statements, delete: Delete, moment: int) -> int:
        if delete.expected is not None:
            self._expect(statements, delete, moment)
        self.db.execute(statements.delete, self._place(delete.key))
        return 0


def _plain_puts(batches: list[Batch]) -> list[Put]:
    """The puts of batches that do nothing else and share no keys; empty if they do. They may
    check rows of other collections: what they put does not change those.
    """
    puts: list[Put] = []
    collection = batches[0].writes[0].collection if batches[0].writes else ""
    for batch in batches:
        if batch.events or batch.changes:
            return []
        for check in batch.checks:
            if check.collection == collection:
                return []
        for write in batch.writes:
            if not isinstance(write, Put) or write.expected or write.collection != collection:
                return []
            puts.append(write)
    return puts if len({put.key for put in puts}) == len(puts) else []


class Statements:
    """The statements that write to one collection."""

    def __init__(self, layout: Layout, marked: Sequence[str]) -> None:
        table = f'"{layout.name}"'
        self.layout = layout
        expires = ["_expires"] if layout.expires else []
        declared = [f'"{column.name}"' for column in layout.columns]
        marks = [tables.mark_of(column) for column in marked]
        always = ["_type", "_schema", "_checksum", "_value", *expires, *declared]
        # Parameters: 1 folder, 2 name, 3 the time, then `always`.
        values = [f"?{number}" for number in range(4, 4 + len(always))]
        values += [tables.mark(layout.schema, "?3", "1")] * len(marks)
        names = f"_folder, _name, _version, _created, _updated, {', '.join([*always, *marks])}"
        insert = f"INSERT INTO {table}({names}) VALUES(?1, ?2, 1, ?3, ?3, {', '.join(values)})"
        conflict = "ON CONFLICT(_folder, _name)"
        #: Most writes are of new rows, and this is the cheapest way to find out.
        self.insert = f"{insert} {conflict} DO NOTHING"
        # A row that has expired but was not swept yet counts as absent: its successor starts anew.
        dead = "_expires IS NOT NULL AND _expires <= ?3"
        version, created = "_version + 1", "_created"
        if layout.expires:
            version = f"CASE WHEN {dead} THEN 1 ELSE _version + 1 END"
            created = f"CASE WHEN {dead} THEN ?3 ELSE _created END"
        new = {name: f"excluded.{name}" for name in always}
        new |= {name: tables.mark(layout.schema, created, version) for name in marks}
        assign = ", ".join(f"{name} = {value}" for name, value in new.items())
        self.update = (
            f"{insert} {conflict} DO UPDATE"
            f" SET _version = {version}, _created = {created}, _updated = ?3, {assign}"
            " WHERE _schema <= excluded._schema RETURNING _version, _id"
        )
        #: Where the version is known and nothing expires: one statement instead of three.
        self.replace = ""
        if not layout.expires and not layout.tagged:
            new = {name: f"?{number}" for number, name in enumerate(always, 4)}
            new |= {name: tables.mark(layout.schema, version="_version + 1") for name in marks}
            given = ", ".join(f"{name} = {value}" for name, value in new.items())
            self.replace = (
                f"UPDATE {table} SET _version = _version + 1, _updated = ?3, {given}"
                f" WHERE _folder = ?1 AND _name = ?2 AND _version = ?{4 + len(always)}"
                f" AND _created = ifnull(?{5 + len(always)}, _created) AND _schema <= ?5"
            )
        alive = " AND (_expires IS NULL OR _expires > ?)" if layout.expires else ""
        self.state = (
            f"SELECT _version, _created FROM {table} WHERE _folder = ? AND _name = ?{alive}"
        )
        self.stored_schema = f"SELECT _schema FROM {table} WHERE _folder = ? AND _name = ?"
        self.delete = f"DELETE FROM {table} WHERE _folder = ? AND _name = ?"
        self.untag = f'DELETE FROM "{layout.name}__tags" WHERE record = ?'
        self.tag = f'INSERT INTO "{layout.name}__tags"(record, tag) VALUES(?, ?)'
        #: Sets the columns to what is given, and says that they are right.
        self.columns = ", ".join(
            [
                *(f"{name} = ?" for name in declared),
                *(f"{name} = {tables.mark(layout.schema)}" for name in marks),
            ]
        )
        # Several processes may fill at once: what one has filled, the others leave.
        lacking = " OR ".join(f"{name} IS NOT {tables.mark(layout.schema)}" for name in marks)
        self.fill = (
            f"UPDATE {table} SET {self.columns}"
            " WHERE _folder = ? AND _name = ? AND _version = ? AND _created = ?"
            f"{f' AND ({lacking})' if lacking else ''}"
        )


def recoding(collection: str, columns: str) -> str:
    """Replaces the bytes and these columns of a row that is still as it was read."""
    given = f", {columns}" if columns else ""
    return (
        f'UPDATE "{collection}" SET _value = ?, _type = ?, _checksum = ?, _schema = ?{given}'
        " WHERE _folder = ? AND _name = ? AND _version = ? AND _created = ? AND _checksum = ?"
        " AND _schema <= ?"
    )

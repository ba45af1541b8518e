"""The tables of a SQLite bank.

Each collection is a table of its own name. System columns begin with an underscore::

    _id       rowid, private to this file
    _folder   the key up to its last slash, interned in perdure_folders
    _name     the rest of the key
    _type     the content type, interned in perdure_types
    …

Interning keeps a row's key at a few bytes, twice (table and index), instead of a hundred and
more. Interned ids are never changed or deleted, so every process may cache them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import apsw
import msgspec

from perdure.core.errors import NewerSchema, NotAStore
from perdure.storage import tables
from perdure.storage.rows import Layout
from perdure.storage.sql import literal
from perdure.storage.tables import Built, Plan, Prepared, TableState

#: "Perd" — in the file's header, so that `file` and we can tell a bank from other databases.
APPLICATION_ID = 0x50657264
#: Raised when these tables change; a newer one than ours is refused.
FORMAT = 1

_SYSTEM = """
CREATE TABLE perdure_folders(id INTEGER PRIMARY KEY, path TEXT NOT NULL UNIQUE);
CREATE TABLE perdure_types(id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE);
CREATE TABLE perdure_tags(id INTEGER PRIMARY KEY, tag TEXT NOT NULL UNIQUE);
CREATE TABLE perdure_collections(
    name TEXT PRIMARY KEY, layout TEXT NOT NULL, held TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE perdure_outbox(
    id INTEGER PRIMARY KEY AUTOINCREMENT, topic TEXT NOT NULL, key TEXT NOT NULL,
    payload BLOB NOT NULL, at INTEGER NOT NULL);
"""
#: The columns that every collection begins with. `faults` looks for this and the above in the file:
#: a change to either is a new format.
_FACTS = (
    "_id INTEGER PRIMARY KEY",
    "_folder INTEGER NOT NULL",
    "_name TEXT NOT NULL",
    "_type INTEGER NOT NULL",
    "_schema INTEGER NOT NULL",
    "_version INTEGER NOT NULL",
    "_created INTEGER NOT NULL",
    "_updated INTEGER NOT NULL",
    "_checksum INTEGER NOT NULL",
)
_KINDS = {"text": "TEXT", "integer": "INTEGER", "real": "REAL"}


def recognize(db: apsw.Connection, path: str) -> bool:
    """Whether the file is a bank; False if it is empty. Changes nothing. Raises `NotAStore` for
    a database of another program, `NewerSchema` for a newer bank.
    """
    with db:  # one look at all of it: another process may be making the bank
        application, version = db.pragma("application_id"), db.pragma("user_version")
        is_empty = db.execute("SELECT 1 FROM sqlite_schema").get is None
    if application == APPLICATION_ID:
        if version > FORMAT:
            raise NewerSchema(
                f"The bank {path} has format {version}; this version reads up to {FORMAT}.",
                hint="Upgrade Perdure. The bank was left untouched.",
            )
        return True
    if application or version or not is_empty:
        raise NotAStore(
            f"{path} is a SQLite database of another program.",
            hint="Choose another path; it was left untouched.",
        )
    return False


def create(db: apsw.Connection, path: str) -> None:
    """Make the system tables, unless they are there. In a transaction of the caller."""
    if not recognize(db, path):
        db.execute(_SYSTEM)
        db.pragma("application_id", APPLICATION_ID)
        db.pragma("user_version", FORMAT)


def faults(db: apsw.Connection) -> Iterator[str]:
    """Tables that are not declared as we declare them: SQLite trusts the file."""
    stored = dict(db.execute("SELECT name, sql FROM sqlite_schema WHERE type = 'table'"))
    expected = {text.partition("(")[0].split()[-1]: text for text in _SYSTEM.strip().split(";\n")}
    expected |= {name: f'CREATE TABLE "{name}"({", ".join(_FACTS)}, ' for name in load(db)}
    for name, text in expected.items():
        if not str(stored.get(name)).startswith(text.rstrip(";")):
            yield f"The declaration of the table {name} is damaged."


def load(db: apsw.Connection) -> dict[str, Layout]:
    rows = db.execute("SELECT layout FROM perdure_collections ORDER BY name")
    return {
        layout.name: layout
        for (text,) in rows
        for layout in [msgspec.json.decode(text, type=Layout)]
    }


def declared(db: apsw.Connection) -> list[tuple[Layout, frozenset[str]]]:
    """All collections, by name, each with the columns that not every row has."""
    rows = list(db.execute("SELECT name FROM perdure_collections ORDER BY name"))
    known = [found for (name,) in rows if (found := _known(db, name))]
    return [
        (each, table.stale() | _unfilled(db, each, table, table.columns)) for each, table in known
    ]


def _unfilled(
    db: apsw.Connection, layout: Layout, table: TableState, columns: Iterable[str]
) -> frozenset[str]:
    """Those of the columns that somebody who does not know them has left out in some row."""
    return frozenset(
        name
        for name in columns
        for held in [table.columns[name]]
        if held.marked
        and not held.stale
        # A look at the index of such rows.
        and db.execute(f'SELECT 1 FROM "{layout.name}" WHERE {unfilled(name, held.schema)}').get
    )


def peek(db: apsw.Connection, layout: Layout, moment: int) -> tuple[bool, Prepared | None]:
    """Whether the collection was made, and what `prepare` would return if it would change nothing
    and leave nothing to be done but to fill what others left out.
    """
    known = _known(db, layout.name)
    if known is None:
        return False, None
    before, table = known
    asked = tables.as_declared(layout, before)
    planned, wanted = _planned(table, asked, moment, empty=False)
    if (
        planned.table != table
        or not wanted.keys() <= table.indexes.keys()
        or table.missing(layout)
        or (asked.expires, asked.tagged) != (before.expires, before.tagged)
    ):
        return True, None
    marked = table.marked(layout)
    return True, Prepared(asked, marked, _unfilled(db, layout, table, marked))


def is_current(db: apsw.Connection, prepared: Prepared) -> bool:
    """Whether the table still is as it was prepared."""
    known = _known(db, prepared.layout.name)
    wanted = definitions(prepared.layout, prepared.marked)
    return known is not None and known[1].suits(prepared, wanted)


def prepare(db: apsw.Connection, layout: Layout, moment: int) -> Prepared:
    """Bring the table to this layout, but for its values and indexes. In a transaction."""
    name = layout.name
    known = _known(db, name)
    if known is None:
        _create_table(db, layout)
        _create_key(db, name)
        _remember(db, layout, TableState.of(layout, _create_indexes(db, layout)))
        return Prepared(layout)
    before, table = known
    asked = tables.as_declared(layout, before)
    empty = db.execute(f'SELECT 1 FROM "{name}" LIMIT 1').get is None
    planned, wanted = _planned(table, asked, moment, empty=empty)
    _change(db, name, planned)
    if asked.expires and not before.expires:
        db.execute(f'ALTER TABLE "{name}" ADD COLUMN _expires INTEGER')
    if asked.tagged and not before.tagged:
        _create_tags(db, name)
    _remember(db, tables.merged(before, layout, planned.table), planned.table)
    marked = planned.table.marked(layout)
    return Prepared(
        asked,
        marked,
        planned.table.missing(layout) | _unfilled(db, layout, planned.table, marked),
        tuple(label for label in wanted if label not in planned.table.indexes),
    )


def build(db: apsw.Connection, layout: Layout, label: str) -> None:
    """Build an index that `prepare` named. In a transaction, which blocks writers."""
    known = _known(db, layout.name)
    if known is None:
        return
    before, table = known
    wanted = definitions(layout, table.marked(layout))
    if label in wanted and label not in table.indexes:
        db.execute(wanted[label].sql)
        _remember(
            db, before, table.with_index(label, Built(wanted[label].sql, wanted[label].columns))
        )


def activate(db: apsw.Connection, layout: Layout) -> None:
    """The columns are filled: trust them from now on. In a transaction."""
    known = _known(db, layout.name)
    if known is not None:
        before, table = known
        if (activated := table.activated(layout)) != table:
            _remember(db, before, activated)


def _planned(
    table: TableState, layout: Layout, moment: int, *, empty: bool
) -> tuple[Plan, dict[str, SQLiteIndex]]:
    planned = tables.plan(table, layout, moment, empty=empty)
    wanted = definitions(layout, planned.table.marked(layout))
    texts = {label: each.sql for label, each in wanted.items()}
    return planned.wanting(table, texts, moment), wanted


def _change(db: apsw.Connection, name: str, planned: Plan) -> None:
    for label in planned.drop:
        db.execute(f'DROP INDEX IF EXISTS "{label}"')
    for column in planned.replace:
        # Its affinity would turn the new values into others.
        db.execute(f'ALTER TABLE "{name}" DROP COLUMN "{column}"')
    present = {row[1] for row in db.execute(f'PRAGMA table_info("{name}")')}
    for column in planned.replace:
        if (mark := f"_filled_{column}") in present:
            db.execute(f'ALTER TABLE "{name}" DROP COLUMN "{mark}"')
    for added in planned.add:
        db.execute(f'ALTER TABLE "{name}" ADD COLUMN "{added.name}" {_KINDS[added.kind]}')
    for column in planned.mark:
        db.execute(f'ALTER TABLE "{name}" ADD COLUMN {tables.mark_of(column)} INTEGER')


def lay_out(db: apsw.Connection, layout: Layout) -> None:
    _create_table(db, layout)


def index(db: apsw.Connection, layout: Layout) -> None:
    """Make the indexes of a table that `lay_out` made and that is filled now. In a transaction."""
    _create_key(db, layout.name)
    _remember(db, layout, TableState.of(layout, _create_indexes(db, layout)))


def clear(db: apsw.Connection) -> None:
    """Remove every collection, event and interned text. In a transaction. Only for the sole user
    of the file: others would go on using interned ids.
    """
    for layout in load(db).values():
        db.execute(f'DROP TABLE "{layout.name}"')
        if layout.tagged:
            db.execute(f'DROP TABLE "{layout.name}__tags"')
    for table in ("collections", "outbox", "folders", "types", "tags"):
        db.execute(f"DELETE FROM perdure_{table}")


def _known(db: apsw.Connection, name: str) -> tuple[Layout, TableState] | None:
    row = db.execute("SELECT layout, held FROM perdure_collections WHERE name = ?", (name,)).get
    if row is None:
        return None
    layout, table = row
    return msgspec.json.decode(layout, type=Layout), msgspec.json.decode(table, type=TableState)


def _create_table(db: apsw.Connection, layout: Layout) -> None:
    name = layout.name
    # The value comes last: columns behind a long blob would be slow to reach.
    columns = [f'"{column.name}" {_KINDS[column.kind]}' for column in layout.columns]
    expires = ["_expires INTEGER"] if layout.expires else []
    declared = ", ".join(
        [
            *_FACTS,
            *expires,
            *columns,
            "_value BLOB NOT NULL",
        ]
    )
    db.execute(f'CREATE TABLE "{name}"({declared})')
    if layout.tagged:
        _create_tags(db, name)


def _create_key(db: apsw.Connection, name: str) -> None:
    db.execute(f'CREATE UNIQUE INDEX "{name}__key" ON "{name}"(_folder, _name)')


def _create_tags(db: apsw.Connection, name: str) -> None:
    db.execute(
        f'CREATE TABLE "{name}__tags"(tag INTEGER, record INTEGER, PRIMARY KEY(record, tag))'
        " WITHOUT ROWID;"
        f'CREATE INDEX "{name}__tagged" ON "{name}__tags"(tag, record);'
        f'CREATE TRIGGER "{name}__untag" AFTER DELETE ON "{name}" BEGIN'
        f' DELETE FROM "{name}__tags" WHERE record = old._id; END'
    )


class SQLiteIndex(msgspec.Struct, frozen=True):
    """An index, and the declared columns that it is over."""

    sql: str
    columns: tuple[str, ...] = ()


def definitions(layout: Layout, marked: Iterable[str]) -> dict[str, SQLiteIndex]:
    """The indexes of a declaration, by name."""
    name = layout.name
    wanted: dict[str, SQLiteIndex] = {}

    def want(label: str, text: str, columns: Iterable[str] = ()) -> None:
        sql = f'CREATE INDEX "{name}__{label}" ON "{name}"{text}'
        wanted[f"{name}__{label}"] = SQLiteIndex(sql, tuple(sorted(columns)))

    for index in layout.indexes:
        columns = ", ".join(quoted(column) for column in index.columns)
        where = " AND ".join(f'"{column}" = {literal(value)}' for column, value in index.where)
        label = "_".join([*index.columns, *(str(part) for pair in index.where for part in pair)])
        text = f"({columns})" + (f" WHERE {where}" if where else "")
        want(f"by_{label}", text, tables.columns_of(index))
    for column in marked:
        condition = unfilled(column, layout.schema)
        want(f"unfilled_{layout.schema}_{column}", f"(_id) WHERE {condition}", [column])
    if layout.expires:
        want("expiry", "(_expires) WHERE _expires IS NOT NULL")
    return wanted


def unfilled(column: str, schema: int) -> str:
    """The condition of rows written by code that does not know this column."""
    return f"{tables.mark_of(column)} IS NOT {tables.mark(schema)}"


def _create_indexes(db: apsw.Connection, layout: Layout) -> dict[str, Built]:
    wanted = definitions(layout, ())
    for definition in wanted.values():
        db.execute(definition.sql)
    return {label: Built(each.sql, each.columns) for label, each in wanted.items()}


def _remember(db: apsw.Connection, layout: Layout, table: TableState) -> None:
    db.execute(
        "INSERT OR REPLACE INTO perdure_collections VALUES(?, ?, ?)",
        (
            layout.name,
            msgspec.json.encode(layout).decode(),
            msgspec.json.encode(table).decode(),
        ),
    )


def quoted(column: str) -> str:
    return f"_{column}" if column in ("created", "updated", "version") else f'"{column}"'

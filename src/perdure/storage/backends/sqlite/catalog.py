"""The tables of a SQLite bank.

Each collection is a table of its own name. System columns begin with an underscore::

    _id       rowid, private to this file
    _folder   the key up to its last slash, interned in perdure_folders
    _name     the rest of the key
    _type     the content type, interned in perdure_types
    …

Interning keeps a row's key at a few bytes, twice (table and index), where the text would cost a
hundred and more. Interned ids are never changed or deleted, so every process may cache them.
"""

from __future__ import annotations

from collections.abc import Iterator

import apsw
import msgspec

from perdure.core.errors import NewerSchema, NotAStore
from perdure.storage.adapter import Layout, Staleness
from perdure.storage.sql import literal

#: "Perd" — in the file's header, so that `file` and we can tell a bank from other databases.
APPLICATION_ID = 0x50657264
#: Raised when these tables change; a newer one than ours is refused.
FORMAT = 1

_SYSTEM = """
CREATE TABLE perdure_folders(id INTEGER PRIMARY KEY, path TEXT NOT NULL UNIQUE);
CREATE TABLE perdure_types(id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE);
CREATE TABLE perdure_tags(id INTEGER PRIMARY KEY, tag TEXT NOT NULL UNIQUE);
CREATE TABLE perdure_collections(
    name TEXT PRIMARY KEY, layout TEXT NOT NULL, stale TEXT NOT NULL) WITHOUT ROWID;
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
    """Whether the file is a bank already; False if it is empty. Changes nothing.

    Raises `NotAStore` for a database of another program, `NewerSchema` for a newer bank.
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
    """Tables that are not declared as we declare them: SQLite believes what stands in the file."""
    stored = dict(db.execute("SELECT name, sql FROM sqlite_schema WHERE type = 'table'"))
    expected = {text.partition("(")[0].split()[-1]: text for text in _SYSTEM.strip().split(";\n")}
    expected |= {name: f'CREATE TABLE "{name}"({", ".join(_FACTS)}, ' for name in load(db)}
    for name, text in expected.items():
        if not str(stored.get(name)).startswith(text.rstrip(";")):
            yield f"The declaration of the table {name} is damaged."


def load(db: apsw.Connection) -> dict[str, Layout]:
    """All collections of the bank, as they were last declared."""
    rows = db.execute("SELECT layout FROM perdure_collections ORDER BY name")
    return {
        layout.name: layout
        for (text,) in rows
        for layout in [msgspec.json.decode(text, type=Layout)]
    }


def is_there(db: apsw.Connection, name: str) -> bool:
    """Whether the collection was made."""
    return _known(db, name) is not None


def peek(db: apsw.Connection, layout: Layout) -> tuple[Layout, frozenset[str]] | None:
    """What `prepare` would return, if it would change nothing and find nothing missing."""
    known = _known(db, layout.name)
    if known is None:
        return None
    before, stale = known
    merged = _merged(before, layout)
    declared = {column.name for column in layout.columns}
    if merged != before or not stale.isdisjoint(declared):
        return None
    return merged, frozenset()


def prepare(db: apsw.Connection, layout: Layout) -> tuple[Layout, frozenset[str]]:
    """Bring the table to this layout; returns it as it is now, and the columns that its rows lack.

    In a transaction of the caller.
    """
    name = layout.name
    known = _known(db, name)
    if known is None:
        _create_table(db, layout)
        _remember(db, layout, frozenset())
        _create_indexes(db, layout)
        return layout, frozenset()
    before, stale = known
    layout = _merged(before, layout)
    if before == layout and stale.isdisjoint(column.name for column in layout.columns):
        return layout, frozenset()
    columns = {row[1]: row[2] for row in db.execute(f'PRAGMA table_info("{name}")')}
    for column in layout.columns:
        kind = _KINDS[column.kind]
        if columns.get(column.name, kind) != kind:
            # Its affinity would turn the new values into others.
            _drop_indexes(db, name)
            db.execute(f'ALTER TABLE "{name}" DROP COLUMN "{column.name}"')
            del columns[column.name]
        if column.name not in columns:
            db.execute(f'ALTER TABLE "{name}" ADD COLUMN "{column.name}" {kind}')
    if layout.expires and "_expires" not in columns:
        db.execute(f'ALTER TABLE "{name}" ADD COLUMN _expires INTEGER')
    if layout.tagged and not before.tagged:
        _create_tags(db, name)
    empty = db.execute(f'SELECT 1 FROM "{name}" LIMIT 1').get is None
    found = Staleness.after(before, stale, layout, empty=empty)
    _remember(db, layout, found.stale)
    if not found.missing:
        _create_indexes(db, layout)
    return layout, found.missing


def activate(db: apsw.Connection, layout: Layout) -> None:
    """The columns are filled: build the indexes and trust them from now on. In a transaction."""
    known = _known(db, layout.name)
    if known is not None:
        before, stale = known
        layout = _merged(before, layout)
        _create_indexes(db, layout)
        _remember(db, layout, stale - {column.name for column in layout.columns})


def _merged(before: Layout, layout: Layout) -> Layout:
    """The layout, with what the table keeps although it is no longer declared.

    Rows that were written with an expiry or with tags still have them.
    """
    return msgspec.structs.replace(
        layout,
        expires=layout.expires or before.expires,
        tagged=layout.tagged or before.tagged,
    )


def _known(db: apsw.Connection, name: str) -> tuple[Layout, frozenset[str]] | None:
    """The collection as it was last declared, and the columns that its rows lack."""
    row = db.execute("SELECT layout, stale FROM perdure_collections WHERE name = ?", (name,)).get
    if row is None:
        return None
    stale = frozenset(msgspec.json.decode(row[1], type=list[str]))
    return msgspec.json.decode(row[0], type=Layout), stale


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
    db.execute(f'CREATE UNIQUE INDEX "{name}__key" ON "{name}"(_folder, _name)')
    if layout.tagged:
        _create_tags(db, name)


def _create_tags(db: apsw.Connection, name: str) -> None:
    db.execute(
        f'CREATE TABLE "{name}__tags"(tag INTEGER, record INTEGER, PRIMARY KEY(record, tag))'
        " WITHOUT ROWID;"
        f'CREATE INDEX "{name}__tagged" ON "{name}__tags"(tag, record);'
        f'CREATE TRIGGER "{name}__untag" AFTER DELETE ON "{name}" BEGIN'
        f' DELETE FROM "{name}__tags" WHERE record = old._id; END'
    )


def _create_indexes(db: apsw.Connection, layout: Layout) -> None:
    """The declared indexes, and no other: one that is not declared only costs."""
    name = layout.name
    wanted: dict[str, str] = {}
    for index in layout.indexes:
        columns = ", ".join(quoted(column) for column in index.columns)
        where = " AND ".join(f'"{column}" = {literal(value)}' for column, value in index.where)
        label = "_".join([*index.columns, *(str(part) for pair in index.where for part in pair)])
        wanted[f"{name}__by_{label}"] = f"({columns})" + (f" WHERE {where}" if where else "")
    if layout.expires:
        wanted[f"{name}__expiry"] = "(_expires) WHERE _expires IS NOT NULL"
    present = _indexes(db, name)
    for label, definition in wanted.items():
        text = f'CREATE INDEX "{label}" ON "{name}"{definition}'
        if present.pop(label, None) != text:
            db.execute(f'DROP INDEX IF EXISTS "{label}"')
            db.execute(text)
    for label in present:
        db.execute(f'DROP INDEX "{label}"')


def _drop_indexes(db: apsw.Connection, name: str) -> None:
    for label in _indexes(db, name):
        db.execute(f'DROP INDEX "{label}"')


def _indexes(db: apsw.Connection, name: str) -> dict[str, str]:
    """The indexes of declared columns in a table, with their SQL."""
    return dict(
        db.execute(
            "SELECT name, sql FROM sqlite_schema WHERE type = 'index' AND tbl_name = ?"
            " AND (name GLOB ? OR name = ?)",
            (name, f"{name}__by_*", f"{name}__expiry"),
        )
    )


def _remember(db: apsw.Connection, layout: Layout, stale: frozenset[str]) -> None:
    db.execute(
        "INSERT OR REPLACE INTO perdure_collections VALUES(?, ?, ?)",
        (
            layout.name,
            msgspec.json.encode(layout).decode(),
            msgspec.json.encode(sorted(stale)).decode(),
        ),
    )


def quoted(column: str) -> str:
    """The SQL name of a declared or built-in column."""
    return f"_{column}" if column in ("created", "updated", "version") else f'"{column}"'

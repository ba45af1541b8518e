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

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

import apsw

from perdure.core.errors import NewerSchema, NotAStore
from perdure.storage.backends.sql_catalog import SQLCatalog, run_now
from perdure.storage.rows import Kind, Layout

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
    with db:  # one look: a table that is made between two would seem to be missing
        stored = dict(db.execute("SELECT name, sql FROM sqlite_schema WHERE type = 'table'"))
        declared = list(run_now(SQLiteCatalog(db).load()))
    expected = {text.partition("(")[0].split()[-1]: text for text in _SYSTEM.strip().split(";\n")}
    expected |= {name: f'CREATE TABLE "{name}"({", ".join(_FACTS)}, ' for name in declared}
    for name, text in expected.items():
        if not str(stored.get(name)).startswith(text.rstrip(";")):
            yield f"The declaration of the table {name} is damaged."


class SQLiteCatalog(SQLCatalog):
    """The collections of a bank in a file. Its coroutines never wait."""

    mark: ClassVar[str] = "?"
    differs: ClassVar[str] = "IS NOT"
    row_id: ClassVar[str] = "_id"
    kinds: ClassVar[Mapping[Kind, str]] = {"text": "TEXT", "integer": "INTEGER", "real": "REAL"}

    def __init__(self, db: apsw.Connection) -> None:
        self._db = db

    async def execute(self, text: str, params: Sequence[Any] = ()) -> None:
        self._db.execute(text, params)

    async def fetch(self, text: str, params: Sequence[Any] = ()) -> list[Any]:
        return list(self._db.execute(text, params))

    def place(self, name: str) -> str:
        return f'"{name}"'

    async def lay_out(self, layout: Layout) -> None:
        # The value comes last: columns behind a long blob would be slow to reach.
        columns = [f'"{column.name}" {self.kinds[column.kind]}' for column in layout.columns]
        expires = ["_expires INTEGER"] if layout.expires else []
        declared = ", ".join([*_FACTS, *expires, *columns, "_value BLOB NOT NULL"])
        await self.execute(f'CREATE TABLE "{layout.name}"({declared})')
        if layout.tagged:
            await self._create_tags(layout.name)

    async def clear(self) -> None:
        """Also interned texts. Only for the sole user of the file: others would go on using
        their ids.
        """
        for layout in (await self.load()).values():
            await self.execute(f'DROP TABLE "{layout.name}"')
            if layout.tagged:
                await self.execute(f'DROP TABLE "{layout.name}__tags"')
        for table in ("collections", "outbox", "folders", "types", "tags"):
            await self.execute(f"DELETE FROM perdure_{table}")

    async def build(self, layout: Layout, label: str) -> None:
        """Build an index that `prepare` named. Blocks writers."""
        unbuilt = await self.unbuilt(layout)
        if label in unbuilt:
            await self.create_index(layout.name, label, unbuilt[label])
            await self.built(layout, [label])

    async def _extend(self, before: Layout, asked: Layout) -> None:
        if asked.expires and not before.expires:
            await self.execute(f'ALTER TABLE "{asked.name}" ADD COLUMN _expires INTEGER')
        if asked.tagged and not before.tagged:
            await self._create_tags(asked.name)

    async def _create_key(self, name: str) -> None:
        await self.execute(f'CREATE UNIQUE INDEX "{name}__key" ON "{name}"(_folder, _name)')

    async def _create_tags(self, name: str) -> None:
        await self.execute(
            f'CREATE TABLE "{name}__tags"(tag INTEGER, record INTEGER, PRIMARY KEY(record, tag))'
            " WITHOUT ROWID;"
            f'CREATE INDEX "{name}__tagged" ON "{name}__tags"(tag, record);'
            f'CREATE TRIGGER "{name}__untag" AFTER DELETE ON "{name}" BEGIN'
            f' DELETE FROM "{name}__tags" WHERE record = old._id; END'
        )

    def _indexed(self, column: str) -> str:
        return f"_{column}" if column in ("created", "updated", "version") else f'"{column}"'

    def _label(self, table: str, words: str, definition: str) -> str:
        return f"{table}__{words}"

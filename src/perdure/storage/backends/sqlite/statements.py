"""The SQL that writes to a collection, made once for each declaration."""

from __future__ import annotations

from collections.abc import Sequence

from perdure.storage import tables
from perdure.storage.layouts import Layout


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
    """Other bytes for a row that is still as it was read, and these columns."""
    given = f", {columns}" if columns else ""
    return (
        f'UPDATE "{collection}" SET _value = ?, _type = ?, _checksum = ?, _schema = ?{given}'
        " WHERE _folder = ? AND _name = ? AND _version = ? AND _created = ? AND _checksum = ?"
        " AND _schema <= ?"
    )

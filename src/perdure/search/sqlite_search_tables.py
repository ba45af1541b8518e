"""The tables of a search index in a SQLite bank.

For an index ``X`` there are::

    X__documents   place, note, and the id of its vector if it has one
    X__fresh       texts of documents that are not filed yet
    X__words       the words of all others: FTS5, without the texts themselves; the last field is
                   its first column, but each column has its field's number for a name
    X__found       FTS5's view of where each word stands; X__counts: of how many documents have it
    X__vectors     id, place, model, vector; an id is never used twice
    X__models      names of models, how long their vectors are and how many there are

and a line in ``perdure_searches``, made with the first index. Snapshots leave them out.
"""

from __future__ import annotations

import secrets
from array import array
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import apsw
import msgspec

from perdure.core.errors import Corrupted
from perdure.search.engine import SearchIndex, SearchState

if TYPE_CHECKING:
    import numpy as np

CATALOG = "perdure_searches"
#: A field's number within an occurrence; below it, the offset.
OFFSET_BITS = 24

_CATALOG = f"""
CREATE TABLE IF NOT EXISTS {CATALOG}(
    name TEXT PRIMARY KEY, fields TEXT NOT NULL, made INTEGER NOT NULL, fault TEXT NOT NULL)
    WITHOUT ROWID;
"""
# Terms are cut at spaces and nowhere else: for this tokenizer every byte above 127 is part of one.
_TABLES = """
CREATE TABLE "{x}__documents"(place INTEGER PRIMARY KEY, vector INTEGER, note BLOB NOT NULL);
CREATE INDEX "{x}__unembedded" ON "{x}__documents"(place) WHERE vector IS NULL;
CREATE TABLE "{x}__fresh"(place INTEGER PRIMARY KEY, texts TEXT NOT NULL);
CREATE VIRTUAL TABLE "{x}__words" USING fts5({columns},
    content='', contentless_delete=1, tokenize="ascii tokenchars '_=:./-'");
CREATE VIRTUAL TABLE "{x}__found" USING fts5vocab('{x}__words', 'instance');
CREATE VIRTUAL TABLE "{x}__counts" USING fts5vocab('{x}__words', 'row');
CREATE TABLE "{x}__vectors"(
    id INTEGER PRIMARY KEY AUTOINCREMENT, place INTEGER NOT NULL, model INTEGER NOT NULL,
    vector BLOB NOT NULL);
CREATE TABLE "{x}__models"(
    id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, length INTEGER NOT NULL,
    held INTEGER NOT NULL);
INSERT INTO "{x}__words"("{x}__words", rank) VALUES('automerge', 0);
"""
_VIRTUAL = ("counts", "found", "words")
_SHADOWS = ("data", "idx", "docsize", "config", "content")
#: How the names of tables of words end. No collection has two underscores in its name.
_WORDS = "__words"
_PLAIN = ("documents", "fresh", "vectors", "models")

#: What a damaged table makes SQLite raise, and nothing else does: FTS5 asks for as much memory as a
#: damaged page tells it to.
DAMAGED = (apsw.CorruptError, apsw.NoMemError)
#: What a table that is missing, of another make or damaged makes SQLite raise.
FAULTY = (
    *DAMAGED,
    apsw.SQLError,
    apsw.ConstraintError,
    apsw.MismatchError,
    apsw.SchemaChangeError,
)


class IndexEntry(msgspec.Struct, frozen=True):
    """The catalog's entry of an index."""

    fields: tuple[str, ...]
    #: Another number each time that it is made.
    made: int
    fault: str = ""


def entry(db: apsw.Connection, name: str) -> IndexEntry | None:
    try:
        row = db.execute(f"SELECT fields, made, fault FROM {CATALOG} WHERE name = ?", (name,)).get
    except apsw.SQLError:
        return None  # there never was one
    if row is None:
        return None
    columns, made, fault = row
    return IndexEntry(tuple(reversed(columns.split("\n"))), made, fault)


def sound(db: apsw.Connection, name: str) -> IndexEntry:
    """The entry of an index that is there and not damaged. Raises `Corrupted`."""
    found = entry(db, name)
    if found is None:
        raise damaged(name, "it is gone")
    if found.fault:
        raise damaged(name, found.fault)
    return found


def make(db: apsw.Connection, index: SearchIndex) -> bool:
    """Make the index unless it is there as declared; whether it was made. In a transaction."""
    known = entry(db, index.name)
    if known is not None and known.fields == index.fields:
        return False
    _make_catalog(db)
    drop(db, index.name)
    # The last field comes first: FTS5 takes two bytes more for each document of a term that stands
    # in any other, and the last is the longest wherever tools are used, by far.
    columns = ", ".join(f'"{number}"' for number in reversed(range(len(index.fields))))
    db.execute(_TABLES.format(x=index.name, columns=columns))
    db.execute(
        f"INSERT INTO {CATALOG} VALUES(?, ?, ?, '')",
        (index.name, "\n".join(reversed(index.fields)), secrets.randbits(62)),
    )
    return True


def _make_catalog(db: apsw.Connection) -> None:
    """Make the list of indexes; a damaged one is replaced."""
    db.execute(_CATALOG)
    try:
        db.execute(f"SELECT name, fields, made, fault FROM {CATALOG} LIMIT 1").fetchall()
    except FAULTY:
        db.execute(f"DROP TABLE {CATALOG}")
        db.execute(_CATALOG)


def drop(db: apsw.Connection, name: str) -> None:
    for table in _VIRTUAL:
        _drop_virtual(db, f"{name}__{table}")
    for table in (*(f"words_{shadow}" for shadow in _SHADOWS), *_PLAIN):
        db.execute(f'DROP TABLE IF EXISTS "{name}__{table}"')
    with suppress(apsw.SQLError):  # no catalog, no index
        db.execute(f"DELETE FROM {CATALOG} WHERE name = ?", (name,))


def drop_all(db: apsw.Connection) -> None:
    for name in names(db):
        drop(db, name)


def rewrite(db: apsw.Connection, name: str) -> None:
    """Merge all words into one segment, so that nothing withdrawn is left. A damaged index is
    removed, since it may still hold withdrawn words.
    """
    db.execute("BEGIN IMMEDIATE")
    try:
        known = entry(db, name)
        if known is None or known.fault:
            drop(db, name)
            db.execute("COMMIT")
            return
        db.execute(f'INSERT INTO "{name}__words"("{name}__words") VALUES(\'optimize\')')
    except FAULTY:
        drop(db, name)
    except BaseException:
        if db.in_transaction:
            db.execute("ROLLBACK")
        raise
    db.execute("COMMIT")


def mark(db: apsw.Connection, name: str, fault: str) -> None:
    """Record that the index cannot be trusted any more, if possible."""
    with suppress(apsw.SQLError, apsw.CorruptError):
        db.execute(f"UPDATE {CATALOG} SET fault = ? WHERE name = ? AND fault = ''", (fault, name))


def state(db: apsw.Connection, name: str) -> SearchState:
    """What the index holds. A short check: numbers must agree, and it must be readable."""
    found = entry(db, name)
    if found is None:
        return SearchState(faults=("It is gone.",))
    faults = [f"It was found to be damaged: {found.fault}."] if found.fault else []
    documents = unfiled = 0
    vectors: dict[str, int] = {}
    try:
        documents = db.execute(f'SELECT count(*) FROM "{name}__documents"').get
        unfiled = db.execute(f'SELECT count(*) FROM "{name}__fresh"').get
        vectors = dict(db.execute(f'SELECT name, held FROM "{name}__models" WHERE held > 0'))
        filed = db.execute(f'SELECT count(*) FROM "{name}__words_docsize"').get
        if filed + unfiled != documents:
            faults.append(
                f"It holds {documents:,} documents, but the words of {filed + unfiled:,}."
            )
        if not _vectors_agree(db, name, sum(vectors.values())):
            faults.append("Its vectors are not those of its documents.")
        list(db.execute(f'SELECT doc FROM "{name}__counts" LIMIT 10'))
    except FAULTY as exc:
        faults.append(f"It cannot be read: {exc}.")
    return SearchState(documents, vectors, unfiled, tuple(faults))


def inspected(db: apsw.Connection, name: str) -> tuple[str, ...]:
    """Faults of an index's words, as sentences. Reads all of them. The connection must not have
    searched before: see `SQLiteAdapter.inspect`.
    """
    try:
        found = [line for (line,) in db.execute(f"PRAGMA integrity_check('{name}{_WORDS}')")]
    except FAULTY as exc:
        found = [str(exc)]
    return tuple(f"Its words are damaged: {line}." for line in found if line != "ok")


def _vectors_agree(db: apsw.Connection, name: str, held: int) -> bool:
    """Whether the counts and lengths of vectors agree."""
    embedded = db.execute(f'SELECT count(vector) FROM "{name}__documents"').get
    fitting = (
        f'SELECT count(*), count(m.id) FROM "{name}__vectors" AS v LEFT JOIN "{name}__models" AS m'
        " ON m.id = v.model AND m.length = length(v.vector)"
    )
    return bool(db.execute(fitting).get == (embedded, embedded) and embedded == held)


def unembedded(db: apsw.Connection, name: str, model: str, after: int, limit: int) -> list[int]:
    others = f'SELECT 1 FROM "{name}__models" WHERE name <> ? AND held > 0'
    condition = "vector IS NULL"
    params: tuple[int | str, ...] = (after,)
    if db.execute(others, (model,)).get is not None:
        condition = (
            f'(vector IS NULL OR (SELECT model FROM "{name}__vectors" WHERE id = d.vector)'
            f' IS NOT (SELECT id FROM "{name}__models" WHERE name = ?))'
        )
        params = (after, model)
    text = f'SELECT place FROM "{name}__documents" AS d WHERE place > ? AND {condition}'
    found = db.execute(f"{text} ORDER BY place LIMIT ?", (*params, limit))
    return [place for (place,) in found]


def numbers(values: Sequence[int]) -> Any:
    """Numbers as one parameter, for ``carray(?)``; at least one of them."""
    return apsw.carray(array("q", values))


def parted(glued: str | None) -> np.ndarray:
    import numpy as np

    return np.fromstring(glued or "", dtype=np.int64, sep=" ")


def names(db: apsw.Connection) -> list[str]:
    tables = f"SELECT name FROM sqlite_schema WHERE type = 'table' AND name GLOB '*{_WORDS}'"
    found = {str(name).removesuffix(_WORDS) for (name,) in db.execute(tables)}
    with suppress(apsw.SQLError):  # no catalog
        found |= {str(name) for (name,) in db.execute(f"SELECT name FROM {CATALOG}")}
    return sorted(found)


def damaged(name: str, why: object) -> Corrupted:
    """The error for an index that cannot be used. Its sources are not affected."""
    return Corrupted(
        f"The search index {name!r} is damaged: {why}.",
        hint="Run `perdure index rebuild`: it is made again from what is stored.",
    )


@contextmanager
def blamed(name: str) -> Iterator[None]:
    """Turns SQLite's errors from damaged tables into one that names the index."""
    try:
        yield
    except FAULTY as exc:
        raise damaged(name, exc) from exc


def _drop_virtual(db: apsw.Connection, table: str) -> None:
    db.execute("SAVEPOINT dropping")
    try:
        db.execute(f'DROP TABLE IF EXISTS "{table}"')
    except (apsw.SQLError, apsw.CorruptError):
        # Without its shadow tables it cannot be opened, and so not dropped: forget it instead.
        db.execute("ROLLBACK TO dropping")
        db.pragma("writable_schema", True)
        try:
            db.execute("DELETE FROM sqlite_schema WHERE type = 'table' AND name = ?", (table,))
        finally:
            db.pragma("writable_schema", "RESET")
    finally:
        db.execute("RELEASE dropping")

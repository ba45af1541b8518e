"""Writes to search indexes, inside the writer's transactions.

FTS5 takes a third of a millisecond for a single document, and a few for sixty-four together. So a
commit puts a document into a plain table, which searches read as well, and `file` moves them to
FTS5 in batches, later. Commits do it only when nobody else does for long.

A commit never fails because an index is damaged or gone. The index is marked instead, and
searches raise an error.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import apsw

from perdure.search import sqlite_search_tables as search_tables
from perdure.search.engine import (
    Document,
    Embedding,
    SearchIndex,
    Withdrawal,
    check_document,
    not_prepared,
)
from perdure.search.sqlite_search_tables import FAULTY
from perdure.search.vector_matrix import check_lengths

#: Documents that wait to be filed, at most, and their bytes. Every search looks through them.
MOST_UNFILED = 512
MOST_BYTES = 512 * 1024
#: Documents that are filed in one transaction.
TOGETHER = 64
#: Documents between two looks at how many wait; a long one counts for several.
_LOOK = 64
_LONG = 2_048
#: Pages that one step of merging writes, about. Meanwhile nobody else can write.
_PAGES = 48
#: A range that is withdrawn on the event loop: a place and some more.
_NARROW = 64


def weight(change: Document | Withdrawal) -> int:
    """The event loop's cost of a change, in bytes written."""
    if isinstance(change, Document):
        return 1_024 + sum(map(len, change.texts))
    # A range may hold any number of documents.
    return 4_096 if change.last - change.first < _NARROW else 2**40


class SQLiteDocuments:
    """What this process writes to search indexes. On the writer's connection only."""

    def __init__(self) -> None:
        self._writers: dict[str, SQLiteIndexWriter] = {}

    def define(self, db: apsw.Connection, index: SearchIndex) -> None:
        self._writers[index.name] = SQLiteIndexWriter(db, index)

    def index_writer(self, db: apsw.Connection, index: str) -> SQLiteIndexWriter:
        """Raises `InvalidInput` if it was not prepared since this connection was opened."""
        writer = self._writers.get(index)
        if writer is None or writer.db is not db:
            raise not_prepared(index)
        return writer

    def check(self, db: apsw.Connection, changes: Sequence[Document | Withdrawal]) -> None:
        """Raises `InvalidInput` if a change cannot be made."""
        for change in changes:
            writer = self.index_writer(db, change.index)
            if isinstance(change, Document):
                check_document(writer.index, change)

    def change(self, db: apsw.Connection, changes: Sequence[Document | Withdrawal]) -> None:
        """Apply the changes of one commit, in order."""
        for change in changes:
            writer = self._writers[change.index]
            try:
                if isinstance(change, Document):
                    writer.put(change)
                else:
                    writer.withdraw(change.first, change.last)
            except FAULTY as exc:
                if not db.in_transaction:
                    raise  # SQLite has ended it: this is more than a damaged index
                # What it has done so far need not be undone: nobody trusts the index any more.
                writer.is_harmed = True
                search_tables.mark(db, change.index, str(exc))


class SQLiteIndexWriter:
    """One index. Methods raise SQLite's errors."""

    def __init__(self, db: apsw.Connection, index: SearchIndex) -> None:
        self.index = index
        self.db = db
        self._since_look = 0
        #: FTS5 has failed, and may fail again at commit: commits leave it alone until a batch was
        #: filed.
        self.is_harmed = False
        x = index.name
        numbers = range(len(index.fields))
        self._new = f'INSERT INTO "{x}__documents"(place, note) VALUES(?, ?) ON CONFLICT DO NOTHING'
        self._old = f'SELECT vector FROM "{x}__documents" WHERE place = ?'
        self._renew = f'UPDATE "{x}__documents" SET note = ?, vector = NULL WHERE place = ?'
        self._refresh = f'UPDATE "{x}__fresh" SET texts = ? WHERE place = ?'
        self._unfile = f'DELETE FROM "{x}__words" WHERE rowid = ?'
        self._fresh = f'INSERT INTO "{x}__fresh" VALUES(?, ?)'
        self._unfiled = f'SELECT count(*), sum(octet_length(texts)) FROM "{x}__fresh"'
        self._waiting = f'SELECT place, texts FROM "{x}__fresh" ORDER BY place LIMIT ?'
        self._filed = f'DELETE FROM "{x}__fresh" WHERE place <= ?'
        columns = ", ".join(f'"{number}"' for number in numbers)
        self._file = (
            f'INSERT INTO "{x}__words"(rowid, {columns})'
            f" VALUES(?, {', '.join('?' for _ in numbers)})"
        )
        self._any = f'SELECT 1 FROM "{x}__documents" WHERE place BETWEEN ? AND ? LIMIT 1'
        self._discount = (
            f'UPDATE "{x}__models" SET held = held - gone.number FROM'
            f' (SELECT v.model, count(*) AS number FROM "{x}__documents" AS d'
            f' CROSS JOIN "{x}__vectors" AS v ON v.id = d.vector'
            " WHERE d.place BETWEEN ? AND ? GROUP BY v.model) AS gone WHERE gone.model = id"
        )
        self._unembed = (
            f'DELETE FROM "{x}__vectors" WHERE id IN'
            f' (SELECT vector FROM "{x}__documents" WHERE place BETWEEN ? AND ?)'
        )
        self._withdraw = tuple(
            f'DELETE FROM "{x}__{table}" WHERE place BETWEEN ? AND ?'
            for table in ("documents", "fresh")
        )
        self._unfile_all = f'DELETE FROM "{x}__words" WHERE rowid BETWEEN ? AND ?'
        self._model = f'SELECT id, length, held FROM "{x}__models" WHERE name = ?'
        self._new_model = (
            f'INSERT INTO "{x}__models"(name, length, held) VALUES(?, ?, 0)'
            " ON CONFLICT DO UPDATE SET length = excluded.length RETURNING id"
        )
        self._counted = f'UPDATE "{x}__models" SET held = held + ? WHERE id = ?'
        self._embed = f'INSERT INTO "{x}__vectors"(place, model, vector) VALUES(?, ?, ?)'
        self._embedded = f'UPDATE "{x}__documents" SET vector = ? WHERE place = ?'
        self._flush = f'INSERT INTO "{x}__words"("{x}__words") VALUES(\'flush\')'
        self._merge = f'INSERT INTO "{x}__words"("{x}__words", rank) VALUES(?, ?)'

    def put(self, document: Document) -> None:
        db, place = self.db, document.place
        texts = "\n".join(document.texts)
        db.execute(self._new, (place, document.note))
        if not db.changes() and self._replace(place, texts, document.note):
            return
        db.execute(self._fresh, (place, texts))
        self._since_look += 1 + len(texts) // _LONG
        if self._since_look >= _LOOK:
            self._since_look = 0
            while not self.is_harmed and self._are_too_many():
                self.file(2 * TOGETHER)

    def _are_too_many(self) -> bool:
        documents, size = self.db.execute(self._unfiled).get
        return documents > MOST_UNFILED or (size or 0) > MOST_BYTES

    def _replace(self, place: int, texts: str, note: bytes) -> bool:
        """Whether the former document was not filed yet, and so is replaced now."""
        db = self.db
        if db.execute(self._old, (place,)).get is not None:
            db.execute(self._discount, (place, place))
            db.execute(self._unembed, (place, place))
        db.execute(self._renew, (note, place))
        db.execute(self._refresh, (texts, place))
        if db.changes():
            return True
        with self._writing_words():
            db.execute(self._unfile, (place,))
        return False

    def withdraw(self, first: int, last: int) -> None:
        db, span = self.db, (first, last)
        if db.execute(self._any, span).get is None:
            return
        db.execute(self._discount, span)
        db.execute(self._unembed, span)
        for text in self._withdraw:
            db.execute(text, span)
        with self._writing_words():
            db.execute(self._unfile_all, span)

    def file(self, limit: int = TOGETHER) -> bool:
        """Move waiting documents to FTS5, lowest places first, which it prefers; whether there
        were any.
        """
        rows = self.db.execute(self._waiting, (limit,)).fetchall()
        if not rows:
            return False
        filed = [(place, *str(texts).split("\n")) for place, texts in rows]
        with self._writing_words():
            self.db.executemany(self._file, filed)
        self.db.execute(self._filed, (rows[-1][0],))
        self.is_harmed = False
        return True

    def merge(self) -> bool:
        """Merge some small segments; whether more is left."""
        with self._writing_words():
            before = self.db.total_changes()
            self.db.execute(self._merge, ("merge", _PAGES))
            return self.db.total_changes() - before > 1  # it counts the command itself

    @contextmanager
    def _writing_words(self) -> Iterator[None]:
        """Makes FTS5 write now: deferred writes would fail at commit."""
        db = self.db
        db.execute("SAVEPOINT words")
        try:
            yield
            db.execute(self._flush)
        except BaseException:
            if db.in_transaction:
                db.execute("ROLLBACK TO words; RELEASE words")
            raise
        db.execute("RELEASE words")

    def embed(self, model: str, embeddings: Sequence[Embedding]) -> int:
        db = self.db
        id, length, held = db.execute(self._model, (model,)).get or (None, 0, 0)
        length = check_lengths([each.vector for each in embeddings], length if held else None)
        if id is None or not held:
            id = db.execute(self._new_model, (model, length)).get
        kept = 0
        for each in embeddings:
            before = db.execute(self._old, (each.place,)).fetchall()
            if not before:
                continue
            if before[0][0] is not None:
                db.execute(self._discount, (each.place, each.place))
                db.execute(self._unembed, (each.place, each.place))
            db.execute(self._embed, (each.place, id, each.vector))
            db.execute(self._embedded, (db.last_insert_rowid(), each.place))
            kept += 1
        db.execute(self._counted, (kept, id))
        return kept

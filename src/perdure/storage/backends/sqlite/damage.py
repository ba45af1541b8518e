"""Reading what a damaged bank still holds.

Rows are listed by the index of their keys. Where that is broken, the table itself is walked, around
the pages that cannot be read. That is slow, and only `perdure verify` does it.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterator

import apsw

from perdure.storage.backends.sqlite import listing
from perdure.storage.backends.sqlite.errors import DAMAGE
from perdure.storage.layouts import Layout

#: Row ids that are tried one by one behind a page that cannot be read; then in growing strides.
_STEPS = 10_000


def places(db: apsw.Connection, layout: Layout, after: str, limit: int) -> list[listing.Entry]:
    """Key and row id of the first `limit` rows behind a key, in key order."""
    try:
        ids = listing.page(db, layout, listing.Span("", after=after or None), limit)
        found = [(_key(db, layout.name, id), id) for id in ids]
    except DAMAGE:
        found = []
        broken = True
    else:
        # An index that lists keys which are not the rows' own could lead us round in circles.
        keys = [after, *(key for key, _ in found)]
        broken = any(key <= before for before, key in itertools.pairwise(keys))
    if not broken:
        return found
    walk = ((_known_key(db, layout.name, id), id) for id in _ids(db, layout.name))
    return heapq.nsmallest(limit, (entry for entry in walk if entry[0] > after))


def count(db: apsw.Connection, table: str) -> int:
    """The number of rows, or of those that can be found."""
    try:
        found: int = db.execute(f'SELECT count(*) FROM "{table}"').get
    except apsw.CorruptError:
        found = sum(1 for _ in _ids(db, table))
    return found


def _key(db: apsw.Connection, table: str, id: int) -> str:
    folder, name = db.execute(
        f'SELECT f.path, r._name FROM "{table}" AS r CROSS JOIN perdure_folders AS f'
        " ON f.id = r._folder WHERE r._id = ?",
        (id,),
    ).get
    key: str = folder + name
    return key


def _known_key(db: apsw.Connection, table: str, id: int) -> str:
    try:
        return _key(db, table, id)
    except DAMAGE:
        return f"(row {id})"  # some name it needs


def _ids(db: apsw.Connection, table: str) -> Iterator[int]:
    """The rows of a table, by the table itself."""
    text = f'SELECT _id FROM "{table}" NOT INDEXED WHERE _id > ? ORDER BY _id'
    last, tries = 0, 0
    while last < 2**62:
        try:
            for (id,) in db.execute(text, (last,)):
                last = id
                yield id
            return
        except apsw.CorruptError:
            tries += 1
            last += 1 if tries < _STEPS else 2 ** (tries - _STEPS)

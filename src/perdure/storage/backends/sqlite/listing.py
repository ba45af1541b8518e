"""Keys in order across folders.

Rows are sorted by name within each folder, so a listing in one folder is an index scan. One
across folders merges them: a folder's names interleave with its sub-folders (``a/1`` < ``a/1/x``
< ``a/2``), so folders are opened only when the merge reaches the first key they could hold. A
page costs its rows, and a check of each folder of other collections in between.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterator

import apsw

from perdure.storage import record_keys
from perdure.storage.backends.sqlite.errors import DAMAGE
from perdure.storage.rows import Layout

Entry = tuple[str, int]


class KeySpan:
    """Keys with a prefix, after a key, in either direction, not expired."""

    def __init__(
        self, prefix: str, *, after: str | None = None, descending: bool = False, moment: int = 0
    ) -> None:
        self.low, self.high = prefix, record_keys.after_prefix(prefix)
        self.descending = descending
        self.moment = moment
        if after is not None and not descending:
            self.low = max(prefix, after + "\x00")  # the next key there could be
        if after is not None and descending:
            self.high = after if self.high is None else min(self.high, after)


def page(db: apsw.Connection, layout: Layout, span: KeySpan, limit: int) -> list[int]:
    """Row ids of up to `limit` rows of the span, in key order; all if it is negative."""
    if span.high is not None and span.high <= span.low:
        return []
    entries = _Merge(db, layout, span).merge()
    return [row for _, row in itertools.islice(entries, limit if limit >= 0 else None)]


class _Merge:
    """The rows of a collection with low <= key < high, folder by folder."""

    def __init__(self, db: apsw.Connection, layout: Layout, span: KeySpan) -> None:
        self._db = db
        self._low = span.low
        self._high = span.high
        self._descending = span.descending
        self._moment = span.moment
        self._direction = "DESC" if span.descending else "ASC"
        self._table = layout.name
        self._expiring = layout.expires
        alive = " AND (_expires IS NULL OR _expires > ?)" if layout.expires else ""
        self._names = (
            f'SELECT _name, _id FROM "{layout.name}" WHERE _folder = ? AND _name >= ?'
            f"{{high}}{alive} ORDER BY _name {self._direction}"
        )

    def merge(self) -> Iterator[Entry]:
        heap: list[tuple[_Ordered, int, Iterator[Entry], Entry]] = []

        def push(order: int, entries: Iterator[Entry]) -> None:
            entry = next(entries, None)
            if entry is not None:
                key = _Ordered(entry[0], descending=self._descending)
                heapq.heappush(heap, (key, order, entries, entry))

        folders = self._folders()
        upcoming = next(folders, None)
        opened = 0
        while heap or upcoming is not None:
            while upcoming is not None and (
                not heap or self._may_precede(upcoming[1], heap[0][3][0])
            ):
                opened += 1
                push(opened, self._entries(*upcoming))
                upcoming = next(folders, None)
            if heap:
                _, order, entries, entry = heapq.heappop(heap)
                yield entry
                push(order, entries)

    def _may_precede(self, path: str, key: str) -> bool:
        """Whether a folder could hold a key that comes before this one."""
        if not self._descending:
            return path <= key
        end = record_keys.after_prefix(path)
        return end is None or end > key

    def _folders(self) -> Iterator[tuple[int, str]]:
        """Folders that may hold keys of the span, in the order in which their keys can begin."""
        # Those that enclose the lower bound sort below it; opening them early does no harm.
        seen = set(_folders_above(self._low))
        for path in sorted(seen):
            yield from self._folder(path)
        # Folders are shared by all collections: those that hold nothing here are passed over.
        text = (
            "SELECT id, path FROM perdure_folders AS f WHERE path >= ?"
            f' AND EXISTS (SELECT 1 FROM "{self._table}" WHERE _folder = f.id)'
        )
        params = [self._low]
        if self._high is not None:
            text += " AND path < ?"
            params.append(self._high)
        text += f" ORDER BY path {self._direction}"
        for row, path in self._db.execute(text, params):
            if self._descending:
                # Backwards, a folder's keys begin at its end, and so before its sub-folders'.
                for above in _folders_above(path[:-1]):
                    if above not in seen:
                        seen.add(above)
                        yield from self._folder(above)
            if path not in seen:
                seen.add(path)
                yield row, path

    def _folder(self, path: str) -> list[tuple[int, str]]:
        row = self._db.execute("SELECT id FROM perdure_folders WHERE path = ?", (path,)).get
        return [] if row is None else [(row, path)]

    def _entries(self, folder: int, path: str) -> Iterator[Entry]:
        size = len(path)
        low = self._low[size:] if self._low.startswith(path) else ""
        params: list[int | str] = [folder, low]
        high = ""
        if self._high is not None and self._high.startswith(path):
            high = " AND _name < ?"
            params.append(self._high[size:])
        if self._expiring:
            params.append(self._moment)
        for name, row in self._db.execute(self._names.format(high=high), params):
            yield path + name, row


def _folders_above(key: str) -> list[str]:
    parts = key.split("/")[:-1]
    return ["".join(f"{part}/" for part in parts[:depth]) for depth in range(len(parts) + 1)]


class _Ordered:
    """A key that sorts in the listing's direction."""

    __slots__ = ("descending", "key")

    def __init__(self, key: str, *, descending: bool) -> None:
        self.key = key
        self.descending = descending

    def __lt__(self, other: _Ordered) -> bool:
        return self.key > other.key if self.descending else self.key < other.key


#: Row ids that are tried one by one behind a page that cannot be read; then in growing strides.
_STEPS = 10_000


def places(db: apsw.Connection, layout: Layout, after: str, limit: int) -> list[Entry]:
    """Key and row id of the first `limit` rows after a key, in key order."""
    try:
        ids = page(db, layout, KeySpan("", after=after or None), limit)
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

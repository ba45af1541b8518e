"""The rows that this process caches, and what is known about their age."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Self, TypeAlias, TypeVar

import msgspec

from perdure.storage.rows import Row

K = TypeVar("K")
Place: TypeAlias = tuple[str, str]
_Places: TypeAlias = tuple[str, Sequence[str]]
_UnderWay: TypeAlias = dict[Place, list["CacheRead"]]

#: Larger values are not kept: a few of them would take the room of everything else.
LARGEST = 256 * 1024
NEVER = float("-inf")


class CacheStats(msgspec.Struct):
    """Counts of a cache since it was made, in rows."""

    hits: int = 0
    misses: int = 0
    shared_hits: int = 0
    #: Dropped because somebody wrote, or may have written.
    invalidations: int = 0


class CacheEntry(msgspec.Struct, frozen=True, gc=False):
    """A cached row. Times are of a monotonic clock, in seconds."""

    row: Row
    kept: float
    #: It is not older than this: nobody had changed it by then. `NEVER` if that is not known.
    fresh: float


class CacheRead:
    """A read under way, as a context manager. Keys written meanwhile are not cached."""

    __slots__ = ("_entries", "_under_way", "collection", "keys", "spoiled")

    def __init__(self, entries: Entries, under_way: _UnderWay, place: _Places) -> None:
        self.collection, self.keys = place
        self.spoiled: set[str] = set()
        self._entries = entries
        self._under_way = under_way

    def __enter__(self) -> Self:
        for key in self.keys:
            place = (self.collection, key)
            self._under_way.setdefault(place, []).append(self)
            if not self._entries.is_free(place):
                self.spoiled.add(key)
        return self

    def __exit__(self, *exc: object) -> None:
        for key in self.keys:
            place = (self.collection, key)
            others = self._under_way[place]
            others.remove(self)
            if not others:
                del self._under_way[place]

    def keep(self, key: str, row: Row | None, kept: float, fresh: float) -> None:
        """Cache what was read, unless a write meanwhile may have made it outdated."""
        if key not in self.spoiled:
            self._entries.put((self.collection, key), row, kept, fresh)


class Entries:
    """A bounded number of rows; the least recently used are evicted first.

    Writers use `writing`: meanwhile the row is neither answered nor cached, nor are reads cached
    that began before its end. So an older row never replaces a newer one.
    """

    def __init__(self, limit: int, stats: CacheStats) -> None:
        self._limit = limit
        self._stats = stats
        self._entries: OrderedDict[Place, CacheEntry] = OrderedDict()
        self._reading: _UnderWay = {}
        self._writing: Counter[Place] = Counter()
        self._removing: Counter[str] = Counter()
        self._generation: int | None = None
        #: Nobody else has written to the store between these moments.
        self._since, self._validated = NEVER, NEVER

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, place: Place, since: float, *, proven: bool, moment: int) -> Row | None:
        """The unexpired row, if cached, or with `proven` known to be fresh, at `since` or later."""
        entry = self._entries.get(place)
        if entry is None or not self.is_free(place):
            return None
        row = entry.row
        if row.expires is not None and row.expires <= moment:
            return None
        at = entry.fresh if proven else entry.kept
        if at < since and not (entry.fresh >= self._since and self._validated >= since):
            return None
        self._entries.move_to_end(place)
        return row

    def holds(self, place: Place) -> bool:
        return place in self._entries

    def is_free(self, place: Place) -> bool:
        return not (
            (self._writing and place in self._writing)
            or (self._removing and place[0] in self._removing)
        )

    def confirm(self, asked: float, generation: int, answered: float) -> bool:
        """Compare the store's generation: True if nobody else has written, else all is dropped."""
        if generation == self._generation:
            self._validated = max(self._validated, asked)
            return True
        self._generation = generation
        # What was read before the answer may have been changed before it, and is not covered.
        self._since, self._validated = answered, NEVER
        self.clear()
        return False

    def reading(self, collection: str, keys: Sequence[str]) -> CacheRead:
        return CacheRead(self, self._reading, (collection, keys))

    def put(self, place: Place, row: Row | None, kept: float, fresh: float) -> None:
        """Cache a row, unless a fresher one is cached. Absent rows are not cached."""
        known = self._entries.get(place)
        if known is not None and known.fresh > fresh:
            return
        if row is None or len(row.value) > LARGEST:
            self._entries.pop(place, None)
            return
        self._entries[place] = CacheEntry(row, kept, fresh)
        self._entries.move_to_end(place)
        if len(self._entries) > self._limit:
            self._entries.popitem(last=False)

    @contextmanager
    def writing(self, places: Sequence[Place], collections: Sequence[str] = ()) -> Iterator[None]:
        self._writing.update(places)
        self._removing.update(collections)
        try:
            yield
        finally:
            _finish(self._writing, places)
            _finish(self._removing, collections)
            self.drop(places)
            for collection in collections:
                self.drop_collection(collection)

    def drop(self, places: Iterable[Place]) -> None:
        for place in places:
            if self._entries.pop(place, None) is not None:
                self._stats.invalidations += 1
            for reading in self._reading.get(place, ()):
                reading.spoiled.add(place[1])

    def drop_collection(self, collection: str) -> None:
        self.drop({place for place in (*self._entries, *self._reading) if place[0] == collection})

    def clear(self) -> None:
        self.drop({*self._entries, *self._reading})

    def start_over(self) -> None:
        """Drop everything, the generation too: another connection counts anew."""
        self.clear()
        self._generation, self._since, self._validated = None, NEVER, NEVER


def _finish(counts: Counter[K], done: Sequence[K]) -> None:
    for each in done:
        counts[each] -= 1
        if not counts[each]:
            del counts[each]

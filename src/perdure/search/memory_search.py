"""Search indexes of the in-memory backend."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import msgspec

from perdure.search.engine import (
    Document,
    Embedding,
    Near,
    Postings,
    Range,
    SearchEngine,
    SearchIndex,
    SearchState,
    TextFound,
    TextSearch,
    VectorRows,
    VectorSearch,
    Withdrawal,
    check_document,
    not_prepared,
)
from perdure.search.vector_matrix import Vectors, check_lengths, vector_rows
from perdure.storage.backends.memory import MemoryAdapter, MemoryExtension
from perdure.storage.options import DEFAULT, Options

if TYPE_CHECKING:
    import numpy as np

_EVERYWHERE: tuple[Range, ...] = ((0, 2**62),)


class _Held:
    """A document, with the id and the model of its vector if it has one."""

    __slots__ = ("id", "model", "note", "texts")

    def __init__(self, texts: tuple[str, ...], note: bytes) -> None:
        self.texts = texts
        self.note = note
        self.id = 0
        self.model = ""


class MemoryIndex:
    """One search index."""

    def __init__(self, index: SearchIndex) -> None:
        self.declared = index
        self._held: dict[int, _Held] = {}
        self._places: list[int] = []
        self._postings: dict[str, dict[int, list[tuple[int, int]]]] = {}
        self._vectors: dict[str, Vectors] = {}
        self._last_id = 0

    def put(self, document: Document) -> None:
        place = document.place
        if place in self._held:
            self._drop(place)
        insort(self._places, place)
        self._held[place] = _Held(document.texts, document.note)
        for field, text in enumerate(document.texts):
            for offset, term in enumerate(text.split()):
                self._postings.setdefault(term, {}).setdefault(place, []).append((field, offset))

    def withdraw(self, withdrawal: Withdrawal) -> None:
        for place in list(self._between(withdrawal.first, withdrawal.last)):
            self._drop(place)

    def embed(self, model: str, embeddings: Sequence[Embedding]) -> int:
        kept = [each for each in embeddings if each.place in self._held]
        known = self._vectors.get(model)
        length = None if known is None else known.length
        length = check_lengths([each.vector for each in embeddings], length)
        if not kept or length is None:
            return 0
        ids = range(self._last_id + 1, self._last_id + 1 + len(kept))
        self._last_id += len(kept)
        vectors = self._vectors.setdefault(model, Vectors(length))
        vectors.add(ids, [each.place for each in kept], [each.vector for each in kept])
        for id, each in zip(ids, kept, strict=True):
            held = self._held[each.place]
            self._drop_vector(held)
            held.id, held.model = id, model
        return len(kept)

    def _drop(self, place: int) -> None:
        held = self._held.pop(place)
        self._drop_vector(held)
        del self._places[bisect_left(self._places, place)]
        for term in {term for text in held.texts for term in text.split()}:
            standing = self._postings[term]
            del standing[place]
            if not standing:
                del self._postings[term]

    def _drop_vector(self, held: _Held) -> None:
        if held.model:
            self._vectors[held.model].drop([held.id])

    def search(self, search: TextSearch) -> TextFound:
        found: dict[str, Postings] = {}
        left = search.most
        ordered = sorted(search.terms, key=lambda term: len(self._postings.get(term, ())))
        for number, term in enumerate(ordered):
            rows = list(self._occurrences(term, search.within))
            complete = len(rows) <= left
            if not complete:
                rows = rows[:left] if number == 0 else []
            left -= len(rows)
            documents = len(self._postings.get(term, ()))
            found[term] = Postings(documents, _array(rows), complete)
        return TextFound(len(self._held), tuple(found[term] for term in search.terms))

    def notes(self, places: Sequence[int]) -> list[bytes | None]:
        held = [self._held.get(place) for place in places]
        return [None if each is None else each.note for each in held]

    def places(self, after: int, limit: int) -> list[int]:
        start = bisect_right(self._places, after)
        return self._places[start : start + limit]

    def state(self) -> SearchState:
        vectors = {model: known.held for model, known in self._vectors.items() if known.held}
        return SearchState(len(self._held), vectors)

    def nearest(self, search: VectorSearch) -> list[Near]:
        vectors = self._vectors.get(search.model)
        if vectors is None:
            return []
        if vectors.size > 2 * vectors.held:
            vectors.compact()
        return vectors.nearest(search.vector, search.limit, search.within)

    def vectors(self, model: str, places: Sequence[int]) -> VectorRows:
        import numpy as np

        vectors = self._vectors.get(model)
        if vectors is None:
            return vector_rows({}, places)
        return VectorRows(*vectors.of_places(np.array(places, dtype=np.int64)))

    def unembedded(self, model: str, after: int, limit: int) -> list[int]:
        found: list[int] = []
        for place in self._places[bisect_right(self._places, after) :]:
            if len(found) >= limit:
                break
            if self._held[place].model != model:
                found.append(place)
        return found

    def _occurrences(
        self, term: str, within: Sequence[Range] | None
    ) -> Iterator[tuple[int, int, int]]:
        standing = self._postings.get(term)
        if standing is None:
            return
        places = sorted(standing)
        for first, last in _EVERYWHERE if within is None else within:
            for place in places[bisect_left(places, first) : bisect_right(places, last)]:
                for field, offset in standing[place]:
                    yield place, field, offset

    def _between(self, first: int, last: int) -> list[int]:
        return self._places[bisect_left(self._places, first) : bisect_right(self._places, last)]


def _array(rows: list[tuple[int, int, int]]) -> np.ndarray:
    import numpy as np

    return np.array(rows, dtype=np.int64).reshape(-1, 3)


class MemorySearch(SearchEngine, MemoryExtension):
    """Search indexes of a store in memory."""

    def __init__(self, adapter: MemoryAdapter) -> None:
        self._adapter = adapter
        #: None: it was erased, and will perhaps be made again.
        self._indexes: dict[str, MemoryIndex | None] = {}

    async def prepare(self, index: SearchIndex) -> bool:
        self._adapter.check_open()
        known = self._indexes.get(index.name)
        if known is not None and known.declared == index:
            return False
        self._indexes[index.name] = MemoryIndex(index)
        return True

    async def erase(self, index: str) -> None:
        self._adapter.check_open()
        self._indexes[index] = None

    async def search_text(self, search: TextSearch, options: Options = DEFAULT) -> TextFound:
        return self._index(search.index).search(search)

    async def search_vectors(self, search: VectorSearch, options: Options = DEFAULT) -> list[Near]:
        return self._index(search.index).nearest(search)

    async def notes(self, index: str, places: Sequence[int]) -> list[bytes | None]:
        return self._index(index).notes(places)

    async def places(self, index: str, after: int, limit: int) -> list[int]:
        return self._index(index).places(after, limit)

    async def embed(self, index: str, model: str, embeddings: Sequence[Embedding]) -> int:
        return self._index(index).embed(model, embeddings)

    async def vectors(
        self, index: str, model: str, places: Sequence[int], noted: Sequence[int] = ()
    ) -> VectorRows:
        found = self._index(index)
        return msgspec.structs.replace(found.vectors(model, places), notes=found.notes(noted))

    async def unembedded(self, index: str, model: str, after: int, limit: int) -> list[int]:
        return self._index(index).unembedded(model, after, limit)

    async def state(self, index: str, *, thorough: bool = False) -> SearchState:
        del thorough  # nothing can be damaged
        return self._index(index).state()

    def check(self, changes: Sequence[Document | Withdrawal]) -> None:
        for change in changes:
            if change.index not in self._indexes:
                raise not_prepared(change.index)
            index = self._indexes[change.index]
            if index is not None and isinstance(change, Document):
                check_document(index.declared, change)

    def apply(self, changes: Sequence[Document | Withdrawal]) -> None:
        for change in changes:
            index = self._indexes[change.index]
            if index is None:
                continue  # rows are what matters: a commit does not fail for an index
            if isinstance(change, Document):
                index.put(change)
            else:
                index.withdraw(change)

    def clear(self) -> None:
        self._indexes.clear()

    def _index(self, name: str) -> MemoryIndex:
        self._adapter.check_open()
        index = self._indexes.get(name)
        if index is None:
            raise not_prepared(name)
        return index

"""A search index of the kit through one adapter."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from perdure.search.engine import (
    Document,
    Embedding,
    Near,
    Range,
    SearchIndex,
    TextFound,
    TextSearch,
    VectorSearch,
    Withdrawal,
    engine_of,
)
from perdure.storage.adapter import Adapter
from perdure.storage.options import DEFAULT
from perdure.storage.rows import Batch

#: Place, field, and the number of terms before it.
Occurrence: TypeAlias = tuple[int, int, int]


class KitIndex:
    """Documents and searches of a check. Made by `Bench.index`."""

    def __init__(self, adapter: Adapter, declared: SearchIndex) -> None:
        self.adapter = adapter
        self.engine = engine_of(adapter)
        self.declared = declared
        self.name = declared.name
        self.made = False

    def document(self, place: int, *texts: str, note: bytes = b"") -> Document:
        missing = len(self.declared.fields) - len(texts)
        return Document(self.name, place, texts + ("",) * missing, note)

    def withdrawal(self, first: int, last: int) -> Withdrawal:
        return Withdrawal(self.name, first, last)

    async def change(self, *changes: Document | Withdrawal) -> None:
        await self.adapter.commit(Batch(changes=changes), DEFAULT)

    async def search(
        self, *terms: str, within: Sequence[Range] | None = None, most: int = 12_000
    ) -> TextFound:
        search = TextSearch(index=self.name, terms=terms, within=within, most=most)
        return await self.engine.search_text(search)

    async def find(self, term: str, within: Sequence[Range] | None = None) -> list[Occurrence]:
        found = await self.search(term, within=within)
        return occurrences(found)[0]

    async def places(self, after: int = -1, limit: int = 1_000) -> list[int]:
        return await self.engine.places(self.name, after, limit)

    async def notes(self, *places: int) -> list[bytes | None]:
        return await self.engine.notes(self.name, places)

    async def embed(self, vectors: dict[int, bytes], model: str = "m") -> int:
        embeddings = [Embedding(*pair) for pair in vectors.items()]
        return await self.engine.embed(self.name, model, embeddings)

    async def near(
        self,
        vector: bytes,
        model: str = "m",
        *,
        within: Sequence[Range] | None = None,
        limit: int = 100,
    ) -> list[Near]:
        search = VectorSearch(
            index=self.name, model=model, vector=vector, within=within, limit=limit
        )
        return await self.engine.search_vectors(search)

    async def nearest(self, vector: bytes, model: str = "m", limit: int = 100) -> list[int]:
        return [near.place for near in await self.near(vector, model, limit=limit)]

    async def unembedded(self, model: str = "m", after: int = -1, limit: int = 1_000) -> list[int]:
        return await self.engine.unembedded(self.name, model, after, limit)

    async def vectors(self, *places: int, model: str = "m") -> list[bytes | None]:
        """In order; None where there is none."""
        found = await self.engine.vectors(self.name, model, places)
        known = zip(found.at.tolist(), found.rows, strict=True)
        by_number = {number: row.tobytes() for number, row in known}
        return [by_number.get(number) for number in range(len(places))]

    async def tend(self) -> None:
        while await self.engine.tend(self.name):
            pass


def occurrences(found: TextFound) -> list[list[Occurrence]]:
    return [[tuple(row) for row in postings.found.tolist()] for postings in found.terms]

"""A searched store in memory: passages put where a test wants them, and a scope over them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any

import msgspec

from perdure.history.log_records import Head, SessionRecord
from perdure.recall.embedders import Embedder
from perdure.recall.places import INDEX, REFERENCES, Spot, memories_of, turns
from perdure.recall.scoping.scope import GroupNumbers, Scope
from perdure.recall.searching.searcher import Searcher
from perdure.recall.values import Filters, Note, Question
from perdure.recall.words import tells_time, terms
from perdure.search.engine import Document, Embedding, engine_of
from perdure.storage.registry import adapter_for
from perdure.storage.store import Store

SESSION, OTHER = "planner/auth", "planner/other"
MEMORIES = memories_of("planner")
NUMBERS = {SESSION: 3, OTHER: 4, MEMORIES: 5, REFERENCES: 6}
THEN = datetime(2023, 6, 15, 12, tzinfo=UTC)
_encode = msgspec.msgpack.Encoder().encode


def scope(*groups: str) -> Scope:
    """Everything of these groups; of all of them, if none is named."""
    names = groups or tuple(NUMBERS)

    def ranges(*wanted: str) -> tuple[tuple[int, int], ...]:
        return tuple(turns(NUMBERS[name]) for name in wanted if name in names)

    return Scope(
        GroupNumbers(NUMBERS),
        turns=ranges(SESSION, OTHER),
        line=ranges(SESSION),
        memories=ranges(MEMORIES),
        references=ranges(REFERENCES),
        session=SESSION,
    )


def question(text: str, *, limit: int = 10, **filters: Any) -> Question:
    record = SessionRecord(id=SESSION, type="session", agent="planner")
    return Question(
        text=text,
        record=record,
        head=Head(SESSION),
        limit=limit,
        filters=Filters(**filters),
        moment=int(THEN.timestamp() * 1e6),
    )


class Library:
    """A store with an index, and its searcher."""

    def __init__(self, store: Store, embedder: Embedder | None) -> None:
        self.store = store
        self.embedder = embedder
        self.searcher = Searcher(store, embedder)

    async def put(
        self,
        turn: int,
        said: str = "",
        answered: str = "",
        tools: str = "",
        *,
        group: str = SESSION,
        round: int = 1,
        part: int = 0,
        **note: Any,
    ) -> None:
        place = Spot(NUMBERS[group], turn, round, part).place
        fields = [terms(text) for text in (said, answered, tools)]
        known = Note(
            **{
                "time": int(THEN.timestamp()) - 86_400 + turn,
                "lengths": tuple(len(field) for field in fields),
                "asks": "?" in said,
                "timed": tells_time(said),
                **note,
            }
        )
        texts = tuple(" ".join(field) for field in fields)
        async with self.store.transaction() as transaction:
            transaction.include(Document(INDEX.name, place, texts, _encode(known)))
        if self.embedder is not None:
            [vector] = await self.embedder.embed([f"{said} {answered}"])
            await engine_of(self.store.adapter).embed(
                INDEX.name, self.embedder.name, [Embedding(place, vector)]
            )

    async def keys(self, text: str, *, seen: Scope | None = None, **filters: Any) -> list[str]:
        """Keys of what is found by words, best first."""
        found = await self.searcher.keyword(question(text, **filters), seen or scope())
        return [each.key for each in found.candidates]


@asynccontextmanager
async def library(embedder: Embedder | None = None) -> AsyncIterator[Library]:
    async with Store(adapter_for("memory://")) as store:
        await engine_of(store.adapter).prepare(INDEX)
        yield Library(store, embedder)

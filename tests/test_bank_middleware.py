"""Everything in a bank passes the middleware chain: searches, sessions, memories, large values."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
import pytest

import perdure
from perdure.config import AuditConfig, Config, StorageConfig
from perdure.core.errors import InvalidInput
from perdure.storage.middleware import Call, Handler, SearchCall
from perdure.storage.options import DEFAULT
from perdure.storage.rows import Row
from tests.storage.test_tracing import Watch, attributes

TALK = [
    {"role": "user", "content": "Which port does the harbour service listen on?"},
    {"role": "assistant", "content": "The harbour service listens on port 7443."},
]


@perdure.record("bank_sheets")
class Sheet(msgspec.Struct, frozen=True):
    id: Annotated[str, perdure.Key()]
    text: str


# Searches ---------------------------------------------------------------------------------------


async def test_searches_pass_the_chain(store_url: str) -> None:
    seen: list[SearchCall] = []

    async def look(call: Call, proceed: Handler) -> Any:
        if isinstance(call, SearchCall):
            seen.append(call)
        return await proceed(call)

    async with perdure.open(store_url, config=Config(), middleware=[look]) as bank:
        session = await bank.session("ada/1")
        await session.append(TALK)
        await bank.settle()
        found = await session.recall("harbour port")
        assert "7443" in found.hits[0].text
        assert {call.kind for call in seen} == {"text", "vectors"}
        assert {call.collection for call in seen} == {"perdure_recall"}
        measure = bank.metrics.totals("search", "perdure_recall")
        assert (measure.count, measure.failures) == (len(seen), 0)
        assert measure.rows > 0


async def test_a_search_can_be_refused(store_url: str) -> None:
    async def refuse(call: Call, proceed: Handler) -> Any:
        if isinstance(call, SearchCall):
            raise InvalidInput("Not today.")
        return await proceed(call)

    async with perdure.open(store_url, config=Config(), middleware=[refuse]) as bank:
        session = await bank.session("ada/1")
        await session.append(TALK)
        await bank.settle()
        with pytest.raises(InvalidInput, match="Not today"):
            await session.recall("harbour port")
        assert bank.metrics.totals("search").errors == {"InvalidInput": 1}


async def test_searches_are_spans(store_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    watch = Watch()
    monkeypatch.setattr("opentelemetry.trace.get_tracer_provider", lambda: watch.tracers)
    async with perdure.open(store_url, config=Config()) as bank:
        session = await bank.session("ada/1")
        await session.append(TALK)
        await bank.settle()
        await session.recall("harbour port")
    spans = [span for span in watch.spans if span.name == "search perdure_recall"]
    assert {attributes(span)["perdure.search"] for span in spans} == {"text", "vectors"}
    assert any(attributes(span)["db.response.returned_rows"] for span in spans)
    assert not any("harbour" in str(attributes(span)) for span in spans)


# The audit trail --------------------------------------------------------------------------------


async def test_a_star_covers_sessions_and_memories(store_url: str) -> None:
    config = Config(audit=AuditConfig(collections=("*",), reads=("*",), actor="ada"))
    async with perdure.open(store_url, config=config) as bank:
        session = await bank.session("ada/1")
        await session.append(TALK)
        await bank.contexts.save(perdure.StateRecord(id="ada/2", type="plan"))
        await bank.windows.append("ada/2", "asked")
        memory = await bank.memories.add("ada", "The harbour is on 7443.")
        await bank.collection(Sheet).put(Sheet("a", "x"))
        await bank.settle()
        await session.recall("harbour port")
        written, searched = set[str](), list[Any]()
        page = await bank.audit.entries()
        while True:
            written |= {each.collection for each in page.entries if each.action == "put"}
            searched += [each for each in page.entries if each.action == "search"]
            if page.next is None:
                break
            page = await bank.audit.entries(after=page.next)
        assert written == {
            "perdure_sessions",
            "perdure_turns",
            "perdure_state_records",
            "perdure_entries",
            "perdure_memories",
            "bank_sheets",
        }
        assert {(each.actor, each.collection, each.query) for each in searched} == {
            ("ada", "perdure_recall", "text"),
            ("ada", "perdure_recall", "vectors"),
        }
        assert "harbour" not in str(searched)  # nor what was looked for
        (made,) = [
            each
            for each in (await bank.audit.history_of("perdure_memories", memory.id))
            if each.action == "put"
        ]
        assert made.version_after == 1
        assert (await bank.audit.verify("perdure_sessions", "ada/1")).ok
        assert [problem async for problem in bank.verify()] == []


# Large values -----------------------------------------------------------------------------------


async def row_of(bank: perdure.Bank, key: str) -> Row:
    (row,) = await bank.store.adapter.get("bank_sheets", [key], DEFAULT)
    assert row is not None
    return row


async def test_large_values_are_compressed_by_themselves(store_url: str) -> None:
    small, large = Sheet("small", "so " * 1_000), Sheet("large", "so " * 2_000)
    async with perdure.open(store_url, config=Config()) as bank:
        sheets = bank.collection(Sheet)
        await sheets.put_many([small, large])
        assert (await row_of(bank, "small")).content_type == "application/json"
        packed = await row_of(bank, "large")
        assert packed.content_type == "application/json;zstd=1"
        assert len(packed.value) < 200
        assert await sheets.query().order_by("id").values() == [large, small]


async def test_how_large_is_a_setting(store_url: str) -> None:
    sheet = Sheet("a", "so " * 2_000)
    for above, suffix in ((0, ""), (100_000, ""), (500, ";zstd=1")):
        config = Config(storage=StorageConfig(compress_above=above))
        async with perdure.open(store_url, config=config) as bank:
            await bank.collection(Sheet).put(sheet)
            assert (await row_of(bank, "a")).content_type == f"application/json{suffix}"
    if store_url != "memory://":
        off = Config(storage=StorageConfig(compression=False))
        async with perdure.open(store_url, config=off) as bank:
            assert await bank.collection(Sheet).get("a") == sheet
            await bank.collection(Sheet).put(sheet)
        async with perdure.open(store_url, config=Config()) as bank:
            (done,) = await bank.migrate(Sheet)  # and those that are there
            assert done.migrated == 1
            assert (await row_of(bank, "a")).content_type == "application/json;zstd=1"

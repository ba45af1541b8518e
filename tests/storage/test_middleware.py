"""The chain around every operation: its order, and metrics and compression in it."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import msgspec
import pytest
import zstandard

from perdure.core.errors import Conflict, Corrupted, Unavailable
from perdure.storage.compression import Compression
from perdure.storage.metrics import BUCKETS, Measure, Metrics
from perdure.storage.middleware import (
    Call,
    Commit,
    Find,
    Get,
    Handler,
    Middleware,
    Remove,
    Summarize,
    collection_of,
)
from perdure.storage.options import DEFAULT, Options
from perdure.storage.registry import adapter_for
from perdure.storage.rows import Batch, Put, Row
from perdure.storage.store import Store
from perdure.testing import MemoryAdapter
from tests.storage.notes import Author, Note, Reply

WORDS = (
    "the agent decided to refresh its token before the session expires and then wrote a test for"
    " the login page because OAuth returned an error code"
)


def sentence(dice: random.Random, words: int = 40) -> str:
    return " ".join(dice.choices(WORDS.split(), k=words))


@pytest.fixture
async def chain(store_url: str) -> AsyncIterator[Callable[..., Awaitable[Store]]]:
    """Opens one adapter, and stores on it with the middleware a test wants."""
    adapter = adapter_for(store_url)
    await adapter.initialize()

    async def make(*middleware: Middleware) -> Store:
        return Store(adapter, middleware=middleware)

    yield make
    await adapter.close()


Make = Callable[..., Awaitable[Store]]


# The chain ----------------------------------------------------------------------------------------


async def test_the_first_is_the_outermost() -> None:
    seen: list[str] = []

    def noting(name: str) -> Middleware:
        async def note(call: Call, proceed: Handler) -> Any:
            seen.append(f"{name} {type(call).__name__} {collection_of(call)}")
            answer = await proceed(call)
            seen.append(f"{name} done")
            return answer

        return note

    store = Store(MemoryAdapter(), middleware=[noting("outer"), noting("inner")])
    await store.collection(Note).put(Note("a"))
    assert seen == ["outer Commit notes", "inner Commit notes", "inner done", "outer done"]
    seen.clear()
    await store.collection(Note).get("a")
    await store.collection(Note).query().values()
    await store.collection(Note).query().count()
    await store.collection(Note).query().delete()
    async with store.transaction() as transaction:
        transaction.emit("x")
    kinds = [line for line in seen if line.startswith("outer") and not line.endswith("done")]
    assert kinds == [
        "outer Get notes",
        "outer Find notes",
        "outer Summarize notes",
        "outer Remove notes",
        "outer Commit ",
    ]


async def test_a_middleware_may_change_the_call_and_the_answer() -> None:
    async def shout(call: Call, proceed: Handler) -> Any:
        if isinstance(call, Commit):
            writes = tuple(
                msgspec.structs.replace(
                    write, value=write.value.replace(b"ada", b"ADA"), checksum=0
                )
                if isinstance(write, Put)
                else write
                for write in call.batch.writes
            )
            return await proceed(Commit(Batch(writes), call.options))
        answer = await proceed(call)
        return answer[:1] if isinstance(call, Find) else answer

    store = Store(MemoryAdapter(), middleware=[shout])
    await store.collection(Author).put_many([Author("a", "ada"), Author("b", "bob")])
    assert await store.collection(Author).get("a") == Author("a", "ADA")
    assert len(await store.collection(Author).query().values()) == 1


async def test_a_middleware_may_answer_itself_or_catch() -> None:
    tries = 0

    async def retry(call: Call, proceed: Handler) -> Any:
        try:
            return await proceed(call)
        except Unavailable:
            return await proceed(call)

    async def flaky(call: Call, proceed: Handler) -> Any:
        nonlocal tries
        tries += 1
        if tries == 1:
            raise Unavailable
        return await proceed(call)

    async def empty(call: Call, proceed: Handler) -> Any:
        return [None] * len(call.keys) if isinstance(call, Get) else await proceed(call)

    store = Store(MemoryAdapter(), middleware=[empty, retry, flaky])
    await store.collection(Author).put(Author("a", "x"))
    assert tries == 2
    assert await store.collection(Author).get("a") is None


def test_every_call_is_about_a_collection() -> None:
    query = Store(MemoryAdapter()).collection(Note).query()._query
    assert collection_of(Get("notes", ["a"], DEFAULT)) == "notes"
    assert collection_of(Find(query, DEFAULT)) == "notes"
    assert collection_of(Remove(query, DEFAULT)) == "notes"
    assert collection_of(Commit(Batch(), DEFAULT)) == ""
    assert Summarize in Call.__args__


# Checksums ----------------------------------------------------------------------------------------


async def test_a_changed_byte_is_noticed(chain: Make) -> None:
    store = await chain()
    authors = store.collection(Author)
    await authors.put_many([Author("a", "Ada"), Author("b", "Bob")])
    row = (await store.adapter.get("authors", ["a"], DEFAULT))[0]
    assert row is not None
    for bad in (
        Put("authors", "a", row.value.replace(b"Ada", b"Eve"), row.content_type, 1, row.checksum),
        Put("authors", "a", row.value, "application/msgpack", 1, row.checksum),
        Put("authors", "a", row.value, row.content_type, 2, row.checksum),
        Put("authors", "c", row.value, row.content_type, 1, row.checksum),
    ):
        await store.adapter.commit(Batch((bad,)), DEFAULT)
        with pytest.raises(Corrupted, match=f"authors/{bad.key} is damaged") as caught:
            await authors.get(bad.key)
        assert caught.value.record == f"authors/{bad.key}"
        assert "verify" in caught.value.hint
        with pytest.raises(Corrupted):
            await authors.query().values()
    assert await authors.get("b") == Author("b", "Bob")


# Metrics ------------------------------------------------------------------------------------------


async def test_metrics(chain: Make) -> None:
    metrics = Metrics()
    store = await chain(metrics)
    notes = store.collection(Note)
    await notes.put_many([Note("a", text="x" * 100), Note("b")])
    await notes.get("a")
    await notes.get("nobody")
    await notes.query().values()
    await notes.query().count()
    await notes.query().prefix("b").delete()
    with pytest.raises(Conflict):
        await notes.put(Note("a"), Options(expected=9))
    commits = metrics.measures["commit", "notes"]
    assert commits.count == 2
    assert commits.errors == {"Conflict": 1}
    assert commits.bytes_written > 100
    assert sum(commits.buckets) == 2
    assert commits.seconds > 0
    gets = metrics.measures["get", "notes"]
    assert (gets.count, gets.errors, gets.bytes_written) == (2, {}, 0)
    assert gets.bytes_read > 100
    assert metrics.measures["find", "notes"].bytes_read > gets.bytes_read
    assert metrics.measures["summarize", "notes"].count == 1
    assert metrics.measures["remove", "notes"].count == 1


def test_quantiles() -> None:
    measure = Measure(count=100)
    measure.buckets[0], measure.buckets[3], measure.buckets[-1] = 50, 45, 5
    assert measure.quantile(0.5) == BUCKETS[0]
    assert measure.quantile(0.9) == pytest.approx(BUCKETS[2] + (BUCKETS[3] - BUCKETS[2]) * 40 / 45)
    assert measure.quantile(0.99) == float("inf")
    assert Measure().quantile(0.5) in (0.0, BUCKETS[0])


# Compression --------------------------------------------------------------------------------------


async def raw(store: Store, key: str, collection: str = "notes") -> Row:
    (row,) = await store.adapter.get(collection, [key], DEFAULT)
    assert row is not None
    return row


async def test_marked_types_are_compressed(chain: Make) -> None:
    store = await chain(Compression())
    long = Note("long", text="so " * 200)
    await store.collection(Note).put_many([long, Note("short")])
    row = await raw(store, "long")
    assert row.content_type == "application/json;zstd=1"
    assert len(row.value) < 100
    assert (await raw(store, "short")).content_type.startswith("application/json")
    assert await store.collection(Note).get("long") == long
    assert await store.collection(Note).query().values() == [long, Note("short")]
    await store.collection(Author).put(Author("a", "x" * 500))
    assert (await raw(store, "a", "authors")).content_type == "application/json"


async def test_what_does_not_shrink_is_left_alone(chain: Make) -> None:
    store = await chain(Compression())
    noise = Note(
        "noise", text="".join(map(chr, random.Random(1).sample(range(0x4E00, 0x9FFF), 300)))
    )
    await store.collection(Note).put(noise)
    row = await raw(store, "noise")
    if row.content_type == "application/json":
        assert b"noise" in row.value
    assert await store.collection(Note).get("noise") == noise


async def test_short_texts_shrink_with_the_dictionary_that_ships(chain: Make) -> None:
    store = await chain(Compression())
    note = Note("a", text="Let me check how this function is used in the other modules first.")
    await store.collection(Note).put(note)
    row = await raw(store, "a")
    assert row.content_type == "application/json;zstd=1"
    alone = zstandard.ZstdCompressor().compress(msgspec.json.encode(note))
    assert len(row.value) < 0.8 * len(alone)
    assert await (await chain(Compression())).collection(Note).get("a") == note


async def test_a_dictionary_of_a_newer_release_is_named(chain: Make) -> None:
    store = await chain(Compression())
    newer = Put("notes", "a", b"a frame", "application/msgpack;zstd=99", 1, 0, (None,) * 6)
    await store.collection(Note).put(Note("b"))
    await store.commit(Batch((newer,)), DEFAULT)
    with pytest.raises(Corrupted, match="notes/a") as caught:
        await store.collection(Note).get("a")
    assert "newer Perdure" in caught.value.hint
    assert await store.collection(Note).get("b") == Note("b")


async def test_damaged_frames_are_named(chain: Make) -> None:
    store = await chain(Compression())
    await store.collection(Note).put(Note("a", text="so " * 200))
    # A checksum of 0 is left for the store: what arrives is damaged already.
    damaged = Put("notes", "a", b"\x28\xb5\x2f\xfd garbage", "application/msgpack;zstd=1", 1, 0,
                  (None,) * 6)  # fmt: skip
    await store.commit(Batch((damaged,)), DEFAULT)
    with pytest.raises(Corrupted, match="notes/a"):
        await store.collection(Note).get("a")


async def test_transactions_see_through_compression(chain: Make) -> None:
    store = await chain(Compression())
    note = Note("a", "ada", text="so " * 200)
    await store.collection(Note).put(note)
    async with store.transaction() as transaction:
        notes = transaction.collection(Note)
        other = Note("b", "ada", text="la " * 200)
        await notes.put(other)
        assert await notes.query().where("author", "=", "ada").values() == [note, other]
        assert await notes.get("b") == other
    assert await store.collection(Note).get("b") == other


async def test_indexes_are_filled_from_compressed_records(chain: Make) -> None:
    store = await chain(Compression())
    await store.collection(Reply).put(Reply("r", "a"))
    await store.collection(Note).put(Note("a", "ada", text="so " * 200))
    assert await store.collection(Note).query().where("author", "=", "ada").count() == 1

"""Transactions on every backend."""

# ruff: noqa: PT012  # a transaction is a block

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from perdure.core.errors import (
    Conflict,
    InvalidInput,
    InvalidValue,
    NotIndexed,
    Unsupported,
)
from perdure.storage.codecs import BY_NAME
from perdure.storage.finder import QueryBuilder
from perdure.storage.options import Options
from perdure.storage.store import Store
from perdure.storage.transaction import Transaction
from perdure.testing import ManualClock
from tests.storage.notes import Author, Note, Reply


class Oops(Exception):
    """Something of the caller's own."""


async def ids(finder: QueryBuilder[Note]) -> list[str]:
    return [note.id for note in await finder.values()]


async def events(store: Store) -> list[tuple[str, str, Any]]:
    found, _ = await store.adapter.events("", 1_000)
    decode = BY_NAME["msgpack"].decode_plain
    return [(event.topic, event.key, decode(event.payload)) for event in found]


async def test_all_or_nothing(store: Store) -> None:
    async with store.transaction() as transaction:
        assert await transaction.collection(Note).put(Note("a")) == 0
        await transaction.collection(Author).put(Author("ada", "Ada"))
        assert await store.collection(Note).get("a") is None  # not yet
    assert await store.collection(Note).get("a") == Note("a")
    assert await store.collection(Author).get("ada") is not None
    with pytest.raises(Oops):
        async with store.transaction() as transaction:
            await transaction.collection(Note).put(Note("b"))
            await transaction.collection(Note).delete("a")
            raise Oops
    assert await store.collection(Note).get("a") == Note("a")
    assert await store.collection(Note).get("b") is None


async def test_reads_see_own_writes(store: Store) -> None:
    await store.collection(Note).put_many([Note("a", stars=1), Note("b", stars=2)])
    async with store.transaction() as transaction:
        notes = transaction.collection(Note)
        await notes.put(Note("a", stars=10))
        await notes.put(Note("c", stars=3))
        await notes.delete("b")
        assert await notes.get("a") == Note("a", stars=10)
        assert await notes.get("b") is None
        assert await notes.get_many(["c", "b", "a"]) == [
            Note("c", stars=3),
            None,
            await notes.get("a"),
        ]
        found = await notes.fetch("c")
        assert found is not None
        assert found.version == 0  # it has none before the commit
        assert await ids(notes.query().where("stars", ">", 2)) == ["a", "c"]
        assert await ids(notes.query().order_by("-stars").limit(1)) == ["a"]
        assert await notes.query().where("stars", "=", 2).exists() is False
        await notes.put(Note("a", stars=0))
        assert await ids(notes.query().where("stars", ">", 2)) == ["c"]
    assert await ids(store.collection(Note).query()) == ["a", "c"]


@pytest.mark.parametrize("seed", range(8))
async def test_queries_inside_answer_as_they_will_afterwards(
    store: Store, clock: ManualClock, seed: int
) -> None:
    """Whatever was written, each query gives the same inside as once it is committed."""
    dice = random.Random(seed)

    def note() -> Note:
        return Note(
            f"{dice.choice('ab')}/{dice.randrange(8)}",
            dice.choice([None, "x", "xy", "y"]),
            dice.choice([None, 0, 1, 2]),
            dice.choice([None, 0.5, 1.5]),
            labels=dice.choice([{}, {"p": "1"}, {"p": "2", "q": "1"}]),
        )

    notes = store.collection(Note)
    await notes.put_many([note() for _ in range(8)])
    clock.tick()
    queries: list[QueryBuilder[Note]] = []
    for _ in range(12):
        finder = notes.query().prefix(dice.choice(["", "a", "b/"]))
        if dice.random() < 0.5:
            finder = finder.where("author", dice.choice(["=", "!=", ">", "prefix"]), "x")
        if dice.random() < 0.3:
            finder = finder.where("stars", "in", [1, 2])
        if dice.random() < 0.2:
            finder = finder.tagged(p="1")
        order = dice.sample(["author", "stars", "weight"], dice.randrange(3))
        finder = finder.order_by(*(dice.choice(["", "-"]) + field for field in order))
        if dice.random() < 0.6:
            finder = finder.limit(dice.randrange(5)).offset(dice.randrange(3))
        queries.append(finder)
    inside = []
    async with store.transaction() as transaction:
        own = transaction.collection(Note)
        for _ in range(6):
            if dice.random() < 0.7:
                await own.put(note())
            else:
                await own.delete(note().id)
        for finder in queries:
            there = own.query()
            there._query, there._includes = finder._query, finder._includes
            inside.append(await there.values())
    assert inside == [await finder.values() for finder in queries]


async def test_times_inside_are_those_of_the_commit(store: Store, clock: ManualClock) -> None:
    notes = store.collection(Note)
    for key in "abc":
        clock.tick()
        await notes.put(Note(key))
    clock.tick()
    async with store.transaction() as transaction:
        own = transaction.collection(Note)
        await own.put(Note("a", stars=1))
        created, updated = (
            await ids(own.query().order_by("created")),
            await ids(own.query().order_by("-updated")),
        )
    assert created == await ids(notes.query().order_by("created"))
    assert updated == await ids(notes.query().order_by("-updated"))


async def test_pages_inside(store: Store) -> None:
    await store.collection(Note).put_many([Note(f"{n}") for n in range(6)])
    async with store.transaction() as transaction:
        notes = transaction.collection(Note)
        await notes.delete("0")
        await notes.put(Note("25"))
        first = await notes.list(limit=3)
        second = await notes.list(limit=3, after=first.next)
        assert [n.id for n in first.values + second.values] == ["1", "2", "25", "3", "4", "5"]
        assert (await notes.list(limit=3, before=second.previous)).values == first.values


async def test_related_records_inside(store: Store) -> None:
    await store.collection(Note).put(Note("a"))
    async with store.transaction() as transaction:
        await transaction.collection(Reply).put(Reply("r", "a"))
        (item,) = await transaction.collection(Note).query().include(Reply, by="note").execute()
        assert item.related(Reply) == [Reply("r", "a")]


async def test_deleting_by_query_inside(store: Store) -> None:
    await store.collection(Note).put_many([Note("a", stars=1), Note("b", stars=1), Note("c")])
    async with store.transaction() as transaction:
        notes = transaction.collection(Note)
        await notes.put(Note("d", stars=1))
        assert await notes.query().where("stars", "=", 1).delete() == 3
        assert await ids(notes.query()) == ["c"]
    assert await ids(store.collection(Note).query()) == ["c"]


async def test_counting_inside(store: Store) -> None:
    await store.collection(Note).put(Note("a", stars=1))
    async with store.transaction() as transaction:
        notes = transaction.collection(Note)
        assert await notes.query().count() == 1
        await transaction.collection(Author).put(Author("x", "X"))
        assert await notes.query().aggregate(s="sum stars") == [{"s": 1}]
        await notes.put(Note("b"))
        with pytest.raises(Unsupported, match="not committed") as caught:
            await notes.query().count()
        assert "before you write" in caught.value.hint


async def test_fields_without_an_index_are_refused_inside(store: Store) -> None:
    async with store.transaction() as transaction:
        with pytest.raises(NotIndexed):
            transaction.collection(Note).query().where("text", "=", "x")


# Conflicts ----------------------------------------------------------------------------------------


async def test_what_was_read_must_not_have_changed(store: Store) -> None:
    notes = store.collection(Note)
    await notes.put_many([Note("a"), Note("b", stars=1)])

    async def by_key(transaction: Transaction) -> None:
        await transaction.collection(Note).get("a")

    async def absent(transaction: Transaction) -> None:
        await transaction.collection(Note).get("nobody")

    async def by_query(transaction: Transaction) -> None:
        await transaction.collection(Note).query().where("stars", "=", 1).values()

    async def change(key: str) -> None:
        await notes.put(Note(key, stars=7))

    async def delete(key: str) -> None:
        await notes.delete(key)

    for read, key, meddle in (
        (by_key, "a", change),
        (by_key, "a", delete),
        (absent, "nobody", change),
        (by_query, "b", change),
    ):
        with pytest.raises(Conflict) as caught:
            async with store.transaction() as transaction:
                await read(transaction)
                await meddle(key)
                await transaction.collection(Author).put(Author("late", "x"))
        assert caught.value.key == key
        assert await store.collection(Author).get("late") is None
        await notes.put_many([Note("a"), Note("b", stars=1)])
        await notes.delete("nobody")


async def test_replaced_by_a_namesake(store: Store, clock: ManualClock) -> None:
    notes = store.collection(Note)
    await notes.put(Note("a"))
    with pytest.raises(Conflict):
        async with store.transaction() as transaction:
            await transaction.collection(Note).get("a")
            clock.tick()
            await notes.delete("a")
            await notes.put(Note("a"))  # version 1 again, but another record
            await transaction.collection(Note).put(Note("b"))


async def test_readers_are_not_checked(store: Store) -> None:
    await store.collection(Note).put(Note("a"))
    async with store.transaction() as transaction:
        await transaction.collection(Note).get("a")
        await store.collection(Note).put(Note("a", stars=1))


async def test_blind_writes_do_not_conflict(store: Store) -> None:
    async with store.transaction() as transaction:
        await transaction.collection(Note).put(Note("a", stars=1))
        await store.collection(Note).put(Note("a", stars=2))
    assert await store.collection(Note).get("a") == Note("a", stars=1)


async def test_transact_repeats(store: Store) -> None:
    notes = store.collection(Note)
    await notes.put(Note("a", stars=0))
    runs = 0

    async def add(transaction: Transaction) -> int:
        nonlocal runs
        runs += 1
        own = transaction.collection(Note)
        note = await own.get("a")
        assert note is not None
        await asyncio.sleep(0)
        await own.put(Note("a", stars=(note.stars or 0) + 1))
        transaction.emit("added", note.stars)
        return note.stars or 0

    before = await asyncio.gather(*(store.transact(add) for _ in range(8)))
    assert sorted(before) == list(range(8))
    assert await notes.get("a") == Note("a", stars=8)
    assert [payload for _, _, payload in await events(store)] == list(range(8))
    assert runs >= 8


@pytest.mark.parametrize("store_url", ["memory"], indirect=True)  # it takes its time
async def test_transact_gives_up(store: Store) -> None:
    notes = store.collection(Note)
    runs = 0

    async def meddled(transaction: Transaction) -> None:
        nonlocal runs
        runs += 1
        await transaction.collection(Note).get("a")
        await notes.put(Note("a", stars=runs))
        await transaction.collection(Note).put(Note("b"))

    with pytest.raises(Conflict):
        await store.transact(meddled)
    assert runs > 3
    assert await notes.get("b") is None


async def test_errors_of_the_body_are_not_repeated(store: Store) -> None:
    runs = 0

    async def body(transaction: Transaction) -> None:
        nonlocal runs
        runs += 1
        raise Oops

    with pytest.raises(Oops):
        await store.transact(body)
    assert runs == 1


async def test_expected_versions(store: Store) -> None:
    notes = store.collection(Note)
    await notes.put(Note("a"))
    with pytest.raises(Conflict):
        async with store.transaction() as transaction:
            await transaction.collection(Note).put(Note("a", stars=1), Options(expected=0))
    async with store.transaction() as transaction:
        await transaction.collection(Note).put(Note("a", stars=1), Options(expected=1))
    assert await notes.get("a") == Note("a", stars=1)


async def test_an_expected_version_is_not_forgotten_by_a_second_write(store: Store) -> None:
    notes = store.collection(Note)
    await notes.put_many([Note("a"), Note("b")])
    for second in (Note("a", stars=2), None):
        with pytest.raises(Conflict):
            async with store.transaction() as transaction:
                own = transaction.collection(Note)
                await own.put(Note("a", stars=1), Options(expected=7))
                await (own.delete("a") if second is None else own.put(second))
    assert await notes.get("a") == Note("a")
    async with store.transaction() as transaction:
        own = transaction.collection(Note)
        await own.delete("a", Options(expected=1))
        await own.put(Note("a", stars=3))
        with pytest.raises(InvalidInput, match="already written"):
            await own.put(Note("a", stars=4), Options(expected=1))
    assert await notes.get("a") == Note("a", stars=3)


async def test_change_inside(store: Store) -> None:
    notes = store.collection(Note)

    def add(note: Note | None) -> Note:
        return Note("a", stars=1 if note is None else (note.stars or 0) + 1)

    async with store.transaction() as transaction:
        own = transaction.collection(Note)
        await own.change("a", add)
        await own.change("a", add)
        await own.delete("a")
        await own.change("a", add)
        await own.change("a", add)
    assert await notes.get("a") == Note("a", stars=2)
    with pytest.raises(Conflict):
        async with store.transaction() as transaction:
            await transaction.collection(Note).change("a", add)
            await notes.put(Note("a", stars=100))


# Savepoints ---------------------------------------------------------------------------------------


async def test_savepoints(store: Store) -> None:
    await store.collection(Note).put(Note("kept", stars=1))
    async with store.transaction() as transaction:
        notes = transaction.collection(Note)
        await notes.put(Note("a"))
        transaction.emit("first")
        with pytest.raises(Oops):
            async with transaction.savepoint():
                await notes.put(Note("a", stars=9))
                await notes.put(Note("b"))
                await notes.delete("kept")
                transaction.emit("undone")
                raise Oops
        assert await notes.get("a") == Note("a")
        assert await notes.get("b") is None
        assert await ids(notes.query()) == ["a", "kept"]
        async with transaction.savepoint():
            await notes.put(Note("c"))
            with pytest.raises(Oops):
                async with transaction.savepoint():
                    await notes.put(Note("d"))
                    raise Oops
        transaction.emit("last")
    assert await ids(store.collection(Note).query()) == ["a", "c", "kept"]
    assert [topic for topic, _, _ in await events(store)] == ["first", "last"]


async def test_what_a_savepoint_read_stays_checked(store: Store) -> None:
    await store.collection(Note).put(Note("a"))
    with pytest.raises(Conflict):
        async with store.transaction() as transaction:
            with pytest.raises(Oops):
                async with transaction.savepoint():
                    await transaction.collection(Note).get("a")
                    raise Oops
            await store.collection(Note).put(Note("a", stars=1))
            await transaction.collection(Note).put(Note("b"))


# Events -------------------------------------------------------------------------------------------


async def test_events_are_told_only_if_committed(store: Store) -> None:
    told = 0

    def count() -> None:
        nonlocal told
        told += 1

    store.on_events = count
    with pytest.raises(Oops):
        async with store.transaction() as transaction:
            transaction.emit("lost")
            raise Oops
    with pytest.raises(Conflict):
        async with store.transaction() as transaction:
            await transaction.collection(Note).put(Note("a"), Options(expected=3))
            transaction.emit("lost", 2)
    assert told == 0
    async with store.transaction() as transaction:
        transaction.emit("note.added", {"id": "a", "n": [1, None]}, key="a")
        transaction.emit("bare")
    assert told == 1
    assert await events(store) == [
        ("note.added", "a", {"id": "a", "n": [1, None]}),
        ("bare", "", None),
    ]


async def test_payloads_keep_any_text(store: Store) -> None:
    payload = {"text": "\0 \ud800", "\udc00": 1}
    async with store.transaction() as transaction:
        transaction.emit("t", payload)
    assert await events(store) == [("t", "", payload)]


async def test_what_is_no_event(store: Store) -> None:
    async with store.transaction() as transaction:
        for topic, key in (("", ""), ("\0", ""), ("a", "\ud800"), ("a" * 600, "")):
            with pytest.raises(InvalidInput):
                transaction.emit(topic, key=key)
        with pytest.raises(InvalidValue, match="cannot be stored"):
            transaction.emit("a", object())
    assert await events(store) == []


# Its life -----------------------------------------------------------------------------------------


async def test_use_outside_of_its_block(store: Store) -> None:
    transaction = store.transaction()
    with pytest.raises(InvalidInput, match="ended, or was not begun"):
        await transaction.collection(Note).put(Note("a"))
    async with transaction:
        notes = transaction.collection(Note)
        await notes.put(Note("a"))
    attempts: list[Any] = [
        notes.put(Note("b")),
        notes.get("a"),
        notes.query().values(),
        notes.query().count(),
        notes.delete("a"),
    ]
    for attempt in attempts:
        with pytest.raises(InvalidInput, match="ended, or was not begun"):
            await attempt
    with pytest.raises(InvalidInput):
        transaction.emit("x")
    assert await ids(store.collection(Note).query()) == ["a"]


async def test_empty_transactions(store: Store) -> None:
    async with store.transaction():
        pass
    async with store.transaction() as transaction:
        await transaction.collection(Note).get("a")


async def test_cancelled_before_its_end(store: Store) -> None:
    started = asyncio.Event()

    async def slow() -> None:
        async with store.transaction() as transaction:
            await transaction.collection(Note).put(Note("a"))
            transaction.emit("x")
            started.set()
            await asyncio.sleep(3600)

    task = asyncio.create_task(slow())
    await started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await store.collection(Note).get("a") is None
    assert await events(store) == []

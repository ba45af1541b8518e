"""The audit trail: every write has its entry, in the same commit, and nobody changes entries."""

from __future__ import annotations

import asyncio
import os
import random
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import timedelta
from typing import Annotated, Any, TypeAlias

import msgspec
import pytest

from perdure.config.settings import AuditConfig
from perdure.core import actors, clock
from perdure.core.actors import acting_as, system_user
from perdure.core.errors import (
    Conflict,
    Corrupted,
    DeadlineExceeded,
    InvalidInput,
    KeyRefused,
    Unavailable,
    Unsupported,
)
from perdure.storage.audit import (
    Action,
    Audit,
    AuditEntry,
    AuditTrail,
    audit_chain,
    audit_middleware,
)
from perdure.storage.audit import audit_trail as trail_module
from perdure.storage.audit.audit_chain import Hasher, OpenAuditSecret, follow
from perdure.storage.audit.audit_entries import TRAIL, UNREADABLE, EntryWriter, as_put
from perdure.storage.backends.memory import MemoryAdapter
from perdure.storage.compression import Compression
from perdure.storage.encryption import Encryption, MasterKeys
from perdure.storage.middleware import (
    Call,
    Commit,
    Find,
    Get,
    Handler,
    Middleware,
    Stage,
    collection_of,
)
from perdure.storage.options import DEFAULT, STRONG, Options
from perdure.storage.query import Query
from perdure.storage.records import Key, record, type_of
from perdure.storage.registry import adapter_for
from perdure.storage.rows import Batch, Delete, Put, Recode, Row
from perdure.storage.store import Store
from perdure.storage.transaction import Transaction
from perdure.testing.manual_clock import ManualClock
from tests.conftest import DURABLE
from tests.storage.notes import Author, Note, Spark

Make: TypeAlias = Callable[..., Awaitable[Store]]
WRITES = AuditConfig(collections=("*",), actor="tests")


@pytest.fixture
async def audited(store_url: str, clock: ManualClock) -> AsyncIterator[Make]:
    """Opens stores that audit, on the test's backend."""
    opened: list[Store] = []

    async def make(config: AuditConfig = WRITES, *free: Middleware) -> Store:
        audit, compression = Audit(config), Compression()
        chain: list[Middleware] = [*free, audit, compression]
        store = Store(adapter_for(store_url, clock), middleware=chain, clock=clock)
        await store.open()
        opened.append(store)
        return store

    yield make
    for store in reversed(opened):
        await store.close()


async def entries(store: Store, **wanted: Any) -> list[AuditEntry]:
    return (await AuditTrail(store).entries(limit=100_000, **wanted)).entries


def told(entry: AuditEntry) -> tuple[str, str, str, int, int]:
    return (
        entry.action.value,
        entry.collection,
        entry.record,
        entry.version_before,
        entry.version_after,
    )


# Writes -------------------------------------------------------------------------------------------


async def test_every_write_leaves_an_entry(audited: Make, clock: ManualClock) -> None:
    store = await audited()
    notes = store.collection(Note)
    await notes.put(Note("a", text="one"))
    clock.advance("1s")
    assert await notes.put(Note("a", text="two")) == 2
    assert await notes.put_many([Note("a", text="one"), Note("b")]) == [3, 1]
    await notes.delete("a")
    await notes.delete("nobody")
    found = await entries(store)
    assert [told(entry) for entry in found] == [
        ("put", "notes", "a", 0, 1),
        ("put", "notes", "a", 1, 2),
        ("put", "notes", "a", 2, 3),
        ("put", "notes", "b", 0, 1),
        ("delete", "notes", "a", 3, 0),
        ("delete", "notes", "nobody", 0, 0),
    ]
    first, second, third, *_, delete, _ = found
    assert (first.hash_before, delete.hash_after) == ("", "")
    assert first.hash_after == second.hash_before == third.hash_after == delete.hash_before
    assert second.hash_after == third.hash_before != first.hash_after
    assert len(first.hash_after) == 32
    assert {entry.actor for entry in found} == {"tests"}
    assert second.at - first.at == timedelta(seconds=1)
    assert [entry.id for entry in found] == sorted(entry.id for entry in found)


async def test_a_transaction_leaves_its_entries_in_its_own_commit(audited: Make) -> None:
    batches: list[Batch] = []

    async def watch(call: Call, proceed: Handler) -> Any:
        if isinstance(call, Commit):
            batches.append(call.batch)
        return await proceed(call)

    store = await audited(AuditConfig(collections=("notes",)), watch)
    async with store.transaction() as transaction:
        await transaction.collection(Note).put(Note("a"))
        await transaction.collection(Author).put(Author("x", "Ada"))
        transaction.emit("note.added", {"id": "a"})
    assert transaction.version("notes", "a") == transaction.version("authors", "x") == 1
    assert [told(entry) for entry in await entries(store)] == [("put", "notes", "a", 0, 1)]

    async def fail(transaction: Transaction) -> None:
        await transaction.collection(Note).put(Note("b"))
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        await store.transact(fail)
    assert len(await entries(store)) == 1
    # What callers and outer middleware see of a commit is their own.
    assert [len(batch.writes) for batch in batches if batch.events] == [2]


async def test_what_the_caller_expects_still_raises(audited: Make) -> None:
    store = await audited()
    notes = store.collection(Note)
    await notes.put(Note("a"), Options(expected=0))
    for expected in (0, 7):
        with pytest.raises(Conflict) as caught:
            await notes.put(Note("a", text="x"), Options(expected=expected))
        assert (caught.value.expected, caught.value.found) == (expected, 1)
        with pytest.raises(Conflict):
            await notes.delete("a", Options(expected=expected))
    with pytest.raises(Conflict):
        await notes.delete("nobody", Options(expected=1))
    for read, written in (("a", "a"), ("b", "c")):
        transaction = store.transaction()
        await transaction.__aenter__()
        await transaction.collection(Note).get(read)
        await notes.put(Note(read, text="y"))
        await transaction.collection(Note).put(Note(written, text="z"))
        with pytest.raises(Conflict):
            await transaction.__aexit__(None)
    assert [told(entry) for entry in await entries(store)] == [
        ("put", "notes", "a", 0, 1),
        ("put", "notes", "a", 1, 2),
        ("put", "notes", "b", 0, 1),
    ]


class Meddler:
    """Below the audit: changes the record that was just read, so many times."""

    stage = Stage.COMPRESS

    def __init__(self, clock: ManualClock, *, renew: bool = False) -> None:
        self.times = 0
        self.clock = clock
        self.renew = renew
        self.store: Store | None = None

    async def __call__(self, call: Call, proceed: Handler) -> Any:
        answer = await proceed(call)
        if isinstance(call, Get | Find) and collection_of(call) == "notes" and self.times:
            self.times -= 1
            self.clock.tick()
            put = type_of(Note).encode(Note("a", text=f"meddled {self.times}"), None, None)
            assert self.store is not None
            if self.renew:
                await self.store.adapter.commit(Batch((Delete("notes", "a"),)), DEFAULT)
            await self.store.adapter.commit(Batch((put,)), DEFAULT)
        return answer


async def meddled(url: str, meddler: Meddler) -> Store:
    audit = Audit(WRITES)
    clock = meddler.clock
    store = Store(adapter_for(url, clock), middleware=[audit, meddler], clock=clock)
    meddler.store = store
    await store.open()
    return store


@pytest.mark.parametrize("renew", [False, True])
async def test_a_record_that_changes_after_it_was_read_is_read_again(
    store_url: str, clock: ManualClock, renew: bool
) -> None:
    """Also one that was deleted and made anew, with the same version."""
    meddler = Meddler(clock, renew=renew)
    store = await meddled(store_url, meddler)
    notes = store.collection(Note)
    await notes.put(Note("a"), Options(expected=0))
    meddler.times = 3
    assert await notes.put(Note("a", text="mine")) == (2 if renew else 5)
    meddler.times = 2
    await notes.delete("a")
    found = await entries(store)
    assert [entry.action for entry in found] == [Action.PUT, Action.PUT, Action.DELETE]
    hasher = await Hasher.of(store)
    put = type_of(Note).encode(Note("a", text="meddled 0"), None, None)
    assert found[1].hash_before == found[2].hash_before == hasher.of_content(put)
    meddler.times = 1
    await notes.put(Note("a"), Options(expected=0))
    with pytest.raises(Conflict):
        await notes.put(Note("a", text="b"), Options(expected=2 if renew else 1))
    await store.close()


async def test_it_gives_up_at_last(store_url: str, clock: ManualClock) -> None:
    meddler = Meddler(clock)
    store = await meddled(store_url, meddler)
    notes = store.collection(Note)
    await notes.put(Note("a"), Options(expected=0))
    meddler.times = 1_000_000
    with pytest.raises(DeadlineExceeded):
        await notes.put(Note("a"), Options(deadline=0.05))
    await store.close()


async def test_many_writers_at_once(audited: Make) -> None:
    store, other = await audited(), await audited()
    stores = [store] if isinstance(store.adapter, MemoryAdapter) else [store, other]

    async def write(store: Store, number: int) -> None:
        with acting_as(f"writer {number}"):
            for _ in range(5):
                await store.collection(Note).put(Note("a", text=str(number)))

    await store.collection(Note).make()
    await asyncio.gather(*(write(stores[n % len(stores)], n) for n in range(6)))
    trail = await AuditTrail(store).history_of("notes", "a")
    assert sorted(entry.version_after for entry in trail) == list(range(1, 31))
    verdict = await AuditTrail(store).verify("notes", "a")
    assert (verdict.ok, verdict.entries, verdict.begins_at) == (True, 30, 0)


async def test_removing_by_query(audited: Make) -> None:
    store = await audited()
    notes = store.collection(Note)
    await notes.put_many([Note(f"n{n}", stars=n) for n in range(5)])
    assert await notes.query().where("stars", ">=", 2).limit(2).delete() == 2
    assert await notes.query().where("stars", ">", 9).delete() == 0
    assert [told(entry) for entry in await entries(store, action="delete")] == [
        ("delete", "notes", "n2", 1, 0),
        ("delete", "notes", "n3", 1, 0),
    ]
    assert [item.key for item in await notes.query().execute()] == ["n0", "n1", "n4"]
    assert await store.collection(Author).query().prefix("x").delete() == 0


async def test_removing_while_others_write(store_url: str, clock: ManualClock) -> None:
    meddler = Meddler(clock)
    store = await meddled(store_url, meddler)
    notes = store.collection(Note)
    await notes.put_many([Note("a"), Note("b")], Options(expected=0))
    meddler.times = 2
    assert await notes.query().delete() == 2
    trail = await entries(store, action="delete")
    assert [told(entry)[2:] for entry in trail] == [("a", 3, 0), ("b", 1, 0)]
    await store.close()


async def test_removing_what_others_keep_writing(
    store_url: str, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One busy record does not keep the others there, and the caller gets no `Conflict`."""
    monkeypatch.setattr(audit_middleware, "ATTEMPTS", 10)
    meddler = Meddler(clock)
    store = await meddled(store_url, meddler)
    notes = store.collection(Note)
    await notes.put_many([Note(key) for key in "abcdefgh"], Options(expected=0))
    meddler.times = 1_000_000
    with pytest.raises(Unavailable, match=r"removed; \d records were.*Try again"):
        await notes.query().delete()
    with pytest.raises(Unavailable, match="Nothing was changed"):
        await notes.put(Note("a"))
    meddler.times = 0
    await notes.query().delete()
    trail = await entries(store, action="delete")
    assert sorted(entry.record for entry in trail) == list("abcdefgh")
    await store.close()


async def test_removing_under_writers(audited: Make) -> None:
    """In pages, each of which is repeated only if somebody wrote into it."""
    store = await audited()
    notes = store.collection(Note)
    await notes.put_many([Note(f"n{n:03d}", text="old") for n in range(250)])
    done = False

    async def write(number: int) -> None:
        chance = random.Random(number)
        while not done:
            await notes.put(Note(f"n{chance.randrange(250):03d}", text="new"))
            await asyncio.sleep(0)

    writers = [asyncio.create_task(write(number)) for number in range(3)]
    try:
        async with asyncio.timeout(60):
            count = await notes.query().prefix("n").delete()
    finally:
        done = True
        await asyncio.gather(*writers)
    assert count == 250
    deleted = [entry.record for entry in await entries(store, action="delete")]
    assert sorted(deleted) == [f"n{n:03d}" for n in range(250)]
    for key in deleted[::25]:
        assert (await AuditTrail(store).verify("notes", key)).ok


async def test_what_a_query_no_longer_fits_is_not_removed(
    store_url: str, clock: ManualClock
) -> None:
    meddler = Meddler(clock)
    store = await meddled(store_url, meddler)
    notes = store.collection(Note)
    await notes.put_many([Note("a", stars=5), Note("b", stars=5)], Options(expected=0))
    meddler.times = 1
    assert await notes.query().where("stars", "=", 5).delete() == 1
    assert [item.key for item in await notes.query().execute()] == ["a"]
    await store.close()


async def test_records_that_expire(audited: Make, clock: ManualClock) -> None:
    store = await audited()
    sparks = store.collection(Spark)
    await sparks.put(Spark("a"))
    clock.advance("2h")
    await sparks.put(Spark("a"))
    found = await entries(store)
    assert [told(entry)[3:] for entry in found] == [(0, 1), (0, 1)]
    assert found[0].expires == found[0].at + timedelta(hours=1)
    trail = AuditTrail(store)
    assert (await trail.verify("sparks", "a")).ok
    clock.advance("2h")
    assert (await trail.verify("sparks", "a")).ok


async def test_a_damaged_record_can_be_replaced_and_deleted(audited: Make) -> None:
    store = await audited()
    notes = store.collection(Note)
    await notes.put_many([Note("a"), Note("b"), Note("c")])
    for key in ("a", "b"):
        columns = type_of(Note).columns(Note(key))
        bad = Put("notes", key, b"?", "application/msgpack", 1, 1, columns)
        await store.adapter.commit(Batch((bad,)), DEFAULT)
    with pytest.raises(Corrupted):
        await notes.get("a")
    await notes.put(Note("a", text="mended"))
    assert await notes.query().delete() == 3
    found = await entries(store, key="a")
    assert [entry.hash_before for entry in found[1:]] == [UNREADABLE, found[1].hash_after]
    assert (await entries(store, key="b"))[1].hash_before == UNREADABLE
    assert not (await AuditTrail(store).verify("notes", "a")).ok


async def test_a_commit_that_fails_leaves_nothing(audited: Make) -> None:
    fails = True

    async def fail(call: Call, proceed: Handler) -> Any:
        if (
            fails
            and isinstance(call, Commit)
            and any(w.collection == TRAIL for w in call.batch.writes)
        ):
            raise Unavailable("gone")
        return await proceed(call)

    fail.stage = Audit.stage + 1  # type: ignore[attr-defined]
    store = await audited()
    audit = Audit(AuditConfig(collections=("*",), reads=("authors",)))
    broken = Store(store.adapter, middleware=[audit, fail])
    with pytest.raises(Unavailable):
        await broken.collection(Author).put(Author("a", "Ada"))
    assert await store.collection(Author).get("a") is None
    await store.collection(Author).put(Author("a", "Ada"))
    with pytest.raises(Unavailable):  # no entry, no answer
        await broken.collection(Author).get("a")
    fails = False
    assert await broken.collection(Author).get("a") == Author("a", "Ada")


async def test_rewrites(audited: Make) -> None:
    store = await audited()
    notes = store.collection(Note)
    await notes.put_many([Note("a", text="x"), Note("b"), Note("c")])
    rows = [row for row in await store.read("notes", ["a", "b", "c"], STRONG) if row]
    same = [Recode(row, row.value, row.content_type) for row in rows[1:]]
    other = type_of(Note).encode(Note("a", text="y"), None, None)
    assert await store.rewrite("notes", same) == 2
    assert await store.rewrite("notes", [Recode(rows[0], other.value, other.content_type)]) == 1
    found = await entries(store, action=Action.REWRITE)
    assert [(entry.record, entry.count) for entry in found] == [("", 2), ("a", 1)]
    verdict = await AuditTrail(store).verify("notes", "a")
    assert (verdict.ok, verdict.entries) == (True, 2)
    # One that is skipped, since somebody has written meanwhile, has left an entry all the same.
    stale = [Recode(rows[0], other.value, other.content_type)]
    await notes.put(Note("a", text="z"))
    assert await store.rewrite("notes", stale) == 0
    await notes.put(Note("a", text="end"))
    assert (await AuditTrail(store).verify("notes", "a")).ok


# Reads --------------------------------------------------------------------------------------------


async def test_reads_leave_entries_where_that_is_asked_for(audited: Make) -> None:
    commits = 0

    async def count(call: Call, proceed: Handler) -> Any:
        nonlocal commits
        commits += isinstance(call, Commit)
        return await proceed(call)

    count.stage = Audit.stage + 1  # type: ignore[attr-defined]
    audit = Audit(AuditConfig(reads=("notes",), actor="tests"))
    made = await audited()
    store = Store(made.adapter, middleware=[audit, count], clock=made.now)
    notes = store.collection(Note)
    await notes.put_many([Note("a", author="ada", stars=3), Note("b", author="bob", stars=1)])
    await store.collection(Author).put(Author("x", "Ada"))
    await store.collection(Author).get("x")
    assert await entries(store) == []
    await notes.get("a")  # makes the trail
    commits = 0
    await notes.get_many(["a", "nobody", "b"])
    assert commits == 1
    assert [told(entry) for entry in (await entries(store))[1:]] == [
        ("read", "notes", "a", 1, 1),
        ("read", "notes", "nobody", 0, 0),
        ("read", "notes", "b", 1, 1),
    ]
    finder = notes.query().where("author", "=", "secret").where("stars", "in", [7, 8])
    assert await finder.order_by("-stars").limit(5).values() == []
    assert await notes.query().tagged(topic="secret").prefix("a").values() == []
    await notes.query().values()
    await (
        notes.query().where("stars", ">", 0).group_by("author").aggregate(n="count", s="sum stars")
    )
    *_, nothing, tagged, everything, first, second, figures = await entries(store)
    assert nothing.query == "author = ? and stars in ? · by -stars · at most 5"
    assert (nothing.action, nothing.count, nothing.record) == (Action.FIND, 0, "")
    assert tagged.query == "tagged topic · keys from a"
    assert (everything.query, everything.count) == ("all", 2)
    assert [first.record, second.record] == ["a", "b"]
    assert first.hash_before == first.hash_after != ""
    assert figures.action is Action.SUMMARIZE
    assert figures.query == "count, sum stars · per author · stars > ?"
    assert not any("secret" in str(entry) for entry in await entries(store))


# Who ----------------------------------------------------------------------------------------------


async def test_who_acts(audited: Make) -> None:
    store = await audited(AuditConfig(collections=("notes",)))
    notes = store.collection(Note)
    await notes.put(Note("a"))

    async def write(name: str) -> None:
        with acting_as(name, reason=f"because of {name}"):
            await asyncio.sleep(0)
            await notes.put(Note(name))

    with acting_as("outer"):
        await asyncio.gather(write("ada"), write("bob"))
        await asyncio.create_task(notes.put(Note("task")))
        with acting_as("inner"):
            await notes.put(Note("b"))
    found = {entry.record: (entry.actor, entry.reason) for entry in await entries(store)}
    assert found == {
        "a": (system_user(), ""),
        "ada": ("ada", "because of ada"),
        "bob": ("bob", "because of bob"),
        "task": ("outer", ""),
        "b": ("inner", ""),
    }
    assert actors.current_actor() is None


@pytest.mark.parametrize(
    ("name", "reason"),
    [("", ""), ("  ", ""), ("x" * 121, ""), ("a\x00", ""), ("a", "\ud800"), (3, "")],
)
def test_names_that_cannot_be_kept(name: Any, reason: str) -> None:
    with pytest.raises(InvalidInput), acting_as(name, reason=reason):
        pass


def test_a_user_without_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getuid", lambda: 4_242_424)
    monkeypatch.delenv("USERNAME", raising=False)
    assert system_user.__wrapped__() == "uid 4242424"


# The trail ----------------------------------------------------------------------------------------


async def test_nobody_changes_the_trail(audited: Make) -> None:
    store = await audited()
    await store.collection(Note).put(Note("a"))
    trail = store.collection(AuditEntry)
    (entry,) = await entries(store)
    forged = msgspec.structs.replace(entry, actor="eve")
    new = EntryWriter(store.now).entry(Action.PUT, "notes", "b")
    row: Row | None
    for attempt in (
        lambda: trail.put(forged),
        lambda: trail.put(new),
        lambda: trail.delete(entry.id),
        lambda: trail.query().delete(),
        lambda: store.commit(Batch((as_put(new),)), DEFAULT),
    ):
        with pytest.raises(InvalidInput, match=r"cannot be written to.*prune"):
            await attempt()

    async def in_a_transaction(transaction: Transaction) -> None:
        await transaction.collection(AuditEntry).delete(entry.id)

    with pytest.raises(InvalidInput):
        await store.transact(in_a_transaction)
    (row,) = await store.read(TRAIL, [entry.id], STRONG)
    assert row is not None
    bad, schema = as_put(forged), type_of(AuditEntry).schema
    lying = msgspec.structs.replace(row, value=bad.value)
    for recode in (
        Recode(row, bad.value, row.content_type),
        Recode(row, bad.value, row.content_type, schema=row.schema + 1, columns=bad.columns),
        Recode(row, row.value, row.content_type, schema=schema + 1, columns=as_put(entry).columns),
        Recode(row, row.value, row.content_type, schema=schema, columns=bad.columns),
        Recode(lying, bad.value, row.content_type),
        Recode(row, b"?", row.content_type),
    ):
        with pytest.raises(InvalidInput, match="cannot be written to"):
            await store.rewrite(TRAIL, [recode])
    same = Recode(row, row.value, row.content_type)
    assert await store.rewrite(TRAIL, [same]) == 1
    json = Recode(row, msgspec.json.encode(entry), "application/json")
    assert await store.rewrite(TRAIL, [json]) == 1
    assert await store.rewrite(TRAIL, [same]) == 0, "a row that is no longer like this is skipped"
    assert await entries(store) == [entry]


async def test_it_protects_a_trail_that_is_not_written_to(audited: Make) -> None:
    await (await audited()).collection(Note).put(Note("a"))
    if isinstance((await audited()).adapter, MemoryAdapter):
        return
    store = await audited(AuditConfig())
    await store.collection(Note).put(Note("b"))
    assert len(await entries(store)) == 1
    with pytest.raises(InvalidInput):
        await store.collection(AuditEntry).query().delete()


async def test_questions_to_the_trail(audited: Make, clock: ManualClock) -> None:
    store = await audited()
    assert await entries(store) == []
    start = clock()
    for number in range(10):
        clock.advance("1m")
        with acting_as("ada" if number % 2 else "bob"):
            await store.collection(Note).put(Note(f"n{number % 3}"))
            await store.collection(Author).put(Author("x", "A"))
    assert len(await entries(store)) == 20
    assert len(await entries(store, collection="notes")) == 10
    assert len(await entries(store, collection="notes", key="n0")) == 4
    assert len(await entries(store, actor="ada", collection="authors")) == 5
    assert len(await entries(store, action="put")) == 20
    assert await entries(store, action="delete") == []
    since = moment(start + 3 * 60_000_000)
    until = moment(start + 6 * 60_000_000)
    assert len(await entries(store, since=since, until=until)) == 6
    assert len(await entries(store, since=since, until=until, actor="bob")) == 4
    newest = await entries(store, since=since, until=until, newest_first=True)
    assert [entry.id for entry in newest] == [
        entry.id for entry in reversed(await entries(store, since=since, until=until))
    ]
    with pytest.raises(InvalidInput, match="no action 'steal'"):
        await entries(store, action="steal")
    with pytest.raises(InvalidInput, match="no place"):
        await entries(store, after="x")
    with pytest.raises(InvalidInput, match="none"):
        await AuditTrail(store).entries(limit=0)


def moment(at: int) -> Any:
    return clock.to_datetime(at)


@pytest.mark.parametrize("newest_first", [False, True])
@pytest.mark.parametrize("wanted", [{}, {"actor": "tests"}, {"collection": "notes", "key": "a"}])
async def test_pages(audited: Make, wanted: dict[str, str], newest_first: bool) -> None:
    store = await audited()
    for _ in range(7):  # all in one moment, as far as the clock tells
        await store.collection(Note).put(Note("a"))
    trail = AuditTrail(store)
    seen: list[AuditEntry] = []
    after: str | None = None
    sizes = []
    while True:
        page = await trail.entries(limit=3, after=after, newest_first=newest_first, **wanted)  # type: ignore[arg-type]
        seen += page.entries
        sizes.append(len(page.entries))
        after = page.next
        if after is None:
            break
    assert sizes == [3, 3, 1]
    versions = [entry.version_after for entry in seen]
    assert versions == (list(range(7, 0, -1)) if newest_first else list(range(1, 8)))


async def test_pruning(audited: Make, clock: ManualClock) -> None:
    store = await audited()
    trail = AuditTrail(store, actor="janitor")
    assert await trail.prune(moment(clock())) == 0
    for _ in range(3):
        await store.collection(Note).put(Note("a"))
        clock.advance("1h")
    assert await trail.prune(moment(clock() - 2 * 3_600_000_000)) == 1
    assert await trail.prune(moment(clock() - 2 * 3_600_000_000)) == 0
    found = await entries(store)
    assert [told(entry)[0] for entry in found] == ["put", "put", "prune"]
    assert (found[-1].count, found[-1].actor) == (1, "janitor")
    verdict = await trail.verify("notes", "a")
    assert (verdict.ok, verdict.begins_at, verdict.entries) == (True, 1, 2)
    with pytest.raises(InvalidInput, match="not beyond"):
        await trail.prune(moment(clock() + 1_000_000))
    with pytest.raises(InvalidInput):
        await store.collection(AuditEntry).query().delete()


# Does it join? ------------------------------------------------------------------------------------


async def test_a_write_around_the_trail_shows(audited: Make) -> None:
    store = await audited()
    notes = store.collection(Note)
    trail = AuditTrail(store)
    assert (await trail.verify("notes", "a")).entries == 0
    await notes.put(Note("a", text="1"))
    assert (await trail.verify("notes", "a")).ok

    async def around(text: str) -> None:
        put = type_of(Note).encode(Note("a", text=text), None, None)
        await store.adapter.commit(Batch((put,)), DEFAULT)

    await around("2")
    now = await trail.verify("notes", "a")
    assert [(gap.entry, gap.version_left, gap.version_found) for gap in now.gaps] == [("", 1, 2)]
    await notes.put(Note("a", text="3"))
    (gap,) = (await trail.verify("notes", "a")).gaps
    assert gap.entry == (await entries(store))[-1].id
    assert "found version 2, where version 1 had been left" in str(gap)
    await store.adapter.commit(Batch((Delete("notes", "a"),)), DEFAULT)
    assert "found nothing, where version 3" in str((await trail.verify("notes", "a")).gaps[-1])
    await notes.put(Note("a", text="4"))
    assert len((await trail.verify("notes", "a")).gaps) == 2
    (row,) = await store.read("notes", ["a"], STRONG)
    assert row is not None
    forged = type_of(Note).encode(Note("a", text="forged"), None, None)
    recode = Recode(row, forged.value, forged.content_type, forged.checksum)
    await store.adapter.recode("notes", [recode], ())
    assert "with other content" in str((await trail.verify("notes", "a")).gaps[-1])


def test_clocks_that_differ_a_little() -> None:
    now = ManualClock()
    here, there = EntryWriter(now), EntryWriter(lambda: now() - 2_000_000)
    chain = [
        (here if n % 2 else there).entry(
            Action.PUT,
            "notes",
            "a",
            version_before=n,
            version_after=n + 1,
            hash_before=f"h{n}" if n else "",
            hash_after=f"h{n + 1}",
        )
        for n in range(6)
    ]
    ordered = sorted(chain, key=lambda entry: entry.id)
    assert ordered != chain
    found = follow(ordered)
    assert found.state is not None
    assert (found.state.version, found.gaps, found.entries, found.begins_at) == (6, [], 6, 0)
    assert len(follow([entry for entry in ordered if entry.version_after != 3]).gaps) == 1


async def test_a_record_that_never_rests(audited: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    store = await audited()
    notes = store.collection(Note)
    await notes.put(Note("a"))
    trail = AuditTrail(store)
    reads = trail.history_of

    async def busy(collection: str, key: str) -> list[AuditEntry]:
        await notes.put(Note("a"))
        return await reads(collection, key)

    monkeypatch.setattr(trail_module, "ATTEMPTS", 5)
    monkeypatch.setattr(trail, "history_of", busy)
    with pytest.raises(Unavailable, match=r"notes/a keeps changing.*Try again"):
        await trail.verify("notes", "a")
    assert len(await reads("notes", "a")) == 6


# Hashes -------------------------------------------------------------------------------------------


async def test_hashes_belong_to_a_store(audited: Make) -> None:
    store = await audited()
    notes = store.collection(Note)
    await notes.put_many([Note("a", text="x" * 500)])
    hasher, again = await Hasher.of(store), await Hasher.of(store)
    row = (await store.read("notes", ["a"], DEFAULT))[0]
    assert row is not None
    assert hasher.of_row(row) == again.of_row(row) == (await entries(store))[0].hash_after
    assert hasher.of_row(row) != Hasher(b"other").of_row(row)
    packed = msgspec.structs.replace(row, content_type="application/msgpack")
    assert hasher.of_row(packed) != hasher.of_row(row)
    split = msgspec.structs.replace(row, content_type="application/jsonx", value=row.value[1:])
    assert hasher.of_row(split) != hasher.of_row(row)
    secret = await store.collection(OpenAuditSecret).get("hash")
    assert secret is not None
    assert len(secret.secret) == 32


@pytest.mark.parametrize("store_url", DURABLE, indirect=True)
async def test_two_stores_agree_on_the_secret(audited: Make) -> None:
    one, two = await audited(), await audited()
    await asyncio.gather(one.collection(Note).put(Note("a")), two.collection(Note).put(Note("b")))
    a, b = await entries(one)
    assert len({a.hash_after, b.hash_after}) == 2
    put = type_of(Note).encode(Note("a"), None, None)
    assert (await Hasher.of(one)).of_content(put) == (await Hasher.of(two)).of_content(put)


# Together with encryption ------------------------------------------------------------------------


def encrypted(store: Store, *, everything: bool = False) -> Store:
    """Another store on the same backend, which encrypts."""
    encryption = Encryption(MasterKeys(lambda: bytes(range(32))), everything=everything)
    chain: list[Middleware] = [Audit(WRITES), Compression(), encryption]
    return Store(store.adapter, middleware=chain, clock=store.now)


async def raw_types(store: Store, name: str) -> list[str]:
    if name not in {size.collection for size in await store.adapter.sizes() if size.rows}:
        return []
    return [row.content_type for row in await store.adapter.find(Query(name), STRONG)]


@pytest.mark.parametrize("everything", [False, True])
async def test_the_secret_is_encrypted_where_that_can_be(
    audited: Make, clock: ManualClock, everything: bool
) -> None:
    """And stays the same when encryption is switched on."""
    plain = await audited()
    await plain.collection(Note).put(Note("a", text="x"))
    assert await raw_types(plain, "perdure_audit_open_secrets") == ["application/msgpack"]
    store = encrypted(plain, everything=everything)
    clock.tick()
    await store.collection(Note).put(Note("a", text="x"))
    assert await raw_types(store, "perdure_audit_open_secrets") == []
    (kind,) = await raw_types(store, "perdure_audit_secrets")
    assert "aesgcm" in kind
    one, two = await entries(store)
    assert one.hash_after == two.hash_before == two.hash_after
    assert ("aesgcm" in (await raw_types(store, TRAIL))[-1]) is everything
    trail = AuditTrail(store)
    assert (await trail.verify("notes", "a")).ok
    await store.collection(Note).query().delete()
    assert (await trail.verify("notes", "a")).ok
    # Whoever does not have the key cannot go on with other hashes.
    keyless = Store(plain.adapter, middleware=[Audit(WRITES), Compression(), Encryption(None)])
    with pytest.raises(KeyRefused):
        await keyless.collection(Author).put(Author("x", "y"))


@pytest.mark.parametrize("store_url", DURABLE, indirect=True)
async def test_two_stores_that_encrypt_agree_at_once(audited: Make) -> None:
    """Whoever comes second takes the secret that is there: nothing is tried again and again."""
    plain = await audited()
    one, two = encrypted(plain), encrypted(plain)
    first = await one.transact(lambda each: audit_chain._sealed(each, b"1" * 32), STRONG)
    tries = 0

    async def seal(each: Transaction) -> bytes:
        nonlocal tries
        tries += 1
        return await audit_chain._sealed(each, b"2" * 32)

    second = await two.transact(seal, STRONG)
    assert first == second == b"1" * 32
    assert tries == 1


# What it needs ------------------------------------------------------------------------------------


def test_it_needs_a_backend_that_can_do_it() -> None:
    class Simple(MemoryAdapter):
        capabilities = frozenset()

    with pytest.raises(Unsupported, match="transactions"):
        Store(Simple(), middleware=[Audit(WRITES)])
    Store(Simple(), middleware=[Audit(AuditConfig())])  # nothing to audit


async def test_it_needs_a_store() -> None:
    audit = Audit(WRITES)
    put = type_of(Note).encode(Note("a"), None, None)
    with pytest.raises(InvalidInput, match="belongs to no store"):
        await audit(Commit(Batch((put,)), DEFAULT), Store(MemoryAdapter())._handle)
    with pytest.raises(InvalidInput, match="own"):
        Audit(AuditConfig(collections=(TRAIL,)))


@record("perdure2_mine")
class Mine(msgspec.Struct, frozen=True):
    id: Annotated[str, Key()]


async def test_a_star_means_your_own(audited: Make) -> None:
    store = await audited()
    await store.collection(Mine).put(Mine("a"))
    await store.collection(OpenAuditSecret).put(OpenAuditSecret("test", b"x"))
    assert [entry.collection for entry in await entries(store)] == ["perdure2_mine"]


# Under fire ---------------------------------------------------------------------------------------

ROUNDS = int(os.environ.get("PERDURE_KILLS", "30")) // 6


def write_and_die(url: str, number: int, dice: random.Random) -> int:
    """Lets a process write and kills it; returns how many writes it was told are done."""
    command = [sys.executable, "-m", "tests.storage.audited_writer", url, str(number)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None
        told = [writer.stdout.readline() for _ in range(dice.randrange(1, 60))]
        time.sleep(dice.uniform(0, 0.01))
        writer.kill()
    assert all(told)
    return len(told)


@pytest.mark.repeated
@pytest.mark.parametrize("store_url", ["sqlite"], indirect=True)
async def test_kill_9_between_writes(store_url: str, audited: Make) -> None:
    """Whatever was written has its entry, and no entry is there without what it tells of."""
    dice = random.Random(f"audit {ROUNDS}")
    told = sum(write_and_die(store_url, number, dice) for number in range(ROUNDS))
    store = await audited()
    trail = AuditTrail(store)
    notes = store.collection(Note)
    await notes.is_there()
    rows = {row.key: row for row in await store.adapter.find(Query("notes"), STRONG)}
    found = await entries(store)
    assert len(found) >= told > ROUNDS
    for key in {entry.record for entry in found} | rows.keys():
        verdict = await trail.verify("notes", key)
        assert verdict.ok, verdict
        assert (verdict.begins_at, verdict.entries > 0) == (0, True)
        last = (await trail.history_of("notes", key))[-1]
        assert last.version_after == (rows[key].version if key in rows else 0)

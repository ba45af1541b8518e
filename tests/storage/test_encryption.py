"""Records are stored so that nobody can read or move them who does not have the master key."""

from __future__ import annotations

import asyncio
import base64
import random
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Annotated, Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from examples.adapter.perdure_folder import FolderAdapter
from perdure.core.clock import SECOND
from perdure.core.errors import (
    Conflict,
    Corrupted,
    DeadlineExceeded,
    InvalidInput,
    InvalidRecordType,
    KeyRefused,
    PerdureError,
    Unsupported,
)
from perdure.storage.compression import Compression
from perdure.storage.encryption import Encryption, MasterKeys, file_key, make_file, read_key
from perdure.storage.middleware import Call, Commit, Handler, Stage
from perdure.storage.options import DEFAULT, STRONG, Options
from perdure.storage.record_migrations import migrate
from perdure.storage.records import Encrypted, Indexed, Key, Tags, record, type_of
from perdure.storage.registry import adapter_for
from perdure.storage.rows import Index, Recode, Row, checksum
from perdure.storage.store import Store
from perdure.storage.transaction import Transaction
from perdure.storage.verify import verify_store
from perdure.testing.manual_clock import ManualClock
from tests.storage.sealing import (
    NEW,
    OLD,
    Code,
    Diary,
    Pin,
    Postcard,
    Process,
    Processes,
    write_key,
)

SECRET = "the launch code is swordfish-4711"

#: For tests of what happens above the backends: a server would only make them slower.
local = pytest.mark.parametrize("store_url", ["memory", "sqlite"], indirect=True)


@pytest.fixture
async def start(store_url: str) -> AsyncIterator[Processes]:
    async with Processes(store_url) as processes:
        yield processes


def diary(number: int, text: str = "") -> Diary:
    dice = random.Random(number)
    words = " ".join(dice.choices(SECRET.split(), k=60))
    labels = {"parity": str(number % 2)}
    return Diary(f"{number % 3}/{number:03}", text or words, f"author {number % 2}", number, labels)


def stranger(process: Process, *masters: bytes) -> tuple[Store, Compression]:
    """A process on the same store that has declared no types, and perhaps has no key."""
    encryption = Encryption(MasterKeys(lambda: masters[0]) if masters else None)
    compression = Compression()
    return Store(process.store.adapter, middleware=[compression, encryption]), compression


# What is stored -----------------------------------------------------------------------------------


async def test_records_come_back_as_they_were_written(start: Processes) -> None:
    process, other = await start(), await start()
    written = [diary(number) for number in range(20)]
    assert await process.diaries.put_many(written) == [1] * 20
    assert await process.diaries.put(written[3]) == 2
    assert await other.diaries.query().order_by("stars").values() == written
    assert await other.diaries.get(written[3].id) == written[3]
    assert await process.marks("diaries") == {"c1"}
    for row in await process.rows("diaries"):
        assert b"swordfish" not in row.value
        assert row.content_type.startswith("application/json;zstd=1;aesgcm=")
    assert [problem async for problem in verify_store(other.store)] == []


async def test_what_is_not_marked_is_not_encrypted(start: Processes) -> None:
    process = await start()
    await process.store.collection(Postcard).put(Postcard("one", SECRET))
    assert [row.content_type for row in await process.rows("postcards")] == ["application/json"]
    assert process.encryption.encrypts("diaries") is False  # nobody has declared it here yet
    await process.diaries.get("nobody")
    await process.diaries.put(diary(1))
    assert process.encryption.encrypts("diaries")


@local
async def test_everything_can_be(start: Processes) -> None:
    process = await start(everything=True)
    await process.store.collection(Postcard).put(Postcard("one", SECRET))
    await process.diaries.put_many([diary(number) for number in range(60)])
    for size in await process.store.adapter.sizes():
        clear = size.collection in {"perdure_keys", "perdure_schemas"}
        assert await process.marks(size.collection) <= {"" if clear else "c1"}
    other = await start()
    assert await other.store.collection(Postcard).get("one") == Postcard("one", SECRET)


@local
async def test_keys_per_agent(start: Processes) -> None:
    process = await start(scope="agent")
    await process.pins.put_many([Pin("ada/1", "11"), Pin("bob/1", "22"), Pin("alone", "33")])
    assert {row.key: row.content_type[-2:] for row in await process.rows("pins")} == {
        "ada/1": "a1",
        "bob/1": "a1",
        "alone": "c1",
    }
    standing = await process.encryption.status(rows=True)
    assert [(each.scope, each.generations[0].rows) for each in standing] == [
        ("agent:ada", 1),
        ("agent:bob", 1),
        ("collection:pins", 1),
    ]
    # Whatever the setting is now, a value tells what it was.
    other = await start()
    assert await other.pins.get("ada/1") == Pin("ada/1", "11")
    await other.pins.put(Pin("ada/1", "12"))
    assert await process.pins.get("ada/1") == Pin("ada/1", "12")
    assert await process.marks("pins") == {"a1", "c1"}


@pytest.mark.parametrize(
    ("collection", "key", "scope"),
    [
        ("diaries", "ada/1", "agent:ada"),
        ("diaries", "alone", "collection:diaries"),
        ("perdure_turns", "ada/chat/00000001", "agent:ada"),
        ("perdure_sessions", "ada/chat", "agent:ada"),
        ("perdure_entries", "ada/chat/00000001", "agent:ada"),
        ("perdure_entries", "plans/00000001", "collection:perdure_entries"),
        ("perdure_audit", "trail/0123", "collection:perdure_audit"),
        ("perdure_references", "diaries/ada/1", "collection:perdure_references"),
        ("perdure_metrics", "host/1/2", "collection:perdure_metrics"),
    ],
)
def test_what_belongs_to_an_agent(collection: str, key: str, scope: str) -> None:
    masters = MasterKeys(lambda: OLD)
    assert Encryption(masters, scope="agent", everything=True).scope_of(collection, key) == scope


@local
async def test_an_agent_with_the_longest_name(start: Processes) -> None:
    process = await start(scope="agent")
    pin = Pin("é" * 255 + "/1", "11")
    await process.pins.put(pin)
    assert await (await start()).pins.get(pin.id) == pin
    (standing,) = await process.encryption.status(rows=True)
    assert standing.scope == "agent:" + "é" * 255
    assert standing.generations[0].rows == 1


async def test_queries_tags_figures_and_relations_work(start: Processes) -> None:
    process = await start()
    await process.diaries.put_many([diary(number) for number in range(20)])
    await process.pins.put(Pin("p", "1234", diary=diary(4).id))
    mine = process.diaries.query().where("author", "=", "author 1").order_by("-stars")
    assert [each.value.stars for each in await mine.limit(3).execute()] == [19, 17, 15]
    assert await process.diaries.query().tagged(parity="0").count() == 10
    (sums,) = await process.diaries.query().aggregate(stars="sum stars")
    assert sums["stars"] == 190
    page = await process.diaries.list("1/", limit=2)
    assert [each.value for each in page.items] == [diary(1), diary(4)]
    found = await process.pins.query().include(Diary, via="diary").first()
    assert found is not None
    assert found.related(Diary) == [diary(4)]
    assert await process.diaries.query().where("stars", ">", 9).delete() == 10
    assert await process.diaries.query().count() == 10


async def test_an_index_is_added_to_encrypted_records(start: Processes) -> None:
    @record("growing")
    class Before(msgspec.Struct, frozen=True):
        id: Annotated[str, Key()]
        text: Annotated[str, Encrypted()]
        size: int

    process = await start()
    await process.store.collection(Before).put_many(
        [Before(f"{number}", "x", number) for number in range(5)]
    )

    @record("growing")
    class After(msgspec.Struct, frozen=True):
        id: Annotated[str, Key()]
        text: Annotated[str, Encrypted()]
        size: Annotated[int, Indexed()]

    other = await start()
    found = other.store.collection(After).query().where("size", ">", 2).order_by("size")
    assert [each.id for each in await found.values()] == ["3", "4"]


async def test_transactions_changes_and_events(start: Processes) -> None:
    process = await start()
    await process.pins.put(Pin("a", "1"))
    async with process.store.transaction() as tx:
        pins = tx.collection(Pin)
        assert await pins.get("a") == Pin("a", "1")
        await pins.put(Pin("a", "2"))
        await pins.put(Pin("b", "1"))  # not read before
        await pins.delete("c")
        tx.emit("pins", {"id": "a"})
    assert [each.version for each in await process.pins.query().order_by("key").execute()] == [2, 1]

    def add(found: Pin | None) -> Pin:
        return Pin("sum", str(int(found.number) + 1 if found else 1))

    other = await start()
    await asyncio.gather(*(each.pins.change("sum", add) for each in [process, other] * 10))
    assert await process.pins.get("sum") == Pin("sum", "20")


async def test_writers_who_expect_nothing_never_fail(start: Processes) -> None:
    process, other = await start(), await start()
    versions = await asyncio.gather(
        *(each.pins.put(Pin("one", f"{n}")) for n in range(15) for each in (process, other))
    )
    assert sorted(versions) == list(range(1, 31))
    found = await process.pins.fetch("one")
    assert found is not None
    assert found.version == 30
    await asyncio.gather(
        *(each.pins.put_many([Pin(f"{n}", "x") for n in range(9)]) for each in (process, other) * 3)
    )
    assert {each.version for each in await process.pins.query().execute()} == {30, 6}


async def test_conflicts_of_the_callers_own_are_told(start: Processes) -> None:
    process, other = await start(), await start()
    await process.pins.put(Pin("a", "1"))
    with pytest.raises(Conflict) as caught:
        await process.pins.put(Pin("a", "2"), Options(expected=0))
    assert (caught.value.collection, caught.value.expected, caught.value.found) == ("pins", 0, 1)

    async def outdated(tx: Transaction) -> None:
        async with tx:
            await tx.collection(Pin).get("a")
            await other.pins.put(Pin("a", "3"))
            await tx.collection(Pin).put(Pin("a", "4"))

    with pytest.raises(Conflict, match="pins/a"):
        await outdated(process.store.transaction())
    assert await process.pins.get("a") == Pin("a", "3")


async def test_a_deadline_is_for_all_attempts(start: Processes) -> None:
    other = await start()
    attempts = 0

    class Slowly:
        stage = Stage.BACKEND

        async def __call__(self, call: Call, proceed: Handler) -> Any:
            nonlocal attempts
            if isinstance(call, Commit) and call.batch.writes[0].collection == "pins":
                attempts += 1
                await asyncio.sleep(0.15)
                await other.encryption.rotate_data_keys()
            return await proceed(call)

    slow = await start(inner=[Slowly()])
    await other.pins.put(Pin("ada/1", "of somebody else"))
    await slow.pins.get("ada/1")
    with pytest.raises(DeadlineExceeded):
        await slow.pins.put(Pin("ada/1", "mine"), Options(deadline=0.2))
    assert attempts <= 2


async def test_what_has_expired_starts_anew(start: Processes) -> None:
    process = await start()
    codes = process.store.collection(Code)
    assert [await codes.put(Code("a", f"{n}")) for n in range(3)] == [1, 2, 3]
    start.clock.tick(7_200 * SECOND)
    assert await codes.get("a") is None
    assert await codes.put(Code("a", "new")) == 1
    assert await codes.get("a") == Code("a", "new")
    await codes.delete("a")
    assert await codes.put(Code("a", "newer"), Options(expected=0)) == 1
    assert await codes.get("a") == Code("a", "newer")


async def test_records_from_before_stay_readable_and_are_encrypted_when_written(
    start: Processes,
) -> None:
    @record("turned")
    class Plain(msgspec.Struct, frozen=True):
        id: Annotated[str, Key()]
        text: str

    process = await start()
    await process.store.collection(Plain).put_many([Plain("a", "x"), Plain("b", "y")])

    @record("turned")
    class Sealed(msgspec.Struct, frozen=True):
        id: Annotated[str, Key()]
        text: Annotated[str, Encrypted()]

    other = await start()
    sealed = other.store.collection(Sealed)
    assert await sealed.get("a") == Sealed("a", "x")
    assert await sealed.put(Sealed("a", "z")) == 2
    assert await other.marks("turned") == {"", "c1"}
    due = [other.encryption.is_due(type_of(Sealed), row) for row in await other.rows("turned")]
    assert sorted(due) == [False, True]
    # Without a key the old ones can still be read, and nothing is written.
    third = await start(None)
    sealed = third.store.collection(Sealed)
    assert await sealed.get("b") == Sealed("b", "y")
    with pytest.raises(KeyRefused, match="would be stored in clear") as caught:
        await sealed.put(Sealed("b", "w"))
    assert "perdure keys make" in caught.value.hint
    assert [row.version for row in await third.rows("turned")] == [2, 1]
    with pytest.raises(KeyRefused, match="no master key is given"):
        await sealed.get("a")
    await sealed.delete("a")  # what cannot be read can be deleted


async def test_a_rewrite_through_the_chain_is_encrypted(start: Processes) -> None:
    process = await start()
    await process.pins.put(Pin("a", "1"))
    before = await process.pins.fetch("a")
    (row,) = await process.store.read("pins", ["a"], DEFAULT)
    assert row is not None
    value = type_of(Pin).encode(Pin("a", "2"), None, None).value
    assert await process.store.rewrite("pins", [Recode(row, value, row.content_type)]) == 1
    after = await process.pins.fetch("a")
    assert before is not None
    assert after is not None
    assert (after.version, after.created_us) == (before.version, before.created_us)
    assert after.value == Pin("a", "2")
    assert await process.marks("pins") == {"c1"}


async def test_a_migration_encrypts_what_it_rewrites(start: Processes) -> None:
    @record("moving")
    class First(msgspec.Struct, frozen=True):
        id: Annotated[str, Key()]
        text: str

    @record("moving", migrations=[lambda old: old | {"size": len(old["text"])}])
    class Second(msgspec.Struct, frozen=True):
        id: Annotated[str, Key()]
        text: Annotated[str, Encrypted()]
        size: Annotated[int, Indexed()]

    def upper(old: dict[str, Any]) -> dict[str, Any]:
        return old | {"text": old["text"].upper()}

    process = await start()
    texts = ["x" * number for number in range(12)]
    await process.store.collection(First).put_many(
        [First(f"{number:02}", text) for number, text in enumerate(texts)]
    )
    process = await start()
    (done,) = await migrate(process.store, Second)
    assert (done.migrated, done.is_complete) == (12, True)
    assert await process.marks("moving") == {"c1"}
    found = process.store.collection(Second).query().where("size", ">", 9).order_by("size")
    assert [each.text for each in await found.values()] == texts[10:]

    migrations = [lambda old: old | {"size": len(old["text"])}, upper]
    again = record("moving", migrations=migrations)(Second)
    process = await start()
    (done,) = await migrate(process.store, again)
    assert (done.migrated, done.is_complete) == (12, True)
    rows = await process.rows("moving")
    assert {(row.schema, row.version) for row in rows} == {(3, 1)}
    assert await process.marks("moving") == {"c1"}
    found = process.store.collection(again).query().order_by("key")
    assert [each.text for each in await found.values()] == [text.upper() for text in texts]


# Nothing in clear ---------------------------------------------------------------------------------


@pytest.mark.parametrize("store_url", ["sqlite"], indirect=True)
async def test_nothing_is_found_in_the_files(start: Processes, tmp_path: Path) -> None:
    process = await start()
    texts = [f"{SECRET} and {SECRET} {number}" for number in range(200)]
    await process.diaries.put_many([diary(n, text) for n, text in enumerate(texts)])
    async with process.store.transaction() as tx:
        await tx.collection(Pin).put(Pin("p", SECRET))
        tx.emit("pin.changed", {"id": "p"})
    for name in ("bank.db", "bank.db-wal"):
        content = (tmp_path / name).read_bytes()
        assert content
        for word in (b"swordfish", b"launch code", base64.b64encode(OLD), OLD):
            assert word not in content
    other = await start()
    assert await other.diaries.get(diary(7).id) == diary(7, texts[7])


@pytest.mark.parametrize("store_url", ["postgresql"], indirect=True)
async def test_nothing_is_found_in_the_tables(start: Processes) -> None:
    process = await start()
    await process.diaries.put_many([diary(n, f"{SECRET} {n}") for n in range(20)])
    for size in await process.store.adapter.sizes():
        for row in await process.rows(size.collection):
            assert b"swordfish" not in row.value


# Tampering ----------------------------------------------------------------------------------------


@local
async def test_a_rewrite_of_an_unknown_type_stays_encrypted(start: Processes) -> None:
    process = await start()
    await process.pins.put(Pin("ada/1", "1234"))
    store, _ = stranger(process, OLD)
    (row,) = await store.read("pins", ["ada/1"], STRONG)
    assert row is not None
    assert await store.rewrite("pins", [Recode(row, row.value, row.content_type)]) == 1
    assert await process.marks("pins") == {"c1"}
    assert await process.pins.get("ada/1") == Pin("ada/1", "1234")


async def swap(process: Process, collection: str, key: str, row: Row, **changes: Any) -> None:
    """Put the value of a row in the place of another one's, as somebody with the file could."""
    (there,) = await process.store.adapter.get(collection, [key], DEFAULT)
    assert there is not None
    value, content_type = changes.get("value", row.value), row.content_type
    content_type = changes.get("content_type", content_type)
    sum_ = checksum(key, content_type, there.schema, value)
    recode = Recode(there, value, content_type, sum_)
    assert await process.store.adapter.recode(collection, [recode], []) == 1


async def stored(process: Process, collection: str, key: str) -> Row:
    (row,) = await process.store.adapter.get(collection, [key], DEFAULT)
    assert row is not None
    return row


async def test_a_value_of_another_record_is_refused(start: Processes) -> None:
    process = await start()
    await process.pins.put_many([Pin("a", "1"), Pin("b", "2")])
    await swap(process, "pins", "a", await stored(process, "pins", "b"))
    with pytest.raises(Corrupted, match="pins/a was changed, or was not written for") as caught:
        await process.pins.get("a")
    assert caught.value.record == "pins/a"
    with pytest.raises(Corrupted, match="pins/a"):
        await process.pins.query().values()
    assert await process.pins.get("b") == Pin("b", "2")
    problems = [problem.subject async for problem in verify_store(process.store)]
    assert problems == ["pins/a"]
    # It can be written over.
    assert await process.pins.put(Pin("a", "3")) == 2
    assert await process.pins.get("a") == Pin("a", "3")


@local
async def test_a_value_of_another_collection_is_refused(start: Processes) -> None:
    process = await start(scope="agent")
    codes = process.store.collection(Code)
    await process.pins.put(Pin("ada/1", "1"))
    await codes.put(Code("ada/1", "2"))
    await swap(process, "codes", "ada/1", await stored(process, "pins", "ada/1"))
    with pytest.raises(Corrupted, match="codes/ada/1"):
        await codes.get("ada/1")


@local
async def test_a_flipped_bit_is_noticed(start: Processes) -> None:
    process = await start()
    await process.pins.put(Pin("a", "1234"))
    row = await stored(process, "pins", "a")
    dice = random.Random(4)
    for place in [0, 11, 12, len(row.value) - 1, *dice.sample(range(len(row.value)), 5)]:
        value = bytearray(row.value)
        value[place] ^= 1 << dice.randrange(8)
        await swap(process, "pins", "a", row, value=bytes(value))
        with pytest.raises(Corrupted):
            await process.pins.get("a")
    for short in (b"", row.value[:11], row.value[:20]):
        await swap(process, "pins", "a", row, value=short)
        with pytest.raises(Corrupted):
            await process.pins.get("a")
    other = row.content_type.replace("json", "msgpack")
    await swap(process, "pins", "a", row, content_type=other)
    with pytest.raises(Corrupted):
        await process.pins.get("a")
    await swap(process, "pins", "a", row)
    assert await process.pins.get("a") == Pin("a", "1234")


@local
async def test_a_key_that_is_missing_or_moved(start: Processes) -> None:
    process = await start()
    await process.pins.put(Pin("a", "1"))
    await process.store.collection(Code).put(Code("a", "1"))
    rings = {row.key: row for row in await process.rows("perdure_keys")}
    await swap(process, "perdure_keys", "collection:pins", rings["collection:codes"])
    other = await start()
    with pytest.raises(PerdureError):
        await other.pins.get("a")
    await swap(process, "perdure_keys", "collection:pins", rings["collection:pins"])
    assert await other.pins.get("a") == Pin("a", "1")
    row = await stored(process, "pins", "a")
    await swap(process, "pins", "a", row, content_type=row.content_type.replace("c1", "c7"))
    with pytest.raises(Corrupted, match="needs data key 7 of collection:pins, which is missing"):
        await other.pins.get("a")


# Master keys --------------------------------------------------------------------------------------


async def test_a_wrong_master_key(start: Processes) -> None:
    process = await start(OLD)
    await process.pins.put(Pin("a", "1"))
    wrong = await start(NEW)
    ours, theirs = await fingerprint(OLD), await fingerprint(NEW)
    for attempt in (
        wrong.pins.get("a"),
        wrong.pins.put(Pin("b", "2")),
        wrong.pins.put(Pin("a", "2")),
    ):
        with pytest.raises(KeyRefused, match=f"{ours}; given: {theirs}") as caught:
            await attempt
        assert "encryption.former_keys" in caught.value.hint
    assert [row.key for row in await process.rows("pins")] == ["a"]
    both = await start(NEW, [OLD])
    assert await both.pins.get("a") == Pin("a", "1")
    await both.store.collection(Code).put(Code("a", "2"))
    with pytest.raises(KeyRefused, match=theirs):
        await process.store.collection(Code).get("a")


async def fingerprint(key: bytes) -> str:
    return (await MasterKeys(lambda: key).current()).fingerprint


HEX, TEXT = OLD.hex(), base64.b64encode(OLD).decode()


@pytest.mark.parametrize(
    "given_key",
    [
        OLD,
        HEX,
        HEX.upper(),
        f" {HEX}\n",
        HEX.encode(),
        TEXT,
        TEXT.rstrip("="),
        TEXT.encode() + b"\n",
        base64.urlsafe_b64encode(OLD),
        [OLD, NEW],
    ],
)
async def test_forms_of_a_master_key(given_key: Any) -> None:
    masters = MasterKeys(lambda: given_key)
    assert (await masters.current()).fingerprint == await fingerprint(OLD)


async def test_callables_may_be_async_and_give_several() -> None:
    async def ask() -> list[bytes]:
        await asyncio.sleep(0)
        return [NEW, OLD]

    masters = MasterKeys(ask)
    assert (await masters.current()).fingerprint == await fingerprint(NEW)
    assert await masters.named(await fingerprint(OLD)) is not None
    assert await read_key(ask) == NEW


@pytest.mark.parametrize(
    "given_key",
    [
        b"",
        "",
        OLD[:31],
        OLD + b"x",
        HEX[:-2],
        "correct horse battery staple",
        b"correct horse battery staple 123",
        "correct horse battery staple 123",
        bytes(32),
        "0" * 64,
        "!" * 44,
        [],
    ],
)
async def test_what_is_no_master_key(given_key: Any) -> None:
    with pytest.raises(KeyRefused) as caught:
        await MasterKeys(lambda: given_key).current()
    assert "perdure keys make" in caught.value.hint
    assert not given_key or str(given_key) not in str(caught.value)


async def test_files_and_variables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = make_file(tmp_path / "key")
    assert (tmp_path / "key").stat().st_mode & 0o777 == 0o600
    masters = MasterKeys(f"file:{tmp_path / 'key'}", ["env:FORMER_KEY"])
    with pytest.raises(KeyRefused, match="FORMER_KEY that should hold the master key is not set"):
        await masters.current()
    monkeypatch.setenv("FORMER_KEY", TEXT)
    assert (await masters.current()).fingerprint == made.fingerprint
    assert await masters.named(await fingerprint(OLD)) is not None
    content = (tmp_path / "key").read_bytes()
    with pytest.raises(InvalidInput, match="already"):
        make_file(tmp_path / "key")
    assert (tmp_path / "key").read_bytes() == content
    with pytest.raises(KeyRefused, match="cannot be read: No such file"):
        await MasterKeys(f"file:{tmp_path / 'nowhere'}").current()
    (tmp_path / "raw").write_bytes(OLD)
    assert await read_key(f"file:{tmp_path / 'raw'}") == OLD
    for source in ("", "file:", "env:", HEX, "vault:x"):
        with pytest.raises(KeyRefused) as caught:
            await MasterKeys(source).current()
        assert HEX not in str(caught.value)


async def test_a_key_that_is_replaced_in_its_file(start: Processes, tmp_path: Path) -> None:
    source = write_key(tmp_path / "key", OLD)
    process = await start(source)
    await process.pins.put(Pin("a", "1"))
    other = await start(NEW, [OLD])
    await other.store.collection(Code).put(Code("a", "2"))
    write_key(tmp_path / "key", NEW)
    # It is read again when something turns up that the known one has not wrapped.
    assert await process.store.collection(Code).get("a") == Code("a", "2")
    assert await process.pins.get("a") == Pin("a", "1")


async def test_keys_are_never_shown(start: Processes) -> None:
    process = await start()
    await process.pins.put(Pin("a", "1"))
    masters = process.encryption.keys.masters
    assert masters is not None
    ring = await process.encryption.keys.writable("collection:pins")
    shown = repr([masters, await masters.current(), ring, process.encryption.keys])
    for secret in (OLD, ring.keys[1]):
        assert repr(secret)[2:-1] not in shown
        assert secret.hex() not in shown


async def test_without_the_package(start: Processes, monkeypatch: pytest.MonkeyPatch) -> None:
    process = await start()
    monkeypatch.setitem(sys.modules, "cryptography.hazmat.primitives.ciphers.aead", None)
    with pytest.raises(Unsupported, match="needs the package cryptography") as caught:
        await process.pins.put(Pin("a", "1"))
    assert "pip install 'perdure[encryption]'" in caught.value.hint
    assert await process.pins.get("a") is None


def test_nothing_heavy_is_loaded_before_it_is_needed() -> None:
    code = "import sys, perdure.storage.encryption; print('cryptography' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def test_the_key_of_a_whole_file() -> None:
    assert file_key(OLD) == file_key(OLD)
    assert len({file_key(OLD), file_key(NEW), OLD, NEW}) == 4
    # Fixed for ever: files depend on it.
    assert file_key(bytes(32)).hex()[:16] == "3b8ed7a4b53d9891"


# Objects outside of the store ---------------------------------------------------------------------


async def test_data_keys_for_objects(start: Processes) -> None:
    process, other = await start(), await start()
    scope = "collection:perdure_artifacts"
    number, key = await process.encryption.keys.current(scope)
    assert (number, len(key)) == (1, 32)
    assert await other.encryption.keys.current(scope) == (1, key)
    assert await other.encryption.keys.key(scope, 1) == key
    with pytest.raises(Corrupted, match="Data key 2 of collection:perdure_artifacts is destroyed"):
        await process.encryption.keys.key(scope, 2)


# Declarations and the chain -----------------------------------------------------------------------


@pytest.mark.parametrize("mark", [Indexed(), Tags(), Key()])
def test_what_is_encrypted_cannot_be_found_in_clear(mark: Any) -> None:
    kind = dict[str, str] if isinstance(mark, Tags) else str
    fields = [("id", Annotated[str, Key()]), ("x", Annotated[kind, mark, Encrypted()])]
    cls = msgspec.defstruct("Exposed", fields, frozen=True)
    with pytest.raises(InvalidRecordType, match=r"Exposed\.x is marked Encrypted") as caught:
        record("exposed")(cls)
    assert "whole_file" in caught.value.hint


@pytest.mark.parametrize("index", [Index(("x",)), Index(("created",), where=(("x", "1"),))])
def test_nor_named_in_an_index(index: Index) -> None:
    fields = [("id", Annotated[str, Key()]), ("x", Annotated[str, Encrypted()])]
    cls = msgspec.defstruct("Exposed", fields, frozen=True)
    with pytest.raises(InvalidRecordType, match=r"Exposed\.x is marked Encrypted"):
        record("exposed", indexes=[index])(cls)


async def test_a_store_without_encryption_refuses_such_types() -> None:
    async with Store(adapter_for("memory://")) as store:
        with pytest.raises(KeyRefused, match="Pin has a field marked Encrypted"):
            await store.collection(Pin).put(Pin("a", "1"))


def test_the_order_of_the_chain() -> None:
    with pytest.raises(InvalidInput, match="encrypted bytes do not compress"):
        Store(adapter_for("memory://"), middleware=[Encryption(None), Compression()])
    with pytest.raises(InvalidInput, match="both for encrypt"):
        Store(adapter_for("memory://"), middleware=[Encryption(None), Encryption(None)])


RAW = bytes(range(7, 39))


@pytest.mark.parametrize("given", [RAW, RAW.hex(), "file:key", 5, MasterKeys])
def test_what_are_no_master_keys_is_refused_and_not_shown(given: Any) -> None:
    with pytest.raises(InvalidInput, match="are no master keys") as refused:
        Encryption(given)
    assert RAW.hex() not in str(refused.value)


def test_everything_is_not_encrypted_with_nothing() -> None:
    with pytest.raises(KeyRefused, match="no master key, so not everything") as refused:
        Encryption(None, everything=True)
    assert "perdure keys make" in refused.value.hint
    wrong: Any = "agents"
    with pytest.raises(InvalidInput, match="no scope 'agents'"):
        Encryption(None, scope=wrong)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (None, "is named by file:PATH or env:NAME"),
        (RAW, "is named by file:PATH or env:NAME"),
        (lambda: None, "returned none"),
        (list, "returned none"),
        (lambda: 5, "gives no master key"),
        (lambda: [None, RAW], "gives no master key"),
    ],
)
async def test_what_gives_no_master_key_is_refused(given: Any, told: str) -> None:
    encryption = Encryption(MasterKeys(given))
    async with Store(adapter_for("memory://"), middleware=[encryption]) as store:
        with pytest.raises(KeyRefused, match=told):
            await store.collection(Pin).put(Pin("a", "1"))


async def test_backends_that_cannot_check_are_refused(tmp_path: Path) -> None:
    adapter = FolderAdapter(f"folder:///{tmp_path / 'bank'}")
    encryption = Encryption(MasterKeys(lambda: OLD))
    async with Store(adapter, middleware=[encryption]) as store:
        with pytest.raises(Unsupported, match="FolderAdapter cannot check keys"):
            await store.collection(Pin).put(Pin("a", "1"))
        assert await store.collection(Pin).get("a") is None
        await store.collection(Pin).delete("a")


# The same answers as without ----------------------------------------------------------------------


keys = st.sampled_from(["a", "a/1", "a/2", "b/1", "c"])
numbers = st.sampled_from(["", "1", "22" * 40])
steps = st.one_of(
    st.tuples(st.just("put"), keys, numbers, st.sampled_from([None, None, 0, 1, 2])),
    st.tuples(st.just("many"), st.lists(keys, max_size=4), numbers),
    st.tuples(st.just("delete"), keys, st.sampled_from([None, None, 1])),
    st.tuples(st.just("get"), keys),
    st.tuples(st.just("find"), st.sampled_from(["", "a/"])),
    st.tuples(st.just("transaction"), keys, keys, numbers),
    st.tuples(st.just("wait")),
    st.tuples(st.just("rotate")),
    st.tuples(st.just("master")),
)


@given(story=st.lists(steps, max_size=25), scope=st.sampled_from(["collection", "agent"]))
def test_the_same_answers_as_without_encryption(story: list[Any], scope: Any) -> None:
    asyncio.run(compare(story, scope))


async def compare(story: list[Any], scope: Any) -> None:
    clocks = ManualClock(), ManualClock()
    async with (
        Processes("memory://", clocks[0]) as plain,
        Processes("memory://", clocks[1]) as sealed,
    ):
        reference = await plain(None)
        processes = [await sealed(NEW, [OLD], scope=scope) for _ in range(2)]
        # The reference keeps the same content, of a type that is not encrypted.
        for number, step in enumerate(story):
            process = processes[number % 2]
            if step[0] == "wait":
                for clock in clocks:
                    clock.tick(40 * 60 * SECOND)
            elif step[0] == "rotate":
                await process.encryption.rotate_data_keys()
            elif step[0] == "master":
                await process.encryption.rotate_master()
            else:
                assert await act(process, Code, step) == await act(reference, Open, step)


@record("codes", ttl="1h")
class Open(msgspec.Struct, frozen=True):
    id: Annotated[str, Key()]
    code: str


async def act(process: Process, cls: Any, step: Any) -> Any:
    records = process.store.collection(cls)
    try:
        match step:
            case ("put", key, number, expected):
                return await records.put(cls(key, number), Options(expected=expected))
            case ("many", several, number):
                return await records.put_many([cls(key, number) for key in several])
            case ("delete", key, expected):
                return await records.delete(key, Options(expected=expected))
            case ("get", key):
                found = await records.fetch(key)
                return found and (found.version, found.value.code)
            case ("find", prefix):
                items = await records.query().prefix(prefix).order_by("-key").execute()
                return [(each.key, each.version, each.value.code) for each in items]
            case ("transaction", first, second, number):
                async with process.store.transaction() as tx:
                    mine = tx.collection(cls)
                    before = await mine.get(first)
                    await mine.put(cls(second, number + (before.code[:1] if before else "")))
                return None
    except Conflict as conflict:
        return conflict.collection, conflict.key, conflict.expected, conflict.found

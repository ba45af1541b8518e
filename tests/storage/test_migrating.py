"""Bulk migration: all records are brought to what is declared."""

from __future__ import annotations

import asyncio
import itertools
from pathlib import Path
from typing import Annotated, Any

import msgspec
import pytest

import perdure
from perdure.core.errors import InvalidRecordType, MigrationFailed
from perdure.storage import record_migrations, record_references
from perdure.storage.compression import Compression
from perdure.storage.encryption import Encryption, MasterKeys
from perdure.storage.options import DEFAULT, Options
from perdure.storage.query import Query
from perdure.storage.record_migrations import Migrated, migrate
from perdure.storage.record_references import Reference
from perdure.storage.records import Compressed, Encrypted, Indexed, Key, Tags, record
from perdure.storage.registry import adapter_for
from perdure.storage.row_rewrites import Rewritten, rewrite_collection
from perdure.storage.rows import Batch, Recode, Row
from perdure.storage.store import Store
from perdure.storage.verify import verify_store
from perdure.testing.manual_clock import ManualClock
from tests.conftest import DURABLE, MakeStore

# A type through three versions of a program.


@record("letters")
class Letter1(msgspec.Struct, frozen=True):
    id: Annotated[str, Key()]
    text: str


def add_words(data: dict[str, Any]) -> dict[str, Any]:
    return data | {"words": len(data["text"].split())}


def add_mood(data: dict[str, Any]) -> dict[str, Any]:
    return data | {"mood": "glad" if data["words"] % 2 else "sad"}


@record("letters", migrations=[add_words])
class Letter2(msgspec.Struct, frozen=True):
    id: Annotated[str, Key()]
    text: str
    words: Annotated[int, Indexed()]


@record("letters", migrations=[add_words, add_mood])
class Letter3(msgspec.Struct, frozen=True):
    id: Annotated[str, Key()]
    text: Annotated[str, Compressed()]
    words: Annotated[int, Indexed()]
    mood: Annotated[str, Indexed()]


def text_of(number: int) -> str:
    return " ".join(f"word-{number}-{each}" for each in range(number % 7 + 3))


def letter(number: int) -> Letter3:
    words = number % 7 + 3
    return Letter3(f"a/{number:04d}", text_of(number), words, "glad" if words % 2 else "sad")


async def fill(store: Store, count: int) -> list[Letter3]:
    """Letters of all three versions, in turns; returns them as they are to be."""
    adapter = store.adapter
    wanted = [letter(number) for number in range(count)]
    versions: tuple[type[Any], ...] = (Letter1, Letter2, Letter3)
    for version, cls in enumerate(versions):
        fields = cls.__struct_fields__
        made = [cls(*(getattr(each, field) for field in fields)) for each in wanted[version::3]]
        program = Store(adapter)
        await program.declare(cls)
        await program.collection(cls).put_many(made)
    return wanted


async def rows_of(store: Store) -> list[Row]:
    return await store.adapter.find(Query("letters"), DEFAULT)


async def assert_migrated(store: Store, wanted: list[Letter3]) -> None:
    """The records are as they should be, without any migration function, and found by column."""

    class Bare(msgspec.Struct, frozen=True):
        id: Annotated[str, Key()]
        text: str
        words: Annotated[int, Indexed()]
        mood: Annotated[str, Indexed()]

    def refuse(data: dict[str, Any]) -> dict[str, Any]:
        raise AssertionError("a migration function was needed")

    bare = record("letters", migrations=[refuse, refuse])(Bare)
    letters = (await _again(store)).collection(bare)
    found = await letters.query().values()
    assert [msgspec.structs.astuple(each) for each in found] == [
        msgspec.structs.astuple(each) for each in wanted
    ]
    for words, mood in itertools.product(range(3, 10), ("glad", "sad")):
        by_both = letters.query().where("words", "=", words).where("mood", "=", mood)
        names = [each.id for each in wanted if (each.words, each.mood) == (words, mood)]
        assert [each.id for each in await by_both.values()] == names
    assert [problem async for problem in verify_store(store)] == []


async def _again(store: Store) -> Store:
    """Another program on the same store, in which nothing is declared yet."""
    compression = Compression()
    other = Store(store.adapter, middleware=[compression], clock=store.now)
    compression.attach(other)
    return other


async def test_every_version_is_brought_to_the_current_one(store: Store) -> None:
    wanted = await fill(store, 300)
    before = {row.key: row for row in await rows_of(store)}
    told: list[tuple[str, int, int]] = []
    (done,) = await migrate(store, Letter3, progress=lambda *what: told.append(what))
    versions = {1: 100, 2: 100, 3: 100}
    assert done == Migrated("letters", 3, "application/json", versions, done.migrated)
    # Those of the last version were not compressed, and the shortest of them still are not.
    assert 200 < done.migrated <= 300
    assert done.is_complete
    assert told[-1] == ("migrating letters", 300, 300)
    for row in await rows_of(store):
        was = before[row.key]
        assert row.schema == 3
        assert ";zstd" in row.content_type or len(row.value) < 100
        assert (row.version, row.created, row.updated) == (was.version, was.created, was.updated)
    await assert_migrated(store, wanted)
    (again,) = await migrate(store, Letter3)
    assert again.migrated == 0
    assert again.found == {3: 300}


async def test_a_dry_run_writes_nothing(store: Store) -> None:
    await fill(store, 300)
    before = await rows_of(store)
    tables = [size.collection for size in await store.adapter.sizes()]
    (told,) = await migrate(await _again(store), Letter3, dry_run=True)
    assert told.found == {1: 100, 2: 100, 3: 100}
    assert 200 < told.migrated <= 300
    assert await rows_of(store) == before
    assert [size.collection for size in await store.adapter.sizes()] == tables
    (done,) = await migrate(store, Letter3)
    assert done == told


async def test_all_declared_types_that_are_there(store: Store) -> None:
    await fill(store, 30)
    store.collection(Letter3)
    await store.declare(Letter3)
    done = {each.collection: each for each in await migrate(store)}
    assert done["letters"].schema == 3
    assert done["letters"].is_complete
    assert not done.keys() & {"notes", "people"}  # declared by other tests, and not there
    assert await migrate(store, perdure.StateRecord) == []
    with pytest.raises(InvalidRecordType):
        await migrate(store, msgspec.Struct)


class Spoilt(Exception):
    """What a function does not expect."""


def fails_sometimes(data: dict[str, Any]) -> dict[str, Any]:
    if data["id"] in FAILING:
        raise Spoilt("it fell into the sea")
    return add_words(data)


FAILING: set[str] = set()


@record("letters", migrations=[fails_sometimes, add_mood])
class Fragile(msgspec.Struct, frozen=True):
    id: Annotated[str, Key()]
    text: str
    words: Annotated[int, Indexed()]
    mood: Annotated[str, Indexed()]


async def test_a_record_that_fails_does_not_harm_the_others(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(globals(), "FAILING", {"a/0030", "a/0123"})
    wanted = await fill(store, 300)
    before = {row.key: row for row in await rows_of(store)}
    (done,) = await migrate(store, Fragile)
    assert (done.migrated, done.failed, done.left) == (198, 2, 0)
    assert not done.is_complete
    assert [failure.key for failure in done.failures] == ["a/0030", "a/0123"]
    assert done.failures[0].what == (
        "letters/a/0030 could not be brought from schema 1 to 2: Spoilt: it fell into the sea."
    )
    after = {row.key: row for row in await rows_of(store)}
    assert [key for key, row in after.items() if row.schema < 3] == ["a/0030", "a/0123"]
    assert after["a/0030"] == before["a/0030"]
    with pytest.raises(MigrationFailed):
        await store.collection(Fragile).get("a/0030")
    FAILING.clear()
    (again,) = await migrate(store, Fragile)
    assert (again.migrated, again.failed) == (2, 0)
    await assert_migrated(store, wanted)


async def test_a_migration_may_not_change_the_key(store: Store) -> None:
    await store.collection(Letter1).put(Letter1("a", "x"))

    class Renamed(msgspec.Struct, frozen=True):
        id: Annotated[str, Key()]
        text: str

    cls = record("letters", migrations=[lambda data: data | {"id": "b"}])(Renamed)
    (done,) = await migrate(await _again(store), cls)
    assert (done.migrated, done.failed) == (0, 1)
    assert "another key" in done.failures[0].what
    assert (await store.collection(Letter1).get("a")) == Letter1("a", "x")


async def test_another_serializer(store: Store) -> None:
    await store.collection(Letter1).put_many([Letter1(f"{n}", text_of(n)) for n in range(50)])

    class Packed(msgspec.Struct, frozen=True):
        id: Annotated[str, Key()]
        text: str

    cls = record("letters", serializer="msgpack")(Packed)
    later = await _again(store)
    (done,) = await migrate(later, cls)
    assert (done.migrated, done.content_type) == (50, "application/msgpack")
    rows = await rows_of(store)
    assert {row.content_type for row in rows} == {"application/msgpack"}
    assert msgspec.msgpack.decode(rows[0].value) == {"id": "0", "text": text_of(0)}
    assert await later.collection(cls).get("7") == Packed("7", text_of(7))


@pytest.mark.parametrize("store_url", DURABLE, indirect=True)
async def test_newer_records_are_left_alone_and_counted(make_store: MakeStore) -> None:
    older, newer = await make_store(), await make_store()
    first = Store(older.adapter).collection(Letter1)
    await first.put_many([Letter1(f"a/{n}", text_of(n)) for n in range(10)])
    await older.declare(Letter2)  # and it goes on, while newer code is started beside it
    await newer.declare(Letter3)
    await newer.collection(Letter3).put_many([letter(n) for n in range(10)])
    before = [row for row in await rows_of(older) if row.schema == 3]
    (done,) = await migrate(older, Letter2)
    assert (done.found, done.newer, done.migrated) == ({1: 10, 3: 10}, 10, 10)
    after = await rows_of(older)
    assert [row for row in after if row.schema == 3] == before
    assert sum(row.schema == 2 for row in after) == 10


async def test_tags_and_expiry_stay_and_the_expired_are_left_alone(
    make_store: MakeStore, clock: ManualClock
) -> None:
    class Brief1(msgspec.Struct, frozen=True):
        id: Annotated[str, Key()]
        tags: Annotated[dict[str, str], Tags()] = {}

    class Brief2(msgspec.Struct, frozen=True):
        id: Annotated[str, Key()]
        tags: Annotated[dict[str, str], Tags()] = {}
        kind: Annotated[str, Indexed()] = "?"

    store = await make_store()
    old = record("briefs", ttl=100)(Brief1)
    await store.collection(old).put(old("dead", {"t": "1"}))
    clock.advance(60)
    await store.collection(old).put(old("alive", {"t": "1"}))
    clock.advance(60)
    new = record("briefs", ttl=100, migrations=[lambda data: data | {"kind": "k"}])(Brief2)
    later = await _again(store)
    (done,) = await migrate(later, new)
    assert (done.found, done.migrated) == ({1: 1}, 1)
    found = later.collection(new).query().tagged(t="1").where("kind", "=", "k")
    assert [each.id for each in await found.values()] == ["alive"]
    clock.advance(60)
    assert not await found.exists()


async def test_tags_are_those_of_the_migrated_record(store: Store) -> None:
    class Paper1(msgspec.Struct, frozen=True):
        id: Annotated[str, Key()]
        labels: Annotated[dict[str, str], Tags()] = {}

    class Paper2(msgspec.Struct, frozen=True):
        id: Annotated[str, Key()]
        labels: Annotated[dict[str, str], Tags()] = {}

    old = record("papers")(Paper1)
    kinds: tuple[dict[str, str], ...] = ({"kind": "old"}, {"kind": "old", "by": "me"}, {})
    papers = [old(f"{number}", labels) for number, labels in enumerate(kinds)]
    await store.collection(old).put_many(papers)

    def relabel(data: dict[str, Any]) -> dict[str, Any]:
        return data | {"labels": {"kind": "new"} if data["labels"] else {}}

    later = await _again(store)
    new = record("papers", migrations=[relabel])(Paper2)
    (done,) = await migrate(later, new)
    assert (done.migrated, done.is_complete) == (3, True)
    query = later.collection(new).query()
    assert [each.id for each in await query.tagged(kind="new").values()] == ["0", "1"]
    assert await query.tagged(kind="old").values() == []
    assert await query.tagged(by="me").values() == []


def declared_with(serializer: str, *, migrations: Any = (), marker: Any = None) -> Any:
    text = str if marker is None else Annotated[str, marker]
    cls = msgspec.defstruct("Page", [("id", Annotated[str, Key()]), ("text", text)], frozen=True)
    return record("pages", serializer=serializer, migrations=migrations)(cls)


async def interrupted(store: Store, cls: Any, pages: int = 4) -> None:
    """Migrate, but only so far."""
    done = 0

    def stop(*_: object) -> None:
        nonlocal done
        done += 1
        if done == pages:
            raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        await migrate(store, cls, progress=stop)


async def types_of(store: Store) -> dict[tuple[int, str], int]:
    return {
        (count.schema, count.content_type): count.rows
        for count in await store.adapter.census("pages")
    }


async def test_back_and_forth_after_an_interruption(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = declared_with("json")
    await store.collection(plain).put_many([plain(f"{n:03}", "x" * 200) for n in range(300)])
    await interrupted(await _again(store), declared_with("msgpack"))
    assert len(await types_of(store)) == 2
    (back,) = await migrate(await _again(store), declared_with("json"))
    assert back.is_complete
    assert await types_of(store) == {(1, "application/json"): 300}
    (done,) = await migrate(await _again(store), declared_with("msgpack"))
    assert (done.migrated, done.is_complete) == (300, True)
    assert await types_of(store) == {(1, "application/msgpack"): 300}


async def test_what_is_asked_for_since_the_interruption(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Old code wrote with its serializer, and compression was switched on."""
    old = declared_with("json")
    await store.collection(old).put_many([old(f"{n:03}", "x" * 200) for n in range(300)])
    await interrupted(await _again(store), declared_with("msgpack"))
    await (await _again(store)).collection(old).put(old("000", "y" * 200))
    packed = declared_with("msgpack", marker=Compressed())
    (done,) = await migrate(await _again(store), packed)
    assert done.is_complete
    rows = await store.adapter.find(Query("pages"), DEFAULT)
    assert all(row.content_type.startswith("application/msgpack;zstd") for row in rows)


async def test_what_failed_before_an_interruption_is_tried_again(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing = {"003"}

    def fragile(data: dict[str, Any]) -> dict[str, Any]:
        if data["id"] in failing:
            raise Spoilt("oh")
        return data

    old = declared_with("msgpack")
    await store.collection(old).put_many([old(f"{n:03}", "x") for n in range(300)])
    new = declared_with("msgpack", migrations=[fragile])
    await interrupted(await _again(store), new)
    (still,) = await migrate(await _again(store), new)
    assert (still.migrated, still.failed, still.left) == (140, 1, 0)
    assert "Spoilt: oh" in still.failures[0].what
    failing.clear()
    (done,) = await migrate(await _again(store), new)
    assert (done.migrated, done.failed, done.is_complete) == (1, 0, True)


@pytest.mark.parametrize("store_url", DURABLE, indirect=True)
@pytest.mark.parametrize("serializer", ["msgpack", "json"])
async def test_failures_do_not_hide_what_old_code_keeps_adding(
    make_store: MakeStore, monkeypatch: pytest.MonkeyPatch, serializer: str
) -> None:
    old_store, store = await make_store(), await make_store()
    schema = 2 if serializer == "msgpack" else 1  # old code has an older schema, or a serializer
    migrations = [lambda data: data] * (schema - 1)
    old = declared_with(serializer)
    await old_store.collection(old).put(old("zz", "x"))
    other = declared_with("json", migrations=migrations)
    await Store(store.adapter).collection(other).put_many([other(f"a{n}", "x") for n in range(3)])
    rows = await store.adapter.get("pages", ["a0", "a1", "a2"], DEFAULT)
    spoilt = [Recode(row, b"?", row.content_type, row.checksum) for row in rows if row]
    assert await store.adapter.recode("pages", spoilt, []) == 3
    number = 0

    async def and_then(*args: Any, **options: Any) -> Rewritten:
        nonlocal number
        done = await rewrite_collection(*args, **options)
        number += 1
        await old_store.collection(old).put_many([old(f"b{number}{n}", "x") for n in range(3)])
        return done

    monkeypatch.setattr(record_migrations, "rewrite_collection", and_then)
    (done,) = await migrate(await _again(store), declared_with("msgpack", migrations=migrations))
    assert (done.failed, done.left) == (3, 3)
    assert not done.is_complete


class Picture1(msgspec.Struct, frozen=True):
    id: Annotated[str, Key()]
    hash: str


class Picture2(msgspec.Struct, frozen=True):
    id: Annotated[str, Key()]
    pixels: tuple[Reference, ...]


def refer(data: dict[str, Any]) -> dict[str, Any]:
    hashes = [data["hash"]] if data["hash"] else []
    return {"id": data["id"], "pixels": [{"hash": hash_, "size": 7} for hash_ in hashes]}


async def referring(store: Store) -> dict[str, tuple[list[str], tuple[int, ...]]]:
    rows = await store.collection(record_references.Referring).query().values()
    return {row.key: (list(row.hashes), row.sizes) for row in rows}


async def pictures(store: Store, *hashes: str) -> Any:
    """Pictures of an old program, which kept no references; the type of the new one."""
    old = record("pictures")(Picture1)
    made = [old(f"{number}", hash_) for number, hash_ in enumerate(hashes)]
    await store.collection(old).put_many(made)
    return record("pictures", migrations=[refer])(Picture2)


async def test_migrated_records_keep_what_they_refer_to(store: Store) -> None:
    new = await pictures(store, "A", "B", "")
    later = await _again(store)
    (told,) = await migrate(later, new, dry_run=True)
    assert told.migrated == 3
    assert await referring(store) == {}
    (done,) = await migrate(later, new)
    assert (done.migrated, done.is_complete) == (3, True)
    assert await referring(store) == {"0": (["A"], (7,)), "1": (["B"], (7,))}

    class Picture3(msgspec.Struct, frozen=True):
        id: Annotated[str, Key()]
        pixels: tuple[Reference, ...]

    def move(data: dict[str, Any]) -> dict[str, Any]:
        more = [{"hash": "C", "size": 8}] if data["id"] == "0" else []
        return data | {"pixels": more}

    newest = record("pictures", migrations=[refer, move])(Picture3)
    (done,) = await migrate(await _again(store), newest)
    assert (done.migrated, done.is_complete) == (3, True)
    assert await referring(store) == {"0": (["C"], (8,))}


async def test_references_come_before_the_records_that_have_them(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    new = await pictures(store, "A")
    later = await _again(store)

    async def killed(*_: object) -> int:
        raise asyncio.CancelledError

    monkeypatch.setattr(later, "rewrite", killed)
    with pytest.raises(asyncio.CancelledError):
        await migrate(later, new)
    assert await referring(store) == {"0": (["A"], (7,))}


async def test_a_record_that_is_changed_meanwhile_keeps_its_own_references(store: Store) -> None:
    new = await pictures(store, "A", "B")
    later, beside = await _again(store), await _again(store)
    await beside.declare(new)
    commit = later.commit

    async def slow(batch: Batch, options: Options) -> list[int]:
        if beside_writes:
            await beside.collection(new).put(beside_writes.pop())
        return await commit(batch, options)

    beside_writes = [new("0", (Reference("Z", 1),))]
    later.commit = slow  # type: ignore[method-assign]
    (done,) = await migrate(later, new)
    assert not beside_writes
    assert (done.migrated, done.is_complete) == (1, True)
    assert await referring(store) == {"0": (["Z"], (1,)), "1": (["B"], (7,))}


async def test_records_of_deleted_content_are_told(store: Store) -> None:
    new = await pictures(store, "A", "B")
    await store.collection(record_references.Condemned).put(
        record_references.Condemned("A", "me", gone=True)
    )
    (done,) = await migrate(await _again(store), new)
    assert (done.migrated, done.failed, done.left) == (1, 1, 0)
    assert done.failures[0].key == "0"
    assert "A was deleted" in done.failures[0].what


@pytest.mark.parametrize("store_url", DURABLE, indirect=True)
async def test_it_goes_on_where_it_was_interrupted(make_store: MakeStore) -> None:
    old, store = await make_store(), await make_store()
    await old.declare(Letter1)
    wanted = await fill(store, 600)
    failing = await _again(store)
    pages = 0

    def stop(what: str, done: int, total: int) -> None:
        nonlocal pages
        pages += 1
        if pages == 4:
            raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        await migrate(failing, Letter3, progress=stop)
    # Meanwhile old code writes to a place that it has passed.
    await old.collection(Letter1).put(Letter1("a/0000b", "one two three four"))
    wanted.insert(1, Letter3("a/0000b", "one two three four", 4, "sad"))
    (done,) = await migrate(await _again(store), Letter3)
    assert done.migrated < 500, "what was done is left alone"
    assert done.is_complete
    await store.refill()
    await assert_migrated(store, wanted)
    (again,) = await migrate(await _again(store), Letter3)
    assert again.migrated == 0


async def test_two_at_once_and_writers_beside_them(store: Store) -> None:
    wanted = {each.id: each for each in await fill(store, 400)}
    programs = [await _again(store) for _ in range(3)]
    for program in programs:
        await program.declare(Letter3)
    ended = False

    async def write() -> None:
        number = 0
        while not ended:
            number += 1
            made = letter(number * 7 % 500)
            await programs[2].collection(Letter3).put(made)
            wanted[made.id] = made
            await asyncio.sleep(0)

    writing = asyncio.create_task(write())
    both = await asyncio.gather(*(migrate(program, Letter3) for program in programs[:2]))
    ended = True
    await writing
    assert all(done.is_complete for (done,) in both)
    await assert_migrated(store, [wanted[key] for key in sorted(wanted)])


async def test_a_damaged_record_is_told(make_store: MakeStore, store: Store) -> None:
    await fill(store, 30)
    (row,) = await store.adapter.get("letters", ["a/0003"], DEFAULT)
    assert row is not None
    spoilt = msgspec.structs.replace(row, value=row.value + b"x")
    recode = Recode(row, spoilt.value, row.content_type, row.checksum)
    assert await store.adapter.recode("letters", [recode], []) == 1
    (done,) = await migrate(await _again(store), Letter3)
    assert (done.failed, done.failures[0].key) == (1, "a/0003")
    assert "damaged" in done.failures[0].what


@pytest.mark.parametrize("store_url", ["sqlite"], indirect=True)
async def test_the_event_loop_goes_on(store: Store, tmp_path: Path) -> None:
    await fill(store, 3_000)
    late: list[float] = []
    loop = asyncio.get_running_loop()

    async def tick() -> None:
        while True:
            due = loop.time() + 0.001
            await asyncio.sleep(0.001)
            late.append(loop.time() - due)

    ticking = asyncio.create_task(tick())
    await migrate(await _again(store), Letter3)
    ticking.cancel()
    # Done in one go, the loop would turn a few times, and wait for most of it once.
    assert len(late) > 20
    assert max(late) < sum(late) / 3, sorted(late)[-5:]


@pytest.mark.parametrize("store_url", DURABLE, indirect=True)
async def test_after_reopening(make_store: MakeStore) -> None:
    store = await make_store()
    wanted = await fill(store, 60)
    await migrate(await _again(store), Letter3)
    await store.close()
    await assert_migrated(await make_store(), wanted)


async def test_why_a_migration_failed_is_not_kept_in_clear(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A function may quote the record that it could not bring over, which may be encrypted."""

    @record("confessions")
    class Confession(msgspec.Struct, frozen=True):
        id: Annotated[str, Key()]
        text: Annotated[str, Encrypted()]

    def raising(old: dict[str, Any]) -> dict[str, Any]:
        raise ValueError(f"cannot read {old['text']}")

    @record("confessions", migrations=[raising])
    class Later(msgspec.Struct, frozen=True):
        id: Annotated[str, Key()]
        text: Annotated[str, Encrypted()]

    def store() -> Store:
        encryption = Encryption(MasterKeys(lambda: bytes(range(32))))
        return Store(adapter_for(f"sqlite:///{tmp_path}/s.db"), middleware=[encryption])

    async with store() as first:
        await first.collection(Confession).put_many(
            [Confession(f"{n:03d}", f"the butler did it {n}") for n in range(120)]
        )
    seen: list[bytes] = []
    async with store() as then:

        def look(what: str, done: int, total: int) -> None:
            seen.extend(file.read_bytes() for file in tmp_path.iterdir())

        (done,) = await migrate(then, Later, progress=look)
    assert done.failed == 120
    assert "the butler did it" in done.failures[0].what
    assert b"the butler did it" not in b"".join(seen)

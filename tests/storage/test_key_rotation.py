"""Keys are replaced while everybody reads and writes; destroyed ones are gone for good."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

import msgspec
import pytest

from perdure.core.errors import Conflict, Corrupted, InvalidInput, KeyRefused, Unavailable
from perdure.storage.collection_reader import Stored
from perdure.storage.encryption import data_keys
from perdure.storage.encryption.data_keys import KeyRing
from perdure.storage.encryption.key_rotation import NotRenewed
from perdure.storage.encryption.master_keys import MasterKeys
from perdure.storage.middleware import Call, Find, Get, Handler, Stage
from perdure.storage.options import DEFAULT, Consistency, Options
from perdure.storage.records import Encrypted, Key, record
from perdure.storage.row_rewrites import Failure
from perdure.storage.rows import Batch, Check, Put, Recode
from perdure.storage.store import Progress
from perdure.storage.verify import verify_store
from tests.storage.sealing import (
    NEW,
    OLD,
    Code,
    Diary,
    Pin,
    Postcard,
    Process,
    Processes,
    source,
)

#: For tests of what happens above the backends: a server would only make them slower.
local = pytest.mark.parametrize("store_url", ["memory", "sqlite"], indirect=True)


@pytest.fixture
async def start(store_url: str) -> AsyncIterator[Processes]:
    async with Processes(store_url) as processes:
        yield processes


def pins(count: int) -> list[Pin]:
    return [Pin(f"{number % 3}/{number:03}", f"number {number}") for number in range(count)]


async def everything(process: Process) -> list[Stored[Pin]]:
    return await process.pins.query().order_by("key").execute()


async def generations(process: Process, scope: str = "collection:pins") -> list[int]:
    (found,) = [each for each in await process.encryption.status() if each.scope == scope]
    return [each.number for each in found.generations]


# Data keys ----------------------------------------------------------------------------------------


async def test_rows_are_encrypted_anew_and_the_old_key_destroyed(start: Processes) -> None:
    process, other = await start(), await start()
    await process.pins.put_many(pins(50))
    await process.pins.put_many(pins(20))
    before = await everything(other)
    told: list[tuple[str, int, int]] = []
    done = await process.encryption.rotate_data_keys(progress=lambda *what: told.append(what))
    assert (done.scopes, done.rewritten, done.destroyed, done.kept, done.failed) == (
        ("collection:pins",),
        50,
        1,
        0,
        0,
    )
    assert ("rewriting pins", 50, 50) in told
    assert await process.marks("pins") == {"c2"}
    assert await generations(process) == [2]
    # Nobody notices: not who knows the old key only, nor who comes later.
    assert await everything(other) == before
    assert await everything(await start()) == before
    assert await other.pins.put(Pin("0/000", "new"), Options(expected=2)) == 3
    assert await other.marks("pins") == {"c2"}
    again = await other.encryption.rotate_data_keys("collection:pins")
    assert (again.rewritten, again.destroyed, again.resumed) == (50, 1, False)
    assert await process.pins.get("0/000") == Pin("0/000", "new")
    assert await generations(process) == [3]
    assert [problem async for problem in verify_store(process.store)] == []


async def test_a_rotation_among_readers_and_writers(start: Processes) -> None:
    process, *others = [await start() for _ in range(3)]
    await process.pins.put_many(pins(40))
    written: dict[str, Pin] = {each.id: each for each in pins(40)}
    ended = False

    async def write(number: int, other: Process) -> None:
        count = 0
        while not ended:
            count += 1
            mine = [Pin(f"{number}/new/{count}/{n}", f"{count}") for n in range(3)]
            await other.pins.put_many(mine)
            old = Pin(f"{number}/{number:03}", f"changed {count}")
            await other.pins.put(old)
            written.update({each.id: each for each in (*mine, old)})
            assert await other.pins.get(mine[0].id) == mine[0]
            assert await other.pins.get(old.id) == old
            await asyncio.sleep(0)

    writers = [asyncio.create_task(write(number, each)) for number, each in enumerate(others)]
    for _ in range(3):
        done = await process.encryption.rotate_data_keys()
        assert (done.destroyed, done.kept) == (1, 0)
    ended = True
    await asyncio.gather(*writers)
    assert {each.key: each.value for each in await everything(await start())} == written
    assert await process.marks("pins") == {"c4"}


async def test_two_who_rotate_at_once(start: Processes) -> None:
    process, other = await start(), await start()
    await process.pins.put_many(pins(30))
    results = await asyncio.gather(
        *(each.encryption.rotate_data_keys() for each in (process, other, process))
    )
    assert sum(each.failed for each in results) == 0
    (last,) = await generations(process)
    assert await process.marks("pins") == {f"c{last}"}
    assert [each.value for each in await everything(await start())] == sorted(
        pins(30), key=lambda each: each.id
    )


async def test_nobody_can_write_with_an_old_key_once_a_rotation_has_begun(
    start: Processes, monkeypatch: pytest.MonkeyPatch
) -> None:
    process, other = await start(), await start()
    await process.pins.put_many(pins(4))
    await other.pins.put(pins(1)[0])
    fail_at(process, monkeypatch, 0)
    with pytest.raises(Unavailable):
        await process.encryption.rotate_data_keys()
    assert await generations(process) == [1, 2]
    await other.pins.put(Pin("one", "1"))
    await other.pins.put_many([Pin("two", "1"), Pin("three", "1")])
    async with other.store.transaction() as tx:
        await tx.collection(Pin).get("one")
        await tx.collection(Pin).put(Pin("four", "1"))
    marks = {row.key: row.content_type[-2:] for row in await other.rows("pins")}
    assert {key for key, mark in marks.items() if mark == "c2"} == {"one", "two", "three", "four"}


def fail_at(process: Process, monkeypatch: pytest.MonkeyPatch, call: int) -> None:
    """Let the rewrite with this number fail, as if the connection were lost."""
    calls = 0
    recode = process.store.adapter.recode

    async def failing(name: str, recodes: Sequence[Recode], checks: Sequence[Check]) -> int:
        nonlocal calls
        calls += 1
        if calls > call:
            raise Unavailable("The connection was lost.")
        return await recode(name, recodes, checks)

    monkeypatch.setattr(process.store.adapter, "recode", failing)


@local
async def test_an_interrupted_rotation_goes_on(
    start: Processes, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = await start()
    await process.pins.put_many(pins(50))
    await process.store.collection(Code).put(Code("a", "1"))
    with monkeypatch.context() as patch:
        fail_at(process, patch, 2)
        with pytest.raises(Unavailable):
            await process.encryption.rotate_data_keys()
    other = await start()
    assert [each.value for each in await everything(other)] == sorted(
        pins(50), key=lambda each: each.id
    )
    standing = {each.scope: each for each in await other.encryption.status(rows=True)}
    assert standing["collection:pins"].rotating
    rows = [each.rows for each in standing["collection:pins"].generations]
    assert sum(each or 0 for each in rows) == 50
    done = await other.encryption.rotate_data_keys()
    assert done.resumed
    assert await generations(other) == [2]  # and not yet another one
    assert await other.marks("pins") == {"c2"}
    assert not any(each.rotating for each in await other.encryption.status())


async def test_one_scope_of_several(start: Processes) -> None:
    process = await start(scope="agent")
    await process.pins.put_many([Pin("ada/1", "1"), Pin("bob/1", "2"), Pin("alone", "3")])
    await process.store.collection(Code).put(Code("ada/1", "4"))
    done = await process.encryption.rotate_data_keys("agent:ada")
    assert (done.scopes, done.rewritten) == (("agent:ada",), 2)
    marks = {row.key: row.content_type[-2:] for row in await process.rows("pins")}
    assert marks == {"ada/1": "a2", "bob/1": "a1", "alone": "c1"}
    with pytest.raises(InvalidInput, match="no data keys of agent:eve") as caught:
        await process.encryption.rotate_data_keys("agent:eve")
    assert "agent:ada, agent:bob" in caught.value.hint
    with pytest.raises(InvalidInput, match="is no scope"):
        await process.encryption.rotate_data_keys("ada")
    done = await process.encryption.rotate_data_keys()
    assert (len(done.scopes), done.rewritten, done.destroyed) == (3, 4, 3)


@local
async def test_what_is_in_clear_is_encrypted_and_a_new_setting_takes_effect(
    start: Processes,
) -> None:
    @record("turned")
    class Plain(msgspec.Struct, frozen=True):
        id: Annotated[str, Key()]
        text: str

    process = await start()
    await process.store.collection(Plain).put_many([Plain("ada/1", "x"), Plain("b", "y")])
    await process.pins.put(Pin("ada/1", "1"))

    @record("turned")
    class Sealed(msgspec.Struct, frozen=True):
        id: Annotated[str, Key()]
        text: Annotated[str, Encrypted()]

    other = await start(scope="agent")
    await other.store.declare(Sealed, Pin)
    done = await other.encryption.rotate_data_keys()
    assert done.rewritten == 3
    assert await other.marks("turned") == {"a1", "c1"}
    assert await other.marks("pins") == {"a1"}
    assert await other.store.collection(Sealed).get("ada/1") == Sealed("ada/1", "x")
    assert await (await start()).pins.get("ada/1") == Pin("ada/1", "1")


async def test_types_that_nobody_declares_here(start: Processes) -> None:
    process = await start(scope="agent")
    await process.pins.put_many([Pin("ada/1", "1"), Pin("alone", "3")])
    command = await start()
    done = await command.encryption.rotate_data_keys()
    assert (done.rewritten, done.destroyed) == (2, 2)
    assert await command.marks("pins") == {"a2", "c2"}
    assert await process.pins.get("ada/1") == Pin("ada/1", "1")


async def test_compression_is_left_alone(start: Processes) -> None:
    process = await start()
    text = "the agent decided to refresh its token before the session expires"
    diaries = [Diary(f"{n}", f"{text} {n} {text[n % 40 :]}") for n in range(400)]
    await process.diaries.put_many(diaries)
    before = {row.key: row.content_type for row in await process.rows("diaries")}
    assert any(";zstd=1;" in kind for kind in before.values())
    await process.encryption.rotate_data_keys()
    after = {row.key: row.content_type for row in await process.rows("diaries")}
    assert after == {key: kind.replace("=c1", "=c2") for key, kind in before.items()}
    other = await start()
    found = await other.diaries.query().values()
    assert sorted(found, key=lambda each: int(each.id)) == diaries


async def test_a_damaged_row_keeps_its_key(start: Processes) -> None:
    process = await start()
    await process.pins.put_many(pins(10))
    (row,) = await process.store.adapter.get("pins", ["0/003"], DEFAULT)
    assert row is not None
    flipped = row.value[:-1] + bytes([row.value[-1] ^ 1])  # whatever it was, it is another now
    damaged = Recode(row, flipped, row.content_type, row.checksum)
    await process.store.adapter.recode("pins", [damaged], [])
    done = await process.encryption.rotate_data_keys()
    assert (done.rewritten, done.failed, done.destroyed, done.kept) == (9, 1, 0, 1)
    assert [each.key for each in done.failures] == ["pins/0/003"]
    assert await generations(process) == [1, 2]
    await process.pins.put(Pin("0/003", "mended"))
    done = await process.encryption.rotate_data_keys()
    assert (done.failed, done.destroyed, done.kept) == (0, 2, 0)


@local
async def test_a_transaction_over_a_rotation(start: Processes) -> None:
    process, other = await start(), await start()
    await process.pins.put_many(pins(3))
    async with other.store.transaction() as tx:
        mine = tx.collection(Pin)
        await mine.get("0/000")
        await process.encryption.rotate_data_keys()
        await mine.put(Pin("0/000", "changed"))
        await mine.put(Pin("1/001", "changed"))
    assert await process.pins.get("0/000") == Pin("0/000", "changed")

    async def outdated() -> None:
        async with other.store.transaction() as tx:
            await tx.collection(KeyRing).get("collection:pins")
            await process.encryption.rotate_data_keys()
            await tx.collection(Pin).put(Pin("0/000", "never"))

    with pytest.raises(Conflict, match="perdure_keys/collection:pins"):
        await outdated()


class Meanwhile:
    """Middleware below encryption: does something once, between the read of rows and its end."""

    stage = Stage.BACKEND

    def __init__(self) -> None:
        self.work: Callable[[], Awaitable[object]] | None = None

    async def __call__(self, call: Call, proceed: Handler) -> Any:
        answer = await proceed(call)
        name = call.collection if isinstance(call, Get) else ""
        name = call.query.collection if isinstance(call, Find) else name
        if name == "pins" and self.work is not None:
            work, self.work = self.work, None
            await work()
        return answer


async def test_a_key_that_is_destroyed_under_a_reader(start: Processes) -> None:
    process, meanwhile = await start(), Meanwhile()
    await process.pins.put_many(pins(9))

    async def rotate() -> None:
        await process.encryption.rotate_data_keys()

    for read in ("get", "find"):
        other = await start(inner=[meanwhile])
        meanwhile.work = rotate
        if read == "get":
            assert await other.pins.get("0/000") == pins(1)[0]
        else:
            assert len(await everything(other)) == 9
        assert meanwhile.work is None


class OldRows:
    """A cache that is never told of anything: only strong reads go through it."""

    stage = Stage.CACHE

    def __init__(self) -> None:
        self._held: dict[Any, Any] = {}

    async def __call__(self, call: Call, proceed: Handler) -> Any:
        if not isinstance(call, Get) or call.collection != "pins":
            return await proceed(call)
        if call.options.consistency is Consistency.STRONG:
            return await proceed(call)
        place = tuple(call.keys)
        if place not in self._held:
            self._held[place] = await proceed(call)
        return self._held[place]


@local
async def test_a_cache_that_holds_what_needs_a_destroyed_key(start: Processes) -> None:
    process, cache = await start(), OldRows()
    await process.pins.put_many(pins(3))
    assert await (await start(inner=[cache])).pins.get("0/000") == pins(1)[0]
    await process.encryption.rotate_data_keys()
    assert await (await start(inner=[cache])).pins.get("0/000") == pins(1)[0]


# The master key -----------------------------------------------------------------------------------


async def test_a_new_master_key(start: Processes, monkeypatch: pytest.MonkeyPatch) -> None:
    old = await start(OLD)
    await old.pins.put_many(pins(5))
    await old.store.collection(Code).put(Code("a", "1"))
    rows = await old.rows("pins")
    both = await start(NEW, [OLD])
    done = await both.encryption.rotate_master()
    masters = {g.master for each in await both.encryption.status() for g in each.generations}
    assert (masters, done.scopes, done.rewrapped) == ({done.master}, 2, 2)
    assert await old.rows("pins") == rows
    # One that knows the old key only goes on, with the data keys it has unwrapped.
    assert await old.pins.get("0/000") == pins(1)[0]
    assert await old.pins.put(Pin("0/000", "changed")) == 2
    assert await old.pins.put(Pin("more", "1")) == 1
    monkeypatch.setattr(data_keys, "FRESH", 0.0)
    assert await old.pins.get("more") == Pin("more", "1")
    # One that starts does not.
    with pytest.raises(KeyRefused, match="given"):
        await (await start(OLD)).pins.get("more")
    new = await start(NEW)
    assert await new.pins.get("0/000") == Pin("0/000", "changed")
    assert (await new.encryption.rotate_master()).rewrapped == 0


async def test_a_master_key_that_is_missing(start: Processes) -> None:
    third = bytes(range(200, 232))
    await (await start(third)).pins.put_many(pins(2))
    await (await start(OLD, [third])).store.collection(Code).put(Code("a", "1"))
    process = await start(NEW, [OLD])
    with pytest.raises(KeyRefused, match="collection:pins is wrapped with the master key"):
        await process.encryption.rotate_master()
    # What could be done is done, and nothing is lost.
    assert await (await start(NEW)).store.collection(Code).get("a") == Code("a", "1")
    with pytest.raises(KeyRefused):
        await (await start(NEW)).encryption.rotate_data_keys("collection:pins")
    assert await (await start(third)).pins.get("0/000") == pins(1)[0]
    assert (await (await start(NEW, [third])).encryption.rotate_master()).rewrapped >= 1
    assert await (await start(NEW)).pins.get("0/000") == pins(1)[0]


@local
async def test_without_a_master_key_nothing_is_replaced(start: Processes) -> None:
    process = await start(None)
    for work in (process.encryption.rotate_data_keys(), process.encryption.rotate_master()):
        with pytest.raises(KeyRefused, match="no master key"):
            await work


async def test_both_at_once(start: Processes) -> None:
    process, other = await start(NEW, [OLD]), await start(NEW, [OLD])
    await (await start(OLD)).pins.put_many(pins(30))
    await asyncio.gather(
        process.encryption.rotate_data_keys(),
        other.encryption.rotate_master(),
        *(other.pins.put(Pin(f"w/{number}", "x")) for number in range(10)),
    )
    await process.encryption.rotate_master()
    assert len(await everything(await start(NEW))) == 40
    assert await process.marks("pins") == {"c2"}


# Destroying ---------------------------------------------------------------------------------------


async def test_shredding_a_scope(start: Processes, monkeypatch: pytest.MonkeyPatch) -> None:
    process, other = await start(scope="agent"), await start(scope="agent")
    await process.pins.put_many([Pin("ada/1", "1"), Pin("ada/2", "2"), Pin("bob/1", "3")])
    assert await other.pins.get("ada/1") == Pin("ada/1", "1")
    for confirm in ("", "yes", "agent:bob"):
        with pytest.raises(InvalidInput, match="unreadable for ever"):
            await process.encryption.shred("agent:ada", confirm=confirm)
    assert await process.encryption.shred("agent:ada", confirm="agent:ada")
    with pytest.raises(Corrupted, match="pins/ada/1 is forgotten: the key") as caught:
        await process.pins.get("ada/1")
    assert "delete it" in caught.value.hint
    assert await process.pins.get("bob/1") == Pin("bob/1", "3")
    # Others forget within a minute.
    monkeypatch.setattr(data_keys, "FRESH", 0.0)
    with pytest.raises(Corrupted, match="forgotten"):
        await other.pins.get("ada/1")
    # What is written from now on has another key.
    assert await other.pins.put(Pin("ada/1", "again")) == 2
    assert await process.pins.get("ada/1") == Pin("ada/1", "again")
    standing = {each.scope: each for each in await process.encryption.status(rows=True)}
    ada = standing["agent:ada"]
    assert (ada.shredded, ada.forgotten, [each.rows for each in ada.generations]) == (1, 1, [1])
    # A rotation does not trip over it.
    done = await process.encryption.rotate_data_keys()
    assert (done.failed, done.rewritten, done.kept) == (0, 2, 0)
    with pytest.raises(Corrupted, match="forgotten"):
        await process.pins.query().values()
    assert await process.pins.query().prefix("ada/2").delete() == 1
    assert len(await everything(process)) == 2
    with pytest.raises(InvalidInput, match="no data keys"):
        await process.encryption.shred("agent:eve", confirm="agent:eve")


@pytest.mark.parametrize("store_url", ["sqlite"], indirect=True)
async def test_nothing_of_a_shredded_key_stays_in_the_file(
    start: Processes, tmp_path: Path
) -> None:
    process = await start()
    await process.pins.put_many(pins(5))
    await process.encryption.rotate_data_keys()
    (ring,) = await process.store.collection(KeyRing).query().values()
    wrapped = [each.wrapped for each in ring.generations]
    files = [tmp_path / "bank.db", tmp_path / "bank.db-wal"]
    assert any(wrapped[-1] in file.read_bytes() for file in files)
    assert await process.encryption.shred("collection:pins", confirm="collection:pins")
    assert not any(key in file.read_bytes() for file in files for key in wrapped)


def alike(agent: str = "") -> list[Diary]:
    """Diaries that a dictionary can be trained on."""
    text = "the launch code is swordfish-4711 and nobody may know it"
    return [Diary(f"{agent}{n}", f"{text} {n} {text[n % 40 :]}" * 3) for n in range(200)]


@local
async def test_an_agent_that_is_called_like_a_collection(start: Processes) -> None:
    process, diaries = await start(scope="agent", everything=True), alike("bob/")
    await process.diaries.put_many(diaries)
    await process.diaries.put(Diary("diaries/1", "her own"))
    await process.encryption.shred("agent:diaries", confirm="agent:diaries")
    other = await start(scope="agent", everything=True)
    assert await other.diaries.get_many([each.id for each in diaries]) == diaries
    await other.diaries.put(diaries[0])
    with pytest.raises(Corrupted, match="forgotten"):
        await other.diaries.get("diaries/1")


@local
async def test_what_perdure_needs_is_not_shredded(start: Processes) -> None:
    process, scope = await start(everything=True), "collection:perdure_jobs"
    with pytest.raises(InvalidInput, match="what Perdure needs"):
        await process.encryption.shred(scope, confirm=scope)


# Objects outside of the store ---------------------------------------------------------------------


class Vault:
    """Keeps objects that are encrypted with data keys: here, only which generation they need."""

    def __init__(self) -> None:
        self.objects: dict[str, int] = {}
        self.stuck = False

    async def renew(self, scope: str, generation: int, progress: Progress | None) -> int:
        old = [name for name, number in self.objects.items() if number < generation]
        if not self.stuck:
            self.objects |= dict.fromkeys(old, generation)
        return len(old)

    async def needed(self, scope: str) -> set[int]:
        return set(self.objects.values()) if scope == "collection:vault" else set()


@local
async def test_keys_of_objects_are_kept_until_nobody_needs_them(start: Processes) -> None:
    process, vault = await start(), Vault()
    number, key = await process.encryption.keys.current("collection:vault")
    vault.objects["a"] = number
    # Somebody who does not know the vault cannot tell whether the key is needed.
    command = await start()
    assert (await command.encryption.rotate_data_keys()).kept == 1
    assert await process.encryption.keys.key("collection:vault", number) == key
    process.encryption.join(vault)
    vault.stuck = True
    assert (await process.encryption.rotate_data_keys()).kept == 1
    vault.stuck = False
    done = await process.encryption.rotate_data_keys()
    assert (done.objects, done.kept) == (1, 0)
    with pytest.raises(Corrupted, match="destroyed"):
        await process.encryption.keys.key("collection:vault", number)
    assert (await process.encryption.keys.current("collection:vault"))[0] == vault.objects["a"]


@local
async def test_everything_is_rotated_too(start: Processes) -> None:
    process = await start(everything=True)
    await process.store.collection(Postcard).put_many([Postcard(f"{n}", "x") for n in range(20)])
    await process.diaries.put_many([Diary(f"{n}", "y" * 100) for n in range(20)])
    done = await process.encryption.rotate_data_keys()
    assert (done.failed, done.kept) == (0, 0)
    for size in await process.store.adapter.sizes():
        clear = size.collection in {"perdure_keys", "perdure_schemas"}
        assert await process.marks(size.collection) <= {"" if clear else "c2"}
    other = await start(everything=True)
    assert await other.store.collection(Postcard).query().count() == 20
    assert await other.store.collection(Postcard).get("7") == Postcard("7", "x")


# Wrong master keys --------------------------------------------------------------------------------


@pytest.mark.parametrize("whole", [False, True])
async def test_a_wrong_master_key_makes_no_data_keys(start: Processes, *, whole: bool) -> None:
    right = await start(OLD, scope="agent", everything=whole)
    await right.pins.put(Pin("ada/1", "1234"))
    wrong = await start(NEW, scope="agent", everything=whole)
    known, given = [(await MasterKeys(source(key)).current()).fingerprint for key in (OLD, NEW)]
    with pytest.raises(KeyRefused, match=f"{known}; given: {given}") as caught:
        await wrong.pins.put(Pin("bob/1", "4321"))
    assert "former_keys" in caught.value.hint
    with pytest.raises(KeyRefused, match=known):
        await wrong.store.collection(Diary).put(Diary("bob/1", "a new collection"))
    with pytest.raises(KeyRefused, match=known):
        await wrong.encryption.keys.current("collection:perdure_artifacts")
    assert {each.scope for each in await right.encryption.status()} == {"agent:ada"}
    assert await right.pins.put(Pin("bob/1", "1111")) == 1
    assert len(await everything(right)) == 2
    assert (await right.encryption.rotate_data_keys()).failed == 0


@local
async def test_a_wrong_master_key_after_keys_were_shredded(start: Processes) -> None:
    right = await start(OLD, scope="agent")
    await right.pins.put_many([Pin("ada/1", "1"), Pin("bob/1", "2")])
    await right.encryption.shred("agent:ada", confirm="agent:ada")
    wrong = await start(NEW, scope="agent")
    with pytest.raises(KeyRefused, match="given"):
        await wrong.pins.put(Pin("ada/2", "3"))
    # If all are destroyed, nothing tells a wrong key, and nothing is left that it could harm.
    await right.encryption.shred("agent:bob", confirm="agent:bob")
    await wrong.pins.put(Pin("ada/2", "3"))


@local
async def test_a_damaged_data_key_does_not_keep_others_from_being_made(start: Processes) -> None:
    process = await start(scope="agent")
    await process.pins.put_many([Pin("ada/1", "1"), Pin("bob/1", "2")])
    first = min(await process.rows("perdure_keys"), key=lambda row: row.key)
    damaged = Put("perdure_keys", first.key, b"?", first.content_type, first.schema, 0)
    await process.store.adapter.commit(Batch((damaged,)), DEFAULT)
    other = await start(scope="agent")
    with pytest.raises(Corrupted):
        await other.encryption.status()
    assert await other.pins.put(Pin("cyd/1", "3")) == 1


@local
async def test_new_scopes_while_the_master_key_is_replaced(start: Processes) -> None:
    await (await start(OLD, scope="agent")).pins.put(Pin("ada/1", "1"))
    before = await start(OLD, [NEW], scope="agent")
    after = await start(NEW, [OLD], scope="agent")
    await after.pins.put(Pin("bob/1", "2"))
    await before.pins.put(Pin("cyd/1", "3"))
    assert len(await everything(after)) == 3
    await after.encryption.rotate_master()
    await (await start(NEW, scope="agent")).pins.put(Pin("dan/1", "4"))
    assert len(await everything(before)) == 4


class Stuck(Vault):
    """One object cannot be encrypted anew."""

    async def renew(self, scope: str, generation: int, progress: Progress | None) -> int:
        if scope != "collection:vault":
            return 0
        raise NotRenewed(await super().renew(scope, generation, progress), [Failure("vault/a", "")])


@local
async def test_an_object_that_cannot_be_renewed_does_not_stop_a_rotation(start: Processes) -> None:
    process, vault = await start(), Stuck()
    process.encryption.join(vault)
    await process.pins.put_many(pins(3))
    vault.objects["a"], _ = await process.encryption.keys.current("collection:vault")
    vault.stuck = True
    done = await process.encryption.rotate_data_keys()
    assert (done.rewritten, done.destroyed, done.kept) == (3, 1, 1)
    assert (done.failed, done.failures) == (1, (Failure("vault/a", ""),))
    assert await generations(process, "collection:vault") == [1, 2]
    assert await generations(process) == [2]
    assert not any(each.rotating for each in await process.encryption.status())

"""Replacing dictionaries: nothing of what was forgotten stays in them, and nobody is disturbed."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Annotated, Any, TypeAlias

import msgspec
import pytest

from examples.adapter.perdure_folder import FolderAdapter
from examples.adapter.template import TemplateAdapter
from perdure.core.clock import SECOND, Clock, now, to_datetime
from perdure.core.errors import Conflict, Corrupted, DeadlineExceeded
from perdure.storage.adapter import Adapter
from perdure.storage.collection import Stored
from perdure.storage.compression import (
    Compression,
    Dictionary,
    InUse,
    Renewal,
    dictionaries,
    renewal,
)
from perdure.storage.compression.dictionaries import Sample, train
from perdure.storage.middleware import Call, Commit, Find, Get, Handler, Middleware, Stage
from perdure.storage.options import DEFAULT, Options
from perdure.storage.query import Query
from perdure.storage.records import Compressed, Key, record
from perdure.storage.registry import adapter_for
from perdure.storage.rows import Batch, Check, Put, Recode
from perdure.storage.store import Store
from perdure.storage.transaction import Transaction
from perdure.storage.verify import verify_store
from perdure.storage.windows import Entry
from perdure.testing.clock import ManualClock
from tests.conftest import DURABLE
from tests.storage.notes import Author, Note

WORDS = (
    "the agent decided to refresh its token before the session expires and then wrote a test for"
    " the login page because OAuth returned an error code"
)
SECRET = "the launch code is swordfish-4711 and nobody may know it"


#: For tests of what happens above the backends: a server would only make them slower.
local = pytest.mark.parametrize("store_url", ["memory", "sqlite"], indirect=True)


class Process:
    """What a process has of its own: a store and the compression in it."""

    def __init__(
        self,
        adapter: Adapter,
        inner: Sequence[Middleware] = (),
        *,
        writing: bool = True,
        clock: Clock = now,
    ) -> None:
        self.compression = Compression(writing=writing)
        self.store = Store(adapter, middleware=[self.compression, *inner], clock=clock)
        self.notes = self.store.collection(Note)

    async def types(self, collection: str = "notes") -> set[str]:
        """How the values of a collection are stored, as far as dictionaries go."""
        rows = await self.store.adapter.find(Query(collection), DEFAULT)
        return {row.content_type.partition(";")[2] for row in rows}

    async def dictionaries(self) -> dict[str, bytes]:
        found = await self.store.collection(Dictionary).query().values()
        return {each.id: each.content for each in found}


Start: TypeAlias = Callable[..., Awaitable[Process]]


@pytest.fixture
async def start(store_url: str, clock: ManualClock) -> AsyncIterator[Start]:
    """Starts "processes" on one store: in memory they share the adapter, else each has its own."""
    adapters: list[Adapter] = []

    async def make(*inner: Middleware, writing: bool = True, ahead: int = 0) -> Process:
        def time() -> int:
            return clock.tick() + ahead

        if not adapters or store_url != "memory://":
            adapters.append(adapter_for(store_url, time))
            await adapters[-1].initialize()
        return Process(adapters[-1], inner, writing=writing, clock=time)

    yield make
    for adapter in adapters:
        await adapter.close()


def note(number: int, *, secret: bool = False) -> Note:
    dice = random.Random(number)
    text = " ".join(dice.choices(WORDS.split(), k=130))
    if secret:
        text = f"{text} {SECRET} {text[:50]}"
    labels = {"parity": str(number % 2)}
    return Note(
        f"{number % 5}/{number:04d}", f"author {number % 3}", number, text=text, labels=labels
    )


async def learn(process: Process, *, secrets: int = 40, others: int = 100) -> list[Note]:
    """Train a dictionary that knows the secret, and write with it; returns the other notes."""
    secret = [note(number, secret=True) for number in range(1_000, 1_000 + secrets)]
    kept = [note(number) for number in range(others)]
    await process.notes.put_many(secret + kept)
    assert await process.compression.train() == 1
    await process.notes.put_many(secret + kept)
    (content,) = (await process.dictionaries()).values()
    assert b"swordfish" in content
    return kept


async def forget(process: Process) -> None:
    await process.notes.delete_many([note(number).id for number in range(1_000, 1_040)])


async def everything(process: Process) -> list[Stored[Note]]:
    return await process.notes.query().order_by("stars").execute()


# What it does -------------------------------------------------------------------------------------


async def test_nothing_of_what_was_forgotten_stays(start: Start) -> None:
    process = await start()
    kept = await learn(process)
    await forget(process)
    before = await everything(process)
    assert await process.compression.renew("notes") == Renewal("notes", len(kept), 1)
    ((key, content),) = (await process.dictionaries()).items()
    assert key == "notes/00000002"
    assert b"swordfish" not in content
    assert await process.types() == {"zstd=2"}
    # Versions and times, columns and tags are as they were.
    assert await everything(process) == before
    assert [stored.value for stored in before] == kept
    found = await process.notes.query().where("author", "=", "author 1").tagged(parity="0").count()
    assert found == sum(each.stars % 6 == 4 for each in kept if each.stars is not None)
    other = await start()
    assert await everything(other) == before
    assert [problem async for problem in verify_store(other.store)] == []


async def test_with_too_little_left_there_is_no_dictionary(start: Start) -> None:
    process = await start()
    kept = await learn(process)
    await forget(process)
    await process.notes.delete_many([each.id for each in kept[5:]])
    assert await process.compression.renew("notes") == Renewal("notes", 5, 1)
    assert await process.dictionaries() == {}
    assert await process.types() <= {"", "zstd=0"}
    assert await process.notes.query().order_by("stars").values() == kept[:5]
    # It starts over, with a number that was never used.
    await process.notes.put_many(kept)
    assert await process.compression.train() == 1
    assert list(await process.dictionaries()) == ["notes/00000003"]
    await process.notes.put_many(kept)
    assert await process.types() == {"zstd=3"}


@local
async def test_again_and_again(start: Start) -> None:
    process, other = await start(), await start()
    kept = await learn(process)
    for number in range(2, 6):
        renewed = await (process, other)[number % 2].compression.renew("notes")
        assert renewed.deleted == 1
        assert list(await process.dictionaries()) == [f"notes/{number:08d}"]
        assert await other.notes.get(kept[number].id) == kept[number]
        await other.notes.put(kept[number])
    assert await process.types() == {"zstd=5"}


@local
async def test_collections_of_perdures_own_are_no_different(start: Start) -> None:
    process = await start()
    entries = process.store.collection(Entry)
    written = [
        Entry(id=f"c/{n:04d}", context="c", at=to_datetime(n * SECOND), text=note(n).text)
        for n in range(120)
    ]
    await entries.put_many(written)
    assert await process.compression.train() == 1
    await entries.put_many(written)
    await process.compression.renew("perdure_entries")
    assert list(await process.dictionaries()) == ["perdure_entries/00000002"]
    assert await process.types("perdure_entries") == {"zstd=2"}
    assert await entries.query().order_by("key").values() == written


@local
async def test_collections_that_are_not_compressed_are_left_alone(start: Start) -> None:
    process = await start()
    await process.store.collection(Author).put(Author("a", "Ada"))
    assert await process.compression.renew("authors") == Renewal("authors")
    assert await process.store.collection(InUse).query().values() == []
    # Of one that nobody declared here it is not known.
    await process.compression.renew("unheard_of")
    assert await process.store.collection(InUse).query().values() == [InUse("unheard_of", 1, 0, 1)]


@local
async def test_progress_is_told(start: Start) -> None:
    process = await start()
    await learn(process)
    told: list[tuple[str, int, int]] = []
    await process.compression.renew("notes", lambda *what: told.append(what))
    assert told[0][0] == "sampling notes"
    assert told[-1] == ("rewriting notes", 140, 0)


@local
async def test_large_values_are_taken_in_short_pages(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = await start()
    await learn(process)
    monkeypatch.setattr(renewal, "_BYTES", 1_000)
    sizes: list[int] = []
    recode = process.store.adapter.recode

    async def watched(name: str, recodes: Sequence[Recode], checks: Sequence[Check]) -> int:
        sizes.append(len(recodes))
        return await recode(name, recodes, checks)

    monkeypatch.setattr(process.store.adapter, "recode", watched)
    assert (await process.compression.renew("notes")).rewritten == 140
    assert sum(sizes) == 140
    assert max(sizes) < 30


@local
async def test_without_writing_it_can_still_be_done(start: Start) -> None:
    kept = await learn(await start())
    process = await start(writing=False)
    await forget(process)
    await process.compression.renew("notes")
    assert all(b"swordfish" not in each for each in (await process.dictionaries()).values())
    assert await process.notes.query().order_by("stars").values() == kept


@pytest.mark.parametrize("adapter", [TemplateAdapter, FolderAdapter])
async def test_backends_without_transactions_do_without_dictionaries(
    adapter: Callable[[str], Adapter], tmp_path: Any
) -> None:
    small = adapter(f"x:///{tmp_path / 'bank'}")
    await small.initialize()
    process = Process(small)
    pages = process.store.collection(Leaf)
    leaves = [Leaf(f"{number}", note(number).text) for number in range(140)]
    for leaf in leaves:
        await pages.put(leaf)
    assert await process.compression.train() == 0
    assert await process.compression.renew("leaves") == Renewal("leaves")
    assert await process.compression.finish() == []
    assert [await pages.get(leaf.id) for leaf in leaves] == leaves
    await small.close()


@record("leaves")
class Leaf(msgspec.Struct, frozen=True):
    id: Annotated[str, Key()]
    text: Annotated[str, Compressed()]


# Others who have the old dictionary ---------------------------------------------------------------


async def test_a_writer_with_the_old_dictionary_uses_the_new_one(start: Start) -> None:
    process, other = await start(), await start()
    kept = await learn(process)
    await other.notes.put(kept[0])
    await process.compression.renew("notes")
    # One by one, many in a batch, many at once, in a transaction.
    assert await other.notes.put(kept[1]) == 3
    await process.compression.renew("notes")
    assert await other.notes.put_many(kept[:20]) == [4, 4, *[3] * 18]
    await process.compression.renew("notes")
    await asyncio.gather(*(other.notes.put(each) for each in kept[:20]))
    await process.compression.renew("notes")
    async with other.store.transaction() as transaction:
        notes = transaction.collection(Note)
        assert await notes.get(kept[1].id) == kept[1]
        await notes.put(kept[1])
    assert await process.types() == {"zstd=5"}
    assert await everything(process) == await everything(other)


async def test_conflicts_of_the_callers_own_are_told_as_before(start: Start) -> None:
    process, other = await start(), await start()
    kept = await learn(process)
    await other.notes.put(kept[0])
    await process.compression.renew("notes")
    with pytest.raises(Conflict) as caught:
        await other.notes.put(kept[0], Options(expected=1))
    assert (caught.value.collection, caught.value.expected, caught.value.found) == ("notes", 1, 3)
    await process.compression.renew("notes")

    async def outdated(transaction: Transaction) -> None:
        async with transaction:
            notes = transaction.collection(Note)
            await notes.get(kept[1].id)
            await process.notes.put(kept[1])
            await notes.put(kept[0])

    with pytest.raises(Conflict) as caught:
        await outdated(other.store.transaction())
    assert (caught.value.collection, caught.value.key) == ("notes", kept[1].id)


@local
async def test_one_who_reads_which_is_in_use_is_told_of_a_change(start: Start) -> None:
    process = await start()
    kept = await learn(process)

    async def outdated(transaction: Transaction) -> None:
        async with transaction:
            await transaction.collection(InUse).get("notes")
            await process.compression.renew("notes")
            await transaction.collection(Note).put(kept[0])

    with pytest.raises(Conflict, match="perdure_dictionaries_in_use/notes"):
        await outdated(process.store.transaction())


async def test_recoding_is_no_change_to_those_who_expect_a_version(start: Start) -> None:
    process, other = await start(), await start()
    kept = await learn(process)
    async with other.store.transaction() as transaction:
        notes = transaction.collection(Note)
        await notes.get(kept[0].id)
        await process.compression.renew("notes")
        await notes.put(kept[1])
    assert await other.notes.put(kept[0], Options(expected=2)) == 3


class Meanwhile:
    """Middleware below compression: does something once, between the read of rows and its end."""

    stage = Stage.BACKEND

    def __init__(self, collection: str) -> None:
        self.collection = collection
        self.work: Callable[[], Awaitable[object]] | None = None

    async def __call__(self, call: Call, proceed: Handler) -> Any:
        answer = await proceed(call)
        name = call.collection if isinstance(call, Get) else None
        name = call.query.collection if isinstance(call, Find) else name
        if name == self.collection and self.work is not None:
            work, self.work = self.work, None
            await work()
        return answer


async def test_a_dictionary_that_is_deleted_under_a_reader(start: Start) -> None:
    process, meanwhile = await start(), Meanwhile("notes")
    kept = await learn(process)

    async def renew() -> None:
        await process.compression.renew("notes")

    other = await start(meanwhile)
    meanwhile.work = renew
    assert await other.notes.get(kept[0].id) == kept[0]
    assert meanwhile.work is None

    other = await start(meanwhile)
    meanwhile.work = renew
    assert await other.notes.query().order_by("stars").limit(9).values() == kept[:9]

    # Once more while it reads again.
    async def twice() -> None:
        await process.compression.renew("notes")
        meanwhile.work = renew

    other = await start(meanwhile)
    meanwhile.work = twice
    assert await other.notes.get_many([each.id for each in kept]) == kept


@local
async def test_a_dictionary_that_is_replaced_while_it_is_looked_up(start: Start) -> None:
    process, meanwhile = await start(), Meanwhile("perdure_dictionaries_in_use")
    kept = await learn(process)
    other = await start(meanwhile)

    async def renew() -> None:
        await process.compression.renew("notes")

    meanwhile.work = renew
    assert await other.notes.put(kept[0]) == 3
    assert await process.types() == {"zstd=2"}


@local
async def test_a_dictionary_that_is_really_missing_is_named(start: Start) -> None:
    process = await start()
    kept = await learn(process)
    await process.store.collection(Dictionary).delete("notes/00000001")
    other = await start()
    with pytest.raises(Corrupted, match="Dictionary 1 of the collection 'notes' is missing"):
        await other.notes.get(kept[0].id)
    # Writing goes on without it, and replacing it takes nothing along.
    assert await other.notes.put(kept[0]) == 3
    assert await other.notes.get(kept[0].id) == kept[0]
    await other.compression.renew("notes")
    assert await other.notes.get(kept[0].id) == kept[0]


# What was learnt before ---------------------------------------------------------------------------


@local
async def test_samples_of_what_was_forgotten_are_not_trained_with(start: Start) -> None:
    process, other = await start(), await start()
    secret = [note(number, secret=True) for number in range(1_000, 1_100)]
    await other.notes.put_many(secret)  # it could train a dictionary now, and does not yet
    await process.notes.delete_many([each.id for each in secret])
    assert await process.compression.renew("notes") == Renewal("notes")
    await other.compression.train()
    assert await process.dictionaries() == {}
    # Also if it slept through several.
    await other.notes.put_many(secret)
    await process.notes.delete_many([each.id for each in secret])
    for _ in range(3):
        await process.compression.renew("notes")
    await other.compression.train()
    assert await process.dictionaries() == {}
    # Later it trains with what it gets from then on.
    await other.notes.put_many([note(number) for number in range(120)])
    await other.compression.train()
    ((key, content),) = (await process.dictionaries()).items()
    assert key == "notes/00000005"
    assert b"swordfish" not in content


@local
async def test_samples_are_dropped_by_those_who_notice(start: Start) -> None:
    process, other = await start(), await start()
    kept = await learn(process)
    await other.notes.put_many([note(number, secret=True) for number in range(1_000, 1_040)])
    await forget(process)
    await process.compression.renew("notes")
    await other.notes.put_many(kept)  # finds that another dictionary is in use
    await other.notes.put_many([note(number) for number in range(200, 320)])
    assert await other.compression.train("notes") == 1
    contents = await process.dictionaries()
    assert list(contents) == ["notes/00000002", "notes/00000003"]
    assert all(b"swordfish" not in content for content in contents.values())


async def test_one_who_trains_at_the_same_time(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody puts a dictionary in use that knows the secret, while we make one that does not."""
    process, other = await start(), await start()
    kept = await learn(process)
    await other.notes.put_many([note(number, secret=True) for number in range(1_000, 1_040)])
    await forget(process)
    begun = Begun()

    def trained(samples: list[Sample]) -> bytes:
        begun.set()
        return train(samples)

    monkeypatch.setattr(renewal, "train", trained)
    renewing = asyncio.create_task(process.compression.renew("notes"))
    await begun.wait()
    assert await other.compression.train("notes") == 1
    await renewing
    assert all(b"swordfish" not in each for each in (await process.dictionaries()).values())
    assert len(await process.dictionaries()) == 1
    assert await process.notes.query().order_by("stars").values() == kept


class Begun:
    """An event that is set in a thread."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._event = asyncio.Event()

    def set(self) -> None:
        self._loop.call_soon_threadsafe(self._event.set)

    async def wait(self) -> None:
        await self._event.wait()


# Interrupted and at the same time -----------------------------------------------------------------


@pytest.mark.parametrize("pages", [0, 1, 3])
async def test_interrupted_it_can_be_finished(
    start: Start, monkeypatch: pytest.MonkeyPatch, pages: int
) -> None:
    process = await start()
    kept = await learn(process)
    await forget(process)
    before = await everything(process)
    monkeypatch.setattr(renewal, "_ROWS", 20)
    recode = process.store.adapter.recode
    done: list[int] = []

    async def interrupted(name: str, recodes: Sequence[Recode], checks: Sequence[Check]) -> int:
        if len(done) == pages:
            raise asyncio.CancelledError
        done.append(await recode(name, recodes, checks))
        return done[-1]

    with monkeypatch.context() as patch:
        patch.setattr(process.store.adapter, "recode", interrupted)
        with pytest.raises(asyncio.CancelledError):
            await process.compression.renew("notes")
    other = await start()
    assert await everything(other) == before
    await other.notes.put(kept[-1])  # which is the last in key order: one row less to be done
    rest = len(kept) - sum(done) - 1
    assert await other.compression.finish() == [Renewal("notes", rest, 1)]
    assert await other.compression.finish() == []
    assert list(await other.dictionaries()) == ["notes/00000002"]
    assert [stored.value for stored in await everything(process)] == kept


async def test_two_renew_at_once(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(renewal, "_ROWS", 20)
    processes = [await start() for _ in range(3)]
    kept = await learn(processes[0])
    await forget(processes[0])
    before = await everything(processes[0])
    await asyncio.gather(*(process.compression.renew("notes") for process in processes))
    (content,) = (await processes[0].dictionaries()).values()
    assert b"swordfish" not in content
    for process in processes:
        assert await everything(process) == before
    assert [stored.value for stored in before] == kept
    assert len(await processes[0].types()) == 1


async def test_others_read_and_write_meanwhile(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(renewal, "_ROWS", 20)
    process, others = await start(), [await start() for _ in range(2)]
    wanted = {each.id: each for each in await learn(process)}
    keys = sorted(wanted)
    ended = False

    async def work(other: Process, mine: int) -> None:
        dice, own = random.Random(mine), keys[mine::2]
        versions: dict[str, int] = {}
        while not ended:
            key = dice.choice(own)
            changed = note(dice.randrange(10_000))
            changed = msgspec.structs.replace(changed, id=key)
            if dice.random() < 0.2 and key in wanted:
                await other.notes.delete(key)
                del wanted[key]
                versions[key] = 0
            elif dice.random() < 0.5:
                assert await other.notes.get(key) == wanted.get(key)
            else:
                # What is expected is not disturbed by renewals.
                options = Options(expected=versions.get(key))
                versions[key] = await other.notes.put(changed, options)
                wanted[key] = changed
            await asyncio.sleep(0)

    tasks = [asyncio.create_task(work(other, mine)) for mine, other in enumerate(others)]
    for _ in range(3):
        await process.compression.renew("notes")
    ended = True
    await asyncio.gather(*tasks)
    found = {each.id: each for each in await process.notes.query().values() if each.id in wanted}
    assert found == wanted
    assert list(await process.dictionaries()) == ["notes/00000004"]
    assert [problem async for problem in verify_store(others[0].store)] == []


# What is not as it should be ----------------------------------------------------------------------


async def test_damaged_records_are_left_alone(start: Start) -> None:
    process = await start()
    kept = await learn(process)
    (row,) = await process.store.adapter.get("notes", [kept[0].id], DEFAULT)
    assert row is not None
    columns = (None,) * 6
    broken = Put("notes", row.key, row.value[:-9], row.content_type, 1, row.checksum, columns)
    frame = Put("notes", kept[1].id, b"(\xb5/\xfd garbage", row.content_type, 1, 0, columns)
    await process.store.adapter.commit(Batch((broken,)), DEFAULT)
    await process.store.commit(Batch((frame,)), DEFAULT)
    await process.compression.renew("notes")
    # What they need is kept, for those who can mend them.
    assert set(await process.dictionaries()) == {"notes/00000001", "notes/00000002"}
    others = [each.id for each in kept[2:]]
    assert await process.notes.get_many(others) == kept[2:]
    named = {problem.subject async for problem in verify_store(process.store)}
    assert named == {f"notes/{kept[0].id}", f"notes/{kept[1].id}"}
    await process.notes.delete_many([each.id for each in kept[:2]])
    assert await process.compression.finish() == [Renewal("notes", 0, 1)]
    assert set(await process.dictionaries()) == {"notes/00000002"}


@local
async def test_it_gives_up_if_others_never_let_it(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = await start()
    kept = await learn(process)

    async def refuse(name: str, recodes: Sequence[Recode], checks: Sequence[Check]) -> int:
        raise Conflict("perdure_dictionaries_in_use", "notes")

    monkeypatch.setattr(renewal, "ATTEMPTS", 5)
    with monkeypatch.context() as patch:
        patch.setattr(process.store.adapter, "recode", refuse)
        with pytest.raises(Conflict):
            await asyncio.wait_for(process.compression.renew("notes"), 20)
    assert await process.notes.get(kept[0].id) == kept[0]
    assert [each.deleted for each in await process.compression.finish()] == [1]


# What is kept to train with -----------------------------------------------------------------------


@local
async def test_nothing_is_kept_once_training_is_over(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dictionaries, "_TRAIN_AT", (64 * 1024,))
    process = await start()
    await learn(process)
    state = process.compression._states["notes"]
    assert state.edition.train_at is None
    assert state.samples.values == []
    # Asked to, it looks at what is stored.
    assert await process.compression.train("notes") == 1
    assert set(await process.dictionaries()) == {"notes/00000001", "notes/00000002"}


@local
async def test_a_deadline_is_for_all_attempts(start: Start) -> None:
    process, other = await start(), await start()
    await learn(process)
    attempts = 0

    class Slowly:
        stage = Stage.BACKEND

        async def __call__(self, call: Call, proceed: Handler) -> Any:
            nonlocal attempts
            if isinstance(call, Commit) and call.batch.writes[0].collection == "notes":
                attempts += 1
                await asyncio.sleep(0.15)
                await other.compression.renew("notes")
            return await proceed(call)

    slow = Process(process.store.adapter, [Slowly()])
    with pytest.raises(DeadlineExceeded):
        await slow.notes.put(note(1), Options(deadline=0.1))
    assert attempts == 1


@record("fading", ttl=10)
class Fading(msgspec.Struct, frozen=True):
    id: Annotated[str, Key()]
    text: Annotated[str, Compressed()]


@pytest.mark.parametrize("store_url", DURABLE, indirect=True)
async def test_what_has_expired_by_one_clock_is_readable_by_another(start: Start) -> None:
    process = await start()
    written = [Fading(f"{number:04d}", note(number).text) for number in range(120)]
    fading = process.store.collection(Fading)
    await fading.put_many(written)
    assert await process.compression.train() == 1
    await fading.put_many(written)
    ahead = await start(ahead=11 * SECOND)
    assert await ahead.store.collection(Fading).get("0000") is None
    await ahead.compression.renew("fading")
    other = await start()
    assert await other.store.collection(Fading).query().order_by("key").values() == written

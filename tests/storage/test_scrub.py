"""What was deleted cannot be read from the files of a store any more."""

from __future__ import annotations

import asyncio
import contextlib
import random
import subprocess
import threading
from pathlib import Path

import apsw
import pytest

from perdure.core.errors import Unavailable
from perdure.storage.backends.sqlite import SQLiteAdapter, connections
from perdure.storage.backends.sqlite.checkpoint import Scrub
from perdure.storage.backends.sqlite.extension import SQLiteExtension
from perdure.storage.compression import Compression
from perdure.storage.extension import Extensions
from perdure.storage.options import DEFAULT
from perdure.storage.rows import Batch, Column, Delete, Index, Layout, Put
from perdure.storage.store import Store
from perdure.storage.verify import verify_store
from tests.servers import PostgresServer
from tests.storage.notes import Author, Note

SECRET = b"swordfish-4711"
TEXT = f"the launch code is {SECRET.decode()} and nobody may know it"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "bank.db"


def found_in(file: Path, what: bytes = SECRET) -> list[str]:
    """The files of a bank that hold these bytes.

    Another process looks: if this one closed a file of the bank, SQLite's locks would be gone.
    """
    names = sorted(part.name for part in file.parent.glob(f"{file.name}*"))
    done = subprocess.run(
        ["grep", "-lF", what, *names], cwd=file.parent, capture_output=True, check=False
    )
    assert done.returncode in (0, 1), done.stderr
    return done.stdout.decode().split()


# SQLite -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("inline", ["yes", "no"])
async def test_what_was_forgotten_is_in_no_file(file: Path, inline: str) -> None:
    """Stored plain, and indexed."""
    compression = Compression()
    adapter = SQLiteAdapter(f"sqlite:///{file}?inline={inline}")
    dice = random.Random(3)
    async with Store(adapter, middleware=[compression]) as store:
        authors, notes = store.collection(Author), store.collection(Note)
        kept = Author("kept", "Ada")
        await authors.put_many([Author("secret", TEXT, [TEXT] * 300), kept])
        written = [
            Note(f"{n:03d}", TEXT, text=f"{dice.randbytes(300).hex()} {TEXT} {n}")
            for n in range(200)
        ]
        public = Note("public", "ada", text="nothing to hide " * 20)
        await notes.put_many(written)
        await notes.put(public)
        with contextlib.closing(apsw.Connection(str(file))) as db:
            db.execute("SELECT 1 FROM notes").get  # noqa: B018  # it must have looked
            db.wal_checkpoint()
        assert found_in(file) == ["bank.db", "bank.db-wal"]
        await authors.delete("secret")
        await notes.delete_many([note.id for note in written])
        assert found_in(file) != []
        await adapter.scrub()
        assert found_in(file) == []
        assert found_in(file, b"swordfish") == []
        assert file.with_name("bank.db-wal").stat().st_size == 0
        assert await authors.query().values() == [kept]
        assert await notes.query().values() == [public]
        assert [problem async for problem in verify_store(store)] == []
        await notes.put(written[0])
        assert await notes.get("000") == written[0]


async def test_nothing_stays_in_any_corner_of_a_page(file: Path) -> None:
    """Rows of many sizes come, change and go, so that pages are split, filled up and merged.

    With `secure_delete` instead, copies stay in pages that a row was moved from: in a third of
    such histories, this one among them.
    """
    layout = Layout("rows", (Column("kind", "text"),), (Index(("kind",)),))
    adapter = SQLiteAdapter(f"sqlite:///{file}")
    await adapter.initialize()
    await adapter.prepare(layout)
    dice = random.Random(0)
    here: dict[str, bool] = {}

    def put(key: str, *, secret: bool) -> Put:
        word = SECRET + key.encode() if secret else b"public" + key.encode()
        size = dice.choice([20, 100, 300, 900, 3_000, 6_000, 20_000])
        value = (word * (size // len(word) + 1))[:size]
        return Put("rows", key, value, "text/plain", 1, columns=(word.decode(),))

    for _ in range(40):
        batch: dict[str, Put | Delete] = {}
        for _ in range(30):
            key = f"{dice.randrange(5)}/{dice.randrange(1_500)}"
            if key in here and dice.random() < 0.2:
                batch[key] = Delete("rows", key)
                del here[key]
            else:
                here.setdefault(key, dice.random() < 0.5)
                batch[key] = put(key, secret=here[key])
        await adapter.commit(Batch(tuple(batch.values())), DEFAULT)
    assert found_in(file)
    for key in [key for key, secret in here.items() if secret]:
        await adapter.commit(Batch((Delete("rows", key),)), DEFAULT)
    before = await adapter.salvage("rows", "", 10_000)
    await adapter.scrub()
    assert found_in(file) == []
    assert await adapter.salvage("rows", "", 10_000) == before
    assert await adapter.inspect() == []
    await adapter.close()
    assert found_in(file) == []


async def test_it_waits_for_one_who_reads(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with Store(SQLiteAdapter(f"sqlite:///{file}")) as store:
        authors = store.collection(Author)
        await authors.put(Author("secret", TEXT))
        reader = apsw.Connection(str(file))
        reader.execute("BEGIN; SELECT count(*) FROM authors").get  # noqa: B018  # it reads now
        await authors.delete("secret")
        with monkeypatch.context() as patch:
            patch.setattr(connections, "PATIENCE", 0.3)
            with pytest.raises(Unavailable, match="deleted content may still be in it"):
                await store.adapter.scrub()
        scrubbing = asyncio.create_task(store.adapter.scrub())
        # Meanwhile others write as ever.
        for number in range(50):
            assert await authors.put(Author(f"{number}", "x")) == 1
            await asyncio.sleep(0.002)
        assert not scrubbing.done()
        reader.execute("COMMIT")
        await scrubbing
        reader.close()
        assert found_in(file) == []


async def test_it_waits_for_one_who_writes(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with Store(SQLiteAdapter(f"sqlite:///{file}")) as store:
        await store.collection(Author).put(Author("secret", TEXT))
        await store.collection(Author).delete("secret")
        writer = apsw.Connection(str(file))
        writer.execute("BEGIN IMMEDIATE")
        with monkeypatch.context() as patch:
            patch.setattr(connections, "PATIENCE", 0.2)
            with pytest.raises(Unavailable, match="locked by another process"):
                await store.adapter.scrub()
        scrubbing = asyncio.create_task(store.adapter.scrub())
        await asyncio.sleep(0.05)
        assert not scrubbing.done()
        writer.execute("COMMIT")
        await scrubbing
        writer.close()
        assert found_in(file) == []


async def test_cancelled_it_stops(file: Path) -> None:
    async with Store(SQLiteAdapter(f"sqlite:///{file}")) as store:
        authors = store.collection(Author)
        await authors.put(Author("kept", "Ada"))
        reader = apsw.Connection(str(file))
        reader.execute("BEGIN; SELECT count(*) FROM authors").get  # noqa: B018  # it reads now
        await authors.put(Author("another", "Bob"))
        scrubbing = asyncio.create_task(store.adapter.scrub())
        await asyncio.sleep(0.05)
        scrubbing.cancel()
        async with asyncio.timeout(100):  # though somebody reads
            with pytest.raises(asyncio.CancelledError):
                await scrubbing
        reader.close()
        assert await authors.query().count() == 2
        await store.adapter.scrub()


def test_stopped_before_it_began(file: Path) -> None:
    scrub = Scrub(str(file), threading.Lock(), None, Extensions(SQLiteExtension))
    scrub.stop()
    scrub.run()
    assert not file.exists()


async def test_closing_waits_for_it(file: Path) -> None:
    store = Store(SQLiteAdapter(f"sqlite:///{file}"))
    await store.open()
    await store.collection(Author).put_many([Author(f"{n}", "x" * 1_000) for n in range(500)])
    scrubbing = asyncio.create_task(store.adapter.scrub())
    await asyncio.sleep(0)
    await store.close()
    await scrubbing
    assert [path.name for path in file.parent.iterdir()] == ["bank.db"]


# PostgreSQL ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("store_url", ["postgresql"], indirect=True)
async def test_deleted_rows_leave_the_tables(
    store: Store, store_url: str, postgres_server: PostgresServer
) -> None:
    authors = store.collection(Author)
    noise = [random.Random(n).randbytes(2_500).hex() for n in range(200)]
    await authors.put_many([Author(f"{n}", TEXT, [text]) for n, text in enumerate(noise)])
    await authors.delete_many([f"{n}" for n in range(200)])

    def size() -> int:
        with postgres_server.connect(store_url.rpartition("/")[2]) as db:
            row = db.execute("SELECT pg_table_size('perdure.authors')").fetchone()
        assert row is not None
        return int(row[0])

    assert size() > 200 * 2_500
    await store.adapter.scrub()
    assert size() < 100_000

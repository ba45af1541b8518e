"""What cannot be used gives one clear error with a hint, and nothing is lost."""

from __future__ import annotations

import shutil
import sqlite3
import tempfile
import traceback
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Annotated, Any

import msgspec
import pytest

import perdure
from perdure.storage.rows import MAX_VALUE_BYTES
from tests.conftest import DURABLE
from tests.fire.records import Entry, entry
from tests.fire.zygote import Zygote
from tests.servers import PostgresServer

PASSWORD = "s3cret-Pa55word"


# JSON would refuse bytes and half surrogate pairs in `Any`, with an error of its own.
@perdure.record("fire_letters", serializer="msgpack")
class Letter(msgspec.Struct, frozen=True):
    id: Annotated[str, perdure.Key()]
    subject: Annotated[str, perdure.Indexed()]
    body: Any
    labels: Annotated[dict[str, str], perdure.Tags()] = {}


@perdure.record("fire_plans")
class Plan(msgspec.Struct, frozen=True):
    id: Annotated[str, perdure.Key()]
    text: str


@perdure.record("fire_plans", migrations=[lambda old: old | {"priority": 0}])
class NewerPlan(msgspec.Struct, frozen=True):
    id: Annotated[str, perdure.Key()]
    text: str
    priority: int


@contextmanager
def refused(*kinds: type[perdure.PerdureError]) -> Iterator[None]:
    """What is done inside raises one of these, with a message and a hint, and shows no password."""
    with pytest.raises(kinds) as caught:
        yield
    error = caught.value
    assert type(error) in kinds
    assert error.message.endswith(".")
    assert error.hint
    assert PASSWORD not in "".join(traceback.format_exception(error))


async def open_and_close(url: str) -> None:
    async with perdure.open(url):
        pass


def everything_in(folder: Path) -> dict[str, bytes]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(files)}


# Addresses ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "url",
    [
        "nonsense",
        "memory.db",
        "://",
        "sqlite:memory.db",
        "sqlite://",
        "sqlite:///",
        "sqlite://folder/memory.db",
        "sqlite:///a\0b.db",
        "sqlite:///\ud800.db",
        "sqlite:///memory.db?inline=perhaps",
        "sqlite:///memory.db?inline",
        "postgresql://[::1/name",
        f"postgresql://ada:{PASSWORD}@host:port/name",
        f"postgresql://ada:{PASSWORD}@host@host/name",
        f"postgresql://ada:{PASSWORD}@host/name?pool=many",
        f"postgresql://ada:{PASSWORD}@host/name?schema=Not-A-Name",
        f"postgresql://ada:{PASSWORD}@host/name?no_such_option=1",
        f"postgresql://host/name?password={PASSWORD}&no_such_option=1",
    ],
)
async def test_a_malformed_address(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with refused(perdure.InvalidURL):
        await open_and_close(url)
    assert everything_in(tmp_path) == {}


@pytest.mark.parametrize("url", ["mysql://host/name", "https://example.org", "s3://bucket"])
async def test_an_unknown_backend(url: str) -> None:
    with refused(perdure.UnknownBackend):
        await open_and_close(url)


# Files --------------------------------------------------------------------------------------------


async def test_a_missing_folder(tmp_path: Path) -> None:
    with refused(perdure.AccessDenied):
        await open_and_close(f"sqlite:///{tmp_path}/missing/bank.db")
    assert everything_in(tmp_path) == {}


async def test_a_folder_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"mine")
    for path in ("file/bank.db", "file/deeper/bank.db", "."):
        with refused(perdure.AccessDenied):
            await open_and_close(f"sqlite:///{tmp_path}/{path}")
    assert everything_in(tmp_path) == {"file": b"mine"}


def test_a_folder_that_may_not_be_entered(tmp_path: Path, zygote: Zygote) -> None:
    folder = tmp_path / "closed"
    folder.mkdir()
    folder.chmod(0)
    try:
        told = zygote.start("trespass", f"sqlite:///{folder}/bank.db").wait()
    finally:
        folder.chmod(0o700)
    assert told[0] == "AccessDenied"
    assert str(folder) in told[1]
    assert told[2]
    assert everything_in(tmp_path) == {}


@pytest.fixture
def public_folder() -> Iterator[Path]:
    """A folder that everybody may enter; those of pytest are private."""
    folder = Path(tempfile.mkdtemp(prefix="perdure-test-"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


async def test_a_bank_that_may_not_be_written(public_folder: Path, zygote: Zygote) -> None:
    url = f"sqlite:///{public_folder}/bank.db"
    async with perdure.open(url) as bank:
        await bank.collection(Entry).put(entry("kept"))
    (public_folder / "bank.db").chmod(0o444)
    public_folder.chmod(0o555)
    before = everything_in(public_folder)
    told = zygote.start("trespass", url).wait()
    assert told[0] == "AccessDenied"
    assert "bank.db" in told[1]
    assert told[2]
    public_folder.chmod(0o755)
    assert everything_in(public_folder) == before
    (public_folder / "bank.db").chmod(0o600)
    async with perdure.open(url) as bank:
        assert await bank.collection(Entry).get("kept") == entry("kept")
        assert await bank.collection(Entry).get("trespasser") is None


@pytest.mark.parametrize("content", [b"My diary. " * 200, b"SQLite format 3\0" + bytes(5_000)])
async def test_a_file_that_is_not_a_database(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "bank.db").write_bytes(content)
    with refused(perdure.NotAStore, perdure.Corrupted):
        await open_and_close(f"sqlite:///{tmp_path}/bank.db")
    assert everything_in(tmp_path) == {"bank.db": content}


@pytest.mark.parametrize("journal", ["delete", "wal"])
async def test_a_database_of_another_program(tmp_path: Path, journal: str) -> None:
    with closing(sqlite3.connect(tmp_path / "other.db")) as db:
        db.execute(f"PRAGMA journal_mode = {journal}")
        db.execute("CREATE TABLE bookmarks(url)")
        db.execute("INSERT INTO bookmarks VALUES('https://example.org')")
        db.commit()
    before = everything_in(tmp_path)
    with refused(perdure.NotAStore):
        await open_and_close(f"sqlite:///{tmp_path}/other.db")
    assert everything_in(tmp_path) == before


async def test_a_schema_of_another_program(
    postgres_server: PostgresServer, postgres_url: str
) -> None:
    with postgres_server.connect(postgres_url.rpartition("/")[2]) as db:
        db.execute("CREATE SCHEMA perdure; CREATE TABLE perdure.bookmarks(url text)")
        with refused(perdure.NotAStore):
            await open_and_close(postgres_url)
        found = db.execute(
            "SELECT relname FROM pg_class WHERE relnamespace = 'perdure'::regnamespace"
        )
        assert found.fetchall() == [("bookmarks",)]


# What newer code wrote ----------------------------------------------------------------------------


async def test_a_bank_of_a_newer_format_in_sqlite(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/bank.db"
    async with perdure.open(url) as bank:
        await bank.collection(Entry).put(entry("kept"))
    with closing(sqlite3.connect(tmp_path / "bank.db")) as db:
        db.execute("PRAGMA user_version = 99")
    before = everything_in(tmp_path)
    with refused(perdure.NewerSchema):
        await open_and_close(url)
    assert everything_in(tmp_path) == before


async def test_a_bank_of_a_newer_format_in_postgresql(
    postgres_server: PostgresServer, postgres_url: str
) -> None:
    async with perdure.open(postgres_url) as bank:
        await bank.collection(Entry).put(entry("kept"))
    with postgres_server.connect(postgres_url.rpartition("/")[2]) as db:
        db.execute("UPDATE perdure.perdure_meta SET value = 99 WHERE name = 'format'")
        with refused(perdure.NewerSchema):
            await open_and_close(postgres_url)
        assert db.execute("SELECT count(*) FROM perdure.fire_entries").fetchone() == (1,)
        db.execute("UPDATE perdure.perdure_meta SET value = 1 WHERE name = 'format'")
    async with perdure.open(postgres_url) as bank:
        assert await bank.collection(Entry).get("kept") == entry("kept")


@pytest.mark.parametrize("store_url", DURABLE, indirect=True)
async def test_a_record_of_a_newer_schema(store_url: str) -> None:
    kept = NewerPlan("kept", "written by newer code", 7)
    async with perdure.open(store_url) as bank:
        await bank.collection(NewerPlan).put(kept)
        before = await bank.store.adapter.get("fire_plans", ["kept"], perdure.Options())
    async with perdure.open(store_url) as bank:
        plans = bank.collection(Plan)
        ours = Plan("kept", "written by older code")
        with refused(perdure.NewerSchema):
            await plans.get("kept")
        with refused(perdure.NewerSchema):
            await plans.query().values()
        with refused(perdure.NewerSchema):
            await plans.put(ours)
        with refused(perdure.NewerSchema):
            await plans.put(ours, perdure.Options(expected=1))
        with refused(perdure.NewerSchema):
            await plans.change("kept", lambda _: ours)
        with refused(perdure.NewerSchema):
            await plans.put_many([Plan("other", ""), ours, *(Plan(f"{n}", "") for n in range(9))])
        with refused(perdure.NewerSchema):
            async with bank.transaction() as tx:
                await tx.collection(Plan).put(Plan("other", ""))
                await tx.collection(Plan).put(ours)
        with refused(perdure.NewerSchema):  # nor any other record of that collection
            await plans.put(Plan("another", "is no matter"))
        after = await bank.store.adapter.get("fire_plans", ["kept"], perdure.Options())
        assert after == before
    async with perdure.open(store_url) as bank:
        assert await bank.collection(NewerPlan).query().values() == [kept]


# Records ------------------------------------------------------------------------------------------


async def test_a_value_that_is_too_large(store_url: str) -> None:
    huge = Letter("huge", "", "x" * MAX_VALUE_BYTES)
    async with perdure.open(store_url) as bank:
        letters = bank.collection(Letter)
        await letters.put(Letter("kept", "", "as it is"))
        with refused(perdure.TooLarge):
            await letters.put(huge)
        with refused(perdure.TooLarge):
            await letters.put_many([Letter("kept", "", "changed"), huge])
        with refused(perdure.TooLarge):
            async with bank.transaction() as tx:
                await tx.collection(Letter).put(Letter("kept", "", "changed"))
                await tx.collection(Letter).put(huge)
        with refused(perdure.InvalidValue):
            await letters.put(Letter("kept", "x" * 513, "changed"))
        with refused(perdure.InvalidKey):
            await letters.put(Letter("x" * 513, "", "changed"))
        almost = Letter("almost", "", "y" * (MAX_VALUE_BYTES - 100))
        await letters.put(almost)
        assert await letters.get("almost") == almost
        assert await letters.query().values() == [almost, Letter("kept", "", "as it is")]


BAD = pytest.mark.parametrize("bad", ["\0", "a\0b", "\ud800", "a\udfffb"])


@BAD
async def test_text_that_no_database_can_hold_is_refused_in_keys(store_url: str, bad: str) -> None:
    async with perdure.open(store_url) as bank:
        letters = bank.collection(Letter)
        with refused(perdure.InvalidKey):
            await letters.put(Letter(bad, "", ""))
        with refused(perdure.InvalidKey):
            await letters.put_many([Letter("good", "", ""), Letter(f"good/{bad}", "", "")])
        for call in (letters.get, letters.delete, letters.list):
            with refused(perdure.InvalidKey):
                await call(bad)
        assert await letters.query().count() == 0


@BAD
async def test_text_that_no_database_can_hold_is_refused_in_indexes(
    store_url: str, bad: str
) -> None:
    async with perdure.open(store_url) as bank:
        letters = bank.collection(Letter)
        with refused(perdure.InvalidValue):
            await letters.put(Letter("good", bad, ""))
        for labels in ({"topic": bad}, {bad: "topic"}):
            with refused(perdure.InvalidValue, perdure.InvalidInput):
                await letters.put(Letter("good", "", "", labels))
        with refused(perdure.InvalidValue, perdure.InvalidInput):
            await letters.query().where("subject", "=", bad).values()
        with refused(perdure.InvalidValue, perdure.InvalidInput):
            await letters.query().tagged(topic=bad).values()
        for topic, key in ((bad, ""), ("topic", bad)):
            with refused(perdure.InvalidValue, perdure.InvalidInput):
                async with bank.transaction() as tx:
                    await tx.collection(Letter).put(Letter("good", "", ""))
                    tx.emit(topic, key=key)
        assert await letters.query().count() == 0


@BAD
async def test_in_values_it_comes_back_as_it_went_in(store_url: str, bad: str) -> None:
    bodies: list[Any] = [
        bad,
        [bad, {"a": bad}],
        {bad: {bad: [bad]}},
        bad.encode("utf-8", "replace"),
    ]
    received: list[object] = []

    async def receive(event: Any) -> None:
        received.append(event.payload)

    async with perdure.open(store_url) as bank:
        letters = bank.collection(Letter)
        await bank.subscribe("test", receive, ["letter"])
        for number, body in enumerate(bodies):
            async with bank.transaction() as tx:
                await tx.collection(Letter).put(Letter(f"{number}", "", body))
                tx.emit("letter", body)
        found = await letters.query().values()
        assert [letter.body for letter in found] == bodies
        await bank.settle()
        assert received == bodies
        assert [problem async for problem in bank.verify()] == []


# PostgreSQL ---------------------------------------------------------------------------------------


async def test_a_server_that_is_not_there() -> None:
    with refused(perdure.Unavailable):
        await open_and_close(f"postgresql://ada:{PASSWORD}@127.0.0.1:1/name")


async def test_a_database_or_role_that_is_not_there(postgres_server: PostgresServer) -> None:
    place = f"127.0.0.1:{postgres_server.port}"
    with refused(perdure.Unavailable):
        await open_and_close(f"postgresql://postgres:{PASSWORD}@{place}/no_such_database")
    with refused(perdure.Unavailable, perdure.AccessDenied):
        await open_and_close(f"postgresql://no_such_role:{PASSWORD}@{place}/postgres")


async def test_a_wrong_password(postgres_server: PostgresServer, postgres_url: str) -> None:
    rules = postgres_server.data_dir / "pg_hba.conf"
    before = rules.read_text()
    name = postgres_url.rpartition("/")[2]
    place = f"127.0.0.1:{postgres_server.port}/{name}"
    with postgres_server.connect() as db:
        db.execute("CREATE ROLE guarded LOGIN PASSWORD 'right'")
        rules.write_text(f"host all guarded 127.0.0.1/32 scram-sha-256\n{before}")
        db.execute("SELECT pg_reload_conf()")
        try:
            for password in (f":{PASSWORD}", ""):
                with refused(perdure.AccessDenied):
                    await open_and_close(f"postgresql://guarded{password}@{place}")
            # It gets in, and may not make a schema.
            with refused(perdure.AccessDenied):
                await open_and_close(f"postgresql://guarded:right@{place}")
        finally:
            rules.write_text(before)
            db.execute("SELECT pg_reload_conf()")
            db.execute("DROP ROLE guarded")

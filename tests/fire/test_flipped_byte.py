"""One byte in the file is not as it was: noticed, the record named, the rest readable."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import pytest

import perdure
from tests.fire import damage
from tests.fire.damage import ENTRIES, MIRRORS, PAPERS, Damage
from tests.fire.records import Entry, Mirror, Paper, content_of
from tests.fire.zygote import Zygote
from tests.servers import PostgresServer

FLIPS = 200
WORKERS = 4

#: A record whose value is not compressed, so that it can be found in the file.
VICTIM = MIRRORS[33]


def flip(file: Path, content: bytes) -> None:
    """Flip a byte inside this content; also in copies of it that lie in free space."""
    data, middle = file.read_bytes(), len(content) // 2
    assert content in data
    flipped = content[:middle] + bytes([content[middle] ^ 0x01]) + content[middle + 1 :]
    file.write_bytes(data.replace(content, flipped))


async def assert_only_the_victim_is_hit(url: str) -> None:
    name = f"fire_mirrors/{VICTIM.id}"
    async with perdure.open(url) as bank:
        mirrors = bank.collection(Mirror)
        with pytest.raises(perdure.Corrupted) as caught:
            await mirrors.get(VICTIM.id)
        assert caught.value.record == name
        assert name in caught.value.message
        assert "restore" in caught.value.hint
        for record in MIRRORS:
            if record != VICTIM:
                assert await mirrors.get(record.id) == record
        assert await bank.collection(Entry).get_many([record.id for record in ENTRIES]) == ENTRIES
        assert [problem.subject async for problem in bank.verify()] == [name]
        # The way out: write it again.
        await mirrors.put(VICTIM)
        assert await mirrors.get(VICTIM.id) == VICTIM
        assert [problem async for problem in bank.verify()] == []


@pytest.fixture
async def bank_file(tmp_path: Path) -> Path:
    """A bank with something of everything, in one file."""
    file = tmp_path / "bank.db"
    async with perdure.open(f"sqlite:///{file}") as bank:
        await damage.furnish(bank)
    assert await damage.inspect(f"sqlite:///{file}") == Damage()
    return file


async def test_in_a_value_in_sqlite(bank_file: Path) -> None:
    flip(bank_file, VICTIM.text.encode())
    await assert_only_the_victim_is_hit(f"sqlite:///{bank_file}")


async def test_in_an_artifact_in_sqlite(bank_file: Path) -> None:
    flip(bank_file, content_of(PAPERS[2])[:1_000])
    async with perdure.open(f"sqlite:///{bank_file}") as bank:
        papers = [await bank.collection(Paper).get(key) for key in PAPERS]
        hashes = [paper.artifact for paper in papers if paper]
        with pytest.raises(perdure.Corrupted, match=hashes[2]):
            await bank.artifacts.read(hashes[2])
        for key, artifact in zip(PAPERS, hashes, strict=True):
            if artifact != hashes[2]:
                assert await bank.artifacts.read(artifact) == content_of(key)
        assert [problem.subject async for problem in bank.verify()] == [hashes[2]]
        await bank.artifacts.put(content_of(PAPERS[2]))
        assert [problem async for problem in bank.verify()] == []


async def test_in_the_declaration_of_a_table_in_sqlite(bank_file: Path) -> None:
    """The ids of folders, PSIMARY KEY now, are nothing; SQLite itself is content with that."""
    flip(bank_file, b"folders(id INTEGER PRIMARY KEY, path TEXT")
    found = await damage.inspect(f"sqlite:///{bank_file}")
    assert found.wrong
    assert found.lies == []
    assert "store: The declaration of the table perdure_folders is damaged." in found.noticed


@pytest.mark.slow
def test_anywhere_in_sqlite(bank_file: Path, zygote: Zygote) -> None:
    url = f"sqlite:///{bank_file}"
    workers = [
        zygote.start("flip", url, seed=seed, times=FLIPS // WORKERS) for seed in range(WORKERS)
    ]
    noticed = 0
    for worker in workers:
        told = worker.wait(120)
        for place, answer in zip(told[::2], told[1::2], strict=True):
            found = msgspec.json.decode(answer, type=Damage)
            assert not found.lies, f"byte {place} changed {found.lies}, and nobody noticed"
            assert found.noticed or not found.wrong, f"byte {place} hides {found.wrong}"
            noticed += bool(found.noticed)
    # The others hit free space, or facts beside the value, such as times.
    assert noticed > FLIPS // 3


async def test_in_a_value_in_postgresql(postgres_server: PostgresServer, postgres_url: str) -> None:
    async with perdure.open(postgres_url) as bank:
        await damage.furnish(bank)
    with postgres_server.connect(postgres_url.rpartition("/")[2]) as db:
        text = "SELECT pg_relation_filepath('perdure.fire_mirrors')"
        ((path,),) = db.execute(text).fetchall()
        places = dict(
            db.execute("SELECT _key, (ctid::text::point)[0]::int FROM perdure.fire_mirrors")
        )
    file = postgres_server.data_dir / path
    await asyncio.to_thread(postgres_server.stop)
    try:
        flip(file, VICTIM.text.encode())
    finally:
        await asyncio.to_thread(postgres_server.start)
    async with perdure.open(postgres_url) as bank:
        mirrors = bank.collection(Mirror)
        with pytest.raises(perdure.Corrupted) as caught:
            await mirrors.get(VICTIM.id)
        assert "perdure verify" in caught.value.hint
        elsewhere = [each for each in MIRRORS if places[each.id] != places[VICTIM.id]]
        assert elsewhere
        for record in elsewhere:
            assert await mirrors.get(record.id) == record
        assert await bank.collection(Entry).get_many([record.id for record in ENTRIES]) == ENTRIES
        problems = {problem.subject: problem.what async for problem in bank.verify()}
        # PostgreSQL refuses the whole page; our own checksum tells which record it is.
        assert "checksum does not fit" in problems[f"fire_mirrors/{VICTIM.id}"]
        assert not {f"fire_mirrors/{record.id}" for record in elsewhere} & problems.keys()

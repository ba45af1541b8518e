"""No room is left: writes are refused, what was there stays, and with room writing goes on.

Where nobody may mount a small disk, limits on the size of files do the same; those tests run
everywhere.
"""

from __future__ import annotations

import asyncio
import os
import resource
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

import perdure
from perdure.config import ArtifactsConfig, Config
from tests.fire import disks
from tests.fire.disks import MEGABYTE
from tests.fire.records import Mirror
from tests.fire.zygote import Zygote
from tests.servers import PostgresServer

needs_mount = pytest.mark.skipif(
    not disks.may_mount(), reason="only root may mount; the limits on file sizes cover this"
)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with disks.small_disk(tmp_path / "small", 8 * MEGABYTE) as place:
        yield place


# SQLite -------------------------------------------------------------------------------------------


@needs_mount
@pytest.mark.parametrize("leave", [0, 10_000, 100_000, 400_000])
async def test_a_full_disk_under_sqlite(disk: Path, leave: int) -> None:
    async with perdure.open(f"sqlite:///{disk}/bank.db") as bank:
        early = await disks.prepare(bank)
        ballast = disks.fill(disk, leave)
        late = await disks.write_until_full(bank)
        await disks.assert_sound(bank, early, late)
        ballast.unlink()
        await disks.assert_sound(bank, early, late)
        await disks.assert_works_again(bank)


@needs_mount
async def test_a_full_disk_when_a_bank_is_opened(disk: Path) -> None:
    url = f"sqlite:///{disk}/bank.db"
    async with perdure.open(url) as bank:
        early = await disks.prepare(bank)
    for path in (url, f"sqlite:///{disk}/new.db"):
        ballast = disks.fill(disk)
        with disks.no_room():
            await perdure.open(path).open()
        ballast.unlink()
    for path, keys in ((url, early), (f"sqlite:///{disk}/new.db", [])):
        async with perdure.open(path) as bank:
            await disks.assert_sound(bank, keys, [])
            await disks.assert_works_again(bank)


def test_a_limit_on_files_under_sqlite(zygote: Zygote, tmp_path: Path) -> None:
    zygote.start("limited", f"sqlite:///{tmp_path}/bank.db", size=200_000).wait()


# Artifacts ----------------------------------------------------------------------------------------


@needs_mount
async def test_a_full_disk_under_artifacts(disk: Path, tmp_path: Path) -> None:
    config = Config(artifacts=ArtifactsConfig(folder=str(disk / "artifacts")))
    async with perdure.open(f"sqlite:///{tmp_path}/bank.db", config=config) as bank:
        kept = await bank.artifacts.put(os.urandom(MEGABYTE))
        for _ in range(2):
            with disks.no_room():
                await bank.artifacts.put(os.urandom(8 * MEGABYTE))
        await disks.prepare(bank)  # the bank itself has room
        assert len(await bank.artifacts.read(kept)) == MEGABYTE
        ballast = disks.fill(disk)
        with disks.no_room():
            await bank.artifacts.put(os.urandom(MEGABYTE))
        ballast.unlink()
        more = await bank.artifacts.put(os.urandom(4 * MEGABYTE))
        assert len(await bank.artifacts.read(more)) == 4 * MEGABYTE
        assert [problem async for problem in bank.verify()] == []


# PostgreSQL ---------------------------------------------------------------------------------------


@needs_mount
async def test_a_full_disk_under_postgresql(
    postgres_server: PostgresServer, postgres_url: str
) -> None:
    name = postgres_url.rpartition("/")[2]
    owner = postgres_server.data_dir.owner()
    place = postgres_server.data_dir.with_name("small")
    with disks.small_disk(place, 8 * MEGABYTE, owner) as disk:
        (disk / "space").mkdir()
        shutil.chown(disk / "space", owner)
        with postgres_server.connect() as db:
            db.execute(f"CREATE TABLESPACE small LOCATION '{disk}/space'")
            db.execute(f"ALTER DATABASE {name} SET default_tablespace = small")
        try:
            async with perdure.open(postgres_url) as bank:
                early = await disks.prepare(bank)
                ballast = disks.fill(disk, 100_000)
                late = await disks.write_until_full(bank)
                await disks.assert_sound(bank, early, late)
                ballast.unlink()
                await disks.assert_sound(bank, early, late)
                await disks.assert_works_again(bank)
        finally:
            postgres_server.give_back(postgres_url)
            with postgres_server.connect() as db:
                db.execute(f"ALTER DATABASE {name} RESET default_tablespace")
                db.execute("DROP TABLESPACE small")


async def test_a_limit_on_files_under_postgresql(
    postgres_server: PostgresServer, postgres_url: str
) -> None:
    async with perdure.open(postgres_url) as bank:
        early = await disks.prepare(bank)
        # Above the size of the server's own log files, which it could not do without.
        await asyncio.to_thread(_restart, postgres_server, 17 * MEGABYTE)
        late = await disks.write_until_full(bank, MEGABYTE)
        await disks.assert_sound(bank, early, late, MEGABYTE)
        await asyncio.to_thread(_restart, postgres_server, resource.RLIM_INFINITY)
        await disks.assert_sound(bank, early, late, MEGABYTE)
        await bank.collection(Mirror).delete_many(late)
        await disks.assert_works_again(bank)


def _restart(server: PostgresServer, limit: int) -> None:
    """Restart it with a limit on the size of its files, which it inherits from us."""
    server.stop()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
    try:
        server.start()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

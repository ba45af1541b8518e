"""Backups under fire: while several processes write, and killed at any moment."""

from __future__ import annotations

import asyncio
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import perdure
from perdure.bank.backup import check_backups
from perdure.bank.backup_folder import BackupFolder
from perdure.bank.bank_copy import restore
from perdure.core.errors import PerdureError
from perdure.storage.adapter import Adapter
from perdure.storage.registry import adapter_for
from tests.conftest import DURABLE
from tests.fire.movers import ACCOUNTS, SUM, Account, Transfer, config_in

pytestmark = pytest.mark.repeated

ROOT = Path(__file__).parents[2]
KILLS = 40 if os.environ.get("HYPOTHESIS_PROFILE") == "fuzz" else 3
#: Seconds for anything that has to come.
PATIENCE = 60.0


@contextmanager
def process(task: str, url: str, folder: Path) -> Iterator[subprocess.Popen[str]]:
    """A process at work; killed in the end, if it is still there."""
    with subprocess.Popen(
        [sys.executable, "-m", "tests.fire.movers", task, url, str(folder)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"},
        stdout=subprocess.PIPE,
        text=True,
    ) as started:
        try:
            assert started.stdout is not None
            assert started.stdout.readline() == "ready\n"
            yield started
        finally:
            started.kill()


def carry_out(task: str, url: str, folder: Path) -> float:
    """Let it come to its end; returns how long the work took."""
    with process(task, url, folder) as started:
        begun = time.monotonic()
        assert started.wait(PATIENCE) == 0
        return time.monotonic() - begun


async def fill(url: str, folder: Path, transfers: int) -> None:
    async with perdure.open(url, config=config_in(str(folder))) as bank:
        accounts = [Account(f"a{n}", SUM) for n in range(ACCOUNTS)]
        await bank.collection(Account).put_many(accounts)
        for start in range(0, transfers, 500):
            content = os.urandom(70_000)
            receipt = await bank.artifacts.put(content)
            await bank.collection(Transfer).put_many(
                Transfer(f"start/{n:06d}", 1, receipt) for n in range(start, start + 500)
            )


async def examine(url: str, folder: str) -> int:
    """What must hold in every bank that was restored; returns how many transfers there are."""
    async with perdure.open(url, config=config_in(folder)) as bank:
        accounts = await bank.collection(Account).query().values()
        assert sum(account.amount for account in accounts) == ACCOUNTS * SUM
        assert len(accounts) == ACCOUNTS
        assert [problem async for problem in bank.verify()] == []
        for info in await bank.sessions():
            session = await bank.existing_session(info.name)
            context = await session.context("What was the last question?")
            assert context.tokens > 0
        for transfer in await bank.collection(Transfer).query().limit(20).values():
            assert len(await bank.artifacts.read(transfer.receipt)) == transfer.receipt.size
        return await bank.collection(Transfer).query().count()


@pytest.mark.parametrize("store_url", DURABLE, indirect=True)
async def test_backups_while_two_processes_write(store_url: str, tmp_path: Path) -> None:
    folder = tmp_path / "backup"
    objects = tmp_path / "backup.objects"
    await fill(store_url, objects, 500)
    with (
        process("transfer", store_url, objects) as one,
        process("transfer", store_url, objects) as two,
    ):
        for writer in (one, two):
            assert writer.stdout is not None
            assert writer.stdout.readline() == "0\n"
        for _ in range(2):
            carry_out("keep", store_url, folder)
        assert one.poll() is None
        assert two.poll() is None
    counts = []
    for number, listed in enumerate(await check_backups(folder)):
        assert listed.sound, listed.error
        assert listed.manifest is not None
        assert not listed.manifest.missing
        place = str(tmp_path / f"objects{number}")
        url = f"sqlite:///{tmp_path / f'restored{number}.db'}"
        moved = await restore(folder, url, config=config_in(place), snapshot=listed.id)
        assert moved.problems == ()
        counts.append(await examine(url, place))
    assert len(counts) == 2
    assert 500 < counts[0] < counts[1]


@pytest.mark.parametrize("store_url", DURABLE, indirect=True)
async def test_a_backup_that_is_killed_leaves_the_others(store_url: str, tmp_path: Path) -> None:
    folder = tmp_path / "backup"
    await fill(store_url, tmp_path / "backup.objects", 1_500)
    duration = carry_out("keep", store_url, folder)
    dice = random.Random(7)
    for _ in range(KILLS):
        with process("keep", store_url, folder):
            await asyncio.sleep(dice.uniform(0, duration))
        listed = await check_backups(folder)
        assert listed
        assert all(each.sound for each in listed), [each.error for each in listed]
    carry_out("keep", store_url, folder)
    listed = await check_backups(folder)
    assert [each.sound for each in listed] == [True] * 2
    assert not list(BackupFolder(folder).incoming.iterdir())
    url = f"sqlite:///{tmp_path / 'restored.db'}"
    moved = await restore(folder, url, config=config_in(str(tmp_path / "new")))
    assert moved.problems == ()
    assert await examine(url, str(tmp_path / "new")) == 1_500


@pytest.mark.parametrize("store_url", DURABLE, indirect=True)
async def test_a_restore_that_is_killed_changes_all_or_nothing(
    store_url: str, tmp_path: Path
) -> None:
    source, folder = f"sqlite:///{tmp_path / 'source.db'}", tmp_path / "backup"
    await fill(source, tmp_path / "backup.objects", 1_500)
    carry_out("keep", source, folder)
    restored = tmp_path / "backup.restored"
    await fill(store_url, restored, 500)
    few = await _held(store_url)
    duration = carry_out("bring_back", store_url, folder)
    dice = random.Random(8)
    found = set()
    for number in range(KILLS):
        # What is there before is known, and other than what is restored.
        await _load(store_url, few)
        with process("bring_back", store_url, folder):
            await asyncio.sleep(duration * (number + dice.random()) / KILLS)
        count = await _examined(store_url, str(restored))
        assert count in {500, 1_500}
        found.add(count)
    carry_out("bring_back", store_url, folder)
    assert await _examined(store_url, str(restored)) == 1_500
    assert 500 in found


async def _load(url: str, source: Adapter) -> None:
    adapter = adapter_for(url)
    await adapter.initialize()
    async with source.snapshot() as snapshot:
        await adapter.load(snapshot, replace=True)
    await adapter.close()


async def _held(url: str) -> Adapter:
    """All records of a bank, in memory."""
    adapter, memory = adapter_for(url), adapter_for("memory://")
    await adapter.initialize()
    async with adapter.snapshot() as snapshot:
        await memory.load(snapshot)
    await adapter.close()
    return memory


async def _examined(url: str, objects: str) -> int:
    """The server notices only after a while that a client is dead."""
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            return await examine(url, objects)
        except PerdureError:
            if time.monotonic() > deadline:
                raise
            await asyncio.sleep(0.05)

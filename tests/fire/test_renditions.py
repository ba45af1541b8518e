"""A process that makes renditions, killed at any point: nothing is lost, nothing is half made.

PERDURE_KILLS says how often.
"""

from __future__ import annotations

import asyncio
import os
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from perdure.bank import Bank
from perdure.history.manifest import RoundId
from perdure.history.renditions import algorithm, rendition_packing
from perdure.history.renditions.rendition_records import Rendition, Tiny
from perdure.sessions.session import Session
from tests.fire.shortening import OWN, SESSION, turn
from tests.fire.talkers import bank_at
from tests.fire.zygote import ROOT

KILLS = min(int(os.environ.get("PERDURE_KILLS", "3")), 60)
TURNS = 90


async def prepare(url: str, folder: str) -> None:
    async with bank_at(url, folder) as bank:
        session = await bank.session(SESSION)
        for number in range(1, TURNS + 1):
            await session.append(turn(number), count=True)
        bank.services.renditions._bulk.clear()  # as if it had been killed right now
        for kind in (Rendition, Tiny):
            await bank.collection(kind).query().prefix(f"{SESSION}/").delete()


async def check(bank: Bank, session: Session) -> int:
    """Whatever is stored is whole; returns how many rows there are."""
    turns = {turn.number: turn.rounds async for turn in session.read()}
    rows = await bank.collection(Rendition).query().prefix(f"{session.name}/").values()
    for row in rows:
        (variant,) = row.variants
        messages = turns[row.turn][row.round - 1].messages
        texts = rendition_packing.unpack(variant.packed, rendition_packing.ground(messages))
        assert texts == algorithm.both(messages, str(RoundId(row.turn, row.round)))
        assert variant.messages == len(messages)
    tinies = await bank.collection(Tiny).query().prefix(f"{session.name}/").values()
    for tiny in tinies:
        (short,) = tiny.variants
        told = [round.messages for round in turns[tiny.turn]]
        assert short.text == algorithm.tiny(told, bank.services.token_counts.counter)
    return len(rows) + len(tinies)


def killed(url: str, folder: str, portions: int, seconds: float) -> None:
    """Start the process, and end it as `kill -9` does, so long after it began with a portion."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.fire.shortening", url, folder],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])},
    )
    with process:
        assert process.stdout is not None
        for _ in range(portions):
            assert process.stdout.readline().strip().isdigit()
        time.sleep(seconds)
        process.kill()


@pytest.mark.slow
@pytest.mark.parametrize("store_url", ["sqlite"], indirect=True)
def test_a_killed_worker_loses_nothing_and_leaves_nothing_half_made(
    store_url: str, tmp_path: Path
) -> None:
    folder, dice = str(tmp_path / "artifacts"), random.Random(f"shortening {KILLS}")
    asyncio.run(prepare(store_url, folder))
    made = list[int]()

    async def look() -> None:
        bank = bank_at(store_url, folder)
        await bank.store.open()  # and nothing else: nothing is mended by looking
        try:
            made.append(await check(bank, await bank.existing_session(SESSION)))
        finally:
            await bank.store.close()

    async def mend() -> None:
        async with bank_at(store_url, folder) as bank:
            for name in (SESSION, OWN):
                session = await bank.session(name)
                await bank.settle()
                await bank.services.renditions.catch_up(session.record)
                turns = (await session.head()).turn
                assert await check(bank, session) == 3 * turns
                (standing,) = await bank.services.renditions.status(name)
                assert (standing.missing, standing.turns) == (0, turns)
            assert [problem async for problem in bank.verify()] == []

    for _ in range(KILLS):
        killed(store_url, folder, dice.randrange(1, 4), dice.uniform(0, 0.15))
        asyncio.run(look())
    assert any(0 < count < 3 * TURNS for count in made), made
    assert made == sorted(made)
    asyncio.run(mend())

"""kill -9 of a writing process, at random moments: what was acknowledged is there, once.

PERDURE_KILLS says how often; `make crash` asks for a thousand.
"""

from __future__ import annotations

import asyncio
import os
import random
import time

import pytest

import perdure
from tests.conftest import DURABLE
from tests.fire.audit import Auditor, Lane
from tests.fire.zygote import Zygote
from tests.servers import PostgresServer

pytestmark = [pytest.mark.repeated, pytest.mark.parametrize("store_url", DURABLE, indirect=True)]

KILLS = int(os.environ.get("PERDURE_KILLS", "30"))
LANES = 3


def wait_until_alone(url: str, server: PostgresServer) -> None:
    """The server carries out what a dead client has sent before it notices the death."""
    with server.connect(url.rpartition("/")[2]) as db:
        text = (
            "SELECT 1 FROM pg_stat_activity"
            " WHERE datname = current_database() AND pid <> pg_backend_pid()"
            " AND backend_type = 'client backend'"
        )
        deadline = time.monotonic() + 100
        while db.execute(text).fetchone() is not None:
            assert time.monotonic() < deadline
            time.sleep(0.002)


def test_nothing_acknowledged_is_lost_and_nothing_is_doubled(
    store_url: str, zygote: Zygote, request: pytest.FixtureRequest
) -> None:
    dice = random.Random(f"kills {KILLS}")
    auditor = Auditor()
    fresh: list[Lane] = []
    acknowledged = 0

    async def audit(*, everything: bool) -> None:
        async with perdure.open(store_url) as bank:
            await auditor.audit(bank, fresh)
            fresh.clear()
            if everything:
                await auditor.audit_all(bank)

    for turn in range(KILLS):
        worker = zygote.start("write", store_url, turn=turn, lanes=LANES)
        if dice.random() < 0.3:
            worker.listen(dice.uniform(0, 0.15))  # may hit while the bank is being opened
        else:
            worker.listen(10, dice.randrange(40))
            worker.listen(dice.uniform(0, 0.01))
        told = worker.kill()
        if "postgres" in store_url:
            wait_until_alone(store_url, request.getfixturevalue("postgres_server"))
        fresh += [Lane(turn, lane, told) for lane in range(LANES)]
        acknowledged += len(told)
        # Not always: the next writer also has to cope with what this one left.
        if dice.random() < 0.7:
            asyncio.run(audit(everything=False))
    asyncio.run(audit(everything=True))
    print(
        f"{KILLS} kills, {acknowledged} steps acknowledged;"
        f" of those interrupted, {auditor.done} took place and {auditor.undone} did not"
    )
    assert acknowledged > KILLS
    assert auditor.undone, "no kill came in the middle of a step"


def test_a_bank_that_was_being_made_can_be_opened(
    store_url: str, zygote: Zygote, request: pytest.FixtureRequest
) -> None:
    dice = random.Random(f"births {KILLS}")

    async def audit(url: str, lane: Lane) -> None:
        async with perdure.open(url) as bank:
            auditor = Auditor()
            await auditor.audit(bank, [lane])
            await auditor.audit_all(bank)

    for number in range(KILLS // 3):
        url = f"{store_url}_{number}"
        if "postgres" in store_url:
            url = f"{store_url}?schema=born_{number}"
        worker = zygote.start("write", url, turn=0, lanes=1)
        worker.listen(dice.uniform(0, 0.1), 1)
        told = worker.kill()
        if "postgres" in store_url:
            wait_until_alone(store_url, request.getfixturevalue("postgres_server"))
        asyncio.run(audit(url, Lane(0, 0, told)))

"""Processes for `test_backup`: ``python -m tests.fire.movers TASK URL FOLDER``.

Each tells "ready" when its imports are done, so that a kill hits the work and not the start.
"""

from __future__ import annotations

import asyncio
import os
import random
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Annotated

import msgspec

import perdure
import perdure.artifacts.artifact_store
import perdure.storage.backends.postgres
import perdure.storage.backends.sqlite
from perdure.bank.backup import backup
from perdure.bank.bank_copy import restore
from perdure.config import ArtifactsConfig, Config

SUM = 1_000
ACCOUNTS = 8


@perdure.record("accounts")
class Account(msgspec.Struct, frozen=True):
    id: Annotated[str, perdure.Key()]
    amount: int


@perdure.record("transfers")
class Transfer(msgspec.Struct, frozen=True):
    """Beside each transfer stands what it was for."""

    id: Annotated[str, perdure.Key()]
    amount: Annotated[int, perdure.Indexed()]
    receipt: perdure.Artifact


def config_in(folder: str) -> Config:
    return Config(artifacts=ArtifactsConfig(folder=folder))


async def transfer(url: str, folder: str) -> None:
    """Move amounts between accounts, and say something now and then, until it is killed."""
    async with perdure.open(url, config=config_in(folder)) as bank:
        session = await bank.session(f"teller/{os.getpid()}")
        for number in range(10**9):
            one, other = random.sample(range(ACCOUNTS), 2)
            receipt = await bank.artifacts.put(os.urandom(66_000 if number % 5 == 0 else 50))
            await bank.transact(_Move(one, other, f"{os.getpid()}/{number:06d}", receipt).run)
            if number % 3 == 0:
                said = [("user", f"question {number}"), ("assistant", f"answer {number}")]
                await session.append([{"role": role, "content": text} for role, text in said])
            print(number, flush=True)
            await asyncio.sleep(0.01)


class _Move:
    def __init__(self, one: int, other: int, name: str, receipt: perdure.Artifact) -> None:
        self._ends = (f"a{one}", f"a{other}")
        self._name = name
        self._receipt = receipt

    async def run(self, transaction: perdure.Transaction) -> None:
        accounts = transaction.collection(Account)
        source, target = await accounts.get_many(self._ends)
        assert source is not None
        assert target is not None
        await accounts.put(Account(source.id, source.amount - 1))
        await accounts.put(Account(target.id, target.amount + 1))
        await transaction.collection(Transfer).put(Transfer(self._name, 1, self._receipt))


async def keep(url: str, folder: str) -> None:
    bank = perdure.open(url, config=config_in(f"{folder}.objects"))
    await bank.store.open()
    await backup(bank.services, folder, keep_last=2)
    await bank.store.close()


async def bring_back(url: str, folder: str) -> None:
    target = config_in(f"{folder}.restored")
    moved = await restore(folder, url, config=target, overwrite=True, verify=False)
    print(moved.rows, flush=True)


TASKS: dict[str, Callable[[str, str], Awaitable[None]]] = {
    task.__name__: task for task in (transfer, keep, bring_back)
}


async def main(name: str, url: str, folder: str) -> None:
    print("ready", flush=True)
    await TASKS[name](url, folder)


if __name__ == "__main__":
    assert Path(sys.argv[3]).is_absolute()
    asyncio.run(main(*sys.argv[1:4]))

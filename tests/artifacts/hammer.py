"""Puts, refers to, reads and forgets the same few contents, or collects garbage, until stopped.

python hammer.py writer|teller|collector|mover NAME BANK_FILE PLACE [TO]

A writer ends when standard input does, and says how often it succeeded; it exits with 1 as soon as
something that it refers to cannot be read. A teller does the same with turns and sessions.
"""

from __future__ import annotations

import asyncio
import os
import random
import sys
import threading

from perdure.artifacts import Artifact, ArtifactStore, place_of
from perdure.bank import Bank
from perdure.config import Config
from perdure.config.settings import ArtifactsConfig
from perdure.core.errors import ArtifactMissing, Conflict
from perdure.core.messages import assistant, user
from perdure.history.artifact_uses import Uses
from perdure.storage.backends.sqlite import SQLiteAdapter
from perdure.storage.store import Store
from perdure.storage.transaction import Transaction
from tests.artifacts.papers import Paper

CONTENTS = [bytes([number]) * size for number in range(3) for size in (500, 70_000)]
#: What turns say: no writer puts it, so that it is nobody's own.
TEXTS = [letter * size for letter in "abc" for size in (20_000, 70_000)]
stopped = threading.Event()


def wait_for_the_end() -> None:
    while os.read(0, 1):
        pass
    stopped.set()


async def refer(store: Store, artifacts: ArtifactStore, key: str, content: bytes) -> None:
    """Refer to a content, as programs do: in a transaction, or put first and refer then."""
    if random.random() < 0.5:

        async def body(transaction: Transaction) -> None:
            artifact = await artifacts.put(content, transaction=transaction)
            await transaction.collection(Paper).put(Paper(key, artifact))

        await store.transact(body)
        return
    while True:
        artifact = await artifacts.put(content)
        try:
            await store.collection(Paper).put(Paper(key, artifact))
        except Conflict:
            continue  # collected before we referred to it: put it again
        return


async def write(store: Store, artifacts: ArtifactStore, name: str) -> int:
    papers, rounds = store.collection(Paper), 0
    while not rounds or not stopped.is_set():
        key = f"{name}/{random.randrange(4)}"
        content = random.choice(CONTENTS)
        await refer(store, artifacts, key, content)
        for _ in range(random.randrange(3)):
            try:
                assert await artifacts.read(Artifact.of(content)) == content
            except ArtifactMissing as exc:
                print(f"LOST {exc}", flush=True)
                sys.exit(1)
        if random.random() < 0.7:
            await papers.delete(key)
        rounds += 1
    return rounds


def bank_at(file: str, place: str) -> Bank:
    where = ArtifactsConfig(url=place) if "://" in place else ArtifactsConfig(folder=place)
    return Bank(f"sqlite:///{file}", config=Config(artifacts=where))


async def tell(bank: Bank, name: str) -> int:
    """Append turns that say what others say, too; and forget them."""
    rounds = 0
    while not rounds or not stopped.is_set():
        session = await bank.session(f"{name}/{random.randrange(4)}")
        text = random.choice(TEXTS)
        await session.append([user(text), assistant("I see.")])
        newest = (await session.head()).newest
        try:
            assert (await session.turn(newest, resolve=True)).messages[0] == user(text)
        except ArtifactMissing as exc:
            print(f"LOST {exc}", flush=True)
            sys.exit(1)
        if random.random() < 0.6:
            await bank.forget(session.name)
        rounds += 1
    return rounds


async def collect(artifacts: ArtifactStore) -> int:
    """How often; what is left to delete may have gone with another collector."""
    rounds = 0
    while not rounds or not stopped.is_set():
        await artifacts.collect(grace=0)
        rounds += 1
        await asyncio.sleep(random.uniform(0, 0.01))
    return rounds


async def main(role: str, name: str, bank: str, place: str, *to: str) -> None:
    if role == "teller":
        async with bank_at(bank, place) as opened:
            os.write(1, b"ready\n")
            done = await tell(opened, name)
        print(f"done {done}", flush=True)
        return
    async with Store(SQLiteAdapter(f"sqlite:///{bank}")) as store:
        artifacts = ArtifactStore(store, place_of(place))
        artifacts.join(Uses(store))
        os.write(1, b"ready\n")
        if role == "writer":
            done = await write(store, artifacts, name)
        elif role == "collector":
            done = await collect(artifacts)
        else:
            done = (await artifacts.move(place_of(to[0]), delete=name == "delete")).copied
    print(f"done {done}", flush=True)


if __name__ == "__main__":
    threading.Thread(target=wait_for_the_end, daemon=True).start()
    asyncio.run(main(*sys.argv[1:]))

"""Turns refer to artifacts, too: garbage collection and forgetting respect each other's."""

from __future__ import annotations

from typing import Annotated

import msgspec

from perdure.artifacts import Artifact
from perdure.bank import Bank
from perdure.core import messages as canonical
from perdure.core.messages import assistant, user
from perdure.storage.records import Key, record

LONG = "A long story. " * 20_000


@record("clippings")
class Clipping(msgspec.Struct, frozen=True):
    id: Annotated[str, Key()]
    body: Artifact


async def told(bank: Bank, name: str) -> Artifact:
    """A session whose turn refers to an artifact."""
    session = await bank.session(name)
    await session.append([user(LONG), assistant("I see.")])
    (hash_,) = canonical.references((await session.turn(1)).messages)
    return Artifact(hash_, await bank.artifacts.size(hash_))


async def test_what_a_turn_uses_is_not_collected(bank: Bank) -> None:
    artifact = await told(bank, "a/b")
    (referrer,) = await bank.artifacts.references(artifact)
    assert referrer.name == "a/b#T-1"
    assert (await bank.artifacts.collect(grace=0)).deleted == 0
    assert [fault async for fault in bank.artifacts.check(referred=True)] == []
    await bank.artifacts.delete(artifact)
    (fault,) = [fault async for fault in bank.artifacts.check(referred=True)]
    assert (fault.artifact, fault.referrer) == (artifact.hash, "a/b#T-1")


async def test_forgetting_spares_what_a_record_refers_to(bank: Bank) -> None:
    artifact = await told(bank, "a/b")
    await bank.collection(Clipping).put(Clipping("c", artifact))
    assert await bank.artifacts.count(artifact) == 2
    assert (await bank.forget("a/b")).artifacts == 0
    assert await bank.artifacts.read(artifact) == LONG.encode()
    await bank.collection(Clipping).delete("c")
    assert (await bank.artifacts.collect(grace=0)).deleted == 1


async def test_forgetting_deletes_what_nobody_else_uses(bank: Bank) -> None:
    artifact = await told(bank, "a/b")
    await told(bank, "a/c")
    assert (await bank.forget("a/b")).artifacts == 0
    assert (await bank.forget("a/c")).artifacts == 1
    assert not await bank.artifacts.exists(artifact)

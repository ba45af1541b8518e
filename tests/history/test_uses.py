"""Turns refer to artifacts, too: garbage collection and forgetting respect each other's."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Annotated, Any

import msgspec
import pytest

from perdure.artifacts import Artifact, FaultKind
from perdure.artifacts.artifact_contents import ArtifactContents
from perdure.bank import Bank
from perdure.core import messages as canonical
from perdure.core.messages import assistant, user
from perdure.history.log_records import Use
from perdure.storage.middleware import Call, Commit, Handler
from perdure.storage.records import Key, record
from perdure.storage.rows import Delete, Put
from tests.history.conftest import MakeBank

LONG = "A long story. " * 20_000
SHORT = "A short story. " * 2_000


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


class _Before:
    """Middleware that lets something happen right before a write is committed, once.

    Before a turn is, unless another kind of write is named.
    """

    def __init__(self, kind: type[Put | Delete] = Put, collection: str = "perdure_heads") -> None:
        self.happens: Callable[[], Awaitable[Any]] | None = None
        self._kind = kind
        self._collection = collection

    async def __call__(self, call: Call, proceed: Handler) -> Any:
        if self.happens is not None and isinstance(call, Commit):
            writes = [each for each in call.batch.writes if isinstance(each, self._kind)]
            if any(each.collection == self._collection for each in writes):
                happens, self.happens = self.happens, None
                await happens()
        return await proceed(call)


@pytest.mark.parametrize("text", [LONG, SHORT])
async def test_a_turn_whose_content_is_forgotten_while_it_is_written_puts_it_again(
    make_bank: MakeBank, text: str
) -> None:
    before = _Before()
    bank = await make_bank(middleware=(before,))
    first, second = await bank.session("a/first"), await bank.session("a/second")
    await first.append([user(text), assistant("I see.")])
    before.happens = lambda: bank.forget("a/first")
    await second.append([user(text), assistant("I see.")])
    assert before.happens is None
    assert (await second.turn(1, resolve=True)).messages[0] == user(text)
    # It is not taken for somebody's own, which would outlast the turn.
    assert [use.id.partition("/")[0] for use in (await bank.collection(Use).list()).values] == ["a"]
    assert (await bank.forget("a/second")).artifacts == 1
    assert [found async for found in bank.artifacts.located()] == []


async def test_a_turn_never_refers_to_what_is_being_deleted(
    make_bank: MakeBank, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The collector counts before the turn is committed, and deletes when it long is."""
    before, counted, told = _Before(), asyncio.Event(), asyncio.Event()
    bank = await make_bank(middleware=(before,))
    session = await bank.session("a/b")
    artifact = Artifact.of(LONG.encode())
    delete = ArtifactContents.delete

    async def late(self: ArtifactContents, path: str) -> None:
        counted.set()
        await told.wait()
        await delete(self, path)

    monkeypatch.setattr(ArtifactContents, "delete", late)
    releasing = list[asyncio.Task[bool]]()

    async def release() -> None:
        releasing.append(asyncio.create_task(bank.artifacts.release(artifact)))
        await counted.wait()

    before.happens = release
    await session.append([user(LONG), assistant("I see.")])
    told.set()
    assert not await releasing[0]
    assert await bank.artifacts.read(artifact) == LONG.encode()
    assert [fault async for fault in bank.artifacts.check(referred=True)] == []


async def test_what_is_said_is_kept_though_it_refers_to_what_was_deleted(bank: Bank) -> None:
    artifact = await told(bank, "a/b")
    said = (await (await bank.session("a/b")).turn(1)).messages
    await bank.forget("a/b")
    session = await bank.session("a/c")
    await session.append(list(said))
    assert (await session.turn(1)).messages == said
    faults = [fault async for fault in bank.artifacts.check(referred=True)]
    told_of = [(fault.artifact, fault.kind) for fault in faults]
    assert told_of == [(artifact.hash, FaultKind.MISSING)]


async def test_two_who_forget_the_same_content_at_once_do_not_leave_it(make_bank: MakeBank) -> None:
    before = _Before(Delete, "perdure_uses")
    bank = await make_bank(middleware=(before,))
    artifact = await told(bank, "a/first")
    await told(bank, "a/second")
    before.happens = lambda: bank.forget("a/second")
    assert (await bank.forget("a/first")).artifacts == 1
    assert before.happens is None
    assert not await bank.artifacts.exists(artifact)

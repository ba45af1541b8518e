"""The synchronous bank does what the asynchronous one does."""

from __future__ import annotations

import asyncio
import inspect
import os
import threading
from pathlib import Path
from typing import Annotated, Any

import msgspec
import pytest

import perdure
from perdure.artifacts import ArtifactStore
from perdure.bank import Bank
from perdure.core.errors import InvalidInput
from perdure.core.messages import assistant, user
from perdure.jobs import Runner
from perdure.storage.collection import Collection
from perdure.storage.finder import QueryBuilder
from perdure.storage.memory_windows import MemoryWindows
from perdure.storage.state_records import StateRecords
from perdure.storage.subscriptions import Subscriptions
from perdure.storage.transaction import Transaction
from perdure.sync import Bridge, open_sync


@perdure.record("sync_items")
class Item(msgspec.Struct, frozen=True):
    id: Annotated[str, perdure.Key()]
    size: Annotated[int, perdure.Indexed()] = 0


BRIDGED = [
    ArtifactStore,
    Bank,
    Collection,
    StateRecords,
    QueryBuilder,
    MemoryWindows,
    Runner,
    Subscriptions,
    Transaction,
]


@pytest.mark.parametrize("cls", BRIDGED, ids=lambda cls: cls.__name__)
def test_every_public_method_is_there_and_waits(cls: Any) -> None:
    """A method that awaits gives its result, one that iterates an iterator; none a coroutine."""
    bridge = Bridge(cls.__new__(cls))
    names = [
        name
        for name, member in inspect.getmembers(cls, inspect.isroutine)
        if not name.startswith("_")
    ]
    assert names
    for name in names:
        method = getattr(bridge, name)
        assert callable(method)
        assert not inspect.iscoroutinefunction(method)
        assert not inspect.isasyncgenfunction(method)


def test_the_same_story_in_both_ways(tmp_path: Path) -> None:
    async def told_async(bank: Any) -> list[object]:
        items = bank.collection(Item)
        await items.put_many([Item(f"a/{n}", n) for n in range(5)])
        async with bank.transaction() as tx:
            await tx.collection(Item).delete("a/0")
        changed = await items.change("a/1", lambda item: Item("a/1", item.size + 10))
        page = await items.list("a/", limit=2)
        found = await items.query().where("size", ">=", 3).order_by("-size").values()
        artifact = await bank.artifacts.put(b"x" * 70_000)
        problems = [problem async for problem in bank.verify()]
        return [changed, page.values, found, artifact, problems]

    def told_sync(bank: Any) -> list[object]:
        items = bank.collection(Item)
        items.put_many([Item(f"a/{n}", n) for n in range(5)])
        with bank.transaction() as tx:
            tx.collection(Item).delete("a/0")
        changed = items.change("a/1", lambda item: Item("a/1", item.size + 10))
        page = items.list("a/", limit=2)
        found = items.query().where("size", ">=", 3).order_by("-size").values()
        artifact = bank.artifacts.put(b"x" * 70_000)
        problems = list(bank.verify())
        return [changed, page.values, found, artifact, problems]

    async def run() -> list[object]:
        async with perdure.open(f"sqlite:///{tmp_path / 'async.db'}") as bank:
            return await told_async(bank)

    with open_sync(f"sqlite:///{tmp_path / 'sync.db'}") as bank:
        assert told_sync(bank) == asyncio.run(run())


def test_forgetting_no_turns_forgets_nothing() -> None:
    with perdure.open_sync("memory://") as bank:
        bank.session("planner/keep").append([user("Keep this."), assistant("I do.")])
        with pytest.raises(InvalidInput, match="leave `turns` out"):
            bank.forget("planner/keep", turns=[])
        assert bank.session("planner/keep").turn("T-1").status == "closed"


def test_an_error_in_a_transaction_undoes_it() -> None:
    with open_sync("memory://") as bank:
        with pytest.raises(ZeroDivisionError):  # noqa: PT012, SIM117  # the block is tested
            with bank.transaction() as tx:
                tx.collection(Item).put(Item("a"))
                raise ZeroDivisionError
        assert bank.collection(Item).get("a") is None


def test_transact_repeats_a_plain_function() -> None:
    with open_sync("memory://") as bank:
        items = bank.collection(Item)
        items.put(Item("counter", 0))
        runs: list[int] = []

        def body(tx: Any) -> int:
            size = tx.collection(Item).get("counter").size
            if not runs:  # somebody else is faster, the first time
                items.put(Item("counter", 10))
            runs.append(size)
            tx.collection(Item).put(Item("counter", size + 1))
            return size + 1

        assert bank.transact(body) == 11
        assert runs == [0, 10]


def test_completion_offers_what_there_is() -> None:
    with perdure.open_sync("memory://") as bank:
        assert {"session", "transact", "collection", "url"} <= set(dir(bank))
        session = bank.session("ada/one")
        assert {"append", "context", "turns", "name"} <= set(dir(session))
        for name in dir(session):
            if not name.startswith("_"):
                getattr(session, name)


async def test_refused_inside_a_running_loop() -> None:
    with pytest.raises(perdure.InvalidInput, match="running event loop"):
        open_sync("memory://")


def test_banks_share_one_loop_thread() -> None:
    with open_sync("memory://") as one, open_sync("memory://") as other:
        one.collection(Item).put(Item("a"))
        assert other.collection(Item).get("a") is None
        loops = [t for t in threading.enumerate() if t.name == "perdure-loop"]
        assert len(loops) == 1


def test_a_forked_child_gets_a_loop_of_its_own(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'bank.db'}"
    with open_sync(url) as bank:
        bank.collection(Item).put(Item("parent"))
    child = os.fork()
    if child == 0:
        status = 1
        try:
            with open_sync(url) as bank:
                status = 0 if bank.collection(Item).get("parent") else 2
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0

"""Mailboxes and leases: numbers, keys, order, and who may write."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest

from perdure.agents.agent_lease import AgentLeases, HeldLease
from perdure.agents.agent_records import AgentLease, AgentMessage, AgentVersion
from perdure.agents.agent_registry import AgentRegistry
from perdure.agents.mailbox import Mailboxes
from perdure.agents.process_identity import this_process
from perdure.core.clock import SECOND
from perdure.core.errors import Conflict, InvalidInput, LeaseLost, NotFound
from perdure.storage.store import Store
from perdure.testing import ManualClock


def message(body: str, key: str | None = None, session: str = "r/main") -> AgentMessage:
    return AgentMessage(id="", agent="r", seq=0, sender_key=key, body=body, session=session)


async def test_messages_are_numbered_and_known_by_their_key(store: Store) -> None:
    boxes = Mailboxes(store)
    made = await asyncio.gather(*(boxes.accept(message(f"m{n}", f"k{n % 5}")) for n in range(20)))
    assert {each.seq for each in made} == {1, 2, 3, 4, 5}
    assert [each.body for each in await boxes.list("r")] != []
    assert len(await boxes.list("r")) == 5
    by_key = {each.sender_key: each.id for each in made}
    assert all(by_key[each.sender_key] == each.id for each in made)


async def test_the_oldest_that_is_due_comes_first(store: Store, clock: ManualClock) -> None:
    boxes = Mailboxes(store)
    first, second, third = [
        await boxes.accept(message(body, session=session))
        for body, session in (("a", "r/one"), ("b", "r/one"), ("c", "r/two"))
    ]
    assert await boxes.next("r") == first
    later = store.now() + 60 * SECOND
    await boxes.change(first.id, lambda m: msgspec.structs.replace(m, due=later))
    assert await boxes.next("r") == third, "one that waits holds up its session, and no other"
    await boxes.change(third.id, lambda m: msgspec.structs.replace(m, state="done"))
    assert await boxes.next("r") is None
    clock.advance(61)
    assert (await boxes.next("r")) is not None
    await boxes.change(first.id, lambda m: msgspec.structs.replace(m, state="asking", turn=1))
    assert await boxes.next("r") == second
    with pytest.raises(InvalidInput, match="has begun"):
        await boxes.cancel(first.id)
    assert (await boxes.cancel(second.id)).state == "cancelled"
    with pytest.raises(NotFound):
        await boxes.get("r/00000099")


async def test_a_late_writer_writes_nothing(store: Store, clock: ManualClock) -> None:
    boxes = Mailboxes(store)
    one, other = AgentLeases(store, seconds=10), AgentLeases(store, seconds=10)
    first = await one.take("r")
    assert first is not None
    assert await one.take("r") is first
    assert await other.take("r") is None
    sent = await boxes.accept(message("a"))
    clock.advance(11)
    second = await other.take("r")
    assert second is not None
    assert second.token > first.token
    with pytest.raises(LeaseLost):
        await boxes.change(sent.id, lambda m: msgspec.structs.replace(m, state="done"), lease=first)
    assert (await boxes.get(sent.id)).state == "accepted"
    await boxes.change(sent.id, lambda m: msgspec.structs.replace(m, state="done"), lease=second)
    lost = list[str]()
    one.on_lost = lost.append
    await one.renew()
    assert lost == ["r"]
    await one.release(first)  # does not take the other's away
    assert await one.take("r") is None
    await other.release(second)
    third = await one.take("r")
    assert third is not None
    assert third.token == second.token + 1


async def test_a_lease_that_is_taken_during_a_transaction_refuses_it(
    store: Store, clock: ManualClock
) -> None:
    """Checked before the write is not enough: the check is part of the commit."""
    boxes = Mailboxes(store)
    one, other = AgentLeases(store, seconds=10), AgentLeases(store, seconds=10)
    first = await one.take("r")
    assert first is not None
    sent = await boxes.accept(message("a"))

    async def taken_meanwhile() -> None:
        async with store.transaction() as transaction:
            await first.check(transaction)
            clock.advance(11)
            assert await other.take("r") is not None
            await transaction.collection(AgentMessage).put(
                msgspec.structs.replace(sent, state="done")
            )

    with pytest.raises(Conflict):
        await taken_meanwhile()
    assert (await boxes.get(sent.id)).state == "accepted"


async def write_lease(store: Store, **fields: Any) -> None:
    whole = {"agent": "r", "token": 7, "owner": "x", "until": store.now() + 600 * SECOND, **fields}
    await store.collection(AgentLease).put(AgentLease(**whole))


def identity(pid: int, started: str) -> dict[str, Any]:
    own = this_process()
    return {"host": own.host, "boot": own.boot, "pid": pid, "process": started}


async def test_a_process_of_another_container_may_live(store: Store) -> None:
    """Its pid means nothing here; after a new start of the host, nobody of before lives."""
    leases, own = AgentLeases(store, seconds=600), this_process()
    other = identity(2**22 + 1, "1") | {"boot": f"{own.boot.partition('/')[0]}/another"}
    await write_lease(store, **other)
    assert await leases.take("r") is None
    await write_lease(store, **(other | {"boot": "earlier/another"}))
    assert await leases.take("r") is not None


async def test_a_dead_process_of_this_host_is_succeeded_at_once(store: Store) -> None:
    leases = AgentLeases(store, seconds=600)
    own = this_process()
    await write_lease(store, **identity(own.pid, own.started))
    assert await leases.take("r") is None, "it lives"
    ended = await asyncio.create_subprocess_exec(sys.executable, "-c", "")
    await ended.wait()
    for pid, started in ((ended.pid, "1"), (own.pid, "another time")):
        await write_lease(store, **identity(pid, started))
        taken = await leases.take("r")
        assert isinstance(taken, HeldLease)
        assert taken.token == 8
        leases.held.clear()
    await write_lease(store, **{**identity(own.pid, own.started), "boot": "another boot"})
    assert await leases.take("r") is not None


async def test_of_another_host_only_the_lease_counts(store: Store, clock: ManualClock) -> None:
    leases = AgentLeases(store, seconds=600)
    await write_lease(store, host="elsewhere", boot="b", pid=1, process="1")
    assert await leases.take("r") is None
    clock.advance(601)
    assert await leases.take("r") is not None


async def test_a_lease_that_nobody_renews_ends_whatever_the_clocks_say(store: Store) -> None:
    leases = AgentLeases(store, seconds=0.05)
    await write_lease(store, host="elsewhere", until=store.now() + 10**9 * SECOND)
    assert await leases.take("r") is None
    await asyncio.sleep(0.06)
    assert await leases.take("r") is not None


async def test_versions_are_made_when_something_changes(store: Store) -> None:
    registry = AgentRegistry(store)
    said = AgentVersion(id="", number=0, prompt="Route.", skills=("mail",), tasks=("routing",))
    record, version = await registry.define("r", said, project="/p", reason="first")
    assert (record.version, version.number, record.project) == (1, 1, "/p")
    assert record.id.startswith("ag_")
    again, _ = await registry.define("r", said, project="/p")
    assert again == record
    changed, _ = await registry.define("r", msgspec.structs.replace(said, prompt="Route well."))
    assert (changed.version, changed.id) == (2, record.id)
    back = await registry.use_version("r", 1)
    assert (back.number, back.prompt, back.reason) == (3, "Route.", "as version 1")
    assert [each.number for each in await registry.versions("r")] == [3, 2, 1]
    assert [each.name for each in await registry.find(skill="mail", task="routing")] == ["r"]
    assert await registry.find(skill="war") == []
    await registry.set_status("r", "paused")
    assert [each.name for each in await registry.find(status="paused")] == ["r"]
    with pytest.raises(Conflict, match="belongs to the project /p"):
        await registry.define("r", said, project="/other")
    wrong: list[Callable[[], Awaitable[object]]] = [
        lambda: registry.get("nobody"),
        lambda: registry.version("r", 9),
        lambda: registry.set_status("nobody", "paused"),
    ]
    for each in wrong:
        with pytest.raises(NotFound):
            await each()

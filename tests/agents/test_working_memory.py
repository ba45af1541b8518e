"""Working memory: bounded in time and size, in the bank or on a Valkey."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import pytest

from perdure.agents.working_memory import WorkingSession, WorkingShare, WorkingSizes
from perdure.bank import Bank
from perdure.config import AgentsConfig, EncryptionConfig
from perdure.core.errors import InvalidConfig, InvalidInput, TooLarge
from perdure.storage.side_store import SideStore
from perdure.testing import ManualClock
from tests.agents.conftest import MakeAgentBank
from tests.agents.tiers import interaction
from tests.valkey_server import ValkeyServer

SESSION = "router/inbox"


@pytest.fixture(scope="module")
def valkey() -> Iterator[ValkeyServer]:
    server = ValkeyServer()
    yield server
    server.dispose()


async def test_it_holds_messages_task_and_context(bank: Bank) -> None:
    working = bank.agent_memory("router").working
    await working.update(SESSION, messages=[("user", "hi")], task={"name": "routing"})
    await working.update(SESSION, messages=[("assistant", "yes")], context={"mail": 7})
    found = await working.get(SESSION)
    assert [(each.role, each.text) for each in found.messages] == [
        ("user", "hi"),
        ("assistant", "yes"),
    ]
    assert (found.task, found.context) == ({"name": "routing"}, {"mail": 7})
    await working.update(SESSION, task={})
    assert (await working.get(SESSION)).task == {}


async def test_it_expires_after_its_last_use(bank: Bank, clock: ManualClock) -> None:
    working = bank.agent_memory("router").working
    await working.update(SESSION, messages=[("user", "hi")])
    clock.advance("59m")
    await working.update(SESSION, messages=[("user", "again")])
    clock.advance("59m")
    assert len((await working.get(SESSION)).messages) == 2
    clock.advance("2m")
    assert (await working.get(SESSION)).messages == ()
    assert await working.sessions() == []


@pytest.mark.parametrize("ttl", ["59m", 3_599, "25h", 86_401, 0])
async def test_a_ttl_outside_of_1_to_24_hours_is_refused(bank: Bank, ttl: object) -> None:
    with pytest.raises(InvalidInput) as refused:
        bank.agent_memory("router", tiers={"working_ttl": ttl})
    assert "hours" in str(refused.value) or "positive" in str(refused.value)
    with pytest.raises(InvalidConfig, match="working_ttl"):
        AgentsConfig(working_ttl=3_599)


@pytest.mark.parametrize("ttl", ["1h", "24h"])
async def test_an_agent_has_a_ttl_of_its_own(bank: Bank, clock: ManualClock, ttl: str) -> None:
    working = bank.agent_memory("router", tiers={"working_ttl": ttl}).working
    await working.update(SESSION, messages=[("user", "hi")])
    clock.advance("61m")
    assert bool((await working.get(SESSION)).messages) == (ttl == "24h")


async def test_the_oldest_messages_go_above_1_mb(bank: Bank) -> None:
    working = bank.agent_memory("router").working
    for number in range(30):
        await working.update(SESSION, messages=[("user", f"{number:02}" + "x" * 50_000)])
    found = await working.get(SESSION)
    assert len(msgspec.msgpack.encode(found)) <= 1_000_000
    kept = [each.text[:2] for each in found.messages]
    assert kept == [f"{number:02}" for number in range(30 - len(kept), 30)]
    assert len(kept) >= 19
    assert sum(share.bytes for share in await working.sessions()) <= 1_000_000


async def test_sessions_that_were_used_longest_ago_go_above_1_mb(
    bank: Bank, clock: ManualClock
) -> None:
    memory, other = bank.agent_memory("router").working, bank.agent_memory("coder").working
    await other.update("coder/a", messages=[("user", "x" * 400_000)])
    for name in "abcd":
        clock.advance("1m")
        await memory.update(f"router/{name}", messages=[("user", name * 300_000)])
    assert [share.session for share in await memory.sessions()] == [
        "router/d",
        "router/c",
        "router/b",
    ]
    assert (await memory.get("router/a")).messages == ()
    assert (await other.get("coder/a")).messages  # another agent has a room of its own


async def test_an_update_writes_as_much_whatever_the_number_of_sessions(
    bank: Bank, clock: ManualClock
) -> None:
    working = bank.agent_memory("router").working

    async def update(name: str) -> None:
        clock.advance("1s")
        await working.update(f"router/{name}", messages=[("user", "Where does this go?")])

    for number in range(60):
        await update(f"s{number:03}")
    row = await bank.collection(WorkingSizes).get("router")
    assert row is not None
    assert len(msgspec.msgpack.encode(row)) < 100  # not a share for each session
    assert row.bytes == sum(share.bytes for share in await working.sessions())
    clock.advance("61m")  # what has expired is counted no more
    for name in ("new", "newer", "newest"):
        await update(name)
    assert len(await working.sessions()) == 3
    row = await bank.collection(WorkingSizes).get("router")
    assert row is not None
    assert row.bytes == sum(share.bytes for share in await working.sessions())
    assert await bank.collection(WorkingShare).query().count() == 3
    await working.clear("router/new")
    assert [share.session for share in await working.sessions()] == [
        "router/newest",
        "router/newer",
    ]


async def test_what_never_fits_is_refused_and_nothing_is_lost(bank: Bank) -> None:
    working = bank.agent_memory("router").working
    await working.update(SESSION, messages=[("user", "hi")])
    with pytest.raises(TooLarge, match="1,000,000"):
        await working.update(SESSION, context={"mail": "x" * 1_000_001})
    assert len((await working.get(SESSION)).messages) == 1
    # A single message that is too large goes like the oldest ones.
    await working.update(SESSION, messages=[("user", "x" * 1_000_001)], task={"name": "t"})
    found = await working.get(SESSION)
    assert (found.messages, found.task) == ((), {"name": "t"})


async def test_what_is_no_plain_data_is_refused(bank: Bank) -> None:
    memory = bank.agent_memory("router")
    for odd in ({"x": object()}, {"x": 2**70}):
        with pytest.raises(InvalidInput):
            await memory.working.update(SESSION, context=odd)
        with pytest.raises(InvalidInput):
            await memory.store(interaction(1, context=odd))
    for wrong in ({"cost": "x"}, {"latency": None}, {"recalled": ("a", 5)}, {"request": None}):
        with pytest.raises(InvalidInput):
            await memory.store(interaction(1, **wrong))
    assert (await memory.stats()).interactions == 0


async def test_it_is_an_agents_own(bank: Bank) -> None:
    with pytest.raises(InvalidInput, match="no session of coder"):
        await bank.agent_memory("coder").working.get(SESSION)
    with pytest.raises(InvalidInput, match="no session of coder"):
        await bank.agent_memory("coder").working.update(SESSION, messages=[("user", "hi")])


async def test_secrets_are_masked(bank: Bank) -> None:
    secret = "sk-ant-api03-" + "Ab1" * 31 + "AA"
    working = bank.agent_memory("router").working
    await working.update(SESSION, messages=[("user", f"use {secret}")], context={"key": secret})
    assert secret not in str(await working.get(SESSION))


async def test_on_a_valkey_nothing_of_it_is_in_the_bank(
    make_bank: MakeAgentBank, valkey: ValkeyServer
) -> None:
    bank = await make_bank(working_store=valkey.url())
    memory = bank.agent_memory("router")
    await memory.store(interaction())
    await memory.working.update(SESSION, messages=[("user", "hi")], task={"name": "routing"})
    assert (await memory.working.get(SESSION)).task == {"name": "routing"}
    assert len(await memory.working.sessions()) == 2
    for cls in (WorkingSession, WorkingShare, WorkingSizes):
        assert await bank.collection(cls).query().count() == 0
    with valkey.client() as client:
        assert any(client.pttl(key) > 0 for key in client.scan_iter())
    await bank.forget_agent("router")
    assert (await memory.working.get(SESSION)).messages == ()
    assert await memory.working.sessions() == []


async def test_a_whole_encrypted_file_goes_with_no_second_store(
    make_bank: MakeAgentBank, valkey: ValkeyServer
) -> None:
    bank = await make_bank()
    hidden = EncryptionConfig(key="env:NOBODY", whole_file=True)
    config = msgspec.structs.replace(bank.config, encryption=hidden)
    with pytest.raises(InvalidConfig, match="in clear"):
        await SideStore(bank.store, valkey.url(), config).opened()


async def test_a_valkey_that_is_away_stops_nothing_else(
    make_bank: MakeAgentBank, caplog: pytest.LogCaptureFixture
) -> None:
    bank = await make_bank(working_store="valkey://127.0.0.1:9/0")
    memory = bank.agent_memory("router")
    await memory.store(interaction())
    context = await memory.build_context("Where to?", session="router/interactions")
    assert context.working is None
    assert (await memory.stats()).interactions == 1
    assert "working memory of router" in caplog.text

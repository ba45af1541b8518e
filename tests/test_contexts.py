"""Contexts: sessions and state records as the seed of Perdure's storage asks for them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

import perdure
from perdure import StateRecord
from perdure.bank import Bank
from perdure.bank.bank_transaction import BankTransaction
from perdure.bank.contexts import Contexts, ContextView
from perdure.history.log_records import SessionRecord
from perdure.storage.memory_windows import fold_oldest
from perdure.storage.subscriptions import EventReceived
from perdure.sync import open_sync
from perdure.testing.manual_clock import ManualClock

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
TALK = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "hi"}]


@pytest.fixture
def now() -> ManualClock:
    return ManualClock(NOON)


@pytest.fixture
async def bank(store_url: str, now: ManualClock) -> AsyncIterator[Bank]:
    async with Bank(store_url, clock=now) as opened:
        yield opened


def ids(found: list[Any]) -> list[str]:
    return [each.id for each in found]


async def populate(bank: Bank, now: ManualClock) -> None:
    """Two sessions and two other contexts, a day apart; one of each is a chat."""
    for name, kind in (("ada/1", "chat"), ("ada/2", "session")):
        session = await bank.session(name, type=kind, tags={"team": "core"})
        now.advance("30s")
        await session.append(TALK)
        now.advance("1d")
    for name, kind in (("ada/3", "chat"), ("notes", "plan")):
        await bank.contexts.save(StateRecord(id=name, type=kind, state={"step": 3}))
        now.advance("1d")


# Queries, figures, transactions -----------------------------------------------------------------


async def test_the_query_of_the_seed(bank: Bank, now: ManualClock) -> None:
    await bank.session("ada/old", type="chat")
    now.advance("30d")
    await populate(bank, now)
    await bank.windows.append("ada/3", ["asked", "found"])
    contexts = await (
        bank.contexts()
        .where("type", "=", "chat")
        .where("created", ">", NOON + timedelta(days=7))
        .order_by("last_active", "desc")
        .limit(10)
        .include(["working_memory", "metadata"])
        .execute()
    )
    assert ids(contexts) == ["ada/3", "ada/1"]
    plain, session = contexts
    assert [entry.text for entry in plain.working_memory] == ["asked", "found"]
    assert (plain.state, plain.metadata, plain.message_count) == ({"step": 3}, {"tags": {}}, 2)
    assert session.working_memory == []
    assert (session.message_count, session.duration) == (2, 30.0)
    assert session.metadata["agent"] == "ada"
    assert session.metadata["tags"] == {"team": "core"}
    assert session.last_active == NOON + timedelta(days=30, seconds=30)  # to the moment


async def test_orders_limits_and_tags_go_over_both(bank: Bank, now: ManualClock) -> None:
    await populate(bank, now)
    query = bank.contexts().order_by("-created")
    assert ids(await query.execute()) == ["notes", "ada/3", "ada/2", "ada/1"]
    assert ids(await query.limit(2).offset(1).execute()) == ["ada/3", "ada/2"]
    assert ids(await bank.contexts().order_by("type", "id").execute()) == [
        "ada/1",
        "ada/3",
        "notes",
        "ada/2",
    ]
    assert ids(await bank.contexts().tagged(team="core").order_by("id").execute()) == [
        "ada/1",
        "ada/2",
    ]
    assert await bank.contexts().count() == 4
    first = await query.first()
    assert isinstance(first, ContextView)
    assert first.metadata == {}


async def test_the_figures_of_the_seed(bank: Bank, now: ManualClock) -> None:
    await populate(bank, now)
    await bank.windows.append("notes", ["one", "two", "three"])
    await bank.windows.compress("notes", fold_oldest(keep=1))
    stats = await (
        bank.contexts()
        .aggregate(
            {
                "total_messages": {"$sum": "message_count"},
                "avg_duration": {"$avg": "duration"},
                "by_type": {"$group": "type"},
            }
        )
        .execute()
    )
    assert stats == {
        "total_messages": 2 + 2 + 3,
        "avg_duration": 15.0,
        "by_type": {"chat": 2, "session": 1, "plan": 1},
    }
    chats = bank.contexts().where("type", "=", "none")
    figures = {"n": {"$sum": "message_count"}, "longest": {"$max": "duration"}}
    assert await chats.aggregate(figures).execute() == {"n": 0, "longest": None}
    with pytest.raises(perdure.InvalidQuery, match="no figure of contexts"):
        bank.contexts().aggregate({"n": {"$sum": "type"}})


async def test_the_transaction_of_the_seed(bank: Bank, now: ManualClock) -> None:
    heard: list[EventReceived] = []

    async def hear(event: EventReceived) -> None:
        heard.append(event)

    await bank.subscribe("ear", hear, ["context.*"])
    await bank.session("ada/1")
    await bank.windows.append("ada/1", "asked")

    async def body(tx: BankTransaction) -> None:
        context = await tx.contexts.get("ada/1")
        assert context is not None
        assert [entry.text for entry in await tx.memories.get("ada/1")] == ["asked"]
        updated = msgspec.structs.replace(context, state={"step": 4})
        await tx.contexts.update("ada/1", updated)
        await tx.memories.append("ada/1", ["found", "mended"])
        await tx.memories.append("ada/1", "told")
        await tx.events.emit("context.updated", {"context": "ada/1"})
        assert (await tx.contexts().first()).state == {"step": 4}  # type: ignore[union-attr]

    await bank.transact(body)
    await bank.settle()
    found = await bank.contexts.get("ada/1")
    assert found is not None
    assert found.state == {"step": 4}
    texts = [entry.text for entry in await bank.windows.get("ada/1")]
    assert texts == ["asked", "found", "mended", "told"]
    assert [event.payload for event in heard] == [{"context": "ada/1"}]


async def test_all_of_a_transaction_or_nothing(bank: Bank, now: ManualClock) -> None:
    await populate(bank, now)

    async def body(tx: BankTransaction) -> None:
        await tx.contexts.save(StateRecord(id="ada/9", type="chat"))
        await tx.contexts.archive("ada/1")
        await tx.memories.append("ada/1", "asked")
        await tx.events.emit("context.updated")
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await bank.transact(body)
    assert await bank.contexts.get("ada/9") is None
    assert await bank.windows.get("ada/1") == []
    assert ids(await bank.contexts.get_by_type("chat")) == ["ada/3", "ada/1"]


async def test_entries_appended_at_once_from_two_sides_are_all_there(bank: Bank) -> None:
    async def body(tx: BankTransaction) -> None:
        await tx.memories.append("a/b", "mine")
        if not await bank.windows.get("a/b"):
            await bank.windows.append("a/b", "theirs")

    await bank.transact(body)
    assert [entry.text for entry in await bank.windows.get("a/b")] == ["theirs", "mine"]


async def test_no_hint_advises_what_is_refused(bank: Bank) -> None:
    with pytest.raises(perdure.NotIndexed) as refused:
        bank.contexts().where("state", "=", "x")
    assert refused.value.hint is not None
    assert "Indexed()" not in refused.value.hint
    for name in ("archived", "created", "id", "last_active", "type"):
        assert name in refused.value.hint
        bank.contexts().order_by(name)
    with pytest.raises(perdure.NotIndexed) as refused:
        bank.contexts().where("updated", ">", NOON)
    assert "@record" not in str(refused.value.hint)
    with pytest.raises(perdure.NotIndexed, match="no field 'agent'"):
        bank.contexts().where("agent", "=", "ada")
    with pytest.raises(perdure.InvalidQuery, match="working_memory and metadata"):
        bank.contexts().include("everything")


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        (lambda c: c().aggregate("x"), "figures must be names and values, not a str"),
        (lambda c: c().aggregate(None), "figures must be names and values, not None"),
        (lambda c: c().aggregate({"n": "$sum"}), "n must be names and values, not a str"),
        (lambda c: c().aggregate({"n": None}), "n must be names and values, not None"),
        (lambda c: c().aggregate({"x": "y"}), "x must be names and values, not a str"),
        (lambda c: c().include(5), "names are texts, not an int"),
        (lambda c: c().include(None), "names are texts, not None"),
        (lambda c: c().include([["a"]]), "names is text, not a list"),
        (lambda c: c().order_by(5), "fields is text, not an int"),
        (lambda c: c().order_by("created", "down"), "no field 'down'.*asc or desc"),
        (lambda c: c.get_active("x"), "since is a datetime, not a str"),
        (lambda c: c.get_active("1h"), "since is a datetime, not a str"),
        (lambda c: c.get_active(5), "since is a datetime, not an int"),
        (lambda c: c.get_active(None), "since is a datetime, not None"),
        (lambda c: c.save(None), "record is a StateRecord, not None"),
        (lambda c: c.update("notes", None), "record is a StateRecord, not None"),
    ],
)
async def test_what_is_of_another_type_is_refused(
    asked: Callable[[Contexts], Any], told: str
) -> None:
    async with Bank("memory://") as bank:
        with pytest.raises(perdure.PerdureError, match=told):
            await asked(bank.contexts)


async def test_the_key_is_the_id_and_a_fork_counts_its_own(bank: Bank, now: ManualClock) -> None:
    await populate(bank, now)
    backwards = ["notes", "ada/3", "ada/2", "ada/1"]
    assert ids(await bank.contexts().order_by("-key").execute()) == backwards
    assert ids(await bank.contexts().order_by("key").execute()) == backwards[::-1]
    fork = await (await bank.existing_session("ada/1")).fork("ada/fork")
    await fork.append(TALK)
    found = await bank.contexts().where("id", "=", "ada/fork").include("metadata").first()
    assert found is not None
    assert (found.message_count, found.metadata["turns"]) == (2, 2)


# Sessions are contexts --------------------------------------------------------------------------


async def test_sessions_are_found_by_type_and_last_use(bank: Bank, now: ManualClock) -> None:
    first, second = await bank.session("ada/1"), await bank.session("ada/2")
    await bank.session("ada/chat", type="chat")
    now.advance("1h")
    hour_later = NOON + timedelta(hours=1)
    assert await bank.contexts.get_active(hour_later) == []
    await second.append(TALK)
    now.advance("10s")
    await first.append(TALK)
    assert ids(await bank.contexts.get_by_type("session")) == ["ada/1", "ada/2"]
    now.advance("20s")
    # Less than a minute after the last: nothing but the head is written, and it counts.
    await second.append(TALK)
    assert ids(await bank.contexts.get_active(hour_later)) == ["ada/2", "ada/1"]
    assert ids(await bank.contexts.get_active(hour_later + timedelta(seconds=20))) == ["ada/2"]
    assert ids(await bank.contexts.get_active(NOON, type="chat")) == ["ada/chat"]
    assert isinstance(await bank.contexts.get("ada/1"), SessionRecord)


async def test_an_archived_session_is_hidden_until_somebody_appends(
    bank: Bank, now: ManualClock
) -> None:
    session = await bank.session("ada/1", state={"goal": "g"})
    await session.append(TALK)
    archived = await bank.contexts.archive("ada/1")
    assert archived.archived == NOON
    assert await bank.contexts.get_by_type("session") == []
    assert await bank.contexts.get_active(NOON - timedelta(days=1)) == []
    assert await bank.sessions() == []
    assert ids(await bank.contexts.get_by_type("session", archived=True)) == ["ada/1"]
    assert len(await session.turns()) == 1  # nothing is lost
    now.advance("1s")
    await session.append(TALK)  # it was open all the time, and does not know
    (found,) = await bank.contexts.get_active(NOON)
    assert (found.archived, found.state) == (None, {"goal": "g"})
    assert [turn.number for turn in await session.turns()] == [1, 2]
    await bank.contexts.archive("ada/1")
    assert (await bank.contexts.touch("ada/1")).archived is None
    with pytest.raises(perdure.InvalidInput, match="no context 'nobody'"):
        await bank.contexts.archive("nobody")


async def test_one_id_is_one_context(bank: Bank) -> None:
    session = await bank.session("ada/1", state={"goal": "g"})
    await session.append(TALK)
    await bank.contexts.save(StateRecord(id="ada/1", type="chat", state={"goal": "h"}))
    assert (await bank.existing_session("ada/1")).state == {"goal": "h"}
    assert len(await session.turns()) == 1
    assert await bank.collection(StateRecord).get("ada/1") is None
    # And the other way round.
    await bank.contexts.save(StateRecord(id="ada/2", type="chat", state={"a": 1, "b": 1}))
    taken = await bank.session("ada/2", state={"b": 2})
    assert (taken.record.type, taken.state) == ("chat", {"a": 1, "b": 2})
    assert set(ids(await bank.contexts.get_by_type("chat"))) == {"ada/1", "ada/2"}
    await bank.contexts.save(StateRecord(id="ada/4", type="chat"))
    with pytest.raises(perdure.Conflict, match="There is a context ada/4 already"):
        await session.fork("ada/4")
    with pytest.raises(perdure.InvalidInput, match="no context"):
        await bank.contexts.save(msgspec.structs.replace(taken.record, id="ada/3"))
    with pytest.raises(perdure.InvalidInput, match="keeps its id"):
        await bank.contexts.update("ada/1", taken.record)


async def test_secrets_are_masked_in_contexts_too(bank: Bank) -> None:
    secret = "ghp_" + "aB3dE5fG7hJ9kL1mN3pQ5rS7tU9vW1xY3zA5"
    await bank.contexts.save(StateRecord(id="ada/1", type="chat", state={"key": secret}))
    found = await bank.contexts.get("ada/1")
    assert found is not None
    assert secret not in str(found.state)


def test_the_same_without_await() -> None:
    with open_sync("memory://") as bank:
        bank.session("ada/1")
        with bank.transaction() as tx:
            tx.memories.append("ada/1", ["one", "two"])
            tx.events.emit("context.updated")
            tx.contexts.archive("ada/1")
        (found,) = bank.contexts().where("type", "=", "session").include("working_memory").execute()
        assert [entry.text for entry in found.working_memory] == ["one", "two"]
        assert found.archived is not None
        figures = bank.contexts().aggregate({"by_type": {"$group": "type"}})
        assert figures.execute() == {"by_type": {"session": 1}}

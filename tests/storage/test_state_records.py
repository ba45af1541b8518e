from __future__ import annotations

from datetime import timedelta

import pytest

import perdure
from perdure.core import clock as time
from perdure.storage.state_records import StateRecord, StateRecords
from perdure.storage.store import Store
from perdure.testing.manual_clock import ManualClock


@perdure.record("chats")
class Chat(StateRecord, frozen=True, kw_only=True):
    topic: str = ""


async def test_contexts_are_found_by_type_most_recent_first(
    store: Store, clock: ManualClock
) -> None:
    contexts = StateRecords(store, StateRecord)
    for number, kind in enumerate(["chat", "plan", "chat", "chat"]):
        clock.advance(1)
        await contexts.save(StateRecord(id=f"ada/{number}", type=kind, state={"n": number}))
    clock.advance(1)
    await contexts.touch("ada/0")
    found = await contexts.get_by_type("chat")
    assert [context.id for context in found] == ["ada/0", "ada/3", "ada/2"]
    assert found[0].state == {"n": 0}


async def test_active_contexts_are_those_in_use_since(store: Store, clock: ManualClock) -> None:
    contexts = StateRecords(store, StateRecord)
    await contexts.save(StateRecord(id="old", type="chat"))
    clock.advance(3_600)
    since = time.to_datetime(clock()) - timedelta(minutes=1)
    await contexts.save(StateRecord(id="new", type="chat"))
    await contexts.save(StateRecord(id="other", type="plan"))
    assert {context.id for context in await contexts.get_active(since)} == {"new", "other"}
    assert [context.id for context in await contexts.get_active(since, type="chat")] == ["new"]


async def test_archived_contexts_are_kept_and_come_back(store: Store, clock: ManualClock) -> None:
    contexts = StateRecords(store, StateRecord)
    await contexts.save(StateRecord(id="a", type="chat", state={"step": 3}))
    archived = await contexts.archive("a")
    assert archived.archived is not None
    assert await contexts.get_by_type("chat") == []
    assert await contexts.get_active(time.to_datetime(0)) == []
    assert [c.id for c in await contexts.get_by_type("chat", archived=True)] == ["a"]
    again = await contexts.touch("a")
    assert again.state == {"step": 3}
    assert [c.id for c in await contexts.get_by_type("chat")] == ["a"]


async def test_a_context_that_is_not_there_is_a_clear_error(store: Store) -> None:
    with pytest.raises(perdure.InvalidInput, match="no record 'nobody'"):
        await StateRecords(store, StateRecord).archive("nobody")


async def test_context_types_have_fields_of_their_own(store: Store) -> None:
    chats = StateRecords(store, Chat)
    await chats.save(Chat(id="ada/1", type="chat", topic="engines", tags={"team": "blue"}))
    found = await chats.query().tagged(team="blue").first()
    assert found is not None
    assert found.value.topic == "engines"
    version = (await chats.fetch("ada/1")).version  # type: ignore[union-attr]
    with pytest.raises(perdure.Conflict):
        await chats.save(found.value, perdure.Options(expected=version + 1))

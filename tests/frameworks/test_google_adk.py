"""Google ADK: the services do what its own in-memory and SQLite services do, and a real runner."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest
from google.adk.agents import BaseAgent
from google.adk.errors.already_exists_error import AlreadyExistsError
from google.adk.errors.session_not_found_error import SessionNotFoundError
from google.adk.events import Event, EventActions
from google.adk.memory.memory_entry import MemoryEntry
from google.adk.runners import Runner
from google.adk.sessions import BaseSessionService, InMemorySessionService
from google.adk.sessions.base_session_service import GetSessionConfig
from google.adk.sessions.sqlite_session_service import SqliteSessionService
from google.genai import types

from perdure.bank import Bank
from perdure.integrations.google_adk import PerdureMemoryService, PerdureSessionService

OWNER: Any = {"app_name": "ships", "user_id": "ann"}


def said(author: str, text: str, **more: Any) -> Event:
    role = "user" if author == "user" else "model"
    content = types.Content(role=role, parts=[types.Part(text=text)])
    return Event(author=author, content=content, invocation_id="i", id=Event.new_id(), **more)


def called() -> list[Event]:
    call = types.FunctionCall(id="c1", name="look", args={"where": "in the eastern harbour"})
    answer = types.FunctionResponse(id="c1", name="look", response={"result": "Anna and Berta"})
    image = types.Blob(data=bytes(range(256)) * 4, mime_type="image/png")
    parts = [types.Part(text="I look.", thought=True), types.Part(function_call=call)]
    results = [types.Part(function_response=answer), types.Part(inline_data=image)]
    return [
        Event(author="a", id="e1", content=types.Content(role="model", parts=parts)),
        Event(author="a", id="e2", content=types.Content(role="user", parts=results)),
        Event(author="a", id="e3", actions=EventActions(state_delta={"seen": ["Anna"]})),
    ]


async def story(service: BaseSessionService) -> list[Any]:
    """What one service says at each step, without what differs by chance."""
    told: list[Any] = []
    first = {"mood": "calm", "app:port": "east", "user:name": "Ann", "temp:x": 1}
    session = await service.create_session(**OWNER, session_id="one", state=first)
    with pytest.raises(AlreadyExistsError):
        await service.create_session(**OWNER, session_id="one")
    told.append({k: v for k, v in session.state.items() if not k.startswith("temp:")})
    deltas: list[dict[str, Any]] = [{"mood": "busy"}, {"user:n": 1}, {"app:n": 2}, {"temp:y": 3}]
    for number, delta in enumerate(deltas):
        await service.append_event(
            session,
            said(
                "user" if number % 2 == 0 else "agent",
                f"Sentence number {number} about the ships",
                actions=EventActions(state_delta=delta),
                timestamp=1_900_000_000.0 + number,
            ),
        )
    told.append(session.state)
    session.last_update_time = 2_000_000_000.0
    for event in called():
        event.timestamp = 2_000_000_000.0
        await service.append_event(session, event)
    await service.append_event(session, said("agent", "half a sen", partial=True))
    for config in (
        None,
        GetSessionConfig(num_recent_events=0),
        GetSessionConfig(num_recent_events=3),
        GetSessionConfig(after_timestamp=1_900_000_002.0),
    ):
        found = await service.get_session(**OWNER, session_id="one", config=config)
        assert found is not None
        told.append([e.model_dump(exclude={"id"}, exclude_none=True) for e in found.events])
    kept = await service.get_session(**OWNER, session_id="one")
    assert kept is not None
    told.append({k: v for k, v in kept.state.items() if not k.startswith("temp:")})
    await service.create_session(app_name="ships", user_id="bob", session_id="two")
    for user in ("ann", "bob", None):
        listed = (await service.list_sessions(app_name="ships", user_id=user)).sessions
        told.append(
            sorted(
                (
                    s.id,
                    s.user_id,
                    len(s.events),
                    {k: v for k, v in s.state.items() if k[:5] != "temp:"},
                )
                for s in listed
            )
        )
    told.append(await service.get_user_state(**OWNER))
    told.append((await service.list_sessions(app_name="other")).sessions)
    await service.delete_session(**OWNER, session_id="one")
    told.append(await service.get_session(**OWNER, session_id="one"))
    with pytest.raises(SessionNotFoundError):
        await service.append_event(session, said("user", "Too late"))
    return told


async def test_it_does_what_its_own_services_do(url: str, tmp_path: Path) -> None:
    async with PerdureSessionService(url) as ours:
        told = await story(ours)
    for theirs in (InMemorySessionService(), SqliteSessionService(str(tmp_path / "theirs.db"))):
        for one, other in zip(told, await story(theirs), strict=True):
            assert one == other


async def test_events_are_turns_in_every_process(url: str, bank: Bank) -> None:
    service = PerdureSessionService(url)
    session = await service.create_session(**OWNER, session_id="one")
    for event in (said("user", "Which ships are there?"), *called(), said("a", "Anna and Berta.")):
        await service.append_event(session, event)
        await service.append_event(session.model_copy(deep=True), event)  # sent again
    async with PerdureSessionService(url) as other:
        again = await other.get_session(**OWNER, session_id="one")
    mine = await service.get_session(**OWNER, session_id="one")
    assert again is not None
    assert mine is not None
    assert again.events == mine.events
    assert len(again.events) == 5
    assert again.state == {"seen": ["Anna"]}
    stored = await bank.session(service.session_name(**OWNER, session_id="one"))
    assert stored.name == "ships@ann/one"
    assert [turn.prompt for turn in await stored.turns()] == ["Which ships are there?"]
    await service.close()


async def test_eight_writers_at_once_are_never_stale(url: str) -> None:
    async with PerdureSessionService(url) as service:
        await service.create_session(**OWNER, session_id="one")

        async def write(writer: int) -> None:
            for number in range(5):
                session = await service.get_session(**OWNER, session_id="one")
                assert session is not None
                delta = {f"w{writer}": number}
                event = said("user", f"{writer}: sentence {number}")
                event.actions.state_delta = delta
                await service.append_event(session, event)

        await asyncio.gather(*(write(number) for number in range(8)))
        session = await service.get_session(**OWNER, session_id="one")
        assert session is not None
        assert len(session.events) == 40
        assert session.state == {f"w{number}": 4 for number in range(8)}


async def test_a_user_is_forgotten_with_state(url: str, bank: Bank) -> None:
    async with PerdureSessionService(bank) as service:
        await service.create_session(**OWNER, session_id="one", state={"user:name": "Ann"})
        await bank.forget_agent("ships@ann")
        assert await service.get_user_state(**OWNER) == {}
        assert (await service.list_sessions(app_name="ships")).sessions == []


class Echo(BaseAgent):
    async def _run_async_impl(self, ctx: Any) -> AsyncGenerator[Event, None]:
        asked = ctx.user_content.parts[0].text
        found = await ctx.memory_service.search_memory(
            app_name=ctx.app_name, user_id=ctx.user_id, query=asked
        )
        known = " | ".join(each.content.parts[0].text for each in found.memories)
        yield Event(
            author=self.name,
            invocation_id=ctx.invocation_id,
            content=types.Content(role="model", parts=[types.Part(text=f"I know: {known}")]),
        )


async def test_a_runner_remembers_across_sessions_and_not_across_users(bank: Bank) -> None:
    sessions, memory = PerdureSessionService(bank), PerdureMemoryService(bank)
    await memory.add_memory(
        **OWNER,
        memories=[MemoryEntry(content=types.Content(parts=[types.Part(text="Ann is a pilot.")]))],
    )
    runner = Runner(
        app_name="ships", agent=Echo(name="echo"), session_service=sessions, memory_service=memory
    )

    async def ask(user: str, session: str, text: str) -> str:
        if await sessions.get_session(app_name="ships", user_id=user, session_id=session) is None:
            await sessions.create_session(app_name="ships", user_id=user, session_id=session)
        words = types.Content(role="user", parts=[types.Part(text=text)])
        replies = [
            event.content.parts[0].text
            async for event in runner.run_async(user_id=user, session_id=session, new_message=words)
        ]
        await bank.settle()
        return replies[-1]

    await ask("ann", "one", "The Berta leaves the harbour at seven.")
    assert "leaves the harbour at seven" in await ask("ann", "two", "When does the Berta leave?")
    assert "Ann is a pilot." in await ask("ann", "two", "Is Ann a pilot?")
    assert "seven" not in await ask("bob", "one", "When does the Berta leave?")
    kept = await sessions.get_session(**OWNER, session_id="one")
    assert kept is not None
    await memory.add_session_to_memory(kept)
    assert len(await bank.sessions(agent="ships@ann")) == 2

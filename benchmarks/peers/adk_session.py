"""Google ADK: `SqliteSessionService`, whose messages are events, added one by one.

Its other service for SQLite, `DatabaseSessionService`, goes through SQLAlchemy and is slower.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from typing import Any, Self

from google.adk.events.event import Event
from google.adk.sessions.base_session_service import GetSessionConfig
from google.adk.sessions.session import Session as AdkSession
from google.adk.sessions.sqlite_session_service import SqliteSessionService
from google.genai import types

from benchmarks.conversations import Chat, arguments

_OWNER = {"app_name": "bench", "user_id": "user"}
#: What `append_event` runs.
_INSERT = (
    "INSERT INTO events (id, app_name, user_id, session_id, invocation_id, timestamp, event_data)"
    " VALUES (?, ?, ?, ?, ?, ?, ?)"
)


class Session:
    packages = ("google-adk",)

    def __init__(self, file: str, service: SqliteSessionService, session: AdkSession) -> None:
        self._file = file
        self._service = service
        self._session = session

    @classmethod
    async def open(cls, file: str, name: str) -> Self:
        service = SqliteSessionService(file)
        session = await service.get_session(**_OWNER, session_id=name)
        if session is None:
            session = await service.create_session(**_OWNER, session_id=name)
        return cls(file, service, session)

    @staticmethod
    def native(messages: list[Chat]) -> list[Any]:
        return [_event(message) for message in messages]

    async def fill(self, batches: list[list[Any]]) -> None:
        """Insert the rows that `append_event` would, in one transaction."""
        events = [event for batch in batches for event in batch]
        place = (*_OWNER.values(), self._session.id)
        with closing(sqlite3.connect(self._file)) as db, db:
            db.executemany(
                _INSERT,
                (
                    (
                        e.id,
                        *place,
                        e.invocation_id,
                        e.timestamp,
                        e.model_dump_json(exclude_none=True),
                    )
                    for e in events
                ),
            )

    async def add(self, items: list[Any]) -> None:
        for event in items:
            await self._service.append_event(self._session, event)

    async def newest(self, count: int) -> list[Any]:
        session = await self._service.get_session(
            **_OWNER,
            session_id=self._session.id,
            config=GetSessionConfig(num_recent_events=count),
        )
        assert session is not None
        return session.events

    async def clear(self) -> None:
        await self._service.delete_session(**_OWNER, session_id=self._session.id)
        self._session = await self._service.create_session(**_OWNER, session_id=self._session.id)

    async def close(self) -> None:
        await self._service.close()


def _event(message: Chat) -> Event:
    role = "model" if message["role"] == "assistant" else "user"
    content = types.Content(role=role, parts=_parts(message))
    author = "user" if message["role"] == "user" else "agent"
    return Event(id=Event.new_id(), author=author, invocation_id="e-bench", content=content)


def _parts(message: Chat) -> list[types.Part]:
    if message["role"] == "tool":
        answer = {"result": message["content"]}
        named = {"id": message["tool_call_id"], "name": message.get("name", "tool")}
        return [types.Part(function_response=types.FunctionResponse(**named, response=answer))]
    parts = []
    if thought := message.get("reasoning_content"):
        parts.append(types.Part(text=thought, thought=True))
    if message["content"]:
        parts.append(types.Part(text=message["content"]))
    for call in message.get("tool_calls", ()):
        function = call["function"]
        asked = {"id": call["id"], "name": function["name"]}
        given = arguments(function["arguments"])
        parts.append(types.Part(function_call=types.FunctionCall(**asked, args=given)))
    return parts

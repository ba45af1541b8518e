"""Google ADK: a session service and a memory service over one bank.

    services = "sqlite:///memory.db"
    runner = Runner(
        app_name="ships",
        agent=agent,
        session_service=PerdureSessionService(services),
        memory_service=PerdureMemoryService(services),
    )

The sessions of a user are those of the agent ``app@user``: recall never sees another user's. Events
are messages of turns; what nobody said (changes of state) are events among them. State is kept in
records of the session, the user and the app.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import msgspec
from msgspec.structs import replace

from perdure.bank.bank import Bank
from perdure.core.clock import to_datetime
from perdure.core.messages import Message, Part, Reasoning, Role, Text, ToolCall, ToolResult, Usage
from perdure.history.log_records import SessionRecord
from perdure.history.turn_log import Written
from perdure.integrations.framework_bank import FrameworkStore, missing, readable, session_name
from perdure.integrations.framework_messages import (
    all_messages,
    arguments_text,
    fold,
    folded_event,
    parts_of,
    unfold_all,
)
from perdure.integrations.recent_items import RecentItems
from perdure.sessions.framework_records import FrameworkRecord
from perdure.sessions.session import Session
from perdure.storage.collection import Collection
from perdure.storage.transaction import Transaction
from perdure.sync import SyncBank

try:
    from google.adk.errors.already_exists_error import AlreadyExistsError
    from google.adk.errors.session_not_found_error import SessionNotFoundError
    from google.adk.events.event import Event
    from google.adk.memory.base_memory_service import BaseMemoryService, SearchMemoryResponse
    from google.adk.memory.memory_entry import MemoryEntry
    from google.adk.sessions import Session as AdkSession
    from google.adk.sessions.base_session_service import (
        BaseSessionService,
        GetSessionConfig,
        ListSessionsResponse,
    )
    from google.genai import types
    from pydantic_core import to_jsonable_python
except ImportError as exc:
    raise missing("google-adk", "google-adk") from exc

_NAME = "google-adk"
_HITS = 10
_APP, _USER, _TEMPORARY = "app:", "user:", "temp:"
S = TypeVar("S")
State = dict[str, Any]


def agent_name(app: str, user: str) -> str:
    """The agent whose sessions are this user's."""
    plain = f"{app}@{user}"
    if readable(app) == app and readable(user) == user and "@" not in app + user:
        return plain
    digest = hashlib.sha256(f"{app}\0{user}".encode()).hexdigest()[:12]
    return f"{readable(app).replace('@', '-')[:24]}@{readable(user)[:24]}-{digest}"


class StoredState(msgspec.Struct, frozen=True):
    """A session's own state, and when its newest event was (seconds)."""

    state: State = {}
    time: float = 0.0


class PerdureSessionService(FrameworkStore, BaseSessionService):
    """Sessions, events and state. `bank` is an open one, or a URL that the first use opens.

    Any number of processes may append to one session: no copy of it is ever stale. An event that
    is sent again is not written again. Deleting forgets for good.
    """

    def __init__(self, bank: Bank | SyncBank | str | None = None) -> None:
        super().__init__(bank)
        self._recent: dict[str, RecentItems] = {}
        self._locks: dict[str, asyncio.Lock] = {}

    def session_name(self, app_name: str, user_id: str, session_id: str) -> str:
        """The session in the bank: to recall from it, to show it, to fork it."""
        return session_name(agent_name(app_name, user_id), session_id.strip())

    async def create_session(
        self,
        *,
        app_name: str,
        user_id: str,
        state: State | None = None,
        session_id: str | None = None,
    ) -> AdkSession:
        id = (session_id or "").strip() or str(uuid.uuid4())
        return await self._access.run(self._create(app_name, user_id, id, state or {}))

    async def get_session(
        self,
        *,
        app_name: str,
        user_id: str,
        session_id: str,
        config: GetSessionConfig | None = None,
    ) -> AdkSession | None:
        found = await self._access.run(self._get(app_name, user_id, session_id.strip(), config))
        if found is None:
            return None
        session, forms = found
        session.events = [Event.model_validate(form) for form in forms]
        return session

    async def list_sessions(
        self, *, app_name: str, user_id: str | None = None
    ) -> ListSessionsResponse:
        return ListSessionsResponse(sessions=await self._access.run(self._list(app_name, user_id)))

    async def delete_session(self, *, app_name: str, user_id: str, session_id: str) -> None:
        name = self.session_name(app_name, user_id, session_id)
        await self._access.run(self._access.forget(name))

    async def get_user_state(self, *, app_name: str, user_id: str) -> State:
        return await self._access.run(self._scoped(_user_key(app_name, user_id)))

    async def append_event(self, session: AdkSession, event: Event) -> Event:
        if event.partial:
            return event
        self._apply_temp_state(session, event)
        event = self._trim_temp_delta_state(event)
        if not await self._access.run(self._append(session, event)):
            return event
        session.last_update_time = event.timestamp
        return self._commit_event_to_session(session, event)

    # All below runs on the bank's loop.

    async def _create(self, app: str, user: str, id: str, state: State) -> AdkSession:
        name = self.session_name(app, user, id)
        if await self._access.existing(name) is not None:
            raise AlreadyExistsError(f"Session with id {id} already exists.")
        await self._access.session(name, framework=_NAME, app=app, user=user, session=id)
        now = time.time()
        async with (await self._access.bank()).store.transaction() as transaction:
            await self._change(transaction, (app, user), name, state, now)
        return await self._made(app, user, id, name)

    async def _get(
        self, app: str, user: str, id: str, config: GetSessionConfig | None
    ) -> tuple[AdkSession, list[State]] | None:
        name = self.session_name(app, user, id)
        session = await self._access.existing(name)
        if session is None:
            return None
        count = config.num_recent_events if config else None
        forms = [] if count == 0 else await self._newest(session, count)
        if config and config.after_timestamp is not None:
            forms = [form for form in forms if form["timestamp"] >= config.after_timestamp]
        return await self._made(app, user, id, name), forms

    async def _made(self, app: str, user: str, id: str, name: str) -> AdkSession:
        keys = [f"{name}/state", _user_key(app, user), _app_key(app)]
        own, of_user, of_app = await (await self._records()).get_many(keys)
        stored = _decoded(own, StoredState)
        state = {
            **stored.state,
            **{_USER + key: value for key, value in _plain(of_user).items()},
            **{_APP + key: value for key, value in _plain(of_app).items()},
        }
        return AdkSession(
            app_name=app, user_id=user, id=id, state=state, last_update_time=stored.time
        )

    async def _list(self, app: str, user: str | None) -> list[AdkSession]:
        records = (await self._access.bank()).collection(SessionRecord).query()
        if user is not None:
            records = records.where("agent", "=", agent_name(app, user))
        else:
            begin = agent_name(app, "x").partition("@")[0] + "@"
            records = records.where("agent", ">=", begin).where("agent", "<", begin + "\uffff")
        found = [each.state for each in await records.values() if each.state.get("app") == app]
        made = [
            await self._made(
                app,
                each["user"],
                each["session"],
                self.session_name(app, each["user"], each["session"]),
            )
            for each in found
            if user is None or each["user"] == user
        ]
        return sorted(made, key=lambda each: (each.last_update_time, each.user_id, each.id))

    async def _append(self, given: AdkSession, event: Event) -> bool:
        """Whether it is new."""
        name = self.session_name(given.app_name, given.user_id, given.id)
        session = await self._access.existing(name)
        if session is None:
            raise SessionNotFoundError(f"Session {given.id} not found.")
        form = to_jsonable_python(
            event.model_dump(exclude_none=True), bytes_mode="base64", fallback=str
        )
        key = hashlib.sha256(msgspec.json.encode(form, order="deterministic")).hexdigest()[:32]
        delta = form.get("actions", {}).get("state_delta") or {}
        recent = self._recent.setdefault(name, RecentItems())
        is_new, owner = False, (given.app_name, given.user_id)

        async def within(transaction: Transaction, written: Written) -> None:
            nonlocal is_new
            is_new = True
            await recent.note(transaction, written)
            await self._change(transaction, owner, name, delta, event.timestamp)

        async with self._locks.setdefault(name, asyncio.Lock()):
            await session.append([to_canonical(form)], key=key, within=within)
            if is_new:
                recent.extend([form])
        return is_new

    async def _change(
        self, transaction: Transaction, owner: tuple[str, str], name: str, delta: State, now: float
    ) -> None:
        """Apply a change of state in a transaction. Secrets in it are masked."""
        services = (await self._access.bank()).services
        delta = services.mask_data(to_jsonable_python(delta, fallback=str))
        records = transaction.collection(FrameworkRecord)
        own = {k: v for k, v in delta.items() if not k.startswith((_APP, _USER, _TEMPORARY))}
        for prefix, key in ((_USER, _user_key(*owner)), (_APP, _app_key(owner[0]))):
            changed = {k[len(prefix) :]: v for k, v in delta.items() if k.startswith(prefix)}
            if changed:
                merged = _plain(await records.get(key)) | changed
                await records.put(FrameworkRecord(key, msgspec.json.encode(merged)))
        key = f"{name}/state"
        before = _decoded(await records.get(key), StoredState)
        merged_own = StoredState(before.state | own, max(before.time, now))
        await records.put(FrameworkRecord(key, msgspec.json.encode(merged_own)))

    async def _newest(self, session: Session, count: int | None) -> list[State]:
        recent = self._recent.setdefault(session.name, RecentItems())
        return await recent.read(session, count, _forms)

    async def _scoped(self, key: str) -> State:
        return _plain(await (await self._records()).get(key))

    async def _records(self) -> Collection[FrameworkRecord]:
        return (await self._access.bank()).collection(FrameworkRecord)


class PerdureMemoryService(FrameworkStore, BaseMemoryService):
    """Search by recall, over all sessions of a user and the memories that were added.

    Sessions that a `PerdureSessionService` keeps in the same bank are known as they are said:
    adding them adds nothing. Those of another service are kept as turns.
    """

    async def add_session_to_memory(self, session: AdkSession) -> None:
        await self._access.run(
            self._add(session.app_name, session.user_id, session.id, session.events)
        )

    async def add_events_to_memory(
        self,
        *,
        app_name: str,
        user_id: str,
        events: Sequence[Event],
        session_id: str | None = None,
        custom_metadata: Mapping[str, object] | None = None,
    ) -> None:
        await self._access.run(self._add(app_name, user_id, session_id or "events", events))

    async def add_memory(
        self,
        *,
        app_name: str,
        user_id: str,
        memories: Sequence[MemoryEntry],
        custom_metadata: Mapping[str, object] | None = None,
    ) -> None:
        async def add() -> None:
            bank = await self._access.bank()
            for each in memories:
                text = "\n".join(part.text for part in each.content.parts or () if part.text)
                await bank.memories.add(agent_name(app_name, user_id), text)

        await self._access.run(add())

    async def delete_memory(
        self, *, app_name: str, user_id: str, memory_id: str | None = None
    ) -> None:
        async def delete() -> None:
            bank = await self._access.bank()
            await bank.memories.delete(str(memory_id), agent=agent_name(app_name, user_id))

        if memory_id:
            await self._access.run(delete())

    async def search_memory(
        self, *, app_name: str, user_id: str, query: str
    ) -> SearchMemoryResponse:
        hits = await self._access.run(self._search(agent_name(app_name, user_id), query))
        return SearchMemoryResponse(
            memories=[
                MemoryEntry(
                    id=hit.key,
                    content=types.Content(role="user", parts=[types.Part(text=hit.text)]),
                    timestamp=to_datetime(hit.time).isoformat() if hit.time else None,
                )
                for hit in hits
            ]
        )

    async def _add(self, app: str, user: str, id: str, events: Sequence[Event]) -> None:
        name = session_name(agent_name(app, user), id)
        session = await self._access.session(name, app=app, user=user, session=id)
        there = {form["id"] for form in unfold_all(await all_messages(session), _NAME)}
        new = [
            to_jsonable_python(
                event.model_dump(exclude_none=True), bytes_mode="base64", fallback=str
            )
            for event in events
            if event.content and event.content.parts and event.id not in there
        ]
        if new:
            await session.append([to_canonical(form) for form in new])

    async def _search(self, agent: str, query: str) -> Sequence[Any]:
        bank = await self._access.bank()
        newest = bank.collection(SessionRecord).query().where("agent", "=", agent)
        found = await newest.order_by("-last_active").limit(1).values()
        if not query.strip():
            return []
        # Whoever has memories only still needs a session to ask from.
        name = found[0].id if found else f"{agent}/memories"
        session = await self._access.session(name)
        return (await session.recall(query, limit=_HITS)).hits


def _forms(messages: list[Message]) -> list[State]:
    return unfold_all(messages, _NAME)


def to_canonical(form: State) -> Message:
    """The message of an event, in plain data."""
    given = (form.get("content") or {}).get("parts") or []
    parts: list[Part] = [part for each in given for part in _parts(each)]
    if not parts:
        return folded_event(_NAME, "state", form)
    role: Role = "user" if form.get("author") == "user" else "assistant"
    if any(isinstance(part, ToolResult) for part in parts):
        role = "tool"
    usage = form.get("usage_metadata") or {}
    counted = None
    if usage:
        counted = Usage(
            usage.get("prompt_token_count"),
            usage.get("candidates_token_count"),
            cache_read=usage.get("cached_content_token_count"),
        )
    said = Message(role, tuple(parts), usage=counted)
    if role == "user" and form.get("long_running_tool_ids"):
        said = replace(said, injected=True)
    return fold(said, _NAME, form)


def _parts(given: State) -> list[Part]:
    if isinstance(given.get("text"), str):
        text = given["text"]
        return [Reasoning(text) if given.get("thought") else Text(text)]
    if call := given.get("function_call"):
        arguments = arguments_text(call.get("args") or {})
        return [ToolCall(call.get("id") or "", call.get("name") or "", arguments)]
    if result := given.get("function_response"):
        told = result.get("response") or {}
        (only,) = told.values() if len(told) == 1 else (told,)
        text = only if isinstance(only, str) else msgspec.json.encode(told).decode()
        name = result.get("name") or ""
        return [ToolResult(result.get("id") or "", (Text(text),), name=name)]
    if data := given.get("inline_data"):
        block = {"data": data.get("data"), "media_type": data.get("mime_type")}
        return parts_of([block])
    return []


def _user_key(app: str, user: str) -> str:
    return f"{agent_name(app, user)}/#state/user"


def _app_key(app: str) -> str:
    return f"{agent_name(app, 'x').partition('@')[0]}/#state/{readable(app)}"


def _plain(record: FrameworkRecord | None) -> State:
    return _decoded(record, dict)


def _decoded(record: FrameworkRecord | None, type: Callable[..., S]) -> S:
    return type() if record is None else msgspec.json.decode(record.content, type=type)

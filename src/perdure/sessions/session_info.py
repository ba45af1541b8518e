"""Facts about sessions, and how one is found or made."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import Any

import msgspec

from perdure.core.clock import to_datetime
from perdure.core.errors import Conflict, InvalidInput, NotFound
from perdure.core.turns import Position
from perdure.history.log_records import Head, Link, SessionRecord, TurnCount, agent_of
from perdure.history.turn_reader import position
from perdure.storage.options import Options
from perdure.storage.state_records import StateRecord
from perdure.storage.store import Store


class SessionInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What a session is and holds. Rounds, messages and tokens are those of its own turns."""

    name: str
    agent: str
    type: str
    turns: int
    rounds: int
    messages: int
    tokens: int
    active: datetime | None
    archived: datetime | None
    #: When its newest message was said; None if there is none.
    newest: datetime | None
    parent: str | None
    forked_at: int | None
    link: Link | None
    state: dict[str, Any]


async def describe_session(store: Store, record: SessionRecord, head: Head | None) -> SessionInfo:
    counts = store.collection(TurnCount).query().prefix(f"{record.id}/")
    (sums,) = await counts.aggregate(tokens="sum tokens", rounds="sum rounds")
    head = head or Head(record.id)
    return SessionInfo(
        name=record.id,
        agent=record.agent,
        type=record.type,
        turns=head.turn,
        rounds=sums["rounds"] or 0,
        messages=head.messages,
        tokens=sums["tokens"] or 0,
        active=record.last_active,
        archived=record.archived,
        newest=to_datetime(head.said) if head.said else None,
        parent=record.parent,
        forked_at=record.forked_at or None,
        link=record.link,
        state=record.state,
    )


async def open_or_create(
    store: Store,
    plain: Callable[[Mapping[str, Any]], dict[str, Any]],
    name: str,
    *,
    strategy: str,
    budget: int,
    profile: str | dict[str, float],
    type: str,
    state: Mapping[str, Any],
    tags: Mapping[str, str],
    link: Link | None,
) -> SessionRecord:
    """The record of this session, created as given if there is none. `plain` masks what
    is stored.
    """
    agent = agent_of(name)
    records = store.collection(SessionRecord)
    found = await records.get(name)
    if found is not None:
        return found
    # A context of this name becomes the session: one id, one context.
    before = await store.collection(StateRecord).get(name) or StateRecord(id=name, type=type)
    record = SessionRecord(
        id=name,
        type=before.type if type == "session" else type,
        state=before.state | plain(state),
        tags=before.tags | plain(tags),
        last_active=to_datetime(store.now()),
        agent=agent,
        strategy=strategy,
        budget=budget,
        profile=profile,
        started_by=None if link is None else link.session,
        link=link,
    )
    once = Options(expected=0)
    try:
        async with store.transaction() as transaction:
            await transaction.collection(SessionRecord).put(record, once)
            await transaction.collection(Head).put(Head(name, time=store.now()), once)
            if before.last_active or before.archived:
                await transaction.collection(StateRecord).delete(name)
    except Conflict:  # another process made it
        found = await records.get(name)
        if found is None:
            raise
        return found
    return record


async def existing_session(store: Store, name: str) -> SessionRecord:
    """Raises `NotFound` if there is none."""
    agent_of(name)
    record = await store.collection(SessionRecord).get(name)
    if record is None:
        raise NotFound(
            f"There is no session {name}.", hint="`perdure sessions` lists those there are."
        )
    return record


def turn_numbers(
    turns: str | int | Position | Iterable[str | int | Position], record: SessionRecord
) -> list[int]:
    """Sorted, each once. Raises `InvalidInput` if none is named, or a round."""
    # A position is a tuple, and of a text or bytes nobody means each letter.
    one = isinstance(turns, str | bytes | Position) or not isinstance(turns, Iterable)
    named: Any = [turns] if one else turns
    places = [position(turn, record) for turn in named]
    if not places:
        raise InvalidInput(
            "No turn is named, and nothing was forgotten.",
            hint="Name a turn, or leave `turns` out to forget the whole session.",
        )
    for place in places:
        if place.round is not None:
            raise InvalidInput(
                f"{place} is a round, and a turn is forgotten as a whole.",
                hint=f"Name T-{place.turn}.",
            )
    return sorted({place.turn for place in places})


async def agents_with_sessions(store: Store) -> list[str]:
    """All agents that have sessions, by name."""
    rows = await store.collection(SessionRecord).query().group_by("agent").aggregate(all="count")
    return sorted(row["agent"] for row in rows)


async def list_sessions(store: Store, *, agent: str | None, archived: bool) -> list[SessionInfo]:
    """The most recently used first; archived ones only if asked."""
    finder = store.collection(SessionRecord).query().order_by("-last_active")
    if agent is not None:
        finder = finder.where("agent", "=", agent)
    if not archived:
        finder = finder.where("archived", "=", None)
    records = await finder.values()
    heads = await store.collection(Head).get_many([record.id for record in records])
    return [
        await describe_session(store, record, head)
        for record, head in zip(records, heads, strict=True)
    ]

"""What is told of a bank and of its sessions."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import msgspec

from perdure.core.clock import to_datetime
from perdure.history.log_records import Head, Link, SessionRecord, TurnCount
from perdure.storage.rows import Size
from perdure.storage.store import Store


class Info(msgspec.Struct, frozen=True):
    """What a bank is and holds."""

    url: str
    backend: str
    capabilities: list[str]
    artifacts: str
    collections: list[Size]


class SessionInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What a session is and holds. Rounds, messages and tokens of a fork are those of its own."""

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
    """What a session is, where it stands, and what was counted of it."""
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
        active=record.active,
        archived=record.archived,
        newest=to_datetime(head.said) if head.said else None,
        parent=record.parent,
        forked_at=record.forked_at or None,
        link=record.link,
        state=record.state,
    )

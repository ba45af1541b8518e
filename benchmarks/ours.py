"""Perdure as a contestant: as it comes, with metrics and background jobs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import msgspec

import perdure
from perdure.bank import Bank
from perdure.config import Config, GatewayConfig, RecallConfig, StorageConfig
from perdure.storage.collection import Collection

_FILL = 500


@perdure.record("messages", serializer="msgpack")
class Message(msgspec.Struct, frozen=True):
    """What agents store most: found by session and number. Written as our own records are."""

    id: Annotated[str, perdure.Key()]
    role: str
    text: Annotated[str, perdure.Compressed()]


@perdure.record("json_messages")
class JsonMessage(Message, frozen=True):
    """The same as a user's record is written by default."""


def open_bank(
    path: Path,
    *,
    compression: bool = True,
    gateway: GatewayConfig | None = None,
    recall: bool = False,
) -> Bank:
    """A bank in this file, with the default configuration whatever the user's says."""
    storage = StorageConfig(compression=compression)
    # What recall adds has benchmarks of its own: index, recall_latency, deadline, disk.
    config = Config(
        storage=storage, gateway=gateway or GatewayConfig(), recall=RecallConfig(on=recall)
    )
    return perdure.open(f"sqlite:///{path}", config=config)


def messages(session: str, texts: Sequence[str], first: int = 0) -> list[Message]:
    """Records for these texts, numbered within the session."""
    return [
        Message(f"{session}/{number:08d}", "user", text)
        for number, text in enumerate(texts, start=first)
    ]


async def fill(collection: Collection[Message], session: str, texts: Sequence[str]) -> None:
    """Put a session there before anything is measured."""
    records = messages(session, texts)
    for start in range(0, len(records), _FILL):
        await collection.put_many(records[start : start + _FILL])

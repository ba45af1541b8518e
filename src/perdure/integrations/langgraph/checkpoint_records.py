"""What a checkpoint's record holds."""

from __future__ import annotations

import msgspec

from perdure.integrations.langgraph.thread_messages import Span

#: A value as the graph's serializer wrote it.
Typed = tuple[str, bytes]


class StoredValue(msgspec.Struct, frozen=True, omit_defaults=True):
    """The value of a channel: one of the three."""

    spans: list[Span] | None = None
    inline: Typed | None = None
    apart: str = ""  # the key of its record


class StoredCheckpoint(msgspec.Struct, frozen=True, omit_defaults=True):
    """A checkpoint without the values of its channels."""

    checkpoint: Typed
    metadata: Typed
    parent: str = ""
    values: dict[str, StoredValue] = {}


class StoredWrite(msgspec.Struct, frozen=True, array_like=True):
    """What a task wrote to a channel."""

    task: str
    path: str
    index: int
    channel: str
    value: Typed


pack = msgspec.msgpack.Encoder().encode
read_checkpoint = msgspec.msgpack.Decoder(StoredCheckpoint).decode
read_writes = msgspec.msgpack.Decoder(list[StoredWrite]).decode

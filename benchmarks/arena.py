"""The same records in a bank, in a bare table and in the peer's database, before a contest."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from benchmarks import ours
from benchmarks.harness import Block
from benchmarks.ours import Message
from benchmarks.peers import Peer
from benchmarks.raw import Raw
from benchmarks.texts import Texts
from perdure.storage.collection import Collection

#: Bytes of a message.
SIZE = 700
SESSIONS = tuple(f"session-{number:02d}" for number in range(20))
#: Where blocks are written; removed after each, so that the number of records stays.
BENCH = "bench"


class Arena:
    """Contestants with so many records each."""

    def __init__(
        self, records: int, collection: Collection[Message], raw: Raw, peer: Peer | None, file: Path
    ) -> None:
        self.records = records
        self.collection = collection
        self.raw = raw
        self.peer = peer
        self._file = file

    @property
    def per_session(self) -> int:
        return self.records // len(SESSIONS)

    def texts(self, number: int, count: int) -> list[str]:
        """New messages for the block of a round."""
        return Texts(self.records * 1_000 + number).messages(count, SIZE)

    def ask(self, operation: str, **details: Any) -> Any:
        """Have the peer do something with its database of this size."""
        assert self.peer is not None
        return self.peer.ask(operation, bank=str(self._file), **details)

    def timed(self, operation: str, **details: Any) -> Block:
        """Have the peer do a block of work on its database of this size."""
        assert self.peer is not None
        return self.peer.timed(operation, bank=str(self._file), **details)

    async def fill(self) -> None:
        for seed, session in enumerate(SESSIONS):
            texts = Texts(seed).messages(self.per_session, SIZE)
            await ours.fill(self.collection, session, texts)
            self.raw.fill(session, texts)
            if self.peer is not None:
                self.ask("fill", session=session, made=made(len(texts), SIZE, seed))

    async def clear(self) -> None:
        """Remove what was written to `BENCH` in our bank."""
        await self.collection.query().prefix(f"{BENCH}/").delete()


def made(count: int, size: int, seed: int) -> dict[str, Any]:
    """How a peer is told which messages to make: the same that `Texts` gives for the seed."""
    return {"kind": "messages", "count": count, "size": size, "seed": seed}


@asynccontextmanager
async def open_arena(
    folder: Path, records: int, peer: Peer | None, *, compression: bool = False
) -> AsyncIterator[Arena]:
    """Make and fill the contestants' databases.

    Nobody else compresses, so we do not either, unless it is asked for.
    """
    name = f"{records}-compressed" if compression else str(records)
    raw = Raw(folder / f"raw-{name}.db")
    try:
        async with ours.open_bank(folder / f"ours-{name}.db", compression=compression) as bank:
            collection = bank.collection(Message)
            arena = Arena(records, collection, raw, peer, folder / f"peer-{records}.db")
            await arena.fill()
            await bank.settle()
            yield arena
    finally:
        raw.close()

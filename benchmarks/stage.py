"""The same session in a bank and in the peers' databases, before a contest of turns.

The peers run in heats first, with few turns; the fastest of them goes on to all sizes. The others
take some twenty times as long by then, and grow: a LangGraph checkpoint holds the conversation, so
one more turn at 10k would write 50 MB; LlamaIndex and ADK look through the whole session
to find its newest messages.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import conversations, ours
from benchmarks.harness import Block, Contestant, Tally, alternate
from benchmarks.peers import Peer
from perdure.bank import Bank
from perdure.sessions.session import Session

SESSION = "bench/a"
#: Turns that are made at once, and of those, appended at once.
_MADE, _FILL = 2_000, 100


class Stage:
    """A session of so many turns, ours and a peer's."""

    def __init__(
        self, turns: int, bank: Bank, session: Session, peer: Peer | None, file: Path
    ) -> None:
        self.turns = turns
        self.bank = bank
        self.session = session
        self.peer = peer
        self._file = file

    def new_turns(self, number: int, count: int) -> list[list[conversations.Chat]]:
        """Turns for the block of a round."""
        return conversations.turns(**self._spec(number, count))

    def append(self, number: int, count: int, *, apart: bool = False) -> Block:
        """Have the peer add turns to its session; `apart`, message by message."""
        made = {"kind": "turns", **self._spec(number, count)}
        return self._timed("append", session=SESSION, made=made, apart=apart)

    def load(self, count: int, messages: int) -> Block:
        """Have the peer read the newest messages of its session so many times."""
        return self._timed("read", sessions=[SESSION] * count, limit=messages)

    def _timed(self, operation: str, **details: Any) -> Block:
        assert self.peer is not None
        return self.peer.timed(operation, bank=str(self._file), **details)

    def _spec(self, number: int, count: int) -> dict[str, int]:
        return {"count": count, "seed": self.turns * 1_000 + number}


@asynccontextmanager
async def open_stage(folder: Path, turns: int, peer: Peer | None) -> AsyncIterator[Stage]:
    """Make and fill our bank and the peer's database; everything is counted when it begins."""
    file = folder / f"peer-{turns}.db"
    async with ours.open_bank(bank_file(folder, turns), recall=True) as bank:
        session = await bank.session(SESSION)
        async with asyncio.TaskGroup() as both:  # there is nothing to measure yet
            both.create_task(_fill_ours(bank, session, turns))
            if peer is not None:
                both.create_task(asyncio.to_thread(_fill_peer, peer, file, turns))
        yield Stage(turns, bank, session, peer, file)


def bank_file(folder: Path, turns: int) -> Path:
    return folder / f"ours-{turns}.db"


async def _fill_ours(bank: Bank, session: Session, turns: int) -> None:
    for made in _made(turns):
        new = conversations.bulk(**made)
        for start in range(0, len(new), _FILL):
            messages = [message for turn in new[start : start + _FILL] for message in turn]
            await session.append(messages, count=True)
    await bank.settle()


def _fill_peer(peer: Peer, file: Path, turns: int) -> None:
    for made in _made(turns):
        peer.ask("fill", bank=str(file), session=SESSION, made={"kind": "bulk", **made})


def _made(turns: int) -> Iterator[dict[str, Any]]:
    """How to make the turns that are there before a contest, some at a time. The newest have tool
    output; to shorten and index that of all would take half an hour.
    """
    for start in range(0, turns, _MADE):
        yield {"count": min(_MADE, turns - start), "seed": start, "talk": start + _MADE < turns}


async def heats(
    folder: Path, everyone: Sequence[Peer], turns: int, operation: str, *, quick: bool, **work: Any
) -> dict[str, Tally]:
    """Let all peers do a little of the operation with few turns; the tallies by module."""
    rounds = 1 if quick else 4
    contestants: dict[str, Contestant] = {}
    for peer in everyone:
        file = folder / f"heat-{peer.module}.db"
        _fill_peer(peer, file, turns)
        contestants[peer.module] = partial(_heat, peer, operation, bank=str(file), **work)
    tallies = await alternate(contestants, rounds, quick=quick)
    for peer in everyone:
        peer.ask("close", bank=str(folder / f"heat-{peer.module}.db"))
    return tallies


async def _heat(peer: Peer, operation: str, number: int, **work: Any) -> Block:
    del number  # the work is the same each time
    return peer.timed(operation, **work)


def fastest(everyone: Sequence[Peer], tallies: Mapping[str, Tally]) -> Peer | None:
    """The winner of the heats, if anybody ran."""
    return min(everyone, key=lambda peer: tallies[peer.module].mean, default=None)

"""Verifies the log: every chain is derived again from what is stored."""

from __future__ import annotations

import heapq
from collections.abc import AsyncIterator

from perdure.core.errors import Corrupted
from perdure.history import chain
from perdure.history.log_records import Head, SessionRecord, TurnPiece, piece_key
from perdure.storage.store import Progress, Store
from perdure.storage.verify import Problem


async def verify_chains(store: Store, progress: Progress | None = None) -> AsyncIterator[Problem]:
    """Yields each place where a session's chain does not close. Memory does not grow with its
    length.
    """
    done = 0
    async for record in store.collection(SessionRecord).walk():
        async for problem in _chain_of(store, record):
            yield problem
        done += 1
        if progress is not None:
            progress("following chains", done, 0)


async def _chain_of(store: Store, record: SessionRecord) -> AsyncIterator[Problem]:
    head = await store.collection(Head).get(record.id)
    if head is None:
        yield Problem(record.id, "has no head: where it stands is not known")
        return
    async for problem in _roots_of(store, record):
        yield problem
    start = record.line[-1].piece if record.line else 0
    follower = chain.Follower(record.root, start + 1)
    living = newest = record.forked_at  # turns
    try:
        async for piece in _in_order(store, record, start):
            newest = max(newest, piece.turn)
            living = living if piece.forgotten else max(living, piece.turn)
            fault = follower.step(piece)
            if fault:
                yield Problem(f"perdure_turns/{piece.id}", fault)
    except Corrupted as exc:
        yield Problem(record.id, f"its chain cannot be followed to the end: {exc.message}")
        return
    missing = head.pieces + 1 - follower.expected
    if missing > 0:
        yield Problem(record.id, f"the chain ends too early: {missing} of its pieces missing")
    elif missing < 0:
        yield Problem(record.id, f"the chain goes on behind its head: {-missing} pieces too many")
    elif follower.previous != (head.link or record.root or chain.GENESIS):
        yield Problem(record.id, "the chain does not end where its head says")
    elif not living <= head.turn <= newest:
        yield Problem(record.id, f"its head says that T-{head.turn} is the newest: T-{newest} is")


async def _roots_of(store: Store, record: SessionRecord) -> AsyncIterator[Problem]:
    """What is wrong with the turns that a fork has from others: each owner checks its own."""
    names = list(dict.fromkeys(stretch.session for stretch in record.line))
    found = await store.collection(SessionRecord).get_many(names)
    for name, owner in zip(names, found, strict=True):
        if owner is None:
            yield Problem(record.id, f"shares turns of {name}, which is gone")
    if record.line:
        shared = record.line[-1]
        key = piece_key(shared.session, shared.turn, shared.piece)
        last = await store.collection(TurnPiece).get(key)
        if last is not None and last.link != record.root:
            yield Problem(record.id, f"its chain does not begin where it left {shared.session}")


async def _in_order(store: Store, record: SessionRecord, start: int) -> AsyncIterator[TurnPiece]:
    """A session's own pieces in the order of the chain. They are stored by turn, which is nearly
    the same: late additions wait in a heap. Pieces before the start are leftovers of a rerooting
    that was interrupted, and are skipped.
    """
    early = list[tuple[int, str, TurnPiece]]()
    expected = start + 1
    async for piece in store.collection(TurnPiece).walk(f"{record.id}/"):
        if piece.number <= start:
            continue
        heapq.heappush(early, (piece.number, piece.id, piece))
        while early and early[0][0] <= expected:
            number, _, found = heapq.heappop(early)
            expected = max(expected, number + 1)
            yield found
    while early:
        yield heapq.heappop(early)[2]

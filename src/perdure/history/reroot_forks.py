"""Rerooting: a fork gets the turns that it shares with its parent as its own, so the parent can go.

Pieces, uses, counts and renditions are copied; then the fork and its own forks are changed. A crash
in between leaves copies that nobody reads until it is repeated.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

import msgspec

from perdure.core import messages as canonical
from perdure.core.errors import InvalidInput
from perdure.history import chain
from perdure.history.log_records import (
    Owned,
    SessionRecord,
    SharedTurns,
    TurnCount,
    TurnPiece,
    Use,
    turn_key,
)
from perdure.history.renditions.rendition_records import (
    Rendition,
    Tiny,
    rendition_key,
    tiny_without_later,
    without_later,
)
from perdure.history.turn_log import use_of
from perdure.history.turn_reader import TurnReader
from perdure.storage.store import Store

_STEP = 50  # Turns that are copied at once.


class Rerooting:
    """Gives forks turns of their own. `heirs` are called after copying, before the change, with
    what a fork gets and its name; `followers` after the change, with the forks' names.
    """

    def __init__(
        self,
        store: Store,
        reader: TurnReader,
        heirs: Sequence[Callable[[SharedTurns, str], Awaitable[None]]],
        followers: Sequence[Callable[[str], Awaitable[None]]],
    ) -> None:
        self._store = store
        self._reader = reader
        self._heirs = heirs
        self._followers = followers

    async def give(self, child: SessionRecord, parent: str) -> None:
        """Copy the turns that a fork has from its parent. Repeatable."""
        source = await self._store.collection(SessionRecord).get(parent)
        if source is None:
            return
        stretches = [stretch for stretch in child.line if stretch.session == parent]
        if stretches:
            await self._copy(source, child.id, stretches[-1])
            for inherit in self._heirs:
                await inherit(stretches[-1], child.id)
        await self._rename(child.id, source)
        for follow in self._followers:
            await follow(child.id)

    async def _copy(self, source: SessionRecord, child: str, shared: SharedTurns) -> None:
        """Pieces written to later turns before these were complete are copied as tombstones: the
        chain runs through them.
        """
        start = source.line[-1].piece if source.line else 0
        missing = set(range(start + 1, shared.piece + 1))
        first = source.forked_at + 1
        while missing:
            last = first + _STEP - 1
            if first <= shared.turn:
                last = min(last, shared.turn)
            found = await self._reader.pieces(Owned(source.id, first, last, shared.piece))
            copies = [_copied(piece, child, whole=piece.turn <= shared.turn) for piece in found]
            uses = [
                use_of(artifact, child, copy.turn)
                for copy in copies
                for artifact in canonical.references(copy.messages())
            ]
            await self._store.collection(TurnPiece).put_many(copies)
            await self._store.collection(Use).put_many(uses)
            await self._copy_counts(source.id, child, first, min(last, shared.turn))
            await self._copy_renditions(source.id, child, copies)
            missing -= {piece.number for piece in found}
            first = last + 1
            if first > shared.turn and not found:
                return  # damaged: `verify` tells

    async def _copy_counts(self, source: str, child: str, first: int, last: int) -> None:
        keys = [turn_key(source, turn) for turn in range(first, last + 1)]
        counts = self._store.collection(TurnCount)
        await counts.put_many(
            msgspec.structs.replace(found, id=f"{child}/{found.id.rpartition('/')[2]}")
            for found in await counts.get_many(keys)
            if found is not None
        )

    async def _copy_renditions(self, source: str, child: str, pieces: Sequence[TurnPiece]) -> None:
        """Copy what was made of these pieces, not what was made of more than the fork shares."""
        said = dict[tuple[int, int], int]()
        for piece in pieces:
            if not piece.forgotten:
                for round, messages in piece.by_round():
                    place = piece.turn, round
                    said[place] = said.get(place, 0) + len(messages)
        rows = self._store.collection(Rendition)
        found = await rows.get_many(rendition_key(source, *place) for place in said)
        await rows.put_many(
            without_later(row, messages, rendition_key(child, *place))
            for (place, messages), row in zip(said.items(), found, strict=True)
            if row is not None
        )
        turns = dict[int, int]()
        for (turn, _), count in said.items():
            turns[turn] = turns.get(turn, 0) + count
        tinies = self._store.collection(Tiny)
        short = await tinies.get_many(turn_key(source, turn) for turn in turns)
        await tinies.put_many(
            tiny_without_later(row, messages, turn_key(child, turn))
            for (turn, messages), row in zip(turns.items(), short, strict=True)
            if row is not None
        )

    async def _rename(self, child: str, source: SessionRecord) -> None:
        records = self._store.collection(SessionRecord)

        def rerooted(found: SessionRecord | None) -> SessionRecord:
            if found is None:
                raise InvalidInput(f"{child} is gone.", hint="Try again.")
            line = tuple(s for s in found.line if s.session != source.id)
            root = source.root if len(line) < len(found.line) else found.root
            return msgspec.structs.replace(found, parent=source.parent, line=line, root=root)

        await records.change(child, rerooted)
        waiting = [child]
        while waiting:
            for fork in await records.query().where("parent", "=", waiting.pop()).values():

                def renamed(
                    found: SessionRecord | None, fork: SessionRecord = fork
                ) -> SessionRecord:
                    found = found or fork
                    line = tuple(
                        msgspec.structs.replace(s, session=child) if s.session == source.id else s
                        for s in found.line
                    )
                    return msgspec.structs.replace(found, line=line)

                await records.change(fork.id, renamed)
                waiting.append(fork.id)


def _copied(piece: TurnPiece, session: str, *, whole: bool) -> TurnPiece:
    kept = piece if whole or piece.forgotten else chain.tombstone(piece)
    return msgspec.structs.replace(
        kept,
        id=f"{session}/{piece.id.rpartition('/')[2]}",
        session=session if whole and piece.session else None,
    )

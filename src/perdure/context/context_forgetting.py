"""Forgets words of turns in boards, injections and briefs."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from perdure.context.board import Board
from perdure.context.injection_records import Frame, Injection
from perdure.core.errors import InvalidInput
from perdure.core.turns import Position
from perdure.history.epochs import Epochs, Prefix, PrefixText
from perdure.history.forget_sessions import ForgetScope, remove
from perdure.history.log_records import Head, turn_key
from perdure.history.strategies.one_shot_strategy import OneShotBrief
from perdure.storage.store import Store


class ContextForgetting:
    """Boards, injections and briefs, as a `ForgetPlace`."""

    def __init__(self, store: Store, epochs: Epochs) -> None:
        self._boards = store.collection(Board)
        self._injections = store.collection(Injection)
        self._frames = store.collection(Frame)
        self._briefs = store.collection(OneShotBrief)
        self._store = store
        self._heads = store.collection(Head)
        self._epochs = epochs

    @property
    def collections(self) -> frozenset[str]:
        held = (self._boards, self._injections, self._frames, self._briefs)
        return frozenset(each.name for each in held)

    async def forget(self, scope: ForgetScope) -> None:
        """Of turns: their entries on boards, and everything injected since that may quote them,
        also into other sessions that recalled them. A prompt that is rebuilt later lacks it.
        """
        if scope.agent is not None:
            for collection in (self._boards, self._injections, self._frames, self._briefs):
                await remove(collection, f"{scope.agent}/")
        for session in scope.sessions:
            await self._recalled(session, frozenset(scope.turns))
            await self._briefs.delete(session)  # the next run writes it anew
            if not scope.turns:
                await self._boards.delete(session)
                for collection in (self._injections, self._frames):
                    await remove(collection, f"{session}/")
                continue
            for name in await self._epochs.line(session):
                await self._quoted(name, frozenset(scope.turns))

    async def _quoted(self, session: str, turns: frozenset[int]) -> None:
        board = await self._boards.get(session)
        if board is not None:
            # A note may say what a turn said: who posted it knew all that was there.
            left = tuple(
                entry
                for entry in board.entries
                if entry.source and Position.parse(entry.source).turn not in turns
            )
            await self._boards.put(msgspec.structs.replace(board, entries=left))
        for turn in turns:
            await self._injections.delete(turn_key(session, turn))
        start = turn_key(session, min(turns))
        for row in await self._injections.query().prefix(f"{session}/").values():
            if row.id >= start and row.board:
                await self._injections.delete(row.id)

    async def forget_memories(self, names: Iterable[str]) -> None:
        """Delete what was injected of memories (``planner/M-7``) that are gone for good."""
        for name in names:
            rows = await self._injections.query().tagged(**{name: ""}).values()
            await self._withdraw(row.id for row in rows)

    async def _recalled(self, session: str, turns: frozenset[int]) -> None:
        """Delete what was injected of these turns, or of any of the session. `memory_forgetting`
        does it for memories made from them.
        """
        rows = await self._injections.query().tagged(**{session: ""}).values()
        own = f"{session}/"  # goes with the session
        await self._withdraw(
            row.id
            for row in rows
            if row.quotes_any(session, turns) and (turns or not row.id.startswith(own))
        )

    async def _withdraw(self, ids: Iterable[str]) -> None:
        """The windows that held it are planned and read anew."""
        gone = list(ids)
        await self._injections.delete_many(gone)
        for name in dict.fromkeys(id.rpartition("/")[0] for id in gone):
            async with self._store.transaction() as transaction:
                await transaction.collection(Prefix).delete(name)
                await transaction.collection(PrefixText).delete(name)
            if await self._heads.get(name) is not None:
                await self._heads.change(name, _changed)


def _changed(head: Head | None) -> Head:
    if head is None:
        raise InvalidInput("The session is gone.", hint="Somebody else forgot it.")
    return msgspec.structs.replace(head, forgets=head.forgets + 1)

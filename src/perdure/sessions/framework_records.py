"""What a framework keeps beside the turns of a session: state, checkpoints, settings.

Keys begin with the session's name, or the agent's for what belongs to no session, then a word for
the kind: ``langgraph/chat-7/checkpoints/-/1ef…``; for an agent's with a ``#``, which no name has:
``langgraph/#store/…``. All kinds are one collection, because a framework
says what is in them, not Perdure.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from perdure.history.forget_sessions import ForgetScope, remove
from perdure.storage.records import Compressed, Key, system_record
from perdure.storage.store import Store


@system_record("framework_records")
class FrameworkRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """One value of a framework."""

    id: Annotated[str, Key()]
    content: Annotated[bytes, Compressed()]
    #: It holds what a message said, so it goes when a turn of its session is forgotten.
    copies: bool = False
    changed: int = 0  # Microseconds; 0 if nobody asks.
    made: int = 0


class FrameworkForgetting:
    """A `ForgetPlace`. Which turn a copy is of is not known, so all of them go with any turn."""

    collections = frozenset({"perdure_framework_records"})

    def __init__(self, store: Store) -> None:
        self._records = store.collection(FrameworkRecord)

    async def forget(self, scope: ForgetScope) -> None:
        for session in scope.sessions:
            if not scope.turns:
                await remove(self._records, f"{session}/")
                continue
            async for record in self._records.walk(f"{session}/"):
                if record.copies:
                    await self._records.delete(record.id)
        if scope.agent is not None:
            await remove(self._records, f"{scope.agent}/")

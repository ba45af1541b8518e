"""The session: its roles in one object, and the forks that share its turns."""

from __future__ import annotations

from perdure.core import clock
from perdure.core.errors import Conflict, InvalidInput
from perdure.core.turns import ConversationState, Position
from perdure.history import lines
from perdure.history.records import Head, SessionRecord, agent_of
from perdure.session.answering import Answering
from perdure.session.contexts import Contexts
from perdure.session.given import turn_number
from perdure.session.reading import Reading
from perdure.session.recalling import Recalling
from perdure.session.sharing import Shared
from perdure.session.writing import Writing
from perdure.storage.options import Options


class Session(Writing, Answering, Reading, Contexts, Recalling, Shared):
    """One conversation. Made by `Bank.session`.

    Any number of session objects, tasks and processes may write to the same conversation: turns
    get their numbers one after the other, and each writer's messages go to the turn that it opened.
    """

    async def fork(self, name: str, at: str | int | Position | None = None) -> Session:
        """Another session that shares this one's turns up to `at` (the newest), and goes on alone.

        Nothing is copied. Raises `Conflict` if the name is taken, `InvalidInput` if there is no
        such turn.
        """
        agent = agent_of(name)
        head, own = await self.head(), await self._current()
        number = lines.newest(head) if at is None else turn_number(at)
        if number < 1 or number > head.turn:
            raise InvalidInput(
                f"{self.name} has no turn T-{number} to fork at.",
                hint=f"Its newest is T-{head.turn}." if head.turn else "Append something first.",
            )
        piece, link = await self._rooms.reader.end_of(own, head, number)
        now = self._rooms.store.now()
        record = SessionRecord(
            id=name,
            type=own.type,
            state=own.state,
            active=clock.to_datetime(now),
            tags=own.tags,
            agent=agent,
            strategy=own.strategy,
            budget=own.budget,
            parent=self.name,
            line=lines.line_at(own, number, piece),
            root=link,
        )
        fresh = Head(
            name,
            ConversationState(number, fresh=True),
            pieces=piece,
            link=link,
            time=now,
            undone=lines.undone_at(head, number),
        )
        records = self._rooms.store.collection(SessionRecord)
        if await records.get(name) is not None:
            raise Conflict(
                "perdure_sessions",
                name,
                message=f"There is a session {name} already.",
                hint="Choose another name for the fork, or open that one with bank.session(…).",
            )
        async with self._rooms.store.transaction() as transaction:
            await transaction.collection(SessionRecord).put(record, Options(expected=0))
            await transaction.collection(Head).put(fresh, Options(expected=0))
            # A parent that is being forgotten has no head any more.
            if await transaction.collection(Head).get(self.name) is None:
                raise InvalidInput(f"{self.name} was forgotten.", hint="There is nothing to fork.")
        return Session(self._rooms, record, self._intake.of(name))

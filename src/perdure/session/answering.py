"""Answers that arrive piece by piece, and what is left of those that were cut off."""

from __future__ import annotations

from perdure.core.turns import Turn
from perdure.history.answers import Answer, Partial, unpacked
from perdure.history.drafts import Drafting, Pen
from perdure.history.records import Draft, turn_key
from perdure.session.conversation import Conversation, turns_of


class Answering(Conversation):
    """The role of a session that takes answers while they arrive."""

    def answer(self, *, model: str = "", resume: Partial | None = None) -> Answer:
        """An answer to the open turn that arrives piece by piece; see `history.answers`.

        With `resume`, it goes on where a partial one stopped.
        """
        desk = Drafting(self._pen)
        return Answer(
            desk, desk.place, model=model, heartbeat=self._rooms.heartbeat, resumed=resume
        )

    async def partials(self) -> list[Partial]:
        """Answers that are arriving, or were when their process died."""
        head = await self.head()
        drafts = self._rooms.store.collection(Draft)
        found = await drafts.get_many([turn_key(self.name, turn) for turn in head.answering])
        return [
            Partial(turn, unpacked(draft.content), draft.started, draft.updated)
            for turn, draft in zip(head.answering, found, strict=True)
            if draft is not None
        ]

    async def close_partial(self, partial: Partial) -> Turn:
        """Make what arrived of an answer part of its turn, marked as partial.

        Raises `InvalidInput` if it is no longer there, `Conflict` if others take it right now.
        """
        return await Drafting(self._pen).close(partial)

    async def drop_partial(self, partial: Partial) -> None:
        """Throw away what arrived of an answer."""
        await Drafting(self._pen).drop(partial)

    @property
    def _pen(self) -> Pen:
        rooms = self._rooms
        return Pen(
            rooms.store,
            rooms.log,
            rooms.reader,
            self._intake,
            self._writer,
            self._writing,
            rooms.log.write,
            turns_of,
        )

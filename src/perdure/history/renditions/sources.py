"""What renditions are made from: the words of turns, round by round, as the log has them."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby
from operator import attrgetter

import msgspec

from perdure.artifacts import ArtifactStore
from perdure.core.errors import ArtifactMissing, Corrupted
from perdure.core.messages import Message, Part, Reference, ToolCall, ToolResult
from perdure.history.intake import resolved
from perdure.history.lines import Owned
from perdure.history.reading import Reader, mark_of
from perdure.history.records import Head, Piece, turn_prefix
from perdure.storage.keys import numbered
from perdure.storage.store import Store

_TURN = attrgetter("turn")


class Told(msgspec.Struct, frozen=True, gc=False):
    """What was said in a turn, round by round."""

    number: int
    rounds: dict[int, tuple[Message, ...]]
    #: Where each round begins: the number of a piece.
    begins: dict[int, int]

    @property
    def messages(self) -> int:
        return sum(map(len, self.rounds.values()))

    def is_complete(self, round: int) -> bool:
        """Whether nothing more is expected in a round: its calls are answered, or another began."""
        if round < max(self.rounds):
            return True
        mark = mark_of(1, self.rounds[round])
        return mark.replied and not mark.waiting

    def is_closed(self, head: Head) -> bool:
        if self.number < head.turn or head.closed or head.mark.fresh:
            return True
        mark = mark_of(1, self.rounds[max(self.rounds)])
        return mark.closed


class Sources:
    """Reads what was said."""

    def __init__(self, store: Store, reader: Reader, artifacts: ArtifactStore) -> None:
        self._reader = reader
        self._artifacts = artifacts
        self._pieces = store.collection(Piece)

    async def told(self, owned: Owned, *, round: int = 1, piece: int = 0) -> list[Told]:
        """What was said in these turns; those that are forgotten are left out.

        Of a single turn, only from this round on, which begins in this piece.
        """
        if piece:
            prefix = turn_prefix(owned.session, owned.first)
            pieces = await self._pieces.behind(f"{prefix}{numbered(piece - 1)}", prefix)
            pieces = [each for each in pieces if each.number <= owned.piece]
        else:
            pieces = await self._reader.pieces(owned)
        found = list[Told]()
        for number, of_turn in groupby(pieces, _TURN):
            rounds, begins = dict[int, tuple[Message, ...]](), dict[int, int]()
            for part in of_turn:
                if part.forgotten:
                    continue
                for at, messages in part.by_round():
                    if at >= round:
                        begins.setdefault(at, part.number)
                        rounds[at] = (*rounds.get(at, ()), *messages)
            if rounds:
                found.append(Told(number, rounds, begins))
        return found

    async def full(self, messages: Iterable[Message]) -> tuple[Message, ...]:
        """The messages with the words put back that lie in the artifact store; no pictures.

        Where an artifact is missing, its reference stays.
        """
        return tuple([await self._with_words(message) for message in messages])

    async def _with_words(self, message: Message) -> Message:
        if not any(map(_has_words_outside, message.parts)):
            return message
        parts = [
            (await self._put_back(part)) if _has_words_outside(part) else part
            for part in message.parts
        ]
        return msgspec.structs.replace(message, parts=tuple(parts))

    async def _put_back(self, part: Part) -> Part:
        if isinstance(part, ToolResult):
            content = [await self._put_back(inner) for inner in part.content]
            return msgspec.structs.replace(part, content=tuple(content))
        if not _has_words_outside(part):
            return part
        try:
            ((found,),) = [m.parts for m in await resolved([_alone(part)], self._artifacts)]
        except (ArtifactMissing, Corrupted):
            return part
        return found


def _has_words_outside(part: Part) -> bool:
    """Whether words of the part lie in the artifact store."""
    if isinstance(part, ToolResult):
        return any(isinstance(inner, Reference) for inner in part.content)
    return isinstance(part, Reference) or (
        isinstance(part, ToolCall) and part.reference is not None
    )


def _alone(part: Part) -> Message:
    return Message("user", (part,))

"""Raw rounds for a window: read once, kept between requests, resolved and counted."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from perdure.artifacts import ArtifactStore
from perdure.core.messages import Message, references, user
from perdure.core.tokens import Counter, at_most, count_messages
from perdure.core.turns import is_prompt
from perdure.history.gradient_planner import TURN_TAGS
from perdure.history.intake import resolved
from perdure.history.log_records import Head, SessionRecord, TurnSpan
from perdure.history.manifest import RoundId
from perdure.history.token_counts import TokenCounts
from perdure.history.turn_reader import TurnReader
from perdure.history.turn_tags import escaped

_NEXT_TO_NOTHING = 0.01  # A share of the budget.
FORGOTTEN = "(forgotten)"  # Stands for what was forgotten.


class RawRound(msgspec.Struct, frozen=True, gc=False):
    """A round as it was said, resolved, without events."""

    place: RoundId
    messages: tuple[Message, ...]
    tokens: int  # In o200k tokens, with the tags that its turn gets.


class TurnPrompt(msgspec.Struct, frozen=True, gc=False):
    """The prompt of a turn, resolved, and its tokens with its tags."""

    session: str
    turn: int
    messages: tuple[Message, ...]
    tokens: int
    forgets: int = 0


class _Kept(msgspec.Struct):
    session: str
    first: RoundId
    pieces: int
    undone: tuple[TurnSpan, ...]
    forgets: int
    rounds: dict[RoundId, RawRound]


class RawRounds:
    """The newest rounds of one session. Asked again, only what was appended meanwhile is read. With
    `tombstones`, forgotten turns are included as such.
    """

    def __init__(
        self,
        reader: TurnReader,
        artifacts: ArtifactStore,
        token_counts: TokenCounts,
        *,
        tombstones: bool = False,
    ) -> None:
        self._reader = reader
        self._artifacts = artifacts
        self._token_counts = token_counts
        self._tombstones = tombstones
        self._kept: _Kept | None = None
        self._opening = TurnPrompt("", 0, (), 0)  # The prompt that was read last.

    def with_tombstones(self) -> RawRounds:
        return RawRounds(self._reader, self._artifacts, self._token_counts, tombstones=True)

    @property
    def counter(self) -> Counter:
        return self._token_counts.counter

    async def since(self, record: SessionRecord, head: Head, first: RoundId) -> Sequence[RawRound]:
        kept = self._kept
        if (
            kept is None
            or kept.first > first
            or (kept.undone, kept.forgets) != (head.undone, head.forgets)
        ):
            return await self._all(record, head, first)
        if kept.first < first:
            kept.rounds = {place: each for place, each in kept.rounds.items() if place >= first}
            kept.first = first
        if kept.pieces != head.pieces and not await self._extend(kept, record, head):
            return await self._all(record, head, first)
        return list(kept.rounds.values())

    def has(self, record: SessionRecord, first: RoundId) -> bool:
        kept = self._kept
        return kept is not None and kept.session == record.id and kept.first <= first

    async def prompt(self, record: SessionRecord, head: Head, number: int) -> TurnPrompt:
        known = self._opening
        if (known.session, known.turn, known.forgets) != (record.id, number, head.forgets):
            turn = await self._reader.turn(record, head, number)
            said = prompt_of(turn.rounds[0].messages if turn.rounds else ())
            found = await resolved(said, self._artifacts)
            tokens = sent_tokens(self._token_counts.counter, found)
            self._opening = TurnPrompt(record.id, number, found, tokens, head.forgets)
        return self._opening

    async def _all(self, record: SessionRecord, head: Head, first: RoundId) -> Sequence[RawRound]:
        found = dict[RoundId, RawRound]()
        turns = await self._reader.turns(record, head, first.turn, head.turn, arriving=False)
        for turn in turns:
            if head.is_undone(turn.number):
                continue
            if turn.status == "forgotten" and self._tombstones:
                place = RoundId(turn.number)
                found[place] = await self._said(place, (user(FORGOTTEN),), None)
            for round in turn.rounds:
                place = RoundId(turn.number, round.number)
                if place >= first and round.messages:
                    found[place] = await self._said(place, round.messages, round.tokens)
        self._kept = _Kept(record.id, first, head.pieces, head.undone, head.forgets, found)
        return list(found.values())

    async def _extend(self, kept: _Kept, record: SessionRecord, head: Head) -> bool:
        """Add what was appended; False if it is not at the end."""
        if head.pieces < kept.pieces:
            return False
        newest = max(kept.rounds, default=RoundId(0, 0))
        for piece in await self._reader.chained(record, kept.pieces, head):
            for number, messages in piece.by_round():
                place = RoundId(piece.turn, number)
                if place < newest:
                    return False
                before = kept.rounds.get(place)
                if before is None:
                    kept.rounds[place] = await self._said(place, messages, None)
                else:
                    more = await self._said(place, messages, None, goes_on=True)
                    kept.rounds[place] = RawRound(
                        place,
                        (*before.messages, *more.messages),
                        before.tokens + more.tokens,
                    )
                newest = place
        kept.pieces = head.pieces
        return True

    async def _said(
        self,
        place: RoundId,
        messages: tuple[Message, ...],
        tokens: int | None,
        *,
        goes_on: bool = False,
    ) -> RawRound:
        messages = tuple(message for message in messages if message.role != "event")
        if references(messages):
            messages = await resolved(messages, self._artifacts)
        # What is sent is escaped, which takes more tokens; hardly ever is there anything to escape.
        sent = tuple(map(escaped, messages))
        if tokens is None or any(a is not b for a, b in zip(sent, messages, strict=True)):
            tokens = count_messages(self._token_counts.counter, sent)
        if place.round == 1 and not goes_on:
            tokens += TURN_TAGS
        return RawRound(place, messages, tokens)


def sent_tokens(counter: Counter, prompt: Sequence[Message]) -> int:
    return count_messages(counter, map(escaped, prompt)) + TURN_TAGS if prompt else 0


def room_for(counter: Counter, prompt: Sequence[Message], budget: int) -> int:
    """The tokens to set aside for a prompt: what it takes, or more if that is next to nothing. So a
    new process need not load the vocabulary for a question of one line.
    """
    most = at_most(map(escaped, prompt)) + TURN_TAGS if prompt else 0
    return most if most <= budget * _NEXT_TO_NOTHING else sent_tokens(counter, prompt)


def prompt_of(messages: Sequence[Message]) -> tuple[Message, ...]:
    """The messages before the reply in a first round, if a prompt is among them."""
    said = list[Message]()
    for message in messages:
        if message.role == "assistant":
            break
        said.append(message)
    return tuple(said) if any(map(is_prompt, said)) else ()

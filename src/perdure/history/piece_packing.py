"""Packs the messages of an append into turns, rounds and pieces. No I/O: `turn_log` writes them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby
from operator import attrgetter

import msgspec

from perdure.core import messages as canonical
from perdure.core.errors import InvalidValue
from perdure.core.messages import Message
from perdure.core.turns import ConversationState, TurnSplitter, is_prompt
from perdure.history.log_records import Head

#: Rounds of a turn that are written together share a piece up to so many bytes: they compress
#: better, and a row costs more than its content when that is short.
PIECE_BYTES = 192 * 1024


class RoundWritten(msgspec.Struct, frozen=True, gc=False):
    """Messages added to a round."""

    turn: int
    round: int
    messages: tuple[Message, ...]
    before: int  # How many messages the round had before.


def cut(
    head: Head, own: ConversationState | None, messages: Iterable[Message], *, fresh: bool = False
) -> tuple[list[RoundWritten], ConversationState, ConversationState]:
    """The messages in rounds; the new state of the newest turn; that of this writer's turn."""
    # Also overtaken is a turn that was undone: what still comes for it stays in it.
    overtaken = own is not None and not fresh and own.turn < head.turn
    if own is not None and not fresh and not own.fresh and own.turn == head.turn:
        overtaken = head.mark.fresh
    base = own if own is not None and overtaken else head.mark
    # A prompt may be part of the one before it if that is ours, and nothing has been answered yet.
    joins = own is not None and own.turn == head.turn not in head.answering
    if fresh or (head.closed and not overtaken):
        base = ConversationState(head.turn, fresh=True)
    cutter = TurnSplitter(base)
    begun = base.turn, base.round
    found: list[tuple[tuple[int, int], list[Message]]] = []
    for message in messages:
        if is_prompt(message) and not joins and cutter.turn == begun[0]:
            overtaken, cutter = False, TurnSplitter(ConversationState(head.turn, fresh=True))
            joins = True
        place = cutter.feed(message)
        if overtaken and place[0] != begun[0]:
            overtaken, cutter = False, TurnSplitter(ConversationState(head.turn, fresh=True))
            place = cutter.feed(message)
        if not found or found[-1][0] != place:
            found.append((place, []))
        found[-1][1].append(message)
    rounds = [
        RoundWritten(turn, round, tuple(said), base.said if (turn, round) == begun else 0)
        for (turn, round), said in found
    ]
    mark = cutter.mark
    return rounds, head.mark if overtaken else mark, mark


def packed(rounds: Iterable[RoundWritten]) -> Iterator[tuple[list[RoundWritten], bytes]]:
    """The rounds of each piece, all of one turn, and their messages in the stored form."""
    for _, of_turn in groupby(rounds, attrgetter("turn")):
        together = list(of_turn)
        content = _encoded(together)
        if len(content) <= PIECE_BYTES or len(together) == 1:
            yield together, content
        else:
            yield from _split(together)


def _split(rounds: Iterable[RoundWritten]) -> Iterator[tuple[list[RoundWritten], bytes]]:
    together: list[RoundWritten] = []
    size = 0
    for round in rounds:
        length = len(_encoded([round]))
        if together and size + length > PIECE_BYTES:
            yield together, _encoded(together)
            together, size = [], 0
        together.append(round)
        size += length
    yield together, _encoded(together)


def _encoded(rounds: Iterable[RoundWritten]) -> bytes:
    """The stored form. Structs do not check what they hold: what could not be read is refused."""
    try:
        content = canonical.encode([each for round in rounds for each in round.messages])
        canonical.decode(content)
        return content
    except (
        UnicodeEncodeError,
        TypeError,
        OverflowError,
        RecursionError,
        msgspec.MsgspecError,
    ) as exc:
        raise InvalidValue(
            f"A message cannot be stored: {exc}.",
            hint="Use plain data, integers below 2**64, and text without half surrogate pairs.",
        ) from exc

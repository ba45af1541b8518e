"""Candidates without an index: the turns themselves are read.

For sessions that the index does not cover: those whose words are encrypted, and banks on a backend
that cannot search; and for names that stand in the middle of long tool output, of which the index
has only so many. Finds the newest turns of the session's own line only; see `history.searching`.
"""

from __future__ import annotations

import re
from collections.abc import Collection

from perdure.core.errors import Unsupported
from perdure.core.turns import Position
from perdure.history.turn_reader import TurnReader
from perdure.history.turn_search import MOST_WORDS, folded, is_name, search
from perdure.recall.hit_keys import owner_of
from perdure.recall.places import Spot
from perdure.recall.tool_names import NAMES
from perdure.recall.values import Candidate, Filters, Question, Reason, because

#: Words of a question that asks for a name.
_MOST = 16
#: What a round that has all of the words is worth, and the share that the phrase itself adds.
_WORDS, _PHRASE = 0.7, 0.2

_written_as_one = re.compile(r"\w+(?:[-./:_@]+\w+)*").findall


def names_in(text: str, unknown: Collection[str]) -> str:
    """The names in a text, as programmers write them, whose terms are `unknown` to the index.

    ``head_count``, ``fooBar``, ``1.2``. Empty if there are none; or many words beside them, as in a
    line of a log: most of those are in the index.
    """
    pieces = dict.fromkeys(_written_as_one(text))
    if not unknown or len(pieces) > _MOST:
        return ""
    return " ".join(piece for piece in pieces if is_name(piece) and folded(piece) in unknown)


class Scan:
    """Reads turns, the newest first."""

    def __init__(self, reader: TurnReader) -> None:
        self._reader = reader

    async def __call__(self, question: Question) -> tuple[Candidate, ...]:
        """The rounds that have most of the words, at least half of them; best first.

        Raises `Unsupported` for filters that only an index can answer.
        """
        filters, record = question.filters, question.record
        if filters != Filters(kinds=filters.kinds, line=filters.line):
            raise Unsupported(
                f"{record.id} has no index: only its own turns can be searched, and all of them.",
                hint="Ask without filters.",
            )
        if filters.kinds and "turn" not in filters.kinds:
            return ()
        found = await search(
            self._reader, record, question.head, question.text, question.limit, ignore=NAMES
        )
        asked = min(max(len(set(folded(question.text).split())), 1), MOST_WORDS)
        made = list[Candidate]()
        for each in found:
            position = Position.parse(each.id)
            turn, round = position.turn, position.round or 1
            session = owner_of(record, turn)
            why = f"{each.words} of its words{', as it was asked' if each.phrase else ''}"
            made.append(
                Candidate(
                    kind="turn",
                    place=-Spot(0, turn, round).place,  # no document of the index has it
                    key=f"{session}#{Position(turn, round)}",
                    session=session,
                    turn=turn,
                    round=round,
                    score=min(_WORDS * each.words / asked, _WORDS) + _PHRASE * each.phrase,
                    tell=because(Reason(why, 1.0)),
                )
            )
        return tuple(made)

"""What rounds take at each level, for rounds that lie far apart.

A scribe reads whole stretches of a history; candidates are a round here and a round there. So their
rows are read by key, all at once; only where these cannot be trusted, because something was added
that is not counted yet, the scribe is asked.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import NamedTuple

from perdure.core.errors import PerdureError
from perdure.history.log import TURNS
from perdure.history.manifest import Place
from perdure.history.records import Head, SessionRecord, TurnCount, turn_key
from perdure.history.renditions.records import Rendition, rendition_key
from perdure.history.renditions.scribe import Made, Scribe
from perdure.jobs import marks_of
from perdure.recall.values import Candidate
from perdure.storage.store import Store

#: Turns in front of a fork that its parent may still have added to.
_NEAR = 20


class View(NamedTuple):
    """A line of turns, as somebody sees it."""

    record: SessionRecord
    head: Head


class Sizes:
    """Reads what rounds take."""

    def __init__(self, store: Store, scribe: Scribe) -> None:
        self._counts = store.collection(TurnCount)
        self._rows = store.collection(Rendition)
        self._store = store
        self._scribe = scribe

    async def of(self, view: View, candidates: Sequence[Candidate]) -> dict[int, Made]:
        """By place. What was taken back, or is forgotten or damaged, is left out."""
        live = [each for each in candidates if not view.head.is_undone(each.turn)]
        sure = await self._sure(view, sorted({each.session for each in live}))
        near = [each for each in live if each.turn < sure[each.session]]
        counts = await self._counts.get_many([turn_key(c.session, c.turn) for c in near])
        rows = await self._rows.get_many(
            [rendition_key(each.session, each.turn, each.round) for each in near]
        )
        found = dict[int, Made]()
        for each, count, row in zip(near, counts, rows, strict=True):
            made = _made(each, count, row)
            if made is not None:
                found[each.place] = made
        rest = [each for each in live if each.place not in found]
        asked = await asyncio.gather(*(self._asked(view, each) for each in rest))
        return found | {c.place: made for c, made in zip(rest, asked, strict=True) if made}

    async def _sure(self, view: View, sessions: Sequence[str]) -> dict[str, int]:
        """In front of which turn the rows of each session can be trusted, for this view."""
        found = dict[str, int]()
        for session in sessions:
            marks = await marks_of(self._store, TURNS, session)
            shared = [s.turn - _NEAR + 1 for s in view.record.line if s.session == session]
            found[session] = min([view.head.turn, *shared, *(mark.first for mark in marks)])
        return found

    async def _asked(self, view: View, candidate: Candidate) -> Made | None:
        place = Place(candidate.turn, candidate.round)
        try:
            sizes = await self._scribe.sizes(*view, place, place)
        except PerdureError:
            return None  # one turn that is damaged hides no other
        return sizes[0] if sizes else None


def _made(candidate: Candidate, count: TurnCount | None, row: Rendition | None) -> Made | None:
    counted = None if count is None else count.of(candidate.round)
    at = None if row is None or counted is None else row.best(counted.messages)
    if row is None or counted is None or at is None:
        return None
    place, used = Place(candidate.turn, candidate.round), row.variants[at]
    return Made(place, counted.tokens, used.smooth, used.compact, at, used.recipe)

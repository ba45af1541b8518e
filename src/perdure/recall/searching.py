"""Asking the index: which words stand where, what is near in meaning; and what that says, ranked.

Two stages. The first counts occurrences around every turn, in numbers alone, and keeps the best.
The second reads the notes of those few, and ranks them by all that is known. No text is read.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING

from perdure.recall.cues import Cues, cues
from perdure.recall.filters import narrowed
from perdure.recall.places import INDEX
from perdure.recall.values import Candidate, Note, Question
from perdure.storage.options import DEFAULT
from perdure.storage.searching import TextFound, TextSearch, VectorSearch

if TYPE_CHECKING:
    from perdure.recall.embedders import Embedder
    from perdure.recall.evidence import Tally
    from perdure.recall.meanings import Meant
    from perdure.recall.scope import Scope
    from perdure.recall.weighing import Weighed
    from perdure.storage.store import Store

#: Candidates that are answered with, at most: what a few thousand tokens have room for.
MOST = 200
#: Documents that are taken from the dense leg.
_NEAREST = 60


class Found:
    """What was found so far, and what is needed to rank it again with more."""

    def __init__(self, question: Question, scope: Scope, cues: Cues, text: TextFound) -> None:
        self.question, self.scope, self.cues, self.text = question, scope, cues, text
        self.tally: Tally | None = None
        #: None if nothing was found.
        self.weighed: Weighed | None = None
        #: Notes that were read, by place.
        self.known = dict[int, Note | None]()

    @property
    def terms(self) -> tuple[str, ...]:
        """The terms that were looked for."""
        return self.cues.terms

    @cached_property
    def candidates(self) -> tuple[Candidate, ...]:
        """Best first, those that the filters let through, at most `MOST`."""
        return () if self.weighed is None else self.weighed.candidates(MOST)


class Searcher:
    """Finds what may answer a question. Reads the index only; writes nothing."""

    def __init__(self, store: Store, embedder: Embedder | None = None) -> None:
        self._store = store
        self._embedder = embedder

    async def keyword(self, question: Question, scope: Scope, also: Sequence[str] = ()) -> Found:
        """By words. `also` are further ones, which the first hits brought up.

        A question of nothing but stop words finds nothing here. Raises `Corrupted` if the index is
        damaged.
        """
        scope = narrowed(scope, question.filters)
        asked = cues(question.text, question.moment, tuple(also))
        ranges = scope.ranges
        if not asked.terms or not ranges:
            return Found(question, scope, asked, TextFound(0, ()))
        search = TextSearch(index=INDEX.name, terms=asked.terms, within=ranges)
        text = await self._store.adapter.search_text(search, DEFAULT)
        return await self._weighed(Found(question, scope, asked, text))

    async def vector(self, found: Found) -> Found:
        """By meaning as well: candidates join those found by words, and all are ranked again.

        Without an embedder, or without a single vector of its model, the same comes back.
        """
        from perdure.recall.meanings import Meant

        ranges = found.scope.ranges
        if self._embedder is None or not ranges or not found.question.text.strip():
            return found
        [asked] = await self._embedder.embed([found.question.text])
        model = self._embedder.name
        search = VectorSearch(
            index=INDEX.name, model=model, vector=asked, within=ranges, limit=_NEAREST
        )
        near = await self._store.adapter.search_vectors(search, DEFAULT)
        if not near:
            return found
        again = Found(found.question, found.scope, found.cues, found.text)
        again.known, again.tally = found.known, found.tally
        return await self._weighed(again, Meant(model, asked, [each.place for each in near]))

    async def _weighed(self, found: Found, meant: Meant | None = None) -> Found:
        # Here, because it takes numpy: whoever only opens a bank and appends does not need that.
        from perdure.recall.weighing import tallied, weighed

        if found.tally is None:
            found.tally = tallied(found.scope, found.cues, found.text)
        found.weighed = await weighed(
            self._store,
            found.question,
            found.scope,
            found.cues,
            found.tally,
            meant=meant,
            known=found.known,
        )
        return found

"""Asking the index: which words stand where, what is near in meaning; and what that says, ranked.

Two stages. The first counts occurrences around every turn, in numbers alone, and keeps the best.
The second reads the notes of those few, and ranks them by all that is known. No text is read.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING

from perdure.recall.background_tasks import Underway
from perdure.recall.places import INDEX, turns
from perdure.recall.scoping.scope import narrowed
from perdure.recall.searching.cues import Cues, cues
from perdure.recall.values import MOST_CANDIDATES, Candidate, Note, Question
from perdure.search.engine import (
    TextFound,
    TextSearch,
    VectorSearch,
    search_text,
    search_vectors,
)

if TYPE_CHECKING:
    from perdure.recall.embedders import Embedder
    from perdure.recall.scoping.scope import Scope
    from perdure.recall.searching.evidence import Tally
    from perdure.recall.searching.forms import Forms
    from perdure.recall.searching.meanings import Meant
    from perdure.recall.searching.ranking import Weighed
    from perdure.search.engine import Postings, Range
    from perdure.storage.store import Store

#: Candidates that are answered with: for each that is asked for, since some may be gone or stand in
#: the window; at least.
_SPARE, _LEAST = 4, 20
#: Documents that are taken from the dense leg.
_NEAREST = 60


class SearchResult:
    """What was found so far, and what is needed to rank it again with more."""

    def __init__(self, question: Question, scope: Scope, cues: Cues, text: TextFound) -> None:
        self.question, self.scope, self.cues, self.text = question, scope, cues, text
        self.tally: Tally | None = None
        #: None if nothing was found.
        self.weighed: Weighed | None = None
        #: Notes that were read, by place.
        self.known = dict[int, Note | None]()
        #: The dense leg, if it was begun.
        self.begun: asyncio.Task[Meant | None] | None = None
        #: What it found, if that is part of the ranking.
        self.meant: Meant | None = None

    @property
    def terms(self) -> tuple[str, ...]:
        """The terms that were looked for."""
        return self.cues.terms

    @property
    def unknown(self) -> frozenset[str]:
        """Those of them that stand nowhere in what the question may see, as far as it is indexed.

        What others said is no matter here: they would be noticed by what is not found. Nor is the
        newest turn: mostly it is the one that asks.
        """
        record, newest = self.question.record, self.question.head.newest
        number = self.scope.groups.numbers.get(record.id)
        asking = (-1, -1) if number is None else turns(number, newest, newest)
        found = zip(self.terms, self.text.terms, strict=False)
        return frozenset(
            term
            for term, postings in found
            if postings.complete and not _stands_outside(postings, asking)
        )

    @cached_property
    def candidates(self) -> tuple[Candidate, ...]:
        """Best first, those that the filters let through: several times the limit."""
        if self.weighed is None:
            return ()
        return self.weighed.candidates(
            min(max(_SPARE * self.question.limit, _LEAST), MOST_CANDIDATES)
        )

    def again(self) -> SearchResult:
        """The same, to be ranked anew."""
        made = SearchResult(self.question, self.scope, self.cues, self.text)
        made.known, made.tally = self.known, self.tally
        return made


class Searcher:
    """Finds what may answer a question. Reads the index only; writes nothing."""

    def __init__(self, store: Store, embedder: Embedder | None = None) -> None:
        self._store = store
        self._embedder = embedder
        self._underway = Underway()

    async def keyword(
        self,
        question: Question,
        scope: Scope,
        also: Sequence[str] = (),
        *,
        patience: float = 0.0,
    ) -> SearchResult:
        """By words. `also` are further ones, which the first hits brought up.

        With `patience` the dense leg begins at once. If it is there within so many seconds behind
        the words, all is ranked together, instead of twice; `vector` tells.

        A question of nothing but stop words finds nothing here. Raises `Corrupted` if the index is
        damaged.
        """
        scope = narrowed(scope, question.filters)
        asked = cues(question.text, question.moment, tuple(also))
        found = SearchResult(question, scope, asked, TextFound(0, ()))
        if not scope.ranges:
            return found
        if patience:
            found.begun = self._underway.begin(self._near(question, scope), awaited=True)
        try:
            if not asked.terms:
                return found
            found.cues, found.text = await self._by_words(asked, scope)
            _tally(found)  # while the dense leg is still on its way
            if found.begun is not None:
                if not found.begun.done():
                    await asyncio.wait({found.begun}, timeout=patience)
                if found.begun.done() and not found.begun.exception():
                    found.meant = found.begun.result()
            return await self._weighed(found)
        except BaseException:
            if found.begun is not None:
                found.begun.cancel()
            raise

    async def vector(self, found: SearchResult) -> SearchResult:
        """By meaning as well: candidates join those found by words, and all are ranked again.

        Without an embedder, or without a single vector of its model, the same comes back.
        """
        if not found.scope.ranges:
            return found
        again = found.again()
        if found.meant is not None:  # they are among them already
            again.meant, again.weighed = found.meant, found.weighed
            again.candidates = found.candidates
            return again
        begun, found.begun = found.begun, None
        again.meant = await (begun or self._near(found.question, found.scope))
        return found if again.meant is None else await self._weighed(again)

    async def _by_words(self, asked: Cues, scope: Scope) -> tuple[Cues, TextFound]:
        """Where the terms that count stand, or what else stands for the same words."""
        from perdure.recall.searching import forms
        from perdure.recall.searching.forms import chosen

        found = await self._search(asked.terms, forms.known(asked), scope)
        if also := forms.possible(asked, found):
            found = await self._search(asked.terms, also, scope)
        return chosen(asked, found)

    async def _search(self, terms: tuple[str, ...], forms: Forms, scope: Scope) -> TextFound:
        from perdure.recall.searching.forms import together, with_forms

        search = TextSearch(index=INDEX.name, terms=with_forms(terms, forms), within=scope.ranges)
        found = await search_text(self._store, search)
        return together(terms, forms, found)

    async def _near(self, question: Question, scope: Scope) -> Meant | None:
        """What a question means, and what is near to that; None if nothing is."""
        if self._embedder is None or not question.text.strip():
            return None
        [asked] = await self._embedder.embed([question.text])
        model = self._embedder.name
        search = VectorSearch(
            index=INDEX.name,
            model=model,
            vector=asked,
            within=scope.ranges,
            limit=max(_NEAREST, min(question.limit, MOST_CANDIDATES)),
        )
        near = await search_vectors(self._store, search)
        if not near:
            return None
        from perdure.recall.searching.meanings import Meant

        embed = self._embedder.embed if self._embedder.is_quick else None
        return Meant(model, asked, [each.place for each in near], embed)

    async def _weighed(self, found: SearchResult) -> SearchResult:
        # Here, because it takes numpy: whoever only opens a bank and appends does not need that.
        from perdure.recall.searching.ranking import weighed

        found.weighed = await weighed(
            self._store,
            found.question,
            found.scope,
            found.cues,
            _tally(found),
            meant=found.meant,
            known=found.known,
        )
        return found


def _stands_outside(postings: Postings, stretch: Range) -> bool:
    places = postings.found.reshape(-1, 3)[:, 0]
    return bool(((places < stretch[0]) | (places > stretch[1])).any())


def _tally(found: SearchResult) -> Tally:
    """What was found by words, counted once."""
    from perdure.recall.searching.ranking import tallied

    if found.tally is None:
        found.tally = tallied(found.scope, found.cues, found.text)
    return found.tally


async def load_once() -> None:
    """Import what ranking needs, in a thread if it takes long: nobody else waits for it."""
    if "perdure.recall.searching.ranking" not in sys.modules:
        await asyncio.to_thread(_load_ranking)


def _load_ranking() -> None:
    import perdure.recall.searching.meanings
    import perdure.recall.searching.ranking  # noqa: F401

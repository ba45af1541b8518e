"""From occurrences to candidates: features, an order, scores, reasons."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from perdure.core.turns import Position
from perdure.recall.places import Spot, spot
from perdure.recall.searching.cues import Cues
from perdure.recall.searching.evidence import REACH, TURNS, Tally
from perdure.recall.searching.features import Features, features, named_by
from perdure.recall.searching.meanings import Meant, meanings
from perdure.recall.searching.noting import DEPTH, Noted, Noting
from perdure.recall.searching.ranking import Telling, ranked
from perdure.recall.searching.searcher import MOST
from perdure.recall.values import Candidate, Filters, Kind, Note, Question, Reasons

if TYPE_CHECKING:
    from perdure.recall.scoping.scope import Scope
    from perdure.search.engine import TextFound
    from perdure.storage.store import Store

#: Turns that are looked at if there are filters, which may leave few of them.
_TURNS_FILTERED = 3_000
#: Hits for each of which a turn more is taken along on either side of what has a term: who asks for
#: many wants to see what is less likely, too.
_A_TURN_MORE = 20


class Weighed(NamedTuple):
    """Candidates and their features: a row for each."""

    question: Question
    scope: Scope
    cues: Cues
    noted: Noted
    features: Features

    def candidates(self, most: int) -> tuple[Candidate, ...]:
        """Best first."""
        order, scores = ranked(self.features)
        best = order[:most]
        notes = [self.noted.notes[row] for row in best.tolist()]
        telling = Telling(self.features, self.noted.evidence, self.cues, best, notes)
        places = self.noted.evidence.places[best].tolist()
        tells = (partial(telling.reasons, rank) for rank in range(len(notes)))
        made = zip(places, notes, scores[best].tolist(), tells, strict=True)
        return tuple(self._candidate(*each) for each in made)

    def _candidate(self, place: int, note: Note, score: float, tell: Reasons) -> Candidate:
        kind, owner = self.scope.name(place)
        at = spot(place)
        return Candidate(
            kind=kind,
            place=place,
            key=_key(self.question, kind, owner, at),
            session=owner if kind == "turn" else "",
            turn=at.turn if kind == "turn" else 0,
            round=at.round if kind == "turn" else 0,
            score=round(score, 4),
            tell=tell,
            note=note,
        )


async def weighed(
    store: Store,
    question: Question,
    scope: Scope,
    cues: Cues,
    tally: Tally,
    *,
    meant: Meant | None = None,
    known: dict[int, Note | None],
) -> Weighed | None:
    """Weigh what was found; None if nothing was, or nothing passes the filters.

    `known` are notes that were read already; those that are read now are added.
    """
    nearest = () if meant is None else meant.nearest
    turns = TURNS if question.filters == Filters() else _TURNS_FILTERED
    noting = Noting(store, question, scope, cues, known)
    wanted = min(question.limit, MOST)
    reach = max(REACH, wanted // _A_TURN_MORE)
    found = tally.evidence(nearest, max(turns, DEPTH * wanted), reach)
    noted = await noting.read(found, nearest)
    if noted is None:
        return None
    alike = None
    if meant is not None:
        named = named_by(cues, [*noted.notes, *noted.before])
        meant = await meant.without(question.text, named)
        alike = await meanings(store, scope, noted.evidence, meant)
    values = features(noted.evidence, cues, noted.notes, noted.before, alike)
    return Weighed(question, scope, cues, noted, values)


def tallied(scope: Scope, cues: Cues, text: TextFound) -> Tally:
    """What was found by words, counted."""
    numbers = {term: number for number, term in enumerate(cues.terms)}
    pairs = [(numbers[one], numbers[two]) for one, two in cues.pairs]
    return Tally(text, pairs, alone=scope.groups.alone)


def _key(question: Question, kind: Kind, owner: str, at: Spot) -> str:
    """The key of a turn or memory; of a reference layer, its number, which its shelf knows."""
    if kind == "turn":
        return f"{owner}#{Position(at.turn, at.round)}"
    if kind == "memory":
        return f"M-{at.turn}" if owner == question.record.agent else f"{owner}/M-{at.turn}"
    return str(at.turn)

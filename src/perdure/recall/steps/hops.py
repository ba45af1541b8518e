"""A second hop: what the first hits mention is searched for, too.

“Where did Ann's sister move?” finds that Ann's sister is called Vera; where Vera moved is said
elsewhere, without Ann. So names and identifiers of the best hits that the question does not have
are searched for. What they find stands behind what the question itself found: the best that the
first search did not find counts half as much as the best that it did. The first ones of that keep
their places.

How well the question is met is what the first search says. The scores of the second one are lower,
as it has words to look for that nobody asked for: only how they compare with each other counts. One
is raised, not several, and only for what the likeliest hits mention: on two of LoCoMo's chats that
costs about what it gains, and more costs more.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import NamedTuple

import msgspec

from perdure.recall import words
from perdure.recall.places import ANSWERED, Spot, spot
from perdure.recall.values import Candidate, Reason, Reasons, because

#: Hits that are read, characters of each, and words that are searched for.
HITS, _TEXT, _WORDS = 5, 1_200, 6
#: What is less likely than this share of the best is hardly about what was asked.
_LIKE_THE_FIRST = 0.5
#: The best so many keep their places; what a score of the second search is worth, at most; what
#: has less than this share of the best score was not found by the first one.
_FIRST, _WEIGHT, _FAR = 5, 0.5, 0.1

# A name: a capital inside a sentence, or what programmers write as one. Words at the beginning of
# a sentence have a capital, too.
_names = re.compile(r"(?<=[a-z,;(] )[A-Z][a-z]\w+|\b\w+(?:[_./]\w+)+\b|\b[a-z]+[A-Z]\w+\b")


def seeds(candidates: Sequence[Candidate]) -> tuple[Candidate, ...]:
    """The hits that are read: those of the best few that are about as likely as the first."""
    best = candidates[:HITS]
    return tuple(each for each in best if each.score >= _LIKE_THE_FIRST * best[0].score)


def further(terms: Collection[str], texts: Iterable[str]) -> tuple[str, ...]:
    """Words to search for: names in the texts that the question's terms do not cover.

    The ones that most texts mention come first; of equals, those of the better hit.
    """
    known = set(terms)
    found = Counter[str]()
    for text in texts:
        mentioned = dict[str, None]()
        for name in _names.findall(text[:_TEXT]):
            own = set(words.terms(name))
            if own and not own & known:
                mentioned[name] = None
        found.update(mentioned.keys())
    return tuple(name for name, _ in found.most_common(_WORDS))


def joined(
    first: Sequence[Candidate], second: Sequence[Candidate], names: Sequence[str]
) -> tuple[Candidate, ...]:
    """Both rankings as one. A score is raised, never lowered; the first ones keep their places."""
    own = {each.place: each.score for each in first}
    best = {each.place for each in first[:_FIRST]}
    met = max(own.values(), default=0.0)
    most = max((each.score for each in second), default=0.0)
    worth = _WEIGHT * met / most if most else 0.0
    via = Reason(f"by way of {', '.join(names[:3])}", 0.0)
    raised, is_fresh = dict[int, Candidate](), True
    for each in second:
        known, score = own.get(each.place, 0.0), each.score * worth
        if each.place in best:
            continue
        if is_fresh and known < _FAR * met and each.score > 0:
            is_fresh, score = False, _WEIGHT * met
        if score > known:
            raised[each.place] = msgspec.structs.replace(each, score=score, tell=_also(each, via))
    rest = [each for each in first[_FIRST:] if each.place not in raised]
    return (*first[:_FIRST], *sorted([*rest, *raised.values()], key=lambda each: -each.score))


def _also(candidate: Candidate, reason: Reason) -> Reasons:
    """What spoke for it, and one more."""
    return lambda: (*candidate.reasons, reason)


#: Neighbours that come along, at most, and the best hits whose neighbours are looked at.
MOST, _HITS = 4, 5
#: A passage of so many terms says little by itself.
_SHORT = 6


class Neighbour(NamedTuple):
    """A passage that comes along, and the place of the hit that it comes along with."""

    candidate: Candidate
    of: int


def neighbours(
    hits: Sequence[Candidate], allows: Callable[[int], bool], known: Iterable[int]
) -> tuple[Neighbour, ...]:
    """What comes along with these hits, best first; only what the scope allows."""
    there, found = set(known), list[Neighbour]()
    for hit in hits[:_HITS]:
        if hit.kind != "turn":
            continue
        for turn, round, why in _wanted(hit):
            place = Spot(spot(hit.place).group, turn, round).place
            if turn > 0 and place not in there and allows(place):
                there.add(place)
                found.append(Neighbour(_beside(hit, place, (turn, round), why), hit.place))
    return tuple(found[:MOST])


def _wanted(hit: Candidate) -> list[tuple[int, int, str]]:
    said, name = hit.note.lengths, f"T-{hit.turn}.{hit.round}"
    if hit.round > 1:
        return [(hit.turn, 1, f"what {name} is about")]
    if hit.note.asks and not said[ANSWERED]:
        return [(hit.turn + 1, 1, f"the answer to {name}")]
    if 0 < sum(said) <= _SHORT:
        return [(hit.turn - 1, 1, f"what {name} answers")]
    return []


def _beside(hit: Candidate, place: int, at: tuple[int, int], why: str) -> Candidate:
    turn, round = at
    session = hit.key.rpartition("#")[0]
    return msgspec.structs.replace(
        hit,
        place=place,
        key=f"{session}#T-{turn}.{round}" if session else f"T-{turn}.{round}",
        turn=turn,
        round=round,
        tell=because(Reason(why, 0.0)),
    )

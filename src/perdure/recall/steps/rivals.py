"""Memories that contradict each other are read together: first the one that holds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from perdure.recall.steps.showing import Shown
from perdure.recall.values import Candidate


def together(candidates: Sequence[Candidate], texts: Mapping[int, Shown]) -> tuple[Candidate, ...]:
    """The same, but what holds stands directly before what it contradicts, where the best of them
    stood, and is as likely as that. Only what was read, and is there, is moved.
    """
    by_key = {each.key: each for each in candidates if each.kind == "memory"}
    leads = {
        each.place: by_key[behind]
        for each in candidates
        if (behind := _behind(each, texts)) in by_key
    }
    if not leads:
        return tuple(candidates)
    followers = dict[int, list[Candidate]]()
    for each in candidates:
        if each.place in leads:
            followers.setdefault(leads[each.place].place, []).append(each)
    ordered = dict[int, Candidate]()

    def put(candidate: Candidate) -> None:
        if candidate.place in ordered:
            return
        behind = followers.get(candidate.place, [])
        score = max(each.score for each in (candidate, *behind))
        ordered[candidate.place] = replace(candidate, score=score)
        for each in behind:
            put(each)

    for each in candidates:
        put(_first(each, leads))
        put(each)
    return tuple(ordered.values())


def _behind(candidate: Candidate, texts: Mapping[int, Shown]) -> str:
    shown = texts.get(candidate.place)
    return "" if shown is None else shown.behind


def _first(candidate: Candidate, leads: Mapping[int, Candidate]) -> Candidate:
    """The one that holds, of those that hold above each other."""
    passed = set[int]()
    while candidate.place in leads and candidate.place not in passed:
        passed.add(candidate.place)  # one may have been pinned between two looks
        candidate = leads[candidate.place]
    return candidate

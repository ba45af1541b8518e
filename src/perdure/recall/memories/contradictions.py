"""A memory in words, with what contradicts it; and the order in which such memories are read.

Whoever puts the words into a prompt escapes them.

M-7 (preference, 2 months ago): Prefers small commits.
M-9 (fact, 3 days ago): since 2026-05-01: The port is 9000. (before: The port is 8123.)
M-8 (fact, 5 days ago): The port is 8123. (but since 2026-05-01, M-9: The port is 9000.)
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from msgspec.structs import replace

from perdure.core.clock import to_datetime
from perdure.recall.memory_layer import ago
from perdure.recall.memory_records import Memory, shown
from perdure.recall.values import Candidate, Shown


def line(memory: Memory, moment: int, rivals: Iterable[Memory] = (), *, agent: str = "") -> str:
    """One line: key, kind, age, what it says, and what its active `rivals` say.

    `agent` is who reads it: memories of others are called by their whole names.
    """
    key = shown(memory.id, agent or memory.agent)
    text = " ".join(said(memory, rivals, agent=agent).split())
    return f"{key} ({memory.kind}, {ago(memory.last, moment)}): {text}"


def said(memory: Memory, rivals: Iterable[Memory] = (), *, agent: str = "") -> str:
    """What a memory says; if others contradict it, which one holds, and since when.

    The newest holds, unless an older one is pinned: then both say so. `agent` as for `line`.
    """
    others = _others(memory, rivals)
    if not others:
        return memory.text
    holds = leader(memory, others)
    if holds.id == memory.id:
        return _leading(memory, others, agent or memory.agent)
    name = shown(holds.id, agent or memory.agent)
    if _age(holds) > _age(memory):
        return f"{memory.text} (but since {_day(holds)}, {name}: {holds.text})"
    return (
        f"said on {_day(memory)}: {memory.text}"
        f" (but {name}, of {_day(holds)}, is pinned and holds: {holds.text})"
    )


def _leading(memory: Memory, others: Iterable[Memory], agent: str) -> str:
    """One that holds: what was so before, and what was said since although it is pinned."""
    ordered = sorted(others, key=_age, reverse=True)
    former = "; ".join(each.text for each in ordered if _age(each) < _age(memory))
    later = "; ".join(
        f"{shown(each.id, agent)}, of {_day(each)}, says: {each.text}"
        for each in ordered
        if _age(each) >= _age(memory)
    )
    beside = (
        f"before: {former}" if former else "",
        f"it is pinned and holds, although {later}" if later else "",
    )
    return f"since {_day(memory)}: {memory.text} ({'; '.join(filter(None, beside))})"


def leader(memory: Memory, rivals: Iterable[Memory]) -> Memory:
    """The one to go by, of this and those that contradict it: a pinned one, else the newest."""
    return max((memory, *_others(memory, rivals)), key=_precedence)


def leads(memory: Memory, rivals: Iterable[Memory]) -> bool:
    """Whether it is the one to go by, of those that contradict each other."""
    return leader(memory, rivals).id == memory.id


def _others(memory: Memory, rivals: Iterable[Memory]) -> list[Memory]:
    return [each for each in rivals if each.id in memory.contradicts and each.is_active]


def _precedence(memory: Memory) -> tuple[bool, int, int, str]:
    return (memory.pinned, *_age(memory))


def _age(memory: Memory) -> tuple[int, int, str]:
    """The later it was said, the more. No two have the same."""
    return (memory.since, memory.number, memory.id)


def _day(memory: Memory) -> str:
    return f"{to_datetime(memory.since):%Y-%m-%d}"


def in_reading_order(
    candidates: Sequence[Candidate], texts: Mapping[int, Shown]
) -> tuple[Candidate, ...]:
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

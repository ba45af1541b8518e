"""Whether what clients saw of a session could have happened in one order, one call after another.

A session is a list of turns that only grows, and each turn is undone at most once. So every call
says between which writes it took place: who was given T-5 came behind T-4 and before T-6; who saw
T-5 as the newest came behind it and before T-6; who saw T-3 undone came behind that. And a call
that had ended before another began came first. These are the edges of a graph. A linearization
exists if and only if it has no cycle: any order that keeps all edges is one. No search is needed,
and 100,000 calls take seconds.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

import msgspec

from tests.cluster.operation_history import AUDITOR, Operation, Reading


class Verdict(msgspec.Struct):
    """What is wrong with a history, in words, by kind."""

    #: Acknowledged, and not there.
    lost: list[str] = []
    #: There more than once.
    doubled: list[str] = []
    #: There, and nobody wrote it, or who did was told that it had no effect.
    phantoms: list[str] = []
    #: What two readers saw of one turn differs.
    changed: list[str] = []
    #: Calls that no order explains: stale reads, numbers against the order of time.
    disordered: list[str] = []

    @property
    def problems(self) -> list[str]:
        return [
            f"{kind}: {what}" for kind in self.__struct_fields__ for what in getattr(self, kind)
        ]

    def add(self, other: Verdict) -> None:
        for kind in self.__struct_fields__:
            getattr(self, kind).extend(getattr(other, kind))


def check_history(sessions: Mapping[str, Sequence[Operation]]) -> Verdict:
    """Check each session against what the auditor found of it at the end, when all was quiet."""
    found = Verdict()
    forks = {
        operation.fork: operation
        for operations in sessions.values()
        for operation in operations
        if operation.kind == "fork"
    }
    for name, operations in sessions.items():
        found.add(check_session(name, operations, forks.get(name), sessions))
    for name, forked in forks.items():
        if forked.outcome == "ok" and final_reading(sessions.get(name, ())) is None:
            found.lost.append(f"{forked}, and it is gone")
    return found


def check_session(
    name: str,
    operations: Sequence[Operation],
    forked: Operation | None = None,
    sessions: Mapping[str, Sequence[Operation]] | None = None,
) -> Verdict:
    """Check one session; `forked` is the call that made it, if it is a fork."""
    found = Verdict()
    final = final_reading(operations)
    if final is None:
        there = [o for o in operations if o.outcome == "ok" and (o.seen is None or o.seen.newest)]
        found.lost += [f"{each}: the session is gone" for each in there]
        return found
    shared = 0 if forked is None else forked.turn
    if forked is not None:
        _check_fork(forked, final, (sessions or {}).get(forked.session, ()), found)
    _check_turns(name, operations, final, shared, found)
    _check_undone(name, operations, final, shared, found)
    if not found.problems:  # else positions are not known
        found.disordered += _cycle(operations, final, shared, sessions or {})
    return found


def final_reading(operations: Sequence[Operation]) -> Reading | None:
    """What the auditor found; None if the session was not there, or its first turn."""
    seen = next((each.seen for each in reversed(operations) if each.client == AUDITOR), None)
    return seen if seen is not None and seen.first == 1 else None


def _check_turns(
    name: str, operations: Sequence[Operation], final: Reading, shared: int, found: Verdict
) -> None:
    numbers = sorted(final.texts)
    if numbers != list(range(1, final.newest + 1)):
        found.lost.append(f"{name} has turns {numbers}, and T-{final.newest} is the newest")
    places: dict[str, list[int]] = {}
    for number, text in final.texts.items():
        places.setdefault(text, []).append(number)
    found.doubled += [f"{name}: {text} is {at}" for text, at in places.items() if len(at) > 1]
    appends = {each.text: each for each in operations if each.kind == "append"}
    for text, each in appends.items():
        at = places.get(text, [])
        if each.outcome == "ok" and at != [each.turn] and len(at) < 2:
            found.lost.append(f"{each}, and it is at {at}")
        elif each.outcome == "failed" and at:
            found.phantoms.append(f"{each}, and it is at {at}")
    for number, text in final.texts.items():
        if number > shared and text not in appends:
            found.phantoms.append(f"{name}: nobody said {text!r}, which is T-{number}")
    for each in operations:
        for number, text in (each.seen.texts if each.seen is not None else {}).items():
            if final.texts.get(number) != text:
                found.changed.append(f"{each}: T-{number} was {text!r}")


def _check_undone(
    name: str, operations: Sequence[Operation], final: Reading, shared: int, found: Verdict
) -> None:
    undos = {each.turn: each for each in operations if each.kind == "undo"}
    for turn, each in undos.items():
        if each.outcome == "ok" and turn not in final.undone:
            found.lost.append(f"{each}, and it is not undone")
        elif each.outcome == "failed" and turn in final.undone:
            found.phantoms.append(f"{each}, and it is undone")
    for turn in final.undone:
        if turn > shared and turn not in undos:
            found.phantoms.append(f"{name}: nobody undid T-{turn}")


def _check_fork(
    forked: Operation, final: Reading, parent: Sequence[Operation], found: Verdict
) -> None:
    whole = final_reading(parent)
    if whole is None:
        return
    for number in range(1, forked.turn + 1):
        if final.texts.get(number) != whole.texts.get(number):
            found.changed.append(f"{forked}: T-{number} is {final.texts.get(number)!r}")


# The graph ------------------------------------------------------------------------------------


def _cycle(
    operations: Sequence[Operation],
    final: Reading,
    shared: int,
    sessions: Mapping[str, Sequence[Operation]],
) -> list[str]:
    """What no order explains; empty if there is one."""
    place = {text: number for number, text in final.texts.items()}
    took_place = [
        each
        for each in operations
        if each.outcome == "ok"
        or (each.kind == "append" and each.text in place)
        or (each.kind == "undo" and each.turn in final.undone)
    ]
    behind: list[list[int]] = [[] for _ in took_place]
    for first, second in _edges(took_place, place, shared, sessions):
        behind[first].append(second)
    _add_time(took_place, behind)
    return [str(took_place[each]) for each in _in_cycles(behind) if each < len(took_place)]


def _edges(
    operations: Sequence[Operation],
    place: Mapping[str, int],
    shared: int,
    sessions: Mapping[str, Sequence[Operation]],
) -> Iterator[tuple[int, int]]:
    """Pairs of which the first came to pass before the second, because of what was seen."""
    appended, undone = dict[int, int](), dict[int, int]()
    for index, each in enumerate(operations):
        if each.kind == "append":
            appended[place[each.text]] = index
        elif each.kind == "undo":
            undone[each.turn] = index
    for number, index in appended.items():
        if number - 1 in appended:
            yield appended[number - 1], index
    for turn, index in undone.items():
        if turn in appended:
            yield appended[turn], index
    for index, each in enumerate(operations):
        seen = each.seen if each.kind == "read" else _of_fork(each, sessions)
        if seen is None:
            continue
        if seen.newest in appended:
            yield appended[seen.newest], index
        after = max(seen.newest, shared) + 1
        if each.kind == "fork":
            # At the newest that was not undone: it came before the next, or behind its undo.
            while after in undone:
                after += 1
        if after in appended and (each.kind == "read" or each.at_newest):
            yield index, appended[after]
        for turn, undo in undone.items():
            if seen.first <= turn <= seen.newest:
                yield (undo, index) if turn in seen.undone else (index, undo)


def _of_fork(each: Operation, sessions: Mapping[str, Sequence[Operation]]) -> Reading | None:
    """A fork sees its parent as it has it itself: nobody undoes a turn that is shared."""
    if each.kind != "fork":
        return None
    final = final_reading(sessions.get(each.fork, ()))
    undone = frozenset() if final is None else final.undone
    return Reading(1 if final is not None else each.turn + 1, each.turn, {}, undone)


def _add_time(operations: Sequence[Operation], behind: list[list[int]]) -> None:
    """Edges from what had ended to what began then, by way of a node for each end in between."""
    moments = sorted(
        # At the same moment a beginning comes first: then neither was before the other.
        [(each.began, 0, index) for index, each in enumerate(operations)]
        + [(each.ended, 1, index) for index, each in enumerate(operations)]
    )
    passed: int | None = None
    for moment, ends, index in moments:
        if math.isinf(moment):
            return
        if not ends:
            if passed is not None:
                behind[passed].append(index)
            continue
        behind.append([])
        now = len(behind) - 1
        behind[index].append(now)
        if passed is not None:
            behind[passed].append(now)
        passed = now


def _in_cycles(behind: Sequence[Sequence[int]]) -> list[int]:
    """The nodes that are in a cycle or between two; empty if there is an order."""
    before: list[list[int]] = [[] for _ in behind]
    for node, following in enumerate(behind):
        for each in following:
            before[each].append(node)
    left = set(range(len(behind)))
    for ways, back in ((behind, before), (before, behind)):
        degree = [sum(each in left for each in found) for found in ways]
        ready = [node for node in left if not degree[node]]
        while ready:
            node = ready.pop()
            left.discard(node)
            for each in back[node]:
                degree[each] -= 1
                if not degree[each] and each in left:
                    ready.append(each)
    return sorted(left)

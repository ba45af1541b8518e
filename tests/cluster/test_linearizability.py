"""The checker of histories: what it has to refuse, and a plain search to compare it with."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.cluster.linearizability import Verdict, check_history
from tests.cluster.operation_history import Operation, Reading

LATE = 1000.0


def append(text: str, turn: int, began: float, ended: float = math.inf, **more: Any) -> Operation:
    known = "unknown" if math.isinf(ended) else "ok"
    facts = {"outcome": known, "client": "c", "session": "s", **more}
    return Operation(kind="append", text=text, turn=turn, began=began, ended=ended, **facts)


def undo(turn: int, began: float, ended: float = math.inf, **more: Any) -> Operation:
    known = "unknown" if math.isinf(ended) else "ok"
    facts = {"outcome": known, "client": "c", "session": "s", **more}
    return Operation(kind="undo", turn=turn, began=began, ended=ended, **facts)


def read(
    texts: str, began: float, ended: float, undone: Sequence[int] = (), session: str = "s"
) -> Operation:
    """Each letter is a turn."""
    turns = dict(enumerate(texts, 1))
    seen = Reading(1, len(texts), turns, frozenset(undone))
    return Operation(
        kind="read", session=session, client="c", began=began, ended=ended, outcome="ok", seen=seen
    )


def fork(name: str, turn: int, began: float, ended: float, **more: Any) -> Operation:
    return Operation(
        kind="fork",
        session="s",
        client="c",
        began=began,
        ended=ended,
        outcome="ok",
        turn=turn,
        fork=name,
        **more,
    )


def verdict(*operations: Operation) -> Verdict:
    sessions: dict[str, list[Operation]] = {}
    for each in operations:
        sessions.setdefault(each.session, []).append(each)
    return check_history(sessions)


FINE = {
    "nothing happened": [read("", 5, 6)],
    "one after the other": [append("a", 1, 0, 1), append("b", 2, 2, 3), read("ab", 5, 6)],
    "side by side, the later one first": [
        append("a", 2, 0, 3),
        append("b", 1, 1, 2),
        read("ba", 5, 6),
    ],
    "a read beside a write sees it or not": [
        append("a", 1, 0, 9),
        read("", 1, 2),
        read("a", 3, 4),
        read("a", LATE, LATE),
    ],
    "what nobody knows of came to pass later": [
        append("a", 0, 0),
        append("b", 1, 1, 2),
        read("b", 3, 4),
        read("ba", 5, 6),
    ],
    "what nobody knows of never came to pass": [append("a", 0, 0), read("", 5, 6)],
    "an undo beside a read": [
        append("a", 1, 0, 1),
        undo(1, 2, 6),
        read("a", 3, 4),
        read("a", 5, 7, [1]),
        read("a", LATE, LATE, [1]),
    ],
    "a fork, and its own turns": [
        append("a", 1, 0, 1),
        append("b", 2, 2, 3),
        fork("f", 1, 4, 5),
        append("x", 2, 6, 7, session="f"),
        read("ab", LATE, LATE),
        read("ax", LATE, LATE, session="f"),
    ],
    "a fork at the newest that is not undone": [
        append("a", 1, 0, 1),
        append("b", 2, 2, 3),
        undo(2, 4, 5),
        fork("f", 1, 6, 7, at_newest=True),
        read("ab", LATE, LATE, [2]),
        read("a", LATE, LATE, session="f"),
    ],
    "a fork from before an undo": [
        append("a", 1, 0, 1),
        fork("f", 1, 2, 5, at_newest=True),
        undo(1, 3, 4),
        read("a", LATE, LATE, [1]),
        read("a", LATE, LATE, session="f"),
    ],
}
REFUSED = {
    "an acknowledged append is lost": ("lost", [append("a", 1, 0, 1), read("", 5, 6)]),
    "an acknowledged append is replaced": (
        "lost",
        [append("a", 1, 0, 1), append("b", 1, 2, 3), read("b", 5, 6)],
    ),
    "an append is there twice": ("doubled", [append("a", 1, 0, 1), read("aa", 5, 6)]),
    "one of which nothing is known is there twice": (
        "doubled",
        [append("a", 0, 0), read("aa", 5, 6)],
    ),
    "what nobody said": ("phantoms", [read("a", 5, 6)]),
    "what was refused": ("phantoms", [append("a", 0, 0, 1, outcome="failed"), read("a", 5, 6)]),
    "another text at a number": (
        "changed",
        [append("a", 1, 0, 1), append("b", 2, 0, 1), read("ba", 2, 3), read("ab", 5, 6)],
    ),
    "a stale read": (
        "disordered",
        [append("a", 1, 0, 1), read("", 2, 3), read("a", LATE, LATE)],
    ),
    "a read that goes back": (
        "disordered",
        [append("a", 1, 0, 9), read("a", 1, 2), read("", 3, 4), read("a", LATE, LATE)],
    ),
    "a read of what was not yet said": (
        "disordered",
        [read("a", 0, 1), append("a", 1, 2, 3), read("a", LATE, LATE)],
    ),
    "numbers against the order of time": (
        "disordered",
        [append("a", 2, 0, 1), append("b", 1, 2, 3), read("ba", LATE, LATE)],
    ),
    "an append of which nothing is known, in front of what ended before it": (
        "disordered",
        [append("b", 2, 0, 1), append("a", 0, 2), read("ab", LATE, LATE)],
    ),
    "an undone turn is there again": (
        "lost",
        [append("a", 1, 0, 1), undo(1, 2, 3), read("a", LATE, LATE)],
    ),
    "a read that does not see an undo": (
        "disordered",
        [append("a", 1, 0, 1), undo(1, 2, 3), read("a", 4, 5), read("a", LATE, LATE, [1])],
    ),
    "nobody undid it": ("phantoms", [append("a", 1, 0, 1), read("a", LATE, LATE, [1])]),
    "two readers see two writes in two orders": (
        "disordered",
        [
            append("a", 1, 0, 1),
            append("b", 2, 2, 9),
            undo(1, 2, 9),
            read("ab", 3, 4),
            read("a", 3, 4, [1]),
            read("ab", LATE, LATE, [1]),
        ],
    ),
    "a fork of other turns": (
        "changed",
        [
            append("a", 1, 0, 1),
            fork("f", 1, 2, 3),
            read("a", LATE, LATE),
            read("b", LATE, LATE, session="f"),
        ],
    ),
    "a fork of an old state": (
        "disordered",
        [
            append("a", 1, 0, 1),
            append("b", 2, 2, 3),
            fork("f", 1, 4, 5, at_newest=True),
            read("ab", LATE, LATE),
            read("a", LATE, LATE, session="f"),
        ],
    ),
    "a fork is gone": (
        "lost",
        [append("a", 1, 0, 1), fork("f", 1, 2, 3), read("a", LATE, LATE)],
    ),
    "a session is gone": ("lost", [append("a", 1, 0, 1)]),
}


@pytest.mark.parametrize("name", FINE)
def test_what_can_have_happened(name: str) -> None:
    assert verdict(*FINE[name]).problems == []


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot(name: str) -> None:
    kind, operations = REFUSED[name]
    found = verdict(*operations)
    assert getattr(found, kind), found


@st.composite
def histories(draw: st.DrawFn) -> list[Operation]:
    """A few calls at random times that were told something at random, mostly what can be."""
    size = draw(st.integers(1, 3))
    texts = draw(st.permutations("abc"[:size]))
    undone = draw(st.sets(st.integers(1, size), max_size=2))
    made = list[Operation]()

    def span() -> tuple[float, float]:
        began = draw(st.integers(0, 8))
        return began, began + draw(st.integers(1, 4))

    for number, text in enumerate(texts, 1):
        began, ended = span()
        known = draw(st.integers(0, 3))
        made.append(append(text, number, began, ended if known else math.inf))
    for number in sorted(undone):
        began, ended = span()
        made.append(undo(number, began, ended if draw(st.integers(0, 3)) else math.inf))
    for _ in range(draw(st.integers(0, 3))):
        newest = draw(st.integers(0, size))
        seen = draw(st.sets(st.sampled_from(sorted(undone)))) if undone else set()
        made.append(read("".join(texts[:newest]), *span(), [n for n in seen if n <= newest]))
    return [*made, read("".join(texts), LATE, LATE, sorted(undone))]


@given(histories())
def test_it_says_what_a_search_through_all_orders_says(operations: list[Operation]) -> None:
    assert (not verdict(*operations).problems) == _search(operations)


def _search(operations: Sequence[Operation]) -> bool:
    """Whether some order of all that came to pass keeps to time, and explains each call."""
    writes = [each for each in operations if each.kind != "read"]
    reads = [each for each in operations if each.kind == "read"]
    return any(
        _explains([*order], reads)
        for order in itertools.permutations(writes)
        if _keeps_time(order) and _numbers([*order])
    )


def _keeps_time(order: Sequence[Operation]) -> bool:
    return not any(b.ended < a.began for a, b in itertools.combinations(order, 2))


def _numbers(order: Sequence[Operation]) -> bool:
    """Each append gets the next number, and a turn is undone that is there."""
    count = 0
    for each in order:
        count += each.kind == "append"
        if each.kind == "append" and each.turn != count:
            return False
        if each.kind == "undo" and each.turn > count:
            return False
    return True


def _explains(order: list[Operation], reads: Sequence[Operation]) -> bool:
    if not reads:
        return True
    first, *rest = reads
    for at in range(len(order) + 1):
        tried = [*order[:at], first, *order[at:]]
        done = [each for each in tried[:at] if each.kind != "read"]
        seen = first.seen
        assert seen is not None
        if (
            _keeps_time(tried)
            and seen.newest == sum(each.kind == "append" for each in done)
            and seen.undone == {each.turn for each in done if each.kind == "undo"}
            and _explains(tried, rest)
        ):
            return True
    return False

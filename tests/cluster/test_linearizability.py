"""The checker of histories: what it has to refuse, and a plain search to compare it with."""

from __future__ import annotations

import hashlib
import itertools
import math
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.core.messages import ArtifactPointer, Message, assistant, user
from tests.cluster.cluster_load import LoadReport
from tests.cluster.linearizability import Verdict, check_history
from tests.cluster.operation_history import AUDITOR, History, Operation, Reading, words_of_turn

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


def final(texts: str, undone: Sequence[int] = (), session: str = "s") -> Operation:
    """What the auditor finds at the end."""
    found = read(texts, LATE, LATE, undone, session)
    found.client = AUDITOR
    return found


def not_found(session: str = "s") -> Operation:
    return Operation(
        kind="read", session=session, client=AUDITOR, began=LATE, ended=LATE, outcome="failed"
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
    "nothing happened": [final("")],
    "one after the other": [append("a", 1, 0, 1), append("b", 2, 2, 3), final("ab")],
    "side by side, the later one first": [
        append("a", 2, 0, 3),
        append("b", 1, 1, 2),
        final("ba"),
    ],
    "a read beside a write sees it or not": [
        append("a", 1, 0, 9),
        read("", 1, 2),
        read("a", 3, 4),
        final("a"),
    ],
    "what nobody knows of came to pass later": [
        append("a", 0, 0),
        append("b", 1, 1, 2),
        read("b", 3, 4),
        final("ba"),
    ],
    "what nobody knows of never came to pass": [append("a", 0, 0), final("")],
    "an undo beside a read": [
        append("a", 1, 0, 1),
        undo(1, 2, 6),
        read("a", 3, 4),
        read("a", 5, 7, [1]),
        final("a", [1]),
    ],
    "a fork, and its own turns": [
        append("a", 1, 0, 1),
        append("b", 2, 2, 3),
        fork("f", 1, 4, 5),
        append("x", 2, 6, 7, session="f"),
        final("ab"),
        final("ax", session="f"),
    ],
    "a fork at the newest that is not undone": [
        append("a", 1, 0, 1),
        append("b", 2, 2, 3),
        undo(2, 4, 5),
        fork("f", 1, 6, 7, at_newest=True),
        final("ab", [2]),
        final("a", session="f"),
    ],
    "a fork from before an undo": [
        append("a", 1, 0, 1),
        fork("f", 1, 2, 5, at_newest=True),
        undo(1, 3, 4),
        final("a", [1]),
        final("a", session="f"),
    ],
}
REFUSED = {
    "an acknowledged append is lost": ("lost", [append("a", 1, 0, 1), final("")]),
    "an acknowledged append is replaced": (
        "lost",
        [append("a", 1, 0, 1), append("b", 1, 2, 3), final("b")],
    ),
    "an append is there twice": ("doubled", [append("a", 1, 0, 1), final("aa")]),
    "one of which nothing is known is there twice": (
        "doubled",
        [append("a", 0, 0), final("aa")],
    ),
    "what nobody said": ("phantoms", [final("a")]),
    "what was refused": ("phantoms", [append("a", 0, 0, 1, outcome="failed"), final("a")]),
    "another text at a number": (
        "changed",
        [append("a", 1, 0, 1), append("b", 2, 0, 1), read("ba", 2, 3), final("ab")],
    ),
    "a stale read": (
        "disordered",
        [append("a", 1, 0, 1), read("", 2, 3), final("a")],
    ),
    "a read that goes back": (
        "disordered",
        [append("a", 1, 0, 9), read("a", 1, 2), read("", 3, 4), final("a")],
    ),
    "a read of what was not yet said": (
        "disordered",
        [read("a", 0, 1), append("a", 1, 2, 3), final("a")],
    ),
    "numbers against the order of time": (
        "disordered",
        [append("a", 2, 0, 1), append("b", 1, 2, 3), final("ba")],
    ),
    "an append of which nothing is known, in front of what ended before it": (
        "disordered",
        [append("b", 2, 0, 1), append("a", 0, 2), final("ab")],
    ),
    "an undone turn is there again": (
        "lost",
        [append("a", 1, 0, 1), undo(1, 2, 3), final("a")],
    ),
    "a read that does not see an undo": (
        "disordered",
        [append("a", 1, 0, 1), undo(1, 2, 3), read("a", 4, 5), final("a", [1])],
    ),
    "nobody undid it": ("phantoms", [append("a", 1, 0, 1), final("a", [1])]),
    "two readers see two writes in two orders": (
        "disordered",
        [
            append("a", 1, 0, 1),
            append("b", 2, 2, 9),
            undo(1, 2, 9),
            read("ab", 3, 4),
            read("a", 3, 4, [1]),
            final("ab", [1]),
        ],
    ),
    "a fork of other turns": (
        "changed",
        [
            append("a", 1, 0, 1),
            fork("f", 1, 2, 3),
            final("a"),
            final("b", session="f"),
        ],
    ),
    "a fork of an old state": (
        "disordered",
        [
            append("a", 1, 0, 1),
            append("b", 2, 2, 3),
            fork("f", 1, 4, 5, at_newest=True),
            final("ab"),
            final("a", session="f"),
        ],
    ),
    "a fork is gone": (
        "lost",
        [append("a", 1, 0, 1), fork("f", 1, 2, 3), final("a")],
    ),
    "a session is gone": ("lost", [append("a", 1, 0, 1), not_found()]),
    "a session is gone that was read before": (
        "lost",
        [append("a", 1, 0, 1), read("a", 2, 3), not_found()],
    ),
    "a session is gone of which only a reader knows": (
        "lost",
        [append("a", 0, 0), read("a", 2, 3), not_found()],
    ),
    "a session that the auditor did not read": ("lost", [append("a", 1, 0, 1), read("a", 2, 3)]),
    "a fork is gone that was read before": (
        "lost",
        [
            append("a", 1, 0, 1),
            fork("f", 1, 2, 3),
            read("a", 4, 5, session="f"),
            final("a"),
            not_found("f"),
        ],
    ),
}


@pytest.mark.parametrize("name", FINE)
def test_what_can_have_happened(name: str) -> None:
    assert verdict(*FINE[name]).problems == []


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot(name: str) -> None:
    kind, operations = REFUSED[name]
    found = verdict(*operations)
    assert getattr(found, kind), found


@pytest.mark.parametrize(
    "left", [[user("a")], [user("a"), assistant("Noted: b.")], [assistant("Noted: a.")], []]
)
def test_a_turn_that_lost_its_answer_is_another(left: list[Message]) -> None:
    said = append(words_of_turn([user("a"), assistant("Noted: a.")]), 1, 0, 1)
    found = final("")
    found.seen = Reading(1, 1, {1: words_of_turn(left)})
    assert verdict(said, found).lost
    found.seen = Reading(1, 1, {1: said.text})
    assert not verdict(said, found).problems


def test_an_answer_in_the_artifact_store_is_the_same() -> None:
    name = f"sha256:{hashlib.sha256(b'long').hexdigest()}"
    stored = Message("assistant", (ArtifactPointer(name, 4),))
    assert words_of_turn([user("a"), stored]) == words_of_turn([user("a"), assistant("long")])


@pytest.mark.parametrize(
    ("ok", "failed", "unknown", "enough"),
    [
        (80, 10, 10, True),
        (79, 21, 0, False),
        (79, 0, 21, False),
        (0, 9, 0, False),
        (0, 0, 0, False),
    ],
)
def test_most_operations_have_to_end_ok(ok: int, failed: int, unknown: int, enough: bool) -> None:
    history = History()
    for outcome, times in {"ok": ok, "failed": failed, "unknown": unknown}.items():
        for _ in range(times):
            history.end(history.begin("read", "s", "c"), outcome)  # type: ignore[arg-type]
    assert history.count == ok
    report = LoadReport(
        outcomes=history.outcomes(),
        verdict=Verdict(),
        messages=0,
        slowest_answer=0.0,
        agents_wrong=[],
        artifacts=0,
        artifacts_wrong=[],
        streams_wrong=[],
        stream_breaks=0,
        errors={"unavailable": failed + unknown},
    )
    expected = [] if enough else [f"{ok} of {ok + failed + unknown} operations ended ok"]
    assert report.problems == expected


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
    return [*made, final("".join(texts), sorted(undone))]


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

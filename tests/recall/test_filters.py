"""What a hit must be."""

from __future__ import annotations

from typing import Any

import pytest

from perdure.core.clock import SECOND
from perdure.recall.places import ANSWERED, REFERENCES, SAID, TOOLS, Spot, memories_of, turns
from perdure.recall.scoping.filters import Passing, passes
from perdure.recall.scoping.scope import GroupNumbers, Scope, narrowed
from perdure.recall.values import Filters, Kind, Note

_GROUPS = GroupNumbers(
    {
        "ann/a": 0,
        "ann/b": 1,
        "bob/a": 2,
        memories_of("ann"): 3,
        memories_of("bob"): 4,
        REFERENCES: 5,
    }
)
_PARENT = turns(2, 1, 5)
#: Of ann/a, a fork of bob/a; ann/b is seen, too, and one memory of bob's.
_SCOPE = Scope(
    _GROUPS,
    turns=(turns(0), turns(1), _PARENT),
    line=(turns(0), _PARENT),
    memories=(turns(3), turns(4, 7, 7)),
    references=(turns(5),),
    session="ann/a",
)


@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        (Filters(), {"a", "b", "parent", "memory", "bobs", "reference"}),
        (Filters(kinds=("turn",)), {"a", "b", "parent"}),
        (Filters(kinds=("memory", "reference")), {"memory", "bobs", "reference"}),
        (Filters(line=True), {"a", "parent"}),
        (Filters(agents=("ann",)), {"a", "b", "memory"}),
        (Filters(agents=("bob",)), {"parent", "bobs"}),
        (Filters(agents=("cy",)), set()),
        (Filters(sessions=("ann/a",)), {"a", "parent"}),
        (Filters(sessions=("ann/b",)), {"b"}),
        (Filters(sessions=("bob/a",)), {"parent"}),
        (Filters(sessions=("bob/elsewhere",)), set()),
        (Filters(agents=("bob",), sessions=("ann/b",)), {"b", "parent", "bobs"}),
        (Filters(line=True, agents=("ann",)), {"a"}),
        (Filters(kinds=("memory",), sessions=("ann/a",)), set()),
    ],
)
def test_a_scope_is_narrowed_before_anything_is_searched(
    filters: Filters, expected: set[str]
) -> None:
    places = {
        "a": Spot(0, 3),
        "b": Spot(1, 3),
        "parent": Spot(2, 5),
        "unseen": Spot(2, 6),
        "memory": Spot(3, 1),
        "bobs": Spot(4, 7),
        "private": Spot(4, 8),
        "reference": Spot(5, 1),
    }
    scope = narrowed(_SCOPE, filters)
    assert {name for name, spot in places.items() if scope.allows(spot.place)} == expected


_NOTE = Note(
    time=1_000,
    lengths=(3, 0, 4),
    tools=("bash", "grep"),
    tags={"branch": "main", "task": "fix", "outcome": "failed", "team": "red"},
)


def _passes(filters: Filters, kind: Kind = "turn", **changes: Any) -> bool:
    facts: dict[str, Any] = {"note": _NOTE, "fields": (), **changes}
    return passes(filters, Passing(kind=kind, spot=Spot(0, 1), session="ann/a", **facts))


@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        (Filters(), True),
        (Filters(tools=("grep", "make")), True),
        (Filters(tools=("make",)), False),
        (Filters(branch="main", task="fix", outcome="failed"), True),
        (Filters(branch="other"), False),
        (Filters(task="review"), False),
        (Filters(outcome="done"), False),
        (Filters(tags={"team": "red"}), True),
        (Filters(tags={"team": "red", "branch": "other"}), False),
        (Filters(tags={"colour": "red"}), False),
        (Filters(since=1_000 * SECOND), True),
        (Filters(since=1_000 * SECOND + 5), True),  # in the same second
        (Filters(since=1_001 * SECOND), False),
        (Filters(until=1_000 * SECOND), True),
        (Filters(until=999 * SECOND), False),
        (Filters(since=999 * SECOND, until=1_001 * SECOND), True),
    ],
)
def test_a_note_is_asked(filters: Filters, expected: bool) -> None:
    assert _passes(filters) is expected


def test_roles_are_those_of_the_words_that_were_found() -> None:
    assert _passes(Filters(roles=("user",)), fields={SAID})
    assert _passes(Filters(roles=("user", "tool")), fields={TOOLS})
    assert not _passes(Filters(roles=("user",)), fields={ANSWERED, TOOLS})
    assert not _passes(Filters(roles=("nobody",)), fields={SAID})


def test_what_is_found_by_meaning_has_the_roles_of_its_words() -> None:
    assert _passes(Filters(roles=("tool",)))
    assert not _passes(Filters(roles=("assistant",)))


def test_a_memory_is_nobodys_words() -> None:
    assert not _passes(Filters(roles=("user",)), kind="memory", fields={SAID})
    assert _passes(Filters(kinds=("memory",)), kind="memory")
    assert not _passes(Filters(kinds=("turn",)), kind="memory")

"""Names that may have been meant."""

from __future__ import annotations

import pytest

from perdure.core.display import did_you_mean, nearest_names

NAMES = ["planner/auth", "planner/oauth", "planner/zoo", "coder/auth", "planner", "Ada/Notes"]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("planner/zo", ["planner/zoo"]),
        ("zoo", ["planner/zoo"]),
        ("planner/auht", ["planner/auth", "coder/auth", "planner/oauth"]),
        ("coder/auth2", ["coder/auth", "planner/auth", "planner/oauth"]),
        ("ada/notes", ["Ada/Notes"]),
        ("planer", ["planner"]),
        ("planner/oa", ["planner/oauth"]),
        ("planner/a", []),
        ("pla", ["planner"]),
        ("bob/private", []),
        ("", []),
    ],
)
def test_the_nearest_come_first(name: str, expected: list[str]) -> None:
    assert nearest_names(name, NAMES) == expected


def test_a_question_is_asked_only_if_there_is_something_to_ask() -> None:
    assert did_you_mean("zo", NAMES) == "Did you mean planner/zoo?"
    assert did_you_mean("coder/auth2", NAMES[::3]) == "Did you mean coder/auth or planner/auth?"
    assert did_you_mean("xyz", NAMES) == ""

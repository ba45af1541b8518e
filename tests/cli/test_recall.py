"""``perdure recall``."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

import perdure
from perdure.core.messages import assistant, user
from tests.cli.conftest import Ask, Run

FIELDS = ["kind", "turn", "key", "level", "score", "why", "text"]


@pytest.fixture
def bank(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A bank with two sessions of one agent, and one of another."""
    url = f"sqlite:///{tmp_path / 'recall.db'}"
    monkeypatch.setenv("PERDURE_BANK", url)

    async def fill() -> None:
        async with perdure.open(url) as bank:
            auth = await bank.session("planner/auth")
            await auth.append(
                [user("OAuth tokens\x1b[31m rotate hourly."), assistant("I see.\n" * 9)],
                tags={"topic": "auth"},
            )
            await auth.append([user("And roses?"), assistant("They want water.")])
            other = await bank.session("planner/zoo")
            await other.append([user("The zebra eats at noon."), assistant("Good.")])
            private = await bank.session("bob/private")
            await private.append([user("The zebra password is hunter2."), assistant("Hush.")])
            await bank.session("ada/empty")
            await bank.settle()

    asyncio.run(fill())
    return url


def test_json_has_exactly_what_is_promised(bank: str, ask: Ask) -> None:
    code, found = ask("recall", "planner/auth", "oauth tokens", "-k", "1")
    assert code == 0
    assert list(found) == ["stage", "took_ms", "hits"]
    assert found["stage"] in {"keyword", "vector"}  # a model takes a while to load
    assert found["took_ms"] > 0
    (hit,) = (hit for hit in found["hits"] if "OAuth" in hit["text"])
    assert list(hit) == FIELDS
    assert (hit["kind"], hit["turn"], hit["key"]) == ("turn", "T-1.1", "T-1.1")
    assert hit["level"] in {"R", "S", "C"}
    assert 0 <= hit["score"] <= 1
    assert hit["why"]


def test_other_sessions_are_found_but_not_those_of_others(bank: str, ask: Ask) -> None:
    _, found = ask("recall", "auth", "zebra")
    assert found["hits"][0]["turn"] == "planner/zoo#T-1.1"
    assert "hunter2" not in str(found)


def test_a_list_for_people(bank: str, run: Run) -> None:
    shown = run("recall", "planner/auth", "oauth tokens", "--limit", "1")
    assert shown.exit_code == 0
    lines = shown.stdout.splitlines()
    assert lines[0].startswith("T-1.1, just now, ")
    assert lines[1] == "  User: OAuth tokens\\x1b[31m rotate hourly."
    assert "more line" in shown.stdout
    assert "by words" in shown.stderr


def test_filters_are_options(bank: str, ask: Ask) -> None:
    def turns(*options: str) -> list[str]:
        code, found = ask("recall", "planner/auth", "oauth tokens", *options)
        assert code == 0, found
        return [hit["turn"] for hit in found["hits"] if "OAuth" in hit["text"]]

    kept = (
        *("--kind=turn", "--agent=planner", "--session=planner/auth", "--line", "--role=user"),
        *("--tag=topic=auth", "--since=1d", "--wide", "--judged", "--deadline=5"),
    )
    for option in kept:
        assert turns(option) == ["T-1.1"], option
    dropped = (
        *("--kind=memory", "--session=planner/zoo", "--role=tool", "--tool=Bash"),
        *("--branch=main", "--task=bug", "--outcome=failed", "--tag=topic=zoo", "--until=1d"),
    )
    for option in dropped:
        assert turns(option) == [], option


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (("planner/nobody", "x"), "There is no session 'planner/nobody'."),
        (("planner/auth", " "), "The query is empty."),
        (("planner/auth", "x", "--kind", "turns"), "Use turn, memory, reference."),
        (("planner/auth", "x", "--role", "human"), "Use user, assistant, tool."),
        (("planner/auth", "x", "--tag", "topic"), "'topic' is no tag."),
        (("planner/auth", "x", "--since", "soon"), "'soon' is no time."),
        (("planner/auth", "x", "--deadline", "0"), "deadline is 0.0."),
    ],
)
def test_what_is_wrong_is_said(bank: str, run: Run, args: tuple[str, ...], says: str) -> None:
    shown = run("recall", *args)
    assert shown.exit_code == 1
    assert says in shown.stderr
    assert not shown.stdout


def test_nothing_is_found_in_nothing(bank: str, run: Run, ask: Ask) -> None:
    code, found = ask("recall", "ada/empty", "zebra")
    assert code == 0
    assert found["hits"] == []
    shown = run("recall", "ada/empty", "zebra")
    assert shown.exit_code == 0
    assert shown.stdout == "Nothing was found for 'zebra'.\n"


def test_a_bank_that_is_not_there(run: Run, tmp_path: Path) -> None:
    shown = run("recall", "a/b", "x", "--bank", f"sqlite:///{tmp_path / 'none.db'}")
    assert shown.exit_code == 1
    assert not (tmp_path / "none.db").exists()

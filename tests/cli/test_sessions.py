from __future__ import annotations

import re
from pathlib import Path

import pytest

import perdure
from perdure.cli.bank_access import fitting_names
from perdure.history.log_records import Link
from tests.cli.conftest import Ask, Run


def test_the_sessions_there_are(run: Run, ask: Ask, chat: str) -> None:
    code, found = ask("sessions")
    assert code == 0
    names = [each["name"] for each in found["sessions"]]
    assert names[0] == "planner/auth.helper"
    assert sorted(names) == ["coder/auth", "planner/auth", "planner/auth.helper"]
    fork, auth, _ = sorted(found["sessions"], key=lambda each: each["name"])
    assert (auth["turns"], auth["rounds"], auth["messages"]) == (25, 25, 52)
    assert auth["tokens"] > 200
    assert (fork["parent"], fork["forked_at"], fork["turns"]) == ("planner/auth", 10, 11)
    lines = run("sessions").stdout.splitlines()
    assert [line.split()[0] for line in lines] == ["Session", *names]
    of_fork, of_auth, of_helper = sorted(lines[1:])
    assert of_auth.split()[-3:] == ["25", "25", f"{auth['tokens']:,}"]
    assert "/srv/app" in of_auth
    assert "sub-agent" in of_helper
    assert "fork of planner/auth at T-10" in of_fork


def test_some_of_them(ask: Ask, chat: str) -> None:
    def names(*args: str) -> list[str]:
        return [each["name"] for each in ask("sessions", *args)[1]["sessions"]]

    assert names("--agent", "coder") == ["coder/auth"]
    assert names("--agent", "nobody") == []
    assert "planner/old" in names("--archived")


def test_as_a_tree(run: Run, chat: str) -> None:
    lines = [line.partition("  ")[0] for line in run("sessions", "--tree").stdout.splitlines()]
    assert lines[1:] == ["planner/auth", "├─ planner/auth.helper", "└─ coder/auth"]


def test_a_tree_of_forks_of_forks(run: Run, chat: str) -> None:
    for above, new in (("coder/auth", "a"), ("coder/a", "b"), ("coder/auth", "c")):
        assert run("fork", above, new).exit_code == 0
    lines = [
        re.split(r"(?<=\w)  ", line)[0] for line in run("sessions", "--tree").stdout.splitlines()
    ]
    assert lines[1:] == [
        "planner/auth",
        "├─ planner/auth.helper",
        "└─ coder/auth",
        "   ├─ coder/c",
        "   └─ coder/a",
        "      └─ coder/b",
    ]


def test_no_sessions_yet(run: Run, ask: Ask) -> None:
    run("bank", "init")
    assert run("sessions").stdout.startswith("There are no sessions yet.")
    assert ask("sessions") == (0, {"sessions": []})


def test_forking(run: Run, ask: Ask, chat: str) -> None:
    made = run("fork", "planner/auth", "coder/try", "--at", "T-7")
    assert made.exit_code == 0
    assert made.stdout == "Forked planner/auth behind T-7: coder/try goes on at T-8.\n"
    code, found = ask("fork", "planner/auth", "again")
    assert code == 0
    assert found == {"name": "planner/again", "parent": "planner/auth", "forked_at": 25}
    turns = ask("show", "coder/try")[1]["turns"]
    assert [turn["number"] for turn in turns] == [1, 2, 3, 4, 5, 6, 7]


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["planner/auth", "coder/auth"], "There is a session coder/auth already."),
        (["planner/auth", "coder/new", "--at", "T-99"], "has no turn T-99"),
        (["planner/auth", "coder/new", "--at", "soon"], "'soon' does not name a turn"),
        (["planner/auth", "a/b/c"], "cannot be the name of a session"),
        (["nobody", "coder/new"], "There is no session 'nobody'"),
    ],
)
def test_what_cannot_be_forked(args: list[str], words: str, run: Run, chat: str) -> None:
    result = run("fork", *args)
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith("perdure: ")
    assert words in result.stderr


NAMES = ["coder/auth", "planner/auth", "planner/auth.helper", "planner/old", "x/4d56-17", "x/4d57"]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("old", ["planner/old"]),
        ("ol", ["planner/old"]),
        ("ld", ["planner/old"]),
        ("planner/o", ["planner/old"]),
        ("coder", ["coder/auth"]),
        ("helper", ["planner/auth.helper"]),
        ("auth", ["coder/auth", "planner/auth"]),
        ("auth.", ["planner/auth.helper"]),
        ("4d5", ["x/4d56-17", "x/4d57"]),
        ("-17", ["x/4d56-17"]),
        ("", []),
        ("nothing", []),
    ],
)
def test_abbreviations(text: str, found: list[str]) -> None:
    assert fitting_names(text, NAMES) == found


def test_an_abbreviation_that_fits_several(run: Run, chat: str) -> None:
    assert run("show", "old").exit_code == 0
    result = run("show", "auth")
    assert result.exit_code == 1
    assert "'auth' fits 2 sessions: coder/auth, planner/auth." in result.stderr
    assert "There is no session ''." in run("show", "").stderr


def test_an_abbreviation_of_a_session_and_its_sub_agents_means_the_session(
    ask: Ask, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"sqlite:///{tmp_path / 'bank.db'}"
    monkeypatch.setenv("PERDURE_BANK", url)
    with perdure.open_sync(url) as bank:
        bank.session("planner/4d5611e5")
        bank.session("planner/4d5611e5.a2898e3", link=Link("planner/4d5611e5"))
        bank.session("planner/4d5611e5.a2898e3.b1", link=Link("planner/4d5611e5.a2898e3"))
        bank.session("planner/4d5700aa")
        bank.session("planner/4d5700aa.copy")  # alike by name alone
    assert ask("share", "4d56")[1]["session"] == "planner/4d5611e5"
    assert ask("share", "4d5611e5.")[1]["session"] == "planner/4d5611e5.a2898e3"
    assert "'4d57' fits 2 sessions: " in run("share", "4d57").stderr
    both = run("share", "4d5").stderr
    assert "fits 3 sessions: planner/4d5611e5, planner/4d5700aa, planner/4d5700aa.copy." in both

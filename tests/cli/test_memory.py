from __future__ import annotations

import json
from pathlib import Path

import pytest

import perdure
from perdure.core.actors import system_user
from perdure.core.messages import assistant, user
from perdure.recall.memory_records import machine
from tests.cli.conftest import Ask, Run


@pytest.fixture
def bank(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A bank in which a machine has learnt three things; the default of the test."""
    url = f"sqlite:///{tmp_path / 'bank.db'}"
    monkeypatch.setenv("PERDURE_BANK", url)
    with perdure.open_sync(url) as opened:
        opened.session("planner/auth").append([user("Where?"), assistant("On 8123.")])
        add = opened.memories.add
        bot = machine("planner")
        add("planner", "The port is 8123.", tags=["net"], provenance=["planner/auth#T-1"], by=bot)
        add("planner", "Prefers small commits.", kind="preference", by=bot)
        add("coder", "Uses vim.", by=bot)
    return url


def test_adding_merges_what_is_known(run: Run, ask: Ask, bank: str) -> None:
    code, made = ask(
        *("memory", "add", "planner", "Never push to main", "--kind", "lesson"),
        *("--tag", "git", "--weight", "0.9", "--from", "planner/auth#T-1", "--share", "coder"),
    )
    assert code == 0
    assert (made["key"], made["kind"], made["weight"]) == ("planner/M-3", "lesson", 0.9)
    assert (made["tags"], made["shared"]) == (["git"], ["coder"])
    assert made["provenance"] == ["planner/auth#T-1"]
    assert made["author"] == {"name": system_user(), "person": True}
    assert made["by_person"] is True
    again = run("memory", "add", "planner", "never push to main.", "--kind", "lesson")
    assert again.stdout == "planner/M-3 (lesson) says so already: it was seen 2 times.\n"
    other = run("memory", "add", "planner", "“Never push” to main", "--kind", "fact")
    assert other.stdout == "planner/M-3 (lesson) says so already: it was seen 3 times.\n"


def test_a_contradiction_is_told(run: Run, bank: str) -> None:
    run("memory", "add", "planner", "The port is 9000.")
    with perdure.open_sync(bank) as opened:
        opened.memories.contradict(["planner/M-1", "planner/M-3"])
    told = run("memory", "edit", "planner/M-3", "--weight", "0.9")
    assert "It contradicts planner/M-1." in told.stderr
    shown = run("memory", "show", "planner/M-3").stdout
    assert "The port is 9000. (before: The port is 8123.)" in shown
    assert "Contradicts" in shown


def test_what_was_merged_is_not_said_to_contradict(run: Run, bank: str) -> None:
    run("memory", "add", "planner", "The port is 9000.")
    with perdure.open_sync(bank) as opened:
        opened.memories.contradict(["planner/M-1", "planner/M-3"])
    told = run("memory", "merge", "planner/M-3", "planner/M-1").stderr
    assert "contradicts" not in told
    assert "planner/M-1: not recalled any more." in told


def test_wrong_input_is_one_line(run: Run, ask: Ask, bank: str) -> None:
    for wrong in (
        ("add", "planner", ""),
        ("add", "planner", "x", "--kind", "rumour"),
        ("add", "a/b", "x"),
        ("show", "planner/M-99"),
        ("show", "M-1"),
        ("edit", "nonsense", "x"),
        ("history", "planner/M-99"),
        ("merge", "planner/M-1"),
        ("merge", "planner/M-1", "planner/M-1"),
        ("merge", "planner/M-1", "coder/M-1"),
        ("edit", "planner/M-1"),
        ("delete", "planner/M-99"),
        ("add", "planner", "x", "--from", "planner/auth#T-9"),
        ("list", "--status", "odd"),
    ):
        result = run("memory", *wrong)
        assert result.exit_code == 1
        assert len(result.stderr.splitlines()) == 1
    assert run("memory", "add", "planner", "x", "--weight", "7").exit_code == 2
    code, answer = ask("memory", "show", "planner/M-99")
    assert (code, answer["error"]["type"]) == (1, "InvalidInput")


def test_list_filters(run: Run, ask: Ask, bank: str) -> None:
    _, found = ask("memory", "list")
    assert found["count"] == 3
    keys = [each["key"] for each in found["memories"]]
    assert keys == ["planner/M-2", "coder/M-1", "planner/M-1"]
    shown = run("memory", "list", "planner", "--limit", "1")
    assert "Prefers small commits." in shown.stdout
    assert "2 memories. 1 are not shown" in shown.stderr
    for filters, key in (
        (("--kind", "preference"), "planner/M-2"),
        (("--tag", "net"), "planner/M-1"),
        (("--weight", "0.8"), "planner/M-2"),
        (("--words", "PORT"), "planner/M-1"),
    ):
        _, found = ask("memory", "list", "planner", *filters)
        assert [each["key"] for each in found["memories"]] == [key]
    assert run("memory", "list", "nobody").stderr == "0 memories.\n"


def test_edits_are_kept_and_listed(run: Run, ask: Ask, bank: str) -> None:
    assert run("memory", "edit", "planner/M-1", "The port is 9000.", "--tag", "").exit_code == 0
    code, _ = ask("memory", "edit", "planner/M-1", "x", "--expected", "1")
    assert code == 1
    _, found = ask("memory", "history", "planner/M-1")
    assert [(each["version"], each["text"], each["tags"]) for each in found["versions"]] == [
        (1, "The port is 8123.", ["net"]),
        (2, "The port is 9000.", []),
    ]
    shown = run("memory", "history", "planner/M-1").stdout
    assert "planner (a machine)" in shown
    assert f"{system_user()} (a person)" in shown


def test_the_life_of_a_memory(run: Run, ask: Ask, bank: str) -> None:
    assert ask("memory", "pin", "planner/M-1")[1]["pinned"] is True
    assert run("memory", "list", "planner").stdout.splitlines()[1].startswith("planner/M-1")
    assert ask("memory", "unpin", "planner/M-1")[1]["pinned"] is False
    _, gone = ask("memory", "retire", "planner/M-1", "--superseded-by", "planner/M-2")
    assert (gone["status"], gone["into"]) == ("superseded", "planner/M-2")
    assert ask("memory", "list", "planner")[1]["count"] == 1
    assert ask("memory", "list", "planner", "--status", "any")[1]["count"] == 2
    assert ask("memory", "restore", "planner/M-1")[1]["status"] == "active"
    _, merged = ask("memory", "merge", "planner/M-2", "planner/M-1", "--text", "Both.")
    assert (merged["key"], merged["text"], merged["seen"]) == ("planner/M-2", "Both.", 2)


def test_every_change_says_what_happened(run: Run, bank: str) -> None:
    for command, said in (
        ("pin planner/M-1", "planner/M-1 is pinned: it comes first."),
        ("pin planner/M-1", "planner/M-1 was pinned already."),
        ("retire planner/M-1", "planner/M-1 is retired: it is kept, not pinned any more, and not"),
        ("retire planner/M-1", "planner/M-1 was retired already."),
        ("pin planner/M-1", "planner/M-1 is retired, and not recalled any more. Restore it first."),
        ("unpin planner/M-1", "planner/M-1 was not pinned."),
        ("restore planner/M-1", "planner/M-1 was retired, and is active again."),
        ("restore planner/M-1", "planner/M-1 was active all the time."),
        ("edit planner/M-1 --kind fact", "planner/M-1 says that already, and is as it was: at"),
        ("edit planner/M-1 --weight 0.9", "planner/M-1 is at version 5 now."),
        ("merge planner/M-2 planner/M-1", "planner/M-2 stands for planner/M-1 as well, and says: "),
        ("pin planner/M-1", "planner/M-1 is merged into planner/M-2, and not recalled any more."),
        ("delete planner/M-2", "with its former versions and what was merged into it: planner/M-1"),
    ):
        result = run("memory", *command.split(), answer="y\n")
        assert said in result.stdout + result.stderr
    assert run("memory", "list", "planner", "--status", "any").stderr == "0 memories.\n"


def test_what_says_the_same_after_a_change_is_told(run: Run, bank: str) -> None:
    told = run("memory", "edit", "planner/M-2", "the port is 8123")
    assert "planner/M-1 says the same: `perdure memory merge` makes them one." in told.stderr
    run("memory", "retire", "planner/M-1")
    assert "planner/M-2 says the same" in run("memory", "restore", "planner/M-1").stderr
    assert "says the same" not in run("memory", "merge", "planner/M-2", "planner/M-1").stderr


def test_history_tells_who_did_what_when(run: Run, ask: Ask, bank: str) -> None:
    run("memory", "pin", "planner/M-1")
    run("memory", "edit", "planner/M-1", "The port is 9000.", "--tag", "")
    _, found = ask("memory", "history", "planner/M-1")
    assert [each["new"] for each in found["versions"]] == [["all"], ["pinned"], ["text", "tags"]]
    times = [each["at"] for each in found["versions"]]
    assert times == sorted(times)
    told = run("memory", "history", "planner/M-1").stdout.splitlines()
    assert told[0].split() == ["Version", "When", "By", "New", "Text"]
    assert "text, tags" in told[3]


def test_deleting_asks_first(run: Run, ask: Ask, bank: str, tmp_path: Path) -> None:
    assert run("memory", "delete", "planner/M-1", answer="n\n").exit_code == 1
    assert ask("memory", "delete", "planner/M-1")[0] == 1
    assert ask("memory", "list")[1]["count"] == 3
    assert run("memory", "delete", "planner/M-1", answer="y\n").exit_code == 0
    assert ask("memory", "delete", "planner/M-2", "--yes")[1]["deleted"] is True
    assert ask("memory", "list", "--status", "any")[1]["count"] == 1
    kept = b"".join(file.read_bytes() for file in tmp_path.glob("bank.db*") if file.is_file())
    assert b"small commits" not in kept


def test_no_bank_is_made_by_looking(run: Run, home: Path) -> None:
    result = run("memory", "list", "--bank", f"sqlite:///{home / 'absent.db'}")
    assert result.exit_code == 1
    assert not (home / "absent.db").exists()


def test_nothing_steers_the_terminal(run: Run, bank: str) -> None:
    run("memory", "add", "planner", "red \x1b[31m alarm\nand a second line")
    for command in (("list",), ("show", "planner/M-3"), ("history", "planner/M-3")):
        assert "\x1b" not in run("memory", *command).stdout


def test_memories_of_another_system(run: Run, ask: Ask, tmp_path: Path) -> None:
    path = tmp_path / "mem0.json"
    memory = {"id": "m1", "memory": "The staging port is 8123.", "user_id": "alice"}
    path.write_text(json.dumps({"results": [memory, {}]}))
    first = run("memory", "import", "mem0", str(path))
    assert first.exit_code == 0
    assert first.stdout == "Memories of mem0@alice: 1 added.\n"
    assert first.stderr == "Left out: 1 no memory.\n"
    code, found = ask("memory", "import", "mem0", str(path))
    assert (code, found["added"], found["known"]) == (0, 0, 1)
    assert "8123" in run("memory", "list", "mem0@alice").stdout
    assert run("memory", "import", "zep", str(path)).exit_code == 1

from __future__ import annotations

from pathlib import Path

import pytest

import perdure
from perdure.core.messages import Media, Message, Text, ToolCall, ToolResult, assistant, user
from tests.cli.conftest import Ask, Run


def names(ask: Ask) -> set[str]:
    return {each["name"] for each in ask("sessions", "--archived")[1]["sessions"]}


ALL = {"planner/auth", "planner/auth.helper", "planner/old", "coder/auth"}


def test_it_shows_what_would_go_and_asks(run: Run, ask: Ask, chat: str) -> None:
    for answer in ("n\n", "\n", ""):
        result = run("forget", "planner/auth", "--reroot", answer=answer)
        assert (result.exit_code, result.stdout.strip()) == (1, answer.strip())
        assert "This forgets 2 sessions for good:" in result.stderr
        assert "  planner/auth: 25 turns, " in result.stderr
        assert "  planner/auth.helper: 1 turn, " in result.stderr
        assert "Forget it? [y/N]" in result.stderr
        assert result.stderr.endswith("Nothing was forgotten.\n")
    assert names(ask) == ALL
    result = run("forget", "planner/auth", "--reroot", answer="y\n")
    assert result.exit_code == 0
    assert result.stdout.endswith("Forgot 26 turns of 2 sessions, 0 memories, and 0 artifacts.\n")
    assert names(ask) == {"planner/old", "coder/auth"}
    assert [turn["number"] for turn in ask("show", "coder/auth")[1]["turns"]] == [*range(1, 12)]


def test_turns(run: Run, ask: Ask, chat: str) -> None:
    result = run("forget", "planner/auth", "--turn", "T-7", "--turn", "8", answer="y\n")
    assert result.exit_code == 0
    assert "This forgets for good what was said in 2 turns of planner/auth:" in result.stderr
    assert ": prompt 7\n" in result.stderr
    assert ask("turn", "planner/auth", "T-7")[1]["status"] == "forgotten"
    assert ask("turn", "planner/auth", "T-9")[1]["status"] == "closed"
    assert ask("verify")[1]["ok"]
    code, found = ask("forget", "planner/auth", "--turn", "T-9", "--yes")
    assert (code, found["turns"], found["sessions"]) == (0, 1, ["planner/auth"])


def test_turns_that_were_forgotten_already(run: Run, ask: Ask, chat: str) -> None:
    result = run("forget", "planner/auth", "--turn", "T-4", answer="y\n")
    assert ": forgotten already\n" in result.stderr
    assert result.stdout.endswith("That was forgotten already.\n")
    assert ask("forget", "planner/auth", "--turn", "T-4", "--yes")[1]["turns"] == 0
    some = run("forget", "planner/auth", "--turn", "T-4", "--turn", "T-5", "--yes")
    assert some.stdout == "Forgot 1 turn of 1 session, 0 memories, and 0 artifacts.\n"


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ([user("  "), assistant("An answer\nto nothing.")], "An answer to nothing."),
        ([Message("user", (Media(media_type="image/png", data=b"1234"),))], "image/png, 4 B"),
        (
            [Message("assistant", (ToolCall("1", "Bash", '{"command": "ls -la"}'),))],
            "Bash: ls -la",
        ),
        ([Message("tool", (ToolResult("1", (Text("src\n"),)),))], "src"),
        ([user("")], "no words"),
    ],
)
def test_a_turn_without_a_prompt_is_shown_by_what_it_has(
    said: list[Message], words: str, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"sqlite:///{tmp_path / 'bank.db'}"
    monkeypatch.setenv("PERDURE_BANK", url)
    with perdure.open_sync(url) as bank:
        bank.session("planner/auth").append(said)
    result = run("forget", "planner/auth", "--turn", "T-1", answer="n\n")
    (line,) = [line for line in result.stderr.splitlines() if line.startswith("  T-1, ")]
    assert line.endswith(f": {words}")


def test_an_agent(ask: Ask, run: Run, chat: str) -> None:
    refused = run("forget", "--agent", "planner", "--yes")
    assert refused.exit_code == 1
    assert "1 fork would lose the turns they share: coder/auth." in refused.stderr
    assert "--reroot" in refused.stderr
    assert names(ask) == ALL
    code, found = ask("forget", "--agent", "coder", "--yes")
    assert (code, found["sessions"]) == (0, ["coder/auth"])
    code, found = ask("forget", "--agent", "planner", "--yes")
    assert code == 0
    assert names(ask) == set()
    assert ask("verify")[1]["ok"]


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ([], "Name a session, or an agent"),
        (["planner/auth", "--agent", "planner"], "Name a session, or an agent"),
        (["--agent", "planner", "--turn", "T-1"], "An agent is forgotten whole."),
        (["--agent", "nobody", "--yes"], "There are no sessions or memories of nobody."),
        (["nobody", "--yes"], "There is no session 'nobody'."),
        (["planner/auth", "--turn", "T-99", "--yes"], "has no turn T-99"),
        (["planner/auth", "--turn", "3.1", "--yes"], "T-3.1 is a round, and a turn is forgotten"),
        (["planner/auth", "--turn", "t-3.1"], "as a whole. Name T-3."),
        (["planner/old", "--turn", "", "--yes"], "'' does not name a turn."),
        (["coder/auth", "--turn", "T-3", "--yes"], "T-3 is not a turn of coder/auth's own."),
        (["planner/auth", "--yes"], "1 fork would lose the turns they share"),
    ],
)
def test_what_cannot_be_forgotten(
    args: list[str], words: str, run: Run, ask: Ask, chat: str
) -> None:
    result = run("forget", *args)
    assert (result.exit_code, result.stdout) == (1, "")
    assert words in result.stderr
    assert names(ask) == ALL


def test_json_does_not_ask(ask: Ask, chat: str) -> None:
    code, found = ask("forget", "planner/old")
    assert (code, found["error"]["message"]) == (1, "With --json nobody is asked.")
    assert names(ask) == ALL


def test_memories_of_an_agent_are_counted(
    run: Run, ask: Ask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"sqlite:///{tmp_path / 'bank.db'}"
    monkeypatch.setenv("PERDURE_BANK", url)
    with perdure.open_sync(url) as bank:
        bank.session("planner/auth").append([user("We use tabs."), assistant("Noted.")])
        bank.memories.add("planner", "Use tabs.", provenance=["planner/auth#T-1"])
        bank.memories.add("coder", "Use spaces.")
        bank.memories.add("coder", "Use vim.")
    result = run("forget", "planner/auth", "--turn", "T-1", "--yes")
    assert result.stdout == "Forgot 1 turn of 1 session, 1 memory, and 0 artifacts.\n"
    asked = run("forget", "--agent", "coder", answer="n\n")  # it has no session
    assert "2 memories of the agent" in asked.stderr
    assert ask("forget", "--agent", "coder", "--yes")[1]["memories"] == 2
    assert ask("memory", "list", "--status", "any")[1]["count"] == 0

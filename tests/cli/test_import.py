from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import Ask, Run
from tests.importers.transcripts import SESSION, Claude, claude_session, lines, write

NAME = claude_session()
DATA = Path(__file__).parents[3] / "shared" / "data" / "claude_code"


@pytest.fixture
def transcript(tmp_path: Path) -> Path:
    claude = Claude()
    records = [*claude.turn("One.", "1", calls=2), claude.progress(), *claude.turn("Two.", "2")]
    return write(tmp_path / "projects" / f"{SESSION}.jsonl", records)


def test_what_was_added_as_json(ask: Ask, transcript: Path) -> None:
    code, found = ask("import", "claude-code", str(transcript))
    assert code == 0
    (session,) = found["sessions"]
    assert list(session) == [
        *("name", "turns", "rounds", "messages", "tokens", "tool_calls", "skipped")
    ]
    assert (session["name"], session["turns"], session["tool_calls"]) == (NAME, 2, 3)
    assert session["tokens"] > 10
    assert session["skipped"] == {"progress": 3}
    assert session["rounds"] == sum(len(turn["rounds"]) for turn in ask("show", NAME)[1]["turns"])
    code, again = ask("import", "claude-code", str(transcript))
    assert code == 0
    (session,) = again["sessions"]
    assert (session["turns"], session["messages"], session["tokens"]) == (0, 0, 0)


def test_what_was_added_for_people(run: Run, transcript: Path) -> None:
    first = run("import", "claude-code", str(transcript.parent))
    assert (first.exit_code, first.stderr) == (0, "")
    shown = first.stdout.splitlines()
    assert shown[0].split() == [
        *("Session", "Turns", "Rounds", "Messages", "Tool", "calls", "Tokens")
    ]
    assert shown[1].split()[:2] == [NAME, "2"]
    assert shown[3:] == ["Imported 2 turns into 1 session.", "Skipped 3 records: 3 progress."]
    assert run("import", "claude-code", str(transcript)).stdout == "Nothing is new.\n"


def test_files_without_a_conversation_are_said_to_be_skipped(run: Run, transcript: Path) -> None:
    """Nothing in them was there before: that nothing is new would not be true."""
    (transcript.parent / "empty.jsonl").touch()
    write(transcript.parent / "idle.jsonl", [Claude().progress()])
    first = run("import", "claude-code", str(transcript.parent)).stdout
    assert "Imported 2 turns into 1 session. All that was read of 2 others was skipped." in first
    write(transcript.parent / "more.jsonl", Claude("other").turn("Three.", "3"))
    again = run("import", "claude-code", str(transcript.parent)).stdout
    assert "into 1 session. Nothing is new in 1 other. All that was read of 2 others was" in again


def test_a_file_that_grew_by_what_is_skipped_has_nothing_new(run: Run, transcript: Path) -> None:
    def grown() -> str:
        with transcript.open("a", encoding="utf-8") as file:
            file.writelines(json.dumps(each) + "\n" for each in [Claude().progress()] * 2)
        return run("import", "claude-code", str(transcript.parent)).stdout

    run("import", "claude-code", str(transcript))
    assert grown().splitlines() == ["Nothing is new.", "Skipped 2 records: 2 progress."]
    # Another one that has no conversation says nothing about the format, either.
    write(transcript.parent / "idle.jsonl", [Claude().progress()])
    assert grown().startswith("Nothing is new.")
    write(transcript.parent / "idle.jsonl", [Claude().progress()] * 3)
    said = run("import", "claude-code", str(transcript.parent)).stdout
    assert said.startswith("Nothing is new."), "the one that is as it was has been imported"
    write(transcript.parent / "more.jsonl", Claude("other").turn("Three.", "3"))
    assert "Nothing is new in 1 other. All that was read of 1 other was skipped." in grown()


def test_what_was_added_is_found_by_meaning_at_once(run: Run, transcript: Path) -> None:
    run("import", "claude-code", str(transcript))
    assert "Meaning: all with a vector" in run("index", "check").stdout


def test_the_wrong_format_is_said_to_be_wrong(run: Run, transcript: Path, tmp_path: Path) -> None:
    wrong = run("import", "codex", str(transcript))
    assert wrong.exit_code == 0
    assert wrong.stdout.startswith("None of ")
    assert "is one of the format codex. Is it the right format?" in wrong.stdout
    assert run("import", "claude-code", str(transcript)).stdout.count("Imported 2 turns") == 1
    (tmp_path / "empty").mkdir()
    nowhere = run("import", "codex", str(tmp_path / "empty"))
    assert nowhere.stdout.startswith("There are no files of the format codex.")


def test_into_a_session_of_this_name(ask: Ask, transcript: Path) -> None:
    _, found = ask("import", "claude-code", str(transcript), "--session", "ada/engine")
    assert [each["name"] for each in found["sessions"]] == ["ada/engine"]
    assert len(ask("show", "ada/engine")[1]["turns"]) == 2


def test_the_usual_places(ask: Ask, run: Run, home: Path, transcript: Path) -> None:
    nothing = run("import", "claude-code")
    assert (nothing.exit_code, nothing.stdout) == (1, "")
    assert nothing.stderr.startswith("perdure: There is nothing to import in ")
    usual = home / ".claude" / "projects" / "engine" / transcript.name
    usual.parent.mkdir(parents=True)
    usual.write_bytes(transcript.read_bytes())
    code, found = ask("import", "claude-code")
    assert (code, found["sessions"][0]["turns"]) == (0, 2)


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["word-perfect", "x"], "There is no importer for 'word-perfect'. Use one of anthropic,"),
        (["claude-code", "absent.jsonl"], "There is no absent.jsonl."),
        (["openai-chat"], "openai-chat needs a path."),
        (["claude-code", ".", "--session", "nameless"], "'nameless' cannot be the name"),
    ],
)
def test_what_cannot_be_imported(args: list[str], words: str, run: Run, ask: Ask) -> None:
    result = run("import", *args)
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith("perdure: ")
    assert result.stderr.count("\n") == 1
    assert words in result.stderr
    assert ask("import", *args)[1]["error"]["type"] == "InvalidInput"


def test_no_bank_is_made_for_a_format_that_is_none(run: Run, home: Path) -> None:
    assert run("import", "word-perfect", ".").exit_code == 1
    assert not list(home.iterdir())


def test_files_that_are_broken_are_told_and_not_fatal(run: Run, ask: Ask, tmp_path: Path) -> None:
    folder = tmp_path / "projects"
    write(folder / "broken.jsonl", [b"{", b"\xff\xfe", *Claude().turn("One.", "1"), b"nonsense"])
    (folder / "empty.jsonl").touch()
    (folder / "binary.jsonl").write_bytes(bytes(range(256)) * 10)
    code, found = ask("import", "claude-code", str(folder))
    assert code == 0
    assert sum(each["turns"] for each in found["sessions"]) == 1
    skipped = {reason for each in found["sessions"] for reason in each["skipped"]}
    assert {"broken line: not JSON", "empty file"} <= skipped


@pytest.mark.parametrize("flags", [[], ["--json"]])
def test_watching_a_file_grow(flags: list[str], ask: Ask, tmp_path: Path) -> None:
    claude = Claude()
    path = write(tmp_path / f"{SESSION}.jsonl", claude.turn("One.", "1"))
    with subprocess.Popen(
        [sys.executable, "-m", "perdure", "import", "claude-code", str(path), "--watch", *flags],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    ) as process:
        assert process.stdout is not None
        heard = [process.stdout.readline()]
        with path.open("ab") as file:
            file.write(lines(claude.turn("Two.", "2")))
        turns = 0
        while turns < 2:
            line = heard.pop() if heard else process.stdout.readline()
            if flags:
                (session,) = json.loads(line)["sessions"]
                assert session["name"] == NAME
                turns += session["turns"]
            else:
                name, _, added = line.partition(": ")
                assert name == NAME
                turns += int(added.split()[0])
        process.send_signal(signal.SIGINT)
        _, stderr = process.communicate(timeout=100)
    assert process.returncode in {0, 130}
    assert not stderr
    assert len(ask("show", NAME)[1]["turns"]) == 2


@pytest.mark.skipif(not DATA.is_dir(), reason="the transcripts for measuring are not here")
def test_real_transcripts(run: Run, ask: Ask) -> None:
    code, found = ask("import", "claude-code", str(DATA))
    assert code == 0
    added = [each for each in found["sessions"] if each["turns"]]
    assert len(added) == 5
    assert sum(each["tool_calls"] for each in added) > 400
    for session in added:
        shown = run("show", session["name"])
        assert (shown.exit_code, shown.stderr) == (0, "")
        assert run("export", session["name"], "--format", "markdown").exit_code == 0

from __future__ import annotations

import json
import os
from contextlib import redirect_stdout
from pathlib import Path

import pytest

import perdure
from perdure.cli import transfer_commands
from perdure.core.messages import assistant, user
from perdure.history.session_export import ExportedTurn, Header, parse
from tests.cli.conftest import Ask, Run, Tty


def test_to_stdout(run: Run, chat: str) -> None:
    result = run("export", "planner/auth")
    assert (result.exit_code, result.stderr) == (0, "")
    header, *entries = map(parse, result.stdout.encode().splitlines())
    assert isinstance(header, Header)
    assert header.name == "planner/auth"
    statuses = {each.turn: each.status for each in entries if isinstance(each, ExportedTurn)}
    assert sorted(statuses) == list(range(1, 26))
    assert (statuses[4], statuses[24], statuses[25]) == ("forgotten", "undone", "closed")
    assert run("export", "planner/auth", "-o", "-").stdout == result.stdout


def test_to_a_file(run: Run, ask: Ask, chat: str, tmp_path: Path) -> None:
    file = tmp_path / "auth.jsonl"
    result = run("export", "coder/auth", "-o", str(file))
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout.startswith(f"Wrote coder/auth to {file} (")
    header = parse(file.read_bytes().splitlines()[0])
    assert isinstance(header, Header)
    assert header.parent == "planner/auth"
    code, found = ask("export", "planner/auth", "-o", str(file))
    assert code == 0
    assert found == {
        "session": "planner/auth",
        "format": "jsonl",
        "file": str(file),
        "bytes": file.stat().st_size,
        "missing": [],
    }
    assert sorted(path.name for path in tmp_path.iterdir()) == ["auth.jsonl", "chat", "home"]


def test_as_markdown(run: Run, chat: str) -> None:
    result = run("export", "planner/auth", "--format", "markdown")
    assert result.exit_code == 0
    assert result.stdout.startswith("# planner/auth\n\n## T-1 · 2026-02-12 16:03 · ")
    assert "<summary>Bash: ls /srv/app/src → 80 lines, 789 B</summary>" in result.stdout


def test_and_back_in(run: Run, ask: Ask, chat: str, tmp_path: Path) -> None:
    file = tmp_path / "auth.jsonl"
    assert run("export", "planner/auth", "-o", str(file)).exit_code == 0
    other = f"sqlite:///{tmp_path / 'other.db'}"
    code, found = ask("import", "perdure", str(file), "--bank", other)
    assert code == 0
    (session,) = found["sessions"]
    name = session["name"]
    was = ask("show", "planner/auth", "--size", "100", "--undone")[1]["turns"]
    now = ask("show", name, "--size", "100", "--undone", "--bank", other)[1]["turns"]
    for turn in [*was, *now]:
        del turn["session"]
        turn["rounds"] = [
            round["messages"] for round in turn["rounds"] if turn["status"] != "forgotten"
        ]
    assert now == was


@pytest.mark.parametrize("args", [[], ["--format", "markdown"]])
def test_a_terminal_is_not_steered(args: list[str], run: Run, tmp_path: Path, tty: Tty) -> None:
    url = f"sqlite:///{tmp_path / 'odd.db'}"
    with perdure.open_sync(url) as bank:
        bank.session("a/b").append([user("\x1b[2J \x9b31m \u202e"), assistant("ok")])
    with redirect_stdout(tty), transfer_commands.open_output(None) as out:
        out.write(run("export", "a/b", "--bank", url, *args).stdout_bytes)
    assert all(char == "\n" or char.isprintable() for char in tty.getvalue())


def test_an_artifact_that_is_gone(run: Run, ask: Ask, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'gone.db'}"
    with perdure.open_sync(url) as bank:
        session = bank.session("a/b")
        session.append([user("go"), assistant("long " * 50_000)])
        pointer = session.turn("T-1").messages[-1].parts[0]
        assert isinstance(pointer, perdure.ArtifactPointer)
        artifact = pointer.artifact
        bank.artifacts.delete(artifact)
    result = run("export", "a/b", "--bank", url)
    assert result.exit_code == 0
    assert artifact in result.stderr
    assert artifact in result.stdout
    code, found = ask("export", "a/b", "--bank", url, "-o", str(tmp_path / "a.jsonl"))
    assert (code, len(found["missing"])) == (0, 1)


@pytest.mark.parametrize(
    ("place", "words"),
    [("absent/a.jsonl", "No such file or directory"), ("file/a.jsonl", "Not a directory")],
)
def test_places_that_cannot_be_written(
    place: str, words: str, run: Run, chat: str, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    result = run("export", "planner/auth", "-o", str(tmp_path / place))
    assert (result.exit_code, result.stdout) == (1, "")
    assert f"{tmp_path / place} cannot be written: {words}." in result.stderr


def test_a_folder_is_no_file(run: Run, chat: str, tmp_path: Path) -> None:
    result = run("export", "planner/auth", "-o", str(tmp_path))
    assert result.exit_code == 1
    assert "cannot be written: Is a directory" in result.stderr


def test_what_is_there_stays_until_the_new_file_is_whole(
    run: Run, chat: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(*_: object) -> object:
        yield b"half"
        raise OSError(28, os.strerror(28))

    file = tmp_path / "auth.jsonl"
    file.write_text("the old one")
    monkeypatch.setattr(transfer_commands, "_pieces", broken)
    result = run("export", "planner/auth", "-o", str(file))
    assert (result.exit_code, result.stdout) == (1, "")
    assert "No space left on device" in result.stderr
    assert file.read_text() == "the old one"
    assert len(list(tmp_path.glob("*auth*"))) == 1


def test_devices_are_written_to_as_they_are(run: Run, chat: str) -> None:
    assert run("export", "planner/auth", "-o", "/dev/null").exit_code == 0
    assert Path("/dev/null").is_char_device()


def test_json_needs_a_file(ask: Ask, chat: str) -> None:
    code, found = ask("export", "planner/auth")
    assert (code, found["error"]["type"]) == (1, "InvalidInput")


def test_only_what_is_known(run: Run, chat: str) -> None:
    assert run("export", "planner/auth", "--format", "docx").exit_code == 2
    assert run("export", "nobody").exit_code == 1
    assert json.loads(run("export", "helper").stdout.splitlines()[0])["perdure"] == 1

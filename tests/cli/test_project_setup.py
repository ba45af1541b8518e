"""`perdure project init` and `remove`: what they put into a repository, and that all of it goes."""

from __future__ import annotations

import json
import os
import pty
import shutil
import subprocess
import time
import tomllib
from pathlib import Path
from typing import Any

import pytest

from perdure.core.errors import Unavailable
from perdure.integrations.client_hooks.hook_failures import note_failure
from perdure.integrations.client_setup.project_setup import _told_if_unwritable
from perdure.project.project_location import ProjectLocation
from tests.cli.conftest import Ask, Run
from tests.project.repositories import VARIABLES, all_bytes, commit, git, new_repository
from tests.server.serve_process import PERDURE

SETTINGS, MCP = ".claude/settings.local.json", ".mcp.json"
HOOKS, CONFIG = ".codex/hooks.json", ".codex/config.toml"
BOTH = ("--yes", "--clients", "claude-code,codex")


@pytest.fixture(autouse=True)
def own_git(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in VARIABLES.items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def repository(home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    made = new_repository(home / "attic")
    monkeypatch.chdir(made)
    return made


def read(path: Path) -> Any:
    return json.loads(path.read_text())


def commands(path: Path) -> dict[str, list[str]]:
    """The commands of each event."""
    return {
        event: [hook["command"] for group in groups for hook in group["hooks"]]
        for event, groups in read(path).get("hooks", {}).items()
    }


def test_one_command_sets_up_and_one_takes_it_out(ask: Ask, run: Run, repository: Path) -> None:
    before = all_bytes(repository)
    code, made = ask("project", "init", *BOTH)
    assert code == 0
    assert (made["name"], made["root"]) == ("attic", str(repository))
    location = ProjectLocation.find(repository)
    assert location.settings is not None
    assert location.settings.clients == ("claude-code", "codex")
    script = location.folder / "client-hook.sh"
    assert subprocess.run(["sh", "-n", str(script)], check=False).returncode == 0
    for file, events in ((SETTINGS, 7), (HOOKS, 6)):
        found = commands(repository / file)
        assert len(found) == events
        assert all(str(script) in each[0] for each in found.values())
    assert read(repository / SETTINGS)["enabledMcpjsonServers"] == ["perdure"]
    assert read(repository / MCP)["mcpServers"]["perdure"]["args"][-1] == "mcp"
    server = tomllib.loads((repository / CONFIG).read_text())["mcp_servers"]["perdure"]
    assert server["args"][-1] == "mcp"
    assert git(repository, "status", "--porcelain") == ""  # nothing of it is for git
    assert run("task", "add", "Sweep").exit_code == 0  # the bank was made

    code, again = ask("project", "init", *BOTH)
    assert (code, again["done"], again["project"]) == (0, [], made["project"])

    code, removed = ask("project", "remove", "--yes")
    assert code == 0
    assert removed["left"] == []
    assert all_bytes(repository) == before
    assert run("project", "remove", "--yes").exit_code == 1
    code, back = ask("project", "init")
    assert back["project"] == made["project"]
    assert "Sweep" in run("task", "list").stdout


def test_what_cannot_be_done_is_said_as_it_is(tmp_path: Path) -> None:
    absent = "^perdure-absent cannot be used: No such file or directory"
    with pytest.raises(Unavailable, match=absent), _told_if_unwritable():
        subprocess.run(["perdure-absent"], check=True)
    unnamed = "^The project cannot be used: Bad file descriptor"
    with pytest.raises(Unavailable, match=unnamed), _told_if_unwritable():
        os.close(1_000_000)
    with (
        pytest.raises(Unavailable, match="cannot be written: Is a directory"),
        _told_if_unwritable(),
    ):
        tmp_path.write_text("")


def test_a_folder_that_cannot_be_written_is_said(run: Run, repository: Path) -> None:
    assert run("project", "init").exit_code == 0
    shutil.rmtree(repository / ".perdure")
    (repository / ".perdure").write_text("Somebody's own.")
    for command in (["project", "init"], ["project", "share"], ["task", "sync"]):
        failed = run(*command)
        assert failed.exit_code == 1
        assert "cannot be written: File exists" in failed.stderr
    assert "cannot be written" in run("task", "export", "nowhere/tasks.jsonl").stderr
    removed = run("project", "remove", "--yes")
    assert (removed.exit_code, removed.stderr) == (0, "")
    assert (repository / ".perdure").read_text() == "Somebody's own."
    assert not (repository / ".git/perdure").exists()


def test_a_bank_that_git_would_take_is_said(ask: Ask, repository: Path) -> None:
    _, made = ask("project", "init", "--bank", "sqlite:///memory.db")
    assert any("memory.db is in the work tree" in note for note in made["notes"])
    (repository / ".gitignore").write_text("/memory.db*\n")
    _, again = ask("project", "init")
    assert not any("memory.db" in note for note in again["notes"])


def test_a_clone_joins_the_shared_project_whatever_is_checked_out(
    ask: Ask, run: Run, home: Path, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    git(repository, "branch", "older")
    _, made = ask("project", "init")
    assert run("project", "goal", "add", "Deploy").exit_code == 0
    assert run("project", "share").exit_code == 0
    git(repository, "commit", "-q", "-m", "share")
    bank = f"sqlite:///{home}/other.db"
    for number, branch in enumerate(("older", "main")):
        clone = home / f"clone{number}"
        git(home, "clone", "-q", "-b", branch, str(repository), str(clone))
        monkeypatch.chdir(clone)
        state = clone / ".perdure" / "project_state.json"
        if branch == "main":
            state.write_text(f"<<<<<<< ours\n{state.read_text()}=======\n>>>>>>> theirs\n")
        code, joined = ask("project", "init", "--bank", bank)
        assert (code, joined["project"], joined["name"]) == (0, made["project"], "attic")
        settings = ProjectLocation.find(clone).settings
        assert settings is not None
        assert settings.shared
    # Nothing that was written where the files are not under git is in the way of a checkout.
    monkeypatch.chdir(home / "clone0")
    assert run("project", "goal", "add", "Older").exit_code == 0
    git(home / "clone0", "checkout", "-q", "main")


def test_a_clone_whose_remote_has_another_name_joins_too(
    ask: Ask, run: Run, home: Path, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    git(repository, "branch", "older")
    _, made = ask("project", "init")
    assert run("project", "share").exit_code == 0
    git(repository, "commit", "-q", "-m", "share")
    clone = home / "clone"
    git(home, "clone", "-q", "-o", "company", "-b", "older", str(repository), str(clone))
    monkeypatch.chdir(clone)
    _, joined = ask("project", "init", "--bank", f"sqlite:///{home}/other.db")
    assert joined["project"] == made["project"]


def test_what_was_only_fetched_makes_no_project(
    ask: Ask, home: Path, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stranger = home / "stranger"
    git(home, "clone", "-q", str(repository), str(stranger))
    (stranger / ".perdure").mkdir()
    state = {"format": 1, "project": "pr_00c0ffee00c0ffee", "name": "theirs"}
    (stranger / ".perdure/project_state.json").write_text(json.dumps(state))
    git(stranger, "add", ".")
    commit(stranger, "theirs")
    clone = home / "clone"
    git(home, "clone", "-q", str(repository), str(clone))
    git(clone, "fetch", "-q", str(stranger), "main:refs/remotes/fork/pr", "main:refs/pull/1/head")
    git(clone, "symbolic-ref", "refs/remotes/fork/HEAD", "refs/remotes/fork/pr")
    git(clone, "tag", "theirs", "fork/pr")
    monkeypatch.chdir(clone)
    _, made = ask("project", "init")
    assert (made["project"] != "pr_00c0ffee00c0ffee", made["name"]) == (True, "clone")
    settings = ProjectLocation.find(clone).settings
    assert settings is not None
    assert not settings.shared
    assert "merge.perdure" not in (clone / ".git/config").read_text()


def test_nobody_is_asked_so_no_client_is_touched(run: Run, ask: Ask, repository: Path) -> None:
    (repository / ".claude").mkdir()  # it is used here
    said = run("project", "init", "--clients", "claude-code")
    assert said.exit_code == 0
    assert "left: Claude Code" in said.stdout
    assert list((repository / ".claude").iterdir()) == []
    code, _ = ask("task", "ready")
    assert code == 0


def test_a_terminal_is_asked_once_for_each_client(repository: Path) -> None:
    leader, follower = pty.openpty()
    os.write(leader, b"n\ny\n")
    done = subprocess.run(
        [*PERDURE, "project", "init", "--clients", "claude-code,codex"],
        stdin=follower,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    os.close(leader)
    os.close(follower)
    assert done.returncode == 0, done.stderr
    assert "Set up Claude Code with these files?" in done.stderr
    assert "left: Claude Code" in done.stdout
    assert not (repository / SETTINGS).exists()
    assert (repository / HOOKS).exists()


@pytest.mark.parametrize(
    ("name", "text"),
    [(SETTINGS, '{"hooks": '), (SETTINGS, '{"hooks": []}'), (MCP, "[]"), (CONFIG, "a = = 1")],
)
def test_a_broken_file_of_a_client_changes_nothing(
    run: Run, repository: Path, name: str, text: str
) -> None:
    (repository / name).parent.mkdir(exist_ok=True)
    (repository / name).write_text(text)
    before = all_bytes(repository)
    refused = run("project", "init", *BOTH)
    assert refused.exit_code == 1
    assert name in refused.stderr
    assert "cannot be understood" in refused.stderr
    assert all_bytes(repository) == before


def test_what_others_have_in_these_files_stays(ask: Ask, repository: Path) -> None:
    own = {"hooks": {"Stop": [{"hooks": [{"type": "command", "command": "beep"}]}]}, "x": "ü"}
    texts = {
        SETTINGS: json.dumps(own, indent=4, ensure_ascii=False),
        MCP: '{"mcpServers":{"other":{"command":"other"}}}',
        CONFIG: 'model = "m"  # mine',
    }
    for name, text in texts.items():
        (repository / name).parent.mkdir(exist_ok=True)
        (repository / name).write_text(text)
    ask("project", "init", *BOTH)
    assert commands(repository / SETTINGS)["Stop"][0] == "beep"
    assert {*read(repository / MCP)["mcpServers"]} == {"other", "perdure"}
    # Somebody goes on working with them.
    changed = read(repository / SETTINGS)
    changed["y"] = 1
    (repository / SETTINGS).write_text(json.dumps(changed))
    with (repository / CONFIG).open("a") as file:
        file.write('[projects."/x"]\ntrust_level = "trusted"\n')
    ask("project", "remove", "--yes")
    assert read(repository / SETTINGS) == {**own, "y": 1}
    assert (repository / MCP).read_text() == texts[MCP]
    assert tomllib.loads((repository / CONFIG).read_text()) == {
        "model": "m",
        "projects": {"/x": {"trust_level": "trusted"}},
    }
    assert not (repository / HOOKS).exists()


def test_a_server_of_that_name_is_the_users_own(ask: Ask, repository: Path) -> None:
    (repository / ".codex").mkdir()
    texts = {
        MCP: '{"mcpServers": {"perdure": {"type": "http", "url": "http://127.0.0.1:8642/mcp"}}}',
        CONFIG: '[mcp_servers.perdure]\nurl = "http://127.0.0.1:8642/mcp"\n',
    }
    for name, text in texts.items():
        (repository / name).write_text(text)
    ask("project", "init", *BOTH)
    ask("project", "remove", "--yes")
    for name, text in texts.items():
        assert (repository / name).read_text() == text


def test_a_moved_installation_is_followed(ask: Ask, repository: Path) -> None:
    ask("project", "init", *BOTH)
    settings = repository / SETTINGS
    fresh = settings.read_bytes()
    moved = settings.read_text().replace(str(repository), "/elsewhere/attic")
    settings.write_text(moved)
    ask("project", "init", *BOTH)
    assert settings.read_bytes() == fresh


def test_all_work_trees_share_the_hooks_and_each_has_its_server(
    ask: Ask, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree = repository.parent / "side"
    git(repository, "worktree", "add", "-q", str(tree))
    before = all_bytes(repository), all_bytes(tree)
    ask("project", "init", *BOTH)
    monkeypatch.chdir(tree)
    code, _ = ask("project", "init", *BOTH)
    assert code == 0
    assert not (tree / SETTINGS).exists()
    assert (tree / MCP).exists()
    assert git(tree, "status", "--porcelain") == git(repository, "status", "--porcelain") == ""
    ask("project", "remove", "--yes")
    assert (all_bytes(repository), all_bytes(tree)) == before


def test_files_under_git_are_pointed_out(ask: Ask, repository: Path) -> None:
    (repository / MCP).write_text("{}\n")
    git(repository, "add", MCP)
    commit(repository, "servers")
    _, made = ask("project", "init", *BOTH)
    assert any(note.startswith(".mcp.json is under git") for note in made["notes"])
    ask("project", "remove", "--yes")
    assert git(repository, "status", "--porcelain") == ""


def test_without_git_it_works_with_less(ask: Ask, run: Run, home: Path) -> None:
    before = all_bytes(home)
    code, made = ask("project", "init", *BOTH)
    assert code == 0
    assert any(note.startswith("There is no git here") for note in made["notes"])
    assert run("task", "add", "Sweep").exit_code == 0
    assert (home / SETTINGS).exists()
    ask("project", "remove", "--yes")
    left = {name: found for name, found in all_bytes(home).items() if not name.startswith("data/")}
    assert left == before


def test_what_is_taken_out_without_git_is_told(ask: Ask, home: Path) -> None:
    folder = home / "bare"
    folder.mkdir()
    ask("project", "init", "-C", str(folder))
    code, removed = ask("project", "remove", "--yes", "-C", str(folder))
    assert (code, removed["done"], [*folder.iterdir()]) == (0, ["took .perdure/ out"], [])


def test_no_hooks_leaves_only_the_server(ask: Ask, repository: Path) -> None:
    _, made = ask("project", "init", "--no-hooks", *BOTH)
    assert not (repository / HOOKS).exists()
    assert "hooks" not in read(repository / SETTINGS)
    assert (repository / MCP).exists()
    assert not (repository / ".git/hooks/post-commit").exists()
    assert made["left"] == ["the git hooks (`perdure project init --hooks` puts them in)"]
    assert all(check["ok"] for check in checks(ask).values())
    # It stays so until something else is asked for.
    before = all_bytes(repository / ".claude")
    assert ask("project", "init", *BOTH)[1]["done"] == []
    assert not (repository / ".git/hooks/post-commit").exists()
    assert all_bytes(repository / ".claude") == before
    # Those that are there go, too.
    ask("project", "init", "--hooks", *BOTH)
    assert (repository / ".git/hooks/post-commit").exists()
    assert "hooks" in read(repository / SETTINGS)
    ask("project", "init", "--no-hooks", *BOTH)
    assert not (repository / ".git/hooks/post-commit").exists()
    assert all_bytes(repository / ".claude") == before
    assert all(check["ok"] for check in checks(ask).values())


def test_a_clone_of_a_team_has_the_same_project(ask: Ask, repository: Path) -> None:
    (repository / ".perdure").mkdir()
    shared = {"project": "pr_0123456789abcdef", "name": "the team's"}
    (repository / ".perdure/project_state.json").write_text(json.dumps(shared))
    _, made = ask("project", "init")
    assert (made["project"], made["name"]) == ("pr_0123456789abcdef", "the team's")


def test_a_bank_of_its_own_is_found_from_anywhere(ask: Ask, run: Run, repository: Path) -> None:
    ask("project", "init", "--bank", "sqlite:///own.db")
    location = ProjectLocation.find(repository)
    assert location.settings is not None
    assert location.settings.bank == f"sqlite:///{repository}/own.db"
    (repository / "deep").mkdir()
    assert run("task", "ready", "-C", "deep").exit_code == 0


@pytest.mark.parametrize(
    "command", [("project", "init"), ("project", "show"), ("task", "list"), ("project", "remove")]
)
def test_a_folder_that_is_not_there_is_said_and_not_made(
    run: Run, home: Path, command: tuple[str, ...]
) -> None:
    refused = run(*command, "-C", str(home / "nowhere/deep"))
    assert refused.exit_code == 1
    assert f"There is no folder {home}/nowhere/deep." in refused.stderr
    assert not (home / "nowhere").exists()


def test_what_cannot_be_is_refused(run: Run, repository: Path) -> None:
    unknown = run("project", "init", "--clients", "emacs")
    assert "no client 'emacs'" in unknown.stderr
    transient = run("project", "init", "--bank", "memory://")
    assert "ends with the program" in transient.stderr
    assert not (repository / ".perdure").exists()
    assert shutil.which("git") is not None
    git(repository, "clone", "-q", "--bare", ".", str(repository.parent / "copy.git"))
    bare = run("project", "init", "-C", "../copy.git/refs")
    assert "copy.git is a bare repository" in bare.stderr


def checks(ask: Ask) -> dict[str, dict[str, Any]]:
    _, found = ask("doctor")
    return {check["part"]: check for check in found["checks"]}


def test_doctor_fires_the_hooks_and_looks_at_the_clients(ask: Ask, repository: Path) -> None:
    assert "Project" not in checks(ask)
    ask("project", "init", *BOTH)
    found = checks(ask)
    parts = ("Project", "Git hooks", "Claude Code", "Codex", "Hook spool", "Hook failures")
    assert all(found[part]["ok"] for part in parts)
    home = ProjectLocation.find(repository).folder
    (repository / MCP).write_text("{}")
    (repository / ".git/hooks/post-commit").chmod(0o644)
    (home / "client-hook.sh").write_text("exit 0\n")
    note_failure(home, "Stop", "codex", "The bank is locked.")
    spool = home / "spool/clients"
    spool.write_text("\n1\t1\tStop\tcodex\ts\t/t\t/f\n")
    os.utime(spool, (1, 1))
    found = checks(ask)
    assert "is not executable" in found["Git hooks"]["what"]
    assert found["Claude Code"]["what"] == f"Not as it should be: {repository / MCP}."
    assert "not of this installation" in found["Client hooks"]["what"]
    assert found["Hook failures"]["what"].endswith("in Stop of codex: The bank is locked.")
    assert "wait for" in found["Hook spool"]["what"]
    faults = {part for part, check in found.items() if not check["ok"]}
    assert faults == {"Git hooks", "Claude Code", "Client hooks", "Hook failures", "Hook spool"}
    ask("project", "init", *BOTH)
    found = checks(ask)
    assert {part for part, check in found.items() if not check["ok"]} == {
        "Hook failures",
        "Hook spool",
    }


@pytest.mark.slow
def test_a_killed_set_up_is_finished_or_taken_out(run: Run, ask: Ask, repository: Path) -> None:
    (repository / ".claude").mkdir()
    (repository / SETTINGS).write_text('{ "x":1 }')
    before = all_bytes(repository)
    command = [*PERDURE, "project", "init", *BOTH]
    run("bank", "init")
    took = 0.0
    for number in range(int(os.environ.get("PERDURE_KILLS", "30"))):
        since = time.monotonic()
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        if not number:
            assert process.wait(120) == 0
            took = time.monotonic() - since
        else:
            time.sleep(took * (0.3 + number % 30 / 40))
            process.kill()
            process.wait(120)
        if number % 3 or not (repository / ".git/perdure/project.json").exists():
            assert ask("project", "init", *BOTH)[0] == 0
        assert ask("project", "remove", "--yes")[0] == 0
        assert all_bytes(repository) == before, number


def test_what_was_written_by_hand_is_taken_in_before_files_go(
    ask: Ask, run: Run, repository: Path
) -> None:
    ask("project", "init")
    ask("project", "goal", "add", "A dry attic")
    state = repository / ".perdure/project_state.json"
    state.write_text(state.read_text().replace("A dry attic", "A very dry attic"))
    ask("project", "remove", "--yes")
    assert not state.exists()
    ask("project", "init")
    assert "A very dry attic" in run("project", "show").stdout


def test_a_new_bank_is_filled_from_the_files(ask: Ask, run: Run, repository: Path) -> None:
    ask("project", "init")
    ask("project", "goal", "add", "A dry attic")
    ask("project", "share")
    _, made = ask("project", "init", "--bank", "sqlite:///../new.db")
    assert "took from the files: goal A dry attic" in made["done"]
    ask("project", "goal", "add", "A second goal")
    state = repository / ".perdure/project_state.json"
    assert len(read(state)["goals"]) == 2
    (repository.parent / "new.db").unlink()
    _, again = ask("project", "init")
    [took] = [each for each in again["done"] if each.startswith("took from the files: ")]
    assert "goal A dry attic" in took
    assert "goal A second goal" in took
    ask("project", "goal", "add", "A third goal")
    assert len(read(state)["goals"]) == 3


def test_files_stay_if_the_bank_is_gone(ask: Ask, repository: Path, home: Path) -> None:
    ask("project", "init", "--bank", f"sqlite:///{home}/own.db")
    ask("project", "goal", "add", "A dry attic")
    (home / "own.db").unlink()
    _, removed = ask("project", "remove", "--yes")
    assert removed["left"] == [".perdure/, because the bank cannot be asked"]
    assert (repository / ".perdure/project_state.json").exists()
    assert not (repository / ".git/perdure").exists()

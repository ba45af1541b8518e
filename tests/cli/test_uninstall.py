"""`perdure uninstall`: nothing of Perdure is left, nothing of anybody else is touched."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from typer._completion_shared import install

import perdure
from perdure.integrations.client_setup.project_list import (
    list_project,
    listed_projects,
    project_list_file,
    unlist_projects,
)
from tests.cli.conftest import Ask, Run
from tests.project.repositories import VARIABLES, all_bytes, git, new_repository

BOTH = ("--yes", "--clients", "claude-code,codex")


@pytest.fixture(autouse=True)
def own_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Git without a configuration, and a temporary folder in which nobody else works."""
    for name, value in VARIABLES.items():
        monkeypatch.setenv(name, value)
    for name in ("CLAUDE_CONFIG_DIR", "CODEX_HOME"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))


def set_up(run: Run, folder: Path, *options: str) -> Path:
    done = run(*options, "project", "init", "-C", str(folder), *BOTH)
    assert done.exit_code == 0, done.stderr
    return folder


def machine(run: Run, home: Path) -> None:
    """Three projects: one with a work tree, one with its own bank, one without git; and what else
    Perdure puts somewhere.
    """
    set_up(run, home / "attic")
    set_up(run, home / "beside")
    set_up(run, home / "cellar", "--bank", f"sqlite:///{home / 'cellar.db'}")
    set_up(run, home / "garden")
    assert run("memory", "add", "planner", "The port is 8123.").exit_code == 0
    with perdure.open_sync(f"sqlite:///{home / 'data/perdure/bank.db'}") as bank:
        bank.artifacts.put(b"large" * 20_000)
    install(shell="bash", prog_name="perdure")
    install(shell="fish", prog_name="perdure")
    (home / "data/perdure/proxy-20261119-120000-1.log").write_text("WARNING slow\n")
    assert run("pause").exit_code == run("resume").exit_code == 0


@pytest.fixture
def people(home: Path) -> dict[str, tuple[bytes, int]]:
    """What is there before Perdure comes."""
    new_repository(home / "attic")
    git(home / "attic", "worktree", "add", "-q", str(home / "beside"))
    new_repository(home / "cellar")
    (home / "garden").mkdir()
    (home / "data").mkdir()
    (home / "attic/.claude").mkdir()
    (home / "attic/.claude/settings.local.json").write_text('{"model": "m"}')
    (home / ".bashrc").write_text("alias ll='ls -l'\n")
    return all_bytes(home)


def test_all_of_it_goes(
    run: Run, ask: Ask, home: Path, people: dict[str, tuple[bytes, int]]
) -> None:
    machine(run, home)
    assert len(listed_projects()) == 4
    before = all_bytes(home)
    code, told = ask("uninstall", "--data", "--dry-run")
    assert code == 0
    assert all_bytes(home) == before

    code, report = ask("uninstall", "--data", "--yes")
    assert (code, report["failed"]) == (0, [])
    assert report["gone"] == told["gone"]
    assert all_bytes(home) == people
    assert not (home / "data/perdure").exists()
    assert "perdure" not in str([*home.rglob("*")])

    code, again = ask("uninstall", "--data", "--yes")
    assert (code, again["gone"], again["failed"]) == (0, [], [])


def test_what_was_remembered_stays_unless_told(
    run: Run, ask: Ask, home: Path, people: dict[str, tuple[bytes, int]]
) -> None:
    machine(run, home)
    code, report = ask("uninstall", "--yes")
    assert code == 0
    kept = [each for each in report["kept"] if "--data" in each]
    assert len(kept) == 4  # two banks, artifacts, pauses
    assert "memories 1" in kept[0]
    assert "The port is 8123." in run("memory", "list").stdout
    for name in ("attic", "beside", "cellar", "garden"):
        left = {file for file in all_bytes(home) if file.startswith(f"{name}/")}
        assert left == {file for file in people if file.startswith(f"{name}/")}
    assert listed_projects() == []
    assert not list((home / "data/perdure").glob("*.log"))
    # The bank with its own place is not known any more; that of the data folder goes.
    code, report = ask("uninstall", "--data", "--yes")
    assert code == 0
    assert not (home / "data/perdure").exists()


def test_somebody_is_asked_and_told_what_is_lost(run: Run, home: Path) -> None:
    assert run("bank", "init").exit_code == 0
    before = all_bytes(home)
    refused = run("uninstall", "--data", answer="n\n")
    assert refused.exit_code == 1
    assert "Nobody can bring these back:" in refused.stderr
    assert "bank.db" in refused.stderr
    assert all_bytes(home) == before
    assert run("uninstall", "--json").exit_code == 0  # nothing is there to be asked about
    assert run("uninstall", "--data", "--json").exit_code == 1
    assert run("uninstall", "--data", answer="y\n").exit_code == 0
    assert not (home / "data/perdure").exists()


def test_what_people_wrote_stays(run: Run, ask: Ask, home: Path) -> None:
    new_repository(home / "attic")
    written = {
        home / "config/perdure/config.toml": "[recall]\n",
        home / ".codex/config.toml": '[mcp_servers.perdure]\ncommand = "perdure"\n',
        home / ".claude.json": '{"projects": {"/srv": {"mcpServers": {"perdure": {}}}}}',
        home / ".config/systemd/user/perdure-serve.service": "[Service]\nExecStart=perdure serve\n",
        home / ".config/opencode/opencode.json": '{"mcp": {"perdure": {"type": "local"}}}',
        home / "attic/.mcp.json": '{"mcpServers": {"perdure": {"command": "my-own"}}}',
        home / ".bashrc": "source '/elsewhere/perdure.sh'\n",
    }
    for file, text in written.items():
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    set_up(run, home / "attic")
    (home / "attic/.perdure/notes.txt").write_text("mine")
    (home / "data/perdure/mine.txt").write_text("mine")
    code, report = ask("uninstall", "--data", "--yes")
    assert code == 0
    assert {file: file.read_text() for file in written} == written
    told = " ".join(report["kept"])
    for file in written:
        assert (str(file) in told) == (file.name not in {".mcp.json", ".bashrc"}), file
    assert (home / "attic/.perdure/notes.txt").read_text() == "mine"
    assert (home / "data/perdure/mine.txt").read_text() == "mine"
    assert "where there are other files" in told


def test_what_cannot_be_taken_out_is_told_and_found_again(run: Run, ask: Ask, home: Path) -> None:
    for name in ("attic", "cellar", "garden"):
        new_repository(home / name)
        set_up(run, home / name)
    shutil.rmtree(home / "garden")
    broken = home / "cellar/.mcp.json"
    whole = broken.read_text()
    broken.write_text("{")
    code, report = ask("uninstall", "--data", "--yes")
    assert code == 1
    assert [str(broken) in each for each in report["failed"]] == [True]
    assert any(str(home / "garden") in each for each in report["kept"])
    assert not (home / "attic/.mcp.json").exists()
    assert (home / "cellar/.git/perdure").exists()
    assert not (home / "data/perdure/bank.db").exists()
    broken.write_text(whole)
    code, report = ask("uninstall", "--data", "--yes")
    assert (code, report["failed"]) == (0, [])
    assert not broken.exists()
    assert not (home / "cellar/.git/perdure").exists()
    assert not (home / "data/perdure").exists()


def test_the_list_of_projects(home: Path) -> None:
    assert listed_projects() == []
    odd = home / "two\nlines ü"
    for root in (home / "attic", odd, home / "attic"):
        list_project(root)
    assert listed_projects() == [home / "attic", odd]
    assert project_list_file().stat().st_mode & 0o777 == 0o600
    with project_list_file().open("ab") as file:
        file.write(b'"/torn')  # the disk was full
    list_project(home / "cellar")
    assert listed_projects() == [home / "attic", odd, home / "cellar"]
    unlist_projects([home / "attic"])
    assert listed_projects() == [odd, home / "cellar"]
    unlist_projects([odd, home / "cellar", home / "elsewhere"])
    assert not project_list_file().exists()


def test_a_bank_that_is_open_stays(ask: Ask, home: Path) -> None:
    (home / "data/perdure").mkdir(parents=True)
    bank = home / "data/perdure/bank.db"
    with perdure.open_sync(f"sqlite:///{bank}") as opened:
        opened.artifacts.put(b"small")
        code, report = ask("uninstall", "--data", "--yes")
        assert code == 1
        assert "has the bank" in report["failed"][0]
        assert opened.artifacts.read(opened.artifacts.put(b"other")) == b"other"
    code, report = ask("uninstall", "--data", "--yes")
    assert code == 0
    assert not bank.exists()


def test_a_file_that_is_no_bank_stays(
    ask: Ask, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import sqlite3

    other = home / "other.db"
    with sqlite3.connect(other) as db:
        db.execute("CREATE TABLE mine (x)")
    db.close()
    monkeypatch.setenv("PERDURE_BANK", f"sqlite:///{other}")
    before = other.read_bytes()
    code, report = ask("uninstall", "--data", "--yes")
    assert code == 1
    assert "another program" in report["failed"][0]
    assert other.read_bytes() == before


def test_a_bank_on_a_server_stays(ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PERDURE_BANK", "postgresql://ada:secret@127.0.0.1:1/perdure")
    code, report = ask("uninstall", "--data", "--yes")
    assert code == 0
    told = " ".join(report["kept"])
    assert "which is on a server" in told
    assert "only the bank knows of" in told
    assert "secret" not in json.dumps(report)


def test_the_plugin_of_claude_code(ask: Ask, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plugins = home / ".claude/plugins"
    plugins.mkdir(parents=True)
    (plugins / "installed_plugins.json").write_text('{"plugins": {"perdure@perdure": []}}')
    (plugins / "known_marketplaces.json").write_text('{"perdure": {}}')
    programs = home / "programs"
    programs.mkdir()
    monkeypatch.setenv("PATH", f"{programs}:/usr/bin:/bin")
    code, report = ask("uninstall", "--yes")
    assert code == 1
    assert "`claude` is not on the path" in report["failed"][0]
    assert "claude plugin uninstall perdure@perdure" in report["failed"][0]

    claude = programs / "claude"
    claude.write_text(
        f'#!/bin/sh\necho "$*" >> {home}/said\n'
        f'[ "$2" = uninstall ] && echo "{{}}" > {plugins}/installed_plugins.json\n'
        f'[ "$2" = marketplace ] && echo "{{}}" > {plugins}/known_marketplaces.json\n'
        "exit 0\n"
    )
    claude.chmod(0o755)
    code, report = ask("uninstall", "--yes")
    assert (code, len(report["gone"])) == (0, 1)
    assert (home / "said").read_text().splitlines() == [
        "plugin uninstall perdure@perdure",
        "plugin marketplace remove perdure",
    ]
    assert ask("uninstall", "--yes")[1]["gone"] == []


@pytest.mark.parametrize("before", ["", "a\n", "a", "a\n\n"])
def test_the_line_of_completion(run: Run, home: Path, before: str) -> None:
    profile = home / ".bashrc"
    profile.write_text(before)
    install(shell="bash", prog_name="perdure")
    assert "perdure.sh" in profile.read_text()
    assert run("uninstall", "--yes").exit_code == 0
    assert profile.read_text() == before
    assert not (home / ".bash_completions").exists()
    install(shell="bash", prog_name="perdure")
    profile.write_text(f"{profile.read_text()}b\n")
    assert run("uninstall", "--yes").exit_code == 0
    assert profile.read_text() in {f"{before}b\n", f"{before}\nb\n"}

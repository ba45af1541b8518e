"""`perdure uninstall`: nothing of Perdure is left, nothing of anybody else is touched."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest
from typer._completion_shared import install

import perdure
from perdure.bank.artifact_location import artifact_place
from perdure.config import ArtifactsConfig
from perdure.integrations.client_setup.project_list import (
    list_project,
    listed_projects,
    project_list_file,
    unlist_projects,
)
from perdure.project.project_location import ProjectLocation, ProjectSettings
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
    assert len(kept) == 3  # two banks, one with artifacts, and pauses
    assert "large artifacts in" in kept[0]
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


def test_a_bank_that_is_open_stays_with_its_artifacts(run: Run, ask: Ask, home: Path) -> None:
    (home / "data/perdure/references").mkdir(parents=True)
    (home / "data/perdure/references/layer.db").write_text("docs")
    assert run("pause").exit_code == run("resume").exit_code == 0
    bank = home / "data/perdure/bank.db"
    content = os.urandom(300_000)
    with perdure.open_sync(f"sqlite:///{bank}") as opened:
        large = opened.artifacts.put(content)
        code, report = ask("uninstall", "--data", "--yes")
        assert (code, report["gone"]) == (1, [])
        assert "has the bank" in report["failed"][0]
        assert opened.artifacts.read(large) == content
        assert opened.artifacts.read(opened.artifacts.put(b"other")) == b"other"
    assert (home / "data/perdure/references/layer.db").exists()
    assert (home / "data/perdure/pauses").exists()
    assert "because a bank stays" in str(report["kept"])
    code, report = ask("uninstall", "--data", "--yes")
    assert code == 0
    assert not (home / "data/perdure").exists()


def make_bank(file: Path) -> bytes:
    """A bank with an artifact that lies beside it."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with perdure.open_sync(f"sqlite:///{file}") as bank:
        bank.artifacts.put(os.urandom(300_000))
    return file.read_bytes()


def another_database(file: Path) -> None:
    with sqlite3.connect(file) as db:
        db.execute("CREATE TABLE mine (x)")
    db.close()


def no_database(file: Path) -> None:
    file.write_text("My thesis. " * 1_000)


def short_text(file: Path) -> None:
    file.write_bytes(b"PK my thesis")


def damaged_bank(file: Path) -> None:
    """Also what a bank looks like whose whole file is encrypted."""
    data = make_bank(file)
    file.write_bytes(os.urandom(16) + data[16:])


@pytest.mark.parametrize("make", [another_database, no_database, short_text, damaged_bank])
def test_a_file_that_is_no_bank_for_sure_stays(
    run: Run, ask: Ask, home: Path, monkeypatch: pytest.MonkeyPatch, make: Callable[[Path], None]
) -> None:
    file = home / "thesis.odt"
    make(file)
    before = all_bytes(home)
    monkeypatch.setenv("PERDURE_BANK", f"sqlite:///{file}")
    assert str(file) in str(ask("uninstall", "--yes")[1]["kept"])
    code, report = ask("uninstall", "--data", "--yes")
    assert (code, report["gone"]) == (1, [])
    assert str(file) in report["failed"][0]
    assert all_bytes(home) == before


def test_a_link_to_a_bank_stays(ask: Ask, home: Path) -> None:
    make_bank(home / "elsewhere/real.db")
    (home / "data/perdure").mkdir(parents=True)
    (home / "data/perdure/bank.db").symlink_to(home / "elsewhere/real.db")
    before = all_bytes(home)
    code, report = ask("uninstall", "--data", "--yes")
    assert (code, report["gone"]) == (1, [])
    assert f"is a link to {home / 'elsewhere/real.db'}" in report["failed"][0]
    assert (home / "data/perdure/bank.db").is_symlink()
    assert all_bytes(home) == before


def test_a_folder_that_was_not_set_up_names_no_bank_to_delete(
    run: Run, ask: Ask, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as one that came out of an archive."""
    victim = home / "cellar.db"
    make_bank(victim)
    (home / "unpacked").mkdir()
    location = ProjectLocation.find(home / "unpacked")
    location.write_settings(
        ProjectSettings(project="pr_00c0ffee00c0ffee", name="x", bank=f"sqlite:///{victim}")
    )
    monkeypatch.chdir(home / "unpacked")
    shown = run("uninstall", "--data", answer="n\n").stderr
    assert str(victim) not in shown
    code, report = ask("uninstall", "--data", "--yes")
    assert code == 0
    assert any(str(victim) in each and "not set up here" in each for each in report["kept"])
    assert victim.exists()
    assert len(list((home / "cellar.db.artifacts/sha256").rglob("*/*"))) == 1


def test_every_bank_that_goes_is_named_before(run: Run, home: Path) -> None:
    bank = home / "cellar.db"
    (home / "cellar").mkdir()
    set_up(run, home / "cellar", "--bank", f"sqlite:///{bank}")
    assert f"the bank {bank}" in run("uninstall", "--data", answer="n\n").stderr
    assert bank.exists()


def test_what_is_no_artifact_stays_beside_a_bank(ask: Ask, home: Path) -> None:
    bank = home / "data/perdure/bank.db"
    make_bank(bank)
    place = home / "data/perdure/bank.db.artifacts"
    for mine in ("sha256/mine.pdf", "incoming/mine.pdf", "mine.pdf"):
        (place / mine).parent.mkdir(exist_ok=True)
        (place / mine).write_text("mine")
    (place / f"incoming/{'0' * 32}.placing").write_text("torn")
    code, report = ask("uninstall", "--data", "--yes")
    assert code == 1
    assert f"{place} is kept" in report["failed"][0]
    assert sorted(all_bytes(place)) == ["incoming/mine.pdf", "mine.pdf", "sha256/mine.pdf"]
    assert not bank.exists()
    code, report = ask("uninstall", "--data", "--yes")
    assert (code, report["gone"]) == (0, [])
    assert any(str(place) in each and "by hand" in each for each in report["kept"])


def test_a_configured_folder_of_artifacts_stays(
    ask: Ask, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = home / "shared"
    monkeypatch.setenv("PERDURE_ARTIFACTS_FOLDER", str(place))
    make_bank(home / "other.db")
    make_bank(home / "data/perdure/bank.db")
    (place / "incoming/mine.pdf").write_text("mine")
    before = all_bytes(place)
    assert len(before) == 3
    code, report = ask("uninstall", "--data", "--yes")
    assert code == 0
    assert any(str(place) in each and "may share" in each for each in report["kept"])
    assert all_bytes(place) == before
    assert not (home / "data/perdure").exists()


def test_a_bank_on_a_server_stays_with_its_artifacts(
    run: Run, ask: Ask, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = "postgresql://ada:secret@127.0.0.1:1/perdure"
    place = artifact_place(url, ArtifactsConfig(), temporary=False)
    assert isinstance(place, Path)
    (place / "sha256/00").mkdir(parents=True)
    (place / "sha256/00" / ("0" * 64)).write_bytes(os.urandom(300_000))
    make_bank(home / "data/perdure/bank.db")
    assert run("pause").exit_code == run("resume").exit_code == 0
    before = all_bytes(home / "data/perdure/artifacts")
    monkeypatch.setenv("PERDURE_BANK", url)
    code, report = ask("uninstall", "--data", "--yes")
    assert code == 0
    told = " ".join(report["kept"])
    assert "which is on a server" in told
    assert "only the bank knows of" in told
    assert f"{home / 'data/perdure/artifacts'} (1 file" in told
    assert "secret" not in json.dumps(report)
    assert all_bytes(home / "data/perdure/artifacts") == before
    assert (home / "data/perdure/pauses").exists()
    assert not (home / "data/perdure/bank.db").exists()


def test_folders_of_runs_stay(ask: Ask, tmp_path: Path) -> None:
    for name in ("perdure-run-a", "perdure-import-a", "perdure-import-b"):
        (tmp_path / "tmp" / name).mkdir()
        (tmp_path / "tmp" / name / "out").write_text("printed")
    for name in ("perdure-run-a", "perdure-import-a"):
        os.utime(tmp_path / "tmp" / name, (0, 0))
    code, report = ask("uninstall", "--data", "--yes")
    assert code == 0
    assert (tmp_path / "tmp/perdure-run-a/out").exists()
    assert f"{tmp_path / 'tmp/perdure-run-a'}, which a run may still use" in str(report["kept"])
    assert not (tmp_path / "tmp/perdure-import-a").exists()
    assert (tmp_path / "tmp/perdure-import-b").exists()


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

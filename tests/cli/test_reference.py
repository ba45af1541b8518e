from __future__ import annotations

from pathlib import Path

import pytest

import perdure
from tests.cli.conftest import Ask, Run

GIT = "---\nname: git\ntitle: How we commit\ntags: [git]\ntriggers: [commit]\n---\nCommit often.\n"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of reference layers of a bank, which is the default of the test."""
    url = f"sqlite:///{tmp_path / 'bank.db'}"
    folder = tmp_path / "layers"
    folder.mkdir()
    monkeypatch.setenv("PERDURE_BANK", url)
    monkeypatch.setenv("PERDURE_RECALL_REFERENCES", str(folder))
    with perdure.open_sync(url):
        pass
    return folder


def test_adding_and_showing(run: Run, ask: Ask, folder: Path, tmp_path: Path) -> None:
    (tmp_path / "rules.md").write_text(GIT)
    assert run("reference", "add", str(tmp_path / "rules.md")).stdout.startswith("git is kept: ")
    _, made = ask("reference", "add", str(tmp_path / "rules.md"))
    assert (made["name"], made["tags"], made["file"]) == ("git", ["git"], None)
    assert run("reference", "show", "git").stdout == "Commit often.\n\n"
    _, shown = ask("reference", "show", "git")
    assert (shown["title"], shown["text"]) == ("How we commit", "Commit often.\n")
    typed = run("reference", "add", "-", "--name", "typed", answer="From a pipe.")
    assert typed.exit_code == 0
    assert run("reference", "show", "typed").stdout == "From a pipe.\n"
    assert run("reference", "show", "absent").exit_code == 1
    assert run("reference", "add", str(tmp_path / "absent.md")).exit_code == 1


def test_another_file_does_not_take_the_name_of_one(run: Run, folder: Path, tmp_path: Path) -> None:
    for name in ("rules", "other"):
        (tmp_path / f"{name}.md").write_text(f"{GIT}By {name}.\n")
    rules, other = str(tmp_path / "rules.md"), str(tmp_path / "other.md")
    assert run("reference", "add", rules).exit_code == 0
    refused = run("reference", "add", other)
    assert refused.exit_code == 1
    assert f"There is a reference layer git already, from {rules}." in refused.stderr
    assert "--replace" in refused.stderr
    typed = run("reference", "add", "-", "--name", "git", answer="From a pipe.")
    assert typed.exit_code == 1
    around = str(tmp_path / "layers" / ".." / "rules.md")
    assert run("reference", "add", around).exit_code == 0
    assert "By rules." in run("reference", "show", "git").stdout
    assert run("reference", "add", other, "--replace").exit_code == 0
    assert "By other." in run("reference", "show", "git").stdout


def test_files_of_the_folder_are_listed(run: Run, ask: Ask, folder: Path) -> None:
    assert run("reference", "list").stderr == "0 reference layers.\n"
    (folder / "git.md").write_text(GIT)
    (folder / "bad.md").write_text("---\nnonsense\n---\nText.")
    listed = run("reference", "list")
    assert "git.md" in listed.stdout
    assert "How we commit" in listed.stdout
    assert "bad.md: line 2: 'nonsense' is no entry." in listed.stderr
    _, found = ask("reference", "list")
    assert [each["file"] for each in found["references"]] == ["git.md"]
    assert [each["where"] for each in found["problems"]] == ["bad.md"]
    (folder / "git.md").unlink()
    assert ask("reference", "list")[1]["references"] == []


def test_check_tells_faults_from_warnings(run: Run, ask: Ask, folder: Path) -> None:
    assert run("reference", "check").stdout == "The reference layers are sound.\n"
    (folder / "git.md").write_text(GIT)
    warned = run("reference", "check")
    assert warned.exit_code == 0
    assert "git.md: warning: It has 3 tokens" in warned.stdout
    (folder / "bad.md").write_text("---\nnonsense\n---\nText.")
    code, found = ask("reference", "check")
    assert (code, found["ok"]) == (1, False)
    assert [each["where"] for each in found["problems"] if not each["warning"]] == ["bad.md"]


def test_removing(run: Run, ask: Ask, folder: Path) -> None:
    (folder / "git.md").write_text(GIT)
    run("reference", "list")
    run("reference", "add", "-", "--name", "typed", answer="From a pipe.")
    assert ask("reference", "remove", "typed")[1]["removed"] is True
    assert run("reference", "remove", "typed").exit_code == 1
    refused = run("reference", "remove", "git")
    assert refused.exit_code == 1
    assert f"the file {folder / 'git.md'}. Delete the file instead." in refused.stderr


def test_what_cannot_be_added_is_told(run: Run, folder: Path) -> None:
    refused = run("reference", "add", ".")
    assert (refused.exit_code, len(refused.stderr.splitlines())) == (1, 1)
    assert ". is a folder. Name a Markdown file" in refused.stderr
    absent = run("reference", "add", "absent.md")
    assert "absent.md: It cannot be read: No such file or directory." in absent.stderr


def test_a_file_that_was_added_and_changed_is_told(run: Run, folder: Path, tmp_path: Path) -> None:
    (tmp_path / "rules.md").write_text(GIT)
    run("reference", "add", str(tmp_path / "rules.md"))
    assert "changed" not in run("reference", "check").stdout
    (tmp_path / "rules.md").write_text(GIT + "And early.")
    told = run("reference", "check")
    assert "rules.md has changed since it was added: add it again." in told.stdout
    run("reference", "add", str(tmp_path / "rules.md"))
    assert "changed" not in run("reference", "check").stdout
    (tmp_path / "rules.md").unlink()  # it was copied, and stays
    assert "rules.md" not in run("reference", "check").stdout


def test_a_folder_that_nobody_asked_for_is_not_missed(
    run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PERDURE_RECALL_REFERENCES")
    assert run("reference", "check").stdout == "The reference layers are sound.\n"
    monkeypatch.setenv("PERDURE_RECALL_REFERENCES", str(folder / "absent"))
    assert "absent: warning: There is no such folder." in run("reference", "check").stdout


def test_layers_of_a_folder_that_is_gone_can_be_removed(
    run: Run, ask: Ask, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "git.md").write_text(GIT)
    run("reference", "list")
    (folder / "git.md").unlink()
    folder.rmdir()
    assert "git.md: warning: The file is not there" in run("reference", "check").stdout
    monkeypatch.delenv("PERDURE_RECALL_REFERENCES")
    told = run("reference", "check").stdout
    assert f"git: warning: It comes from {folder / 'git.md'}. The file is not there" in told
    assert run("reference", "remove", "git").exit_code == 0
    assert ask("reference", "list")[1]["references"] == []

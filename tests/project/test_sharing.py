"""State, tasks and journal under git: shared by two clones, merged by git, repaired."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

import perdure
from perdure.bank import Bank
from perdure.core.errors import InvalidInput
from perdure.project import sharing
from perdure.project.journal import split_page
from perdure.project.project import Project
from perdure.project.sharing import repair, share, unshare
from perdure.project.state_file import STATE_FILE
from tests.project.repositories import git, new_repository, run
from tests.project.talks import conversation, prompt, reply
from tests.project.test_state import project_in


@pytest.fixture
async def bank(tmp_path: Path) -> AsyncIterator[Bank]:
    async with perdure.open(f"sqlite:///{tmp_path}/memory.db") as opened:
        yield opened


@pytest.fixture
def project(bank: Bank, tmp_path: Path) -> Project:
    return project_in(bank, new_repository(tmp_path / "demo"))


@pytest.fixture
async def other_bank(tmp_path: Path) -> AsyncIterator[Bank]:
    async with perdure.open(f"sqlite:///{tmp_path}/other.db") as opened:
        yield opened


async def shared_clone(project: Project, other_bank: Bank) -> Project:
    """A second person's clone, with a bank of their own."""
    root = project.location.root
    await share(project)
    git(root, "commit", "-q", "-m", "share")
    clone = root.parent / "clone"
    # Not as a local clone, which would have all objects, also those that nothing leads to.
    git(root, "clone", "-q", "--no-local", str(root), str(clone))
    other = project_in(other_bank, clone, shared=True)
    assert other.location.git is not None
    await sharing.install_driver(other.location.git)
    await other.write_files()
    assert sharing.is_shared(other.location.files)
    assert git(clone, "status", "--porcelain") == ""
    return other


def save(project: Project, message: str) -> None:
    git(project.location.root, "commit", "-q", "-am", message)


async def test_nothing_is_under_git_until_it_is_shared_and_turns_never_dirty_it(
    bank: Bank, project: Project
) -> None:
    root = project.location.root
    await project.state.add("goal", "one")
    await project.tasks.add("a task")
    session = await conversation(bank, root)
    await session.append([prompt("one"), reply("first")])
    await project.refresh()
    assert git(root, "status", "--porcelain") == ""
    report = await share(project)
    assert report.remarks == ()
    names = {name.removeprefix(".perdure/") for name in report.files}
    assert {STATE_FILE, "tasks.jsonl", ".gitignore", ".gitattributes"} <= names
    assert any(name.startswith("journal/") for name in names)
    assert not any(name.startswith("sessions/") for name in names)
    git(root, "commit", "-q", "-m", "share")
    await session.append([prompt("two"), reply("second")])
    await project.refresh()
    assert git(root, "status", "--porcelain") == ""
    await project.write_files()  # a command of a person
    assert ".perdure/journal/" in git(root, "status", "--porcelain")
    git(root, "commit", "-q", "-am", "journal")
    gone = await unshare(project)
    assert f".perdure/{STATE_FILE}" in gone.files
    git(root, "commit", "-q", "-m", "unshare")
    assert git(root, "status", "--porcelain") == ""
    assert git(root, "ls-files", ".perdure") == ""
    assert (project.location.files / STATE_FILE).exists()


async def test_entries_of_a_commit_that_was_never_pushed_are_elsewhere_in_another_clone(
    project: Project, other_bank: Bank
) -> None:
    git(project.location.root, "switch", "-q", "-c", "private")
    git(project.location.root, "commit", "-q", "--allow-empty", "-m", "private")
    await project.state.add("goal", "made on a commit of my own")
    await project.tasks.add("made there, too")
    git(project.location.root, "switch", "-q", "main")
    git(project.location.root, "branch", "-q", "-D", "private")
    other = await shared_clone(project, other_bank)
    git(other.location.root, "commit", "-q", "--allow-empty", "-m", "new")
    await other.tasks.add("made here")
    report = await other.refresh()
    assert report.remarks == ()
    status = await other.history.status()
    places = {each.entry.title: each.place for each in status.entries}
    assert sorted(places.values()) == ["elsewhere", "elsewhere", "here"]


async def test_notes_of_two_people_on_one_day_stay(project: Project, other_bank: Bank) -> None:
    await project.work.note("the first of ours")
    await project.write_files()
    other = await shared_clone(project, other_bank)
    theirs = await other.work.note("theirs")
    await other.write_files()
    save(other, "theirs")
    await project.work.note("another of ours")
    await project.write_files()
    save(project, "ours")
    git(other.location.root, "pull", "-q", "--no-rebase", "--no-edit")
    (page,) = (other.location.files / "journal").iterdir()
    page.write_text(f"By hand.\n\n{page.read_text()}")
    for _ in range(3):
        await other.write_files()
    text = page.read_text()
    assert text.startswith("By hand.\n\n# Notes of ")
    words = ("the first of ours", "theirs", "another of ours")
    assert [text.count(each) for each in words] == [1, 1, 1]
    # Another clone's is taken out for good, our own may be one that a branch does not have yet.
    parts = split_page(text)
    ours = next(id for id, part in parts.items() if "another" in part)
    page.write_text("".join(p for id, p in parts.items() if id not in {ours, theirs.id}))
    await other.work.note("one more")
    await other.write_files()
    text = page.read_text()
    assert [text.count(each) for each in (*words, "one more")] == [1, 1, 0, 1]


async def test_a_folder_that_the_repository_ignores_is_not_shared(project: Project) -> None:
    root = project.location.root
    (root / ".gitignore").write_text("*.pyc\n.perdure/\n")
    await project.state.add("goal", "one")
    with pytest.raises(InvalidInput, match=r"\.gitignore, line 2, says \.perdure/"):
        await share(project)
    assert not project.settings.shared
    (root / ".gitignore").unlink()
    assert f".perdure/{STATE_FILE}" in (await share(project)).files


async def test_a_folder_that_the_repository_takes_back_from_what_it_ignores_is_shared(
    project: Project,
) -> None:
    (project.location.root / ".gitignore").write_text("*\n!.perdure/\n!.perdure/**\n")
    await project.state.add("goal", "one")
    for _ in range(2):
        assert f".perdure/{STATE_FILE}" in (await share(project)).files


async def test_edits_of_two_people_merge_without_a_conflict(
    project: Project, other_bank: Bank
) -> None:
    goal = await project.state.add("goal", "Deploy every day")
    await project.tasks.add("Write the pipeline")
    other = await shared_clone(project, other_bank)
    assert [each.title for each in await other.state.list()] == ["Deploy every day"]
    assert [each.title for each in await other.tasks.list()] == ["Write the pipeline"]

    await project.state.add("milestone", "mine")
    await project.state.edit(goal.id, title="Deploy twice a day")
    await project.tasks.add("my task")
    await project.write_files()
    save(project, "mine")
    await other.state.add("milestone", "theirs")
    await other.state.edit(goal.id, text="To Paris, too.")
    await other.tasks.done(1)
    await other.tasks.add("their task")
    await other.write_files()
    save(other, "theirs")

    git(other.location.root, "pull", "-q", "--no-rebase", "--no-edit")
    await other.write_files()
    assert git(other.location.root, "diff") == ""
    git(project.location.root, "pull", "-q", str(other.location.root), "main")
    await project.write_files()
    assert git(project.location.root, "status", "--porcelain") == ""
    for side in (project, other):
        entries = {each.title: each for each in await side.state.list()}
        assert set(entries) == {"Deploy twice a day", "mine", "theirs"}
        assert entries["Deploy twice a day"].text == "To Paris, too."
        tasks = {each.title: each.state for each in await side.tasks.all()}
        assert tasks == {"Write the pipeline": "done", "my task": "ready", "their task": "ready"}


async def test_a_clone_in_a_folder_of_another_name_keeps_what_the_file_says(
    project: Project, other_bank: Bank
) -> None:
    goal = await project.state.add("goal", "Deploy every day")
    await share(project)
    git(project.location.root, "commit", "-q", "-m", "share")
    git(project.location.root, "clone", "-q", ".", "../clone")
    folder = project.location.root.parent / "clone"
    other = project_in(other_bank, folder, shared=True, name="my folder")
    assert await other.write_files() == ()
    assert git(folder, "status", "--porcelain") == ""
    path = other.location.files / "project_state.json"
    name = json.loads(path.read_text())["name"]
    path.write_text(path.read_text().replace("every day", "every hour"))
    assert await other.write_files() == ()
    assert (await other.state.get(goal.id)).title == "Deploy every hour"
    assert json.loads(path.read_text())["name"] == name == project.name


async def test_an_entry_that_a_clone_finds_without_times_is_an_entry(
    project: Project, other_bank: Bank
) -> None:
    await share(project)
    path = project.location.files / STATE_FILE
    data = json.loads(path.read_text())
    data["goals"]["gl_0123456789ab"] = {"title": "Written by hand"}
    path.write_text(json.dumps(data))
    git(project.location.root, "add", ".perdure")
    git(project.location.root, "commit", "-q", "-m", "share")
    git(project.location.root, "clone", "-q", ".", "../clone")
    other = project_in(other_bank, project.location.root.parent / "clone", shared=True)
    await other.write_files()
    assert [each.title for each in await other.state.list()] == ["Written by hand"]


async def test_what_cannot_be_merged_fails_loudly_and_is_repaired(
    project: Project, other_bank: Bank
) -> None:
    other = await shared_clone(project, other_bank)
    for side, title in ((project, "mine"), (other, "theirs")):
        await side.state.add("goal", title)
        await side.write_files()
    file = other.location.files / STATE_FILE
    file.write_text(file.read_text().replace('"format": 1', '"format": 1,,'))
    for side in (project, other):
        save(side, "goals")
    root = other.location.root
    failed = run(root, "git", "pull", "-q", "--no-rebase", "--no-edit")
    assert failed.returncode != 0
    assert "perdure project repair" in failed.stderr
    assert git(root, "diff", "--name-only", "--diff-filter=U") == f".perdure/{STATE_FILE}"
    assert "<<<<<<<" in file.read_text()
    said = await repair(other)
    assert "git add" in said[-1]
    assert {each.title for each in await other.state.list()} >= {"theirs"}
    json.loads(file.read_text())
    kept = "".join(path.read_text() for path in file.parent.glob("*.kept-*"))
    assert "mine" in kept
    assert "theirs" in kept


async def test_marks_of_a_conflict_are_merged_by_repair(project: Project, other_bank: Bank) -> None:
    """In a clone without the driver git merges lines."""
    goal = await project.state.add("goal", "one")
    other = await shared_clone(project, other_bank)
    git(other.location.root, "config", "--remove-section", "merge.perdure")
    await project.state.edit(goal.id, text="mine")
    await project.state.add("goal", "of mine")
    await project.write_files()
    save(project, "mine")
    await other.state.edit(goal.id, title="two")
    await other.state.add("goal", "of theirs")
    await other.write_files()
    save(other, "theirs")
    root = other.location.root
    assert run(root, "git", "pull", "-q", "--no-rebase", "--no-edit").returncode != 0
    assert "left as it is" in (await other.refresh()).remarks[0]
    assert "both sides" in (await repair(other))[0]
    found = {each.title: each.text for each in await other.state.list()}
    assert found == {"two": "mine", "of mine": "", "of theirs": ""}
    git(root, "add", ".perdure")
    git(root, "commit", "-q", "--no-edit")
    assert (await other.refresh()).remarks == ()
    assert await repair(other) == ()


async def test_pages_of_two_branches_never_conflict(bank: Bank, project: Project) -> None:
    root = project.location.root
    session = await conversation(bank, root)
    await session.append([prompt("one"), reply("first")])
    await project.refresh()
    await share(project)
    git(root, "commit", "-q", "-m", "share")
    for branch in ("left", "right"):
        git(root, "checkout", "-q", "-b", branch, "main")
        await session.append([prompt(f"on {branch}"), reply("yes")])
        await project.refresh()
        await project.write_files()
        save(project, branch)
    git(root, "merge", "-q", "--no-edit", "left")
    (file,) = (root / ".perdure" / "journal").glob("*.md")
    assert list(split_page(file.read_text())) == ["", "T-1", "T-2", "T-3"]
    await project.write_files()
    assert git(root, "status", "--porcelain") == ""


async def test_another_bank_keeps_words_in_session_files_and_goes_on(
    project: Project, bank: Bank, other_bank: Bank
) -> None:
    root = project.location.root
    ours, session = await conversation(bank, root), await conversation(other_bank, root)
    for each in (ours, session):
        await each.append([prompt("one"), reply("first")])
    await project.refresh()
    (file,) = (root / ".perdure" / "sessions").glob("*.json")
    text = json.loads(file.read_text())
    text["turns"]["T-1"]["summary"] = "In my words."
    file.write_text(json.dumps(text | {"mood": "good"}))
    await session.append([prompt("two"), reply("second")])
    there = project_in(other_bank, root)
    await there.refresh()
    (again,) = (root / ".perdure" / "sessions").glob("*.json")
    after = json.loads(again.read_text())
    assert (after["mood"], after["turns"]["T-1"]["summary"]) == ("good", "In my words.")
    assert list(after["turns"]) == ["T-1", "T-2"]
    await session.append([prompt("three"), reply("third")])
    await there.refresh()
    assert list(json.loads(again.read_text())["turns"]) == ["T-1", "T-2", "T-3"]
    assert json.loads(again.read_text())["active"] > text["active"]


async def test_a_broken_file_without_git_is_kept_and_written_anew(
    bank: Bank, tmp_path: Path
) -> None:
    project = project_in(bank, tmp_path / "bare")
    await project.state.add("goal", "one")
    await project.write_files()
    file = project.location.files / STATE_FILE
    file.write_text('{"goals": ')
    (said,) = await repair(project)
    assert "written anew" in said
    assert "perdure project repair" not in said  # it has just been done
    assert "one" in file.read_text()
    (kept,) = file.parent.glob("*.kept-*")
    assert kept.read_text() == '{"goals": '
    with pytest.raises(InvalidInput, match="no git repository"):
        await share(project)


def test_the_command_that_git_calls(tmp_path: Path) -> None:
    names = [tmp_path / name for name in ("base", "ours", "theirs")]
    for path, title in zip(names, ("a", "b", "a"), strict=True):
        path.write_text(json.dumps({"id": "tk_1", "title": title}) + "\n")
    command = [sys.executable, "-m", "perdure", "project", "merge-driver", *map(str, names)]
    done = subprocess.run(
        [*command, ".perdure/tasks.jsonl"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, "")
    assert json.loads(names[1].read_text())["title"] == "b"
    refused = subprocess.run([*command, "other.txt"], capture_output=True, text=True, check=False)
    assert refused.returncode == 1
    assert "other.txt" in refused.stderr


async def test_the_journal_of_a_clone_shows_what_others_wrote(
    project: Project, other_bank: Bank
) -> None:
    await project.work.note("Rotate the keys on Friday")
    await project.write_files()
    other = await shared_clone(project, other_bank)
    [page] = (await other.journal.read(await other.work.list())).values()
    assert "*From the file journal/" in page
    assert page.count("Rotate the keys on Friday") == 1
    await other.work.note("Done")
    await other.write_files()
    [page] = (await other.journal.read(await other.work.list())).values()
    assert "Done" in page.partition("*From the file")[0]
    assert page.count("Rotate the keys on Friday") == page.count("Done") == 1
    assert not await other.journal.read([], day="1999-01-01")
    [ours] = (await project.journal.read([])).values()
    assert "From the file" not in ours

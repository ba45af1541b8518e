"""The state of a project, and its file: written, edited by hand, brought by git, merged."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import perdure
from perdure.bank import Bank
from perdure.core.errors import InvalidInput, NotFound
from perdure.project.project import Project
from perdure.project.project_location import ProjectLocation, ProjectSettings
from perdure.project.state_file import (
    STATE_FILE,
    conflict_sides,
    merge_state_files,
    read_state,
    write_state,
)
from perdure.project.state_records import PREFIXES
from tests.project.repositories import commit, git, new_repository

PROJECT = "pr_00112233445566ff"


def project_in(bank: Bank, folder: Path, **settings: Any) -> Project:
    folder.mkdir(parents=True, exist_ok=True)
    location = ProjectLocation.find(folder)
    if location.settings is None:
        # The index of files has tests of its own.
        fields = {"name": "demo", "vectors": False, **settings}
        location.write_settings(ProjectSettings(project=PROJECT, **fields))
    return Project(bank.services, location)


@pytest.fixture
async def bank(tmp_path: Path) -> AsyncIterator[Bank]:
    async with perdure.open(f"sqlite:///{tmp_path}/memory.db") as opened:
        yield opened


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    return new_repository(tmp_path / "demo")


def file_of(project: Project) -> Path:
    return project.location.files / STATE_FILE


def data_of(project: Project) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(file_of(project).read_text())
    return found


def write(project: Project, data: Any) -> None:
    file_of(project).write_text(data if isinstance(data, str) else json.dumps(data))


async def test_a_finished_milestone_leaves_the_commit_as_a_checkpoint(
    bank: Bank, repository: Path
) -> None:
    project = project_in(bank, repository)
    state = project.state
    goal = await state.add("goal", "Deploy every day", by="ada")
    task = await project.tasks.add("Write the pipeline")
    step = await state.add("milestone", "CI runs", of="deploy", needs=["#1"])
    assert step.made_at.branch == "main"
    assert step.made_at.commit == git(repository, "rev-parse", "HEAD")
    assert len(step.id) >= len("ms_") + 10  # 40 bits
    with pytest.raises(InvalidInput, match="#1 Write the pipeline"):
        await state.finish("CI runs")
    await project.tasks.done(task.id)
    head = commit(repository, "pipeline")
    done, kept = await state.finish("ci")
    assert kept is not None
    assert (done.status, kept.commit, kept.branch, kept.of) == ("done", head, "main", step.id)
    assert done.changed_at.commit == head
    assert done.made_at != done.changed_at
    git(repository, "commit", "-q", "--amend", "-m", "the pipeline")
    amended = git(repository, "rev-parse", "--short=10", "HEAD")
    await project.anchors.refresh()
    assert f"Checkpoint: CI runs ({amended} on `main`)" in await project.preamble.text()
    await state.add("link", "docs/deploy.md", target="docs/deploy.md", of=goal.id)
    await state.sync()
    data = data_of(project)
    assert data["goals"][goal.id]["title"] == "Deploy every day"
    assert data["dependencies"] == {step.id: [task.id]}
    assert data["checkpoints"][kept.id]["commit"] == head
    assert [each["target"] for each in data["artefacts"].values()] == ["docs/deploy.md"]
    assert git(repository, "status", "--porcelain") == ""


async def test_a_milestone_whose_finish_was_killed_is_finished_again_with_one_checkpoint(
    bank: Bank, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = project_in(bank, repository).state
    step = await state.add("milestone", "CI runs")
    with monkeypatch.context() as killed:
        killed.setattr(state, "edit", None)
        with pytest.raises(TypeError):
            await state.finish("CI runs")
    done, kept = await state.finish("CI runs")
    assert done.status == "done"
    assert [each.id for each in await state.list("checkpoint")] == [kept and kept.id]
    assert kept is not None
    assert kept.of == step.id


async def test_circles_and_unknown_names_are_refused(bank: Bank, tmp_path: Path) -> None:
    state = project_in(bank, tmp_path / "bare").state
    await state.add("milestone", "one")
    await state.add("milestone", "two", needs=["one"])
    await state.add("goal", "down")
    with pytest.raises(InvalidInput, match="circle"):
        await state.edit("one", needs=["two"])
    with pytest.raises(NotFound, match="three"):
        await state.edit("one", needs=["three"])
    with pytest.raises(InvalidInput, match="fits several"):
        await state.edit("w", title="x")
    done, kept = await state.finish("one")
    assert (done.status, kept) == ("done", None)  # there is no git
    with pytest.raises(InvalidInput, match="done already"):
        await state.finish("one")


async def test_hand_edits_are_merged_with_what_the_bank_learnt(
    bank: Bank, repository: Path
) -> None:
    project = project_in(bank, repository)
    state = project.state
    one = await state.add("goal", "one")
    two = await state.add("goal", "two")
    three = await state.add("goal", "three")
    await state.sync()
    data = data_of(project)
    data["goals"][one.id] |= {"title": "first", "colour": "red"}
    data["goals"]["by hand"] = {"text": "No id yet."}
    data["owner"] = "ada"
    del data["goals"][two.id]
    del data["goals"][three.id]
    await state.edit(one.id, text="From the bank.")
    await state.edit(three.id, text="Changed meanwhile.")
    write(project, data)
    report = await state.sync()
    assert (len(report.taken), report.written) == (4, True)
    assert [each for each in report.remarks if three.id in each and "stays" in each]
    found = {each.title: each for each in await state.list()}
    assert set(found) == {"first", "three", "by hand"}
    assert found["first"].text == "From the bank."
    assert found["first"].extra == {"colour": "red"}
    after = data_of(project)
    assert (after["owner"], after["goals"][one.id]["colour"]) == ("ada", "red")
    assert after["goals"][found["by hand"].id]["text"] == "No id yet."
    assert await state.sync() == type(report)()
    assert (await state.edit(two.id, status="open")).title == "two"  # it was not destroyed


async def test_of_two_texts_the_other_is_kept(bank: Bank, repository: Path) -> None:
    project = project_in(bank, repository)
    goal = await project.state.add("goal", "one")
    await project.state.sync()
    data = data_of(project)
    data["goals"][goal.id]["title"] = "hand"
    write(project, data)
    os.utime(file_of(project), (1, 1))
    await project.state.edit(goal.id, title="bank")
    await project.state.sync()
    found = await project.state.get(goal.id)
    assert found.title == "bank"
    assert [each.text for each in found.notes] == ["Another title: hand"]


@pytest.mark.parametrize(
    "broken",
    ["{", "[]", '{"goals": []}', '{"format": 2}', '{"goals": {"x": 3}}', "\ufffd", "<<<<<<< a\n"],
)
async def test_a_file_that_cannot_be_read_is_left_alone(
    bank: Bank, repository: Path, broken: str
) -> None:
    project = project_in(bank, repository)
    await project.state.add("goal", "one")
    await project.state.sync()
    write(project, broken)
    report = await project.state.sync()
    assert (len(report.taken), report.written) == (0, False)
    assert "left as it is" in report.remarks[0]
    assert report.remarks[0].count("perdure project repair") == (0 if "format" in broken else 1)
    assert file_of(project).read_text() == broken
    assert [each.title for each in await project.state.list()] == ["one"]


async def test_an_entry_that_cannot_be_read_is_kept_beside(bank: Bank, repository: Path) -> None:
    project = project_in(bank, repository)
    one = await project.state.add("goal", "one")
    two = await project.state.add("goal", "two")
    await project.state.sync()
    data = data_of(project)
    data["goals"][one.id]["text"] = ["no", "text"]
    data["goals"][two.id]["title"] = "second"
    write(project, data)
    report = await project.state.sync()
    assert one.id in report.remarks[0]
    (kept,) = project.location.files.glob("*.kept-*")
    assert json.loads(kept.read_text()) == data
    assert {each.title for each in await project.state.list()} == {"one", "second"}
    assert (await project.state.sync()).remarks == ()


async def test_a_checkout_of_an_older_branch_takes_nothing_away(
    bank: Bank, repository: Path
) -> None:
    project = project_in(bank, repository, shared=True)
    state = project.state
    (repository / ".perdure").mkdir()
    (repository / ".perdure" / ".gitignore").write_text("/sessions/\n")
    one = await state.add("goal", "one")
    await state.sync()
    git(repository, "add", ".perdure")
    git(repository, "commit", "-q", "-m", "share")
    git(repository, "branch", "old")
    two = await state.add("goal", "two")
    await state.edit(one.id, status="done")
    await state.sync()
    git(repository, "commit", "-q", "-am", "two")
    git(repository, "checkout", "-q", "old")
    assert (await state.sync(write=False)).taken == ()
    assert git(repository, "status", "--porcelain") == ""
    assert (await state.get(one.id)).status == "done"
    assert (await state.get(two.id)).status == "open"
    # What was really changed on the other branch arrives, and what was removed there goes.
    data = data_of(project)
    data["goals"] = {"gl_0123456789ab": {"title": "theirs", "updated": "2020-01-01T00:00:00Z"}}
    write(project, data)
    git(repository, "commit", "-q", "-am", "theirs")
    git(repository, "checkout", "-q", "main")
    await state.sync(write=False)
    git(repository, "checkout", "-q", "old")
    await state.sync(write=False)
    assert {each.title for each in await state.list()} == {"one", "two", "theirs"}
    assert git(repository, "status", "--porcelain") == ""


async def test_another_clone_with_the_same_bank_adds_and_removes_nothing(
    bank: Bank, repository: Path, tmp_path: Path
) -> None:
    project = project_in(bank, repository)
    await project.state.add("goal", "one")
    await project.state.sync()
    other = project_in(bank, new_repository(tmp_path / "clone"))
    other.location.files.mkdir()
    file_of(other).write_text(file_of(project).read_text())
    await project.state.edit("one", text="later")
    report = await other.state.sync()
    assert (len(report.taken), report.remarks) == (0, ())
    assert data_of(other) == json.loads(await project.state.text())


async def test_a_folder_that_links_elsewhere_is_not_followed(
    bank: Bank, repository: Path, tmp_path: Path
) -> None:
    project = project_in(bank, repository)
    (tmp_path / "elsewhere").mkdir()
    project.location.files.symlink_to(tmp_path / "elsewhere")
    await project.state.add("goal", "one")
    (said,) = await project.write_files()
    assert "link to another place" in said
    assert list((tmp_path / "elsewhere").iterdir()) == []


# Merging, purely ------------------------------------------------------------------------------

_texts = st.text("abc ", min_size=1, max_size=4).filter(str.strip)
_ids = st.sampled_from([f"{PREFIXES[kind]}_{'0' * 11}{n}" for kind in PREFIXES for n in "12"])
_kinds = {prefix: kind for kind, prefix in PREFIXES.items()}


@st.composite
def _lines(draw: st.DrawFn) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for id in draw(st.lists(_ids, unique=True, max_size=5)):
        found[id] = {"id": id, "kind": _kinds[id[:2]], "title": draw(_texts)}
        found[id] |= draw(
            st.fixed_dictionaries(
                {},
                optional={
                    "text": _texts,
                    "status": st.sampled_from(["open", "done", "dropped"]),
                    "of": _ids,
                    "updated": st.sampled_from(["2026-01-01", "2026-01-02"]),
                    "mine": st.integers(1, 5),
                },
            )
        )
    return found


@given(_lines(), _lines(), _lines())
def test_no_merge_loses_an_edit(base: Any, ours: Any, theirs: Any) -> None:
    """Every value that a side wrote is in the result, or in a note beside it."""
    files = [write_state(each) for each in (base, ours, theirs)]
    text, remarks = merge_state_files(*files)
    assert merge_state_files(files[0], files[2], files[1]) == (text, remarks)
    assert merge_state_files(files[0], text, text)[0] == text
    merged = read_state(text).lines
    for side in (ours, theirs):
        for id, line in side.items():
            before = base.get(id, {})
            for field, value in line.items():
                if value == before.get(field) or field in {"status", "updated"}:
                    continue
                notes = [note["text"] for note in merged[id].get("notes", [])]
                assert merged[id].get(field) == value or f"Another {field}: {value}" in notes
        for id in base.keys() - side.keys():
            other = theirs if side is ours else ours
            assert (id in merged) == (id in other and other[id] != base[id])


@given(_lines(), st.integers(0, 4))
def test_marks_of_a_conflict_give_the_sides_back(lines: Any, cut: int) -> None:
    text = write_state(lines)
    rows = text.splitlines(keepends=True)
    at = min(cut, len(rows))
    head, tail = "".join(rows[:at]), "".join(rows[at:])
    marked = f"{head}<<<<<<< ours\n1\n||||||| base\n0\n=======\n2\n>>>>>>> theirs\n{tail}"
    assert conflict_sides(marked) == tuple(f"{head}{each}\n{tail}" for each in (0, 1, 2))


def test_an_entry_without_an_id_is_no_merge() -> None:
    with pytest.raises(InvalidInput, match="without an id"):
        merge_state_files("", '{"goals": {"new": {}}}', "{}")


async def test_another_bank_takes_in_what_the_file_says_before_it_writes(
    bank: Bank, repository: Path, tmp_path: Path
) -> None:
    project = project_in(bank, repository)
    kept = await project.state.add("goal", "Kept")
    gone = await project.state.add("goal", "Taken out")
    await project.write_files()
    await project.state.edit(gone.id, status="removed")
    await project.write_files()
    async with perdure.open(f"sqlite:///{tmp_path}/other.db") as other:
        there = project_in(other, repository)
        await there.state.add("goal", "Of the other")
        assert (await there.state.sync()).taken == ("goal Kept",)
        titles = {each["title"] for each in data_of(there)["goals"].values()}
        assert titles == {"Kept", "Of the other"}
        await there.state.edit(kept.id, status="removed")  # the file is its own now
        await there.write_files()
        assert len(data_of(there)["goals"]) == 1
    await project.write_files()  # and the first one takes in what the other has added
    titles = {each["title"] for each in data_of(project)["goals"].values()}
    assert titles == {"Kept", "Of the other"}
    write(project, data_of(project) | {"goals": {}})
    await project.write_files()
    assert await project.state.list("goal") == []  # the same bank wrote it: they were taken out


async def test_an_older_copy_of_the_bank_loses_nothing_of_the_file(
    bank: Bank, repository: Path, tmp_path: Path
) -> None:
    project = project_in(bank, repository)
    await project.state.add("goal", "Old")
    await project.write_files()
    shutil.copy(tmp_path / "memory.db", tmp_path / "copy.db")
    await project.state.add("goal", "New")
    await project.write_files()
    async with perdure.open(f"sqlite:///{tmp_path}/copy.db") as copy:
        restored = project_in(copy, repository)
        await restored.write_files()
        assert {each.title for each in await restored.state.list()} == {"Old", "New"}


async def test_the_journal_and_sessions_of_another_bank_keep_what_the_files_say(
    bank: Bank, repository: Path, tmp_path: Path
) -> None:
    project = project_in(bank, repository)
    note = await project.work.note("By hand")
    await project.write_files()
    [page] = (repository / ".perdure/journal").iterdir()
    async with perdure.open(f"sqlite:///{tmp_path}/other.db") as other:
        there = project_in(other, repository)
        await there.work.note("Later")
        await there.write_files()
    assert note.id in page.read_text()
    assert "Later" in page.read_text()

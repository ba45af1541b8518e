"""Where a project is found, and that variables of a hook do not lead git elsewhere."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

import perdure
from perdure.core.errors import Corrupted, InvalidInput, NotFound
from perdure.project.git_repository import GitFailed, GitRepository
from perdure.project.project_location import ProjectLocation, ProjectSettings, new_project_id


def git(folder: Path, *args: str) -> str:
    identity = ("-c", "user.name=Ada", "-c", "user.email=ada@example.org")
    done = subprocess.run(
        ["git", *identity, *args], cwd=folder, check=True, capture_output=True, text=True
    )
    return done.stdout.strip()


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    root = tmp_path / "demo"
    root.mkdir()
    git(root, "init", "--quiet", "--initial-branch=main")
    git(root, "commit", "--quiet", "--allow-empty", "-m", "first")
    return root


def settings() -> ProjectSettings:
    return ProjectSettings(project=new_project_id(), name="demo")


async def test_head_in_every_state(repository: Path) -> None:
    found = GitRepository.find(repository / "src" / "deep")
    assert found is not None
    assert found.root == repository
    first = git(repository, "rev-parse", "HEAD")
    head = await found.head()
    assert (head.commit, head.branch) == (first, "main")

    git(repository, "pack-refs", "--all")
    assert await found.head() == head
    git(repository, "checkout", "--quiet", "--orphan", "feature/new")
    unborn = await found.head()
    assert (unborn.commit, unborn.branch) == ("", "feature/new")
    git(repository, "checkout", "--quiet", "--detach", first)
    detached = await found.head()
    assert (detached.commit, detached.branch) == (first, "")


async def test_a_work_tree_shares_the_projects_folder(repository: Path, tmp_path: Path) -> None:
    git(repository, "worktree", "add", "--quiet", "-b", "other", str(tmp_path / "other"))
    here, there = ProjectLocation.find(repository), ProjectLocation.find(tmp_path / "other")
    assert here.folder == there.folder == repository / ".git" / "perdure"
    assert (here.worktree, there.worktree) == ("main", "other")
    assert there.git is not None
    assert (await there.git.head()).branch == "other"
    assert await there.git.worktrees() == [repository, tmp_path / "other"]
    here.write_settings(settings())
    assert there.settings == here.settings
    assert git(repository, "status", "--porcelain") == ""


async def test_variables_of_a_hook_do_not_lead_elsewhere(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "elsewhere"))
    monkeypatch.setenv("GIT_WORK_TREE", str(tmp_path))
    found = GitRepository.find(repository)
    assert found is not None
    assert (await found.run("rev-parse", "--show-toplevel")).strip() == str(repository)


@pytest.mark.parametrize("name", ["", "--all", "nowhere", "main:file"])
async def test_what_is_no_commit_is_refused(repository: Path, name: str) -> None:
    found = GitRepository.find(repository)
    assert found is not None
    with pytest.raises(InvalidInput, match="is no commit"):
        await found.commit(name)
    assert await found.commit("main") == git(repository, "rev-parse", "HEAD")


async def test_what_git_says_is_told_and_not_its_advice(repository: Path) -> None:
    found = GitRepository.find(repository)
    assert found is not None
    with pytest.raises(GitFailed, match="git show failed: fatal: ambiguous argument 'nowhere'"):
        await found.run("show", "nowhere")


def test_a_folder_beside_a_repository_is_not_in_it(repository: Path) -> None:
    (repository.parent / "beside").mkdir()
    assert GitRepository.find(repository / "../beside") is None
    found = ProjectLocation.find(repository / "../beside")
    assert (found.root, found.git) == (repository.parent / "beside", None)


async def test_a_folder_without_git_is_found_from_below(tmp_path: Path) -> None:
    (tmp_path / "notes" / "deep").mkdir(parents=True)
    location = ProjectLocation.find(tmp_path / "notes")
    assert location.git is None
    assert location.settings is None
    location.write_settings(settings())
    below = ProjectLocation.find(tmp_path / "notes" / "deep")
    assert below.root == tmp_path / "notes"
    async with perdure.open("memory://") as bank:
        assert bank.project(tmp_path / "notes" / "deep").name == "demo"


async def test_without_init_the_error_names_it(repository: Path) -> None:
    async with perdure.open("memory://") as bank:
        with pytest.raises(NotFound, match="project init"):
            bank.project(repository)


@pytest.mark.parametrize("text", ["{", '{"project": "p", "name": "x"}', '{"name": "x"}', "[]", ""])
def test_broken_settings_are_told_and_kept(repository: Path, text: str) -> None:
    location = ProjectLocation.find(repository)
    location.folder.mkdir()
    (location.folder / "project.json").write_text(text)
    with pytest.raises(Corrupted, match=r"project\.json"):
        _ = location.settings
    assert (location.folder / "project.json").read_text() == text

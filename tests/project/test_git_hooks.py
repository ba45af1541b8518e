"""Git hooks: what they note, that git does not notice them, and that they go without a trace."""

from __future__ import annotations

import shutil
import signal
import sys
import threading
from pathlib import Path

import pytest

from perdure.core.errors import Unavailable
from perdure.project.git_hook_script import BEGIN, HOOKS, SCRIPT_NAME
from perdure.project.git_hooks import GitHooks
from perdure.project.hook_spool import SpoolLine
from perdure.project.project_location import ProjectLocation
from tests.project.repositories import VARIABLES, all_bytes, commit, git, new_repository, run


@pytest.fixture(autouse=True)
def own_git(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in VARIABLES.items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    return new_repository(tmp_path / "attic")


def hooks_of(folder: Path) -> GitHooks:
    return GitHooks(ProjectLocation.find(folder))


def noted(folder: Path) -> list[SpoolLine]:
    """Without probes."""
    read = hooks_of(folder).spool.read({})
    assert read.damaged == 0
    return [line for line in read.lines if line.name != "probe"]


def kinds(folder: Path) -> list[str]:
    return [line.name for line in noted(folder)]


async def test_each_hook_notes_one_line(repository: Path) -> None:
    await hooks_of(repository).install()
    second = commit(repository, "second")
    git(repository, "checkout", "-q", "-b", "side")
    third = commit(repository, "third")
    git(repository, "checkout", "-q", "main")
    git(repository, "merge", "-q", "side")
    git(repository, "commit", "-q", "--amend", "-m", "third, better")
    amended = git(repository, "rev-parse", "HEAD")
    lines = noted(repository)
    tree = str(repository)
    assert [(line.name, line.fields) for line in lines] == [
        ("post-commit", (second, "main", tree, "")),
        ("post-checkout", (second, "side", tree, f"{second} {second} 1")),
        ("post-commit", (third, "side", tree, "")),
        ("post-checkout", (second, "main", tree, f"{third} {second} 1")),
        ("post-merge", (third, "main", tree, "0")),
        ("post-commit", (amended, "main", tree, "")),
        ("post-rewrite", (amended, "main", tree, f"amend {third} {amended}")),
    ]
    # dash does not know the time, and starts no process to learn it.
    assert all(line.time == 0 or line.time > 1_700_000_000 for line in lines)
    assert git(repository, "status", "--porcelain") == ""


async def test_hooks_whose_record_was_lost_go_all_the_same(repository: Path) -> None:
    before = all_bytes(repository / ".git/hooks")
    hooks = hooks_of(repository)
    await hooks.install()
    shutil.rmtree(hooks.spool.folder.parent)
    commit(repository, "meanwhile")
    await hooks.install()
    assert all(trial.ok for trial in await hooks.prove())
    await hooks.uninstall()
    assert all_bytes(repository / ".git/hooks") == before


async def test_files_that_are_checked_out_are_no_news(repository: Path) -> None:
    await hooks_of(repository).install()
    git(repository, "checkout", "--", "first.txt")
    assert noted(repository) == []


async def test_a_rebase_is_told_once_with_all_its_pairs(repository: Path) -> None:
    await hooks_of(repository).install()
    git(repository, "checkout", "-q", "-b", "side")
    old = [commit(repository, f"side {number}") for number in range(40)]
    git(repository, "checkout", "-q", "main")
    commit(repository, "main moves on")
    git(repository, "checkout", "-q", "side")
    before = len(noted(repository))
    git(repository, "rebase", "-q", "main")
    new = git(repository, "rev-list", "--reverse", "main..side").split()
    lines = [line for line in noted(repository)[before:] if line.name != "post-checkout"]
    assert {line.name for line in lines} == {"post-rewrite"}  # no post-commit for each
    pairs: dict[str, str] = {}
    for line in lines:
        kind, *words = line.fields[-1].split()
        assert kind == "rebase"
        pairs |= dict(zip(words[::2], words[1::2], strict=True))
    assert pairs == dict(zip(old, new, strict=True))
    assert len(lines) == 2  # each is one write
    raw = b"".join(path.read_bytes() for path in hooks_of(repository).spool.folder.iterdir())
    assert max(map(len, raw.splitlines())) < 4000


async def test_worktrees_share_one_spool_and_are_told_apart(repository: Path) -> None:
    await hooks_of(repository).install()
    other = repository.parent / "other tree"
    git(repository, "worktree", "add", "-q", "-b", "side", str(other))
    made = commit(other, "elsewhere")
    detached = repository.parent / "detached"
    git(repository, "worktree", "add", "-q", "--detach", str(detached))
    lone = commit(detached, "lone")
    lines = noted(repository)
    commits = [line.fields[:3] for line in lines if line.name == "post-commit"]
    assert commits == [(made, "side", str(other)), (lone, "", str(detached))]
    assert noted(other) == lines
    trials = await hooks_of(other).prove()
    assert {(trial.worktree, trial.ok, trial.reason) for trial in trials} == {
        (str(tree), True, "") for tree in (repository, other, detached)
    }


async def test_a_submodule_is_a_repository_of_its_own(repository: Path, tmp_path: Path) -> None:
    inner = new_repository(tmp_path / "inner")
    allow = ("-c", "protocol.file.allow=always")
    git(repository, *allow, "submodule", "add", "-q", str(inner), "sub")
    git(repository, "commit", "-q", "-m", "a submodule")
    await hooks_of(repository / "sub").install()
    made = commit(repository / "sub", "inside")
    assert [line.fields[0] for line in noted(repository / "sub")] == [made]
    assert not (repository / ".git" / "perdure").exists()
    git(repository / "sub", "worktree", "add", "-q", "-b", "side", str(tmp_path / "side"))
    for tree in (repository / "sub", tmp_path / "side"):
        trials = await hooks_of(tree).prove()
        assert [(each.worktree, each.ok) for each in trials] == [
            (str(repository / "sub"), True),
            (str(tmp_path / "side"), True),
        ]


async def test_work_trees_of_a_bare_repository_are_all_there_are(
    repository: Path, tmp_path: Path
) -> None:
    bare, tree = tmp_path / "demo.git", tmp_path / "tree"
    git(repository, "clone", "-q", "--bare", str(repository), str(bare))
    git(bare, "worktree", "add", "-q", str(tree), "main")
    await hooks_of(tree).install()
    made = commit(tree, "second")
    assert [line.fields[0] for line in noted(tree) if line.name == "post-commit"] == [made]
    assert [(each.worktree, each.ok) for each in await hooks_of(tree).prove()] == [
        (str(tree), True)
    ]


async def test_packed_and_sha256_references_are_read(repository: Path, tmp_path: Path) -> None:
    await hooks_of(repository).install()
    git(repository, "branch", "feature/one")
    git(repository, "pack-refs", "--all")
    git(repository, "checkout", "-q", "feature/one")
    (line,) = noted(repository)
    assert line.fields[:2] == (git(repository, "rev-parse", "HEAD"), "feature/one")
    long = new_repository(tmp_path / "long", "--object-format=sha256")
    await hooks_of(long).install()
    made = commit(long, "second")
    assert len(made) == 64
    assert [each.fields[0] for each in noted(long)] == [made]


SCRIPTS = {
    "a shell script": '#!/bin/sh -e\necho "$(basename "$0") $*" >> "$HERE/ran"\n',
    "bash by env": '#!/usr/bin/env bash\nset -euo pipefail\necho "${0##*/} $*" >> "$HERE/ran"',
    "another program": "#!/usr/bin/env python3\nimport os, sys\n"
    "open(os.environ['HERE'] + '/ran', 'a').write(os.path.basename(sys.argv[0]) + ' '"
    " + ' '.join(sys.argv[1:]) + '\\n')\n",
    "bytes": '#!/bin/sh\n# caf\xe9\necho "$(basename "$0") $*" >> "$HERE/ran"\n',
}


@pytest.mark.parametrize("kind", SCRIPTS)
async def test_hooks_that_are_there_run_as_before_and_are_put_back(
    kind: str, repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HERE", str(tmp_path))
    for hook in ("post-commit", "post-checkout"):
        path = repository / ".git" / "hooks" / hook
        path.write_bytes(SCRIPTS[kind].encode("latin-1"))
        path.chmod(0o750)
    before = all_bytes(repository / ".git")
    hooks = hooks_of(repository)
    await hooks.install()
    await hooks.install()  # again: the same
    commit(repository, "second")
    git(repository, "checkout", "-q", "-b", "side")
    head = git(repository, "rev-parse", "HEAD")
    ran = [line.rstrip() for line in (tmp_path / "ran").read_text().splitlines()]
    assert ran == ["post-commit", f"post-checkout {head} {head} 1"]
    assert kinds(repository) == ["post-commit", "post-checkout"]
    assert all(trial.ok for trial in await hooks.prove())
    assert (tmp_path / "ran").read_text().count("\n") == 2  # a trial runs nobody else's hook
    assert await hooks.uninstall()
    after = all_bytes(repository / ".git")
    for part in ("hooks", "config"):
        left = {name: each for name, each in after.items() if name.startswith(part)}
        assert left == {name: each for name, each in before.items() if name.startswith(part)}


async def test_what_a_hook_reads_and_returns_is_its_own(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HERE", str(tmp_path))
    hooks = repository / ".git" / "hooks"
    (hooks / "post-rewrite").write_text('#!/bin/sh\ncat > "$HERE/map"\n')
    (hooks / "post-checkout").write_text("#!/bin/sh\nexit 1\n")
    for hook in ("post-rewrite", "post-checkout"):
        (hooks / hook).chmod(0o755)
    await hooks_of(repository).install()
    old = git(repository, "rev-parse", "HEAD")
    git(repository, "commit", "-q", "--amend", "-m", "better")
    assert (tmp_path / "map").read_text().split() == [old, git(repository, "rev-parse", "HEAD")]
    done = run(repository, "git", "checkout", "-q", "-b", "side")
    assert done.returncode == 1  # as it would be without us
    assert kinds(repository) == ["post-commit", "post-rewrite", "post-checkout"]


async def test_links_and_hooks_that_are_switched_off_stay_what_they_are(repository: Path) -> None:
    hooks = repository / ".git" / "hooks"
    (repository / "tool.sh").write_text("#!/bin/sh\nexit 0\n")
    (repository / "tool.sh").chmod(0o755)
    (hooks / "post-merge").symlink_to("../../tool.sh")
    (hooks / "post-commit").write_text("#!/bin/sh\nexit 1\n")
    (hooks / "post-commit").chmod(0o644)  # git does not run it
    before = all_bytes(repository / ".git")
    await hooks_of(repository).install()
    commit(repository, "second")
    assert kinds(repository) == ["post-commit"]
    assert str((hooks / "post-merge").readlink()) == "../../tool.sh"
    await hooks_of(repository).uninstall()
    after = all_bytes(repository / ".git")
    assert {name: after.get(name) for name in before if name.startswith(("hooks", "config"))} == {
        name: each for name, each in before.items() if name.startswith(("hooks", "config"))
    }


@pytest.mark.parametrize("scope", ["local", "global"])
async def test_a_folder_of_hooks_that_is_tracked_is_not_touched(
    scope: str, repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HERE", str(tmp_path))
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(tmp_path / "gitconfig"))
    folder = repository / ".githooks"
    folder.mkdir()
    for hook in ("pre-commit", "post-commit"):
        (folder / hook).write_text(f'#!/bin/sh\necho "{hook} $(dirname "$0")" >> "$HERE/ran"\n')
        (folder / hook).chmod(0o755)
    git(repository, "add", ".githooks")
    git(repository, "commit", "-q", "-m", "hooks")
    git(repository, "config", f"--{scope}", "core.hooksPath", ".githooks")
    config = (repository / ".git" / "config").read_bytes()
    hooks = hooks_of(repository)
    await hooks.install()
    commit(repository, "second")
    other = tmp_path / "other"
    git(repository, "worktree", "add", "-q", "-b", "side", str(other))
    commit(other, "third")
    ran = (tmp_path / "ran").read_text().splitlines()
    assert ran == ["pre-commit .githooks", "post-commit .githooks"] * 2
    assert kinds(repository) == ["post-commit", "post-checkout", "post-commit"]
    # A hook that the team adds later runs, too.
    (folder / "commit-msg").write_text("#!/bin/sh\nexit 1\n")
    (folder / "commit-msg").chmod(0o755)
    refused = run(repository, "git", "commit", "-q", "--allow-empty", "-m", "x")
    assert refused.returncode == 1
    (folder / "commit-msg").unlink()
    assert git(repository, "status", "--porcelain") == ""
    await hooks.uninstall()
    assert (repository / ".git" / "config").read_bytes() == config


#: What husky 9 writes into ``.husky/_`` for each hook, and its ``h``.
HUSKY = {
    "post-commit": '#!/usr/bin/env sh\n. "$(dirname "$0")/h"',
    "h": '#!/usr/bin/env sh\nn=$(basename "$0")\ns=$(dirname "$(dirname "$0")")/$n\n'
    '[ ! -f "$s" ] && exit 0\nsh -e "$s" "$@"\nexit $?\n',
}


async def test_husky_goes_on_and_takes_over_again(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HERE", str(tmp_path))
    inner = repository / ".husky" / "_"
    inner.mkdir(parents=True)
    for name, text in HUSKY.items():
        (inner / name).write_text(text)
        (inner / name).chmod(0o755)
    (inner / ".gitignore").write_text("*")
    (repository / ".husky" / "post-commit").write_text('echo husky >> "$HERE/ran"\n')
    git(repository, "config", "core.hooksPath", ".husky/_")
    hooks = hooks_of(repository)
    await hooks.install()
    commit(repository, "second")
    assert (tmp_path / "ran").read_text() == "husky\n"
    assert kinds(repository) == ["post-commit"]
    git(repository, "config", "core.hooksPath", ".husky/_")  # `npm install` does this
    (trial,) = await hooks.prove()
    assert not trial.ok
    assert (tmp_path / "ran").read_text() == "husky\n"  # the trial did not run husky's
    await hooks.install()
    assert all(each.ok for each in await hooks.prove())
    await hooks.uninstall()
    assert git(repository, "config", "core.hooksPath") == ".husky/_"


async def test_pre_commit_renames_our_hook_and_it_still_goes_away(repository: Path) -> None:
    hooks, folder = hooks_of(repository), repository / ".git" / "hooks"
    await hooks.install()
    (folder / "post-commit").rename(folder / "post-commit.legacy")  # as `pre-commit install` does
    (folder / "post-commit").write_text(
        '#!/usr/bin/env bash\n"$(dirname "$0")/post-commit.legacy" "$@"\n'
    )
    (folder / "post-commit").chmod(0o755)
    commit(repository, "second")
    assert kinds(repository) == ["post-commit"]
    await hooks.uninstall()
    assert not (folder / "post-commit.legacy").exists()
    assert (folder / "post-commit").exists()


async def test_what_somebody_wrote_into_our_hook_stays(repository: Path) -> None:
    hooks, path = hooks_of(repository), repository / ".git" / "hooks" / "post-merge"
    await hooks.install()
    path.write_text(path.read_text() + "echo mine\n")
    await hooks.uninstall()
    assert path.read_text() == "#!/bin/sh\necho mine\n"
    assert not await hooks.uninstall()


@pytest.mark.parametrize("step", range(6))
async def test_a_crash_while_hooks_are_put_in_is_mended(step: int, repository: Path) -> None:
    """The process is killed before each file that is replaced."""
    hook = repository / ".git" / "hooks" / "post-commit"
    hook.write_text("#!/bin/sh\nexit 0\n")
    hook.chmod(0o755)
    before = all_bytes(repository / ".git")
    code = f"""
import asyncio, os, pathlib
from perdure.project.git_hooks import GitHooks
from perdure.project.project_location import ProjectLocation
left, replace = [{step}], pathlib.Path.replace
def dying(self, target):
    if left[0] == 0:
        os.kill(os.getpid(), 9)
    left[0] -= 1
    return replace(self, target)
pathlib.Path.replace = dying
asyncio.run(GitHooks(ProjectLocation.find(pathlib.Path.cwd())).install())
"""
    done = run(repository, sys.executable, "-c", code)
    assert done.returncode == -signal.SIGKILL
    commit(repository, "second")  # git does not notice
    hooks = hooks_of(repository)
    await hooks.install()
    assert all(each.ok for each in await hooks.prove())
    await hooks.uninstall()
    after = {
        name: each
        for name, each in all_bytes(repository / ".git" / "hooks").items()
        if ".perdure-" not in name  # half a file that nobody runs
    }
    assert after == {
        name.removeprefix("hooks/"): each
        for name, each in before.items()
        if name.startswith("hooks/")
    }


class Misfortune:
    """What may be wrong with the spool when a hook runs."""

    @staticmethod
    def full_disk(spool: Path) -> None:
        (spool / "git").symlink_to("/dev/full")

    @staticmethod
    def no_folder(spool: Path) -> None:
        shutil.rmtree(spool)

    @staticmethod
    def no_script(spool: Path) -> None:
        (spool.parent / SCRIPT_NAME).unlink()

    @staticmethod
    def broken_script(spool: Path) -> None:
        (spool.parent / SCRIPT_NAME).write_text("if then )(\nexit 3\n")

    @staticmethod
    def a_folder_in_its_place(spool: Path) -> None:
        (spool / "git").mkdir()


@pytest.mark.parametrize(
    "what", ["full_disk", "no_folder", "no_script", "broken_script", "a_folder_in_its_place"]
)
async def test_git_does_not_notice_a_hook_that_fails(what: str, repository: Path) -> None:
    hooks = hooks_of(repository)
    await hooks.install()
    getattr(Misfortune, what)(hooks.spool.folder)
    for words in (
        ("commit", "-q", "--allow-empty", "-m", "second"),
        ("checkout", "-q", "-b", "side"),
        ("commit", "-q", "--amend", "--allow-empty", "-m", "third"),
        ("rebase", "-q", "--force-rebase", "HEAD~1"),
    ):
        done = run(repository, "git", *words)
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    (trial,) = await hooks.prove()
    assert not trial.ok


async def test_a_limit_on_files_kills_the_note_and_not_git(repository: Path) -> None:
    hooks = hooks_of(repository)
    await hooks.install()
    hooks.spool.file.write_bytes(b"x" * 40_000)
    limited = "ulimit -f 76; exec git commit -q --allow-empty -m second"  # in 512 bytes
    done = run(repository, "sh", "-c", limited)
    assert (done.returncode, done.stderr) == (0, "")


async def test_a_commit_is_noted_without_any_other_program(
    repository: Path, tmp_path: Path
) -> None:
    await hooks_of(repository).install()
    tools = tmp_path / "tools"
    tools.mkdir()
    for name in ("git", "sh"):
        (tools / name).symlink_to(shutil.which(name) or "")
    git(repository, "commit", "-q", "--allow-empty", "-m", "second", PATH=str(tools))
    assert kinds(repository) == ["post-commit"]


async def test_two_worktrees_at_once_lose_and_double_nothing(repository: Path) -> None:
    hooks = hooks_of(repository)
    await hooks.install()
    trees = [repository.parent / f"tree {number}" for number in range(2)]
    for number, tree in enumerate(trees):
        git(repository, "worktree", "add", "-q", "-b", f"side{number}", str(tree))
    made: list[str] = []

    def work(tree: Path) -> None:
        made.extend(commit(tree, f"{tree.name} {number}") for number in range(12))

    threads = [threading.Thread(target=work, args=(tree,)) for tree in trees]
    for thread in threads:
        thread.start()
    position: dict[str, int] = {}
    found: list[str] = []
    while any(thread.is_alive() for thread in threads):
        read = hooks.spool.read(position)
        position = read.position
        found += [line.fields[0] for line in read.lines if line.name == "post-commit"]
        hooks.spool.discard(position)
    for thread in threads:
        thread.join()
    read = hooks.spool.read(position)
    found += [line.fields[0] for line in read.lines if line.name == "post-commit"]
    assert sorted(found) == sorted(made)


async def test_without_git_there_are_no_hooks(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="not under git"):
        hooks_of(tmp_path)


async def test_our_files_say_what_they_are(repository: Path) -> None:
    await hooks_of(repository).install()
    for hook in HOOKS:
        assert BEGIN in (repository / ".git" / "hooks" / hook).read_text()

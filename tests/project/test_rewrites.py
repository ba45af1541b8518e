"""History is rewritten, in real repositories: nothing that was anchored is lost or doubled."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

import perdure
from benchmarks.rewrites import (
    NAMES,
    REWRITES,
    TOPIC,
    VARIABLES,
    Rewrite,
    build,
    commits_of,
    expected,
    output,
    prepare,
    shell,
)
from perdure.bank import Bank
from perdure.core.errors import InvalidInput, NotFound
from perdure.project.commit_prints import CommitPrint
from perdure.project.git_hooks import GitHooks
from perdure.project.history_records import CommitMove, ProjectOperation
from perdure.project.project import Project
from perdure.project.project_location import ProjectLocation, ProjectSettings, new_project_id
from perdure.project.team.team_executor import stale_reason

#: Rewrites that take many processes.
SLOW = {name for name in REWRITES if "filter" in name or "formatted" in name or "called" in name}
SLOW |= {"in a subfolder alone", "reword", "renamed, reworded and rebased", "gone after gc"}


@pytest.fixture(autouse=True)
def own_git(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [each for each in os.environ if each.startswith("GIT_")]:
        monkeypatch.delenv(name)
    for name, value in VARIABLES.items():
        monkeypatch.setenv(name, value)


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All commits of it have one author and one second: only their content tells them apart."""
    return build(tmp_path_factory.mktemp("rewrites") / "template")


@pytest.fixture
async def bank(tmp_path: Path) -> AsyncIterator[Bank]:
    async with perdure.open(f"sqlite:///{tmp_path}/memory.db") as opened:
        yield opened


def project_of(bank: Bank, folder: Path, id: str = "", **settings: Any) -> Project:
    location = ProjectLocation.find(folder)
    if location.settings is None:
        location.write_settings(
            ProjectSettings(project=id or new_project_id(), name="demo", **settings)
        )
    return Project(bank.services, location)


async def check(bank: Bank, folder: Path, rewrite: Rewrite, commits: dict[str, str]) -> Project:
    project = project_of(bank, folder)
    await project.anchors.refresh()
    await project.anchors.note([*commits.values()])
    shell(folder, rewrite.script, **commits)
    await project.anchors.refresh()
    wanted = expected(folder, rewrite, commits)
    found = await project.anchors.where([*commits.values()])
    wrong = {
        name: found[commit]
        for name, commit in commits.items()
        if found[commit] not in (wanted[commit] or {""})
    }
    assert wrong == {}
    there = [commits[name] for name in rewrite.on_main]
    assert await project.anchors.true_at(there, "main") == {*there}
    # Nothing is new for who looks again, and nothing is recorded twice.
    again = await project.anchors.refresh()
    assert (again.changes, again.operation) == ((), 0)
    return project


async def matrix(bank: Bank, template: Path, folder: Path, names: list[str], hooks: bool) -> None:
    for at, name in enumerate(names):
        box = folder / str(at)
        box.mkdir()
        commits = prepare(template, box / "repo", REWRITES[name])
        if hooks:
            project = project_of(bank, box / "repo")
            await GitHooks(project.location).install()
        try:
            await check(bank, box / "repo", REWRITES[name], commits)
        except AssertionError as exc:
            raise AssertionError(f"after {name}: {exc}") from exc
        shutil.rmtree(box)


async def test_anchors_follow_rewrites(bank: Bank, template: Path, tmp_path: Path) -> None:
    names = [name for name in REWRITES if name not in SLOW]
    assert len(names) >= 26
    await matrix(bank, template, tmp_path, names, hooks=False)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["slow", "hooks", "hours apart", "sha256"])
async def test_anchors_follow_all_rewrites(
    kind: str, bank: Bank, template: Path, tmp_path: Path
) -> None:
    if kind in {"hours apart", "sha256"}:
        template = build(
            tmp_path / "template", tick=3600 * (kind != "sha256"), sha256=kind == "sha256"
        )
    names = [name for name in REWRITES if kind != "slow" or name in SLOW]
    await matrix(bank, template, tmp_path, names, hooks=kind == "hooks")


async def test_a_fresh_or_shallow_clone_finds_what_it_never_had(
    bank: Bank, template: Path, tmp_path: Path
) -> None:
    rewrite = REWRITES["squash and rebase"]
    commits = prepare(template, tmp_path / "repo", rewrite)
    project = project_of(bank, tmp_path / "repo")
    await project.anchors.refresh()
    await project.anchors.note([*commits.values()])
    shell(tmp_path / "repo", "git rebase -q main")
    shell(tmp_path, f"git clone -q --branch topic file://{tmp_path}/repo fresh")
    shell(tmp_path, f"git clone -q --depth 3 --branch topic file://{tmp_path}/repo shallow")
    # The old line is nowhere any more.
    shutil.rmtree(tmp_path / "repo")

    fresh = project_of(bank, tmp_path / "fresh", project.id)
    await fresh.refresh()
    found = await fresh.anchors.where([commits[name] for name in TOPIC])
    subjects = [output(tmp_path / "fresh", "log", "-1", "--format=%s", e) for e in found.values()]
    assert [each[:2] for each in subjects] == [*TOPIC]
    shallow = project_of(bank, tmp_path / "shallow", project.id)
    await shallow.refresh()
    now = await shallow.anchors.where([*commits.values()])
    assert [now[commits[name]] for name in ("t4", "t5")] == [*found.values()][-2:]
    # What lies behind its edge is not called gone.
    assert now[commits["m1"]] == commits["m1"]
    assert commits["m1"] in await shallow.anchors.true_at([commits["m1"]], "HEAD")


async def test_entries_made_between_two_rewrites_follow_both(
    bank: Bank, template: Path, tmp_path: Path
) -> None:
    commits = prepare(template, tmp_path / "repo", REWRITES["rebase"])
    folder = tmp_path / "repo"
    project = project_of(bank, folder)
    first = await project.tasks.add("at the first")
    shell(folder, "git rebase -q $m2 && git rebase -q main", **commits)
    second = await project.tasks.add("in between")
    shell(folder, "git commit -q --amend -m 't5: again'; git rebase -q --onto $u1 main", **commits)
    await project.anchors.refresh()
    shell(folder, "git reset -q --soft main~1; git commit -q -m 'all of it'")
    await project.anchors.refresh()
    head = output(folder, "rev-parse", "HEAD")
    anchored = [first.made_at.commit, second.made_at.commit]
    assert {*(await project.anchors.where(anchored)).values()} == {head}
    placed = (await project.history.status()).entries
    assert [(each.entry.title, each.place) for each in placed] == [
        ("#1 at the first", "moved"),
        ("#2 in between", "moved"),
    ]


async def test_two_that_fit_equally_are_not_guessed(bank: Bank, tmp_path: Path) -> None:
    folder = tmp_path / "repo"
    folder.mkdir()
    shell(folder, "git init -q -b main .; git commit -q --allow-empty -m first")
    lines = "".join(f"line number {at} of the poem\n" for at in range(20))
    (folder / "poem.txt").write_text(lines)
    shell(folder, "git checkout -q -b topic; git add -A; git commit -q -m poem")
    project = project_of(bank, folder)
    await project.anchors.refresh()
    anchor = await project.here()
    shell(folder, "git checkout -q main; git branch -q -D topic")
    for name in ("one", "two"):
        shell(folder, f"git checkout -q -b {name} main")
        (folder / f"{name}.md").write_text(f"{lines}and then {name}\n")
        shell(
            folder,
            f"git add -A; git commit -q -m {name} --author 'Bob <{name}@b>' --date 1600000000",
        )
    report = await project.anchors.refresh()
    assert await project.anchors.where([anchor.commit]) == {anchor.commit: ""}
    (unclear,) = (await project.history.get(report.operation)).unclear
    assert {*unclear.candidates} == {output(folder, "rev-parse", name) for name in ("one", "two")}


async def test_what_was_checked_out_at_a_time(bank: Bank, template: Path, tmp_path: Path) -> None:
    folder = tmp_path / "repo"
    commits = prepare(template, folder, REWRITES["rebase"])
    log = folder / ".git" / "logs" / "HEAD"
    who = "Ada <ada@example.com>"
    steps = [
        (commits["m3"], commits["t5"], 1000, "checkout: moving from main to topic"),
        (commits["t5"], commits["u2"], 2000, "checkout: moving from topic to main"),
        (commits["u2"], commits["m1"], 3000, "reset: moving to m1"),
        (commits["m1"], commits["t5"], 4000, "checkout: moving from main to topic"),
    ]
    log.write_text("".join(f"{a} {b} {who} {t} +0000\t{m}\n" for a, b, t, m in steps))
    project = project_of(bank, folder)
    at = project.anchors.at_time
    found = [await at(second * 1_000_000) for second in (999, 1000, 2500, 3000, 9999)]
    assert [(each.commit, each.branch) for each in found] == [
        (commits["m3"], "main"),
        (commits["t5"], "topic"),
        (commits["u2"], "main"),
        (commits["m1"], "main"),
        (commits["t5"], "topic"),
    ]
    # The reflog may be gone; the positions that were seen are kept.
    await project.anchors.refresh()
    seen = bank.store.now()
    shell(folder, "git checkout -q main")
    await project.anchors.refresh()
    log.unlink()
    assert (await at(seen)).branch == "topic"
    assert (await at(bank.store.now())).branch == "main"


async def test_a_rebase_that_is_not_over_is_left_alone(
    bank: Bank, template: Path, tmp_path: Path
) -> None:
    rewrite = REWRITES["rebase with a conflict"]
    folder = tmp_path / "repo"
    commits = prepare(template, folder, rewrite)
    project = project_of(bank, folder)
    await project.anchors.refresh()
    await project.anchors.note([*commits.values()])
    start, _, rest = rewrite.script.partition("\n")
    shell(folder, f"{start}; true", **commits)
    assert (await project.anchors.refresh()).busy
    # What is noted meanwhile belongs to the branch that is rebased.
    assert (await project.here()).branch == "topic"
    shell(folder, rest, **commits)
    report = await project.anchors.refresh()
    assert [each.kind for each in report.changes] == ["rebase"]
    assert len((await project.history.get(report.operation)).moves) == len(TOPIC)


# Deciding -------------------------------------------------------------------------------------


async def rebased(bank: Bank, template: Path, folder: Path, **settings: Any) -> Project:
    """A project with two tasks on a topic that was rebased."""
    prepare(template, folder, REWRITES["rebase"])
    project = project_of(bank, folder, **settings)
    await project.anchors.refresh()
    await project.tasks.add("one")
    shell(folder, "echo more >>util.py; git commit -q -a -m t6")
    await project.tasks.add("two")
    shell(folder, "git rebase -q main")
    return project


async def places(project: Project) -> list[str]:
    return [each.place for each in (await project.history.status()).entries]


async def test_who_can_be_asked_is_asked_and_others_follow_the_policy(
    bank: Bank, template: Path, tmp_path: Path
) -> None:
    project = await rebased(bank, template, tmp_path / "repo")
    preview = await project.anchors.preview()
    assert {each.method for each in preview.moves.values()} == {"patch"}
    assert await project.history.operations() == []  # nothing was kept

    report = await project.anchors.refresh(asks=True)
    assert report.waiting == (report.operation,)
    assert await places(project) == ["moved", "moved"]  # until somebody says otherwise
    made = project.location.folder / "preamble" / "main.json"
    await project.preamble.prebuild()
    assert "waits for a decision" in made.read_text()
    assert len(await project.history.entries_of((await project.history.waiting())[0])) == 2
    (forked,) = await project.history.decide("fork", by="ada")
    assert not made.exists()  # it would say that the decision waits
    assert (forked.decision, forked.by, await places(project)) == (
        "fork",
        "ada",
        ["elsewhere", "elsewhere"],
    )
    tasks = await project.tasks.list()
    old = {each.made_at.commit for each in tasks}
    assert await project.anchors.where(old) == {each: each for each in old}
    assert (await project.history.undo(by="ada")).state == "waiting"
    with pytest.raises(NotFound):
        await project.history.undo(by="ada")
    await project.history.decide("rebase", report.operation, by="bob")
    assert await places(project) == ["moved", "moved"]
    await project.history.decide("fork", report.operation, by="bob")
    assert (await project.history.undo(by="bob")).decision == "rebase"
    assert await places(project) == ["moved", "moved"]
    # Entries are what they were.
    assert {each.made_at.commit for each in await project.tasks.list()} == old
    with pytest.raises(InvalidInput):
        await project.history.decide("squash", by="ada")


@pytest.mark.parametrize(
    ("settings", "found"),
    [
        ({}, ("rebase", "moved")),
        ({"unattended": "fork"}, ("fork", "elsewhere")),
        ({"on_rewrite": "fork", "unattended": "rebase"}, ("fork", "elsewhere")),
    ],
)
async def test_the_policy_decides_where_nobody_can_be_asked(
    settings: dict[str, str], found: tuple[str, str], bank: Bank, template: Path, tmp_path: Path
) -> None:
    project = await rebased(bank, template, tmp_path / "repo", **settings)
    report = await project.anchors.refresh()
    (operation,) = await project.history.operations()
    assert (operation.decision, operation.by, report.waiting) == (found[0], "policy", ())
    assert await places(project) == [found[1]] * 2
    # Who takes that back decides from then on: the policy does not do it again.
    await project.history.undo(by="ada")
    assert (await project.anchors.refresh()).waiting == (operation.number,)
    assert await places(project) == ["elsewhere", "elsewhere"]


async def test_a_rewind_hides_what_came_after_a_checkpoint(
    bank: Bank, template: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "repo"
    commits = prepare(template, folder, REWRITES["rebase"])
    project = project_of(bank, folder)

    async def remember(text: str) -> None:
        await bank.memories.add(f"project@{project.id}", text, anchor=await project.here())

    await project.state.checkpoint("Keys work")
    await remember("The staging port is 8123.")
    shell(folder, "git rebase -q main; echo more >>util.py; git commit -q -a -m t6", **commits)
    await remember("Deploys happen on Tuesdays.")
    await project.tasks.add("after it")
    finished = await project.tasks.add("done by then")
    await project.tasks.done(finished.id)
    await project.anchors.refresh()
    points = [(each.title, each.commit) for each in await project.state.list("checkpoint")]
    # The checkpoint was rebased, too.
    commit = await project.history.resolve("keys work", points)
    assert commit == output(folder, "rev-parse", "HEAD~1")
    hidden = await project.history.rewind(commit, by="ada")
    left = await bank.memories.list(f"project@{project.id}")
    assert [each.text for each in left] == ["The staging port is 8123."]
    assert [each.title for each in await project.tasks.list()] == []
    assert (await project.tasks.get(finished.id)).state == "done"
    with pytest.raises(InvalidInput):
        await project.history.rewind(output(folder, "rev-parse", "HEAD"), by="ada")

    await project.history.undo(hidden.number, by="ada")
    assert len(await bank.memories.list(f"project@{project.id}")) == 2
    assert [each.title for each in await project.tasks.list()] == ["after it"]
    assert (await project.tasks.get(finished.id)).state == "done"
    with pytest.raises(InvalidInput):
        await project.history.undo(hidden.number, by="ada")


async def test_a_rewind_leaves_other_branches_alone_and_finds_what_was_reset(
    bank: Bank, template: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "repo"
    prepare(template, folder, REWRITES["rebase"])
    project = project_of(bank, folder)

    async def titles() -> set[str]:
        return {each.title for each in await project.tasks.list()}

    checkpoint = output(folder, "rev-parse", "HEAD")
    shell(folder, "git commit -q --allow-empty -m here")
    await project.tasks.add("here")
    shell(folder, f"git checkout -q -b other {checkpoint}; git commit -q --allow-empty -m there")
    await project.tasks.add("there")
    shell(folder, "git checkout -q topic; git cherry-pick -q --allow-empty other || true")
    await project.refresh()
    with pytest.raises(InvalidInput, match="not in the history of what is checked out"):
        await project.history.rewind(output(folder, "rev-parse", "other"), by="ada")
    await project.history.rewind(checkpoint, by="ada")
    assert await titles() == {"there"}

    shell(folder, "git commit -q --allow-empty -m later")
    await project.tasks.add("later")
    await project.refresh()
    shell(folder, f"git reset -q --hard {checkpoint}")
    await project.refresh()
    await project.history.rewind(checkpoint, by="ada")
    assert await titles() == {"there"}


async def test_a_rebased_branch_is_not_behind_its_old_self(
    bank: Bank, template: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "repo"
    commits = prepare(template, folder, REWRITES["rebase"])
    project = project_of(bank, folder)
    await project.refresh()
    await project.anchors.note([*commits.values()])
    # Published, then rewritten here: one is amended, so that git does not see that it is the same.
    shell(
        folder, "git branch published; git branch -q --set-upstream-to=published; git rebase main"
    )
    shell(folder, "echo amended=1 >>tools.py; git commit -q -a --amend -m other")
    await project.refresh()
    assert await stale_reason(project.location, project.anchors) == ""
    shell(folder, "git checkout -q main; git commit -q --allow-empty -m new; git checkout -q topic")
    await project.refresh()
    behind = await stale_reason(project.location, project.anchors)
    assert behind == "the branch is 1 commit behind main"


# Under fire -----------------------------------------------------------------------------------


async def test_two_work_trees_and_two_clones_see_one_rewrite_once(
    bank: Bank, template: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "repo"
    commits = prepare(template, folder, REWRITES["rebase"])
    shell(
        folder, "git worktree add -q ../tree main; git clone -q . ../clone; git checkout -q topic"
    )
    shell(tmp_path / "clone", "git checkout -q topic")
    project = project_of(bank, folder)
    parts = [project, *(project_of(bank, tmp_path / n, project.id) for n in ("tree", "clone"))]
    for each in parts:
        await each.refresh()
        await each.anchors.note([*commits.values()])
    shell(folder, "git rebase -q main")
    shell(tmp_path / "clone", "git fetch -q")
    assert commits["t5"] == output(tmp_path / "clone", "rev-parse", "topic")
    await asyncio.gather(*(each.refresh() for each in parts * 2))
    shell(tmp_path / "clone", "git reset -q --hard origin/topic")
    await asyncio.gather(*(each.refresh() for each in parts * 2))
    wanted = dict(
        zip(TOPIC, output(folder, "rev-list", "--reverse", "main..topic").split(), strict=True)
    )
    for each in parts:
        found = await each.anchors.where([*commits.values()])
        assert {name: found[commits[name]] for name in TOPIC} == wanted
    moves = [each async for each in bank.collection(CommitMove).walk(f"{project.id}/")]
    assert sorted(each.commit for each in moves) == sorted(commits[name] for name in TOPIC)
    operations = await project.history.operations()
    moved = [each.commit for operation in operations for each in operation.moves]
    assert sorted(moved) == sorted({*moved})


_REFRESH = """
import asyncio, sys
from pathlib import Path
from typing import Any
import perdure
from perdure.project.project import Project
from perdure.project.project_location import ProjectLocation

async def main():
    async with perdure.open(sys.argv[1]) as bank:
        project = Project(bank.services, ProjectLocation.find(Path(sys.argv[2])))
        print("ready", flush=True)
        for at in range(1000):
            await project.anchors.refresh(asks=True)
            await project.history.decide("fork" if at % 2 else "rebase", by="x")
            for each in await project.history.operations(100):
                if each.state == "done":
                    await project.history.undo(each.number, by="x")
            print("round", flush=True)

asyncio.run(main())
"""


@pytest.mark.slow
@pytest.mark.repeated
async def test_kill_in_the_middle_leaves_all_or_nothing(template: Path, tmp_path: Path) -> None:
    folder, url = tmp_path / "repo", f"sqlite:///{tmp_path}/memory.db"
    commits = prepare(template, folder, REWRITES["rebase"])
    async with perdure.open(url) as bank:
        project = project_of(bank, folder)
        await GitHooks(project.location).install()
        await project.anchors.refresh()
        await project.anchors.note([*commits.values()])
    old = [commits[name] for name in TOPIC]
    for kill in range(int(os.environ.get("PERDURE_KILLS", "30")) // 3):
        shell(folder, f"git rebase -q --force-rebase {'main' if kill % 2 else '$m2'}", **commits)
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", _REFRESH, url, str(folder)), stdout=asyncio.subprocess.PIPE
        )
        assert process.stdout is not None
        await process.stdout.readline()
        await asyncio.sleep(0.003 * (kill % 12))
        os.kill(process.pid, signal.SIGKILL)
        await process.wait()
    async with perdure.open(url) as bank:
        project = project_of(bank, folder)
        await project.anchors.refresh()
        for each in await project.history.waiting():
            await project.history.decide("rebase", each.number, by="ada")
        for each in await project.history.operations(1000):
            assert each.decision == "rebase"
            marked = await bank.collection(CommitMove).get_many(
                [f"{project.id}/{move.commit}" for move in each.moves]
            )
            # Every move of an operation is there, as that operation says or a later one.
            assert all(m is not None and m.operation >= each.number for m in marked)
        found = await project.anchors.where(old)
        live = output(folder, "log", "-5", "--reverse", "--format=%H", "topic").split()
        assert [*found.values()] == live


async def test_a_later_commit_is_cheap_and_no_change_starts_no_process(
    bank: Bank, template: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "repo"
    prepare(template, folder, REWRITES["rebase"])
    project = project_of(bank, folder)
    await project.anchors.refresh()
    await project.here()
    await project.anchors.refresh()
    monkeypatch.setenv("PATH", str(tmp_path))  # where there is no git
    report = await project.anchors.refresh()
    assert (report.changes, report.operation) == ((), 0)
    anchor = await project.here()
    monkeypatch.undo()
    assert anchor.commit == commits_of(folder)["t5"]


async def test_prints_hold_no_text_of_the_repository(
    bank: Bank, template: Path, tmp_path: Path
) -> None:
    commits = prepare(template, tmp_path / "repo", REWRITES["rebase"])
    project = project_of(bank, tmp_path / "repo")
    await project.anchors.note([*commits.values()])
    keys = [f"{project.id}/{commits[name]}" for name in NAMES]
    for each in await bank.collection(CommitPrint).get_many(keys):
        assert each is not None
        assert not any(word in repr(each) for word in ("Ada", "ada@", "of people", "keys", ".py"))


async def test_a_folder_without_git_has_no_history(bank: Bank, tmp_path: Path) -> None:
    project = project_of(bank, tmp_path)
    assert (await project.here()).commit == ""
    assert await project.anchors.where(["abc"]) == {"abc": "abc"}
    assert (await project.anchors.refresh()).changes == ()
    assert (await project.history.status()).entries == ()
    with pytest.raises(InvalidInput):
        await project.history.resolve("HEAD")
    assert await bank.collection(ProjectOperation).query().count() == 0

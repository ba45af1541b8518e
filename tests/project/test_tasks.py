"""Tasks: what is ready, why something waits, and that two agents never take one."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

import perdure
from perdure.bank import Bank
from perdure.core.errors import Conflict, InvalidInput, LeaseLost, NotFound
from perdure.project.project_location import ProjectLocation, ProjectSettings, new_project_id
from perdure.project.task_graph import TaskGraph
from perdure.project.task_order import path_between, ranks, without_cycles
from perdure.project.task_records import Task
from perdure.testing import ManualClock


def located(folder: Path) -> ProjectLocation:
    folder.mkdir(parents=True, exist_ok=True)
    location = ProjectLocation.find(folder)
    location.write_settings(ProjectSettings(project=new_project_id(), name=folder.name))
    return location


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def tasks(tmp_path: Path, clock: ManualClock) -> AsyncIterator[TaskGraph]:
    url = f"sqlite:///{tmp_path}/memory.db"
    async with Bank(url, clock=clock) as bank:
        yield TaskGraph(bank.services, located(tmp_path / "plain"))


def names(found: list[Task]) -> list[str]:
    return [each.title for each in found]


async def test_the_most_urgent_is_ready_first_and_what_waits_is_not(tasks: TaskGraph) -> None:
    late = await tasks.add("late", priority=3)
    urgent = await tasks.add("urgent", priority=0)
    behind = await tasks.add("behind", priority=0, needs=[late.number, urgent.id])
    assert [late.number, urgent.number, behind.number] == [1, 2, 3]
    assert names(await tasks.ready()) == ["urgent", "late"]
    assert await tasks.why(3) == ["It needs #1 (ready): late", "It needs #2 (ready): urgent"]

    await tasks.done("#1")
    assert (await tasks.get(3)).state == "waiting"
    await tasks.done(2, dropped=True)  # what will not be done holds up nothing
    assert names(await tasks.ready()) == ["behind"]
    assert await tasks.why(3) == []
    await tasks.reopen(1)
    assert await tasks.why(3) == ["It needs #1 (ready): late"]
    assert len(behind.id) >= len("tk_") + 10  # 40 bits


async def test_circles_are_refused_and_named(tasks: TaskGraph) -> None:
    await tasks.add("one")
    await tasks.add("two", needs=[1])
    await tasks.add("three", needs=[2])
    with pytest.raises(InvalidInput, match="#1 → #3 → #2 → #1"):
        await tasks.block(1, on=[3])
    with pytest.raises(InvalidInput, match="circle: #2 → #2"):
        await tasks.block(2, on=[2])
    assert (await tasks.get(1)).needs == ()
    await tasks.unblock(2, on=[1])
    await tasks.block(1, on=[3])
    assert names(await tasks.ready()) == ["two"]


async def test_two_links_that_only_together_make_a_circle(tasks: TaskGraph) -> None:
    for title in "abcd":
        await tasks.add(title)
    await tasks.block(1, on=[2])
    await tasks.block(3, on=[4])
    ends = await asyncio.gather(
        tasks.block(2, on=[3]), tasks.block(4, on=[1]), return_exceptions=True
    )
    assert sorted(isinstance(each, InvalidInput) for each in ends) == [False, True]


async def test_a_reason_blocks_until_it_is_taken_away(tasks: TaskGraph) -> None:
    await tasks.add("deploy")
    await tasks.claim(1, by="ada")
    with pytest.raises(Conflict, match="claimed by ada"):
        await tasks.block(1, reason="no keys", by="bob")
    await tasks.block(1, reason="no keys", by="ada")
    assert await tasks.why(1) == ["It is blocked: no keys"]
    assert await tasks.ready() == []
    with pytest.raises(Conflict, match="cannot be begun: it is blocked"):
        await tasks.claim(1, by="ada")
    assert (await tasks.unblock(1)).state == "ready"
    with pytest.raises(InvalidInput, match="Say why"):
        await tasks.block(1)


async def test_a_claim_runs_out_and_a_late_done_is_refused(
    tasks: TaskGraph, clock: ManualClock
) -> None:
    await tasks.add("work")
    first = await tasks.claim(by="ada", lease="10m")
    with pytest.raises(Conflict, match="#1 is claimed by ada until"):
        await tasks.claim(1, by="ada")  # another process of the same name, perhaps
    with pytest.raises(NotFound, match="No task is ready"):
        await tasks.claim(by="bob")
    clock.advance(300)
    assert (await tasks.claim(1, by="ada", token=first.token, lease="10m")).token == first.token
    clock.advance(301)  # it was renewed
    assert await tasks.ready() == []
    clock.advance(300)
    assert names(await tasks.ready()) == ["work"]
    second = await tasks.claim(by="bob")
    assert second.token == first.token + 1
    for late in (tasks.done, tasks.release):
        with pytest.raises(LeaseLost, match="does not hold: bob has it now"):
            await late(1, by="ada", token=first.token)
        with pytest.raises(Conflict, match="claimed by bob"):
            await late(1, by="ada")
    with pytest.raises(LeaseLost):
        await tasks.claim(1, by="ada", token=first.token)
    done = await tasks.done(1, by="bob", token=second.token, reason="it works")
    assert (done.state, done.owner, done.reason) == ("done", "bob", "it works")
    with pytest.raises(InvalidInput, match="done already"):
        await tasks.done(1)


async def test_who_was_late_may_finish_if_nobody_took_over(
    tasks: TaskGraph, clock: ManualClock
) -> None:
    await tasks.add("work")
    mine = await tasks.claim(by="ada", lease="1m")
    clock.advance(3_600)
    assert (await tasks.done(1, by="ada", token=mine.token)).state == "done"


async def test_two_processes_never_take_one(tmp_path: Path) -> None:
    url, location = f"sqlite:///{tmp_path}/memory.db", located(tmp_path / "shared")
    async with perdure.open(url) as bank:
        graph = TaskGraph(bank.services, location)
        for number in range(30):
            await graph.add(f"task {number}")
    script = Path(__file__).with_name("task_claimer.py")
    runs = [
        subprocess.Popen(  # noqa: ASYNC220 (nothing else waits on this loop)
            [sys.executable, str(script), url, str(location.root), name],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )
        for name in ("one", "two")
    ]  # fmt: skip
    for each in runs:
        assert each.stdout is not None
        assert each.stdout.readline() == "ready\n"
    for each in runs:
        assert each.stdin is not None
        each.stdin.write("go\n")
        each.stdin.flush()
    taken = [each.communicate(timeout=60)[0].split() for each in runs]
    assert [each.returncode for each in runs] == [0, 0]
    assert sorted(int(each) for side in taken for each in side) == list(range(1, 31))


async def test_evidence_names_whole_commits_and_their_branch(tmp_path: Path) -> None:
    def git(*args: str) -> str:
        given = ["git", "-C", str(tmp_path / "repo"), "-c", "user.name=a", "-c", "user.email=a@b"]
        return subprocess.run(
            [*given, *args], check=True, capture_output=True, text=True
        ).stdout.strip()

    (tmp_path / "repo").mkdir()
    git("init", "-q", "-b", "main")
    git("commit", "-q", "--allow-empty", "-m", "first")
    async with perdure.open(f"sqlite:///{tmp_path}/memory.db") as bank:
        noted: list[str] = []

        async def note(commits: Sequence[str]) -> None:
            noted.extend(commits)

        tasks = TaskGraph(bank.services, located(tmp_path / "repo"), note_commits=note)
        made = await tasks.add("work", discovered_from=[])
        assert (made.made_at.branch, made.made_at.commit) == ("main", git("rev-parse", "HEAD"))
        done = await tasks.done(1, commits=["HEAD"], turns=["planner/auth#T-12"])
        assert [(each.kind, each.value, each.branch) for each in done.evidence] == [
            ("commit", git("rev-parse", "HEAD"), "main"),
            ("turn", "planner/auth#T-12", ""),
        ]
        assert {*noted} == {git("rev-parse", "HEAD")}
        again = await tasks.note(1, "see also", commits=["main"])
        assert len(again.evidence) == 2  # the same commit, once
        assert [each.text for each in again.notes] == ["see also"]


async def test_without_git_a_commit_is_no_evidence(tasks: TaskGraph) -> None:
    await tasks.add("work")
    with pytest.raises(InvalidInput, match="in no repository"):
        await tasks.done(1, commits=["HEAD"])
    assert (await tasks.get(1)).state == "ready"


async def test_a_claim_that_ran_out_is_shown_as_ready(tasks: TaskGraph, clock: ManualClock) -> None:
    first = await tasks.add("work", labels=["ui"])
    await tasks.add("behind", needs=[first.id])
    await tasks.claim(1, by="ada", lease="10m")
    assert [each.name for each in await tasks.list("claimed", owner="ada")] == ["#1"]
    assert await tasks.why(2) == ["It needs #1 (claimed by ada): work"]
    clock.advance(600)
    assert (await tasks.get(1)).state == "ready"
    assert [each.state for each in await tasks.all()] == ["ready", "waiting"]
    assert await tasks.list("claimed") == []
    assert names(await tasks.list("ready", label="ui")) == ["work"]
    assert await tasks.why(2) == ["It needs #1 (ready): work"]


async def test_only_what_is_claimed_is_given_back(tasks: TaskGraph) -> None:
    await tasks.add("work", owner="ada")
    with pytest.raises(InvalidInput, match="nobody has claimed it"):
        await tasks.release(1, by="ada")
    await tasks.done(1, by="ada")
    with pytest.raises(InvalidInput, match="is done"):
        await tasks.release(1, by="ada")
    assert (await tasks.get(1)).owner == "ada"


async def test_a_task_is_no_part_of_itself(tasks: TaskGraph) -> None:
    epic = await tasks.add("epic")
    part = await tasks.add("part", parent=1)
    await tasks.add("part of a part", parent=2)
    assert names(await tasks.parts(epic)) == ["part"]
    for parent in (1, 2, 3):
        with pytest.raises(InvalidInput, match="part of itself"):
            await tasks.edit(1, parent=parent)
    assert (await tasks.edit(3, parent=1)).parent == epic.id
    assert (await tasks.edit(3, parent="")).parent == ""
    assert names(await tasks.parts(part)) == []


async def test_a_long_circle_is_named_in_short(tasks: TaskGraph) -> None:
    await tasks.add("0")
    for number in range(1, 30):
        await tasks.add(str(number), needs=[number])
    with pytest.raises(InvalidInput, match="#1 → #30 → #29 → #28 → … → #4 → #3 → #2 → #1"):
        await tasks.block(1, on=[30])


async def test_names_and_edits(tasks: TaskGraph) -> None:
    made = await tasks.add("  a   title ", labels=["x", "x"], parent=None)
    assert (made.title, made.labels) == ("a title", ("x",))
    found = await tasks.add("found on the way", discovered_from=[1])
    assert found.discovered_from == (made.id,)
    for name in (1, "1", "#1", made.id, made.id[:9]):
        assert (await tasks.get(name)).id == made.id
    for name in ("#7", "tk_000", "", "bd-1"):
        with pytest.raises(NotFound):
            await tasks.get(name)
    edited = await tasks.edit(1, priority=0, title="another", parent="#2")
    assert (edited.priority, edited.title, edited.parent) == (0, "another", found.id)
    assert names(await tasks.list(label="x")) == ["another"]
    assert names(await tasks.list(owner="nobody")) == []
    for wrong in ({"priority": 5}, {"title": " "}, {"state": "done"}):
        with pytest.raises(InvalidInput):
            await tasks.edit(1, **wrong)


async def test_ready_reads_rows_of_its_own_not_all(tasks: TaskGraph) -> None:
    """However many tasks wait, as many rows are read as are shown."""
    first = await tasks.add("first")
    for number in range(20):
        await tasks.add(f"waits {number}", needs=[first.id])
    asked: list[int] = []
    adapter = tasks.services.store.adapter
    find = adapter.find

    async def counted(*args: object, **kwargs: object) -> object:
        rows = await find(*args, **kwargs)  # type: ignore[arg-type]
        asked.append(len(rows))
        return rows

    adapter.find = counted  # type: ignore[method-assign,assignment]
    assert names(await tasks.ready()) == ["first"]
    assert asked == [1, 0]


def test_graphs() -> None:
    needs = {"a": ["b"], "b": ["c"], "c": [], "d": ["a", "c"]}
    assert path_between(needs, "d", "c") == ["d", "c"]
    assert path_between(needs, "a", "c") == ["a", "b", "c"]
    assert path_between(needs, "c", "a") == []
    assert ranks(needs) == {"c": 0, "b": 1, "a": 2, "d": 3}
    graph, refused = without_cycles({**needs, "c": ["a"]}, [("c", "a")])
    assert refused == [("c", "a")]
    assert graph["c"] == []

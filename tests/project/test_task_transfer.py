"""Tasks in files: merged semantically, imported from beads, level with the bank."""

from __future__ import annotations

import itertools
import json
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

import perdure
from perdure.core.errors import InvalidInput
from perdure.project.project_location import ProjectLocation
from perdure.project.task_graph import TaskGraph
from perdure.project.task_merge import merge_task_files, merge_tasks
from perdure.project.task_records import task_id_for
from perdure.project.task_transfer import TASK_FILE, export_tasks, import_tasks, sync_tasks
from tests.project.test_tasks import located

_BEADS = [
    {
        "id": "bd-a1", "title": "Log in", "description": "OAuth", "status": "closed", "priority": 1,
        "issue_type": "feature", "created_at": "2025-12-13T08:41:34.956552+11:00",
        "updated_at": "2025-12-13T08:43:49.970591123+11:00", "close_reason": "merged",
        "closed_at": "2025-12-13T08:43:49.970591+11:00", "design": "A diagram.",
    },
    {
        "id": "bd-a2", "title": "Log out", "status": "open", "priority": 2, "issue_type": "task",
        "assignee": "ada", "labels": ["ui"], "created_at": "2025-12-14T08:00:00Z",
        "updated_at": "2025-12-14T08:00:00Z",
        "dependencies": [
            {"issue_id": "bd-a2", "depends_on_id": "bd-a1", "type": "blocks"},
            {"issue_id": "bd-a2", "depends_on_id": "bd-a3", "type": "blocks"},
            {"issue_id": "bd-a2", "depends_on_id": "bd-e", "type": "parent-child"},
            {"issue_id": "bd-a2", "depends_on_id": "bd-gone", "type": "related"},
        ],
        "comments": [
            {"id": 1, "author": "bob", "text": "soon", "created_at": "2025-12-15T08:00:00Z"}
        ],
        "external_ref": "gh-9",
    },
    {
        "id": "bd-a3", "title": "Sessions", "status": "in_progress", "priority": 0,
        "issue_type": "bug", "created_at": "2025-12-12T08:00:00Z", "external_ref": "gh-8",
        "dependencies": [
            {"issue_id": "bd-a3", "depends_on_id": "bd-a1", "type": "discovered-from"}
        ],
    },
    {"id": "bd-e", "title": "Accounts", "status": "deferred", "priority": 3, "issue_type": "epic"},
    {"id": "bd-x", "title": "Deleted", "status": "tombstone", "priority": 2, "issue_type": "task"},
]  # fmt: skip


@pytest.fixture
async def tasks(tmp_path: Path) -> AsyncIterator[TaskGraph]:
    async with perdure.open(f"sqlite:///{tmp_path}/memory.db") as bank:
        yield TaskGraph(bank.services, located(tmp_path / "plain"))


def lines(*tasks: dict[str, object]) -> str:
    return "".join(json.dumps(each) + "\n" for each in tasks)


async def test_beads_are_imported_and_what_is_unknown_survives(tasks: TaskGraph) -> None:
    report = await import_tasks(tasks, lines(*_BEADS))
    assert (report.format, report.added, report.deleted) == ("beads", 4, 1)
    assert report.kept == {"design": 1, "external_ref": 2}
    assert any("bd-gone" in each for each in report.remarks)
    out = await tasks.get("bd-a2")
    assert (out.state, out.waits, out.owner, out.labels) == ("waiting", 1, "ada", ("ui",))
    assert out.parent == (await tasks.get("bd-e")).id
    assert [(each.by, each.text) for each in out.notes] == [("bob", "soon")]
    assert [(each.kind, each.task) for each in out.links] == [("related", "bd-gone")]
    assert (await tasks.get("bd-a3")).discovered_from == (task_id_for("bd-a1"),)
    closed = await tasks.get("bd-a1")
    assert (closed.state, closed.reason, closed.extra) == (
        "done",
        "merged",
        {"design": "A diagram."},
    )
    assert (await tasks.get("bd-e")).state == "blocked"
    assert [each.external for each in await tasks.ready()] == ["bd-a3"]
    await tasks.done("bd-a3")
    assert [each.external for each in await tasks.ready()] == ["bd-a2"]


async def test_an_import_again_changes_nothing_and_an_export_is_whole(
    tasks: TaskGraph, tmp_path: Path
) -> None:
    await import_tasks(tasks, lines(*_BEADS))
    await tasks.add("own", needs=["bd-a2"])
    text = await export_tasks(tasks)
    again = await import_tasks(tasks, lines(*_BEADS))
    assert (again.added, again.changed) == (0, 0)
    assert await export_tasks(tasks) == text
    other = TaskGraph(tasks.services, located(tmp_path / "other"))
    report = await import_tasks(other, text)
    assert (report.added, report.remarks) == (5, ())
    assert await export_tasks(other) == text
    assert [each.title for each in await other.ready()] == [
        each.title for each in await tasks.ready()
    ]


async def test_circles_of_an_imported_file_are_opened_and_said(tasks: TaskGraph) -> None:
    text = lines(
        {"id": "tk_aaaaaaaaaaaa", "title": "a", "needs": ["tk_bbbbbbbbbbbb"]},
        {"id": "tk_bbbbbbbbbbbb", "title": "b", "needs": ["tk_aaaaaaaaaaaa"]},
    )
    report = await import_tasks(tasks, text)
    assert [each.title for each in await tasks.ready()] == ["b"]
    # In the names that a person sees.
    assert report.remarks == ("#2 does not need #1 any more: they would wait for each other.",)
    for wrong in ("no json", '{"title": "x"}', "<<<<<<< ours"):
        with pytest.raises(InvalidInput, match="line 1"):
            await import_tasks(tasks, wrong)
    with pytest.raises(InvalidInput, match="tk_x"):
        await import_tasks(tasks, lines({"id": "tk_x", "title": "x", "labels": 3}))


async def test_the_file_and_the_bank_are_kept_level(tasks: TaskGraph) -> None:
    one = await tasks.add("one", labels=["a"])
    two = await tasks.add("two")
    await sync_tasks(tasks)
    file = tasks.location.files / TASK_FILE
    found = [json.loads(each) for each in file.read_text().splitlines()]
    for each in found:
        if each["id"] == one.id:
            each |= {"title": "first", "labels": ["a", "b"]}
    kept = [each for each in found if each["id"] != two.id]
    file.write_text(lines(*kept, {"id": "tk_cccccccccccc", "title": "three", "needs": [one.id]}))
    await tasks.edit(1, priority=0)
    report = await sync_tasks(tasks)
    assert (report.added, report.changed) == (1, 1)
    mine = await tasks.get(1)
    assert (mine.title, mine.priority, mine.labels) == ("first", 0, ("a", "b"))
    # What is not in the file any more stays in the bank, and is written again.
    assert [each.title for each in await tasks.ready()] == ["first", "two"]
    assert two.id in file.read_text()
    before = file.read_bytes()
    assert (await sync_tasks(tasks)).changed == 0
    assert file.read_bytes() == before


def git(folder: Path, *args: str) -> None:
    who = ("-c", "user.name=a", "-c", "user.email=a@b")
    subprocess.run(["git", "-C", str(folder), *who, *args], check=True, capture_output=True)


async def test_branches_and_work_trees_take_nothing_from_each_other(tmp_path: Path) -> None:
    folder, beside = tmp_path / "one", tmp_path / "beside"
    folder.mkdir()
    git(folder, "init", "-q", "-b", "main")
    async with perdure.open(f"sqlite:///{tmp_path}/memory.db") as bank:
        tasks = TaskGraph(bank.services, located(folder))
        await tasks.add("one", labels=["a"])
        await sync_tasks(tasks)
        git(folder, "add", ".")
        git(folder, "commit", "-qm", "one")
        git(folder, "worktree", "add", "-q", "-b", "topic", str(beside))
        await tasks.edit(1, title="the first", labels=["b"])
        await tasks.add("two")
        taken = await tasks.claim(2, by="ada")
        await tasks.done(1)
        await sync_tasks(tasks)
        git(folder, "add", ".")
        git(folder, "commit", "-qm", "two")
        there = TaskGraph(bank.services, ProjectLocation.find(beside))
        for graph in (there, tasks, there):  # the file of topic knows one task, and that is open
            await sync_tasks(graph)
        git(folder, "checkout", "-q", "-b", "back", "main~1")
        await sync_tasks(tasks)
        git(folder, "checkout", "-q", "-f", "main")
        git(folder, "reset", "-q", "--hard", "main~1")
        assert (await sync_tasks(tasks)).remarks == ()
        one, two = await tasks.all()
        assert (one.state, one.title, one.labels) == ("done", "the first", ("b",))
        assert one.notes == ()
        assert (two.number, two.state, two.token) == (2, "claimed", taken.token)
        texts = [(each / ".perdure" / TASK_FILE).read_text() for each in (folder, beside)]
        assert texts[0] == texts[1] == await export_tasks(tasks)


async def test_another_bank_gets_what_the_file_has(tmp_path: Path) -> None:
    """Because the first one was lost, or restored from an old backup."""
    location = located(tmp_path / "plain")
    text = ""
    for name in ("first", "second"):
        async with perdure.open(f"sqlite:///{tmp_path}/{name}.db") as bank:
            tasks = TaskGraph(bank.services, location)
            if not text:
                await tasks.add("one")
                await tasks.add("two", needs=[1])
            await sync_tasks(tasks)
            assert [each.title for each in await tasks.list()] == ["one", "two"]
            text = text or await export_tasks(tasks)
            assert (location.files / TASK_FILE).read_text() == text


async def test_two_clones_with_edits_on_both_sides(tmp_path: Path) -> None:
    """Each with a bank of its own; git merges the file by `merge_task_files`."""
    (tmp_path / "a").mkdir()
    git(tmp_path / "a", "init", "-q", "-b", "main")
    location = located(tmp_path / "a")
    async with (
        perdure.open(f"sqlite:///{tmp_path}/a.db") as one,
        perdure.open(f"sqlite:///{tmp_path}/b.db") as other,
    ):
        ours = TaskGraph(one.services, location)
        first, second = await ours.add("first"), await ours.add("second")
        await sync_tasks(ours)
        git(tmp_path, "clone", "-q", "a", "b")
        clone = ProjectLocation.find(tmp_path / "b")
        assert location.settings is not None
        clone.write_settings(location.settings)
        theirs = TaskGraph(other.services, clone)
        files = [each.location.files / TASK_FILE for each in (ours, theirs)]
        base = files[0].read_text()
        files[1].parent.mkdir()
        files[1].write_text(base)
        await sync_tasks(theirs)
        for graph, title in ((ours, "ours"), (theirs, "theirs")):
            await graph.add(title, needs=[first.id])
            await graph.edit(second.id, labels=[title])
        await theirs.done(first.id, reason="done there")
        await ours.block(second.id, on=[first.id])
        for graph in (ours, theirs):
            await sync_tasks(graph)
        merged, remarks = merge_task_files(base, *(each.read_text() for each in files))
        assert remarks == ()
        for graph, file in zip((ours, theirs), files, strict=True):
            file.write_text(merged)
            await sync_tasks(graph)
            assert (await graph.get(first.id)).state == "done"
            found = await graph.get(second.id)
            assert (found.labels, found.needs) == (("ours", "theirs"), (first.id,))
            assert {each.title for each in await graph.ready()} == {"ours", "theirs", "second"}
        assert await export_tasks(ours) == await export_tasks(theirs) == merged


async def test_what_others_write_is_read_as_well_as_can_be(tasks: TaskGraph) -> None:
    long = "word " * 200
    text = lines(
        {"id": "OPS-1", "title": "one", "priority": 9, "created": "2026-01-01", "sprint": 3},
        {"id": "OPS-2", "title": "two  lines", "needs": ["OPS-1"], "parent": "OPS-1"},
        {"id": "OPS-2", "title": "two  lines", "labels": ["twice"]},
        {"id": "OPS-3", "title": long},
        {"id": "OPS-4", "title": "four", "parent": "OPS-5"},
        {"id": "OPS-5", "title": "five", "parent": "OPS-4"},
    )
    report = await import_tasks(tasks, text)
    assert report.added == 5
    assert len(report.remarks) == 1  # parts of each other
    one, two = await tasks.get("OPS-1"), await tasks.get("OPS-2")
    assert (one.priority, one.extra) == (4, {"sprint": 3})
    assert (two.title, two.needs, two.parent) == ("two lines", (one.id,), one.id)
    assert two.labels == ("twice",)
    assert (await tasks.get("OPS-3")).description == long.strip()
    four, five = await tasks.get("OPS-4"), await tasks.get("OPS-5")
    assert (four.parent, five.parent) in {("", four.id), (five.id, "")}
    assert (await import_tasks(tasks, text)).changed == 0
    with pytest.raises(InvalidInput, match="OPS-9"):
        await import_tasks(tasks, lines({"id": "OPS-9", "title": "x", "created": "soon"}))


async def test_a_claim_survives_a_sync(tasks: TaskGraph) -> None:
    await tasks.add("one")
    await sync_tasks(tasks)
    taken = await tasks.claim(1, by="ada")
    await sync_tasks(tasks)
    found = await tasks.get(1)
    assert (found.state, found.token, found.until) == ("claimed", taken.token, taken.until)
    assert (await tasks.done(1, by="ada", token=taken.token)).state == "done"


def task(id: str, updated: int = 0, **fields: object) -> dict[str, object]:
    return {"id": id, "title": id, "updated": f"2026-01-0{updated + 1}", **fields}


def test_fields_of_both_sides_are_merged_whichever_is_ours() -> None:
    base = lines(task("a", labels=["x", "y"], priority=2, status="open"))
    one = lines(task("a", 1, labels=["x", "y", "z"], priority=0, status="open", future=[1]))
    two = lines(task("a", 2, labels=["x"], priority=2, status="done", owner="ada"))
    merged, remarks = merge_task_files(base, one, two)
    assert merge_task_files(base, two, one) == (merged, remarks)
    found = json.loads(merged)
    assert (found["labels"], found["priority"], found["status"]) == (["x", "z"], 0, "done")
    assert (found["owner"], found["future"], remarks) == ("ada", [1], ())


def test_of_two_texts_the_later_stands_and_the_other_is_a_note() -> None:
    base, one, two = task("a"), task("a", 1, title="one"), task("a", 2, title="two")
    merged = merge_tasks({"a": base}, {"a": one}, {"a": two})
    assert merged.lines["a"]["title"] == "two"
    assert merged.lines["a"]["notes"] == [{"text": "Another title: one"}]
    assert len(merged.remarks) == 1


def test_links_that_close_a_circle_together_are_opened_the_same_way_everywhere() -> None:
    base = {each: task(each) for each in "abc"}
    sides = [
        base | {"a": task("a", 1, needs=["b"])},
        base | {"b": task("b", 1, needs=["c"]), "c": task("c", 1, needs=["a"])},
    ]
    merges = [merge_tasks(base, *order) for order in itertools.permutations(sides)]
    assert merges[0] == merges[1]
    needs = {id: each.get("needs") for id, each in merges[0].lines.items()}
    assert needs == {"a": ["b"], "b": ["c"], "c": []}
    assert "they would wait for each other" in merges[0].remarks[0]


def test_what_one_side_removed_and_the_other_changed_stays() -> None:
    base = {"a": task("a"), "b": task("b")}
    merged = merge_tasks(base, {}, {"a": task("a", 1, priority=1), "b": base["b"]})
    assert list(merged.lines) == ["a"]
    assert len(merged.remarks) == 1

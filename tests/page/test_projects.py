"""Tasks of a project, as a graph and as a list; its state and its journal."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import pytest_asyncio
from msgspec.structs import replace
from playwright.async_api import expect

from perdure.core.messages import assistant, user
from perdure.project.project import Project
from perdure.project.project_directory import register_project
from perdure.project.project_location import ProjectLocation, ProjectSettings, new_project_id
from perdure.project.work_records import ProjectNote
from perdure.server.operations import TokenScope
from tests.page.conftest import OpenPage
from tests.page.test_access import violations
from tests.page.test_memories import WIDE
from tests.project.repositories import git, new_repository
from tests.server.conftest import RunningServer


@pytest_asyncio.fixture(loop_scope="session")
async def project(server: RunningServer, tmp_path: Path) -> Project:
    folder = tmp_path / "demo"
    folder.mkdir()
    location = ProjectLocation.find(folder)
    location.write_settings(ProjectSettings(project=new_project_id(), name="demo"))
    await register_project(server.bank.services, location)
    found = Project(server.bank.services, location)
    await found.tasks.add("Rotate the keys", priority=1, labels=["ops"])
    await found.tasks.add("Deploy <b>all</b> of it", needs=["1"])
    await found.tasks.add("Tell everybody", needs=["2"])
    await found.tasks.add("Write the report", priority=3)
    return found


async def test_a_day_with_tasks(
    server: RunningServer, project: Project, open_page: OpenPage
) -> None:
    at = await open_page(server, "#/bank/projects")
    page, tasks = at.page, project.tasks
    node = page.get_by_role("link", name=re.compile("^#1 Rotate the keys, ready"))
    after = page.get_by_role("link", name=re.compile("^#2 Deploy .*, waits, after #1"))
    await expect(after).to_be_visible()
    left, right = await node.bounding_box(), await after.bounding_box()
    assert left is not None
    assert right is not None
    assert left["x"] + left["width"] < right["x"]  # what is needed stands left
    await node.click()
    pane = page.get_by_role("article", name="Task #1")
    await pane.get_by_role("button", name="Claim").click()
    await expect(pane.locator(".about").first).to_contain_text("claimed")
    await pane.get_by_role("button", name="Note").click()
    await page.get_by_label("A remark, in Markdown").fill("Half of **them**.")
    await pane.locator("form").get_by_role("button", name="Note").click()
    await expect(pane.locator(".version strong")).to_have_text("them")
    await pane.get_by_role("button", name="Done").click()
    await page.get_by_label("What came out of it").fill("All are new.")
    await pane.locator("form").get_by_role("button", name="Done").click()
    await expect(pane.locator(".about").first).to_contain_text("done")
    await expect(pane).to_contain_text("All are new.")
    done = await tasks.get(1)
    assert (done.state, done.reason) == ("done", "All are new.")
    await expect(page.get_by_role("link", name=re.compile("^#2 .*, ready"))).to_be_visible()

    await page.get_by_role("link", name="List").click()
    entries = page.locator("a.entry")
    await expect(entries).to_have_count(3)
    await entries.filter(has_text="report").click()
    pane = page.get_by_role("article", name="Task #4")
    await pane.get_by_role("button", name="Block").click()
    await page.get_by_label("Why it cannot go on").fill("No figures yet.")
    await pane.locator("form").get_by_role("button", name="Block").click()
    await expect(pane.locator(".about").first).to_contain_text("blocked")
    await pane.get_by_role("button", name="Unblock").click()
    await expect(pane.locator(".about").first).to_contain_text("ready")
    await page.get_by_role("link", name="Add one").click()
    await page.get_by_label("Title").fill("Rest a day")
    await page.get_by_label("Needs these").fill("#4")
    await page.get_by_role("button", name="Save").click()
    pane = page.get_by_role("article", name="Task #5")
    await expect(pane).to_contain_text("It needs #4")
    await pane.get_by_role("link", name=re.compile("#4 Write the report")).click()
    await expect(page.get_by_role("article", name="Task #4")).to_contain_text("Rest a day")


async def test_somebody_else_has_it(
    server: RunningServer, project: Project, open_page: OpenPage
) -> None:
    at = await open_page(server, "#/bank/projects")
    await at.page.get_by_role("link", name=re.compile("^#1 ")).click()
    claim = at.page.get_by_role("button", name="Claim")
    await expect(claim).to_be_visible()
    await at.page.route(re.compile("/tasks/|/graph"), lambda route: route.abort())
    await project.tasks.claim("1", by="codex")
    await claim.click()
    await expect(at.page.get_by_role("alert")).to_contain_text("codex")
    assert (await project.tasks.get(1)).owner == "codex"


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_what_it_is_about_and_what_was_done(
    server: RunningServer, project: Project, open_page: OpenPage, scheme: str
) -> None:
    session = await server.bank.session("coder/demo")
    await session.append([user("Which key is the oldest?"), assistant("That of the mailer.")])
    state, store = project.state, server.bank.store
    goal = await state.add("goal", "No key older than a year", text="Checked <b>by</b> *the* job.")
    await state.add("milestone", "All keys are new", needs=[goal.id])
    await state.add("link", "Where it was said", target="coder/demo#T-1", of=goal.id)
    await state.add("link", "The rule", target="https://example.org/keys")
    await state.finish(goal.id)
    note = ProjectNote(key=f"{project.id}/nt_1", project=project.id, text="Ask **Ivo**.", by="ada")
    await server.bank.collection(ProjectNote).put(replace(note, at=store.now()))
    at = await open_page(server, "#/bank/projects", color_scheme=scheme)
    page = at.page
    await page.get_by_role("link", name="State").click()
    goals = page.get_by_role("region", name="Goals")
    await expect(goals).to_contain_text("No key older than a year")
    await expect(goals).to_contain_text("done")
    await expect(goals.locator("em")).to_have_text("the")
    milestones = page.get_by_role("region", name="Milestones")
    await expect(milestones).to_contain_text("NeedsNo key older than a year")
    links = page.get_by_role("region", name="Links")
    await expect(links.get_by_role("link", name="https://example.org/keys")).to_be_visible()
    for width in (1_200, 360):
        await page.set_viewport_size({"width": width, "height": 700})
        assert await violations(at) == []
        assert not await page.evaluate(WIDE)
    await page.get_by_role("link", name="Journal").click()
    journal = page.get_by_role("region", name="Journal")
    await expect(journal.locator("strong").filter(has_text="Ivo")).to_be_visible()
    assert await violations(at) == []
    await page.get_by_role("link", name="State").click()
    await links.get_by_role("link", name="coder/demo#T-1").click()
    await expect(at.turn(1)).to_contain_text("That of the mailer.")


@pytest.mark.parametrize("decision", ["rebase", "fork"])
async def test_rewritten_history_waits_for_who_looks(
    server: RunningServer, tmp_path: Path, open_page: OpenPage, decision: str
) -> None:
    folder = new_repository(tmp_path / "attic")
    location = ProjectLocation.find(folder)
    location.write_settings(ProjectSettings(project=new_project_id(), name="attic"))
    await register_project(server.bank.services, location)
    project = Project(server.bank.services, location)
    await project.tasks.add("Paint the door")
    await project.anchors.refresh()
    git(folder, "commit", "-q", "--allow-empty", "--amend", "-m", "the first")
    await project.anchors.refresh(asks=True)
    at = await open_page(server, f"#/bank/projects/{project.id}")
    waiting = at.page.get_by_role("region", name="History that was rewritten")
    await expect(waiting).to_contain_text("main has its last commit amended")
    await expect(waiting).to_contain_text("One entry is anchored")
    assert await violations(at) == []
    await at.page.set_viewport_size({"width": 360, "height": 700})
    assert not await at.page.evaluate(WIDE)
    name = "Follow the commits" if decision == "rebase" else "Stay with the old line"
    await waiting.get_by_role("button", name=name).click()
    await expect(waiting).to_have_count(0)
    (operation,) = await project.history.operations()
    assert (operation.state, operation.decision) == ("done", decision)


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_tasks_are_for_everybody(
    server: RunningServer, project: Project, open_page: OpenPage, scheme: str
) -> None:
    await project.tasks.block("4", reason="no figures")
    at = await open_page(server, "#/bank/projects", color_scheme=scheme)
    for part in ("graph", "list"):
        await at.page.set_viewport_size({"width": 1_200, "height": 800})
        await at.go(f"#/bank/projects/{project.id}/{part}")
        await expect(
            at.page.get_by_role("link", name=re.compile("Rotate the keys"))
        ).to_be_visible()
        assert await violations(at) == []
        await at.page.keyboard.press("j")
        await expect(at.page.get_by_role("article")).to_be_visible()
        await at.page.keyboard.press("n")
        await expect(at.page.get_by_label("A remark")).to_be_focused()
        assert await violations(at) == []
        await at.page.set_viewport_size({"width": 360, "height": 700})
        assert await violations(at) == []
        assert not await at.page.evaluate(WIDE)
        await at.page.get_by_role("link", name="Back to the list").click()
        await expect(
            at.page.get_by_role("link", name=re.compile("Rotate the keys"))
        ).to_be_visible()
        assert await violations(at) == []
        assert not await at.page.evaluate(WIDE)


async def test_who_may_only_read_sees_tasks(
    server: RunningServer, project: Project, open_page: OpenPage
) -> None:
    reader = server.token(TokenScope.READ, name="guest")
    at = await open_page(server, f"#/bank/projects/{project.id}/list", token=reader)
    await at.page.locator("a.entry").first.click()
    await expect(at.page.get_by_role("article")).to_be_visible()
    assert await at.page.locator("main button:not(.quiet)").count() == 0

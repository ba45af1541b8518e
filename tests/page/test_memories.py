"""What an agent knows, looked at and mended by a person."""

from __future__ import annotations

import re

import pytest
from playwright.async_api import expect

from perdure.bank.bank import Bank
from perdure.core.messages import assistant, user
from perdure.recall.memory_records import machine
from perdure.server.operations import TokenScope
from tests.page.conftest import OpenPage
from tests.page.test_access import violations
from tests.server.conftest import RunningServer

WIDE = "document.documentElement.scrollWidth > innerWidth"


async def fill(bank: Bank) -> None:
    session = await bank.session("ada/notes")
    await session.append([user("Ship on Tuesdays, please."), assistant("I will.")])
    memories = bank.memories
    by = machine("reflection")
    await memories.add(
        "ada",
        "Releases go out on Tuesdays.",
        kind="decision",
        tags=["release"],
        provenance=["ada/notes#T-1"],
        by=by,
    )
    await memories.add("ada", "The port of the server is 8123.", tags=["server"], by=by)
    await memories.add("ada", "<img src=x onerror=window.hit=1> is an attack.", by=by)
    await memories.add("ada", "The release", kind="topic", weight=0.3, by=by)
    await memories.edit("ada/M-4", weight=0.6, by=by)
    await memories.edit("ada/M-4", weight=0.45, by=by)
    await memories.add("bob", "Bob likes tea in the morning.", kind="preference", by=by)


async def test_a_person_mends_what_an_agent_knows(
    server: RunningServer, open_page: OpenPage
) -> None:
    await fill(server.bank)
    at = await open_page(server, "#/agent/ada/memories")
    page = at.page
    entries = page.locator("a.entry")
    await expect(entries).to_have_count(4)
    await page.get_by_label("Words").fill("tuesdays")
    await expect(entries).to_have_count(1)
    await page.get_by_label("Words").fill("")
    await page.get_by_label("Tag", exact=True).select_option("server")
    await expect(entries).to_have_text(re.compile("8123"))
    await page.get_by_label("Tag", exact=True).select_option("")

    await entries.filter(has_text="Tuesdays").click()
    await page.get_by_role("button", name="Edit").click()
    await page.get_by_label("Text", exact=True).fill("Releases go out on Wednesdays.")
    await page.get_by_role("button", name="Save").click()
    pane = page.get_by_role("article", name="ada/M-1")
    await expect(pane.locator(".words")).to_have_text("Releases go out on Wednesdays.")
    await expect(entries.filter(has_text="Wednesdays")).to_have_count(1)
    mended = await server.bank.memories.get("ada/M-1")
    assert mended is not None
    assert mended.by_person
    await pane.get_by_text("One former version").click()
    await expect(pane.locator(".version")).to_contain_text("Releases go out on Tuesdays.")

    await pane.get_by_role("button", name="Pin").click()
    await expect(pane.get_by_role("button", name="Pin")).to_have_attribute("aria-pressed", "true")
    await pane.get_by_role("button", name="Retire").click()
    await expect(pane.get_by_role("button", name="Restore")).to_be_visible()
    await expect(entries.filter(has_text="Wednesdays")).to_have_count(0)
    await pane.get_by_role("button", name="Restore").click()
    await expect(entries.filter(has_text="Wednesdays")).to_have_count(1)

    await page.get_by_label("Choose ada/M-1").check()
    await page.get_by_label("Choose ada/M-2").check()
    await page.get_by_role("link", name="Merge 2").click()
    await page.get_by_label("Text", exact=True).fill("Wednesdays, on port 8123.")
    await page.get_by_role("button", name="Merge").click()
    await expect(pane.locator(".words")).to_have_text("Wednesdays, on port 8123.")
    merged = await server.bank.memories.get("ada/M-2")
    assert merged is not None
    assert merged.status == "merged"

    await pane.get_by_role("button", name="Delete…").click()
    assert await server.bank.memories.get("ada/M-1") is not None  # it asks first
    await pane.get_by_role("button", name="Delete for good").click()
    await expect(pane).to_have_count(0)
    await expect(entries).to_have_count(2)
    assert await server.bank.memories.get("ada/M-1") is None

    await page.get_by_role("link", name="Add one").click()
    await page.get_by_label("Text", exact=True).fill("Ada counts from one.")
    await page.get_by_role("button", name="Save").click()
    await expect(page.get_by_role("article").locator(".words")).to_have_text("Ada counts from one.")
    assert await page.evaluate("window.hit") is None


async def test_the_turn_that_it_came_from(server: RunningServer, open_page: OpenPage) -> None:
    await fill(server.bank)
    at = await open_page(server, "#/bank/memories")
    await expect(at.page.locator("a.entry")).to_have_count(5)
    await at.page.locator("a.entry", has_text="Tuesdays").click()
    await at.page.get_by_role("link", name="ada/notes#T-1").click()
    await expect(at.turn(1)).to_contain_text("Ship on Tuesdays")
    await at.page.go_back()  # what was known stands at once, also without a server
    await expect(at.page.get_by_role("article", name="ada/M-1")).to_be_visible()
    await at.page.keyboard.press("/")
    await at.page.keyboard.type("morning")
    await at.page.get_by_role("option", name="bob/M-1").click()
    await expect(at.page.get_by_role("article", name="bob/M-1")).to_contain_text("tea")


async def test_back_from_an_agents_memories_to_its_session(
    server: RunningServer, open_page: OpenPage
) -> None:
    """The session's views stay where they were, and its sessions beside the bank's views."""
    await fill(server.bank)
    at = await open_page(server, "#/session/ada/notes")
    tabs = at.page.get_by_role("navigation", name="Views")
    await expect(at.turn(1)).to_be_visible()
    before = await tabs.all_inner_texts()
    await tabs.get_by_role("link", name="Memories").click()
    await expect(at.page.locator("a.entry")).to_have_count(4)
    assert await tabs.all_inner_texts() == before
    await tabs.get_by_role("link", name="Turns").click()
    await expect(at.turn(1)).to_contain_text("Ship on Tuesdays")
    await at.page.get_by_role("link", name="References").click()
    await (
        at.page.get_by_role("region", name="Sessions ada").get_by_role("link", name="notes").click()
    )
    await expect(at.turn(1)).to_contain_text("Ship on Tuesdays")


async def test_somebody_else_changed_it(server: RunningServer, open_page: OpenPage) -> None:
    await fill(server.bank)
    at = await open_page(server, "#/agent/ada/memories/M-2")
    page = at.page
    await page.get_by_role("button", name="Edit").click()
    await page.get_by_label("Text", exact=True).fill("The port is 9000.")
    await server.bank.memories.edit(
        "ada/M-2", text="The port is 8124.", tags=["net"], by=machine("reflection")
    )
    await page.get_by_role("button", name="Save").click()
    told = page.get_by_role("alert")
    await expect(told).to_contain_text("reflection changed it")
    await expect(told).to_contain_text("The port is 8124.")
    await expect(page.get_by_label("Text", exact=True)).to_have_value("The port is 9000.")
    await told.get_by_role("button", name="Keep mine").click()
    await page.get_by_role("button", name="Save").click()
    await expect(page.get_by_role("article").locator(".words")).to_have_text("The port is 9000.")
    found = await server.bank.memories.get("ada/M-2")
    assert found is not None
    assert (found.text, found.tags) == ("The port is 9000.", ("net",))


async def test_topics_over_time(server: RunningServer, open_page: OpenPage) -> None:
    await fill(server.bank)
    at = await open_page(server, "#/agent/ada/memories/topics")
    curve = at.page.get_by_role("img")
    await expect(curve).to_have_accessible_name(re.compile(r"The release\. .*0\.30.*0\.60.*0\.45"))
    await at.page.get_by_role("link", name="The release").click()
    await expect(at.page.get_by_role("article", name="ada/M-4")).to_be_visible()


async def test_who_may_only_read_changes_nothing(
    server: RunningServer, open_page: OpenPage
) -> None:
    await fill(server.bank)
    reader = server.token(TokenScope.READ, agent="ada", name="guest")
    at = await open_page(server, "#/bank/memories", token=reader)
    await expect(at.page.locator("a.entry")).to_have_count(4)
    await at.page.locator("a.entry", has_text="Tuesdays").click()
    await expect(at.page.get_by_role("article")).to_be_visible()
    assert await at.page.locator("main button:not(.quiet)").count() == 0
    assert await at.page.get_by_role("checkbox").count() == 0


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_memories_are_for_everybody(
    server: RunningServer, open_page: OpenPage, scheme: str
) -> None:
    await fill(server.bank)
    at = await open_page(server, "#/agent/ada/memories", color_scheme=scheme)
    press = at.page.keyboard.press
    await expect(at.page.locator("a.entry")).to_have_count(4)
    assert await violations(at) == []
    await press("j")
    await press("j")
    await press("k")
    await expect(at.page.locator("a.entry").first).to_have_attribute("aria-current", "true")
    await press("p")
    await expect(at.page.get_by_role("button", name="Pin")).to_have_attribute(
        "aria-pressed", "true"
    )
    await press("e")
    await expect(at.page.get_by_label("Text", exact=True)).to_be_focused()
    assert await violations(at) == []
    await at.page.set_viewport_size({"width": 360, "height": 700})
    assert await violations(at) == []
    assert not await at.page.evaluate(WIDE)
    await at.go("#/agent/ada/memories/topics")
    await expect(at.page.get_by_role("img")).to_be_visible()
    assert await violations(at) == []
    assert not await at.page.evaluate(WIDE)
    await at.go("#/bank/memories")
    await expect(at.page.locator("a.entry")).to_have_count(5)
    await expect(at.page.locator("a.entry").first).to_be_in_viewport()
    assert await violations(at) == []
    assert not await at.page.evaluate(WIDE)

"""What reflection leaves for a person, and reference layers."""

from __future__ import annotations

import re

import pytest
from playwright.async_api import Route, expect

from perdure.bank.bank import Bank
from perdure.core.messages import assistant, user
from perdure.server.operations import TokenScope
from tests.page.conftest import OpenPage
from tests.page.test_access import violations
from tests.page.test_memories import WIDE
from tests.server.conftest import RunningServer

LAYER = "---\nname: oauth\ntitle: How we do OAuth\ntags: [login]\ntriggers: [token refresh]\n---\n"


async def fill(bank: Bank) -> None:
    """Asked thrice, so that an algorithm finds it; and two wishes, which it only suspects."""
    for number in range(3):
        session = await bank.session(f"coder/{number}")
        question = "How do I run the migration tests locally?"
        await session.append([user(question), assistant("Like this.")])
    session = await bank.session("coder/a")
    wish = "From now on, always write tests first. And never push to main directly."
    await session.append([user(wish), assistant("I will.")])


async def keep_from_reading(route: Route) -> None:
    if route.request.method == "GET":
        await route.abort()
    else:
        await route.continue_()


async def test_messages_are_decided(server: RunningServer, open_page: OpenPage) -> None:
    await fill(server.bank)
    await server.bank.reflect("coder")
    at = await open_page(server, "#/agent/coder/inbox")
    page = at.page
    entries = page.locator("a.entry")
    await expect(entries).to_have_count(2)
    await entries.filter(has_text="tests first").click()
    await page.get_by_role("button", name="Accept").click()
    await expect(page.get_by_role("article").locator(".about")).to_contain_text("Accepted")
    await expect(entries).to_have_count(1)
    await entries.click()
    await page.get_by_role("button", name="Dismiss").click()
    await expect(page.get_by_text("Nothing waits for you.")).to_be_visible()
    await page.get_by_label("Status").select_option("any")
    await entries.filter(has_text="tests first").click()
    made = page.get_by_role("article").get_by_role("link", name=re.compile(r"coder.M-\d+"))
    await made.first.click()
    await expect(page.get_by_role("article").locator(".words")).to_contain_text("tests first")
    kept = await server.bank.memories.list("coder", words="tests first")
    assert [each.by_person for each in kept] == [True]


async def test_somebody_else_was_first(server: RunningServer, open_page: OpenPage) -> None:
    await fill(server.bank)
    await server.bank.reflect("coder")
    at = await open_page(server, "#/bank/inbox")
    entries = at.page.locator("a.entry")
    await entries.filter(has_text="tests first").click()
    await expect(at.page.get_by_role("button", name="Accept")).to_be_visible()
    await at.page.route(re.compile("/api/v1/inbox"), keep_from_reading)
    for each in await server.bank.inbox.list():
        await server.bank.inbox.dismiss(each.name)
    await at.page.get_by_role("button", name="Accept").click()
    await expect(at.page.get_by_role("alert")).to_contain_text("dismissed")
    assert await server.bank.memories.list("coder", words="tests first") == []


async def test_a_run_is_begun_and_undone(server: RunningServer, open_page: OpenPage) -> None:
    await fill(server.bank)
    at = await open_page(server, "#/agent/coder/inbox/runs")
    page = at.page
    await page.get_by_role("button", name="Reflect now").click()
    await page.locator("a.entry").click()
    run = page.get_by_role("article", name="coder/R-1")
    await expect(run.locator("h2").first).to_contain_text("One change, 2 messages")
    await expect(run).to_contain_text("Remember")
    await expect(run).to_contain_text("migration tests")
    await expect(run.get_by_role("link", name=re.compile("tests first"))).to_be_visible()
    assert await server.bank.memories.list("coder") != []
    await run.get_by_role("button", name="Undo").click()
    await expect(run.locator(".about").first).to_contain_text("undone")
    await expect(run.get_by_role("button", name="Undo")).to_have_count(0)
    assert await server.bank.memories.list("coder") == []


async def test_layers_are_added_changed_and_removed(
    server: RunningServer, open_page: OpenPage
) -> None:
    at = await open_page(server, "#/bank/references")
    page = at.page
    await expect(page.get_by_text("No reference layers yet.")).to_be_visible()
    await page.get_by_role("link", name="Add one").click()
    words = "Tokens are **refreshed** an hour before they end. " * 60
    await page.get_by_label("Markdown").fill(LAYER + words)
    await page.get_by_role("button", name="Save").click()
    shown = page.get_by_role("article", name="oauth")
    await expect(shown.locator("strong").first).to_have_text("refreshed")
    await expect(shown).to_contain_text("token refresh")
    await page.get_by_role("link", name="Add one").click()
    await page.get_by_label("Markdown").fill(LAYER + words.replace("hour", "week"))
    await page.get_by_role("button", name="Save").click()
    await expect(page.get_by_role("alert")).to_contain_text("oauth")  # there is one
    await page.locator("a.entry").click()
    await shown.get_by_role("button", name="Edit").click()
    field = page.get_by_label("Markdown")
    await field.fill((await field.input_value()).replace("an hour", "a day"))
    await page.get_by_role("button", name="Save").click()
    await expect(shown).to_contain_text("a day before")
    found = await server.bank.references.get("oauth")
    assert found is not None
    assert (found.title, found.tags, found.triggers) == (
        "How we do OAuth",
        ("login",),
        ("token refresh",),
    )
    await shown.get_by_role("button", name="Remove…").click()
    await shown.get_by_role("button", name="Remove", exact=True).click()
    await expect(page.get_by_text("No reference layers yet.")).to_be_visible()
    assert await server.bank.references.list() == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_inbox_and_layers_are_for_everybody(
    server: RunningServer, open_page: OpenPage, scheme: str
) -> None:
    await fill(server.bank)
    await server.bank.reflect("coder")
    await server.bank.references.add(LAYER + "Tokens end. " * 300)
    at = await open_page(server, "#/bank/inbox", color_scheme=scheme)
    for place in ("#/bank/inbox", "#/bank/inbox/runs", "#/bank/references"):
        await at.page.set_viewport_size({"width": 1_200, "height": 800})
        await at.go(place)
        await expect(at.page.locator("a.entry").first).to_be_visible()
        await at.page.keyboard.press("j")
        await expect(at.page.get_by_role("article")).to_be_visible()
        assert await violations(at) == []
        await at.page.set_viewport_size({"width": 360, "height": 700})
        await expect(at.page.get_by_role("article")).to_be_in_viewport()
        assert await violations(at) == []
        assert not await at.page.evaluate(WIDE)


async def test_a_guest_decides_nothing(server: RunningServer, open_page: OpenPage) -> None:
    await fill(server.bank)
    await server.bank.reflect("coder")
    guest = server.token(TokenScope.READ, agent="coder", name="guest")
    at = await open_page(server, "#/bank/inbox", token=guest)
    await at.page.locator("a.entry").first.click()
    await expect(at.page.get_by_role("article")).to_be_visible()
    assert await at.page.locator("main button:not(.quiet)").count() == 0

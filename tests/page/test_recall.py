"""Recall explained, in a real browser on a real server."""

from __future__ import annotations

from typing import Any

import pytest
from playwright.async_api import Locator, expect

from perdure.bank.bank import Bank
from perdure.core.messages import Message, Text, ToolCall, ToolResult, assistant, user
from perdure.server.operations import TokenScope
from tests.page.conftest import BrowserPage, OpenPage
from tests.page.test_access import violations
from tests.server.conftest import RunningServer

PLACE = "#/session/ada/notes/recall"


async def fill(bank: Bank) -> None:
    """A prompt beside which an old turn stood, which its model then fetched."""
    other = await bank.session("ada/plans")
    await other.append(
        [user("Where do cranes winter?"), assistant("Cranes winter in <b>Spain</b>.")]
    )
    session = await bank.session("ada/notes", budget=1_000)
    await session.append(
        [user("Which port does the ledger use?"), assistant("The ledger listens on port 8123.")]
    )
    for number in range(2, 12):
        words = " ".join(f"Chapter {number}.{part} tells of the harbour." for part in range(24))
        await session.append([user(f"Chapter {number}?"), assistant(words)])
    context = await session.context("On which port does the ledger listen?")
    call = ToolCall(id="one", name="history_get_turn", arguments='{"id": "T-1", "level": "R"}')
    await session.append(Message(role="assistant", parts=(Text("I look."), call)), context=context)
    result = ToolResult(call="one", content=(Text("The ledger listens on port 8123."),))
    await session.append(Message(role="tool", parts=(result,)))
    await session.append(assistant("On 8123."))


async def ask(at: BrowserPage, words: str) -> Locator:
    await at.page.get_by_label("Ask the past").fill(words)
    await at.page.keyboard.press("Enter")
    found = at.page.get_by_role("region", name="Hits")
    await expect(found).to_be_visible()
    return found


async def test_what_was_found_and_why(server: RunningServer, open_page: OpenPage) -> None:
    await fill(server.bank)
    at = await open_page(server, PLACE)
    found = await ask(at, "ledger port")
    first = found.locator("ol > li").first
    await expect(first.get_by_role("link")).to_have_text("T-1.1")
    await expect(first.locator(".why")).to_contain_text("ledger")
    await expect(first.locator(".score")).to_be_visible()
    steps = found.locator(".steps")
    await expect(steps.get_by_role("row").first).to_contain_text("Words")
    await expect(steps.get_by_role("row").first).to_contain_text("candidates")
    await first.locator("summary").click()
    await expect(first.locator("pre")).to_contain_text("port 8123")
    await first.get_by_role("link").click()
    await expect(at.turn(1)).to_contain_text("8123")
    await at.page.go_back()  # what was asked is part of the address
    await expect(found.locator("ol > li").first).to_contain_text("T-1.1")
    assert at.page.url.endswith("/recall/ledger%20port")


async def test_hits_of_other_sessions_and_kinds(server: RunningServer, open_page: OpenPage) -> None:
    await fill(server.bank)
    at = await open_page(server, PLACE)
    found = await ask(at, "cranes winter")
    hit = found.get_by_role("link", name="ada/plans#T-1.1")
    await expect(hit).to_be_visible()
    assert await at.page.locator(".found b").count() == 0
    await at.page.get_by_label("What to look for").select_option("memory")
    await at.page.get_by_role("button", name="Ask", exact=True).click()
    await expect(at.page.get_by_text("Nothing was found.")).to_be_visible()
    await at.page.get_by_label("What to look for").select_option("")
    await at.page.get_by_role("button", name="Ask", exact=True).click()
    await hit.click()
    await expect(at.turn(1)).to_contain_text("Spain")
    assert at.page.url.endswith("#/session/ada/plans/turns/T-1")


async def test_memories_and_layers_that_were_found_are_opened(
    server: RunningServer, open_page: OpenPage
) -> None:
    await fill(server.bank)
    await server.bank.memories.add("ada", "Quinces are shipped on Fridays.")
    await server.bank.memories.add("bob", "Quinces are bought at dawn.", shared=["*"])
    text = "---\nname: fruit\ntitle: Fruit\ntags: [quinces]\n---\n" + "Quinces keep till May. " * 90
    await server.bank.references.add(text)
    await server.bank.settle()
    at = await open_page(server, f"{PLACE}/quinces")
    found = at.page.get_by_role("region", name="Hits")
    for key, says in (
        ("M-1", "shipped on Fridays"),
        ("bob/M-1", "bought at dawn"),
        ("fruit", "keep till May"),
    ):
        await found.get_by_role("link", name=key, exact=True).click()
        await expect(at.page.get_by_role("article")).to_contain_text(says)
        await at.page.go_back()


async def test_what_stood_beside_a_prompt_and_what_came_of_it(
    server: RunningServer, open_page: OpenPage
) -> None:
    await fill(server.bank)
    at = await open_page(server, PLACE, token=server.token(TokenScope.READ))
    row = at.page.locator(".beside > ol > li").first
    await expect(row).to_contain_text("On which port does the ledger listen?")
    await row.locator("summary").first.click()
    named = row.locator(".item.named")
    await expect(named.first).to_contain_text("T-1.1")
    await expect(row.locator(".calls")).to_contain_text('history_get_turn {"id": "T-1"')
    await row.get_by_text("As it was sent").click()
    await expect(row.locator("pre")).to_contain_text("What this prompt brings to mind")
    await row.get_by_role("link", name="the prompt of T-12").click()
    sent = at.page.get_by_role("region", name="The prompt of T-12, as it was sent")
    await expect(sent).to_contain_text("What this prompt brings to mind")


async def test_older_prompts_page_by_page(server: RunningServer) -> None:
    session = await server.bank.session("ada/notes")
    for number in range(1, 6):
        context = await session.context(f"What of the ledger, {number}?")
        await session.append(assistant(f"The ledger has page {number}."), context=context)
    client = await server.client(server.token())
    path = "/api/v1/sessions/ada/notes/injections"
    turns, before = list[str](), None
    while True:
        given: dict[str, Any] = {"limit": 2} | ({"before": before} if before else {})
        page = (await client.get(path, params=given)).json()
        turns += [each["turn"] for each in page["injections"]]
        if (before := page["before"]) is None:
            break
    assert turns == sorted(set(turns), key=lambda name: -int(name[2:]))
    every = (await client.get(path)).json()
    assert [each["turn"] for each in every["injections"]] == turns
    assert turns
    forked = await session.fork("bob/notes", at="T-5")  # what ada recalled is not bob's
    assert forked.name == "bob/notes"
    bobs = (await client.get("/api/v1/sessions/bob/notes/injections")).json()
    assert bobs["injections"] == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_axe_and_a_phone(server: RunningServer, open_page: OpenPage, scheme: str) -> None:
    await fill(server.bank)
    at = await open_page(server, PLACE, color_scheme=scheme)
    found = await ask(at, "ledger port")
    for _ in range(2):
        await found.locator("summary").first.focus()
        await at.page.keyboard.press("Enter")
        await expect(found.locator("pre").first).to_be_visible()
        await at.page.locator(".beside summary").first.focus()
        await at.page.keyboard.press("Enter")
        await expect(at.page.locator(".calls")).to_be_visible()
        assert await violations(at) == []
        assert await at.page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        await found.locator("summary").first.press("Enter")
        await at.page.locator(".beside summary").first.press("Enter")
        await at.page.set_viewport_size({"width": 390, "height": 780})

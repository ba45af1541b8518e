"""A session as a file, from the page."""

from __future__ import annotations

from pathlib import Path

from playwright.async_api import Download, expect

from tests.page.conftest import BrowserPage, OpenPage
from tests.page.test_turns import say
from tests.server.conftest import RunningServer


async def save(at: BrowserPage, name: str) -> Download:
    async with at.page.expect_download() as saving:
        await at.page.get_by_role("button", name=name).click()
    return await saving.value


async def test_a_session_is_saved_as_a_file(server: RunningServer, open_page: OpenPage) -> None:
    pairs = [(f"Ask {n}", f"The **word** is w{n}w. 🥝") for n in range(1, 80)]
    await say(server.bank, "ada/notes", *pairs)
    at = await open_page(server, "#/session/ada/notes")
    await expect(at.turn(79)).to_be_visible()
    found = await save(at, "Markdown")
    assert found.suggested_filename == "ada-notes.md"
    text = Path(await found.path()).read_text(encoding="utf-8")
    assert all(said in text for pair in pairs for said in pair)
    found = await save(at, "JSONL")
    assert found.suggested_filename == "ada-notes.jsonl"
    lines = Path(await found.path()).read_bytes()
    url = "/api/v1/sessions/ada/notes/export?format=jsonl"
    client = await server.client(server.token())
    assert lines == (await client.get(url)).content  # what the command imports again


async def test_a_session_that_cannot_be_saved(server: RunningServer, open_page: OpenPage) -> None:
    await say(server.bank, "ada/notes", ("Hi", "Hello"))
    at = await open_page(server, "#/session/ada/notes")
    save = at.page.get_by_role("button", name="Markdown")
    await expect(save).to_be_visible()
    error = {"error": {"code": "busy", "message": "Full up."}}
    await at.page.route("**/export*", lambda route: route.fulfill(status=503, json=error))
    await save.click()
    await expect(at.page.get_by_role("alert")).to_have_text("Full up.")

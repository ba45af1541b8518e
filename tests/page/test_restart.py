"""The server is killed and comes back while the page is open."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from pathlib import Path

from playwright.async_api import Browser, Page, expect

import perdure
from perdure.core.messages import assistant, user
from perdure.testing import ScriptedModel
from tests.server.serve_process import ServeProcess

CONFIG = """
[gateway.models]
chat = "scripted/any"

[gateway.providers.scripted]
wire = "chat"
base_url = "{url}"
"""


async def wrote(folder: Path, asked: str, answered: str) -> None:
    """Another process than the server."""
    async with perdure.open(f"sqlite:///{folder / 'bank.db'}") as bank:
        session = await bank.session("ada/notes")
        await session.append([user(asked), assistant(answered)])


async def test_killed_and_started_again_while_the_page_is_open(
    tmp_path: Path, browser: Browser
) -> None:
    """It shows what it has, also after a reload; then it catches up, and sends what waited."""
    await wrote(tmp_path, "one", "answer 1")
    async with ScriptedModel(["answer 3"]) as model:
        config = tmp_path / "config.toml"
        config.write_text(CONFIG.format(url=model.url))
        start = serving(tmp_path, config)
        served = await asyncio.to_thread(start, 0)
        try:
            page = await browser.new_page()
            await page.goto(f"{served.url}/#code={served.code}")
            await page.get_by_role("link", name="ada").click()
            await expect(page.locator('[data-turn="1"]')).to_contain_text("answer 1")
            await page.evaluate("navigator.serviceWorker.ready")
            await until_kept(page)
            served.signal(signal.SIGKILL)
            await expect(page.get_by_text("Offline")).to_be_visible()
            await page.reload()
            await expect(page.locator('[data-turn="1"]')).to_contain_text("answer 1")
            await page.get_by_label("Message").fill("three")
            await page.keyboard.press("Enter")
            await expect(page.locator(".pending")).to_contain_text("Waits for the server")
            await wrote(tmp_path, "two", "answer 2")
            again = await asyncio.to_thread(start, served.port)
            served.__exit__(None, None, None)
            served = again
            for number in (1, 2, 3):
                turn = page.locator(f'[data-turn="{number}"]')
                await expect(turn).to_contain_text(f"answer {number}")
            await expect(page.locator(".pending, .arriving")).to_have_count(0)
            await expect(page.get_by_text("Offline")).to_have_count(0)
            assert await page.locator(".prompt").all_inner_texts() == ["one", "two", "three"]
            assert len(model.requests) == 1
        finally:
            served.__exit__(None, None, None)


def serving(folder: Path, config: Path) -> Callable[[int], ServeProcess]:
    def start(port: int) -> ServeProcess:
        return ServeProcess(folder, "--port", str(port), PERDURE_CONFIG=str(config)).start()

    return start


async def until_kept(page: Page) -> None:
    """Until the browser has the page and its turns."""
    shell = "caches.match('/', { ignoreVary: true }).then(found => found !== undefined)"
    turns = """indexedDB.databases().then(([{ name }]) => new Promise(done => {
        indexedDB.open(name).onsuccess = ({ target: { result: db } }) => {
            db.transaction("turns").objectStore("turns").count().onsuccess = ({ target }) => {
                db.close();
                done(target.result > 0);
            };
        };
    }))"""
    wait = f"while (!(await {shell}) || !(await {turns})) await new Promise(requestAnimationFrame)"
    await page.evaluate(f"(async () => {{ {wait} }})()")

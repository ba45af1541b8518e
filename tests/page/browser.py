"""The browser of the page's tests: a real one, wherever it comes from; and pages in it.

In this order: what ``PERDURE_TEST_BROWSER`` names; the one that ``make test`` unpacks (Linux on
x86-64); one that is installed. Without any, the tests fail and say so.
"""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import Browser, BrowserContext, Page, async_playwright

from tests.server.conftest import RunningServer

#: Milliseconds until an expectation fails. Long, because machines are busy; no test waits so long.
PATIENCE = 60_000
ROOT = Path(__file__).parents[2]
WEB = ROOT / ".venv-web"
_OWN = WEB / "chromium"
_INSTALLED = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
_MAC = Path("/Applications/Google Chrome.app/Contents/MacOS/Google Chrome")
_MISSING = (
    "There is no browser to test the page with: `make test` brings one on Linux x86-64; elsewhere"
    " install Chromium or Chrome, or name one in PERDURE_TEST_BROWSER."
    " `make test NO_BROWSER=1` leaves these tests out."
)
#: In containers there is neither a sandbox nor much shared memory.
_ARGUMENTS = ("--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu")


@cache
def browser_path() -> Path:
    named = os.environ.get("PERDURE_TEST_BROWSER")
    found = [shutil.which(name) for name in _INSTALLED]
    candidates = [
        Path(named) if named else None,
        _OWN / "chromium",
        *(Path(each) if each else None for each in found),
        _MAC,
    ]
    for path in candidates:
        if path is not None and path.exists():
            return path
    pytest.fail(_MISSING)


def _environment(path: Path) -> dict[str, str | float | bool]:
    kept: dict[str, str | float | bool] = dict(os.environ)
    if path.parent == _OWN:
        kept |= {
            "LD_LIBRARY_PATH": f"{_OWN / 'lib'}:{_OWN}",
            "FONTCONFIG_FILE": str(_OWN / "fonts.conf"),
        }
    return kept


@asynccontextmanager
async def running_browser() -> AsyncIterator[Browser]:
    node = WEB / "nodejs" / "bin" / "node"
    if node.exists():  # Playwright's own needs a library that not every system has
        os.environ["PLAYWRIGHT_NODEJS_PATH"] = str(node)
    path = browser_path()
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(
            executable_path=path, env=_environment(path), args=list(_ARGUMENTS)
        )
        try:
            yield browser
        finally:
            await browser.close()


class BrowserPage:
    """A page, and what went wrong in it."""

    def __init__(self, page: Page, context: BrowserContext, url: str) -> None:
        self.page = page
        self.context = context
        self.url = url
        #: Errors of its scripts, what its security policy refused, and requests to other hosts.
        self.faults: list[str] = []
        page.on("pageerror", lambda error: self.faults.append(str(error)))
        page.on("console", self._listen)
        page.on("request", lambda request: self._check_host(request.url))

    def _listen(self, message: Any) -> None:
        is_network = message.text.startswith(("Failed to load resource", "WebSocket connection"))
        if message.type == "error" and not is_network:
            self.faults.append(message.text)

    def _check_host(self, url: str) -> None:
        if not url.startswith((self.url, "blob:", "data:")):
            self.faults.append(f"asked {url}")

    async def go(self, place: str) -> None:
        """Without loading anything."""
        await self.page.evaluate("place => { location.hash = place }", place)

    async def until(self, condition: str) -> None:
        """Until an expression is true in the page, looked at once a frame."""
        frame = "new Promise(requestAnimationFrame)"
        looking = f"(async () => {{ while (!({condition})) await {frame}; }})()"
        async with asyncio.timeout(PATIENCE / 1_000):
            await self.page.evaluate(looking)

    def turn(self, number: int) -> Any:
        return self.page.locator(f'[data-turn="{number}"]')


async def logged_in(browser: Browser, server: RunningServer, **options: Any) -> BrowserContext:
    """What a browser keeps of its own for somebody: nothing, but a token of this server."""
    token = options.pop("token", None) or server.token(name="reader")
    options.setdefault("viewport", {"width": 1_200, "height": 800})
    context = await browser.new_context(**options)
    context.set_default_timeout(PATIENCE)
    await context.add_init_script(
        f"localStorage.getItem('perdure-token') ?? localStorage.setItem('perdure-token', '{token}')"
    )
    return context


async def open_in(context: BrowserContext, server: RunningServer, place: str = "#/") -> BrowserPage:
    found = BrowserPage(await context.new_page(), context, server.url)
    await found.page.goto(f"{server.url}/{place}")
    return found

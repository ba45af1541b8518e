"""A page in a real browser, on a real server over a bank in a temporary file."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Protocol

import pytest
from playwright.async_api import Browser, BrowserContext, Page, expect

from perdure.config import GatewayConfig, ModelsConfig
from perdure.server import page_files
from perdure.testing import Script, ScriptedModel
from tests.page.browser import running_browser
from tests.server.conftest import RunningServer, running_server

#: Milliseconds until an expectation fails. Long, because machines are busy; no test waits so long.
PATIENCE = 60_000


class OpenPage(Protocol):
    """Opens a page of a server, logged in, at a place (``#/…``)."""

    async def __call__(
        self, server: RunningServer, place: str = "#/", **options: Any
    ) -> BrowserPage: ...


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


@pytest.fixture(scope="session")
def built_page() -> Path:
    """The page as `make page` and `make test` build it."""
    if not (page_files.FOLDER / page_files.INDEX).exists():
        pytest.fail("The page is not built: `make test` builds it, and so does `make page`.")
    return page_files.FOLDER


@pytest.fixture
async def browser(built_page: Path) -> AsyncIterator[Browser]:
    expect.set_options(timeout=PATIENCE)
    async with running_browser() as browser:
        yield browser


@pytest.fixture
async def open_page(browser: Browser) -> AsyncIterator[OpenPage]:
    opened: list[BrowserPage] = []
    async with AsyncExitStack() as stack:

        async def open(server: RunningServer, place: str = "#/", **options: Any) -> BrowserPage:
            context = options.pop("context", None)
            token = options.pop("token", None)
            if context is None:
                options.setdefault("viewport", {"width": 1_200, "height": 800})
                context = await browser.new_context(**options)
                stack.push_async_callback(context.close)
                context.set_default_timeout(PATIENCE)
                given = token or server.token(name="reader")
                await context.add_init_script(
                    f"localStorage.getItem('perdure-token') ??"
                    f" localStorage.setItem('perdure-token', '{given}')"
                )
            found = BrowserPage(await context.new_page(), context, server.url)
            opened.append(found)
            await found.page.goto(f"{server.url}/{place}")
            return found

        yield open
    assert [fault for each in opened for fault in each.faults] == []


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[RunningServer]:
    async with running_server(tmp_path) as server:
        yield server


@pytest.fixture
async def talking(tmp_path: Path) -> AsyncIterator[Callable[[Script], Awaitable[RunningServer]]]:
    """Starts a server whose chats are answered by a script."""
    async with AsyncExitStack() as stack:

        async def start(script: Script) -> RunningServer:
            model = await stack.enter_async_context(ScriptedModel(script))
            gateway = GatewayConfig(
                providers={"scripted": model.provider_config()},
                models=ModelsConfig(chat="scripted/any"),
            )
            return await stack.enter_async_context(running_server(tmp_path, gateway=gateway))

        yield start

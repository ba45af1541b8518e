"""A page in a real browser, on a real server over a bank in a temporary file.

Starting a browser costs more than most tests, so a test process has one. Each test has contexts of
its own in it, which share nothing; they are closed at its end. A browser belongs to the event loop
that started it, so all of them run in one.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Protocol

import pytest
import pytest_asyncio
from playwright.async_api import Browser, expect

from perdure.config import GatewayConfig, ModelsConfig
from perdure.server import page_files
from perdure.testing import Script, ScriptedModel
from tests.page.browser import PATIENCE, BrowserPage, logged_in, open_in, running_browser
from tests.server.conftest import RunningServer, running_server

__all__ = ["BrowserPage", "OpenPage"]

_HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(_HERE) and pytest_asyncio.is_async_test(item):
            item.add_marker(pytest.mark.asyncio(loop_scope="session"), append=False)


class OpenPage(Protocol):
    """Opens a page of a server, logged in, at a place (``#/…``)."""

    async def __call__(
        self, server: RunningServer, place: str = "#/", **options: Any
    ) -> BrowserPage: ...


@pytest.fixture(scope="session")
def built_page() -> Path:
    """The page as `make page` and `make test` build it."""
    if not (page_files.FOLDER / page_files.INDEX).exists():
        pytest.fail("The page is not built: `make test` builds it, and so does `make page`.")
    return page_files.FOLDER


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def chromium(built_page: Path) -> AsyncIterator[Browser]:
    expect.set_options(timeout=PATIENCE)
    async with running_browser() as browser:
        yield browser


@pytest_asyncio.fixture(loop_scope="session")
async def browser(chromium: Browser) -> AsyncIterator[Browser]:
    yield chromium
    for context in chromium.contexts:
        await context.close()


@pytest_asyncio.fixture(loop_scope="session")
async def open_page(browser: Browser) -> AsyncIterator[OpenPage]:
    opened: list[BrowserPage] = []
    async with AsyncExitStack() as stack:

        async def open(server: RunningServer, place: str = "#/", **options: Any) -> BrowserPage:
            context = options.pop("context", None)
            if context is None:
                context = await logged_in(browser, server, **options)
                stack.push_async_callback(context.close)
            opened.append(await open_in(context, server, place))
            return opened[-1]

        yield open
    assert [fault for each in opened for fault in each.faults] == []


@pytest_asyncio.fixture(loop_scope="session")
async def server(tmp_path: Path) -> AsyncIterator[RunningServer]:
    async with running_server(tmp_path) as server:
        yield server


@pytest_asyncio.fixture(loop_scope="session")
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

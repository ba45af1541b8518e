"""The documentation site in a browser, as `make docs` built it."""

from __future__ import annotations

import asyncio
import functools
import http.server
import threading
from collections.abc import Iterator

import pytest
from playwright.async_api import Browser, ConsoleMessage, Page, Request, expect

from tests.page.browser import PATIENCE, ROOT

SITE = ROOT / "build" / "docs" / "html"
pytestmark = pytest.mark.slow


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="session")
def site() -> Iterator[str]:
    if not (SITE / "index.html").exists():
        pytest.fail("The site is not built: `make docs` builds it, and so does `make test-long`.")
    handler = functools.partial(Quiet, directory=str(SITE))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()
        thread.join()


def listen(page: Page, own: str) -> list[str]:
    """What goes wrong in it, requests to other hosts included."""
    faults = list[str]()

    def said(message: ConsoleMessage) -> None:
        if message.type == "error":
            faults.append(message.text)

    def asked(request: Request) -> None:
        if not request.url.startswith((own, "data:")):
            faults.append(f"asked {request.url}")

    page.on("pageerror", lambda error: faults.append(str(error)))
    page.on("requestfailed", lambda request: faults.append(f"failed {request.url}"))
    page.on("console", said)
    page.on("request", asked)
    return faults


async def test_no_page_asks_another_host_or_overflows(browser: Browser, site: str) -> None:
    names = [each.relative_to(SITE).as_posix() for each in sorted(SITE.rglob("*.html"))]
    assert len(names) > 40

    async def visit(names: list[str], width: int) -> list[str]:
        context = await browser.new_context(viewport={"width": width, "height": 800})
        page = await context.new_page()
        page.set_default_timeout(PATIENCE)
        faults = listen(page, site)
        for name in names:
            await page.goto(site + name)
            wide = await page.evaluate("document.documentElement.scrollWidth")
            if wide > width:
                faults.append(f"{name} is {wide} wide of {width}")
        return faults

    wide, narrow = await asyncio.gather(visit(names, 1_280), visit(names, 390))
    assert wide + narrow == []


async def test_search_finds_a_name_and_the_switch_changes_colours(
    browser: Browser, site: str
) -> None:
    context = await browser.new_context(viewport={"width": 1_280, "height": 800})
    page = await context.new_page()
    page.set_default_timeout(PATIENCE)
    faults = listen(page, site)
    await page.goto(f"{site}search.html?q=MessageParked")
    await expect(page.locator("#search-results li").first).to_be_visible()
    await page.goto(f"{site}index.html")
    seen = set()
    for _ in range(3):  # the system's choice, and both
        await page.locator(".theme-toggle:visible").first.click()
        seen.add(await page.evaluate("getComputedStyle(document.body).backgroundColor"))
    assert len(seen) == 2
    assert faults == []


async def test_the_site_can_be_read_from_a_folder(browser: Browser, site: str) -> None:
    page = await (await browser.new_context()).new_page()
    page.set_default_timeout(PATIENCE)
    own = SITE.as_uri()
    faults = listen(page, own)
    await page.goto(f"{own}/index.html")
    assert faults == []
    await page.goto(f"{own}/search.html?q=mailbox")
    await expect(page.locator("#search-results li").first).to_be_visible()
    # A browser fetches no excerpts for results from files; the list needs none.
    assert [fault for fault in faults if fault.startswith("asked")] == []

"""The browser of the page's tests: a real one, wherever it comes from.

In this order: what ``PERDURE_TEST_BROWSER`` names; the one that ``make test`` unpacks (Linux on
x86-64); one that is installed. Without any, the tests fail and say so.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import cache
from pathlib import Path

import pytest
from playwright.async_api import Browser, async_playwright

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

"""A session of 100,000 turns."""

from __future__ import annotations

import pytest
from playwright.async_api import expect

from perdure.core.messages import assistant, user
from tests.page.conftest import OpenPage
from tests.server.conftest import RunningServer

TURNS = 100_000


async def fill(server: RunningServer, turns: int) -> None:
    session = await server.bank.session("ada/long")
    for first in range(1, turns + 1, 2_000):
        messages = []
        for number in range(first, min(first + 2_000, turns + 1)):
            words = f"Answer {number}. " * (number % 23 + 1)
            messages += [user(f"Ask {number}"), assistant(words)]
        await session.append(messages)


@pytest.mark.parametrize(
    "turns", [2_000, pytest.param(TURNS, marks=pytest.mark.slow)], ids="{:,}".format
)
async def test_any_place_of_a_long_history(
    server: RunningServer, open_page: OpenPage, turns: int
) -> None:
    """Few elements, few requests, every turn reachable by number, by key and by scrolling."""
    await fill(server, turns)
    at = await open_page(server, "#/session/ada/long")
    requests = list[str]()
    at.page.on("request", lambda request: requests.append(request.url))
    await expect(at.turn(turns)).to_contain_text(f"Answer {turns}.")
    await expect(at.turn(turns)).to_be_in_viewport()
    for number in (turns // 2, 3, turns - 40):
        await at.go(f"#/session/ada/long/turns/T-{number}")
        await expect(at.turn(number)).to_contain_text(f"Answer {number}.")
        await expect(at.turn(number)).to_be_in_viewport()
    await at.page.keyboard.press("g")
    await expect(at.turn(1)).to_contain_text("Answer 1.")
    await at.page.locator(".scroller").evaluate(
        "list => { list.scrollTop = list.scrollHeight * 0.4 }"
    )
    first = 'Number(document.querySelector("[data-turn]").dataset.turn)'
    await at.until(f"{first} > {turns} * 0.2 && {first} < {turns} * 0.6")
    await at.until(
        f"""document.querySelector(`[data-turn="${{{first} + 12}}"]`)?.innerText
            .includes(`Answer ${{{first} + 12}}.`)"""
    )
    await at.page.keyboard.press("G")
    await expect(at.turn(turns)).to_be_in_viewport()
    assert await at.page.locator("[data-turn]").count() < 120
    assert sum("/turns" in url for url in requests) < 40

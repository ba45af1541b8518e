"""What was spent, in a real browser: figures, a chart and tables that say the same."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from playwright.async_api import expect

from perdure.bank.bank import Bank
from perdure.config import BudgetConfig, GatewayConfig
from perdure.core import clock
from perdure.gateway.budgets import Budget, BudgetPeriod
from perdure.gateway.outcomes import Outcome
from perdure.server.operations import TokenScope
from tests.page.conftest import BrowserPage, OpenPage
from tests.page.test_access import violations
from tests.server.conftest import RunningServer, running_server

DOLLAR = 10**12
BUDGET = BudgetConfig(name="team", per="month", dollars=20.0, tokens=100_000)
# A reload right behind an answer may overtake what the browser keeps of it.
KEPT = """(async () => {
    const [{ name }] = await indexedDB.databases();
    const count = () => new Promise(done => {
        indexedDB.open(name).onsuccess = ({ target: { result: db } }) => {
            const costs = IDBKeyRange.bound("query costs", "query costt");
            const values = db.transaction("values").objectStore("values");
            values.count(costs).onsuccess = ({ target }) => {
                db.close();
                done(target.result);
            };
        };
    });
    while (await count() < 5) await new Promise(requestAnimationFrame);
})()"""
WIDE = "Math.max(document.documentElement.scrollWidth, document.body.scrollWidth) > innerWidth"


def call(number: int, now: int, **fields: Any) -> Outcome:
    given: dict[str, Any] = {
        "id": f"{number:032}",
        "started": now - number * 60 * clock.SECOND,
        "purpose": "chat",
        "provider": "acme",
        "model": "large",
        "success": True,
        "agent": "ada",
        "task": "plan",
        "latency": 2.0,
        "input": 1_000,
        "output": 100,
        "cache_read": 500,
        "cost": DOLLAR,
    }
    return Outcome(**given | fields)


async def fill(bank: Bank) -> None:
    """Six dollars of ada's, two of bob's with a failure, one call of unknown cost."""
    now = bank.store.now()
    for agent in ("ada", "bob"):
        await bank.session(f"{agent}/notes")
    await bank.collection(Outcome).put_many(
        [
            *(call(n, now) for n in range(6)),
            call(6, now, agent="bob", task="triage", model="small", cost=2 * DOLLAR),
            call(7, now, agent="bob", task="triage", model="small", cost=None),
            call(8, now, agent="bob", task="<b>x", success=False, error="down", cost=0),
            call(9, now, cached=True, cost=0),
            call(10, now - 40 * 86_400 * clock.SECOND, cost=32 * DOLLAR),
        ]
    )
    period = Budget.configured(BUDGET).period(now)[0]
    await bank.collection(BudgetPeriod).put(
        BudgetPeriod(id=f"team/{period}", cost=15 * DOLLAR, tokens=100_000, held_cost=DOLLAR)
    )


def part(at: BrowserPage, name: str) -> Any:
    return at.page.get_by_role("region", name=name, exact=True)


def row(at: BrowserPage, name: str, of: str) -> Any:
    return part(at, name).get_by_role("row").filter(has_text=of)


@pytest_asyncio.fixture(loop_scope="session")
async def spent(tmp_path: Path) -> AsyncIterator[RunningServer]:
    async with running_server(tmp_path, gateway=GatewayConfig(budgets=(BUDGET,))) as server:
        await fill(server.bank)
        yield server


async def test_what_was_spent_and_what_is_left(spent: RunningServer, open_page: OpenPage) -> None:
    at = await open_page(spent)
    await at.page.get_by_role("link", name="Costs").click()
    sums = at.page.locator(".sums")
    await expect(sums).to_contain_text("$8.00and one call of unknown cost")
    await expect(sums).to_contain_text("101 failed")
    await expect(sums).to_contain_text("50 %")  # of the input, from caches of prompts
    await expect(row(at, "By agent", "ada")).to_contain_text("75 %")
    await expect(row(at, "By agent", "bob")).to_contain_text("$2.00 +?")
    await expect(row(at, "By model", "acme/small")).to_contain_text("25 %")
    await expect(row(at, "By task", "<b>x")).to_be_visible()
    await expect(row(at, "Budgets", "$20.00 a month")).to_contain_text("80 %$4.00$15.00$1.00")
    await expect(row(at, "Budgets", "100K tokens")).to_contain_text("nothing")
    await at.page.get_by_role("link", name="90 days").click()
    await expect(sums).to_contain_text("$40.00")
    await expect(at.page.locator(".chart .column")).to_have_count(91)
    chart = at.page.get_by_role("img", name="Cost by day. At most $32.00")
    await expect(chart).to_be_visible()
    await part(at, "By day (UTC)").get_by_text("As a table").click()
    await expect(row(at, "By day (UTC)", "$32.00")).to_have_count(1)
    await at.page.get_by_role("link", name="Tokens", exact=True).click()
    await expect(at.page.get_by_role("img", name="Tokens by day")).to_be_visible()
    await part(at, "By agent").get_by_role("link", name="bob").click()
    assert at.page.url.endswith("#/bank/costs/90d/tokens/bob")
    await expect(sums).to_contain_text("$2.00")
    await expect(part(at, "By agent")).to_have_count(0)
    await at.page.get_by_label("Agent", exact=True).select_option("")
    await expect(part(at, "By agent")).to_be_visible()
    await at.page.reload()  # an address of its own
    await expect(at.page.get_by_role("img", name="Tokens by day")).to_be_visible()


async def test_it_is_there_at_once_and_errors_are_said(
    spent: RunningServer, open_page: OpenPage
) -> None:
    at = await open_page(spent, "#/bank/costs")
    await expect(part(at, "By task")).to_be_visible()
    await at.page.evaluate(KEPT)
    release = asyncio.Event()

    async def hold(route: Any) -> None:
        await release.wait()
        await route.fulfill(status=503, json={"error": {"code": "busy", "message": "Full up."}})

    await at.page.route("**/api/v1/costs*", hold)
    await at.page.reload()
    await expect(part(at, "By model")).to_contain_text("acme/small")
    release.set()
    await expect(at.page.get_by_role("alert")).to_have_text("Full up.")
    await expect(part(at, "By model")).to_contain_text("acme/small")
    await at.page.unroute_all(behavior="ignoreErrors")


async def test_a_token_of_an_agent_sees_its_own(spent: RunningServer, open_page: OpenPage) -> None:
    token = spent.token(TokenScope.READ, agent="bob")
    at = await open_page(spent, "#/bank/costs", token=token)
    await expect(at.page.locator(".sums")).to_contain_text("$2.00")
    await expect(row(at, "By agent", "ada")).to_have_count(0)
    await expect(at.page.get_by_label("Agent", exact=True)).to_have_count(0)


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_for_everybody(spent: RunningServer, open_page: OpenPage, scheme: str) -> None:
    at = await open_page(spent, "#/bank/costs", color_scheme=scheme)
    press, focused = at.page.keyboard.press, at.page.locator(":focus")
    await expect(part(at, "By purpose")).to_be_visible()
    await at.page.get_by_role("link", name="90 days").focus()
    await press("Enter")
    await expect(at.page.locator(".chart .column")).to_have_count(91)
    for _ in range(30):
        await press("Tab")
        if await focused.evaluate("each => each.tagName") == "SUMMARY":
            break
    await press("Enter")
    await expect(row(at, "By day (UTC)", "$32.00")).to_be_visible()
    assert await violations(at) == []
    await at.page.set_viewport_size({"width": 360, "height": 700})
    assert not await at.page.evaluate(WIDE)
    assert await violations(at) == []

"""Which model is asked where and why, and tests of variants: the end of the costs."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest
import pytest_asyncio
from playwright.async_api import expect

from perdure.config import GatewayConfig, ModelsConfig
from perdure.gateway.outcomes import Outcome
from perdure.learning.experiment_records import Experiment, ExperimentSession, StrategyChanges
from perdure.server.operations import TokenScope
from perdure.testing import ScriptedModel
from tests.page.conftest import OpenPage
from tests.page.test_access import violations
from tests.page.test_memories import WIDE
from tests.server.conftest import RunningServer, running_server

PLACE = "#/bank/costs/30d/cost/router"


async def fill(server: RunningServer) -> Experiment:
    """A router that does well with the large model, of which a small one is tested."""
    learning, now = server.bank.learning, server.bank.store.now()
    for number in range(20):
        model, quality = ("large", 0.9) if number % 2 else ("small", 0.3)
        call = Outcome(
            id=f"{number:032x}",
            started=now,
            purpose="chat",
            provider="p",
            model=model,
            agent="router",
            task="triage",
            success=True,
            latency=2.0,
            cost=10**9,
        )
        learning.learned.note(call)
        learning.learned.rate(msgspec.structs.replace(call, quality=quality, quality_by="user"))
    await learning.flush()
    await server.bank.session("router/inbox")
    variant = StrategyChanges(models={"triage": "p/small"})
    test = await learning.evolution.start("router", variant, task="triage", reason="costs <b>rise")
    await server.bank.collection(ExperimentSession).put_many(
        [
            ExperimentSession(
                id=f"{test.id}/{number}",
                experiment=test.id,
                agent="router",
                session=f"router/{number}",
                arm="variant" if number % 2 else "control",
                calls=1,
                total=0.5 + 0.1 * (number % 2) + 0.01 * (number % 4),
            )
            for number in range(60)
        ]
    )
    return test


@pytest_asyncio.fixture(loop_scope="session")
async def learnt(tmp_path: Path) -> AsyncIterator[RunningServer]:
    async with ScriptedModel("Yes.") as model:
        gateway = GatewayConfig(
            providers={"p": model.provider_config()},
            models=ModelsConfig(chat=("p/small", "p/large")),
        )
        async with running_server(tmp_path, gateway=gateway) as server:
            yield server


async def test_which_model_is_asked_and_a_test_that_is_won(
    learnt: RunningServer, open_page: OpenPage
) -> None:
    test = await fill(learnt)
    at = await open_page(learnt, PLACE)
    of = at.page.get_by_role("region", name="router", exact=True)
    rows = of.get_by_role("group", name="Models of router").get_by_role("row")
    await expect(rows).to_have_count(3)  # with the header
    await expect(rows.nth(1)).to_contain_text("p/large")
    await expect(rows.nth(1)).to_contain_text("first: worth most")
    await expect(rows.nth(1)).to_contain_text("1.00 ± 0.0")
    await expect(rows.nth(2)).to_contain_text("p/small")
    await expect(of).to_contain_text("In test: p/small for triage")
    await expect(of).to_contain_text("costs <b>rise")
    await expect(of).to_contain_text("30 sessions as before are worth 0.51 each")
    await expect(of).to_contain_text("30 with the variant 0.62")
    # The interval as a picture, which says the same.
    await expect(of.get_by_role("img", name="+0.11, with 95 % from +0.1")).to_be_visible()
    await expect(of.get_by_role("button", name="Use the variant")).to_have_count(0)

    ended = await learnt.bank.learning.evolution.evaluate(test)
    assert ended.state == "better"
    await at.page.reload()
    await expect(of).to_contain_text("It won its test: p/small for triage")
    await of.get_by_role("button", name="Use the variant").click()
    await expect(of).to_contain_text("It works with p/small for triage, which won a test.")
    await expect(rows.nth(1)).to_contain_text("p/small")
    await expect(rows.nth(1)).to_contain_text("first: it won a test")
    await of.get_by_text("3 steps so far").click()
    steps = of.get_by_role("group", name="3 steps so far").get_by_role("row")
    await expect(steps.nth(1)).to_contain_text("in use")
    await expect(steps.nth(2)).to_contain_text("+0.11")
    await of.get_by_role("button", name="Take it back").click()
    await expect(rows.nth(1)).to_contain_text("p/large")
    assert (await learnt.bank.learning.show("router")).strategy == StrategyChanges()


async def test_without_sessions_there_are_no_bounds(
    learnt: RunningServer, open_page: OpenPage
) -> None:
    variant = StrategyChanges(recall=False, budget=4_000, prompt_version=2)
    await learnt.bank.learning.evolution.start("router", variant, reason="by hand")
    await learnt.bank.session("router/inbox")
    at = await open_page(learnt, PLACE)
    of = at.page.get_by_role("region", name="router", exact=True)
    await expect(of).to_contain_text("version 2 of its prompt, a context of 4K tokens, no recall")
    await expect(of).to_contain_text("Difference +0.00")
    await expect(of.get_by_role("img")).to_have_count(0)
    await of.get_by_role("button", name="Stop the test").click()
    await expect(of.get_by_role("button", name="Stop the test")).to_have_count(0)
    assert (await learnt.bank.learning.show("router")).experiment is None


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_learning_is_for_everybody(
    learnt: RunningServer, open_page: OpenPage, scheme: str
) -> None:
    await fill(learnt)
    reader = learnt.token(TokenScope.READ, name="guest")
    at = await open_page(learnt, "#/bank/costs", color_scheme=scheme, token=reader)
    of = at.page.get_by_role("region", name="router", exact=True)
    await expect(of.get_by_role("img")).to_be_visible()
    await expect(of.get_by_role("button")).to_have_count(0)
    assert await violations(at) == []
    await at.page.set_viewport_size({"width": 360, "height": 700})
    assert not await at.page.evaluate(WIDE)
    assert await violations(at) == []

"""The gateway of a bank: opened with it, closed with it, and forgetting with it."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

import perdure
from perdure.bank import Bank
from perdure.config import (
    BudgetConfig,
    Config,
    GatewayConfig,
    ModelsConfig,
    RecallConfig,
    RenditionsConfig,
    SecretsConfig,
)
from perdure.core.errors import Closed, NoModel
from perdure.core.messages import assistant, user
from perdure.gateway.budgets import BudgetPeriod
from perdure.gateway.calls import CallOptions, TextDelta
from perdure.gateway.outcomes import Outcome
from perdure.testing import ScriptedAnswer, ScriptedFault, ScriptedModel
from tests.gateway.opened import assert_nothing_left, config_for, provider
from tests.waiting import until

BUDGETS = (
    BudgetConfig(name="each", agent="*", tokens=10**6, per="ever"),
    BudgetConfig(name="all", tokens=10**6, per="ever"),
)


def open_bank(model: ScriptedModel, url: str = "memory://", **changes: Any) -> Bank:
    gateway = config_for({"p0": provider(model)}, budgets=BUDGETS, **changes)
    # Nobody but the test calls a model.
    alone = Config(
        gateway=gateway,
        renditions=RenditionsConfig(model=False),
        recall=RecallConfig(on=False),
    )
    return Bank(url, config=alone)


@pytest.fixture(params=["memory", "sqlite"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return "memory://" if request.param == "memory" else f"sqlite:///{tmp_path / 'bank.db'}"


async def test_a_bank_calls_models(url: str) -> None:
    async with ScriptedModel("Hello from here.") as model, open_bank(model, url) as bank:
        reply = await bank.gateway.complete(
            "Hi", CallOptions(agent="planner", session="planner/auth")
        )
        assert reply.text == "Hello from here."
        await bank.settle()
        found = await bank.store.collection(Outcome).get(reply.outcome)
        assert found is not None
        assert (found.agent, found.session) == ("planner", "planner/auth")
        assert {standing.spending.held for standing in await bank.gateway.budgets()} == {0}


async def test_a_bank_that_calls_nobody_has_no_gateway_and_no_tables(url: str) -> None:
    async with ScriptedModel() as model, open_bank(model, url) as bank:
        await (await bank.session("planner/auth")).append([user("Hi"), assistant("Hello")])
        assert not bank.services.made("gateway")
        names = {size.collection for size in await bank.store.adapter.sizes()}
        assert not names & {"perdure_outcomes", "perdure_answers", "perdure_budgets"}


async def test_a_bank_that_is_not_open_has_no_gateway() -> None:
    async with ScriptedModel() as model:
        bank = open_bank(model)
        with pytest.raises(Closed):
            _ = bank.gateway
        async with bank:
            gateway = bank.gateway
        with pytest.raises(Closed):
            await gateway.complete("x")
        with pytest.raises(Closed):
            await gateway.embed(["x"])
        with pytest.raises(Closed):
            async with gateway.stream("x"):
                pass
        assert not model.requests


async def test_without_a_model_a_bank_embeds_and_says_that_it_does_not_chat() -> None:
    async with Bank("memory://", config=Config()) as bank:
        assert not bank.gateway.has("chat")
        assert not bank.gateway.has("compress")
        assert (await bank.gateway.embed(["x"])).provider == "local"
        with pytest.raises(NoModel, match="PERDURE_MODEL_CHAT"):
            await bank.gateway.complete("x")


# Closing --------------------------------------------------------------------------------------


async def test_closing_ends_calls_under_way(tmp_path: Path) -> None:
    """Everything is settled and noted; nobody waits for an answer that does not come."""
    url = f"sqlite:///{tmp_path / 'bank.db'}"
    async with ScriptedModel(ScriptedFault(how="hang", after=5)) as model:
        bank = open_bank(model, url)
        await bank.open()
        gateway = bank.gateway
        idle = gateway.stream("x")
        await idle.__aenter__()

        async def read() -> None:
            async with gateway.stream("x") as stream:
                await stream.finish()

        calls = [
            asyncio.create_task(gateway.complete("x")),
            asyncio.create_task(gateway.complete("x")),
            asyncio.create_task(read()),
        ]
        await until(lambda: len(model.requests) == 4)
        async with asyncio.timeout(60):
            await bank.close()
            results = await asyncio.gather(*calls, return_exceptions=True)
        assert [type(result) for result in results] == [Closed] * 3
        with pytest.raises(Closed):
            async for _ in idle:
                pass
        await idle.__aexit__(None, None, None)
        assert_nothing_left(gateway)
        await until(lambda: model.open_connections == 0)

        async with open_bank(model, url) as again:
            noted = await again.store.collection(Outcome).query().values()
            assert [each.error for each in noted] == ["cancelled"] * 4
            (pot,) = await again.store.collection(BudgetPeriod).query().prefix("all/").values()
            assert (pot.held, pot.held_tokens) == (0, 0)
            assert pot.tokens > 0


async def test_a_call_that_is_cancelled_while_the_bank_closes_is_cancelled() -> None:
    async with ScriptedModel(ScriptedFault(how="hang")) as model:
        bank = open_bank(model)
        await bank.open()
        call = asyncio.create_task(bank.gateway.complete("x"))
        await until(lambda: model.requests)
        call.cancel()
        await bank.close()
        with pytest.raises(asyncio.CancelledError):
            await call


async def test_jobs_that_call_models_end_with_the_bank() -> None:
    async with ScriptedModel(ScriptedFault(how="hang")) as model:
        async with asyncio.timeout(60):
            async with open_bank(model) as bank:
                call = asyncio.create_task(bank.gateway.complete("x"))
                await until(lambda: model.requests)
        with pytest.raises(Closed):
            await call


# Forgetting -----------------------------------------------------------------------------------


async def test_what_a_session_left_with_the_gateway_is_forgotten_with_it(url: str) -> None:
    async with ScriptedModel("xylophone") as model, open_bank(model, url) as bank:
        for name in ("planner/auth", "planner/other"):
            await (await bank.session(name)).append([user("Hi"), assistant("Hello")])
            ask = CallOptions(agent="planner", session=name, cache=True)
            await bank.gateway.complete(f"about {name}", ask)
        await bank.forget("planner/auth")
        outcomes = await bank.store.collection(Outcome).query().values()
        assert sorted(each.session for each in outcomes) == ["", "planner/other"]
        assert len(outcomes) == 2  # what was spent stays spent
        ask = CallOptions(agent="planner", session="planner/auth", cache=True)
        assert not (await bank.gateway.complete("about planner/auth", ask)).cached
        ask = CallOptions(agent="planner", session="planner/other", cache=True)
        assert (await bank.gateway.complete("about planner/other", ask)).cached


async def test_forgetting_a_turn_forgets_what_is_cached_for_its_session(url: str) -> None:
    async with ScriptedModel() as model, open_bank(model, url) as bank:
        session = await bank.session("planner/auth")
        await session.append([user("Hi"), assistant("Hello")])
        ask = CallOptions(agent="planner", session="planner/auth", cache=True)
        await bank.gateway.complete("x", ask)
        await bank.forget("planner/auth", turns=["T-1"])
        assert not (await bank.gateway.complete("x", ask)).cached
        await bank.settle()
        outcomes = await bank.store.collection(Outcome).query().values()
        asked = [each for each in outcomes if each.purpose == "chat"]  # turns are embedded, too
        assert {each.session for each in asked} == {"planner/auth"}


async def test_secrets_of_the_bank_are_not_cached() -> None:
    secret = "sk-proj-" + "aB3dE5fG7h" * 5
    said = f"Use {secret} for it."
    ask = CallOptions(cache=True)
    async with ScriptedModel(said) as model:
        async with open_bank(model) as bank:
            reply = await bank.gateway.complete("x", ask)
            assert reply.text == said  # the caller gets what was said
            assert not (await bank.gateway.complete("x", ask)).cached
        gateway = config_for({"p0": provider(model)})
        plain = Config(gateway=gateway, secrets=SecretsConfig(mask=False))
        async with Bank("memory://", config=plain) as bank:
            await bank.gateway.complete("x", ask)
            assert (await bank.gateway.complete("x", ask)).cached


# Without await --------------------------------------------------------------------------------


class Served:
    """A scripted model in a loop of its own, for callers that block theirs."""

    def __init__(self, answer: Any) -> None:
        self._answer = answer
        self._ready = threading.Event()
        self._loop = asyncio.new_event_loop()
        self._over = asyncio.Event()
        self._thread = threading.Thread(target=self._loop.run_until_complete, args=(self._serve(),))

    def __enter__(self) -> ScriptedModel:
        self._thread.start()
        self._ready.wait(5)
        return self.model

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._over.set)
        self._thread.join()
        self._loop.close()

    async def _serve(self) -> None:
        async with ScriptedModel(self._answer) as self.model:
            self._ready.set()
            await self._over.wait()


def test_the_same_without_await(tmp_path: Path) -> None:
    with Served(ScriptedAnswer("One two three.", chunk=4)) as model:
        config = Config(gateway=config_for({"p0": provider(model)}))
        with perdure.open_sync(f"sqlite:///{tmp_path / 'b.db'}", config=config) as bank:
            assert bank.gateway.has("chat")
            reply = bank.gateway.complete("x")
            assert reply.text == "One two three."
            with bank.gateway.stream("x") as stream:
                words = [delta.text for delta in stream if isinstance(delta, TextDelta)]
                assert len(words) > 2
                assert "".join(words) == stream.reply.text == "One two three."
            with bank.gateway.stream("x") as stream:
                assert stream.finish().text == "One two three."
            assert len(bank.gateway.embed(["a", "b"]).vectors) == 2
            bank.gateway.feedback(reply.outcome, 1.0)
            bank.settle()
            (row,) = bank.gateway.costs("purpose")[:1]
            assert row.calls >= 1


def test_gateways_of_several_loops_one_after_another() -> None:
    config = Config(gateway=GatewayConfig(models=ModelsConfig()))

    async def embed() -> int:
        async with Bank("memory://", config=config) as bank:
            return len((await bank.gateway.embed(["x"])).vectors)

    assert [asyncio.run(embed()) for _ in range(2)] == [1, 1]

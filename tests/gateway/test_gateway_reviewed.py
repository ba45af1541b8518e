"""What a review of the gateway found, so that it stays mended."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from perdure.config import BudgetConfig, PriceConfig
from perdure.core.errors import (
    BadAnswer,
    BudgetReached,
    DeadlineExceeded,
    GatewayError,
    ProviderDown,
)
from perdure.core.messages import user
from perdure.gateway.calls import CallOptions, Request
from perdure.gateway.gateway import Gateway
from perdure.testing import ScriptedAnswer, ScriptedFault, ScriptedModel
from tests.gateway.bodies import chat_body
from tests.gateway.faulty import JSON, Exchange, FaultyServer, chat, respond
from tests.gateway.opened import ONCE, opened, outcomes_of, provider

ALL = (BudgetConfig(name="all", tokens=1_000_000, per="ever"),)
SHORT = Request(messages=(user("x"),), max_tokens=500)
PRICES = msgspec.convert({"p0/m": {"input": 1.0, "output": 10.0}}, dict[str, PriceConfig])


async def spent(gateway: Gateway) -> int:
    await gateway.settle()
    (standing,) = await gateway.budgets()
    assert standing.spending.held_tokens == 0
    return standing.spending.tokens


async def half(exchange: Exchange) -> None:
    """Almost all of an answer, and the connection is reset."""
    body = msgspec.json.encode(chat_body("It was all made."))
    await exchange.head(200, {"content-length": str(len(body)), **JSON})
    await exchange.write(body[:-3])
    await exchange.end("reset")


async def hang(exchange: Exchange) -> None:
    await asyncio.sleep(5)


@pytest.mark.parametrize(
    ("answer", "error"), [(half, ProviderDown), (respond(b'{"choices": [', 200), BadAnswer)]
)
async def test_an_answer_that_was_lost_counts_as_all_that_was_reserved(
    answer: Any, error: type[GatewayError]
) -> None:
    async with FaultyServer() as server:
        server.script(always=answer)
        async with opened(server, backoff=ONCE, budgets=ALL) as gateway:
            with pytest.raises(error):
                await gateway.complete(SHORT)
            (noted,) = await outcomes_of(gateway)
            assert noted.cost is None
            assert await spent(gateway) >= 500


async def test_a_deadline_that_was_too_short_is_no_proof_that_nothing_was_charged() -> None:
    async with FaultyServer() as server:
        server.script(always=hang)
        async with opened(server, budgets=ALL, timeout=30.0) as gateway:
            with pytest.raises(DeadlineExceeded):
                await gateway.complete(SHORT, CallOptions(deadline=2.0))
            (noted,) = await outcomes_of(gateway)
            assert noted.cost is None
            assert await spent(gateway) >= 500


async def test_an_answer_that_takes_too_long_is_not_asked_for_again() -> None:
    async with FaultyServer() as server:
        server.script(always=hang)
        async with opened(server, timeout=2.0) as gateway:
            with pytest.raises(ProviderDown, match="did not begin to answer"):
                await gateway.complete(SHORT)
            assert len(server.requests) == 1


async def test_under_a_budget_an_answer_is_limited_to_what_is_reserved_for_it() -> None:
    async with ScriptedModel("Yes.") as model, opened(model, budgets=ALL) as gateway:
        await gateway.complete("How long may I be?")
        await gateway.complete("And I?", CallOptions(model="p0/m"))
        assert [request.body["max_tokens"] for request in model.requests] == [8_192, 8_192]
    async with ScriptedModel("Yes.") as model, opened(model) as gateway:
        await gateway.complete("How long may I be?")
        assert "max_tokens" not in model.requests[0].body


async def test_thinking_and_schemas_are_reserved_for_too() -> None:
    tight = (BudgetConfig(name="tight", tokens=20_000, per="ever"),)
    async with ScriptedModel("Yes.") as model:
        thinker = provider(model, "messages")
        async with opened(thinker, budgets=tight) as gateway:
            with pytest.raises(BudgetReached):
                # 8,192 for the answer, if the caller does not say, and 24,000 for thinking
                await gateway.complete(Request(messages=SHORT.messages, reasoning="high"))
            schema = {"type": "object", "description": "x" * 80_000}
            with pytest.raises(BudgetReached):
                await gateway.complete(Request(messages=SHORT.messages, shape=schema, max_tokens=9))
        assert model.requests == []


async def test_where_one_model_reaches_a_budget_a_cheaper_one_may_fit() -> None:
    poor = (BudgetConfig(name="poor", dollars=0.000001),)
    prices = {**PRICES, "p1/m": PriceConfig(input=0.0, output=0.0)}
    async with ScriptedModel("Dear.") as dear, ScriptedModel("Free.") as free:
        async with opened(dear, free, budgets=poor, prices=prices) as gateway:
            assert (await gateway.complete(SHORT)).text == "Free."
            with pytest.raises(BudgetReached):
                await gateway.complete(SHORT, CallOptions(model="p0/m"))
        assert dear.requests == []


@pytest.mark.parametrize("claimed", [10**18, -5])
async def test_counts_that_cannot_be_true_are_unknown(claimed: int) -> None:
    body = chat_body("Yes.") | {"usage": {"prompt_tokens": claimed, "completion_tokens": 3}}
    async with FaultyServer() as server:
        server.script(always=respond(body))
        async with opened(server, budgets=ALL, prices=PRICES) as gateway:
            replies = await asyncio.gather(*(gateway.complete(SHORT) for _ in range(5)))
            assert {reply.text for reply in replies} == {"Yes."}
            assert {reply.cost for reply in replies} == {None}
            assert 5 * 500 <= await spent(gateway) < 5 * 600


async def test_a_bad_request_is_no_mark_against_the_model() -> None:
    script: list[ScriptedAnswer | ScriptedFault] = [
        ScriptedFault(status=400, message="No."),
        ScriptedAnswer("Yes."),
    ]
    async with (
        ScriptedModel(script) as model,
        ScriptedModel("Other.") as other,
        opened(model, other) as gateway,
    ):
        assert (await gateway.complete("bad")).text == "Other."
        assert (await gateway.complete("good")).text == "Yes."


async def test_a_refusal_says_by_its_headers_when_to_come_back() -> None:
    told = {"x-ratelimit-remaining-requests": "0", "x-ratelimit-reset-requests": "300ms", **JSON}
    async with FaultyServer() as server:
        server.script(respond({"error": {"message": "Slow down"}}, 429, told), always=chat("Yes."))
        async with opened(server) as gateway:
            start = asyncio.get_running_loop().time()
            assert (await gateway.complete(SHORT)).text == "Yes."
            assert asyncio.get_running_loop().time() - start >= 0.3
            assert len(server.requests) == 2


async def test_nobody_is_left_alone_for_years() -> None:
    for_ever = {"retry-after": "900000000", **JSON}
    async with FaultyServer() as server:
        server.script(always=respond({"error": {"message": "No."}}, 503, for_ever))
        async with opened(server, backoff=ONCE) as gateway:
            with pytest.raises(ProviderDown):
                await gateway.complete(SHORT)
            assert gateway.targets["p0/m"].gate.view().paused <= 3_600


async def test_a_server_of_ones_own_is_spoken_to_as_most_servers_are() -> None:
    async with ScriptedModel("Yes.") as model, opened(model) as gateway:
        await gateway.complete(SHORT)
        assert model.requests[0].body["max_tokens"] == 500

"""What calls leave behind: costs, outcomes, cached answers, budgets; and never a key."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from perdure.config import (
    BudgetConfig,
    GatewayConfig,
    ModelsConfig,
    PriceConfig,
    ProviderConfig,
)
from perdure.core import clock as clocks
from perdure.core.errors import (
    BudgetReached,
    GatewayError,
    InvalidInput,
    StreamBroken,
    Unauthorized,
    Unavailable,
)
from perdure.core.messages import Message, Part, Text, ToolCall, Usage, user
from perdure.gateway import model_status, quality
from perdure.gateway.calls import CallOptions, ModelAnswer, Request, TextDelta
from perdure.gateway.gateway import Gateway
from perdure.storage.middleware import Call, Commit, Handler
from perdure.storage.registry import adapter_for
from perdure.storage.store import Store
from perdure.testing import ManualClock, ScriptedAnswer, ScriptedFault, ScriptedModel
from tests.gateway.bodies import event
from tests.gateway.faulty import FaultyServer, failing, respond, stream
from tests.gateway.opened import (
    ONCE,
    QUICK,
    TOUGH,
    assert_nothing_left,
    opened,
    outcomes_of,
    provider,
)
from tests.growth import assert_linear

WIRES = ("chat", "responses", "messages")
CACHED = CallOptions(cache=True, agent="planner", session="planner/auth")
#: Dollars for a million tokens; a picodollar is a millionth of that for one.
PRICE = PriceConfig(input=2.0, output=10.0, cache_read=0.2, cache_write=2.5)
PRICES = {"p0/m": PRICE, "p1/m": PriceConfig(input=1.0, output=1.0)}
M = 10**6


# Costs ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize("streamed", [False, True])
async def test_the_cost_is_that_of_the_usage_with_cache_reads_and_writes(
    wire: Any, streamed: bool
) -> None:
    writes = 20 if wire == "messages" else 0  # the only format that tells of them
    usage = Usage(input=100, output=10, cache_read=60, cache_write=writes or None)
    async with (
        ScriptedModel(ScriptedAnswer("x", usage=usage)) as model,
        opened(provider(model, wire), prices=PRICES) as gateway,
    ):
        if streamed:
            async with gateway.stream("x") as answer:
                reply = await answer.finish()
        else:
            reply = await gateway.complete("x")
        plain = 100 - 60 - writes
        expected = round((plain * 2 + 60 * 0.2 + writes * 2.5 + 10 * 10) * M)
        assert reply.cost == expected
        (row,) = await gateway.costs("model")
        assert (row.of, row.cost, row.unknown_costs) == ("p0/m", expected, 0)
        assert (row.input, row.output, row.cache_read, row.cache_write) == (100, 10, 60, writes)


async def test_an_unknown_price_is_an_unknown_cost_and_never_zero() -> None:
    async with ScriptedModel() as model, opened(model) as gateway:
        reply = await gateway.complete("x")
        assert reply.cost is None
        (noted,) = await outcomes_of(gateway)
        assert noted.cost is None
        (row,) = await gateway.costs("provider")
        assert (row.of, row.cost, row.unknown_costs, row.calls) == ("p0", None, 1, 1)


async def test_a_provider_that_does_not_count_has_an_unknown_cost() -> None:
    async with (
        ScriptedModel(ScriptedAnswer("x", usage=Usage())) as model,
        opened(model, prices=PRICES) as gateway,
    ):
        reply = await gateway.complete("x")
        assert (reply.usage is None or reply.usage.input is None, reply.cost) == (True, None)


@pytest.mark.parametrize("by", ["agent", "task", "provider", "model", "purpose", "day"])
async def test_costs_by_everything(by: Any) -> None:
    clock = ManualClock()
    answer = ScriptedAnswer("x", usage=Usage(input=10, output=1))
    async with ScriptedModel(answer) as model, opened(model, prices=PRICES, clock=clock) as gateway:
        await gateway.complete("x", CallOptions(agent="a", task="t"))
        await gateway.complete("x", CallOptions(agent="a", task="t"))
        clock.advance("1d")
        await gateway.complete("x", CallOptions(agent="b", task="u", purpose="compress"))
        rows = {row.of: (row.calls, row.cost) for row in await gateway.costs(by)}
        expected: dict[str, Any] = {
            "agent": {"a": 2, "b": 1},
            "task": {"t": 2, "u": 1},
            "provider": {"p0": 3},
            "model": {"p0/m": 3},
            "purpose": {"chat": 2, "compress": 1},
            "day": {"1970-01-12": 2, "1970-01-13": 1},
        }
        assert rows == {of: (n, n * 30 * M) for of, n in expected[by].items()}


# Outcomes -------------------------------------------------------------------------------------


async def test_every_attempt_has_an_outcome_with_all_its_fields() -> None:
    clock = ManualClock()
    usage = Usage(input=50, output=9, cache_read=40, reasoning=4)
    async with FaultyServer() as bad, ScriptedModel(ScriptedAnswer("Fine.", usage=usage)) as good:
        bad.script(always=failing(500))
        ask = CallOptions(agent="planner", session="planner/auth", task="code-review")
        async with opened(bad, good, clock=clock, prices=PRICES) as gateway:
            reply = await gateway.complete("x", ask)
            *failed, answered = sorted(await outcomes_of(gateway), key=lambda o: o.success)
            assert len(failed) == 3
            for each in failed:
                assert (each.provider, each.success, each.error) == ("p0", False, "down")
                assert (each.cost, each.input, each.output, each.quality) == (0, None, None, None)
                assert each.latency > 0
            assert answered.id == reply.outcome
            assert answered.started == clock()
            fields = (answered.agent, answered.session, answered.task, answered.purpose)
            assert fields == ("planner", "planner/auth", "code-review", "chat")
            assert (answered.complexity, answered.provider, answered.model) == (
                "complex",
                "p1",
                "m",
            )
            assert (answered.success, answered.error, answered.cached) == (True, "", False)
            tokens = (answered.input, answered.output, answered.cache_read, answered.reasoning)
            assert tokens == (50, 9, 40, 4)
            assert answered.cost == reply.cost == 59 * M
            assert (answered.fallback, answered.streamed, answered.first_token) == (1, False, None)
            assert answered.latency == reply.latency > 0
            assert (answered.quality, answered.quality_by) == (1.0, "heuristic")


async def test_feedback_of_a_judge_and_of_a_user() -> None:
    async with ScriptedModel() as model, opened(model) as gateway:
        reply = await gateway.complete("x")
        await gateway.feedback(reply.outcome, 0.4, by="judge")
        (noted,) = await outcomes_of(gateway)
        assert (noted.quality, noted.quality_by) == (0.4, "judge")
        await gateway.feedback(reply.outcome, 0.9)
        await gateway.feedback(reply.outcome, 0.1, by="judge")
        (noted,) = await outcomes_of(gateway)
        assert (noted.quality, noted.quality_by) == (0.9, "user")
        with pytest.raises(InvalidInput):
            await gateway.feedback("no-such-outcome", 0.5)
        with pytest.raises(InvalidInput):
            await gateway.feedback(reply.outcome, 7)


async def test_guessing_the_quality_takes_no_time_worth_mentioning() -> None:
    request = Request(messages=(user("x"),))

    def guess(text: str) -> None:
        for _ in range(100):
            quality.heuristic(ModelAnswer(Message("assistant", (Text(text),))), request)

    small = "A plain answer of some length. " * 50
    assert_linear(guess, small, small * 8)


# The cache ------------------------------------------------------------------------------------


@pytest.mark.parametrize("wire", WIRES)
async def test_the_same_request_is_answered_from_the_cache(wire: Any, tmp_path: Path) -> None:
    answer = ScriptedAnswer("Once.", calls=(ToolCall("c", "t", '{"a":1}'),), reasoning="Hm.")
    async with ScriptedModel(answer) as model:
        url = f"sqlite:///{tmp_path / 'cache.db'}"
        async with opened(provider(model, wire), url=url, prices=PRICES) as gateway:
            first = await gateway.complete("x", CACHED)
            for _ in range(3):
                await gateway.complete("x", CACHED)
            again = await gateway.complete("x", CACHED)
            assert (first.cached, again.cached) == (False, True)
            assert (again.cost, again.message, again.finish) == (0, first.message, first.finish)
            # A stream and an answer at once are the same answer.
            async with gateway.stream("x", CACHED) as streamed:
                deltas = [delta async for delta in streamed]
            assert streamed.reply.cached
            assert streamed.reply.message == first.message
            assert "".join(d.text for d in deltas if isinstance(d, TextDelta)) == "Once."
            assert len(model.requests) == 1
            noted = await outcomes_of(gateway)
            assert Counter(each.cached for each in noted) == {True: 5, False: 1}
            assert {each.cost for each in noted if each.cached} == {0}
            assert len({each.id for each in noted}) == 6
        async with opened(provider(model, wire), url=url) as gateway:  # another process
            assert (await gateway.complete("x", CACHED)).cached


async def test_a_streamed_answer_is_cached_too() -> None:
    async with ScriptedModel() as model, opened(model) as gateway:
        async with gateway.stream("x", CACHED) as answer:
            reply = await answer.finish()
        again = await gateway.complete("x", CACHED)
        assert again.cached
        assert again.message.parts == reply.message.parts
        assert len(model.requests) == 1


async def test_another_request_is_another_answer() -> None:
    async with ScriptedModel() as model, opened(model, model) as gateway:
        asked = Request(messages=(user("x"),), temperature=0.5)
        await gateway.complete(asked, CACHED)
        for other in (
            Request(messages=(user("y"),), temperature=0.5),
            Request(messages=(user("x"),), temperature=0.6),
        ):
            assert not (await gateway.complete(other, CACHED)).cached
        for name in ("p0/n", "p1/m"):
            ask = CallOptions(cache=True, model=name)
            assert not (await gateway.complete(asked, ask)).cached
        assert (await gateway.complete(asked, CACHED)).cached


async def test_the_cache_is_off_until_it_is_switched_on() -> None:
    async with ScriptedModel() as model:
        async with opened(model) as gateway:
            for _ in range(2):
                assert not (await gateway.complete("x")).cached
        async with opened(model, cache=True) as gateway:
            await gateway.complete("x")
            assert (await gateway.complete("x")).cached
            assert not (await gateway.complete("x", CallOptions(cache=False))).cached


async def test_cached_answers_expire() -> None:
    clock = ManualClock()
    async with ScriptedModel() as model, opened(model, clock=clock, cache_ttl=60.0) as gateway:
        await gateway.complete("x", CACHED)
        clock.advance(59)
        assert (await gateway.complete("x", CACHED)).cached
        clock.advance(2)
        assert not (await gateway.complete("x", CACHED)).cached


async def test_the_cache_answers_while_the_provider_is_down_and_the_budget_spent() -> None:
    async with ScriptedModel(
        ["Once.", ScriptedFault(status=500), ScriptedFault(status=500)]
    ) as model:
        budgets = (BudgetConfig(name="all", tokens=8_300),)
        async with opened(model, budgets=budgets, backoff=ONCE) as gateway:
            await gateway.complete("x", CACHED)
            with pytest.raises(GatewayError):
                await gateway.complete("another", CACHED)
            assert (await gateway.complete("x", CACHED)).cached
            with pytest.raises(BudgetReached):
                await gateway.complete("x " * 10_000, CACHED)
            assert (await gateway.complete("x", CACHED)).text == "Once."


async def test_what_is_broken_off_or_secret_is_not_cached() -> None:
    key = "plain-looking-key-0001"
    said: list[str | ScriptedAnswer] = [
        "My key is hunter2-hunter2.",
        f"You sent {key}.",
        ScriptedAnswer("cut", finish="length"),
    ]
    async with ScriptedModel([each for each in said for _ in range(2)]) as model:
        config = provider(model, key_variable="K", needs_key=True)
        async with opened(config, environ={"K": key}, mask=_mask) as gateway:
            for number in range(3):
                for _ in range(2):
                    assert not (await gateway.complete(f"x{number}", CACHED)).cached


def _mask(messages: tuple[Message, ...]) -> tuple[Message, ...]:
    def masked(part: Part) -> Part:
        return Text(part.text.replace("hunter2", "*")) if isinstance(part, Text) else part

    return tuple(replace(message, parts=tuple(map(masked, message.parts))) for message in messages)


# Budgets --------------------------------------------------------------------------------------

ASKED = Request(messages=(user("x" * 35),), max_tokens=100)


async def test_a_budget_is_exact_with_200_calls_at_the_same_time(tmp_path: Path) -> None:
    """Room for exactly 50 reservations while all calls are under way."""
    gate = asyncio.Event()

    async def answer(_: Any) -> ScriptedAnswer:
        await gate.wait()
        return ScriptedAnswer("x", usage=Usage(input=5, output=2))

    each = 118  # what the gateway reserves for ASKED: 10 + 8 for the words, 100 for the answer
    budgets = (BudgetConfig(name="all", tokens=50 * each + each // 2, per="ever"),)
    async with ScriptedModel(answer) as model:
        first = provider(model, concurrency=500)
        url = f"sqlite:///{tmp_path / 'b.db'}"
        async with opened(first, budgets=budgets, url=url) as gateway:
            calls = [asyncio.create_task(gateway.complete(ASKED)) for _ in range(200)]
            while len(model.requests) + sum(c.done() for c in calls) < 200:  # noqa: ASYNC110
                await asyncio.sleep(0.01)  # there is no event for both kinds of ends
            (standing,) = await gateway.budgets()
            assert (standing.spending.held, standing.spending.held_tokens) == (50, 50 * each)
            gate.set()
            results = await asyncio.gather(*calls, return_exceptions=True)
            kinds = Counter(type(result).__name__ for result in results)
            assert kinds == {"Reply": 50, "BudgetReached": 150}
            assert len(model.requests) == 50
            await gateway.settle()
            (standing,) = await gateway.budgets()
            pot = standing.spending
            assert (pot.calls, pot.tokens, pot.held, pot.held_tokens) == (50, 350, 0, 0)


async def test_one_call_after_another_uses_a_budget_to_its_end() -> None:
    """What a call took is settled before the next one reserves."""
    answer = ScriptedAnswer("x", usage=Usage(input=5, output=5))
    budgets = (BudgetConfig(name="all", tokens=118 + 10 * 9, per="ever"),)
    async with ScriptedModel(answer) as model, opened(model, budgets=budgets) as gateway:
        for _ in range(10):
            await gateway.complete(ASKED)
        with pytest.raises(BudgetReached, match="'all'") as caught:
            await gateway.complete(ASKED)
        assert caught.value.kind == "budget"
        assert len(model.requests) == 10


async def test_budgets_of_money_by_purpose_and_by_agent() -> None:
    answer = ScriptedAnswer("x", usage=Usage(input=10, output=100))
    budgets = (
        BudgetConfig(name="background", purpose="compress", dollars=0.0030),
        BudgetConfig(name="each", agent="*", dollars=0.0030),
    )
    async with (
        ScriptedModel(answer) as model,
        opened(model, budgets=budgets, prices=PRICES) as gateway,
    ):
        await gateway.complete(ASKED, CallOptions(agent="a"))
        await gateway.complete(ASKED, CallOptions(agent="a"))
        with pytest.raises(BudgetReached, match="'each' of 'a'"):
            await gateway.complete(ASKED, CallOptions(agent="a"))
        await gateway.complete(ASKED, CallOptions(agent="b", purpose="compress"))
        await gateway.complete(ASKED, CallOptions(agent="c", purpose="compress"))
        with pytest.raises(BudgetReached, match="'background'"):
            await gateway.complete(ASKED, CallOptions(agent="d", purpose="compress"))
        await gateway.settle()
        spent = {(s.budget.name, s.agent): s.spending.cost for s in await gateway.budgets()}
        one = 1_020 * M
        assert spent == {
            ("background", ""): 2 * one,
            ("each", "a"): 2 * one,
            ("each", "b"): one,
            ("each", "c"): one,
        }


async def test_a_budget_that_an_answer_of_unknown_length_does_not_fit() -> None:
    budgets = (BudgetConfig(name="all", tokens=1_000),)
    async with ScriptedModel() as model, opened(model, budgets=budgets) as gateway:
        with pytest.raises(BudgetReached, match=r"Set max_tokens: .* 8,192 tokens was assumed"):
            await gateway.complete("x")
        await gateway.complete(Request(messages=(user("x"),), max_tokens=100))
        assert len(model.requests) == 1


async def test_embedding_on_this_machine_counts_on_budgets_for_embedding_alone() -> None:
    budgets = (
        BudgetConfig(name="all", tokens=1),
        BudgetConfig(name="embed", purpose="embed", tokens=1_000),
    )
    async with opened(budgets=budgets, models=ModelsConfig()) as gateway:
        reply = await gateway.embed(["one text of a few words"])
        assert (reply.provider, reply.usage is not None) == ("local", True)
        (noted,) = await outcomes_of(gateway)
        assert noted.input
        spent = {each.budget.name: each.spending.tokens for each in await gateway.budgets()}
        assert spent == {"all": 0, "embed": noted.input}


# Models as they stand -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "model", "listed", "problem"),
    [
        ("p", "b", ["a", "b"], ""),
        ("p", "B", ["a", "b"], ""),
        ("p", "x", ["a", "b"], "The server has no model x; it has a, b."),
        ("p", "x", list("abcdefg"), "The server has no model x; it has a, b, c, d, e …"),
        ("p", "gpt-4", ["a", "gpt-4o", "b"], "The server has no model gpt-4; it has gpt-4o …"),
        ("p", "x", [], ""),
        ("p", "x", ["a\x1b[2J"], "The server has no model x; it has a [2J."),
        ("ollama", "qwen3", ["qwen3:latest"], ""),
        ("ollama", "qwen3:latest", ["qwen3"], ""),
        ("ollama", "qwen3", ["qwen3:8b"], "The server has no model qwen3; it has qwen3:8b."),
        (
            "ollama",
            "x",
            [],
            "The server has no model x; it has none at all. Get it: ollama pull x.",
        ),
        ("anthropic", "claude-x-4", ["claude-x-4-20260101"], ""),
        ("anthropic", "claude-x-latest", ["claude-x-20260101"], ""),
        (
            "anthropic",
            "claude-x",
            ["claude-x-mini"],
            "The server has no model claude-x; it has claude-x-mini.",
        ),
        ("huggingface", "org/m:fastest", ["org/m"], ""),
        ("p", "gemini", ["models/gemini"], ""),
    ],
)
async def test_a_model_that_its_server_does_not_list(
    name: str, model: str, listed: list[str], problem: str
) -> None:
    async with FaultyServer() as server:
        server.script(always=respond({"data": [{"id": each} for each in listed]}))
        config = GatewayConfig(
            providers={name: ProviderConfig(base_url=f"{server.url}/v1", needs_key=False)},
            models=ModelsConfig(chat=(f"{name}/{model}",)),
        )
        async with Store(adapter_for("memory://", clocks.now)) as store:
            gateway = Gateway(store, config, environ={})
            shown = await model_status.models(gateway, reach=True)
            await gateway.close()
        assert [each.problem for each in shown if each.provider == name] == [problem]


async def test_what_local_cannot_do_is_a_problem() -> None:
    models = ModelsConfig(chat=("local/wordllama", "local/foo"), embed=("local/bar",))
    async with opened(models=models) as gateway:
        chatting, other, embedding = await model_status.models(gateway, reach=True)
    assert "does not answer (chat)" in (chatting.problem or "")
    assert "does not answer (chat)" in (other.problem or "")
    assert "no model 'bar'" in (embedding.problem or "")
    async with opened(models=ModelsConfig()) as gateway:
        (embedding,) = await model_status.models(gateway, reach=True)
        assert embedding.problem == ""


async def test_each_server_is_asked_once_for_its_models() -> None:
    async with FaultyServer() as server:
        server.script(always=failing(401, "who are you"))
        models = ModelsConfig(chat=("p0/a", "p0/b", "p0/c"))
        async with opened(server, models=models) as gateway:
            shown = await model_status.models(gateway, reach=True)
        assert server.count == 1
        assert ["none was sent" in (each.problem or "") for each in shown[:3]] == [True] * 3


# Budgets that cannot be kept ------------------------------------------------------------------


async def test_money_without_a_price_cannot_be_kept_to() -> None:
    budgets = (BudgetConfig(name="all", dollars=1.0),)
    async with ScriptedModel() as model, opened(model, budgets=budgets) as gateway:
        with pytest.raises(BudgetReached, match="price of p0/m is unknown"):
            await gateway.complete("x")
        assert not model.requests
        assert_nothing_left(gateway)


async def test_a_day_is_over() -> None:
    clock = ManualClock()
    budgets = (BudgetConfig(name="day", tokens=200),)
    async with ScriptedModel() as model, opened(model, budgets=budgets, clock=clock) as gateway:
        await gateway.complete(ASKED)
        await gateway.complete(ASKED)
        await gateway.settle()
        with pytest.raises(BudgetReached, match="renews"):
            await asyncio.gather(*(gateway.complete(ASKED) for _ in range(10)))
        clock.advance("1d")
        await gateway.complete(ASKED)


@pytest.mark.parametrize("status", [400, 429, 500])
async def test_what_was_refused_costs_nothing(status: int) -> None:
    budgets = (BudgetConfig(name="all", tokens=1_000, dollars=1.0),)
    async with (
        ScriptedModel(ScriptedFault(status=status)) as model,
        opened(model, budgets=budgets, prices=PRICES, backoff=QUICK) as gateway,
    ):
        with pytest.raises(GatewayError):
            await gateway.complete(ASKED)
        await gateway.settle()
        (standing,) = await gateway.budgets()
        pot = standing.spending
        assert (pot.tokens, pot.cost, pot.held_tokens, pot.held_cost) == (0, 0, 0, 0)


async def test_a_broken_stream_counts_as_what_was_sent_and_said() -> None:
    budgets = (BudgetConfig(name="all", tokens=1_000, dollars=1.0),)
    fault = ScriptedFault(how="reset", after=6, answer=ScriptedAnswer("word " * 70, chunk=50))
    async with (
        ScriptedModel(fault) as model,
        opened(model, budgets=budgets, prices=PRICES) as gateway,
    ):
        with pytest.raises(StreamBroken):
            async with gateway.stream(ASKED) as answer:
                await answer.finish()
        await gateway.settle()
        (standing,) = await gateway.budgets()
        pot = standing.spending
        assert 18 < pot.tokens < 118
        assert pot.held_tokens == pot.held_cost == 0
        assert 18 * 2 * M < pot.cost < (18 * 2.5 + 100 * 10) * M


class Flaw:
    """Middleware of a store that cannot be written while it is `on`."""

    def __init__(self) -> None:
        self.on = False

    async def __call__(self, call: Call, handler: Handler) -> Any:
        if self.on and isinstance(call, Commit):
            raise Unavailable("The disk is gone.")
        return await handler(call)


async def test_no_call_is_made_that_cannot_be_reserved_for() -> None:
    flaw = Flaw()
    budgets = (BudgetConfig(name="all", tokens=10_000),)
    async with (
        ScriptedModel() as model,
        opened(model, budgets=budgets, middleware=(flaw,)) as gateway,
    ):
        await gateway.complete(ASKED)
        await gateway.settle()
        flaw.on = True
        with pytest.raises(Unavailable):
            await gateway.complete(ASKED)
        assert len(model.requests) == 1
        assert_nothing_left(gateway)
        flaw.on = False
        await gateway.complete(ASKED)


async def test_an_answer_that_cannot_be_settled_is_given_and_counts_as_reserved() -> None:
    flaw = Flaw()

    def answer(_: Any) -> ScriptedAnswer:
        flaw.on = True
        return ScriptedAnswer("Here.", usage=Usage(input=5, output=5))

    budgets = (BudgetConfig(name="all", tokens=10_000, per="ever"),)
    async with (
        ScriptedModel(answer) as model,
        opened(model, budgets=budgets, middleware=(flaw,)) as gateway,
    ):
        ask = CallOptions(cache=True, deadline=1.0)
        assert (await gateway.complete(ASKED, ask)).text == "Here."
        await asyncio.sleep(0.05)
        flaw.on = False
        await gateway.settle()
        (standing,) = await gateway.budgets()
        assert (standing.spending.tokens, standing.spending.held_tokens) == (0, 118)
        assert len(await outcomes_of(gateway)) == 1  # it was kept until it could be written


# Keys -----------------------------------------------------------------------------------------

KEY = "entirely-unremarkable-0123456789"


async def _echo(exchange: Any) -> None:
    """Says the key back in every way that there is to fail."""
    sent = exchange.received.headers
    key = sent.get("authorization", sent.get("x-api-key", "")).removeprefix("Bearer ")
    assert key == KEY
    await _ECHOES[exchange.received.path.split("/")[1]](key)(exchange)


_ECHOES: dict[str, Any] = {
    "rejected": lambda key: failing(400, f"What is {key}?"),
    "unauthorized": lambda key: failing(401, f"Incorrect API key provided: {key}."),
    "limited": lambda key: failing(429, f"{key} has had enough"),
    "down": lambda key: failing(500, f"trouble with {key}"),
    "plain": lambda key: respond(f"no {key}".encode(), 503, {"content-type": "text/plain"}),
    "moved": lambda key: respond(b"", 302, {"location": f"https://example.com/?key={key}"}),
    "body": lambda key: respond({"error": {"message": f"bad {key}", "code": 400}}),
    "odd": lambda key: respond({"choices": key, "id": key}),
    "event": lambda key: stream(event({"error": {"message": f"bad {key}"}})),
    "unreadable": lambda key: stream(f"data: {{{key}\n\n".encode()),
    "halfway": lambda key: stream(
        event({"choices": [{"index": 0, "delta": {"content": "So"}}]})
        + event({"error": {"message": f"bad {key}"}})
    ),
}


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize("how", _ECHOES)
async def test_a_key_is_never_shown(how: str, wire: Any, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    shown = list[str]()
    async with FaultyServer() as server:
        server.script(always=_echo)
        config = ProviderConfig(
            wire=wire, base_url=f"{server.url}/{how}/v1", key_variable="K", needs_key=True
        )
        async with opened(
            config, environ={"K": KEY}, backoff=ONCE, tripping=TOUGH, cache=True
        ) as gateway:
            for call in (_complete, _stream):
                with pytest.raises(GatewayError) as caught:
                    await call(gateway)
                shown += _everything(caught.value)
            shown += [repr(await model_status.models(gateway, reach=True)), repr(gateway.__dict__)]
            shown += [repr(await outcomes_of(gateway)), repr(await gateway.costs())]
            shown += [repr(vars(target)) for target in gateway.targets.values()]
        assert server.count >= 2
    for record in caplog.records:
        message = record.getMessage()
        # httpcore's own debugging shows the headers of answers as they are, whoever quotes a key
        # there. What was sent it does not show.
        if "receive_response_headers" not in message:
            shown += [message, str(record.exc_text)]
    assert not [text for text in shown if KEY in text]


async def _complete(gateway: Gateway) -> None:
    await gateway.complete("x")


async def _stream(gateway: Gateway) -> None:
    async with gateway.stream("x") as answer:
        await answer.finish()


def _everything(error: BaseException | None) -> list[str]:
    found = list[str]()
    while error is not None:
        found += [str(error), repr(error), repr(error.args), repr(vars(error))]
        found += getattr(error, "__notes__", [])
        error = error.__cause__ or error.__context__
    return found


async def test_a_key_from_the_environment_is_sent_and_read_anew() -> None:
    environ = {"K": "first-key"}
    async with ScriptedModel(key="second-key") as model:
        config = provider(model, key_variable="K", needs_key=True)
        async with opened(config, environ=environ, backoff=ONCE) as gateway:
            with pytest.raises(Unauthorized):
                await gateway.complete("x")
            environ["K"] = "second-key"
            assert (await gateway.complete("x")).text == "Hello."

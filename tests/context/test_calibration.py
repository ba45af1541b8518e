"""A budget means the tokens of the model's provider, where it is known how that counts."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import pytest

from perdure.bank import Bank
from perdure.config import Config, GatewayConfig, ModelsConfig
from perdure.context.context import Context
from perdure.core.errors import BudgetTooSmall
from perdure.core.messages import Usage, assistant
from perdure.core.tokens import TokenScale, count_message, o200k
from perdure.gateway.calls import Request
from perdure.sessions.session import Session
from perdure.testing import ReceivedRequest, ScriptedAnswer, ScriptedModel

BUDGET = 4_000
MODEL = "ours/big"


def text(number: int) -> str:
    return " ".join(
        f"Step {number}.{n}: the queue of worker {n * 7} was drained." for n in range(12)
    )


def counting(factor: Callable[[int], float]) -> Callable[[ReceivedRequest], ScriptedAnswer]:
    """A provider that counts so many tokens for each of ours; by the number of the request."""

    def answer(request: ReceivedRequest) -> ScriptedAnswer:
        said = text(request.number)
        ours = count_message(o200k(), assistant(said))
        theirs = math.ceil(ours * factor(request.number))
        # The name that providers report has a date.
        usage = Usage(input=9, output=theirs)
        return ScriptedAnswer(said, usage=usage, model="big-2026-01-31")

    return answer


async def talk(model: ScriptedModel, turns: int, strategy: str = "gradient") -> list[Context]:
    """What was sent, turn by turn."""
    async with opened(model) as bank:
        session = await bank.session("planner/auth", strategy=strategy, budget=BUDGET)
        return [await turn(bank, session, number) for number in range(turns)]


def opened(model: ScriptedModel) -> Bank:
    gateway = GatewayConfig(
        providers={"ours": model.provider_config()}, models=ModelsConfig(chat=MODEL)
    )
    return Bank("memory://", config=Config(gateway=gateway))


async def turn(bank: Bank, session: Session, number: int) -> Context:
    context = await session.context(f"And then, {number}?", model=MODEL, recall=False)
    reply = await bank.gateway.complete(Request(messages=context.messages))
    await session.append(reply.message, context=context)
    await bank.settle()
    return context


def ours(context: Context) -> int:
    return context.taken + context.prompt_tokens


async def test_a_budget_means_the_tokens_of_the_provider() -> None:
    async with ScriptedModel(counting(lambda _: 1.3)) as model, opened(model) as bank:
        session = await bank.session("planner/auth", budget=BUDGET)
        sent = [await turn(bank, session, number) for number in range(40)]
        assert sent[0].scale == TokenScale()  # nothing was known yet
        assert sent[-1].scale == TokenScale(27)
        assert all(context.tokens <= context.budget == BUDGET for context in sent)
        known = [context for context in sent if context.scale != TokenScale()]
        assert len(known) > 30
        assert max(ours(context) * 1.3 for context in known) <= BUDGET
        assert max(context.tokens for context in known) > BUDGET * 0.7  # and it is used
        # Of another model nothing is known; the same one may be served by others.
        for name, factor in (("ours/other", 20), ("router/ours/big-latest", 27), ("", 20)):
            other = await session.context("And then?", model=name, keep=False)
            assert other.scale.twentieths == factor


async def test_a_provider_that_counts_less_leaves_more_room() -> None:
    async with ScriptedModel(counting(lambda _: 0.7)) as model:
        sent = await talk(model, 40)
    assert all(context.tokens <= BUDGET for context in sent)
    assert max(ours(context) for context in sent) > BUDGET


async def test_what_drifts_a_little_changes_no_window() -> None:
    def drifting(number: int) -> float:
        return 1.25 + 0.02 * math.sin(number / 5)

    async with ScriptedModel(counting(lambda _: 1.27)) as model:
        steady = await talk(model, 60)
    async with ScriptedModel(counting(drifting)) as model:
        drifted = await talk(model, 60)
    assert {each.scale.twentieths for each in drifted} == {20, 26}
    begun = next(n for n, each in enumerate(drifted) if each.scale != TokenScale())
    assert [each.to_chat() for each in drifted[begun:]] == [
        each.to_chat() for each in steady[begun:]
    ]
    pairs = [(a, b) for a, b in itertools.pairwise(drifted) if a.shown.epoch == b.shown.epoch]
    assert len(pairs) > 40
    for before, after in pairs:  # an epoch apart, the prefix is the same
        sent = str(before.to_chat()["messages"][:-2]).rstrip("]")
        assert str(after.to_chat()["messages"]).startswith(sent)


@pytest.mark.parametrize("strategy", ["gradient", "regular"])
async def test_what_was_sent_is_rebuilt_whatever_was_learned_since(strategy: str) -> None:
    async with (
        ScriptedModel(counting(lambda n: 1.1 if n < 20 else 1.6)) as model,
        opened(model) as bank,
    ):
        session = await bank.session("planner/auth", strategy=strategy, budget=BUDGET)
        sent = [await turn(bank, session, number) for number in range(60)]
        assert {each.scale.twentieths for each in sent} == {20, 23, 33}
        for number in (1, 12, 18, 40, 60):
            past = await session.past_context(number)
            assert past.to_messages() == sent[number - 1].to_messages()
            assert past.tokens == sent[number - 1].tokens


async def test_a_turn_that_goes_on_is_rebuilt_too() -> None:
    """Under `regular`, what is shown follows from the budget: it stays while the turn goes on."""
    async with ScriptedModel(counting(lambda _: 1.5)) as model, opened(model) as bank:
        session = await bank.session("planner/auth", strategy="regular", budget=BUDGET)
        for number in range(20):  # nobody says who spoke: nothing is learned
            await session.append([f"And then, {number}?", assistant(text(number))])
        context = await session.context("Go on.", model=MODEL, recall=False)
        call = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
        await session.append({"role": "assistant", "tool_calls": [call]}, context=context)
        await session.append({"role": "tool", "tool_call_id": "c1", "content": "Nothing."})
        other = await bank.session("planner/other")
        for number in range(5):
            await turn(bank, other, number)
        assert (await session.context("Go on.", model=MODEL, keep=False)).scale == TokenScale(31)
        second = await session.context(model=MODEL)
        assert second.scale == TokenScale()
        assert (await session.past_context("T-21.2")).messages == second.messages


async def test_what_is_too_small_is_told_in_the_tokens_of_the_provider() -> None:
    async with ScriptedModel(counting(lambda _: 2.0)) as model, opened(model) as bank:
        session = await bank.session("planner/auth", budget=BUDGET)
        for number in range(4):
            await turn(bank, session, number)
        prompt = "word " * 600
        assert (await session.context(prompt, budget=1_000, keep=False)).tokens <= 1_000
        with pytest.raises(BudgetTooSmall, match="A budget of 1,000 tokens is too small") as caught:
            await session.context(prompt, budget=1_000, model=MODEL, keep=False)
        assert caught.value.needed > 1_200

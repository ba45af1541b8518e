"""How much of a window is for what is recalled, and where it comes from."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from benchmarks.evidence_in_context import standing, text_of
from perdure.bank import Bank
from perdure.context.context import Context
from perdure.context.injections import recall_reserve
from perdure.core.messages import assistant, user
from perdure.core.tokens import o200k
from perdure.sessions.session import Session
from tests.recall.tied import bank_with, memory_layer

_PLACES = ("shed", "attic", "cellar", "garage", "garden", "library", "harbour", "kitchen")


@pytest.fixture
async def session() -> AsyncIterator[Session]:
    """A talk in which many lines are about one thing, and all of them too much for its windows."""
    async with bank_with() as bank:
        yield await _filled(bank)


async def _filled(bank: Bank, turns: int = 240) -> Session:
    session = await bank.session("planner/house")
    for number in range(turns):
        where = _PLACES[number % len(_PLACES)]
        said = f"The ladder number {number} was last seen in the {where}, painted green."
        await session.append([user(said), assistant("I see.")])
    await bank.settle()
    return session


def test_the_room_grows_with_the_budget_but_less_and_less() -> None:
    budgets = (1_000, 2_000, 4_000, 8_000, 16_000, 60_000, 200_000, 1_000_000)
    rooms = [recall_reserve(budget, 30, 3_000) for budget in budgets]
    shares = [room / budget for room, budget in zip(rooms, budgets, strict=True)]
    assert rooms == sorted(rooms)
    assert shares == sorted(shares, reverse=True)
    assert 0.45 <= shares[0] <= 0.6
    assert rooms[-1] == 3_000
    assert recall_reserve(600, 580, 3_000) <= 12


async def test_more_is_recalled_in_a_larger_window(session: Session) -> None:
    found = dict[int, int]()
    for budget in (1_000, 2_000, 4_000, 8_000):
        context = await session.context("Where are the green ladders?", budget=budget, keep=False)
        assert context.tokens <= budget
        assert context.injection is not None
        found[budget] = memory_layer(context.injection.text).count("\n> User: The ladder")
    assert found[1_000] >= 6
    assert found[2_000] >= 12
    assert found[4_000] >= 24
    assert found[8_000] >= 40


async def test_questions_that_are_not_written_get_the_same_room(session: Session) -> None:
    """The epoch of the first one sets it aside for all of them."""
    asked = [f"Where is the green ladder number {number}?" for number in range(5, 225, 20)]
    for question in asked:
        alone = await session.context(question, budget=2_000, keep=False)
        assert alone.injection is not None
    for number, question in zip(range(5, 225, 20), asked, strict=True):
        context = await session.context(question, budget=2_000)
        assert context.injection is not None
        assert context.injection.tokens > 600
        assert standing([f"The ladder number {number} was last seen in the"], _text(context)) == 1
    assert len(await session.epochs()) == 1


async def test_later_prompts_of_a_window_recall_less_instead_of_planning_it_anew() -> None:
    before: list[object] = []
    epoch = prompts = 0
    sizes = list[int]()
    async with bank_with() as bank:
        session = await _filled(bank, 700)
        for number in range(5, 65, 5):
            question = f"Where is the green ladder {number}?"
            context = await session.context(question, budget=16_000)
            assert context.tokens <= 16_000
            assert context.injection is not None
            sent = context.to_chat()["messages"]
            if context.shown.epoch == epoch:
                assert sent[: len(before)] == before
            before, epoch, prompts = sent, context.shown.epoch, prompts + 1
            sizes.append(context.injection.tokens)
            await session.append(assistant("In the shed."), context=context)
    assert epoch <= prompts / 2
    assert max(sizes) > 1_200
    assert min(sizes) < 600


async def test_what_is_injected_stands_once_before_a_prompt_that_goes_on() -> None:
    """A prompt that was not answered yet, and what is added to it, are one turn."""
    async with bank_with() as bank:
        session = await _filled(bank)
        await session.append("I looked for a ladder.")
        context = await session.context("Where is the green ladder 5?", budget=1_000, keep=False)
        text = _text(context)
        assert text.count("<perdure-memory>") == 1
        assert text.count(f"<T-{context.turn}-R>") == 1
        assert text.index("<perdure-memory>") < text.index("I looked for a ladder.")


def test_evidence_stands_in_a_text_if_its_words_do() -> None:
    said = "I went to a support group yesterday, and it was powerful."
    assert standing([said], f"T-3.1:\n> User (Ann): {said.upper()}") == 1
    assert standing([said], "T-3: Ann went to a support group") == 0
    assert standing([said, "Oh no!"], f"… {said} … oh, NO …") == 1
    assert standing([said, "Oh no!"], said) == 0.5


def _text(context: Context) -> str:
    return text_of(context.to_messages()["messages"])


@pytest.mark.parametrize(("budget", "loads"), [(6_000, False), (30_000, True), (100_000, True)])
async def test_a_large_reference_layer_is_loaded_where_there_is_room(
    budget: int, loads: bool
) -> None:
    lines, number = list[str](), 0
    while o200k().count("\n".join(lines)) < 4_800:
        lines.append(f"Rule {number}: refresh tokens of tenant {number} are rotated after use.")
        number += 1
    text = "---\ntitle: OAuth\ntriggers: [oauth]\n---\n" + "\n".join(lines)
    async with bank_with() as bank:
        session = await _filled(bank)
        await bank.references.add(text, name="oauth")
        await bank.settle()
        context = await session.context("How does OAuth work here?", budget=budget)
        assert context.tokens <= budget
        assert (lines[-1] in _text(context)) is loads
        assert "oauth" in _text(context).casefold()

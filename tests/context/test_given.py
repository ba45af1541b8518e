"""What callers give to a context: taken if it can be meant, or refused in one clear sentence."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

import perdure
from perdure.bank import Bank
from perdure.core.errors import BudgetTooSmall, InvalidInput
from perdure.core.messages import Media, Message, Text, user
from perdure.sessions.session import Session
from perdure.sessions.validation import budget_in, count_in, prompt_in

PIXEL = "data:image/png;base64,iVBORw0KGgo="
IMAGE = {"type": "image_url", "image_url": {"url": PIXEL}}


@pytest.fixture
async def bank() -> AsyncIterator[Bank]:
    async with perdure.open("memory://") as bank:
        yield bank


@pytest.fixture
async def session(bank: Bank) -> Session:
    return await bank.session("planner/auth", budget=6_000)


@pytest.mark.parametrize("budget", ["abc", "600", 600.5, True, [], b"600"])
async def test_a_budget_is_a_whole_number(session: Session, budget: Any) -> None:
    for call in (session.context("Hi.", budget=budget), session.change_strategy(budget=budget)):
        with pytest.raises(InvalidInput, match=r"is no budget\. Give tokens as a whole number"):
            await call
    assert session.record.budget == 6_000
    assert (await session.context("Hi.")).budget == 6_000


@pytest.mark.parametrize("budget", [499, 0, -1])
async def test_a_shorter_prompt_does_not_help_a_budget_below_the_least(
    session: Session, budget: int
) -> None:
    with pytest.raises(BudgetTooSmall, match=r"500 are needed\. Give 500 or more\.$"):
        await session.context("Hi.", budget=budget)
    with pytest.raises(BudgetTooSmall, match=r"Give 500 or more\.$"):
        await session.change_strategy(budget=budget)
    with pytest.raises(BudgetTooSmall, match="Give a larger budget, or a shorter prompt"):
        await session.context("many words " * 5_000)
    assert budget_in(500) == 500


async def test_none_is_nothing(session: Session) -> None:
    plain = await session.context("Hi.")
    same = await session.context("Hi.", system=None, model=None, tools=None, budget=None)
    assert same.to_messages() == plain.to_messages()


@pytest.mark.parametrize("given", [[{"type": "text", "text": "You plan."}], 5, b"x", {}])
@pytest.mark.parametrize("name", ["system", "model"])
async def test_system_and_model_are_texts(session: Session, name: str, given: Any) -> None:
    with pytest.raises(InvalidInput, match=f"Give {name} as text"):
        await session.context("Hi.", **{name: given})
    context = await session.context("Hi.", system="You plan.", model="some-model")  # as if not
    assert (await session.append("Yes?", context=context)) is not None


@pytest.mark.parametrize("prompt", ["", "   ", "\n\t", [], (), [""], [user(" "), user("")], {}])
async def test_a_prompt_needs_words(session: Session, prompt: Any) -> None:
    words = "needs words" if prompt != {} else "messages"
    with pytest.raises(InvalidInput, match=words):
        await session.context(prompt)
    with pytest.raises(InvalidInput):
        await session.context({"role": "user", "content": ""})


async def test_an_image_needs_none(session: Session) -> None:
    context = await session.context([IMAGE])
    assert [type(part) for part in context.prompt[0].parts] == [Media]


@pytest.mark.parametrize(
    "prompt",
    [
        [{"type": "text", "text": "What is this?"}, IMAGE],
        ["What is this?", IMAGE],
        [
            {"type": "input_text", "text": "What is this?"},
            {"type": "input_image", "image_url": PIXEL},
        ],
        (Text("What is this?"), Media("image/png", b"\x89PNG\r\n\x1a\n")),
        [
            {"type": "text", "text": "What is this?"},
            {
                "type": "image",
                "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="},
            },
        ],
    ],
)
async def test_parts_are_one_message(session: Session, prompt: Any) -> None:
    context = await session.context(prompt)
    (message,) = context.prompt
    assert message.role == "user"
    assert message.text == "What is this?"
    (media,) = (part for part in message.parts if isinstance(part, Media))
    assert media.data == b"\x89PNG\r\n\x1a\n"
    turn = await session.append({"role": "assistant", "content": "A dot."}, context=context)
    assert isinstance(turn, perdure.Turn)
    assert turn.prompt == "What is this?"


def test_a_part_alone_and_texts_alone() -> None:
    assert prompt_in({"type": "text", "text": "Hi."})[0].text == "Hi."
    assert prompt_in(Text("Hi.")) == (Message("user", (Text("Hi."),)),)
    assert prompt_in(["Hi.", "There."]) == (user("Hi."), user("There."))
    assert prompt_in(None) == ()


@pytest.mark.parametrize("role", ["system", "developer"])
async def test_a_system_message_is_no_prompt(session: Session, role: str) -> None:
    prompt = [{"role": role, "content": "You plan."}, {"role": "user", "content": "Hi."}]
    with pytest.raises(InvalidInput, match="Give its words as system="):
        await session.context(prompt)


async def test_nobody_else_speaks_in_a_prompt(session: Session) -> None:
    for item in (
        {"role": "assistant", "content": "Hi."},
        {"type": "function_call_output", "call_id": "c1", "output": "ok"},
    ):
        with pytest.raises(InvalidInput, match="A prompt is what a user says"):
            await session.context([item])


async def test_half_a_character_is_replaced_as_the_log_does_it(session: Session) -> None:
    context = await session.context("cut \ud83d here", system="so \udc00 too")
    for body in (context.to_chat(), context.to_responses(), context.to_messages()):
        sent = json.dumps(body, ensure_ascii=False).encode().decode()
        assert "cut \ufffd here" in sent
        assert "so \ufffd too" in sent
    turn = await session.append({"role": "assistant", "content": "Yes."}, context=context)
    assert isinstance(turn, perdure.Turn)
    assert turn.prompt == "cut \ufffd here"
    assert (await session.past_context("T-1")).to_chat() == context.to_chat()


@pytest.mark.parametrize("given", [0, -1, True, "2", 1.5, None])
async def test_some_turns_are_at_least_one(session: Session, given: Any) -> None:
    with pytest.raises(InvalidInput, match=r"turns cannot be undone\. Give 1 or more"):
        count_in(given, "undone")
    with pytest.raises(InvalidInput, match="turns cannot be read"):
        await session.turns(given)

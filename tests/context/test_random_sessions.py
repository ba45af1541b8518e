"""Random sessions through the product itself: budget, prefix, validity, the past.

Tokens are counted from what is sent, not from what the context says of itself.
"""

from __future__ import annotations

import json
import os
import random
from typing import Any

import pytest

import perdure
from perdure.bank import Bank
from perdure.context.context import Context
from perdure.context.history_tools import HISTORY_TOOLS
from perdure.core.messages import (
    Message,
    Part,
    Reasoning,
    Text,
    ToolCall,
    ToolResult,
    assistant,
    user,
)
from perdure.core.tokens import count_messages, o200k
from perdure.sessions.session import Session
from perdure.wire import codec
from tests.context.test_sessions import WIRES, blocks, body_of

BUDGETS = (500, 700, 1_000, 2_000, 4_000, 9_000)
WORDS = (
    *("alpha", "beta", "src/app/m.py", "ValueError", "decided", "42", "retry", "config.toml"),
    *("<T-3-R>", "</T-1-C>", "< /perdure-note>", "function", "née", "日本語"),
)
#: `make fuzz` takes more.
SEEDS = 1_200 if os.environ.get("HYPOTHESIS_PROFILE") == "fuzz" else 12
_ASKED: dict[str, Any] = {"model": "m", "tools": HISTORY_TOOLS}


class Life:
    """One session's life, checked at each request."""

    def __init__(self, seed: int, bank: Bank, session: Session, budget: int) -> None:
        self.random = random.Random(seed)
        self.bank, self.session, self.budget = bank, session, budget
        self.sent = dict[str, list[list[str]]]()
        self.last: tuple[int, list[list[str]]] = (0, [[], [], []])

    def words(self, *counts: int) -> str:
        return " ".join(self.random.choice(WORDS) for _ in range(self.random.choice(counts)))

    def reply(self, *parts: Part) -> Message:
        thought = (Reasoning(text=self.words(8)),) if self.random.random() < 0.4 else ()
        said = (Text(self.words(3, 40, 300)),) if self.random.random() < 0.6 or not parts else ()
        return Message("assistant", (*thought, *said, *parts), model="m")

    async def check(self, context: Context, place: str) -> None:
        assert count_messages(o200k(), context.messages) <= context.tokens <= self.budget
        made = [blocks(context, wire) for wire in WIRES]
        for wire in WIRES:
            assert codec(wire).violations(body_of(context, wire)) == []
        epoch, before = self.last
        if epoch == context.shown.epoch:
            for old, new in zip(before, made, strict=True):
                assert new[: len(old)] == old
        self.last = context.shown.epoch, made
        self.sent[place] = made

    async def meddle(self) -> None:
        turn = (await self.session.head()).turn
        chance, level = self.random.random(), self.random.choice("RSCT")
        if chance < 0.1:
            await self.session.run_tool("board_post", {"text": self.words(5, 40, 200)})
        elif chance < 0.2 and turn > 1:
            id = f"T-{self.random.randint(1, turn - 1)}"
            now = self.random.random() < 0.5
            asked = {"id": id, "level": level, "now": now}
            await self.session.run_tool("history_set_fidelity", asked)
        elif chance < 0.3 and turn:
            id = f"T-{self.random.randint(1, turn)}"
            await self.session.run_tool("board_pull", {"id": id, "level": level})
        elif chance < 0.4 and turn:
            await self.session.append([user(self.words(5)), assistant(self.words(30))])

    async def turn(self, number: int) -> None:
        await self.meddle()
        await self.bank.settle()  # so that a seed has the same life every time
        context = await self.session.context(self.words(1, 5, 30, 100), **_ASKED)
        turn, round = context.turn, 1
        await self.check(context, f"T-{turn}.{round}")
        for step in range(self.random.choice([0, 0, 1, 2, 6])):
            ids = [f"k{number}_{step}_{at}" for at in range(self.random.choice([1, 1, 3]))]
            calls = [ToolCall(id, "sh", json.dumps({"c": self.words(3, 60)})) for id in ids]
            results = [ToolResult(id, (Text(self.words(3, 60, 900)),)) for id in ids]
            said = [self.reply(*calls), Message("tool", tuple(results))]
            await self.session.append(said, context=context)
            round += 1
            context = await self.session.context(**_ASKED)
            await self.check(context, f"T-{turn}.{round}")
        await self.session.append(self.reply(), context=context)


async def live_through(seed: int) -> None:
    async with perdure.open("memory://") as bank:
        budget = random.Random(seed).choice(BUDGETS)
        session = await bank.session("planner/auth", budget=budget)
        life = Life(seed, bank, session, budget)
        try:
            for number in range(life.random.randint(3, 14)):
                await life.turn(number)
        except perdure.BudgetTooSmall:
            assert budget <= 1_000
        other = await bank.session(session.name)
        for place, made in life.sent.items():
            past = await other.past_context(place)
            assert [blocks(past, wire) for wire in WIRES] == made, place


@pytest.mark.repeated
@pytest.mark.parametrize("first", range(12))
async def test_random_sessions(first: int) -> None:
    for seed in range(first, SEEDS, 12):
        await live_through(seed)


async def test_a_long_prompt_that_was_answered_makes_way_for_the_next() -> None:
    """What a prompt takes cannot be cut: its turn goes down instead of being sent raw."""
    await live_through(145)

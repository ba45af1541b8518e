"""Whatever can be said is kept: histories made by hypothesis, and very long ones."""

from __future__ import annotations

import itertools
import os
from collections.abc import AsyncIterator
from contextvars import ContextVar
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.bank import Bank
from perdure.config import Config, SecretsConfig
from perdure.core.messages import Message, Role
from perdure.core.turns import rounds
from perdure.history.log_records import TurnPiece
from perdure.sessions.session import Session
from perdure.storage.middleware import Call, Find, Get, Handler
from tests.history.conftest import MakeBank, config_for
from tests.history.talk import chat, numbers, one, problems, said, whole
from tests.wire.strategies import messages as messages_of

_ROLES: tuple[Role, ...] = ("system", "developer", "user", "assistant", "tool", "event")
_HISTORIES = st.lists(st.one_of([messages_of(role) for role in _ROLES]), min_size=1, max_size=12)
_names = (f"a/{number}" for number in itertools.count())


@pytest.fixture
async def unmasked(store_url: str, tmp_path: Path) -> AsyncIterator[Bank]:
    """Text in these histories is as strange as it gets: what looks like a secret is none."""
    config = config_for(tmp_path)
    config = Config(artifacts=config.artifacts, secrets=SecretsConfig(mask=False))
    async with Bank(store_url, config=config) as bank:
        yield bank


@pytest.mark.repeated
@given(messages=_HISTORIES, cuts=st.sets(st.integers(1, 11)))
async def test_any_history_is_kept(unmasked: Bank, messages: list[Message], cuts: set[int]) -> None:
    """Append in any split, read back: the same messages, in the turns and rounds of the whole."""
    bank, name = unmasked, next(_names)
    session = await bank.session(name)
    edges = sorted({0, len(messages), *(cut for cut in cuts if cut < len(messages))})
    for start, end in pairwise(edges):
        await session.append(messages[start:end])
    assert await said(session) == messages
    found = [
        (turn.number, round.number, list(round.messages))
        for turn in await whole(session)
        for round in turn.rounds
    ]
    assert found == rounds(messages)
    await bank.jobs.settle_idle()
    assert all(turn.tokens is not None for turn in await whole(session))
    # The artifacts that these histories refer to never were.
    broken = [each for each in await problems(bank) if "which is missing" not in each[1]]
    assert broken == []
    await bank.forget(name)
    assert await bank.collection(TurnPiece).query().count() == 0


# A very long one ------------------------------------------------------------------------------


_weighed = ContextVar("weighed", default=False)


class _Weight:
    """Middleware that weighs what is read, apart from what is read in the background."""

    def __init__(self) -> None:
        self.rows = 0

    async def __call__(self, call: Call, proceed: Handler) -> object:
        answer = await proceed(call)
        if isinstance(call, Get | Find) and _weighed.get():
            self.rows += len(answer)
        return answer

    def taken(self) -> int:
        rows, self.rows = self.rows, 0
        return rows


async def build(session: Session, turns: int) -> None:
    for start in range(1, turns + 1, 1_000):
        end = min(start + 1_000, turns + 1)
        await session.append(
            [message for number in range(start, end) for message in chat(number)], count=True
        )


async def assert_long(make_bank: MakeBank, turns: int) -> None:
    weight = _Weight()
    bank = await make_bank(middleware=(weight,))
    session = await bank.session("a/b")
    await build(session, turns)
    _weighed.set(True)

    page = await session.turns()
    assert weight.rows >= 20
    assert numbers(page) == list(range(turns - 19, turns + 1))
    assert page[0].messages == tuple(chat(turns - 19))
    assert weight.taken() <= 300  # however long it is
    middle = await session.turn(turns // 2)
    assert middle.messages == tuple(chat(turns // 2))
    assert middle.tokens is not None
    assert weight.taken() <= 300
    assert numbers(await session.turns(before=turns // 2)) == list(
        range(turns // 2 - 20, turns // 2)
    )
    weight.taken()

    fork = await session.fork("a/fork", at=turns // 2)
    assert weight.taken() <= 300
    assert one(await fork.append(chat(7))).number == turns // 2 + 1
    assert numbers(await fork.turns(2)) == [turns // 2, turns // 2 + 1]
    assert (await fork.turn(3)).messages == tuple(chat(3))

    assert one(await session.append(chat(turns + 1))).number == turns + 1
    assert await problems(bank) == []
    again = await make_bank()
    (info, _) = sorted(await again.sessions(), key=lambda each: each.name)
    assert (info.turns, info.messages) == (turns + 1, 2 * turns + 2)


@pytest.mark.parametrize("store_url", ["sqlite"], indirect=True)
async def test_a_long_session(make_bank: MakeBank) -> None:
    await assert_long(make_bank, 5_000)


@pytest.mark.repeated
@pytest.mark.skipif(
    os.environ.get("HYPOTHESIS_PROFILE") != "fuzz",
    reason="needs HYPOTHESIS_PROFILE=fuzz: `make fuzz` runs it",
)
@pytest.mark.parametrize("store_url", ["sqlite"], indirect=True)
async def test_a_session_of_a_hundred_thousand_turns(make_bank: MakeBank, tmp_path: Path) -> None:
    await assert_long(make_bank, 100_000)

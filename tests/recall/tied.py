"""Banks that recall: what the tests of prompts, tools and commands talk to."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from perdure.bank import Bank
from perdure.config import Config
from perdure.core.messages import assistant, user
from perdure.recall.recall import Recall
from perdure.sessions.session import Session
from tests.patience import patient

#: Words that nothing is to be found by.
SMALL_TALK = "Roses want water and sun. "


@asynccontextmanager
async def bank_with(url: str = "memory://", **settings: Any) -> AsyncIterator[Bank]:
    """An open bank with these settings of recall."""
    config = Config(recall=patient(**settings))
    async with Bank(url, config=config) as bank:
        yield bank


def recall_of(bank: Bank) -> Recall:
    recall = bank.services.recall
    assert recall is not None
    return recall


async def talk(session: Session, turns: int, words: int = 40) -> None:
    """Let some turns go by in which nothing is said."""
    for number in range(turns):
        await session.append([user(f"And in week {number}?"), assistant(SMALL_TALK * (words // 5))])


async def remember(session: Session, said: str, answer: str = "I see.") -> str:
    """Say something; returns its turn's id."""
    turn = await session.append([user(said), assistant(answer)])
    assert not isinstance(turn, list)
    return turn.id


def memory_layer(text: str) -> str:
    """What stands in the memory layer of an injection."""
    return text.partition("<perdure-memory>")[2].partition("</perdure-memory>")[0].strip()


def without_time(value: Any) -> Any:
    return msgspec.structs.replace(value, took_ms=0.0, steps=())

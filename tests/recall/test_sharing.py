"""Who else may see a session."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from perdure.bank import Bank
from perdure.config import Config
from perdure.core.errors import InvalidInput
from perdure.core.messages import assistant, user
from perdure.recall.scoping.scope import Scopes
from perdure.recall.sharing import Share, Sharing
from perdure.recall.values import Question
from perdure.sessions.session import Session
from tests.conftest import BACKENDS

pytestmark = pytest.mark.parametrize("store_url", BACKENDS, indirect=True)


@pytest.fixture
async def bank(store_url: str, tmp_path: Path) -> AsyncIterator[Bank]:
    async with Bank(store_url, config=Config()) as bank:
        yield bank


async def _said(bank: Bank, name: str) -> Session:
    session = await bank.session(name)
    await session.append([user("What is it?"), assistant("It is this.")])
    return session


async def _sees(bank: Bank, asking: Session, other: str, turn: int = 1) -> bool:
    question = Question(text="", record=asking.record, head=await asking.head(), moment=0)
    await bank.index.catch_up(asking.record)
    return (await Scopes(bank.store, bank.index).of(question)).shows(other, turn)


async def test_it_is_shared_with_some_or_with_all(bank: Bank) -> None:
    ours = await _said(bank, "ann/a")
    bob, cy = await _said(bank, "bob/a"), await _said(bank, "cy/a")
    assert await ours.shared_with() == []
    assert not await _sees(bank, bob, "ann/a")
    await ours.share("bob")
    await ours.share("bob")
    assert await ours.shared_with() == ["bob"]
    assert await _sees(bank, bob, "ann/a")
    assert not await _sees(bank, cy, "ann/a")
    await ours.share("*")
    assert await ours.shared_with() == ["*", "bob"]
    assert await _sees(bank, cy, "ann/a")
    assert not await _sees(bank, ours, "bob/a")


async def test_unsharing_holds_at_once_wherever_the_bank_is_open(
    bank: Bank, store_url: str
) -> None:
    ours = await _said(bank, "ann/a")
    theirs = bank if store_url.startswith("memory") else Bank(store_url, config=Config())
    await theirs.open()
    try:
        bob = await _said(theirs, "bob/a")
        for _ in range(3):
            await ours.share("bob", "cy")
            assert await _sees(theirs, bob, "ann/a")
            await ours.unshare("bob")
            assert not await _sees(theirs, bob, "ann/a")
            assert await ours.shared_with() == ["cy"]
        late = await _said(bank, "ann/late")
        await late.share("*")
        assert await _sees(theirs, bob, "ann/late")
    finally:
        await theirs.close()


async def test_all_of_it_is_taken_back_if_one_says_so(bank: Bank) -> None:
    ours = await _said(bank, "ann/a")
    await ours.unshare_all()
    await ours.share("bob", "cy", "*")
    await ours.unshare_all()
    assert await ours.shared_with() == []


async def test_a_list_of_nobody_means_neither_all_nor_nobody(bank: Bank) -> None:
    ours = await _said(bank, "ann/a")
    await ours.share("bob", "cy")
    for change, hint in ((ours.share, "'*' is everybody"), (ours.unshare, "unshare_all()")):
        with pytest.raises(InvalidInput, match="No agent is named, and nothing was changed") as no:
            await change(*[])
        assert hint in str(no.value)
    assert await ours.shared_with() == ["bob", "cy"]


async def test_nobody_is_left_out_of_everybody(bank: Bank) -> None:
    ours = await _said(bank, "ann/a")
    await ours.share("*", "bob")
    with pytest.raises(InvalidInput, match="shared with everybody"):
        await ours.unshare("bob")
    assert await ours.shared_with() == ["*", "bob"]
    await ours.unshare("*")
    assert await ours.shared_with() == ["bob"]


@pytest.mark.parametrize("agent", ["ann", "bob/a", "", " all", "a#b", None, ["bob", "cy"], 123])
async def test_what_is_no_other_agent_is_refused(bank: Bank, agent: Any) -> None:
    ours = await _said(bank, "ann/a")
    with pytest.raises(InvalidInput):
        await ours.share("cy", agent)
    assert await ours.shared_with() == []


@pytest.mark.parametrize("agent", [None, ["bob", "cy"], 123, b"bob"])
async def test_an_agent_is_named_by_a_text(bank: Bank, agent: Any) -> None:
    ours = await _said(bank, "ann/a")
    await ours.share("bob")
    for change in (ours.share, ours.unshare):
        with pytest.raises(InvalidInput) as refused:
            await change(agent)
        assert f"{agent!r} cannot be an agent. Give the agent's name as" in str(refused.value)
    assert await ours.shared_with() == ["bob"]


async def test_a_fork_shares_its_own_turns(bank: Bank) -> None:
    root = await _said(bank, "ann/root")
    fork = await root.fork("ann/fork")
    await fork.append([user("And?"), assistant("Done.")])
    await fork.append([user("No."), assistant("Pity.")])
    await fork.undo()
    bob = await _said(bank, "bob/a")
    await fork.share("bob")
    assert await _sees(bank, bob, "ann/fork", 2)
    assert not await _sees(bank, bob, "ann/fork", 3)
    assert not await _sees(bank, bob, "ann/root", 1)
    await root.share("bob")
    assert await _sees(bank, bob, "ann/root", 1)


async def test_forgetting_reaches_shares(bank: Bank) -> None:
    ours, other = await _said(bank, "ann/a"), await _said(bank, "ann/b")
    await _said(bank, "bob/a")
    await ours.share("bob", "*")
    await other.share("bob", "cy")
    await bank.forget("ann/a")
    assert await Sharing(bank.store).shared_with("ann/a") == []
    again = await _said(bank, "ann/a")
    assert await again.shared_with() == []
    await bank.forget_agent("bob")
    assert await other.shared_with() == ["cy"]
    await bank.forget_agent("ann")
    assert await bank.collection(Share).query().count() == 0


async def test_a_session_that_is_gone_is_not_shared(bank: Bank) -> None:
    ours = await _said(bank, "ann/a")
    await bank.forget("ann/a")
    with pytest.raises(InvalidInput, match="gone"):
        await ours.share("bob")
    assert await bank.collection(Share).query().count() == 0


async def test_an_agent_called_like_everybody_is_one(bank: Bank) -> None:
    ours, star = await _said(bank, "ann/a"), await _said(bank, "*/a")
    assert not await _sees(bank, star, "ann/a")
    await ours.share("bob")
    assert not await _sees(bank, star, "ann/a")

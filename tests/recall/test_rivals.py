"""Of memories that contradict each other, the one that holds comes right before the rest."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from perdure.bank import Bank
from perdure.core.messages import assistant, user
from perdure.recall.memories.contradictions import in_reading_order as together
from perdure.recall.values import Candidate, Shown
from perdure.sessions.session import Session
from tests.recall.asked import candidate
from tests.recall.tied import bank_with, memory_layer

ASKED = "Which is the staging port?"


def _ranked(*keys: str) -> list[Candidate]:
    return [
        candidate(n, kind="memory", key=key, score=1 - n / 10)
        for n, key in enumerate(keys, start=1)
    ]


def _ordered(candidates: Sequence[Candidate], **behind: str) -> list[str]:
    """`behind`: by the keys without their hyphens."""
    texts = {
        each.place: Shown("R", "…", 1, behind=behind.get(each.key.replace("-", ""), ""))
        for each in candidates
    }
    return [each.key for each in together(candidates, texts)]


def test_what_holds_stands_right_before_the_rest() -> None:
    ranked = _ranked("M-1", "M-9", "M-2", "M-8", "M-3")
    assert _ordered(ranked) == ["M-1", "M-9", "M-2", "M-8", "M-3"]
    assert _ordered(ranked, M1="M-2") == ["M-2", "M-1", "M-9", "M-8", "M-3"]
    assert _ordered(ranked, M2="M-1") == ["M-1", "M-2", "M-9", "M-8", "M-3"]
    assert _ordered(ranked, M1="M-2", M3="M-2") == ["M-2", "M-1", "M-3", "M-9", "M-8"]
    assert _ordered(ranked, M1="M-2", M2="M-3") == ["M-3", "M-2", "M-1", "M-9", "M-8"]
    assert _ordered(ranked, M1="M-77") == ["M-1", "M-9", "M-2", "M-8", "M-3"]


def test_pinned_between_two_looks_nothing_is_lost() -> None:
    ranked = _ranked("M-1", "M-2", "M-3")
    assert sorted(_ordered(ranked, M1="M-2", M2="M-1")) == ["M-1", "M-2", "M-3"]


def test_what_holds_is_as_likely_as_what_it_contradicts() -> None:
    ranked = _ranked("M-1", "M-9", "M-2")
    texts = {ranked[0].place: Shown("R", "…", 1, behind="M-2")}
    first, second, _ = together(ranked, texts)
    assert (first.key, first.score) == ("M-2", second.score)


async def _keys(session: Session, *, judged: bool) -> list[str]:
    found = await session.recall(ASKED, deadline=30, judged=judged)
    return [hit.key for hit in found.hits if hit.kind == "memory"]


async def _known(session: Session) -> list[str]:
    """The memories beside a prompt."""
    context = await session.context(ASKED)
    text = "" if context.injection is None else memory_layer(context.injection.text)
    return [line for line in text.splitlines() if line.startswith("- M-")]


async def _contradicted(bank: Bank) -> Session:
    session = await bank.session("planner/auth")
    await session.append([user("Hello."), assistant("Hi.")])
    await bank.memories.add("planner", "The staging port is 8123.")
    await bank.memories.add("planner", "The staging port is 9000.", tags=["ops", "net", "later"])
    await bank.memories.contradict(["planner/M-1", "planner/M-2"])
    await bank.settle()
    return session


@pytest.mark.parametrize("judged", [True, False])
async def test_recall_has_what_holds_first(judged: bool) -> None:
    async with bank_with() as bank:
        session = await _contradicted(bank)
        assert await _keys(session, judged=judged) == ["M-2", "M-1"]
        await bank.memories.pin("planner/M-1")
        await bank.settle()
        assert await _keys(session, judged=judged) == ["M-1", "M-2"]
        told = await session.run_tool("recall", {"query": ASKED})
        assert [line[:4] for line in told.splitlines() if line.startswith("M-")] == ["M-1:", "M-2:"]
        named = await session.recall("M-2", deadline=30)
        assert named.hits[0].key == "M-2"  # whoever names one means it


async def test_a_prompt_has_what_holds_first() -> None:
    async with bank_with(deadline=30) as bank:
        session = await _contradicted(bank)
        newer, older = await _known(session)
        assert newer.startswith("- M-2 (fact, just now): since ")
        assert older.startswith("- M-1 (fact, just now): The staging port is 8123. (but since ")
        await bank.memories.pin("planner/M-1")
        await bank.settle()
        pinned, other = await _known(await bank.session("planner/other"))
        assert pinned.startswith("- M-1 (")
        assert "it is pinned and holds, although M-2" in pinned
        assert "before" not in pinned
        assert other.startswith("- M-2 (")
        assert "is pinned and holds: The staging port is 8123." in other

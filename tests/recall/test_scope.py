"""Which places may answer a question."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.bank import Bank
from perdure.config import Config
from perdure.core.errors import InvalidInput
from perdure.core.messages import assistant, user
from perdure.history.log_records import Link
from perdure.recall.places import (
    REFERENCES,
    Spot,
    common,
    covers,
    joined,
    memories_of,
    spot,
    turns,
    without,
)
from perdure.recall.scoping.scope import GroupNumbers, Scope, Scopes, scope_of
from perdure.recall.values import Question
from perdure.search.engine import Range
from perdure.sessions.session import Session
from tests.recall.plain_index import PlainIndex

_places = st.sets(st.integers(0, 40))


def _ranges(places: Iterable[int]) -> tuple[Range, ...]:
    return joined((place, place) for place in places)


@given(first=_places, second=_places)
def test_ranges_are_sets_of_places(first: set[int], second: set[int]) -> None:
    a, b = _ranges(first), _ranges(second)
    for found, expected in (
        (a, first),
        (joined(a, b), first | second),
        (without(a, b), first - second),
        (common(a, b), first & second),
    ):
        assert {place for place in range(42) if covers(found, place)} == expected
        assert found == _ranges(expected)  # as few as possible, in order


def test_neighbouring_groups_are_one_range() -> None:
    groups = GroupNumbers({f"ann/{number}": number for number in range(5_000)})
    assert groups.turns("ann") == ((turns(0)[0], turns(4_999)[1]),)


def test_a_place_is_named_after_its_group() -> None:
    scope = Scope(GroupNumbers({"ann/a": 0, memories_of("ann"): 1, REFERENCES: 2}))
    assert scope.name(Spot(0, 3, 2).place) == ("turn", "ann/a")
    assert scope.name(Spot(1, 7).place) == ("memory", "ann")
    assert scope.name(Spot(2, 1).place) == ("reference", "")
    with pytest.raises(InvalidInput, match="nothing in place"):
        scope.name(Spot(9, 1).place)


class _Town:
    """Sessions that say a word for each turn: that of the session and the turn's number."""

    def __init__(self, bank: Bank, index: PlainIndex) -> None:
        self.bank, self.index = bank, index
        self.scopes = Scopes(bank.store, index)

    async def session(self, name: str, turns: int = 2, link: Link | None = None) -> Session:
        session = await self.bank.session(name, link=link)
        await self.say(session, turns)
        return session

    async def say(self, session: Session, turns: int = 1) -> None:
        for _ in range(turns):
            number = (await session.head()).turn + 1
            word = f"{session.name.replace('/', '-')}-{number}"
            await session.append([user(word), assistant("Yes.")])

    async def seen(self, session: Session, *, wide: bool = False) -> set[str]:
        record, head = session.record, await session.head()
        question = Question(text="", record=record, head=head, moment=0, wide=wide)
        return {word for word in self.index.seen(await self.scopes.of(question)) if "-" in word}


@pytest.fixture
async def town() -> AsyncIterator[_Town]:
    index = PlainIndex()
    async with Bank("memory://", config=Config()) as bank:
        bank.join(index.hook)
        bank.forgetting.join(index)
        yield _Town(bank, index)


async def test_an_agent_sees_its_sessions_and_nobody_elses(town: _Town) -> None:
    ours, other = await town.session("ann/a"), await town.session("ann/b")
    await town.session("bob/a")
    await other.archive()
    assert await town.seen(ours) == {"ann-a-1", "ann-a-2", "ann-b-1", "ann-b-2"}
    assert await town.seen(ours, wide=True) == await town.seen(ours)


async def test_a_fork_sees_the_line_that_it_stands_on(town: _Town) -> None:
    root = await town.session("ann/root", 3)
    left, right = await root.fork("ann/left", at=2), await root.fork("ann/right", at=1)
    await town.say(left)
    await town.say(right)
    assert await town.seen(left) == {"ann-root-1", "ann-root-2", "ann-left-3"}
    assert await town.seen(right) == {"ann-root-1", "ann-right-2"}
    assert await town.seen(root) == {"ann-root-1", "ann-root-2", "ann-root-3"}
    everything = {"ann-root-1", "ann-root-2", "ann-root-3", "ann-left-3", "ann-right-2"}
    assert await town.seen(left, wide=True) == everything


async def test_a_fork_of_a_fork_of_another_agent_is_of_the_family(town: _Town) -> None:
    root = await town.session("ann/root", 2)
    between = await root.fork("bob/between", at=2)
    await town.say(between)
    last = await between.fork("ann/last", at=3)
    await town.say(last)
    await town.say(root)
    assert await town.seen(last) == {"ann-root-1", "ann-root-2", "bob-between-3", "ann-last-4"}
    assert await town.seen(root) == {"ann-root-1", "ann-root-2", "ann-root-3"}
    elsewhere = await town.session("bob/elsewhere", 1)
    # What bob/between has from ann is not bob's.
    assert await town.seen(elsewhere) == {"bob-elsewhere-1", "bob-between-3"}


async def test_a_fork_made_later_is_never_taken_for_a_stranger(town: _Town) -> None:
    root = await town.session("ann/root")
    stranger = await town.session("ann/stranger", 1)
    assert "ann-root-1" in await town.seen(stranger)
    for number in range(3):
        fork = await root.fork(f"ann/fork{number}")
        await town.say(fork)
        assert not {word for word in await town.seen(root) if "fork" in word}
        assert f"ann-fork{number}-3" in await town.seen(stranger)


async def test_a_name_that_comes_back_is_another_session(town: _Town) -> None:
    root = await town.session("ann/root")
    other = await town.session("ann/x", 1)
    assert "ann-x-1" in await town.seen(root)
    await town.bank.forget(other.name)
    del town.index.numbers["ann/x"]
    town.index.numbers["ann/gone"] = len(town.index.numbers)  # its number is not given again
    fork = await root.fork("ann/x")
    town.index.numbers["ann/x"] = 77
    await town.say(fork)
    assert await town.seen(root) == {"ann-root-1", "ann-root-2"}


async def test_what_is_added_to_a_shared_turn_is_not_the_forks(town: _Town) -> None:
    root = await town.session("ann/root", 1)
    await root.append([user("open-question")])
    fork = await root.fork("ann/fork", at=2)
    await root.append([assistant("late-answer")])
    await root.append([assistant("later-still")])
    assert await town.seen(fork) == {"ann-root-1", "open-question"}
    assert await town.seen(root) == {"ann-root-1", "open-question", "late-answer", "later-still"}


async def test_turns_that_were_taken_back_are_not_seen(town: _Town) -> None:
    ours, other = await town.session("ann/a", 3), await town.session("ann/b", 3)
    before = await other.fork("ann/fork", at=3)
    await other.undo(numbers=[2])
    await ours.undo()
    assert await town.seen(ours) == {"ann-a-1", "ann-a-2", "ann-b-1", "ann-b-3"}
    assert await town.seen(other) == {"ann-a-1", "ann-a-2", "ann-b-1", "ann-b-3"}
    assert {"ann-b-1", "ann-b-2", "ann-b-3"} <= await town.seen(before)


async def test_a_sub_agent_is_an_agent_of_its_own(town: _Town) -> None:
    starter = await town.session("ann/a", 1)
    link = Link("ann/a", "call-1", 1)
    own = await town.session("ann/helper", 1, link)
    foreign = await town.session("scout/helper", 1, link)
    assert await town.seen(starter) == {"ann-a-1", "ann-helper-1"}
    assert await town.seen(own) == {"ann-a-1", "ann-helper-1"}
    assert await town.seen(foreign) == {"scout-helper-1"}
    await foreign.share("ann")
    assert await town.seen(starter) == {"ann-a-1", "ann-helper-1", "scout-helper-1"}


async def test_a_bank_without_an_index_shows_nothing(town: _Town) -> None:
    session = await town.session("ann/a")
    question = Question(text="", record=session.record, head=await session.head(), moment=0)
    scope = await scope_of(town.bank.store, PlainIndex(), question)
    assert scope.ranges == ()
    assert not scope.allows(Spot(0, 1).place)
    assert not scope.shows("ann/a", 1)


async def test_it_knows_its_own_line(town: _Town) -> None:
    root = await town.session("bob/root", 2)
    fork = await root.fork("ann/fork", at=1)
    await town.say(fork)
    await town.session("ann/other", 1)
    question = Question(text="", record=fork.record, head=await fork.head(), moment=0)
    scope = await town.scopes.of(question)
    own = {(scope.name(at)[1], spot(at).turn) for at in town.index.documents if scope.is_own(at)}
    assert own == {("bob/root", 1), ("ann/fork", 2)}
    assert scope.shows("ann/other", 1)
    assert scope.shows("bob/root", 1)
    assert not scope.shows("bob/root", 2)


@pytest.mark.slow
async def test_five_thousand_sessions_of_two_agents_that_take_turns() -> None:
    order = random.Random(1)
    async with Bank("memory://", config=Config()) as bank:
        session = await bank.session("ann/0")
        index = PlainIndex()
        for number in range(5_000):
            index.number(f"{order.choice(('ann', 'bob'))}/{number}")
        question = Question(text="", record=session.record, head=await session.head(), moment=0)
        scope = await Scopes(bank.store, index).of(question)
        ours = {name for name in index.numbers if name.startswith("ann/")}
        found = {name for name, at in index.numbers.items() if scope.allows(Spot(at, 1).place)}
        assert found == ours
        starts = [first for first, _ in scope.ranges]
        assert starts == sorted(starts)
        assert len(starts) < len(ours)

"""No question ever finds what its session may not see, and every one finds all that it may."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import msgspec
import pytest
from hypothesis import given, settings

from perdure.bank import Bank
from perdure.config import Config
from perdure.recall.memory_records import Memory, memory_id
from perdure.recall.scope import Scopes
from perdure.recall.sharing import Sharing
from perdure.recall.values import Filters, Question
from tests.recall.plain_index import PlainIndex
from tests.recall.who_sees import AGENTS, EVERYBODY, Talk, World, deeds

Deeds = Sequence[tuple[int, int, int, int]]


@given(deeds=deeds)
@settings(max_examples=15)
def test_a_scope_is_exactly_what_may_be_seen(deeds: Deeds) -> None:
    asyncio.run(_is_exact(deeds))


@pytest.mark.long
@given(deeds=deeds)
@settings(max_examples=60)
def test_a_scope_is_exact_in_many_banks(deeds: Deeds) -> None:
    asyncio.run(_is_exact(deeds))


async def _is_exact(deeds: Deeds) -> None:
    index = PlainIndex()
    async with Bank("memory://", config=Config()) as bank:
        bank.join(index.hook)
        bank.forgetting.join(index)
        bank.forgetting.join(Sharing(bank.store))
        world, scopes = World(bank), Scopes(bank.store, index)
        for step, deed in enumerate(deeds):
            if deed[0] == 3 and world.talks:
                await _remember(world, index, deed)
            await world.do(deed)
            if step == 11:  # what was learned is used again, and must not be out of date
                await _compare(world, index, scopes)
        await _compare(world, index, scopes)
        await _compare(world, index, Scopes(bank.store, index))


async def _remember(world: World, index: PlainIndex, deed: Sequence[int]) -> None:
    _, who, which, agent = deed
    owner = AGENTS[who % len(AGENTS)]
    number = 1 + len(world.memories)
    shared = frozenset({(*AGENTS, EVERYBODY)[agent % 4]}) if which % 2 else frozenset[str]()
    word = world.new_word()
    memory = Memory(
        id=memory_id(owner, number),
        agent=owner,
        kind="fact",
        text=word,
        weight=0.5,
        first=0,
        last=0,
        since=0,
        shared=tuple(shared),
        is_shared=bool(shared),
    )
    await world.bank.collection(Memory).put(memory)
    index.remember(owner, number, {word})
    world.memories[word] = owner, shared


async def _compare(world: World, index: PlainIndex, scopes: Scopes) -> None:
    secrets = set(world.words())
    for talk, session in zip(world.talks, world.sessions, strict=True):
        question = Question(
            text="", record=session.record, head=await session.head(), moment=world.bank.store.now()
        )
        for wide in (False, True):
            asked = msgspec.structs.replace(question, wide=wide)
            found = index.seen(await scopes.of(asked)) & secrets
            assert found == world.allowed(talk, wide=wide), talk.name
        await _compare_filtered(world, index, scopes, question, talk)


async def _compare_filtered(
    world: World, index: PlainIndex, scopes: Scopes, question: Question, talk: Talk
) -> None:
    """Filters that ask for others give no more than the scope does."""
    allowed, secrets = world.allowed(talk), set(world.words())
    for agent in AGENTS:
        asked = msgspec.structs.replace(question, filters=Filters(agents=(agent,)))
        found = index.seen(await scopes.of(asked)) & secrets
        assert found == {word for word in allowed if _owner(world, word) == agent}
    for other in world.talks:
        asked = msgspec.structs.replace(question, filters=Filters(sessions=(other.name,)))
        found = index.seen(await scopes.of(asked)) & secrets
        own = {said.word for said in other.own}
        if other is talk:
            own |= {said.word for said in talk.shown()}
        assert found == allowed & own
    asked = msgspec.structs.replace(question, filters=Filters(line=True))
    line = {said.word for said in talk.shown()} - world.forgotten
    assert index.seen(await scopes.of(asked)) & secrets == line


def _owner(world: World, word: str) -> str:
    said = world.where(word)
    return world.memories[word][0] if said is None else said.owner.partition("/")[0]

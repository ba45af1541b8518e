"""No question ever finds what its session may not see, and every one finds all that it may."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path

import msgspec
import pytest
from hypothesis import Phase, given, settings

from perdure.bank import Bank
from perdure.config import Config
from perdure.core.messages import assistant, user
from perdure.recall.memory_records import Memory, memory_id
from perdure.recall.scoping.scope import Scopes
from perdure.recall.sharing import Sharing
from perdure.recall.values import Filters, Question
from perdure.sessions.session import Session
from tests.recall.plain_index import PlainIndex
from tests.recall.who_sees import AGENTS, EVERYBODY, Talk, World, deeds

#: Sessions of each bank that ask, and how many words apart the ones are that each asks for.
_ASKING, _EVERY = 5, 4

#: A bank takes seconds: what fails is told as it was found.
_AS_IT_IS = (Phase.explicit, Phase.generate)

Deeds = Sequence[tuple[int, int, int, int]]


@given(deeds=deeds)
@settings(max_examples=10)
def test_a_scope_is_exactly_what_may_be_seen(deeds: Deeds) -> None:
    asyncio.run(_is_exact(deeds))


@pytest.mark.slow
@pytest.mark.repeated
@given(deeds=deeds)
@settings(max_examples=30)
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


@given(deeds=deeds)
@settings(max_examples=3, phases=_AS_IT_IS)
def test_recall_and_tools_show_no_more_than_that(deeds: Deeds) -> None:
    asyncio.run(_shows_no_more(deeds))


@pytest.mark.slow
@pytest.mark.repeated
@given(deeds=deeds)
@settings(max_examples=8, phases=_AS_IT_IS)
def test_nothing_is_shown_that_may_not_be_in_many_banks(deeds: Deeds) -> None:
    asyncio.run(_shows_no_more(deeds))


async def _shows_no_more(deeds: Deeds) -> None:
    async with Bank("memory://", config=Config()) as bank:
        world = World(bank)
        for deed in deeds:
            if deed[0] == 3 and world.talks:
                await _note(world, deed)
            await world.do(deed)
        await bank.settle()
        asking = list(enumerate(zip(world.talks, world.sessions, strict=True)))[:_ASKING]
        for number, (talk, session) in asking:
            for word in world.words()[number::_EVERY]:
                await _ask(world, talk, session, word, wide=bool(number % 2))
            for other in world.talks:
                await _fetch(world, talk, session, other)
            await _prompt(world, talk, session)


async def _note(world: World, deed: Sequence[int]) -> None:
    _, who, which, agent = deed
    owner = AGENTS[who % len(AGENTS)]
    shared = frozenset({(*AGENTS, EVERYBODY)[agent % 4]} - {owner}) if which % 2 else frozenset()
    word = world.new_word()
    await world.bank.memories.add(owner, f"The password of {word}.", shared=shared)
    world.memories[word] = owner, shared


async def _ask(world: World, talk: Talk, session: Session, word: str, *, wide: bool) -> None:
    """The very word: it is found where it may be, and nothing else comes with it."""
    allowed = world.allowed(talk, wide=wide)
    found = await session.recall(f"What about {word}?", limit=50, wide=wide, deadline=20)
    seen = {each for hit in found.hits for each in _secrets(hit.text)}
    assert seen <= allowed, (talk.name, word)
    assert (word in seen) == (word in allowed), (talk.name, word)
    agents = {each.agent for each in world.talks} - {talk.agent}
    others = await session.recall(word, agents=agents or talk.agent, deadline=20)
    assert {each for hit in others.hits for each in _secrets(hit.text)} <= world.allowed(talk)


async def _fetch(world: World, talk: Talk, session: Session, other: Talk) -> None:
    """Turns of others by their key, and all that the tools find."""
    allowed = world.allowed(talk)
    for turn in sorted({said.turn for said in (*other.inherited, *other.own)}):
        asked = {"id": f"{other.name}#T-{turn}", "level": "RSCT"[turn % 4]}
        text = await session.run_tool("history_get_turn", asked)
        assert _secrets(text) <= allowed, (talk.name, other.name, turn)
    if other.own:
        word = other.own[-1].word
        for tool in ("recall", "history_search"):
            text = await session.run_tool(tool, {"query": f"{word} password", "limit": 50})
            assert _secrets(text) <= allowed | {word}, (talk.name, word)
            text = await session.run_tool("recall", {"query": "password", "session": other.name})
            assert _secrets(text) <= allowed


async def _prompt(world: World, talk: Talk, session: Session) -> None:
    """What stands beside a prompt that asks for everything."""
    words = world.words()
    context = await session.context("Tell me about " + ", ".join(words[-6:]), budget=20_000)
    shown = _secrets(str(context.to_chat())) - set(words[-6:])
    assert shown <= world.allowed(talk), talk.name
    memory = str(context.to_chat()).partition("<perdure-memory>")[2]
    shown = _secrets(memory.partition("Tell me about")[0])
    assert shown <= world.allowed(talk), talk.name


def _secrets(text: str) -> set[str]:
    return set(re.findall(r"secret\d+", text))


async def test_a_fork_of_another_agent_is_not_shown_what_was_recalled_for_its_parent() -> None:
    async with Bank("memory://", config=Config()) as bank:
        await bank.memories.add("ann", "The password of the vault is secret1.")
        root = await bank.session("ann/root")
        asked = await root.context("What is the password of the vault?", budget=20_000)
        assert _secrets(str(asked.to_chat())) == {"secret1"}
        await root.append(assistant("I will not say it."), context=asked)
        for name, shown in {"ann/fork": {"secret1"}, "bob/fork": set[str]()}.items():
            fork = await root.fork(name)
            context = await fork.context("Thank you.", budget=20_000)
            assert "What is the password of the vault?" in str(context.to_chat())
            assert _secrets(str(context.to_chat())) == shown


@pytest.mark.parametrize("url", ["memory", "sqlite"])
async def test_a_fork_of_one_that_lost_its_parent_is_no_stranger(url: str, tmp_path: Path) -> None:
    """Its family is another one by then, in every process that had learned the former."""
    where = "memory://" if url == "memory" else f"sqlite:///{tmp_path / 'bank.db'}"
    async with Bank(where, config=Config()) as bank, AsyncExitStack() as stack:
        other = bank
        if url == "sqlite":
            other = await stack.enter_async_context(Bank(where, config=Config()))
        root = await bank.session("ann/root")
        await root.append([user("We begin."), assistant("Yes.")])
        fork = await root.fork("ann/fork")
        await fork.append([user("We go on."), assistant("Yes.")])
        for each in (bank, other):
            assert (await (await each.session("ann/fork")).recall("begin")).hits
        await bank.forget("ann/root", reroot=True)
        again = await (await bank.session("ann/fork")).fork("ann/again")
        await again.append([user("The xylophone is mine."), assistant("Yes.")])
        stranger = await bank.session("ann/stranger")
        await stranger.append([user("Hello."), assistant("Hi.")])
        for each in (bank, other):
            asking = await each.session("ann/fork")
            assert not (await asking.recall("xylophone")).hits
            assert (await asking.recall("xylophone", wide=True)).hits
            assert (await (await each.session("ann/stranger")).recall("xylophone")).hits
            assert (await asking.recall("begin")).hits[0].turn == "T-1.1"


async def test_what_was_taken_back_stays_so_in_a_fork_that_gets_it_as_its_own() -> None:
    async with Bank("memory://", config=Config()) as bank:
        root = await bank.session("ann/root")
        await root.append([user("We begin."), assistant("Yes.")])
        await root.append([user("The xylophone is out of tune."), assistant("Yes.")])
        await root.undo()
        await root.append([user("We go on."), assistant("Yes.")])
        await root.fork("ann/fork")
        other = await bank.session("ann/other")
        await other.append([user("Hello."), assistant("Hi.")])
        assert not (await other.recall("xylophone")).hits
        await bank.forget("ann/root", reroot=True)
        found = await other.recall("xylophone")
        assert not found.hits
        assert {step.left for step in found.steps if step.name == "keyword"} == {0}
        assert (await other.recall("begin")).hits[0].turn == "ann/fork#T-1.1"

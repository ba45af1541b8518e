"""Names that the index has no room for: recall looks for them in the turns themselves."""

from __future__ import annotations

from itertools import product

import pytest

from perdure.bank import Bank
from perdure.config import Config, RecallConfig
from perdure.core.messages import Message, Text, ToolCall, ToolResult, assistant, user
from perdure.recall.searching.turn_scan import names_in
from perdure.recall.words import identifiers
from perdure.sessions.session import Session

#: More than a machine under load needs.
_PATIENT = Config(recall=RecallConfig(deadline=60.0, keyword=20.0, vectors=20.0))


def _listed(id: str, *names: str) -> list[Message]:
    """A call of a tool, and what it wrote: many names, and these in the middle."""
    others = [f"symbol_{id}_{number} is there" for number in range(200)]
    lines = [*others, *names, *reversed(others)]
    result = ToolResult(id, (Text("\n".join(lines)),))
    return [Message("assistant", (ToolCall(id, "list", "{}"),)), Message("tool", (result,))]


async def _told(session: Session) -> None:
    await session.append([user("What is there?"), *_listed("c1"), assistant("Much.")])
    await session.append([user("And else?"), *_listed("c2", "headCount"), assistant("More.")])
    await session.append([user("And now?"), *_listed("c3"), assistant("The rest.")])


@pytest.mark.parametrize("name", ["headCount", "`headCount`", "HeadCount"])
async def test_a_name_is_found_that_the_index_had_no_room_for(name: str) -> None:
    async with Bank("memory://", config=_PATIENT) as bank:
        session = await bank.session("planner/auth")
        await _told(session)
        await bank.settle()
        found = await session.recall(f"Where did we meet {name}?")
        assert [hit.turn for hit in found.hits][:1] == ["T-2.1"]
        fork = await session.fork("planner/fork")
        found = await fork.recall(f"Where did we meet {name}?")
        assert [hit.turn for hit in found.hits][:1] == ["T-2.1"]


async def test_what_it_finds_comes_behind_what_is_likelier() -> None:
    async with Bank("memory://", config=_PATIENT) as bank:
        session = await bank.session("planner/auth")
        await _told(session)
        await session.append([user("We meet zebra crossings at noon."), assistant("Yes.")])
        await bank.settle()
        found = await session.recall("T-4 or headCount?")
        assert [hit.turn for hit in found.hits][:2] == ["T-4.1", "T-2.1"]
        assert len({hit.key for hit in found.hits}) == len(found.hits)


async def test_nobody_else_is_looked_at_nor_what_was_taken_back() -> None:
    async with Bank("memory://", config=_PATIENT) as bank:
        await _told(await bank.session("planner/auth"))
        undone = await bank.session("writer/undone")
        await undone.append([user("And else?"), *_listed("c2", "headCount"), assistant("More.")])
        await undone.undo()
        await bank.settle()
        for name in ("writer/undone", "writer/new"):
            session = await bank.session(name)
            found = await session.recall("Where did we meet headCount?")
            assert not found.hits


async def test_what_others_said_changes_nothing() -> None:
    async with Bank("memory://", config=_PATIENT) as bank:
        session = await bank.session("planner/auth")
        await _told(session)
        other = await bank.session("writer/other")
        await other.append([user("I like headCount."), assistant("So do I.")])
        await bank.settle()
        found = await session.recall("Where did we meet headCount?")
        assert [hit.turn for hit in found.hits][:1] == ["T-2.1"]


async def test_the_turn_that_asks_is_no_answer() -> None:
    async with Bank("memory://", config=_PATIENT) as bank:
        session = await bank.session("planner/auth")
        await _told(session)
        await session.append(user("Where did we meet headCount?"))
        await bank.settle()
        found = await session.recall("headCount")
        assert "T-2.1" in [hit.turn for hit in found.hits][:2]


async def test_filters_are_kept() -> None:
    async with Bank("memory://", config=_PATIENT) as bank:
        session = await bank.session("planner/auth")
        await _told(session)
        await bank.settle()
        found = await session.recall("Where did we meet headCount?", tools=["grep"])
        assert not found.hits


@pytest.mark.parametrize(
    ("text", "unknown", "names"),
    [
        ("Where is head_count?", {"head_count"}, "head_count"),
        ("Where is head_count?", {"zebra"}, ""),
        ("Where is headCount, and 1.25?", {"headcount", "1.25"}, "headCount 1.25"),
        ("Where is Zebra?", {"zebra"}, ""),
        ("Where is HTTP?", {"http"}, ""),
        ("a b c d e f g h i j k l m n o p head_count", {"head_count"}, ""),
        ("", set[str](), ""),
    ],
)
def test_names_are_what_programmers_write(text: str, unknown: set[str], names: str) -> None:
    assert names_in(text, unknown) == names


async def test_a_name_whose_words_are_common_is_met() -> None:
    """An embedder makes nothing of it, and what it is made of stands everywhere."""
    verbs, nouns = ("load", "merge", "flush", "drain"), ("ledger", "ticket", "tenant", "shard")
    async with Bank("memory://", config=_PATIENT) as bank:
        session = await bank.session("planner/auth")
        for module in range(10):
            made = enumerate(product(verbs, nouns))
            names = [f"{verb}_{noun}_m{module}_{number}" for number, (verb, noun) in made]
            code = "\n".join(f"def {name}(value: int) -> int:\n    return 7" for name in names)
            id, path = f"c{module}", f"src/m{module}.py"
            call = Message("assistant", (ToolCall(id, "read_file", f'{{"path": "{path}"}}'),))
            result = Message("tool", (ToolResult(id, (Text(f"# Module m{module}.\n{code}"),)),))
            said = [user(f"Read {path} and tell me what it does"), call, result]
            await session.append([*said, assistant("A set of helpers.")])
        await bank.settle()
        for question in ("merge_tenant_m3_6", "Where is merge_tenant_m3_6 defined?"):
            for judged in (False, True):
                found = await session.recall(question, judged=judged)
                assert [hit.turn for hit in found.hits][:1] == ["T-4.1"]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("Where is head_count in src/a/b.py?", {"head_count", "src/a/b.py"}),
        ("fooBar, token2, FIN-20", {"foobar", "fin-20", "token2"}),
        ("A well-known, four-year-old friend's: 2023-05-07, 1.2, 12:30", set[str]()),
    ],
)
def test_identifiers_are_told_from_words_and_numbers(text: str, found: set[str]) -> None:
    assert identifiers(text) == found

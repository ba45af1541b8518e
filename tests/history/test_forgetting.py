"""Forgetting for good: everywhere, and without breaking what stays."""

from __future__ import annotations

import contextlib
import importlib
import pkgutil
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import msgspec
import pytest

import perdure
from perdure.bank import Bank
from perdure.core import messages as canonical
from perdure.core.errors import Conflict, InvalidInput, Unavailable
from perdure.core.messages import Message, Text, assistant, user
from perdure.core.turns import Position
from perdure.history import chain
from perdure.history.forget_sessions import ForgetScope, Forgotten
from perdure.history.log_records import AnswerDraft, Link, Receipt, TurnCount, TurnPiece, Use
from perdure.integrations.framework_bank import MissingFramework
from perdure.sessions.session import Session
from perdure.storage import records
from perdure.storage.delivery import Parked
from perdure.storage.middleware import Call, Commit, Handler, Remove
from perdure.storage.records import Key, system_record
from perdure.storage.state_records import StateRecord
from perdure.testing import ManualClock
from tests.history.conftest import MakeBank, config_for, everywhere
from tests.history.talk import (
    chat,
    fill,
    numbers,
    one,
    problems,
    said,
    shape,
    texts,
    whole,
    work,
)

MARKER = "xylophone-quartz-7731"
#: Collections of Perdure's own that hold no content, and why.
WITHOUT_CONTENT = {
    "perdure_access_tokens": "hashes of tokens; of an agent's, its name stays until it is revoked",
    "perdure_artifact_puts": "when a large artifact was put; goes with it",
    "perdure_audit": "keys and hashes of the user's own records; a trail outlasts what it tells of",
    "perdure_audit_open_secrets": "random bytes, to hash with",
    "perdure_audit_secrets": "random bytes, to hash with",
    "perdure_cache_names": "random names",
    "perdure_calibrations": "factors by model",
    "perdure_clone_positions": "names of branches, and ids of their commits",
    "perdure_commit_moves": "ids of commits",
    "perdure_commit_prints": "ids of commits, times, and hashes of what they change",
    "perdure_condemned": "hashes of deleted artifacts; of forgotten ones for a day (collecting)",
    "perdure_file_batches": "hashes of files; go with their project's index",
    "perdure_file_indexes": "how far the files of a project are indexed",
    "perdure_keys": "wrapped keys; of an agent's, its name stays",
    "perdure_layer_texts": "reference layers, which people write: not made from turns",
    "perdure_layers": "what reference layers are called and when they are loaded",
    "perdure_metrics": "counts",
    "perdure_models": "how models did lately, by the names of tasks",
    "perdure_project_operations": "names of branches, ids of commits and of entries",
    "perdure_project_entries": "goals, milestones, links: what people and agents plan, as tasks",
    "perdure_projects": "names of projects and their folders",
    "perdure_recall_filling": "whether the search index is complete",
    "perdure_recall_numbers": "the number that the next group of the search index gets",
    "perdure_references": "hashes of artifacts in records of the user's own; go with them",
    "perdure_schemas": "names and types of fields",
    "perdure_subscribers": "how far a subscriber has read",
    "perdure_task_numbers": "the number that the next task of a project gets",
    "perdure_token_uses": "when a token was last used",
    "perdure_written_bases": "hashes of the state file, which has no turns in it",
}


@pytest.fixture
def recalls() -> bool:
    """The index has a part in forgetting."""
    return True


async def rows(bank: Bank) -> dict[str, list[str]]:
    """The keys of everything in the bank, by collection, as they lie in the database."""
    found = dict[str, list[str]]()
    for size in await bank.store.adapter.sizes():
        if size.collection in WITHOUT_CONTENT:
            continue
        keys = [row.key for row in await bank.store.adapter.salvage(size.collection, "", 10_000)]
        if keys:
            found[size.collection] = keys
    return found


# A turn ---------------------------------------------------------------------------------------


@everywhere
async def test_a_turn_is_forgotten_and_its_place_stays(
    bank: Bank, session: Session, clock: ManualClock
) -> None:
    for number in range(1, 4):
        clock.advance("1h")
        await session.append(work(number), tags={"n": str(number)})
    await bank.settle()
    before = await session.turn(2)
    forgotten = await bank.forget("planner/auth", turns=["T-2"])
    assert (forgotten.sessions, forgotten.turns) == (["planner/auth"], 1)

    turn = await session.turn(2)
    assert turn.status == "forgotten"
    assert (turn.messages, turn.tags, turn.masked, turn.prompt) == ((), {}, {}, "")
    assert (turn.number, turn.started, turn.ended) == (2, before.started, before.ended)
    assert numbers(await session.turns()) == [1, 2, 3]
    assert (await session.turn(1)).messages == tuple(work(1))
    assert (await session.turn(3)).messages == tuple(work(3))
    assert one(await session.append(chat(4))).number == 4
    assert await problems(bank) == []
    assert await bank.collection(TurnCount).query().prefix("planner/auth/00000002").count() == 0


async def test_several_turns_and_again(bank: Bank, session: Session) -> None:
    await fill(session, 5)
    await bank.forget("planner/auth", turns=[2, "T-4", 2])
    again = await bank.forget("planner/auth", turns=["planner/auth#T-4"])
    assert (again.sessions, again.turns) == (["planner/auth"], 0)
    assert (await bank.forget("planner/auth", turns=[3, 4])).turns == 1
    assert [turn.status for turn in await whole(session)] == [
        *("closed", "forgotten", "forgotten", "forgotten", "closed"),
    ]
    assert await problems(bank) == []
    for wrong in (0, 6, "T-99"):
        with pytest.raises(InvalidInput):
            await bank.forget("planner/auth", turns=[wrong])
    with pytest.raises(InvalidInput, match="not a turn of planner/auth"):
        await bank.forget("planner/auth", turns=["planner/other#T-1"])


@pytest.mark.parametrize("turn", ["T-2", "planner/auth#T-2", 2, Position(2)])
async def test_one_turn_needs_no_list(
    bank: Bank, session: Session, turn: str | int | Position
) -> None:
    await fill(session, 3)
    assert (await bank.forget("planner/auth", turns=turn)).turns == 1
    assert [turn.status for turn in await whole(session)] == ["closed", "forgotten", "closed"]


@pytest.mark.parametrize(
    ("turns", "told"),
    [
        ([], "No turn is named, and nothing was forgotten. Name a turn, or leave `turns` out"),
        (iter(()), "No turn is named"),
        (["T-2.1"], "T-2.1 is a round, and a turn is forgotten as a whole. Name T-2."),
        ([1, Position(2, 3)], "T-2.3 is a round"),
        ("T-2.1", "Name T-2."),
        ("", "'' does not name a turn."),
        ("latest", "'latest' does not name a turn."),
        (b"T-2", "b'T-2' does not name a turn."),
        (2.5, "2.5 does not name a turn."),
        ([None], "None does not name a turn."),
    ],
)
async def test_what_names_no_turns_forgets_nothing(
    bank: Bank, session: Session, turns: Any, told: str
) -> None:
    await fill(session, 2)
    with pytest.raises(InvalidInput) as refused:
        await bank.forget("planner/auth", turns=turns)
    assert told in str(refused.value)
    assert [turn.status for turn in await whole(session)] == ["closed", "closed"]


async def test_no_turns_are_not_the_whole_session(bank: Bank, session: Session) -> None:
    await session.append(work(1))
    await bank.settle()
    assert await bank.forgetting.turns(session.record, []) == Forgotten()
    assert await bank.collection(TurnCount).query().count() == 1


@everywhere
async def test_what_a_tombstone_says_cannot_be_matched_to_what_was_said(
    bank: Bank, session: Session
) -> None:
    """Whoever guesses the words cannot find out that the guess is right: the salt is gone."""
    await session.append(chat(1))
    (before,) = await bank.collection(TurnPiece).query().values()
    await bank.forget("planner/auth", turns=[1])
    (after,) = await bank.collection(TurnPiece).query().values()
    assert (after.content, after.salt, after.link) == (b"", b"", before.link)
    assert after.commitment == chain.commit(before)
    guess = canonical.encode(chat(1))
    assert guess == before.content
    forged = msgspec.structs.replace(before, content=guess, salt=after.salt)
    assert chain.commit(forged) != after.commitment
    (row,) = await bank.store.adapter.salvage("perdure_turns", "", 9)
    assert before.salt not in row.value
    assert before.content not in row.value
    assert b"prompt 1" not in row.value


async def test_a_turn_in_pieces_with_everything_that_belongs_to_it(
    bank: Bank, session: Session
) -> None:
    large = "x" * 100_000
    for message in [*work(1), user(large), assistant("y" * 20_000)]:
        await session.append(message, key=str(id(message)))
    await session.append(user("3"))
    answer = session.answer()
    await answer.__aenter__()
    await answer.text("secret words")
    await answer.end_part()
    forgotten = await bank.forget("planner/auth", turns=[1, 2, 3])
    assert (forgotten.turns, forgotten.artifacts) == (3, 2)
    assert [place async for place in bank.artifacts.located()] == []
    assert await bank.collection(Use).query().count() == 0
    assert await bank.collection(AnswerDraft).query().count() == 0
    assert await session.partials() == []
    assert [turn.status for turn in await whole(session)] == ["forgotten"] * 3
    assert await said(session) == []
    assert await problems(bank) == []


async def test_a_turn_that_goes_on_after_it_was_forgotten(bank: Bank, session: Session) -> None:
    await session.append([user("1"), assistant("2")])
    await session.append([user("3")])
    await bank.forget("planner/auth", turns=[2])
    await session.append(assistant("4"))
    turn = await session.turn(2)
    assert (turn.status, texts(turn.messages), shape(turn)) == ("closed", ["4"], [1])
    await bank.settle()
    assert await problems(bank) == []
    await bank.forget("planner/auth", turns=[2])
    assert (await session.turn(2)).status == "forgotten"
    assert await problems(bank) == []


# A session ------------------------------------------------------------------------------------


async def furnish(bank: Bank, name: str) -> Session:
    """A session with something of everything."""
    session = await bank.session(name, state={"about": MARKER}, tags={"kind": "test"})
    await session.append(work(1), key="k1", tags={"topic": "x"})
    # In words: to count the tokens of one long word takes as long as everything else here.
    await session.append([user(f"{name} {'x ' * 9_000}"), assistant(f"{name} {'y ' * 9_000}")])
    await session.append(user("3"))
    answer = session.answer()
    await answer.__aenter__()
    await answer.text("arriving")
    await answer.end_part()
    await bank.settle()
    return session


@everywhere
async def test_a_session_is_forgotten_without_a_trace(bank: Bank) -> None:
    other = await furnish(bank, "planner/other")
    untouched = await rows(bank)
    session = await furnish(bank, "planner/auth")
    assert await rows(bank) != untouched
    forgotten = await bank.forget("planner/auth")
    assert (forgotten.sessions, forgotten.turns, forgotten.artifacts) == (["planner/auth"], 3, 2)
    assert await rows(bank) == untouched
    assert len([place async for place in bank.artifacts.located()]) == 2
    assert [info.name for info in await bank.sessions()] == ["planner/other"]
    assert len(await said(other)) == 8
    assert await problems(bank) == []
    # The object that is still there says so.
    with pytest.raises(InvalidInput, match="does not exist any more"):
        await session.append(chat(1))
    assert await session.turns() == []
    with pytest.raises(InvalidInput, match="no session planner/auth"):
        await bank.forget("planner/auth")


async def test_a_name_can_be_used_again(bank: Bank) -> None:
    await furnish(bank, "planner/auth")
    await bank.forget("planner/auth")
    session = await bank.session("planner/auth")
    assert session.state == {}
    assert one(await session.append(chat(1), key="k1")).number == 1
    await bank.settle()
    assert await said(session) == chat(1)
    (turn,) = await whole(session)
    assert turn.tokens is not None
    assert await problems(bank) == []


async def test_sub_agents_go_with_the_session_that_started_them(bank: Bank) -> None:
    session = await bank.session("planner/auth")
    await fill(session, 1)
    helper = await bank.session("coder/helper", link=Link("planner/auth", "call_1", 1))
    await fill(helper, 2)
    deeper = await bank.session("tester/deep", link=Link("coder/helper", "call_2", 1))
    await fill(deeper, 1)
    await bank.session("coder/free")
    forgotten = await bank.forget("planner/auth")
    assert sorted(forgotten.sessions) == ["coder/helper", "planner/auth", "tester/deep"]
    assert forgotten.turns == 4
    assert [info.name for info in await bank.sessions()] == ["coder/free"]


async def test_a_fork_of_a_sub_agent_keeps_it(bank: Bank) -> None:
    await fill(await bank.session("planner/auth"), 1)
    helper = await bank.session("coder/helper", link=Link("planner/auth"))
    await fill(helper, 2)
    await helper.fork("coder/fork")
    with pytest.raises(Conflict, match="coder/fork"):
        await bank.forget("planner/auth")
    await bank.forget("planner/auth", reroot=True)
    assert await said(await bank.session("coder/fork")) == [*chat(1), *chat(2)]
    assert await problems(bank) == []


# An agent -------------------------------------------------------------------------------------


@everywhere
async def test_an_agent_is_forgotten_with_all_that_is_kept_under_its_name(bank: Bank) -> None:
    await furnish(bank, "planner2/other")
    await bank.contexts.save(StateRecord(id="planner2/notes", type="note", state={"a": "b"}))
    untouched = await rows(bank)
    for name in ("planner/auth", "planner/ui"):
        await furnish(bank, name)
    for id_ in ("planner/notes", "planner", "planner/auth/deep"):
        await bank.contexts.save(StateRecord(id=id_, type="note", state={"secret": MARKER}))
    await bank.windows.append("planner/notes", MARKER)
    forgotten = await bank.forget_agent("planner")
    assert sorted(forgotten.sessions) == ["planner/auth", "planner/ui"]
    assert await rows(bank) == untouched
    assert await problems(bank) == []


async def test_an_agent_that_is_not_there(bank: Bank) -> None:
    assert (await bank.forget_agent("nobody")).sessions == []
    wrongs: list[Any] = ["", "a/b", "a#b", None, ["nobody"]]
    for wrong in wrongs:
        with pytest.raises(InvalidInput, match="cannot be an agent"):
            await bank.forget_agent(wrong)


# Interrupted ----------------------------------------------------------------------------------


class _FailsAt:
    """Middleware that fails at the n-th write, as a process that dies there would."""

    def __init__(self) -> None:
        self.left: int | None = None

    async def __call__(self, call: Call, proceed: Handler) -> Any:
        if self.left is not None and isinstance(call, Commit | Remove):
            self.left -= 1
            if self.left < 0:
                raise Unavailable("the process died")
        return await proceed(call)


@pytest.mark.slow
@pytest.mark.parametrize("what", ["turn", "session", "reroot"])
@pytest.mark.parametrize("store_url", ["memory"], indirect=True)
async def test_forgetting_can_be_interrupted_anywhere_and_repeated(
    make_bank: MakeBank, what: str
) -> None:
    fails = _FailsAt()
    bank = await make_bank(middleware=(fails,))
    for attempt in range(200):
        name = f"a/{attempt}"
        session = await furnish(bank, name)
        fork = await session.fork(f"fork/{attempt}") if what == "reroot" else None
        await bank.jobs.settle_idle()
        kept = list(await fork.resolve(await said(fork))) if fork else []
        options: dict[str, Any] = {"turns": [1, 2, 3]} if what == "turn" else {"reroot": True}
        fails.left = attempt
        try:
            await bank.forget(name, **options)
        except Unavailable:
            interrupted = True
        else:
            interrupted = False
        fails.left = None
        if interrupted:
            assert all(name in subject for subject, _ in await problems(bank))
            await bank.forget(name, **options)
        if what == "turn":
            assert await said(session) == []
            assert await problems(bank) == []
            await bank.forget(name)
        assert [key for keys in (await rows(bank)).values() for key in keys if name in key] == []
        if fork is not None:
            again = await bank.session(fork.name)
            assert list(await again.resolve(await said(again))) == kept
            assert await problems(bank) == []
            await bank.forget(fork.name)
        if not interrupted:
            break
    else:
        pytest.fail("it never came to its end")
    assert attempt > 3
    assert [place async for place in bank.artifacts.located()] == []


# In the files ---------------------------------------------------------------------------------


def where_marked(folder: Path) -> list[str]:
    """The files in which the marker can be read."""
    return sorted(
        str(path.relative_to(folder))
        for path in folder.rglob("*")
        if path.is_file() and MARKER.encode() in path.read_bytes()
    )


async def talk_about(bank: Bank, name: str) -> Session:
    """A session that holds the marker in every place that content can be in, uncompressed too."""
    session = await bank.session(name, state={"about": MARKER})
    await session.append(
        [
            user(f"short {MARKER}"),
            Message("assistant", (Text(f"{MARKER} " + "lorem " * 10),), model="m"),
        ],
        key=MARKER,
    )
    for number in range(30):
        await session.append([user(f"{number} {MARKER} {number}"), assistant(f"{MARKER} again")])
    await session.append([user(f"{MARKER} {'x' * 20_000}"), assistant(f"{MARKER} {'y' * 100_000}")])
    answer = session.answer()
    await answer.__aenter__()
    await answer.text(f"arriving {MARKER}")
    await answer.end_part()
    await bank.contexts.save(StateRecord(id=f"{name}/x", type="t", state={"m": MARKER}))
    return session


@pytest.mark.parametrize("compression", [True, False])
@pytest.mark.parametrize("what", ["turns", "session", "agent"])
async def test_nothing_can_be_read_in_the_files(
    tmp_path: Path, what: str, compression: bool
) -> None:
    config = perdure.Config(
        storage=msgspec.structs.replace(
            config_for(tmp_path).storage, compression=compression, sweep_every=1_000.0
        )
    )
    url = f"sqlite:///{tmp_path / 'bank.db'}"
    async with Bank(url, config=config) as bank:
        await fill(await bank.session("other/stays"), 40)
        session = await talk_about(bank, "planner/auth")
        await bank.settle()
        if not compression:
            assert where_marked(tmp_path)
        if what == "turns":
            await session.describe({"about": ""})
            await bank.contexts.archive("planner/auth/x")
            await bank.collection(StateRecord).delete("planner/auth/x")
            newest = (await session.head()).newest
            await bank.forget("planner/auth", turns=range(1, newest + 1))
        elif what == "session":
            await bank.forget("planner/auth")
        else:
            await bank.forget_agent("planner")
        assert await problems(bank) == []
        assert where_marked(tmp_path) == []
    assert where_marked(tmp_path) == []
    async with Bank(url, config=config) as bank:
        assert len(await said(await bank.session("other/stays"))) == 80
        assert await problems(bank) == []


# The registry ---------------------------------------------------------------------------------


def unattended(bank: Bank) -> set[str]:
    """Collections of Perdure's own for which nobody has decided what forgetting does."""
    declared = {declared.name for declared in records._types.values()}
    own = {name for name in declared if name.startswith("perdure_")}
    return own - bank.forgetting.collections - WITHOUT_CONTENT.keys()


def modules() -> Iterator[str]:
    for module in pkgutil.walk_packages(perdure.__path__, "perdure."):
        if not module.name.endswith("__main__"):
            yield module.name


def imported(name: str) -> None:
    with contextlib.suppress(MissingFramework):  # its records are in perdure.sessions
        importlib.import_module(name)


@pytest.mark.parametrize("store_url", ["memory"], indirect=True)
async def test_every_collection_is_in_the_registry(bank: Bank) -> None:
    """If this fails, you have added a collection.

    Does it hold content of turns, or what was made from it? Then write a `Place` that forgets it,
    and join it to `bank.forgetting`. If it does not, say so in `WITHOUT_CONTENT`, with the reason.
    """
    for name in modules():
        imported(name)
    assert unattended(bank) == set()
    declared = {each.name for each in records._types.values()}
    assert WITHOUT_CONTENT.keys() <= declared, "a reason for a collection that is not there"
    assert bank.forgetting.collections <= declared
    assert not bank.forgetting.collections & WITHOUT_CONTENT.keys()


@pytest.mark.parametrize("store_url", ["memory"], indirect=True)
async def test_a_new_collection_is_noticed(bank: Bank) -> None:
    @system_record("summaries_of_turns")
    class Summary(msgspec.Struct, frozen=True):
        id: Annotated[str, Key()]

    try:
        assert unattended(bank) == {"perdure_summaries_of_turns"}
    finally:
        del records._types[Summary]


async def test_places_that_join_are_asked_first(bank: Bank, session: Session) -> None:
    """What is made from turns goes before them: it can be made again only while they are there."""
    await fill(session, 2)
    asked = list[tuple[ForgetScope, int]]()

    class Summaries:
        collections = frozenset({"perdure_summaries_of_turns"})

        async def forget(self, scope: ForgetScope) -> None:
            there = await bank.collection(TurnPiece).query().prefix("planner/").values()
            asked.append((scope, sum(not piece.forgotten for piece in there)))

    bank.forgetting.join(Summaries())
    assert "perdure_summaries_of_turns" in bank.forgetting.collections
    await bank.forget("planner/auth", turns=[1])
    await bank.forget("planner/auth")
    await bank.forget_agent("planner")
    # And again afterwards: others may have been at work on what went.
    assert asked == [
        (ForgetScope(("planner/auth",), (1,)), 2),
        (ForgetScope(("planner/auth",), (1,)), 1),
        (ForgetScope(("planner/auth",)), 1),
        (ForgetScope(("planner/auth",)), 0),
        (ForgetScope((), agent="planner"), 0),
        (ForgetScope((), agent="planner"), 0),
    ]


async def test_what_others_make_of_a_session_while_it_is_forgotten_goes_too(bank: Bank) -> None:
    session = await furnish(bank, "planner/auth")

    class Busy:
        """Lets the meter count while the session is being forgotten."""

        collections = frozenset[str]()

        async def forget(self, scope: ForgetScope) -> None:
            await bank.collection(TurnCount).query().prefix("planner/auth/").delete()
            bank.services.token_counts.missed(session.record, 1, 9)
            await bank.jobs.settle_idle()

    bank.forgetting.places.append(Busy())
    await bank.forget("planner/auth")
    assert "perdure_counts" not in await rows(bank)


async def test_events_that_wait_go_with_their_session(bank: Bank) -> None:
    await fill(await bank.session("planner/auth"), 1)
    parked = bank.collection(Parked)
    for number, key in enumerate(["planner/auth", "planner/auth/1", "planner/auth2", ""]):
        await parked.put(Parked(f"{number}", "s", 1, "t", key, b"payload", 0, key, "behind"))
    await bank.forget("planner/auth", turns=[1])
    assert await parked.query().count() == 4
    await bank.forget("planner/auth")
    assert [event.key for event in await parked.query().values()] == ["planner/auth2", ""]
    await bank.forget_agent("planner")
    assert [event.key for event in await parked.query().values()] == [""]


async def test_receipts_say_nothing_about_their_keys(bank: Bank, session: Session) -> None:
    await session.append(chat(1), key=MARKER)
    (receipt,) = await bank.collection(Receipt).query().values()
    assert MARKER not in str(receipt)

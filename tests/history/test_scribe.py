"""Renditions: there a moment later, made at once if they are asked for, gone when forgotten."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from perdure.bank import Bank
from perdure.core.errors import Unavailable
from perdure.core.messages import Message, Text, assistant, user
from perdure.core.tokens import o200k
from perdure.history.log_records import (
    Head,
    Owned,
    TurnCount,
    TurnPiece,
    newest,
    turn_key,
)
from perdure.history.manifest import RoundId
from perdure.history.renditions import algorithm
from perdure.history.renditions.rendition_maker import RenditionMaker
from perdure.history.renditions.rendition_records import Rendition, Tiny
from perdure.history.renditions.rendition_service import RenditionService, RoundAtLevel, RoundSizes
from perdure.history.renditions.rendition_store import MakeRequest, RenditionStore
from perdure.history.turn_reader import TurnReader
from perdure.history.turn_tags import escape
from perdure.jobs import PendingMark
from perdure.sessions.session import Session
from perdure.storage.middleware import Call, Commit, Find
from perdure.testing import ManualClock
from tests.conftest import DURABLE
from tests.history.conftest import MakeBank, everywhere
from tests.history.scribes import LONG, labour, rows, sizes, tinies, without_scribe, words
from tests.history.talk import Fault, Ledger, call, chat, fill, result, work


@pytest.fixture
def scribe(bank: Bank) -> RenditionService:
    return bank.services.renditions


async def assert_sound(scribe: RenditionService, session: Session) -> list[RoundSizes]:
    """Every round has what the algorithm makes of it, counted as a prompt would carry it."""
    made = await sizes(scribe, session)
    texts = await words(scribe, session, made)
    turns = {turn.number: turn async for turn in session.read()}
    assert len(made) == sum(len(turn.rounds) for turn in turns.values())
    for each, (raw, smooth, compact) in zip(made, texts, strict=True):
        round = turns[each.place.turn].rounds[each.place.round - 1]
        messages = await session.resolve(round.messages)
        assert raw == algorithm.raw(messages)
        assert (smooth, compact) == algorithm.both(messages, str(each.place))
        count = o200k().count
        assert (each.smooth, each.compact) == (count(escape(smooth)), count(escape(compact)))
        assert each.raw == round.tokens or round.tokens is None
    return made


@everywhere
async def test_renditions_are_there_after_settling(
    bank: Bank, session: Session, scribe: RenditionService
) -> None:
    await session.append(labour(1))
    await session.append(chat(2))
    await bank.settle()
    assert list(await rows(bank, session.name)) == ["1.1", "1.2", "2.1"]
    assert list(await tinies(bank, session.name)) == [1, 2]
    assert await bank.collection(PendingMark).query().count() == 0
    made = await assert_sound(scribe, session)
    assert made[0].raw > made[0].smooth > made[0].compact
    head = await session.head()
    short = await scribe.tinies(session.record, head, [1, 2, 7])
    assert list(short) == [1, 2]
    (text, nothing) = await scribe.tiny_texts(session.record, head, [(1, short[1].variant), (7, 0)])
    assert (short[1].tokens, nothing) == (o200k().count(text), "")
    assert 0 < short[1].tokens <= max(40, made[0].raw // 20 + made[1].raw // 20)


async def test_renditions_appear_by_themselves(bank: Bank, session: Session) -> None:
    await session.append(labour(1))
    async with asyncio.timeout(60):
        while not await tinies(bank, session.name):  # noqa: ASYNC110 (nobody tells)
            await asyncio.sleep(0.01)
    assert len(await rows(bank, session.name)) == 2


async def test_a_round_is_made_when_it_is_complete(
    bank: Bank, session: Session, scribe: RenditionService
) -> None:
    steps: list[tuple[Message, list[str], list[int]]] = [
        (user(LONG), [], []),
        (call("a", "b"), [], []),
        (result("a"), [], []),
        (result("b"), ["1.1"], []),
        (call("c"), ["1.1"], []),
        (result("c", text=LONG * 9), ["1.1", "1.2"], []),
        (assistant("done"), ["1.1", "1.2", "1.3"], [1]),
    ]
    for message, rounds, turns in steps:
        await session.append(message)
        await bank.settle()
        assert list(await rows(bank, session.name)) == rounds
        assert list(await tinies(bank, session.name)) == turns
    made = await assert_sound(scribe, session)
    assert [each.variant for each in made] == [0, 0, 0]


async def test_a_turn_is_closed_by_the_next(
    bank: Bank, session: Session, scribe: RenditionService
) -> None:
    await session.append(call("a"))
    await bank.settle()
    assert not await rows(bank, session.name)
    await session.append(user("Never mind."))
    await bank.settle()
    assert list(await rows(bank, session.name)) == ["1.1"]
    assert list(await tinies(bank, session.name)) == [1]
    assert len(await sizes(scribe, session)) == 2


async def test_what_is_missing_is_made_at_once(bank: Bank, session: Session) -> None:
    scribe = bank.services.renditions
    without_scribe(bank)
    await session.append([*labour(1), *labour(2), *work(3)], count=True)
    assert not await rows(bank, session.name)
    await assert_sound(scribe, session)
    assert len(await rows(bank, session.name)) == 6
    head = await session.head()
    found = await scribe.tinies(session.record, head, range(1, 4))
    assert list(found) == [1, 2, 3]
    part = await scribe.sizes(session.record, head, RoundId(1, 2), RoundId(2, 1))
    assert [str(each.place) for each in part] == ["T-1.2", "T-2.1"]


async def test_an_open_round_is_made_as_far_as_it_is_there(
    bank: Bank, session: Session, scribe: RenditionService
) -> None:
    await session.append([user(LONG * 5), call("a")])
    (before,) = await assert_sound(scribe, session)
    (old,) = await words(scribe, session, [before])
    await session.append([result("a", text=LONG * 20)])
    (after,) = await assert_sound(scribe, session)
    assert (before.variant, after.variant) == (0, 1)
    assert after.smooth > before.smooth
    # What an epoch showed it can show again.
    assert await words(scribe, session, [before]) == [old]


async def test_a_long_turn_is_not_read_from_its_beginning(make_bank: MakeBank) -> None:
    ledger = Ledger()
    bank = await make_bank(middleware=(ledger,))
    scribe = bank.services.renditions
    session = await bank.session("planner/auth")
    await session.append(user(LONG))
    for number in range(30):
        await session.append([call(f"c{number}"), result(f"c{number}", text=LONG)])
        await bank.jobs.settle_idle()
        reads = [each for each in ledger.calls if _reads_pieces(each)]
        ledger.calls.clear()
        assert len(reads) <= 1
    assert len(await rows(bank, session.name)) == 30
    await session.append(assistant("done"))
    await bank.settle()
    assert list(await tinies(bank, session.name)) == [1]
    await assert_sound(scribe, session)


def _reads_pieces(call: Call) -> bool:
    return isinstance(call, Find) and call.query.collection == "perdure_turns"


@pytest.mark.parametrize("store_url", DURABLE, indirect=True)
async def test_what_another_process_left_is_found(make_bank: MakeBank) -> None:
    one, other = await make_bank(), await make_bank()
    session = await one.session("planner/auth")
    await session.append(labour(1))
    one.jobs._idle._last = float("inf")  # it never comes to it: it is about to die
    assert await other.collection(PendingMark).query().count() == 1
    scribe = other.services.renditions
    again = await other.session("planner/auth")
    await assert_sound(scribe, again)
    await other.settle()
    assert list(await tinies(other, session.name)) == [1]


async def test_marks_stay_until_renditions_are_made(
    make_bank: MakeBank, clock: ManualClock
) -> None:
    fault = _RenditionFault()
    bank = await make_bank(middleware=(fault,))
    session = await bank.session("planner/auth")
    fault.error = Unavailable("not now")
    await session.append(labour(1))
    with pytest.raises(Unavailable):
        await bank.jobs.settle_idle()
    assert await bank.collection(TurnCount).query().count() == 1
    assert await bank.collection(PendingMark).query().count() == 1
    fault.error = None
    await bank.settle()
    assert await bank.collection(PendingMark).query().count() == 0
    assert len(await rows(bank, session.name)) == 2


class _RenditionFault(Fault):
    def picks(self, call: Call) -> bool:
        return isinstance(call, Commit) and any(
            write.collection == "perdure_renditions" for write in call.batch.writes
        )


async def test_undone_and_forgotten_turns_have_none(
    bank: Bank, session: Session, scribe: RenditionService
) -> None:
    await session.append([*labour(1), *labour(2), *labour(3)])
    await bank.settle()
    head = await session.head()
    before = await sizes(scribe, session)
    await session.undo()
    await bank.forget(session.name, turns=[1])
    assert list(await rows(bank, session.name)) == ["2.1", "2.2", "3.1", "3.2"]
    assert list(await tinies(bank, session.name)) == [2, 3]
    made = await sizes(scribe, session)
    assert {each.place.turn for each in made} == {2}
    now = await session.head()
    assert list(await scribe.tinies(session.record, now, [1, 2, 3])) == [2]
    texts = await scribe.texts(
        session.record, head, [RoundAtLevel(each.place, "C") for each in before]
    )
    assert [bool(text) for text in texts] == [False, False, True, True, True, True]
    assert await scribe.tiny_texts(session.record, head, [(1, 0)]) == [""]
    await bank.forget(session.name)
    assert not await bank.collection(Rendition).query().count()
    assert not await bank.collection(Tiny).query().count()


async def test_what_is_forgotten_while_it_is_made_is_not_stored(
    bank: Bank, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    await session.append(labour(1), count=True)
    reader = TurnReader(bank.store)
    maker = RenditionMaker(
        bank.store, reader, bank.artifacts, bank.services.token_counts, bank.jobs
    )
    store = RenditionStore(bank.store, maker, bank.services.token_counts)
    true_variant = maker.variant

    async def variant(messages: tuple[Message, ...], place: RoundId) -> object:
        monkeypatch.setattr(maker, "variant", true_variant)
        await bank.forget(session.name, turns=[1])
        return await true_variant(messages, place)

    monkeypatch.setattr(maker, "variant", variant)
    head = await session.head()
    found = await store.make(
        Owned(session.name, 1, 1), head, MakeRequest(incomplete=True, tiny=True)
    )
    assert not found
    assert not await bank.collection(Rendition).query().count()
    assert not await bank.collection(Tiny).query().count()


# Forks ------------------------------------------------------------------------------------------


async def test_a_fork_uses_what_its_parent_has(
    bank: Bank, session: Session, scribe: RenditionService
) -> None:
    await session.append([*labour(1), *labour(2)])
    await bank.settle()
    fork = await session.fork("coder/auth")
    await fork.append(labour(3))
    await bank.settle()
    assert list(await rows(bank, session.name)) == ["1.1", "1.2", "2.1", "2.2"]
    assert list(await rows(bank, fork.name)) == ["3.1", "3.2"]
    made = await assert_sound(scribe, fork)
    assert len(made) == 6
    assert list(await rows(bank, fork.name)) == ["3.1", "3.2"]
    short = await scribe.tinies(fork.record, await fork.head(), [1, 2, 3])
    assert list(short) == [1, 2, 3]


async def test_a_shared_turn_that_went_on_without_the_fork(
    bank: Bank, session: Session, scribe: RenditionService
) -> None:
    await session.append([user(LONG * 5), call("a")])
    fork = await session.fork("coder/auth")
    await session.append([result("a", text=LONG * 20), assistant(LONG * 4)])
    await bank.settle()
    own = await assert_sound(scribe, session)
    theirs = await assert_sound(scribe, fork)
    assert (len(own), len(theirs)) == (2, 1)
    assert theirs[0].smooth < own[0].smooth
    row = (await rows(bank, session.name))["1.1"]
    assert [each.messages for each in row.variants] == [3, 2]
    # Neither takes the other's, now that both are there.
    assert await sizes(scribe, session) == own
    assert await sizes(scribe, fork) == theirs


async def test_a_rerooted_fork_keeps_what_it_shared(
    bank: Bank, session: Session, scribe: RenditionService
) -> None:
    await session.append(labour(1))
    await session.append([user(LONG * 5), call("a")])
    fork = await session.fork("coder/auth")
    await session.append([result("a", text="parents only " * 30), assistant("only mine")])
    await bank.settle()
    before = await sizes(scribe, fork)
    texts = await words(scribe, fork, before)
    short = await scribe.tinies(fork.record, await fork.head(), [1, 2])
    await bank.forget(session.name, reroot=True)
    fork = await bank.session("coder/auth")
    assert await sizes(scribe, fork) == before
    assert await words(scribe, fork, before) == texts
    assert await scribe.tinies(fork.record, await fork.head(), [1, 2]) == short
    kept = (await rows(bank, fork.name))["2.1"]
    assert [bool(each.packed) for each in kept.variants] == [
        each.messages <= 2 for each in kept.variants
    ]


# Recipes, damage, the whole of a session --------------------------------------------------------


async def test_a_new_recipe_makes_only_what_is_shown_anew(
    bank: Bank, session: Session, scribe: RenditionService, monkeypatch: pytest.MonkeyPatch
) -> None:
    await session.append([*labour(1), *labour(2)])
    await bank.settle()
    before = await sizes(scribe, session)
    texts = await words(scribe, session, before)
    monkeypatch.setattr(algorithm, "RECIPE", "a99")
    monkeypatch.setattr(algorithm, "both", lambda _, place: (f"S {place}", "C"))
    (standing,) = await scribe.status(session.name)
    assert (standing.stale, standing.missing) == (6, 0)
    assert await sizes(scribe, session) == before
    head = await session.head()
    assert await scribe.refresh(session.record, head, [RoundId(2, 1)]) == 2
    after = await sizes(scribe, session)
    assert [each.variant for each in after] == [0, 0, 1, 1]
    assert await words(scribe, session, before) == texts
    assert (await words(scribe, session, after))[2][1:] == ["S T-2.1", "C"]
    (standing,) = await scribe.status(session.name)
    assert standing.stale == 3
    assert await scribe.refresh(session.record, head, [RoundId(2, 1)]) == 0


async def test_a_rendition_that_cannot_be_read_is_made_anew(
    bank: Bank, session: Session, scribe: RenditionService
) -> None:
    await session.append(labour(1))
    made = await assert_sound(scribe, session)
    texts = await words(scribe, session, made)
    records = bank.collection(Rendition)
    for row in (await rows(bank, session.name)).values():
        (variant,) = row.variants
        await records.put(replace(row, variants=(replace(variant, packed=b"\x01rubbish"),)))
    assert await words(scribe, session, made) == texts
    ghost = RoundSizes(RoundId(1, 1), 0, 0, 0, 200)
    assert await words(scribe, session, [ghost]) == texts[:1]


async def test_what_was_imported_is_made_in_the_background(bank: Bank, session: Session) -> None:
    bank.jobs._idle._last = float("inf")  # it has to wait
    for number in range(1, 60):
        await session.append(work(number), count=True)
    pieces = bank.collection(TurnPiece)
    piece = (await pieces.query().prefix(f"{session.name}/00000030.").values())[0]
    await pieces.put(replace(piece, content=b"\xc1"))
    await bank.settle()
    assert sorted(await tinies(bank, session.name)) == [n for n in range(1, 60) if n != 30]
    assert not bank.services.renditions._noted
    assert not bank.services.renditions._bulk


async def test_catching_up_with_what_nobody_noted(bank: Bank, session: Session) -> None:
    without_scribe(bank)
    for number in range(1, 60):
        await session.append(work(number), count=True)
    scribe = bank.services.renditions
    (standing,) = await scribe.status(session.name)
    assert (standing.rounds, standing.turns, standing.missing) == (118, 59, 177)
    steps = list[tuple[str, int, int]]()
    await scribe.catch_up(session.record, lambda *step: steps.append(step))
    (standing,) = await scribe.status()
    assert (standing.missing, standing.by_algorithm, standing.by_model) == (0, 177, 0)
    assert standing.levels["S"].raw == standing.levels["T"].raw > 0
    assert steps[0][1:] == (0, 59)
    assert len(steps) > 1
    await assert_sound(scribe, session)


async def test_a_damaged_turn_does_not_keep_others_from_theirs(
    bank: Bank, session: Session, scribe: RenditionService
) -> None:
    without_scribe(bank)
    await fill(session, 5)
    pieces = bank.collection(TurnPiece)
    piece = (await pieces.query().prefix(f"{session.name}/00000003.").values())[0]
    await pieces.put(replace(piece, content=b"\xc1"))
    scribe.missed(session.record, 1, 5)
    assert not await scribe.work(lambda: True)
    assert list(await tinies(bank, session.name)) == [1, 2, 4, 5]


async def test_moved_content_is_put_back(make_bank: MakeBank, tmp_path: Path) -> None:
    bank = await make_bank(offload_over=256)
    scribe = bank.services.renditions
    session = await bank.session("planner/auth")
    await session.append([*labour(1), user("and " + LONG * 10)])
    await bank.settle()
    made = await assert_sound(scribe, session)
    assert made[0].smooth > 200


async def test_work_stops_when_it_is_told_to(bank: Bank, session: Session) -> None:
    scribe = bank.services.renditions
    without_scribe(bank)  # no work but ours
    turns = [message for n in range(1, 9) for message in labour(n, lines=3)]
    await session.append(turns, count=True)
    bank.jobs._idle._last = float("inf")
    scribe.missed(session.record, 1, 8)
    assert await scribe.work(lambda: False)
    assert len(await rows(bank, session.name)) == 1  # a little is done in any case
    moments = 1
    while await scribe.work(lambda: False):
        moments += 1
    assert len(await rows(bank, session.name)) == 16
    assert len(await tinies(bank, session.name)) == 8
    assert moments > 8


async def test_appends_that_never_pause_do_not_starve_it(
    bank: Bank, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bank.jobs._idle, "is_idle", lambda: False)
    async with asyncio.timeout(60):
        number = 0
        while not await rows(bank, session.name):
            number += 1
            await session.append(chat(number))
            await asyncio.sleep(0.005)
    assert number > 1


async def test_a_session_that_is_gone(
    bank: Bank, session: Session, scribe: RenditionService
) -> None:
    await session.append(labour(1))
    await bank.forget(session.name)
    await bank.settle()
    assert not scribe._noted
    assert not scribe._bulk
    assert not await bank.collection(Rendition).query().count()
    assert await scribe.catch_up(session.record) == 0
    assert await scribe.status(session.name) == []
    assert await sizes_of(scribe, session) == []


async def sizes_of(scribe: RenditionService, session: Session) -> list[RoundSizes]:
    head = Head(session.name)
    return await scribe.sizes(session.record, head, RoundId(1), RoundId(9))


async def test_the_key_of_a_count_is_that_of_a_tiny(bank: Bank, session: Session) -> None:
    await session.append([Message("user", (Text("hi"),)), assistant("yes")])
    await bank.settle()
    assert await bank.collection(Tiny).get(turn_key(session.name, 1))


@given(st.randoms(use_true_random=False))
async def test_whatever_happens_everything_is_there(dice: random.Random) -> None:
    """Writers, forks, undone turns, late results, background work that stops at any point."""
    bank = Bank("memory://")
    async with bank:
        bank.jobs._idle._last = float("inf")  # no work but ours
        sessions = [await bank.session("a/1"), await bank.session("a/1")]
        waiting = dict[int, str]()
        for step in range(dice.randrange(3, 14)):
            at = dice.randrange(len(sessions))
            session = sessions[at]
            match dice.choice(["chat", "call", "call", "result", "undo", "fork", "work", "sizes"]):
                case "chat":
                    await session.append([user(f"{step} {LONG}"), assistant(LONG * 3)])
                case "call":
                    waiting[at] = f"c{step}"
                    await session.append([user(LONG), call(waiting[at])])
                case "result" if at in waiting:
                    await session.append(result(waiting.pop(at), text=LONG * 8))
                case "undo":
                    await session.undo()
                case "fork" if newest(await session.head()) and len(sessions) < 5:
                    sessions.append(await session.fork(f"a/{len(sessions)}"))
                case "work":
                    await bank.services.renditions.work(lambda: dice.random() < 0.5)
                case "sizes":
                    await sizes(bank.services.renditions, session)
            bank.jobs._idle._last = float("inf")
        if dice.random() < 0.5:
            await bank.settle()
        for session in sessions:
            before = await assert_sound(bank.services.renditions, session)
            assert await sizes(bank.services.renditions, session) == before
        await bank.settle()
        assert not bank.services.renditions._noted
        assert not bank.services.renditions._bulk
        for session in sessions:
            await bank.services.renditions.catch_up(session.record)
            (standing,) = await bank.services.renditions.status(session.name)
            assert standing.missing == 0

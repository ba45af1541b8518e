"""The hash chain: whatever is changed in the store behind the log's back is found and named."""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest

from perdure.bank import Bank
from perdure.core import messages as canonical
from perdure.core.messages import Message, Text, assistant, user
from perdure.history import chain
from perdure.history.log_records import Head, SessionRecord, TurnPiece, piece_key
from perdure.sessions.session import Session
from tests.history.conftest import everywhere
from tests.history.talk import call, chat, fill, one, problems, result, work

KEY = "perdure_turns/planner/auth/"


async def pieces_of(bank: Bank) -> dict[int, TurnPiece]:
    """All pieces, by their number."""
    return {piece.number: piece for piece in await bank.collection(TurnPiece).query().values()}


async def overwrite(bank: Bank, piece: TurnPiece, **changes: Any) -> None:
    """Change a piece as somebody who can write to the database does.

    The row is whole, and has the checksum that it should have: only the chain can tell.
    """
    await bank.collection(TurnPiece).put(msgspec.structs.replace(piece, **changes))


@everywhere
async def test_a_log_that_nobody_touched_is_sound(bank: Bank, session: Session) -> None:
    await fill(session, 5)
    for message in work(6):
        await session.append(message)
    assert await problems(bank) == []


@everywhere
async def test_altered_content_is_named(bank: Bank, session: Session) -> None:
    await fill(session, 5)
    piece = (await pieces_of(bank))[3]
    lie = canonical.encode([user("prompt 3"), assistant("I never said that")])
    await overwrite(bank, piece, content=lie)
    assert await problems(bank) == [
        (
            f"{KEY}00000003.00000003",
            "the chain is broken here: it is not as it was written, or not in its place",
        )
    ]


async def _content(bank: Bank, pieces: dict[int, TurnPiece]) -> None:
    await overwrite(bank, pieces[3], content=pieces[2].content)


async def _salt(bank: Bank, pieces: dict[int, TurnPiece]) -> None:
    await overwrite(bank, pieces[3], salt=bytes(16))


async def _both(bank: Bank, pieces: dict[int, TurnPiece]) -> None:
    """Content, salt and link of another piece: a whole one, in the wrong place."""
    other = pieces[2]
    await overwrite(bank, pieces[3], content=other.content, salt=other.salt, link=other.link)


async def _round(bank: Bank, pieces: dict[int, TurnPiece]) -> None:
    await overwrite(bank, pieces[3], round=2)


async def _relinked(bank: Bank, pieces: dict[int, TurnPiece]) -> None:
    """Somebody who knows how the chain works, and stops after one link."""
    lie = canonical.encode([user("prompt 3"), assistant("a lie")])
    commitment = chain.commit(msgspec.structs.replace(pieces[3], content=lie))
    forged = chain.link(pieces[2].link, 3, 3, 1, commitment)
    await overwrite(bank, pieces[3], content=lie, link=forged)


async def _swapped(bank: Bank, pieces: dict[int, TurnPiece]) -> None:
    ours, theirs = pieces[3], pieces[4]
    await overwrite(bank, ours, id=theirs.id)
    await overwrite(bank, theirs, id=ours.id)


async def _deleted(bank: Bank, pieces: dict[int, TurnPiece]) -> None:
    await bank.collection(TurnPiece).delete(pieces[3].id)


async def _deleted_two(bank: Bank, pieces: dict[int, TurnPiece]) -> None:
    await bank.collection(TurnPiece).delete_many([pieces[2].id, pieces[3].id])


async def _deleted_first(bank: Bank, pieces: dict[int, TurnPiece]) -> None:
    await bank.collection(TurnPiece).delete(pieces[1].id)


async def _deleted_last(bank: Bank, pieces: dict[int, TurnPiece]) -> None:
    await bank.collection(TurnPiece).delete(pieces[5].id)


async def _doubled(bank: Bank, pieces: dict[int, TurnPiece]) -> None:
    await overwrite(bank, pieces[3], id=piece_key("planner/auth", 4, 3))


async def _moved(bank: Bank, pieces: dict[int, TurnPiece]) -> None:
    """To another turn."""
    await bank.collection(TurnPiece).delete(pieces[3].id)
    await overwrite(bank, pieces[3], id=piece_key("planner/auth", 2, 3))


async def _inserted(bank: Bank, pieces: dict[int, TurnPiece]) -> None:
    await overwrite(bank, pieces[5], id=piece_key("planner/auth", 6, 6))


async def _buried(bank: Bank, pieces: dict[int, TurnPiece]) -> None:
    """A tombstone for something that was never said."""
    await overwrite(bank, pieces[3], content=b"", salt=b"", commitment=bytes(32))


async def _rolled_back(bank: Bank, pieces: dict[int, TurnPiece]) -> None:
    head = await bank.collection(Head).get("planner/auth")
    assert head is not None
    older = msgspec.structs.replace(head, pieces=3, link=pieces[3].link)
    await bank.collection(Head).put(older)


async def _rolled_back_with_its_pieces(bank: Bank, pieces: dict[int, TurnPiece]) -> None:
    """The pieces are gone, and the head still counts them."""
    await bank.collection(TurnPiece).delete_many([pieces[4].id, pieces[5].id])


async def _forged_head(bank: Bank, pieces: dict[int, TurnPiece]) -> None:
    head = await bank.collection(Head).get("planner/auth")
    assert head is not None
    await bank.collection(Head).put(msgspec.structs.replace(head, link=bytes(32)))


async def _headless(bank: Bank, pieces: dict[int, TurnPiece]) -> None:
    await bank.collection(Head).delete("planner/auth")


Damage = Callable[[Bank, dict[int, TurnPiece]], Awaitable[None]]
HERE = "the chain is broken here"
BEFORE = "the chain is broken before it"


@pytest.mark.parametrize(
    ("damage", "subject", "what"),
    [
        (_content, f"{KEY}00000003.00000003", HERE),
        (_salt, f"{KEY}00000003.00000003", HERE),
        (_both, f"{KEY}00000003.00000003", HERE),
        (_round, f"{KEY}00000003.00000003", HERE),
        (_relinked, f"{KEY}00000004.00000004", HERE),
        (_swapped, f"{KEY}00000003.00000003", HERE),
        (_deleted, f"{KEY}00000004.00000004", f"{BEFORE}: piece 3 missing"),
        (_deleted_two, f"{KEY}00000004.00000004", f"{BEFORE}: pieces 2 to 3 missing"),
        (_deleted_first, f"{KEY}00000002.00000002", f"{BEFORE}: piece 1 missing"),
        (_deleted_last, "planner/auth", "the chain ends too early: 1 of its pieces missing"),
        (_doubled, f"{KEY}00000004.00000003", f"{HERE}: its place is taken by another piece"),
        (_moved, f"{KEY}00000002.00000003", HERE),
        (_inserted, f"{KEY}00000006.00000006", HERE),
        (_buried, f"{KEY}00000003.00000003", HERE),
        (_rolled_back, "planner/auth", "the chain goes on behind its head: 2 pieces too many"),
        (
            _rolled_back_with_its_pieces,
            "planner/auth",
            "the chain ends too early: 2 of its pieces missing",
        ),
        (_forged_head, "planner/auth", "the chain does not end where its head says"),
        (_headless, "planner/auth", "has no head"),
    ],
)
async def test_the_first_broken_link_is_named(
    bank: Bank, session: Session, damage: Damage, subject: str, what: str
) -> None:
    await fill(session, 5)
    await fill(await bank.session("planner/other"), 2)
    assert await problems(bank) == []
    await damage(bank, await pieces_of_session(bank))
    found = await problems(bank)
    assert found[0][0] == subject
    assert found[0][1].startswith(what)
    assert len(found) <= 3


async def pieces_of_session(bank: Bank) -> dict[int, TurnPiece]:
    found = await bank.collection(TurnPiece).query().prefix("planner/auth/").values()
    return {piece.number: piece for piece in found}


async def test_one_fault_is_reported_once(bank: Bank, session: Session) -> None:
    await fill(session, 9)
    pieces = await pieces_of(bank)
    await overwrite(bank, pieces[3], content=pieces[1].content)
    await overwrite(bank, pieces[7], content=pieces[1].content)
    assert [subject for subject, _ in await problems(bank)] == [
        f"{KEY}00000003.00000003",
        f"{KEY}00000007.00000007",
    ]


async def test_late_pieces_are_followed_in_the_order_of_the_chain(bank: Bank) -> None:
    first, second = await bank.session("a/b"), await bank.session("a/b")
    await first.append(user("1"))
    for number in range(2, 230):  # more than one page
        await second.append(chat(number))
    await first.append(call("c"))
    await second.append(chat(230))
    await first.append([result("c"), assistant("late")])
    assert await problems(bank) == []
    late = (await pieces_of(bank))[230]
    assert late.turn == 1
    await overwrite(bank, late, content=canonical.encode([assistant("a lie")]))
    assert [subject for subject, _ in await problems(bank)] == [f"perdure_turns/{late.id}"]


async def test_content_that_cannot_be_read_is_named(bank: Bank, session: Session) -> None:
    await fill(session, 3)
    pieces = await pieces_of(bank)
    await overwrite(bank, pieces[2], content=b"\xc1")
    assert [subject for subject, _ in await problems(bank)] == [f"{KEY}00000002.00000002"]


# Forks ----------------------------------------------------------------------------------------


async def test_forks_are_tied_to_what_they_share(bank: Bank, session: Session) -> None:
    await fill(session, 4)
    fork = await session.fork("planner/fork", at=2)
    await fill(fork, 2, first=3)
    assert await problems(bank) == []
    # Its own pieces.
    own = await bank.collection(TurnPiece).query().prefix("planner/fork/").values()
    assert [piece.number for piece in own] == [3, 4]
    await overwrite(bank, own[0], content=canonical.encode([user("a lie")]))
    assert [subject for subject, _ in await problems(bank)] == [f"perdure_turns/{own[0].id}"]
    await overwrite(bank, own[0])
    # Its root.
    record = await bank.collection(SessionRecord).get("planner/fork")
    assert record is not None
    await bank.collection(SessionRecord).put(msgspec.structs.replace(record, root=bytes(32)))
    assert await problems(bank) == [
        ("planner/fork", "its chain does not begin where it left planner/auth"),
        (
            "perdure_turns/planner/fork/00000003.00000003",
            "the chain is broken here: it is not as it was written, or not in its place",
        ),
    ]


async def test_a_fork_whose_parent_is_gone_is_told(bank: Bank, session: Session) -> None:
    await fill(session, 2)
    await fill(await session.fork("planner/fork"), 1, first=3)
    await bank.collection(SessionRecord).delete("planner/auth")
    assert ("planner/fork", "shares turns of planner/auth, which is gone") in await problems(bank)


async def test_an_altered_turn_is_found_though_a_fork_shares_it(
    bank: Bank, session: Session
) -> None:
    await fill(session, 3)
    await session.fork("planner/fork")
    piece = (await pieces_of(bank))[3]
    await overwrite(bank, piece, content=canonical.encode([user("a lie")]))
    assert [subject for subject, _ in await problems(bank)] == [f"perdure_turns/{piece.id}"]


# What the hashes are made of ------------------------------------------------------------------


async def test_the_chain_can_be_derived_by_hand(bank: Bank, session: Session) -> None:
    """As docs and other programs have it: changing the layout breaks every chain there is."""
    await session.append(chat(1))
    await session.append([*work(2), *chat(3), *chat(4)])
    previous = bytes(32)
    for number, piece in sorted((await pieces_of(bank)).items()):
        facts = msgspec.msgpack.encode(
            (piece.breaks, piece.time, piece.ended, piece.tags, piece.masked)
        )
        covered = b"perdure.piece.1\n" + piece.salt + facts + piece.content
        commitment = hashlib.sha256(covered).digest()
        numbers = b"".join(each.to_bytes(8, "big") for each in (number, piece.turn, piece.round))
        previous = hashlib.sha256(b"perdure.link.1\n" + previous + numbers + commitment).digest()
        assert piece.link == previous
        assert len(piece.salt) == 16
    assert (await session.head()).link == previous


async def test_the_same_words_never_have_the_same_commitment(bank: Bank, session: Session) -> None:
    await session.append(chat(1))
    await session.append(chat(1))
    first, second = (await pieces_of(bank)).values()
    assert first.content == second.content
    assert first.salt != second.salt
    again = msgspec.structs.replace(first, salt=second.salt, time=second.time, ended=second.ended)
    assert chain.commit(first) != chain.commit(again) == chain.commit(second)


async def test_a_field_that_is_not_used_does_not_change_the_bytes() -> None:
    """Old chains must close when messages get new fields: defaults are not stored."""
    content = canonical.encode([Message("user", (Text("hi"),))])
    assert content == msgspec.msgpack.encode(
        [{"role": "user", "parts": [{"kind": "text", "text": "hi"}]}]
    )


async def test_an_artifact_that_is_gone_is_reported_with_its_turn(
    bank: Bank, session: Session
) -> None:
    turn = one(await session.append([user("1"), assistant("x" * 100_000)]))
    (hash_,) = canonical.references(turn.messages)
    await bank.artifacts.delete(hash_)
    (problem,) = [item async for item in bank.verify()]
    assert problem.subject == "planner/auth#T-1"
    assert hash_ in problem.what


async def _times(bank: Bank, pieces: dict[int, TurnPiece]) -> None:
    await overwrite(bank, pieces[3], time=1)


async def _tags(bank: Bank, pieces: dict[int, TurnPiece]) -> None:
    await overwrite(bank, pieces[3], tags={"topic": "lies"})


async def _breaks(bank: Bank, pieces: dict[int, TurnPiece]) -> None:
    await overwrite(bank, pieces[3], breaks=(1,))


@pytest.mark.parametrize("change", [_times, _tags, _breaks])
async def test_what_readers_see_beside_the_words_is_proven_too(
    bank: Bank, session: Session, change: Callable[[Bank, dict[int, TurnPiece]], Awaitable[None]]
) -> None:
    await fill(session, 4)
    await change(bank, await pieces_of(bank))
    ((subject, what),) = await problems(bank)
    assert "00000003" in subject
    assert "broken here" in what


async def test_a_head_that_hides_the_newest_turn_is_found(bank: Bank, session: Session) -> None:
    await fill(session, 3)

    def hide(head: Head | None) -> Head:
        assert head is not None
        return msgspec.structs.replace(head, mark=msgspec.structs.replace(head.mark, turn=2))

    await bank.collection(Head).change("planner/auth", hide)
    ((_, what),) = await problems(bank)
    assert "T-2 is the newest: T-3 is" in what

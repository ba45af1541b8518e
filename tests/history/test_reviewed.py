"""What went wrong once between several writers, and must not again."""

from __future__ import annotations

import pytest

from perdure.artifacts import Artifact
from perdure.bank import Bank
from perdure.core.errors import Conflict, InvalidInput
from perdure.core.messages import Message, Text, ToolCall, ToolResult, assistant, user
from perdure.sessions.session import Session
from perdure.testing import ManualClock
from tests.history.conftest import everywhere
from tests.history.talk import chat, fill, one, problems

GITHUB = "ghp_" + "x7Kq9Zt3Lm5Np8Rw2Vb4" + "Yc6Hd1Jf0Gs9AaBb"


@everywhere
async def test_a_session_made_anew_is_not_taken_for_the_old_one(
    bank: Bank, clock: ManualClock
) -> None:
    old = await bank.session("a/b")
    await old.append(chat(1))
    await bank.forget("a/b")
    clock.tick()
    new = await bank.session("a/b")
    await fill(new, 1, first=5)  # its head now has the version that the old one knew
    await old.append(chat(9))
    prompts = [turn.prompt for turn in await new.turns()]
    assert prompts == ["prompt 5", "prompt 9"]
    assert await problems(bank) == []


async def test_what_comes_for_an_undone_turn_stays_in_it(bank: Bank) -> None:
    mine, other = await bank.session("a/b"), await bank.session("a/b")
    await mine.append([user("look"), Message("assistant", (ToolCall("c1", "ls", "{}"),))])
    assert await other.undo() == [1]
    await mine.append(Message("tool", (ToolResult("c1", (Text("files"),)),)))
    await other.append(chat(2))
    assert [turn.number for turn in await other.turns()] == [2]
    undone = await other.turn(1)
    assert undone.status == "undone"
    assert len(undone.messages) == 3


async def test_an_answer_to_an_undone_turn_makes_no_other(bank: Bank) -> None:
    session = await bank.session("a/b")
    await session.append("hello")
    answer = session.answer()
    async with answer:
        await answer.text("It is")
        await session.undo()
    assert await session.turns() == []
    assert (await session.turn(1)).messages[-1].text == "It is"
    assert await session.partials() == []


async def test_a_partial_is_closed_as_it_is_stored(bank: Bank) -> None:
    session = await bank.session("a/b")
    await session.append("hello")
    answer = session.answer()
    await answer.__aenter__()
    (seen,) = await session.partials()
    await answer.text("more")
    await answer.end_part()
    await session.close_partial(seen)
    assert (await session.turn(1)).messages[-1].text == "more"


async def test_a_reply_follows_a_repeated_append(bank: Bank) -> None:
    mine, other = await bank.session("a/b"), await bank.session("a/b")
    await mine.append("mine", key="k")
    await other.append("theirs")
    again = await bank.session("a/b")  # the caller tries again after a crash
    assert one(await again.append("mine", key="k")).number == 1
    assert one(await again.append(assistant("reply"))).number == 1


async def test_undoing_twice_and_forking_does_not_revive_the_first(session: Session) -> None:
    await fill(session, 2)
    await session.undo()
    await session.append(chat(3))
    await session.undo()
    fork = await session.fork("coder/auth", at="T-3")
    assert [turn.number for turn in await fork.turns()] == [1, 3]


async def test_turns_are_undone_by_number(session: Session) -> None:
    await fill(session, 4)
    assert await session.undo(numbers=[2, 3, 9]) == [2, 3]
    assert [turn.number for turn in await session.turns()] == [1, 4]
    assert one(await session.append(assistant("more"))).number == 4


async def test_what_a_user_put_survives_forgetting_a_turn_that_said_it(bank: Bank) -> None:
    content = b"a file of the user's own\n" * 2_000
    artifact = await bank.artifacts.put(content)
    session = await bank.session("a/b")
    await session.append([user("read it"), assistant(content.decode())])
    await bank.forget("a/b")
    assert await bank.artifacts.read(artifact) == content
    assert await problems(bank) == []


async def test_what_only_turns_said_goes_with_them(bank: Bank) -> None:
    content = "said twice\n" * 4_000
    for name in ("a/b", "a/c"):
        await (await bank.session(name)).append([user("read it"), assistant(content)])
    await bank.forget("a/b")
    artifact = Artifact.of(content.encode())
    assert await bank.artifacts.exists(artifact)
    await bank.forget("a/c")
    assert not await bank.artifacts.exists(artifact)


async def test_nothing_can_be_appended_or_forked_while_a_session_is_forgotten(bank: Bank) -> None:
    session = await bank.session("a/b")
    await fill(session, 2)
    failures = []

    class Watching:
        collections = frozenset[str]()

        async def forget(self, scope: object) -> None:
            for attempt in (session.append(chat(3)), session.fork("c/d")):
                with pytest.raises(InvalidInput) as caught:
                    await attempt
                failures.append(caught.value.message)

    bank.forgetting.join(Watching())
    await bank.forget("a/b")
    assert failures
    assert await bank.sessions() == []
    assert await problems(bank) == []


async def test_the_last_turn_that_a_fork_shares_is_closed(session: Session) -> None:
    await session.append("a question")
    fork = await session.fork("coder/auth")
    assert (await fork.turn(1)).status == "closed"
    assert (await session.turn(1)).status == "open"


async def test_a_rerooted_fork_keeps_its_counts(bank: Bank, session: Session) -> None:
    await fill(session, 2)
    fork = await session.fork("coder/auth")
    await bank.settle()
    before = [turn.tokens for turn in await fork.turns()]
    await bank.forget("planner/auth", reroot=True)
    found = await bank.session("coder/auth")
    assert [turn.tokens for turn in await found.turns()] == before
    assert None not in before


async def test_secrets_in_state_and_tags_are_masked(bank: Bank) -> None:
    session = await bank.session("a/b", state={"env": {"token": GITHUB}}, tags={"t": GITHUB})
    await session.describe({"list": ["x", GITHUB]})
    turn = one(await session.append(user("hi"), tags={"t": GITHUB}))
    again = await bank.session("a/b")
    assert GITHUB not in str((again.record, again.state, turn.tags))
    assert again.state["list"][0] == "x"


async def test_what_is_moved_out_is_counted_at_once_too(bank: Bank) -> None:
    text = " ".join(f"word{number}" for number in range(4_000))
    counts = []
    for at_once in (True, False):
        session = await bank.session(f"a/{at_once}")
        await session.append([user("read it"), assistant(text)], count=at_once)
        await bank.settle()
        counts.append((await session.turn(1)).tokens)
    assert counts[0] == counts[1]
    assert counts[0] is not None
    assert counts[0] > 4_000


async def test_pruning_reaches_what_was_moved_out(bank: Bank) -> None:
    session = await bank.session("a/b")
    listing = "\n".join(f"src/package/module_{number}.py" for number in range(5_000))
    call = Message("assistant", (ToolCall("c1", "list_files", "{}"),))
    await session.append([user("ls"), call, Message("tool", (ToolResult("c1", (Text(listing),)),))])
    turn = await session.turn(1, prune=True)
    assert "5000 files" in turn.messages[-1].results[0].text.replace(",", "")


@pytest.mark.parametrize("tags", [["a"], {"a": 1}, "a"])
async def test_what_cannot_be_tags_is_refused(session: Session, tags: object) -> None:
    with pytest.raises(InvalidInput, match="cannot be tags"):
        await session.append("hi", tags=tags)  # type: ignore[arg-type]
    assert await session.turns() == []


async def test_what_is_no_time_is_refused(session: Session) -> None:
    with pytest.raises(InvalidInput, match="is no time"):
        await session.turns(since="tomorrow")


async def test_a_fork_of_a_name_that_is_taken(session: Session) -> None:
    await fill(session, 1)
    await session.fork("coder/auth")
    with pytest.raises(Conflict, match="There is a session coder/auth already"):
        await session.fork("coder/auth")

"""How full windows are, what stands in them, and what of it was needed."""

from __future__ import annotations

import json

import pytest

from perdure.config import HistoryConfig
from perdure.core.messages import Message, Text, ToolCall, ToolResult, assistant, user
from perdure.core.turns import Position
from perdure.history.manifest import RoundId
from perdure.history.sized_rounds import Sized
from perdure.simulation import History, simulate
from perdure.simulation.gradient_policy import GradientPolicy
from perdure.simulation.history_policies import POLICIES
from perdure.simulation.policy_replay import PolicyFigures, replay
from perdure.simulation.prompt_cache import CacheBlock
from perdure.simulation.replay_input import ReplaySetting, SimulatedRequest
from perdure.simulation.used_identifiers import (
    AGE,
    identifiers,
    names,
    old_uses,
    plain,
    text_of,
    without_lists,
)
from perdure.simulation.window_figures import WindowTally, are_bands_possible
from tests.simulation.tiny import BILL, calls, setting

OTHERS = [name for name in POLICIES if not name.startswith("gradient")]


def called(arguments: object, answer: str = "ok", said: str = "") -> list[Message]:
    written = arguments if isinstance(arguments, str) else json.dumps(arguments)
    call = ToolCall("c1", "shell", written)
    parts = (Text(said), call) if said else (call,)
    return [Message("assistant", parts), Message("tool", (ToolResult("c1", (Text(answer),)),))]


# Fill ---------------------------------------------------------------------------------------


async def run(name: str, count: int, budget: int, injection: int = 0) -> PolicyFigures:
    given = setting(calls(count), budget, injection)
    return await replay(POLICIES[name](given), given, BILL)


async def test_fill_counts_from_the_first_request_that_is_short_of_something() -> None:
    # Each prompt takes 10 of 250 tokens, each call 100: two calls fit.
    oldest = await run("drop_oldest", 5, 250)
    assert oldest.fill_mean == oldest.fill_after_epoch == pytest.approx(200 / 240, abs=1e-4)
    half = await run("drop_half", 6, 250)
    assert half.fill_mean == pytest.approx((100 + 200 + 100) / 3 / 240, abs=1e-4)
    assert half.fill_after_epoch == half.fill_after_epoch_least
    assert half.fill_after_epoch == pytest.approx(100 / 240, abs=1e-4)
    summary = await run("rolling_summary", 12, 1_000)
    assert summary.fill_after_epoch == pytest.approx((250 + 300) / 990, abs=1e-4)
    all_of_it = await run("unlimited", 5, 250)
    assert (all_of_it.fill_mean, all_of_it.fill_after_epoch) == (None, None)


async def test_what_is_injected_is_no_room_for_history() -> None:
    found = await run("drop_oldest", 5, 280, injection=30)
    assert found.fill_mean == pytest.approx(200 / 240, abs=1e-4)


async def test_masks_shorten() -> None:
    found = await run("masking", 13, 10**6)
    assert found.fill_mean is not None


def test_bands_right_after_an_epoch() -> None:
    given = setting(calls(4), 1_000)
    tally = WindowTally(given)
    blocks = [CacheBlock(b"", 100)]
    first = {"R": 15, "S": 40, "C": 20, "T": 25}
    later = {"R": 35, "S": 20, "C": 20, "T": 25}
    for number, (bands, rewritten) in enumerate(
        [({"R": 100}, False), (first, True), (later, False), (later, True)]
    ):
        request = SimulatedRequest(
            blocks,
            rewritten=rewritten,
            history=sum(bands.values()),
            shortened=bool(number),
            bands=bands,  # type: ignore[arg-type]  # levels
            bands_possible=True,
        )
        tally.add(number, request)
    found = tally.figures()
    raw = found.bands["R"]
    assert (raw.mean, raw.least, raw.most) == (0.25, 0.15, 0.35)
    assert found.bands["T"].mean == 0.25
    assert found.bands_in_range == 0.5
    assert (found.bands_possible, found.bands_kept) == (1.0, 0.5)
    assert found.fill_after_epoch == pytest.approx(100 / 990, abs=1e-4)


def test_shares_are_possible_once_enough_lies_behind_and_rounds_are_small() -> None:
    def possible(turns: int, raw: int, room: int = 100_000) -> bool:
        rounds = [Sized(RoundId(n), raw, raw // 2, raw // 3) for n in range(1, turns + 1)]
        return are_bands_possible(rounds, {}, room)

    assert not possible(200, 1_000)  # T of all that is older takes less than its share
    assert possible(800, 1_000)
    assert not possible(40, 20_000)  # R would be nothing, or a third


def test_the_turn_under_way_has_no_t() -> None:
    rounds = [Sized(RoundId(1, n), 100, 50, 33) for n in range(1, 801)]
    assert not are_bands_possible(rounds, {}, 10_000)
    assert are_bands_possible([*rounds, *_later(120)], {}, 10_000, in_turn=True)


def _later(many: int) -> list[Sized]:
    return [Sized(RoundId(2, n), 100, 50, 33) for n in range(1, many + 1)]


# Identifiers --------------------------------------------------------------------------------


def test_what_identifiers_are() -> None:
    said = Message(
        "assistant",
        (
            Text(
                'In src/auth.py `login()` raises E0308 for "tenant"; SHIP-12 waits. THE END, Ann.'
            ),
            ToolCall("c1", "shell", json.dumps({"file_path": "lib/a_b.ex", "limit": 120, "n": 7})),
        ),
    )
    found = identifiers([user("my/own.txt"), said])
    assert found == {"src/auth.py", "login", "e0308", "tenant", "ship-12", "lib/a_b.ex", "120"}


@pytest.mark.parametrize(
    ("text", "identifier", "is_there"),
    [
        ("see /home/me/src/a.py:12", "src/a.py", True),
        ("see src/a.pyi", "src/a.py", False),
        ("see src/a.py.bak", "src/a.py", False),
        ("user_id_2 and my_user_id", "user_id", False),
        ("self.user_id.value", "user_id", True),
        ("port 8080.", "8080", True),
        ("port 18080, 8080.5, 8,080, 80801", "8080", False),
        ("fix-120 of branch-1", "fix-12", False),
        ("Head_Count", "head_count", True),
        (r"x = 1\nhead_count = 2", "head_count", True),
    ],
)
def test_identifiers_are_found_as_a_whole(text: str, identifier: str, is_there: bool) -> None:
    assert names(plain(text), identifier) is is_there


def test_bare_lists_of_names_are_no_window() -> None:
    many = ", ".join(f"mod_{number}.py" for number in range(20))
    for text in (many, f"<T-1-T>\nUser: Hi. (Also: {many})\n</T-1-T>", many.replace(", ", "\n- ")):
        assert not names(without_lists(text), "mod_7.py")
    assert "src/" not in without_lists("`src/a.py` `src/b.py` `src/c.py`")
    behind = without_lists(f"{many}. Then we mended the login in auth_x.py, by hand.")
    assert names(behind, "auth_x.py")
    told = "\n".join(f"Read mod_{number}.py and found it empty." for number in range(20))
    assert names(without_lists(told), "mod_7.py")
    code = "\n".join(f"a_{number} = make_{number}(b_{number})" for number in range(20))
    assert names(without_lists(code), "make_7")


def rounds(*said: list[Message]) -> list[tuple[list[Message], int, str]]:
    opening = [len(each) and each[0].role == "user" for each in said]
    return [(each, int(at), text_of(each)) for each, at in zip(said, opening, strict=True)]


def test_a_use_is_old_after_twenty_rounds() -> None:
    told = called({"command": "cat"}, "token_ttl = 86400")
    between = [called({"command": "ls"})] * (AGE - 1)
    use = called({"command": "grep token_ttl"})
    assert old_uses(rounds(told, *between, use))[-1] == ["token_ttl"]
    assert old_uses(rounds(told, *between[1:], use))[-1] == []  # it is too young
    assert old_uses(rounds(*between, use))[-1] == []  # it is new
    given = [user("What is token_ttl?"), *use]
    assert old_uses(rounds(told, *between, given))[-1] == []  # the prompt gives it
    answered = called({"command": "grep token_ttl"}, "token_ttl = 1")
    assert old_uses(rounds(told, *between, answered))[-1] == []  # its own result has it
    thought = [*called({"command": "ls"}, said="The token_ttl is what we need.")]
    assert old_uses(rounds(told, *between, thought))[-1] == ["token_ttl"]


# What stood in the window -------------------------------------------------------------------

FILLER = "Nothing of interest happened in this stretch of the log, which goes on and on. " * 12
FACT = "The lifetime of a session cookie is set by cookie_ttl_seconds in conf/session.toml."


def conversation(use: list[Message]) -> History:
    turns = [[user("Where is the lifetime of cookies set?"), assistant(FACT)]]
    turns += [[user(f"Read part {n} of the log."), assistant(FILLER)] for n in range(40)]
    turns.append([user("Change the lifetime of a session cookie to a day."), *use])
    return History.of([(Position(at, 1), each) for at, each in enumerate(turns, start=1)])


CONVERSATION = conversation(called({"command": "sed -i s/1/86400/ conf/session.toml"}))


async def test_known() -> None:
    found = await simulate(CONVERSATION, budget=3_000)
    assert found.old_uses == 1
    known = {name: each.known for name, each in found.policies.items()}
    assert known["unlimited"] == 1.0
    assert known["drop_oldest"] == known["drop_half"] == 0.0
    assert known["gradient"] == 1.0


async def test_the_gradient_runs_with_recall() -> None:
    given = CONVERSATION.calls
    policy = GradientPolicy(ReplaySetting(calls=given, budget=1_500))
    try:
        found = [await policy.request(number) for number in range(len(given))]
    finally:
        await policy.close()
    last = found[-1]
    assert last.injected > 60  # more than the reminder
    assert any("cookie_ttl_seconds" in text for text in last.texts)
    assert sum(last.bands.values()) == last.history
    taken = sum(block.tokens for block in last.blocks)
    assert taken <= 1_500
    # What was injected with earlier prompts stands there as well, and is no history.
    assert last.history <= taken - last.injected - given[-1].prompt_tokens


async def test_profiles_are_policies_and_the_configured_one_holds() -> None:
    both = ("gradient", "gradient_thrifty")
    found = (await simulate(CONVERSATION, budget=3_000, policies=both)).policies
    full, thrifty = found["gradient"].fill_mean, found["gradient_thrifty"].fill_mean
    assert full is not None
    assert thrifty is not None
    assert full > thrifty + 0.1
    shown = HistoryConfig(strategy="regular", profile="thrifty")
    again = await simulate(CONVERSATION, budget=3_000, policies=["gradient"], shown=shown)
    assert again.policies["gradient"] == found["gradient_thrifty"]


async def test_calls_may_be_left_out() -> None:
    given = CONVERSATION.calls
    policy = GradientPolicy(ReplaySetting(calls=given, budget=3_000))
    try:
        found = [await policy.request(number) for number in (0, 20, 41)]
    finally:
        await policy.close()
    assert [each.rewritten for each in found] == [False, True, True]
    assert sum(call.tokens for call in given[:-1]) == found[-1].covered
    assert all(sum(block.tokens for block in each.blocks) <= 3_000 for each in found)


async def test_each_policy_shows_its_words() -> None:
    found = await simulate(CONVERSATION, budget=4_000, policies=OTHERS)
    assert all(each.known is not None for each in found.policies.values())
    given = ReplaySetting(calls=CONVERSATION.calls, budget=4_000)
    for name in OTHERS:
        policy = POLICIES[name](given)
        requests = [await policy.request(number) for number in range(len(given.calls))]
        assert any("part 38" in text for text in requests[-1].texts)
        short = [request for request in requests if request.shortened]
        named = ["lifetime of cookies" in text for request in short for text in request.texts]
        # The oldest is gone, but for what a summary says of it for a while.
        assert any(named) == (name == "rolling_summary"), name

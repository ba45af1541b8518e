"""The synthetic project: it is what it says, for every turn that is looked at."""

import hashlib
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from itertools import islice

import pytest

import perdure
from examples.made_up_project import fill_project, planted, project_history, project_turn
from examples.project_words import words
from perdure import wire
from perdure.core.messages import Message, encode, words_of
from perdure.core.tokens import count_messages, o200k

TURNS = 600

_DIGEST = """
import hashlib
from perdure.core.messages import encode
from examples.made_up_project import project_history
print(hashlib.sha256(b"".join(map(encode, project_history(60, seed=5)))).hexdigest())
"""


def text_of(turn: Sequence[Message]) -> str:
    return "\n".join(words_of(part) for message in turn for part in message.parts)


def rounds_of(turn: Sequence[Message]) -> int:
    return sum(message.role == "assistant" for message in turn)


def test_another_process_tells_the_same_story() -> None:
    told = hashlib.sha256(b"".join(map(encode, project_history(60, seed=5)))).hexdigest()
    environment = {**os.environ, "PYTHONHASHSEED": "7"}
    command = [sys.executable, "-c", _DIGEST]
    other = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert other.stdout.strip() == told


def test_any_turn_can_be_told_without_those_before() -> None:
    history = list(project_history(TURNS, seed=3))
    for number in (599, 1, 12, 13, 250, 2, 600):
        assert project_turn(number, seed=3) == history[number - 1]
    assert list(islice(project_history(10_000, seed=3), TURNS)) == history


def test_seeds_and_turns_differ() -> None:
    texts = {text_of(project_turn(n, seed)) for seed in range(3) for n in range(1, 60)}
    # Some turns say no more than "thanks", "you're welcome".
    assert len(texts) > 0.9 * 3 * 59


@pytest.mark.parametrize("tokens", [100, 150, 500, 2_000])
def test_turns_take_as_many_tokens_as_asked(tokens: int) -> None:
    counter = o200k()
    history = project_history(1_200, tokens_per_turn=tokens)
    taken = sum(count_messages(counter, turn) for turn in history)
    assert taken / 1_200 == pytest.approx(tokens, rel=0.2)


@pytest.mark.parametrize("api", [None, "chat", "responses", "messages"])
def test_no_provider_would_refuse_it(api: str | None) -> None:
    said = [message for turn in project_history(TURNS) for message in turn]
    assert wire.repaired(said, api) == tuple(said)
    if api is not None:
        codec = wire.codec(api)
        assert codec.violations(codec.encode(said)) == []


def test_each_turn_is_one_turn() -> None:
    for turn in project_history(TURNS):
        assert [message.role for message in turn].count("user") == 1
        assert (turn[0].role, turn[-1].role) == ("user", "assistant")
        assert not turn[-1].calls
        times = [message.time for message in turn if message.time is not None]
        assert times == sorted(times)
        assert len(times) == len(turn)


def test_some_turns_are_long_and_some_are_short() -> None:
    rounds = [rounds_of(turn) for turn in project_history(4_000, tokens_per_turn=200)]
    assert 8 <= sum(each > 10 for each in rounds) <= 40
    assert 10 < max(rounds) <= 41
    assert sum(each == 1 for each in rounds) > 600


@pytest.mark.parametrize("seed", [0, 7])
def test_a_planted_fact_stands_in_its_turn_and_in_no_other(seed: int) -> None:
    texts = [text_of(turn) for turn in project_history(TURNS, seed=seed)]
    facts = {number: planted(number, seed) for number in range(1, TURNS + 1)}
    found = {number: fact for number, fact in facts.items() if fact}
    assert len(found) == TURNS // 20
    for number, fact in found.items():
        assert [at for at, text in enumerate(texts, 1) if fact in text] == [number]


def test_what_is_referred_to_was_decided_there() -> None:
    history = [text_of(turn) for turn in project_history(TURNS)]
    references = 0
    for number, text in enumerate(history, 1):
        for ticket, turn, remedy in re.findall(
            r"As decided in (\S+) \(turn T-(\d+)\), we (.+?); the same holds here", text
        ):
            references += 1
            assert int(turn) < number
            assert f"Decision for {ticket}: we {remedy}" in history[int(turn) - 1]
    assert references > 5


def test_every_gap_in_the_words_is_filled() -> None:
    texts = [text_of(turn) for turn in project_history(TURNS)]
    assert not [text for text in texts if re.search(r"\$\{?[a-z]", text)]
    # Thousands of words and phrases, none of them empty.
    assert len({word for known in words().lists for word in known}) > 10_000
    assert all(word for known in words().lists for word in known)


@pytest.mark.parametrize(("number", "tokens"), [(0, 500), (-1, 500), (1, 99)])
def test_there_is_no_such_turn(number: int, tokens: int) -> None:
    with pytest.raises(perdure.InvalidInput):
        project_turn(number, tokens_per_turn=tokens)


async def test_a_session_is_filled_up_and_holds_what_was_told() -> None:
    seen = list[int]()
    async with perdure.open("memory://") as bank:
        session = await bank.session("dev/project")
        await fill_project(session, 40, seed=2, progress=seen.append)
        await fill_project(session, TURNS, seed=2, progress=seen.append)
        await fill_project(session, TURNS, seed=2, progress=seen.append)
        turns = await session.turns(TURNS + 1)
        told = [await session.resolve(turn.messages) for turn in turns]
    assert seen[0] == 40
    assert seen[-1] == TURNS
    assert seen == sorted(set(seen))
    assert [turn.number for turn in turns] == list(range(1, TURNS + 1))
    assert [list(messages) for messages in told] == list(project_history(TURNS, seed=2))
    assert all(turn.status == "closed" and turn.tokens for turn in turns)
    assert not [turn.id for turn in turns if turn.masked]

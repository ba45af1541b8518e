"""What was decided, and what obliges, outlives other statements at C and at T."""

from __future__ import annotations

import re

import pytest

from examples.made_up_project import project_turn
from perdure.core.messages import Message, assistant, user
from perdure.core.tokens import o200k
from perdure.history.renditions.algorithm import compact, raw, tiny
from perdure.history.renditions.negations import obliges, settles
from perdure.history.renditions.sentences import binds, without_reason

counter = o200k()
ASKED = "Can you look into the slow writer and tell me what to do about it?"
BEFORE = (
    "I looked at the module and read through the tests that cover it, which took a while. The "
    "parser reads one line at a time and hands it to the writer. There are four callers in "
    "src/app/io.py and two in src/app/cli.py. "
)
BEHIND = (
    " The log of yesterday shows 12 slow requests around 14:30, all from the same host. Memory "
    "stays flat at 230 MB during the run, and the nightly job took 41 minutes."
)
DECISIONS = (
    "We decided to store amounts as integers in cents.",
    "Let's go with Redis for the job queue.",
    "Agreed: releases happen on Tuesdays.",
    "We will use Postgres 16 for the ledger.",
    "We settled on snake_case for all column names.",
    "Final decision: the API stays on version 2.",
    "Decision on retries: three, with a pause in between.",
    "The writer takes a queue instead of a lock.",
    "Wir haben entschieden, bei Python 3.11 zu bleiben.",
)
ORDERS = (
    "Please delete nothing.",
    "Never push to main.",
    "Do not touch the migrations folder.",
    "You must keep the old endpoint alive.",
)


@pytest.mark.parametrize("decision", DECISIONS)
@pytest.mark.parametrize("form", ["{b}{d}{e}", "{d} {b}{e}", "{b}{e} {d}"])
def test_a_decision_stays_wherever_it_stands(decision: str, form: str) -> None:
    told = form.format(b=BEFORE, d=decision, e=BEHIND)
    round = (user(ASKED), assistant(told))
    assert decision in compact(round, "T-1.1")
    assert decision in tiny([round], counter)


@pytest.mark.parametrize("order", ORDERS)
def test_what_a_user_forbids_stands_beside_the_request(order: str) -> None:
    asked = (
        "Please clean up the parser module for me, it has become hard to read over the last weeks. "
        f"{order} I think most of it was written in a hurry back in March, when nobody had time "
        "for tests. Maybe start with the tokenizer, which has the longest functions."
    )
    round = (user(asked), assistant(BEFORE + BEHIND))
    for text in (compact(round, "T-1.1"), tiny([round], counter)):
        assert order in text
        assert "clean up the parser" in text


def test_what_was_done_and_what_was_decided_are_both_told() -> None:
    told = f"I fixed the race in src/app/io.py. {BEFORE}We will use one lock for each file."
    text = tiny([(user(ASKED), assistant(told))], counter)
    assert "I fixed the race" in text
    assert "We will use one lock for each file" in text


def test_decisions_of_a_project_outlive_its_chatter() -> None:
    decided = range(5, 151, 12)
    kept_c = kept_t = 0
    for number in decided:
        messages = project_turn(number)
        made = re.search(r"Decision for \S+: we ([^,]+),", raw(messages))
        assert made is not None
        rounds = _rounds(messages)
        kept_c += any(made[1] in compact(each, "T-1.1") for each in rounds)
        kept_t += made[1] in tiny(rounds, counter)
    assert len(decided) == 13
    assert kept_c >= 12
    assert kept_t >= 10


def _rounds(messages: list[Message]) -> list[list[Message]]:
    """Each ends with what the assistant says next."""
    rounds: list[list[Message]] = [[]]
    for message in messages:
        if message.role == "assistant" and any(each.role == "assistant" for each in rounds[-1]):
            rounds.append([])
        rounds[-1].append(message)
    return rounds


@pytest.mark.parametrize(
    ("sentence", "degree"),
    [
        *((each, 2) for each in DECISIONS if "instead" not in each),
        ("The writer takes a queue instead of a lock.", 1),
        ("Which was decided?", 0),
        ("Should we use Redis instead of a file?", 0),
        ("Let's see what the log says.", 0),
        ("We went to the lake.", 0),
        ("I agreed with you there.", 0),
    ],
)
def test_what_settles(sentence: str, degree: int) -> None:
    assert settles(sentence) == degree
    assert binds(sentence) >= degree


def test_what_merely_is_obliges_nobody() -> None:
    assert obliges("Please delete nothing.", "en")
    assert obliges("No emojis in the interface.", "en")
    assert not obliges("Borealis does not reach 99.9%.", "en")
    assert not obliges("The build did not finish.", "en")


def test_a_reason_is_left_out_unless_what_follows_narrows_the_decision() -> None:
    decision = "We will use one queue for all writers"
    assert without_reason(f"{decision}, because django does not lock.") == f"{decision}…"
    narrowed = f"{decision}, because django does not lock, unless they run on Windows."
    assert without_reason(narrowed) == narrowed

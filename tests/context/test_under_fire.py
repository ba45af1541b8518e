"""Whatever was said, at any budget, in any wire format."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perdure.context.prompt_encoder import PromptEncoder
from perdure.core.errors import BudgetTooSmall
from perdure.core.messages import Message, Text, user
from tests.context.windows import (
    TRICKS,
    WIRES,
    Story,
    items_of,
    long_talk,
    sent,
    turns,
    unmarked,
    violations,
)
from tests.wire.strategies import histories

Messages = tuple[Message, ...]

budgets = st.sampled_from((500, 700, 1_000, 2_000, 5_000, 50_000))
prompts = st.sampled_from(TRICKS).map(lambda text: (user(text),)) | st.just(())
#: What may be in a log: anything at all, or turns of an agent that works.
logs = st.lists(turns(), max_size=8).map(lambda each: sum(each, ())) | histories(14)

_FUZZ = os.environ.get("HYPOTHESIS_PROFILE") == "fuzz"
#: Times three wire formats.
CASES = settings(max_examples=34_000 if _FUZZ else settings().max_examples * 5)


@pytest.mark.repeated
@CASES
@given(log=logs, budget=budgets, prompt=prompts, tagged=st.booleans(), data=st.data())
def test_every_window_is_valid_in_every_wire_format(
    log: Messages, budget: int, prompt: Messages, tagged: bool, data: st.DataObject
) -> None:
    story = Story(budget, tagged=tagged)
    middle = data.draw(st.integers(0, len(log)))
    try:
        for part in (log[:middle], log[middle:]):
            story.say(part)
            story.context(prompt, model=data.draw(st.sampled_from(("", "claude-x", "gpt-5.6"))))
        context = story.context(prompt)
    except BudgetTooSmall:
        return
    for wire in WIRES:
        assert violations(context, wire) == []
        marked = str(items_of(context, wire)).count("'cache_control'")
        assert marked <= 4


def _requests(log: Messages) -> list[int]:
    """After how many messages of a log a request is made: before each reply."""
    return [at for at, message in enumerate(log) if message.role == "assistant" and at]


@pytest.mark.repeated
@given(log=logs, budget=budgets, tagged=st.booleans())
def test_outside_an_epoch_a_request_is_the_beginning_of_the_next(
    log: Messages, budget: int, tagged: bool
) -> None:
    story, said = Story(budget, tagged=tagged), 0
    before: dict[str, list[object]] = {}
    epochs = 0
    for at in _requests(log):
        story.say(log[said:at])
        said = at
        if story.cutter.mark.waiting or story.cutter.mark.closed:
            continue  # nobody asks before all results are there, or when there is no question
        try:
            context = story.context()
        except BudgetTooSmall:
            return
        for wire in WIRES:
            items = unmarked(items_of(context, wire))
            if story.epochs == epochs and wire in before:
                assert items[: len(before[wire])] == before[wire]
            before[wire] = items
        epochs = story.epochs


@pytest.mark.repeated
@given(said=st.lists(turns(), min_size=1, max_size=5), budget=budgets, tagged=st.booleans())
def test_what_an_encoder_remembers_changes_nothing(
    said: list[Messages], budget: int, tagged: bool
) -> None:
    story = Story(budget, tagged=tagged)
    for turn in said:
        try:
            context = story.context(turn[:1])
        except BudgetTooSmall:
            return
        remembered = sent(context)
        assert sent(story.context(turn[:1], encoder=PromptEncoder())) == remembered
        assert sent(context) == remembered  # nothing that was handed out is shared
        story.say(turn)


_TAG = re.compile(r"<(/?)\s*(T-\d[^\s<>]*|perdure-[a-z]+)>", re.IGNORECASE)


@pytest.mark.repeated
@given(said=st.lists(turns(), max_size=10), budget=budgets, prompt=st.sampled_from(TRICKS))
def test_no_text_opens_or_closes_an_element(said: list[Messages], budget: int, prompt: str) -> None:
    story = Story(budget)
    try:
        for turn in said:
            story.context(turn[:1])
            story.say(turn)
        context = story.context((user(prompt),))
    except BudgetTooSmall:
        return
    under = list[str]()
    for message in context.messages:
        if message.role == "assistant":
            continue
        texts = [part.text for part in message.parts if isinstance(part, Text)]
        texts += [result.text for result in message.results]
        for slash, name in _TAG.findall("\n".join(texts)):
            if slash:
                assert under.pop() == name
            else:
                assert len(under) < 1 or name.startswith("perdure-")
                under.append(name)
    assert under == [f"T-{context.turn}-R"]


def test_a_new_prompt_and_the_turn_that_it_opened_look_the_same() -> None:
    story = Story(3_000)
    for turn in long_talk(30):
        asked = [unmarked(items_of(story.context(turn[:1]), wire)) for wire in WIRES]
        epochs = story.epochs
        story.say(turn[:1])
        again = story.context()
        assert epochs == story.epochs
        assert [unmarked(items_of(again, wire)) for wire in WIRES] == asked
        story.say(turn[1:])


PROGRAM = """
import hashlib
from tests.context.windows import Story, long_talk, sent
story = Story(4_000)
digest = hashlib.sha256()
for turn in long_talk(40):
    digest.update(sent(story.context(turn[:1])))
    story.say(turn)
print(digest.hexdigest())
"""


def test_two_processes_send_the_same_bytes() -> None:
    root = Path(__file__).parents[2]
    found = set[str]()
    for seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(root)}
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM],
            env=environment,
            cwd=root,
            capture_output=True,
            text=True,
            check=True,
        )
        found.add(done.stdout)
    assert len(found) == 1

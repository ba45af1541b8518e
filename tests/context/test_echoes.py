"""A caller that sends back what it was sent, and a model that writes our tags."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.context.context import Context, compose
from perdure.context.echoes import strip_echo
from perdure.core.messages import Message, Text, assistant, user
from perdure.history.manifest import Injected, ShownHistory
from perdure.wire import codec, decode
from tests.context.windows import WIRES, Story, encoded, items_of, long_talk, turns

REPLY = (assistant("It is done."), user("And now?"))


def after_some_turns(budget: int = 2_000, *, tagged: bool = True) -> Context:
    story = Story(budget, tagged=tagged)
    for turn in long_talk(12):
        story.context(turn[:1])
        story.say(turn)
    return story.context((user("What did we decide?"),))


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize("tagged", [True, False])
@pytest.mark.parametrize("budget", [2_000, 100_000])
def test_the_whole_list_or_its_end_is_not_written_again(
    wire: Any, tagged: bool, budget: int
) -> None:
    context = after_some_turns(budget if tagged else 100_000, tagged=tagged)
    said = codec(wire).decode(codec(wire).encode(REPLY))
    items = items_of(context, wire)
    body = {name: value for name, value in encoded(context, wire).items() if name != "tools"}
    for echo in (decode(items, wire), decode(items[-1:], wire), decode(items[-3:], wire)):
        assert strip_echo([*echo, *said], context) == said
    assert strip_echo([*codec(wire).decode(body), *said], context) == said


@pytest.mark.parametrize("tagged", [True, False])
def test_canonical_messages_and_the_bare_prompt_are_not_written_again(tagged: bool) -> None:
    context = after_some_turns(tagged=tagged) if tagged else after_some_turns(10**6, tagged=False)
    for echo in (context.messages, context.messages[-1:], context.prompt, ()):
        assert strip_echo([*echo, *REPLY], context) == REPLY


def test_what_a_user_adds_to_an_echo_stays() -> None:
    context = after_some_turns()
    last = context.messages[-1]
    grown = Message("user", (*last.parts, Text("Be quick.")))
    assert strip_echo([grown, *REPLY], context) == (user("Be quick."), *REPLY)
    flat = user("\n".join(part.text for part in last.parts if isinstance(part, Text)))
    assert strip_echo([flat, *REPLY], context) == REPLY
    longer = user(f"{flat.text}\nBe quick.")
    left = strip_echo([longer, *REPLY], context)
    assert left == (user("What did we decide?\nBe quick."), *REPLY)


def test_words_that_only_look_like_ours_stay() -> None:
    context = after_some_turns()
    quoted = user("What does </T-11-R> mean, and <perdure-note>?")
    assert strip_echo([*REPLY, quoted], context) == (*REPLY, quoted)
    same = user("What did we decide?")
    assert strip_echo([*REPLY, same], context) == (*REPLY, same)


@given(log=st.lists(turns(), max_size=4), wire=st.sampled_from(WIRES), reply=turns())
def test_an_echo_never_costs_or_adds_a_word(
    log: list[tuple[Message, ...]], wire: Any, reply: tuple[Message, ...]
) -> None:
    story = Story()
    for turn in log:
        story.context(turn[:1])
        story.say(turn)
    context = story.context((user("Well, then?"),))
    said = (assistant("First."), *reply)
    echo = decode(items_of(context, wire), wire)
    assert strip_echo([*echo, *said], context) == said
    assert strip_echo(said, context) == said


def test_injected_text_in_the_middle_is_taken_out() -> None:
    note = "<perdure-note>\nMind the gap.\n</perdure-note>"
    context = compose(
        ShownHistory(), turn=1, budget=500, prompt=(user("Hi."),), injection=Injected(1, note, 9)
    )
    given = (assistant("Hello."), user(f"{note}\nNext question."))
    assert strip_echo(given, context) == (assistant("Hello."), user("\nNext question."))

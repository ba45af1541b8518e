"""Questions about long chats: do the words that answer one stand in the prompt that is sent?

Each chat is a session in a bank of its own. `session.context(question, budget=…)` is asked with
`keep=False`, so that each question finds the session as if nothing had been asked before. No model
is asked. `locomo.1000` and so on are the share of a question's evidence that stands in what
`to_messages()` gives, on average over the questions of a kind of chat.

A message of the evidence stands there if at least four fifths of its word triples do: words in
lower case, without punctuation, three neighbours each (of a shorter message, all of its words in
their order). That holds for a turn that is raw or smoothed, wherever it stands; not for one that is
named by a range, or told in a few words. The reminders' gists count like any other text. Beside
it: tokens of all that was sent, and of that what stands beside the prompt.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from benchmarks import chats
from benchmarks.chats import Chat
from benchmarks.harness import Report
from perdure.core.tokens import o200k

BUDGETS = (1_000, 2_000, 4_000, 8_000)
_ENOUGH = 0.8
_QUICK = 4
_words = re.compile(r"\w+").findall
_memory = re.compile(r"<perdure-memory>.*?</perdure-memory>", re.DOTALL).findall


async def run(report: Report, *, quick: bool) -> None:
    given = chats.by_kind()
    for kind in chats.KINDS:
        report.figures[kind] = {str(budget): None for budget in BUDGETS}
        some = given[kind]
        if not some:
            report.say(f"no chats of the kind {kind}: name their folder with --data")
            continue
        if quick:
            some = [each._replace(questions=each.questions[:_QUICK]) for each in some[:2]]
        asked = [one for chat in some for one in await _asked(chat)]
        for budget in BUDGETS:
            rows = [row for at, *row in asked if at == budget]
            share, sent, beside = (sum(column) / len(rows) for column in zip(*rows, strict=True))
            report.figures[kind][str(budget)] = round(share, 4)
            report.figures[kind][f"{budget}_tokens"] = round(sent)
            report.figures[kind][f"{budget}_memory"] = round(beside)
            report.say(
                f"  {kind:9} {budget:6,}: {100 * share:5.1f} %  {sent:6,.0f} tokens sent,"
                f" {beside:5,.0f} of them recalled"
            )


async def _asked(chat: Chat) -> list[tuple[int, float, int, int]]:
    """For each budget and question: the share of the evidence, tokens sent, tokens recalled."""
    found = list[tuple[int, float, int, int]]()
    count = o200k().count
    async with chats.banked(chat) as (_, session):
        for budget in BUDGETS:
            for asked in chat.questions:
                context = await session.context(asked.text, budget=budget, keep=False)
                text = text_of(context.to_messages()["messages"])
                share = standing(asked.said, text)
                found.append((budget, share, context.tokens, sum(map(count, _memory(text)))))
    return found


def standing(said: Sequence[str], text: str) -> float:
    """The share of messages whose words stand in a text."""
    there = _triples(text)
    return sum(_stands(each, text, there) for each in said) / len(said)


def _stands(message: str, text: str, there: set[tuple[str, ...]]) -> bool:
    wanted = _triples(message)
    if not wanted:
        plain = " ".join(_words(text.casefold()))
        return f" {' '.join(_words(message.casefold()))} " in f" {plain} "
    return len(wanted & there) >= _ENOUGH * len(wanted)


def _triples(text: str) -> set[tuple[str, ...]]:
    words = _words(text.casefold())
    return set(zip(words, words[1:], words[2:], strict=False))


def text_of(messages: Sequence[dict[str, Any]]) -> str:
    return "\n".join(
        block["text"] for message in messages for block in message["content"] if "text" in block
    )

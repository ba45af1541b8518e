"""How much a model should think: words for some, numbers of tokens for others."""

from __future__ import annotations

import re
from typing import Final

from perdure.core.errors import InvalidInput
from perdure.gateway.calls import Effort, Request
from perdure.wire.plain import Item

#: Tokens that a word stands for, where a number is wanted.
BUDGETS: Final[dict[Effort, int]] = {
    "none": 0,
    "minimal": 1_024,
    "low": 4_096,
    "medium": 10_000,
    "high": 24_000,
}

_reasons = re.compile(r"(?:^|/)(?:o\d|gpt-5(?!.*-chat))").search
#: OpenAI's models that do not reason, and refuse to be told how much. Others, of which nothing is
#: known, may.
_never_reasons = re.compile(r"(?:^|/)(?:gpt-[34]|chatgpt|gpt-\d[^/]*-chat)").search
_FIRST_FIVE = re.compile(r"(?:^|/)gpt-5(?:-(?!chat)|$)").search
_O_SERIES = re.compile(r"(?:^|/)o\d").search


def word_of(reasoning: Effort | int) -> Effort:
    """The word, or the smallest one that covers the number."""
    if isinstance(reasoning, str):
        if reasoning not in BUDGETS:
            raise InvalidInput(
                f"{reasoning!r} says nothing about reasoning.",
                hint=f"Say {', '.join(BUDGETS)}, or a number of tokens.",
            )
        return reasoning
    return next((word for word, tokens in BUDGETS.items() if reasoning <= tokens), "high")


def may_reason(model: str) -> bool:
    """Whether a model of OpenAI's formats may be told how much to think."""
    return not _never_reasons(model)


def effort_of(reasoning: Effort | int, model: str) -> Effort:
    """The word for a model of OpenAI's formats: the nearest of those that it knows."""
    word = word_of(reasoning)
    if word in {"none", "minimal"}:
        if _O_SERIES(model):
            return "low"
        if _FIRST_FIVE(model):
            return "minimal"
        if word == "minimal" and _reasons(model):
            return "low"
    return word


def budget_of(reasoning: Effort | int) -> int:
    """The number of tokens, or the one that the word stands for."""
    return reasoning if isinstance(reasoning, int) else BUDGETS[word_of(reasoning)]


def sampling(request: Request, model: str) -> Item:
    """Temperature and top_p for a model of OpenAI's formats: OpenAI's that reason refuse both."""
    asked = request.reasoning
    if _reasons(model) and (asked is None or effort_of(asked, model) != "none"):
        return {}
    given = {"temperature": request.temperature, "top_p": request.top_p}
    return {name: value for name, value in given.items() if value is not None}

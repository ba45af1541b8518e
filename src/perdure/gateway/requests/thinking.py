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


def budget_of(reasoning: Effort | int) -> int:
    """The number of tokens, or the one that the word stands for."""
    return reasoning if isinstance(reasoning, int) else BUDGETS[word_of(reasoning)]


def sampling(request: Request, model: str) -> Item:
    """Temperature and top_p for a model of OpenAI's formats: OpenAI's that reason refuse both."""
    if _reasons(model) and (request.reasoning is None or word_of(request.reasoning) != "none"):
        return {}
    given = {"temperature": request.temperature, "top_p": request.top_p}
    return {name: value for name, value in given.items() if value is not None}

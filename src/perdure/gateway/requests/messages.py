"""Requests to Anthropic Messages. The models differ in what they take, and refuse the rest:

* Claude up to 4.5, and other models behind this format, think within a number of tokens, at least
  1,024 and less than `max_tokens`. Claude since 4.6 takes a word for its effort instead.
* Thinking excludes temperature, top_p and a required tool. Claude since 4.7 takes neither of the
  first two; temperatures end at 1; 4.1 to 4.6 take only one of the two.
* Fable and Mythos always think.

A required tool comes before thinking, thinking before temperature. Seed and prompt cache key are
left out. A shape that is not strict is asked for in words: this API knows strict schemas only.
"""

from __future__ import annotations

import re
from typing import Any, Final

from perdure.core.errors import InvalidInput
from perdure.gateway.calls import Request, Tool
from perdure.gateway.providers import Provider
from perdure.gateway.requests.request_parts import (
    ToolOffer,
    budget_of,
    fitted,
    function_tool,
    in_words,
    offered,
    word_of,
)
from perdure.wire import messages
from perdure.wire.plain import Item, kind_of

PATH: Final = "/messages"
_NEWEST = "2026-10-21"
#: The last version that has temperature and top_p, and the one that other servers were built for.
_SAMPLED = "2023-06-01"

_LEAST_BUDGET = 1_024
_HOTTEST = 1.0

# Lists of the past, which do not grow: whatever comes next is like the newest.
_budgeted = re.compile(
    r"claude-(?:[123](?!\d)|instant|(?:opus|sonnet|haiku)-4(?:[-.][015])?(?!\d|[-.]\d{1,2}(?!\d)))"
).search
_sampled = re.compile(r"claude-(?:opus|sonnet)-4[-.]6").search
_always_thinks = re.compile(r"claude-(?:fable|mythos)").search


def headers(model: str) -> dict[str, str]:
    """The newest API version, or the last one with sampling for models that take it."""
    is_new = "claude" in model and not _takes_sampling(model)
    return {"anthropic-version": _NEWEST if is_new else _SAMPLED}


def body(request: Request, provider: Provider, model: str, *, stream: bool) -> Item:
    view = fitted(request.messages, "messages", model)
    shape = request.shape
    by_schema = shape is not None and shape.strict and provider.habits.shape == "schema"
    if shape is not None and not by_schema:
        view = in_words(view, shape)
    made: Item = {"model": model, **messages.encode_body(view)}
    offer = offered(request, "messages", _tool)
    made |= _tools(offer, parallel=request.parallel_tools)
    made |= _thinking(request, provider, model, made["messages"], offer)
    if shape is not None and by_schema:
        schema = {"type": "json_schema", "schema": shape.schema}
        made["output_config"] = {**made.get("output_config", {}), "format": schema}
    made |= _sampling(request, model, thinks=kind_of(made.get("thinking")) in _ON)
    if request.stop:
        made["stop_sequences"] = list(request.stop)
    if stream:
        made["stream"] = True
    return made


_ON = frozenset({"enabled", "adaptive"})


def _tools(offer: ToolOffer, *, parallel: bool | None) -> Item:
    if not offer.tools:
        return {}
    made: Item = {"tools": offer.tools}
    choice: Item = {"type": {"required": "any", "named": "tool"}.get(offer.choice, offer.choice)}
    if offer.chosen:
        choice["name"] = offer.chosen["name"]
    if parallel is False and offer.choice != "none":
        choice["disable_parallel_tool_use"] = True
    if choice != {"type": "auto"}:
        made["tool_choice"] = choice
    return made


def _tool(tool: Tool) -> Item:
    return function_tool(tool, "input_schema")


def _thinking(
    request: Request, provider: Provider, model: str, items: list[Item], offer: ToolOffer
) -> Item:
    reasoning, most = request.reasoning, request.max_tokens
    usual = most if most is not None else provider.habits.default_max_tokens
    made: Item = {"max_tokens": usual}
    if reasoning is None or provider.habits.effort == "none":
        return made
    forced = offer.choice in {"required", "named"}
    if "claude" in model and not _budgeted(model):
        return made | _adaptive(request, model, forced=forced)
    budget = budget_of(reasoning)
    if budget <= 0:
        return made | {"thinking": {"type": "disabled"}}
    if isinstance(reasoning, str) and most is not None:
        budget = min(budget, most // 2)
        if budget < _LEAST_BUDGET:
            return made  # no room: a wish to think does not outweigh a limit
    budget = max(budget, _LEAST_BUDGET)
    if most is not None and budget >= most:
        raise InvalidInput(
            f"Of {most} tokens for an answer, {budget} cannot be kept for thinking.",
            hint=f"Set max_tokens above {budget}, or ask for less reasoning.",
        )
    if forced or _goes_on_without(items):
        return made
    if most is None:
        made["max_tokens"] = usual + budget
    return made | {"thinking": {"type": "enabled", "budget_tokens": budget}}


def _adaptive(request: Request, model: str, *, forced: bool) -> Item:
    assert request.reasoning is not None  # noqa: S101 (asked for by the caller)
    word = word_of(request.reasoning)
    effort: Item = {"output_config": {"effort": "low" if word in {"none", "minimal"} else word}}
    if word == "none":
        return effort if _always_thinks(model) else {"thinking": {"type": "disabled"}}
    return effort if forced else {"thinking": {"type": "adaptive"}, **effort}


def _goes_on_without(items: list[Item]) -> bool:
    """Whether a reply to be continued began without thinking: it must go on so."""
    blocks = items[-1]["content"] if items else ""
    if isinstance(blocks, str) or all(kind_of(block) != "tool_result" for block in blocks):
        return False
    said: Any = next((item["content"] for item in reversed(items) if item["role"] != "user"), "")
    first = "" if isinstance(said, str) or not said else kind_of(said[0])
    return first not in {"thinking", "redacted_thinking"}


def _sampling(request: Request, model: str, *, thinks: bool) -> Item:
    if thinks or not _takes_sampling(model):
        return {}
    made: Item = {}
    if request.temperature is not None:
        made["temperature"] = min(request.temperature, _HOTTEST)
    if request.top_p is not None and not (made and "claude" in model):
        made["top_p"] = request.top_p
    return made


def _takes_sampling(model: str) -> bool:
    return "claude" not in model or bool(_budgeted(model) or _sampled(model))

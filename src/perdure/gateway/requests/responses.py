"""Requests to OpenAI Responses.

Nothing is kept at the provider: `store` is off, reasoning comes sealed with the answer and is sent
back, and items go without ids. ``extra={"responses": {"store": True}}`` reverses that.
"""

from __future__ import annotations

from typing import Final

from perdure.core.errors import NoModel
from perdure.gateway.calls import Request, Shape, Tool
from perdure.gateway.providers import Habits, Provider
from perdure.gateway.requests.request_parts import (
    effort_of,
    fitted,
    function_tool,
    in_words,
    may_reason,
    named,
    sampling,
    tool_fields,
)
from perdure.wire import responses
from perdure.wire.plain import Item, kind_of

PATH: Final = "/responses"

#: The API refuses fewer tokens.
_FEWEST = 16
#: Items that are whole without the name that the provider gave them.
_NAMELESS = frozenset(
    {
        "custom_tool_call",
        "function_call",
        "function_call_output",
        "message",
        "reasoning",
        "web_search_call",
    }
)


def body(request: Request, provider: Provider, model: str, *, stream: bool) -> Item:
    if request.stop:
        raise NoModel(
            "Responses knows no stop words, and the answer would run on.",
            hint="Ask a model by Chat Completions or Anthropic Messages, or leave them out.",
        )
    habits = provider.habits
    view = fitted(request.messages, "responses", model)
    shape = request.shape
    if shape is not None and habits.shape != "schema":
        view = in_words(view, shape)
    store = bool(request.extra.get("responses", {}).get("store"))
    made: Item = {"model": model, **responses.encode_body(view)}
    if not store and isinstance(made["input"], list):
        made["input"] = [_forgotten(item) for item in made["input"] if not _is_lost(item)]
    made |= tool_fields(request, "responses", _tool, _named)
    if shape is not None:
        made |= _shape(named(shape), habits)
    if request.max_tokens is not None:
        made["max_output_tokens"] = max(request.max_tokens, _FEWEST)
    made |= sampling(request, model)
    reasons = may_reason(model)
    if request.reasoning is not None and habits.effort != "none" and reasons:
        made["reasoning"] = {"effort": effort_of(request.reasoning, model)}
    if request.prompt_cache_key and habits.prompt_cache_key:
        made["prompt_cache_key"] = request.prompt_cache_key
    made["store"] = store
    if not store and reasons:  # the others refuse it
        made["include"] = ["reasoning.encrypted_content"]
    if stream:
        made["stream"] = True
    return made


def _is_lost(item: Item) -> bool:
    if kind_of(item) == "reasoning":
        return not item.get("encrypted_content") and not item.get("content")
    return kind_of(item) == "item_reference"


def _forgotten(item: Item) -> Item:
    if "id" in item and (kind_of(item) in _NAMELESS or "type" not in item):
        return {name: value for name, value in item.items() if name != "id"}
    return item


def _named(tool: Item) -> Item:
    return {name: tool[name] for name in ("type", "name") if name in tool}


def _tool(tool: Tool) -> Item:
    return {"type": "function", **function_tool(tool)}


def _shape(shape: Shape, habits: Habits) -> Item:
    if habits.shape == "words":
        return {}
    if habits.shape == "object":
        return {"text": {"format": {"type": "json_object"}}}
    schema = {"name": shape.name, "schema": shape.schema, "strict": shape.strict}
    return {"text": {"format": {"type": "json_schema", **schema}}}

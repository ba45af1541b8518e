"""Requests to OpenAI Chat Completions, and to the many servers that speak it."""

from __future__ import annotations

from typing import Any, Final

from perdure.core.messages import Message
from perdure.gateway.calls import Effort, Request, Shape, Tool
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
from perdure.wire import chat
from perdure.wire.plain import Item
from perdure.wire.repair import FIRST

PATH: Final = "/chat/completions"

_INSTRUCTIONS = frozenset({"system", "developer"})


def body(request: Request, provider: Provider, model: str, *, stream: bool) -> Item:
    habits = provider.habits
    view = fitted(request.messages, "chat", model)
    shape = request.shape
    if shape is not None and habits.shape != "schema":
        view = in_words(view, shape)
    made: Item = {"model": model, "messages": _messages(view, habits)}
    made |= tool_fields(request, "chat", _tool, _named)
    if shape is not None:
        made |= _shape(named(shape), habits)
    if request.max_tokens is not None:
        made[habits.max_tokens_field] = request.max_tokens
    made |= sampling(request, model)
    if request.stop:
        made["stop"] = list(request.stop)
    if request.seed is not None and habits.seed:
        made["seed"] = request.seed
    if request.reasoning is not None:
        made |= _effort(request.reasoning, habits, model)
    if request.prompt_cache_key and habits.prompt_cache_key:
        made["prompt_cache_key"] = request.prompt_cache_key
    if stream:
        made["stream"] = True
        if habits.stream_usage:
            made["stream_options"] = {"include_usage": True}
    return made


def _named(tool: Item) -> Item:
    kind = tool.get("type", "function")
    name = tool[kind].get("name") if isinstance(tool.get(kind), dict) else None
    return {"type": kind, **({} if name is None else {kind: {"name": name}})}


def _tool(tool: Tool) -> Item:
    return {"type": "function", "function": function_tool(tool)}


def _shape(shape: Shape, habits: Habits) -> Item:
    if habits.shape == "words":
        return {}
    if habits.shape == "object":
        return {"response_format": {"type": "json_object"}}
    schema = {"name": shape.name, "schema": shape.schema, "strict": shape.strict}
    return {"response_format": {"type": "json_schema", "json_schema": schema}}


def _effort(reasoning: Effort | int, habits: Habits, model: str) -> Item:
    if habits.effort == "none" or not may_reason(model):
        return {}
    if habits.effort == "reasoning_effort":
        return {"reasoning_effort": effort_of(reasoning, model)}
    if isinstance(reasoning, int) and reasoning > 0:
        return {"reasoning": {"max_tokens": reasoning}}
    return {"reasoning": {"effort": effort_of(reasoning, model)}}


def _messages(view: tuple[Message, ...], habits: Habits) -> list[Item]:
    items = chat.encode(view)
    for item in items:
        if item["role"] in _INSTRUCTIONS:
            item["role"] = habits.instructions
    return _alternating(items, habits.instructions) if habits.alternate else items


def _alternating(items: list[Item], instructions: str) -> list[Item]:
    """For templates that want instructions first, then user and assistant in turns.

    Later instructions go in the user's name, and a user speaks first. Of neighbours' other fields,
    the later one's stay.
    """
    out: list[Item] = []
    for given in items:
        item = given
        if item["role"] == instructions and out and out[-1]["role"] != instructions:
            item = {"role": "user", "content": item["content"]}
        if item["role"] == "assistant" and (not out or out[-1]["role"] == instructions):
            out.append({"role": "user", "content": FIRST})
        if out and _may_join(out[-1], item):
            content = _joined(out[-1].get("content"), item.get("content"))
            out[-1] = {**out[-1], **item, "content": content}
        else:
            out.append(item)
    return out


def _may_join(before: Item, item: Item) -> bool:
    return before["role"] == item["role"] != "tool" and "tool_calls" not in before


def _joined(one: Any, other: Any) -> Any:
    if not one or not other:
        return one or other
    if isinstance(one, str) and isinstance(other, str):
        return f"{one}\n\n{other}"
    return [*_blocks(one), *_blocks(other)]


def _blocks(content: Any) -> list[Any]:
    return [{"type": "text", "text": content}] if isinstance(content, str) else content

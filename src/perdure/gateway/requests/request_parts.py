"""What the request bodies of all wire formats share: messages, tools, shape, reasoning."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple

from msgspec.structs import replace

from perdure.core.errors import InvalidInput, NoModel
from perdure.core.messages import (
    ArtifactPointer,
    Media,
    Message,
    Part,
    Reasoning,
    Text,
    ToolCall,
    ToolResult,
    is_same_model,
)
from perdure.gateway.calls import Effort, Request, Shape, Tool
from perdure.gateway.providers import CallWire
from perdure.wire import codec, repaired
from perdure.wire.limits import Limits
from perdure.wire.plain import Item, kind_of
from perdure.wire.rules import is_name

_WORDS = frozenset({"text", "input_text"})


def fitted(messages: Iterable[Message], wire: CallWire, model: str) -> tuple[Message, ...]:
    """The messages as this model may get them, valid in its wire format.

    Raises `InvalidInput` if one is not whole or nothing is left to answer, `NoModel` if the prompt
    shows media that the format cannot. Earlier media, and those of tools, are named in words.
    """
    whole = tuple(
        _own(message, at, wire, model)
        for at, message in enumerate(messages)
        if message.role != "event"
    )
    view = repaired(whole, wire)
    if all(message.role in {"system", "developer"} for message in view):
        raise InvalidInput(
            "There is no message to answer.", hint="Pass at least one message of a user."
        )
    _check_shown(view, wire)
    return view


def _own(message: Message, at: int, wire: CallWire, model: str) -> Message:
    for part in message.parts:
        _check_whole(part, at)
    if message.role == "assistant":
        if message.model and not is_same_model(message.model, model):
            parts = tuple(part for part in message.parts if not isinstance(part, Reasoning))
            if len(parts) < len(message.parts):
                return replace(message, parts=parts)
    elif message.role == "user" and not message.wire and _names_files(message):
        # A file id means something only to the provider that gave it, so codecs write it only where
        # it came from. One from nowhere is meant for whoever is asked.
        return replace(message, wire=wire)
    return message


def _names_files(message: Message) -> bool:
    return any(isinstance(part, Media) and part.file_id for part in message.parts)


def _check_whole(part: Part, at: int) -> None:
    for inner in part.content if isinstance(part, ToolResult) else (part,):
        found = inner.reference if isinstance(inner, ToolCall) else inner
        if isinstance(found, ArtifactPointer | Media) and found.artifact:
            raise InvalidInput(
                f"messages[{at}] holds a reference to {found.artifact}, not the content.",
                hint="Pass the messages through `session.resolve` first.",
            )


def _check_shown(messages: Sequence[Message], wire: CallWire) -> None:
    for message in reversed(messages):
        if message.role == "assistant":
            return
        if message.role != "user":
            continue
        for part in message.parts:
            if isinstance(part, Media) and not _is_shown(part, message, wire):
                what = part.media_type or "file"
                raise NoModel(
                    f"The wire format {wire} cannot show this {what} to a model.",
                    hint="Pass it in another form (its bytes, or an address), or ask a model of"
                    " another provider.",
                )


def _is_shown(part: Media, message: Message, wire: CallWire) -> bool:
    items: list[Item] = codec(wire).encode([replace(message, parts=(part,), native={})])
    content = items[0]["content"] if items else ""
    return not isinstance(content, str) and kind_of(content[0]) not in _WORDS


_TOOL_CHOICES = ("auto", "none", "required")


class ToolOffer(NamedTuple):
    """Tools as the wire format writes them, and the one that must be called, if one must."""

    tools: list[Item]
    #: ``auto``, ``none``, ``required``, or ``named``.
    choice: str
    #: How the named tool is written; empty if none is.
    chosen: Item


def offered(request: Request, wire: CallWire, written: Callable[[Tool], Item]) -> ToolOffer:
    """Raises `InvalidInput` for refused or duplicate names; `NoModel` if a tool must be called and
    this format has none.
    """
    limit = Limits.of(wire).tool_name
    tools: dict[str, Item] = {}
    for tool in request.tools:
        if tool.native:
            if wire in tool.native:
                tools[tool.name] = tool.native[wire]
            continue
        if not is_name(tool.name, limit):
            raise InvalidInput(
                f"{tool.name!r} cannot be the name of a tool.",
                hint=f"Use up to {limit} of a-z, A-Z, 0-9, _ and -.",
            )
        if tool.name in tools:
            raise InvalidInput(f"Two tools are called {tool.name!r}.", hint="Rename one of them.")
        tools[tool.name] = written(tool)
    choice = request.tool_choice
    if choice in _TOOL_CHOICES:
        _check_any(choice, request, tools, wire)
        return ToolOffer(list(tools.values()), choice, {})
    if choice not in tools:
        raise _not_here(choice, wire)
    return ToolOffer(list(tools.values()), "named", tools[choice])


def tool_fields(
    request: Request,
    wire: CallWire,
    written: Callable[[Tool], Item],
    named: Callable[[Item], Item],
) -> Item:
    """The fields about tools in the formats of OpenAI; `named` writes the choice of one."""
    tools, choice, chosen = offered(request, wire, written)
    if not tools:
        return {}
    made: Item = {"tools": tools}
    if chosen:
        made["tool_choice"] = named(chosen)
    elif choice != "auto":
        made["tool_choice"] = choice
    if request.parallel_tools is not None:
        made["parallel_tool_calls"] = request.parallel_tools
    return made


def function_tool(tool: Tool, parameters: str = "parameters") -> Item:
    made: Item = {"name": tool.name}
    if tool.description:
        made["description"] = tool.description
    made[parameters] = tool.parameters
    if tool.strict is not None:
        made["strict"] = tool.strict
    return made


def _check_any(choice: str, request: Request, tools: dict[str, Item], wire: CallWire) -> None:
    if choice != "required" or tools:
        return
    if request.tools:
        raise _not_here("that must be called", wire)
    raise InvalidInput(
        "A tool must be called but none is offered.", hint="Offer one, or choose auto."
    )


def _not_here(name: str, wire: CallWire) -> NoModel:
    return NoModel(
        f"The tool {name} is none that the wire format {wire} has.",
        hint="Ask a model of the provider that runs it.",
    )


_NAME_LIMIT = 64


def named(shape: Shape) -> Shape:
    """Raises `InvalidInput` if OpenAI would refuse its name."""
    if not is_name(shape.name, _NAME_LIMIT):
        raise InvalidInput(
            f"{shape.name!r} cannot be the name of a shape.",
            hint=f"Use up to {_NAME_LIMIT} of a-z, A-Z, 0-9, _ and -.",
        )
    return shape


def in_words(messages: Sequence[Message], shape: Shape) -> tuple[Message, ...]:
    """Asks for the schema at the end of the messages, where no cached prefix changes."""
    schema = json.dumps(shape.schema, ensure_ascii=False, separators=(",", ":"))
    words = f"Answer with nothing but JSON that follows this schema:\n{schema}"
    last = messages[-1]
    if last.role != "user":
        return (*messages, Message("user", (Text(words),), injected=True))
    final = last.parts[-1] if last.parts else None
    if isinstance(final, Text) and not final.native:
        parts = (*last.parts[:-1], Text(f"{final.text}\n\n{words}"))
    else:
        parts = (*last.parts, Text(words))
    return (*messages[:-1], replace(last, parts=parts))


#: Tokens that a word stands for, where a number is wanted.
BUDGETS: Final[dict[Effort, int]] = {
    "none": 0,
    "minimal": 1_024,
    "low": 4_096,
    "medium": 10_000,
    "high": 24_000,
}

_reasons = re.compile(r"(?:^|/)(?:o\d|gpt-5(?!.*-chat))").search
#: OpenAI's models that do not reason, and refuse an effort.
_never_reasons = re.compile(r"(?:^|/)(?:gpt-[34]|chatgpt|gpt-\d[^/]*-chat)").search
_FIRST_FIVE = re.compile(r"(?:^|/)gpt-5(?:-(?!chat)|$)").search
_O_SERIES = re.compile(r"(?:^|/)o\d").search


def word_of(reasoning: Effort | int) -> Effort:
    if isinstance(reasoning, str):
        return reasoning
    return next((word for word, tokens in BUDGETS.items() if reasoning <= tokens), "high")


def may_reason(model: str) -> bool:
    return not _never_reasons(model)


def effort_of(reasoning: Effort | int, model: str) -> Effort:
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
    return reasoning if isinstance(reasoning, int) else BUDGETS[word_of(reasoning)]


def sampling(request: Request, model: str) -> Item:
    """Temperature and top_p; OpenAI's reasoning models refuse both."""
    asked = request.reasoning
    if _reasons(model) and (asked is None or effort_of(asked, model) != "none"):
        return {}
    given = {"temperature": request.temperature, "top_p": request.top_p}
    return {name: value for name, value in given.items() if value is not None}

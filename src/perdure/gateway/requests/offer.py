"""The tools that a model is offered, and whether it must use one."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from perdure.core.errors import InvalidInput, NoModel
from perdure.gateway.calls import Request, Tool
from perdure.gateway.providers import CallWire
from perdure.wire.limits import Limits
from perdure.wire.plain import Item
from perdure.wire.rules import is_name

_CHOICES = ("auto", "none", "required")


class Offer(NamedTuple):
    """Tools as the wire format writes them, and the one that must be called, if one must."""

    tools: list[Item]
    #: ``auto``, ``none``, ``required``, or ``named``.
    choice: str
    #: How the named tool is written; empty if none is.
    chosen: Item


def offered(request: Request, wire: CallWire, written: Callable[[Tool], Item]) -> Offer:
    """The request's tools for this format.

    Raises `InvalidInput` for names that the format refuses and names used twice; `NoModel` if a
    tool must be called and none is left that this format has.
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
    if choice in _CHOICES:
        _check_any(choice, request, tools, wire)
        return Offer(list(tools.values()), choice, {})
    if choice not in tools:
        raise _not_here(choice, wire)
    return Offer(list(tools.values()), "named", tools[choice])


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

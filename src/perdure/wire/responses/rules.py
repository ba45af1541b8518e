"""What Responses demands of a list of items. Those of unknown types are taken on trust."""

from __future__ import annotations

from typing import Any

from perdure.wire.plain import Item, kind_of, role_of
from perdure.wire.responses.form import CALLS, OUTPUTS, side_of
from perdure.wire.rules import Found, is_name, listed

ID_LIMIT = 64
NAME_LIMIT = 64

_ROLES = frozenset({"user", "assistant", "system", "developer"})
#: Blocks that belong to one side only. Those of unknown types are taken on trust.
_SAID = ("output_text", "refusal")
_GIVEN = ("input_text", "input_image", "input_file", "input_audio")


def violations(items: list[Any]) -> list[str]:
    found = Found("input")
    calls: dict[str, str] = {}  # the kind of each, until it is answered
    names: set[str] = set()
    for at, item in enumerate(items):
        _check_shape(item, at, found)
        kind = kind_of(item)
        name = item.get("id") if isinstance(item, dict) else None
        if isinstance(name, str) and kind not in {"item_reference", "local_shell_call_output"}:
            found.check(at, f"two items have the id {name!r}", holds=name not in names)
            names.add(name)
        if kind == "reasoning":
            led = at + 1 < len(items) and side_of(items[at + 1]) == "assistant"
            found.check(at, "reasoning is followed by what it led to", holds=led)
        elif kind in CALLS:
            _check_call(item, kind, at, calls, found)
        elif kind in OUTPUTS:
            _check_output(item, kind, at, calls, found)
    missing = [call for call, kind in calls.items() if kind]
    if missing:
        found.add(len(items), f"the outputs of {listed(missing)} are missing")
    return found.all


def shape_violations(items: list[Any]) -> list[str]:
    """Each item by itself: without ids, names and order."""
    found = Found("input")
    for at, item in enumerate(items):
        _check_shape(item, at, found)
    return found.all


def _check_shape(item: Any, at: int, found: Found) -> None:
    if not isinstance(item, dict):
        found.add(at, "an item is an object")
        return
    found.kept(at, item)
    kind = kind_of(item)
    if kind == "message" or (not kind and "role" in item):
        _check_message(item, at, found)
    elif kind == "reasoning":
        found.check(at, "reasoning has a summary", holds=isinstance(item.get("summary"), list))
    elif kind in CALLS:
        form = CALLS[kind]
        kept = isinstance(item.get(form.key), str if form.name is None else dict)
        found.check(at, f"a {kind} has its {form.key}", holds=kept)
    elif kind in OUTPUTS:
        _check_output_shape(item, kind, at, found)
    elif not kind:
        found.check(at, "an item has a type or a role", holds=isinstance(item.get("id"), str))


def _check_message(item: Item, at: int, found: Found) -> None:
    role, content = role_of(item), item.get("content")
    if role not in _ROLES:
        found.add(at, f"a message has one of the roles {listed(_ROLES)}")
    elif isinstance(content, list) and content:
        wrong = _GIVEN if role == "assistant" else _SAID
        _check_blocks(content, role, wrong, at, found)
    else:
        said = isinstance(content, str)
        found.check(at, "a content is a string or a list of at least one block", holds=said)


def _check_blocks(
    blocks: list[Any], place: str, wrong: tuple[str, ...], at: int, found: Found
) -> None:
    for block in blocks:
        kind = kind_of(block)
        found.check(at, "a block is an object with a type", holds=kind != "")
        found.check(at, f"a {place} message has no {kind} blocks", holds=kind not in wrong)
        if kind in {"input_text", "output_text"}:
            found.check(at, "a text is a string", holds=isinstance(block.get("text"), str))


def _check_call(item: Item, kind: str, at: int, calls: dict[str, str], found: Found) -> None:
    form, call = CALLS[kind], item.get("call_id")
    if not isinstance(call, str) or not 0 < len(call) <= ID_LIMIT:
        found.add(at, f"the call_id {call!r} does not have 1 to {ID_LIMIT} characters")
    elif call in calls:
        found.add(at, f"two calls have the call_id {call!r}")
    else:
        calls[call] = kind
    if form.name is None:
        name = item.get("name")
        rule = f"the tool's name {name!r} is not 1 to {NAME_LIMIT} of a-z, A-Z, 0-9, _ and -"
        found.check(at, rule, holds=is_name(name, NAME_LIMIT))


def _check_output(item: Item, kind: str, at: int, calls: dict[str, str], found: Found) -> None:
    call = item.get(OUTPUTS[kind])
    if not isinstance(call, str) or not calls.get(call):
        found.add(at, f"answers {call!r}, which is no open call before it")
        return
    # A function's output is taken for every kind of call.
    fits = kind in {"function_call_output", CALLS[calls[call]].output}
    found.check(at, f"a {kind} does not answer such a call", holds=fits)
    calls[call] = ""


def _check_output_shape(item: Item, kind: str, at: int, found: Found) -> None:
    output = item.get("output")
    if kind in {"function_call_output", "custom_tool_call_output"}:
        known = isinstance(output, str | list)
        found.check(at, "an output is a string or a list of blocks", holds=known)
        if isinstance(output, list):
            _check_blocks(output, "tool", _SAID, at, found)

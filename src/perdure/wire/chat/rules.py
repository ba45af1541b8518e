"""The rules of Chat Completions for a list of messages.

Blocks of unknown types are not checked. That an assistant's message comes last, which some models
refuse, is left to the caller: it is wrong for a request and right for a history.
"""

from __future__ import annotations

from typing import Any

from perdure.wire.plain import Item, kind_of, role_of
from perdure.wire.rules import Found, is_name, listed

ID_LIMIT = 40
NAME_LIMIT = 64

_ROLES = frozenset({"system", "developer", "user", "assistant", "tool", "function"})
#: Blocks that belong to one role only.
_PLACES = {"image_url": "user", "input_audio": "user", "file": "user", "refusal": "assistant"}


def violations(items: list[Any]) -> list[str]:
    found = Found("messages")
    waiting: set[str] = set()  # calls of the newest reply that have no result yet
    for at, item in enumerate(items):
        _check_shape(item, at, found)
        role = role_of(item)
        if role == "tool":
            call = item.get("tool_call_id")
            if not isinstance(call, str) or call not in waiting:
                found.add(at, f"answers {call!r}, which is no open call of the reply before it")
            else:
                waiting.discard(call)
            continue
        if waiting:
            found.add(at, f"comes before the results of {listed(waiting)}")
        waiting = _check_calls(item, at, found) if role == "assistant" else set()
    if waiting:
        found.add(len(items), f"the results of {listed(waiting)} are missing")
    return found.all


def shape_violations(items: list[Any]) -> list[str]:
    """Each message by itself: without ids, names and order."""
    found = Found("messages")
    for at, item in enumerate(items):
        _check_shape(item, at, found)
    return found.all


def _check_shape(item: Any, at: int, found: Found) -> None:
    if role_of(item) not in _ROLES:
        found.add(at, f"a message is an object with one of the roles {listed(_ROLES)}")
        return
    found.kept(at, item)
    if item["role"] != "assistant":
        _check_content(item, at, found)
        return
    if item.get("content") is not None:
        _check_content(item, at, found)
    elif not any(item.get(name) for name in ("tool_calls", "function_call", "refusal", "audio")):
        found.add(at, "a reply has a content, a refusal or tool calls")
    calls = item.get("tool_calls")
    if calls is not None and (not isinstance(calls, list) or not calls):
        found.add(at, "tool_calls is a list of at least one")
        return
    for call in calls or ():
        kind = kind_of(call)
        said = call.get(kind) if kind in {"function", "custom"} else None
        if not isinstance(said, dict):
            found.add(at, "a tool call is of type function or custom and has a field of that name")
        else:
            key = "arguments" if kind == "function" else "input"
            found.check(at, f"a call's {key} are text", holds=isinstance(said.get(key), str))


def _check_content(item: Item, at: int, found: Found) -> None:
    content, role = item.get("content"), item["role"]
    if isinstance(content, str) or (content is None and role == "function"):
        return
    if not isinstance(content, list) or not content:
        found.add(at, "a content is a string or a list of at least one block")
        return
    for number, block in enumerate(content):
        kind = kind_of(block)
        where = f"{at}.content.{number}"
        if not kind:
            found.add(where, "a block is an object with a type")
        elif _PLACES.get(kind, role) != role:
            found.add(where, f"a {role} message has no {kind} blocks")
        elif kind == "text":
            found.check(where, "a text is a string", holds=isinstance(block.get("text"), str))


def _check_calls(item: Item, at: int, found: Found) -> set[str]:
    ids: set[str] = set()
    calls = item.get("tool_calls")
    for call in calls if isinstance(calls, list) else ():
        said = call.get(kind_of(call)) if isinstance(call, dict) else None
        name = said.get("name") if isinstance(said, dict) else None
        rule = f"the tool's name {name!r} is not 1 to {NAME_LIMIT} of a-z, A-Z, 0-9, _ and -"
        found.check(at, rule, holds=is_name(name, NAME_LIMIT))
        call_id = call.get("id") if isinstance(call, dict) else None
        if not isinstance(call_id, str) or not 0 < len(call_id) <= ID_LIMIT:
            found.add(at, f"the call's id {call_id!r} does not have 1 to {ID_LIMIT} characters")
        elif call_id in ids:
            found.add(at, f"two calls have the id {call_id!r}")
        else:
            ids.add(call_id)
    return ids

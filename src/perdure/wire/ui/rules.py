"""What the AI SDK demands of a list of messages. It shows much that no model would take."""

from __future__ import annotations

from typing import Any

from perdure.wire.keep import KEPT
from perdure.wire.plain import Item, kind_of, role_of
from perdure.wire.rules import Found, listed
from perdure.wire.ui.form import DYNAMIC, OUTPUTS, STATIC, is_model_message

_ROLES = frozenset({"system", "user", "assistant"})
_STATES = frozenset(
    {
        "input-streaming",
        "input-available",
        "approval-requested",
        "approval-responded",
        "output-available",
        "output-error",
        "output-denied",
    }
)


def violations(items: list[Any]) -> list[str]:
    found = Found("messages")
    ids: set[str] = set()
    for at, item in enumerate(items):
        if not isinstance(item, dict):
            found.add(at, "a message is an object")
        elif is_model_message(item):
            roles = _ROLES | {"tool"}
            found.check(at, f"a role is one of {listed(roles)}", holds=role_of(item) in roles)
            said = isinstance(item.get("content"), str | list)
            found.check(at, "a content is a string or a list of parts", holds=said)
            found.kept(at, item)
        else:
            _check_message(item, at, ids, found)
    return found.all


def _check_message(item: Item, at: int, ids: set[str], found: Found) -> None:
    name, role, parts = item.get("id"), role_of(item), item.get("parts")
    if found.check(at, "a message has an id", holds=isinstance(name, str)):
        found.check(at, f"two messages have the id {name!r}", holds=name not in ids)
        ids.add(str(name))
    found.check(at, f"a role is one of {listed(_ROLES)}", holds=role in _ROLES)
    metadata = item.get("metadata")
    own = not isinstance(metadata, dict) or KEPT not in metadata
    found.check(at, "the metadata is the application's", holds=own)
    if not found.check(at, "parts is a list", holds=isinstance(parts, list)):
        return
    for part in parts or ():
        kind = kind_of(part)
        if kind in {"text", "reasoning"}:
            found.check(at, f"a {kind} has a text", holds=isinstance(part.get("text"), str))
        elif kind == "file":
            placed = isinstance(part.get("url"), str) and isinstance(part.get("mediaType"), str)
            found.check(at, "a file has a url and a mediaType", holds=placed)
        elif kind == DYNAMIC or kind.startswith(STATIC):
            _check_tool(part, at, found)
        else:
            found.check(at, "a part is an object with a type", holds=kind != "")


def _check_tool(part: Item, at: int, found: Found) -> None:
    state = str(part.get("state"))
    found.check(at, "a tool part has a toolCallId", holds=isinstance(part.get("toolCallId"), str))
    if part["type"] == DYNAMIC:
        found.check(at, "a dynamic tool has a name", holds=isinstance(part.get("toolName"), str))
    if found.check(at, f"{state!r} is no state of a tool part", holds=state in _STATES):
        needed = OUTPUTS.get(state)
        if needed is not None:
            found.check(at, f"{state} comes with {needed}", holds=needed in part)

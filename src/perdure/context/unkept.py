"""Responses items for a provider that keeps nothing of ours: whole, whatever they are called.

The API can keep what was said and take its name for it. Ours is sent in full each time.
"""

from __future__ import annotations

from perdure.wire.plain import Item, kind_of
from perdure.wire.responses.form import CALLS, OUTPUTS, side_of

#: Responses items that are whole without the name that the provider gave them. It keeps nothing for
#: us, so a name says nothing, and one that it does not find is an error.
_NAMELESS = frozenset({"message", "reasoning", "web_search_call", *CALLS, *OUTPUTS}) - {
    "computer_call",
    "local_shell_call",
    "local_shell_call_output",
}


def sendable(items: list[Item]) -> list[Item]:
    """The items without names, and without those that a name stands for."""
    return _led([_forgotten(item) for item in items if not _is_lost(item)])


def named_once(items: list[Item]) -> list[Item]:
    """The items; of those that have the same name, only the first. A call goes on without it."""
    names, out = set[str](), list[Item]()
    for item in items:
        name, kind = item.get("id"), kind_of(item)
        # The output of a local shell has its call's id under this name.
        if isinstance(name, str) and kind != "local_shell_call_output":
            if name in names and kind not in CALLS and kind not in OUTPUTS:
                continue
            if name in names:
                del item["id"]
            names.add(name)
        out.append(item)
    return items if len(out) == len(items) else _led(out)


def _is_lost(item: Item) -> bool:
    """Whether the provider would have to look it up where it is not kept."""
    kind = kind_of(item)
    if kind == "reasoning":
        return not item.get("encrypted_content") and not item.get("content")
    return kind == "item_reference" or (not kind and "role" not in item)


def _forgotten(item: Item) -> Item:
    if "id" in item and (kind_of(item) in _NAMELESS or "type" not in item):
        return {name: value for name, value in item.items() if name != "id"}
    return item


def _led(items: list[Item]) -> list[Item]:
    """The items without thoughts of which nothing came: that may not have been kept."""
    out = list[Item]()
    after = ""
    for item in reversed(items):
        if kind_of(item) != "reasoning" or after == "assistant":
            after = side_of(item)
            out.append(item)
    return out[::-1]

"""What reading and writing the AI SDK's messages must agree on."""

from __future__ import annotations

from typing import Any

from perdure.wire.keep import KEPT, TOP, Place
from perdure.wire.plain import Item

WIRE = "ui"

STATIC = "tool-"
DYNAMIC = "dynamic-tool"
STEP = "step-start"

#: States of a tool part that has a result, and the field that holds it.
OUTPUTS = {"output-available": "output", "output-error": "errorText"}
DENIED = "output-denied"
NOT_RUN = "The tool was not allowed to run."


def is_model_message(item: Item) -> bool:
    """Whether this is what the SDK sends to a model, rather than what it shows."""
    return "parts" not in item


def _find(item: Item) -> Any:
    if is_model_message(item):
        return TOP.find(item)
    metadata = item.get("metadata")
    return metadata.get(KEPT) if isinstance(metadata, dict) else None


def _put(item: Item, value: Any) -> Item:
    if is_model_message(item):
        return TOP.put(item, value)
    metadata = item.get("metadata")
    known = metadata if isinstance(metadata, dict) else {}
    if value is not None:
        return {**item, "metadata": {**known, KEPT: value}}
    if KEPT not in known:
        return item
    left = {name: field for name, field in known.items() if name != KEPT}
    rest = {name: field for name, field in item.items() if name != "metadata"}
    return {**rest, "metadata": left} if left else rest


#: Shown messages have a place for an application's own data; the others do not.
PLACE = Place(_find, _put, {"id": "kept", "role": "system", "parts": []})

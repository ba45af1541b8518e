"""A tool call's arguments: canonically text, a JSON value on wires that want one.

Models write broken JSON. On a wire that takes values only, text that is no JSON (or no object,
where one is required) goes as ``{"unparsed_arguments": text}`` and comes back as the text.
"""

from __future__ import annotations

import json
import math
from typing import Any

UNPARSED = "unparsed_arguments"

_dump = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode


def text_of(value: Any, *, objects: bool) -> str:
    """Compact JSON, or the text that `value_of` wrapped.

    Raises TypeError, ValueError or RecursionError if JSON cannot say it.
    """
    if isinstance(value, dict) and _wraps(value, objects=objects):
        unparsed: str = value[UNPARSED]
        return unparsed
    return _dump(value)


def value_of(text: str, *, objects: bool) -> Any:
    """The JSON value of the text, or one that wraps the text. No text is no arguments."""
    if not text:
        return {}
    try:
        value = parsed(text)
    except (ValueError, RecursionError):
        return {UNPARSED: text}
    if isinstance(value, dict):
        return {UNPARSED: text} if _wraps(value, objects=objects) else value
    return {UNPARSED: text} if objects else value


def _wraps(value: dict[str, Any], *, objects: bool) -> bool:
    if len(value) != 1 or UNPARSED not in value:
        return False
    text = value[UNPARSED]
    if not isinstance(text, str) or not text:
        return False
    inner = value_of(text, objects=objects)
    return isinstance(inner, dict) and inner.get(UNPARSED) == text


def _finite(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise ValueError("No float can hold this number.")
    return number


def _refuse(name: str) -> float:
    raise ValueError(f"{name} is not JSON.")


#: Raises ValueError or RecursionError if the text is no JSON.
parsed = json.JSONDecoder(parse_float=_finite, parse_constant=_refuse).decode

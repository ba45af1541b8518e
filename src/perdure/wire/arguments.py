"""A tool call's arguments: text in the middle, a JSON value on wires that want one.

The text is what the model wrote, and models write broken JSON. On a wire that takes values only,
text that is no JSON (or no object, where an object is asked for) goes as
``{"unparsed_arguments": text}`` and comes back as the text. The key is long so that no real tool
has it; if one had, its calls would still come back as they were.
"""

from __future__ import annotations

import json
import math
from typing import Any

UNPARSED = "unparsed_arguments"

_dump = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode


def text_of(value: Any, *, objects: bool) -> str:
    """The value as compact JSON, keys in their order; or the text that it stands for.

    Raises TypeError, ValueError or RecursionError if it is nothing that JSON can say.
    """
    if isinstance(value, dict) and _wraps(value, objects=objects):
        unparsed: str = value[UNPARSED]
        return unparsed
    return _dump(value)


def value_of(text: str, *, objects: bool) -> Any:
    """The value that the text says, or one that stands for the text. No text is no arguments."""
    if not text:
        return {}
    try:
        value = _parse(text)
    except (ValueError, RecursionError):
        return {UNPARSED: text}
    if isinstance(value, dict):
        return {UNPARSED: text} if _wraps(value, objects=objects) else value
    return {UNPARSED: text} if objects else value


def parsed(text: str) -> Any:
    """The value that the text says. Raises ValueError or RecursionError if it says none."""
    return _parse(text)


def _wraps(value: dict[str, Any], *, objects: bool) -> bool:
    """Whether this is what `value_of` makes of text that it cannot use."""
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


_parse = json.JSONDecoder(parse_float=_finite, parse_constant=_refuse).decode

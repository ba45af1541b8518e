"""JSON from files that anything may have happened to.

msgspec decodes strictly and fast. What it refuses and programs do write (half of a surrogate pair,
where text was cut inside an emoji; NaN; a byte order mark) is tried again with Python's own module.
"""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any

import msgspec

from perdure.core.clock import from_datetime
from perdure.core.errors import InvalidInput
from perdure.core.messages import sound

_decoder = msgspec.json.Decoder()


class Broken(Exception):
    """A line that holds no record."""


def decode(data: bytes | msgspec.Raw) -> Any:
    """The value in a line of JSON, with text that can be stored.

    Raises `Broken`, with a reason.
    """
    try:
        return _decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return leniently(bytes(data))


def leniently(data: bytes) -> Any:
    """What Python's decoder makes of it, half surrogate pairs replaced.

    Raises `Broken`, with a reason.
    """
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise Broken("broken line: not UTF-8") from None
    try:
        return sound(_lenient(text))
    except ValueError:
        raise Broken("broken line: not JSON") from None
    except RecursionError:
        raise Broken("broken line: nested too deep") from None


def moment(text: Any) -> int | None:
    """The microseconds of an ISO time; None if it is none."""
    if not isinstance(text, str):
        return None
    try:
        return from_datetime(datetime.fromisoformat(text))
    except (ValueError, OverflowError, InvalidInput):
        return None


def _number(text: str) -> float | None:
    """Neither JSON nor msgpack can hold what is no finite number."""
    value = float(text)
    return value if -1e308 <= value <= 1e308 else None


_lenient = json.JSONDecoder(parse_float=_number, parse_constant=lambda _: None).decode

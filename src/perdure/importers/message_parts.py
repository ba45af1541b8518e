"""Parts of messages from the plain values that files hold, which may be anything."""

from __future__ import annotations

from typing import Any

import msgspec

from perdure.core.clock import SECOND
from perdure.core.messages import Media, Text
from perdure.wire.media import from_url, stand_in

_json = msgspec.json.Encoder(order="deterministic").encode


def as_json(value: Any) -> str:
    """A tool's arguments or result as text: what is text stays as it is."""
    return value if isinstance(value, str) else _json(value).decode()


def attachment(url: str, media_type: str = "", filename: str = "") -> Media | Text:
    """What is behind a data URL or a web address; words for a file that only its machine has."""
    media = from_url(url, media_type, filename)
    if media.data is not None or url.startswith(("https://", "http://")):
        return media
    return Text(stand_in(media))


def count(value: Any) -> int | None:
    is_count = isinstance(value, int | float) and not isinstance(value, bool)
    return int(value) if is_count and 0 <= value < 2**53 else None


def moment_of(value: Any, unit: int = SECOND) -> int | None:
    """Microseconds of a number of seconds, or of another unit, since 1970."""
    is_time = isinstance(value, int | float) and not isinstance(value, bool)
    return int(value * unit) if is_time and 0 < value * unit < 1e17 else None


def mapping(value: Any) -> dict[str, Any]:
    """The value, if it is an object: else an empty one."""
    return value if isinstance(value, dict) else {}


def items(value: Any) -> list[dict[str, Any]]:
    """The objects in a list."""
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []

"""An agent's own settings of its memory tiers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from perdure.agents.working_memory import checked_ttl
from perdure.core.errors import InvalidInput

#: Hits of recall, unless somebody asks for more.
TOP = 5
_NAMES = ("working_ttl", "working_bytes", "recall_limit")


class TierSettings(msgspec.Struct, frozen=True, kw_only=True):
    """None: as configured."""

    working_ttl: Any = None
    working_bytes: int | None = None
    recall_limit: int = TOP

    @classmethod
    def of(cls, tiers: Mapping[str, Any] | None) -> TierSettings:
        """From front matter or keywords; numbers may be text. Raises `InvalidInput`."""
        given = dict(tiers or {})
        if unknown := sorted(str(name) for name in given if name not in _NAMES):
            raise InvalidInput(
                f"{unknown[0]!r} is no setting of an agent's memory.",
                hint=f"Use {', '.join(_NAMES)}.",
            )
        if (ttl := given.get("working_ttl")) is not None:
            checked_ttl(ttl)
        if (size := given.get("working_bytes")) is not None:
            given["working_bytes"] = checked_count(size, "working_bytes", 1 << 30)
        if (limit := given.get("recall_limit")) is not None:
            given["recall_limit"] = checked_count(limit, "recall_limit", 1_000)
        return cls(**{name: value for name, value in given.items() if value is not None})


def checked_count(value: Any, name: str, most: int) -> int:
    """Raises `InvalidInput` if it is no number from 1 to `most`."""
    if isinstance(value, str) and value.isascii() and value.isdigit():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 < value <= most:
        raise InvalidInput(
            f"{name} cannot be {value!r}.", hint=f"Give a number from 1 to {most:,}."
        )
    return value

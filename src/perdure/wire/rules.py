"""What the validators of all wire formats need."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from perdure.wire.keep import KEPT

#: What Anthropic lets a call be named, and OpenAI a tool.
is_word = re.compile(r"[a-zA-Z0-9_-]+").fullmatch


class Found:
    """Violations found so far. Each names its position and the rule."""

    def __init__(self, field: str) -> None:
        self._field = field
        self.all: list[str] = []

    def add(self, position: int | str, rule: str) -> None:
        self.all.append(f"{self._field}[{position}]: {rule}")

    def check(self, position: int | str, rule: str, *, holds: bool) -> bool:
        if not holds:
            self.add(position, rule)
        return holds

    def kept(self, position: int, item: dict[str, Any]) -> None:
        self.check(position, f"`{KEPT}` is no field of the API", holds=KEPT not in item)


def is_name(value: Any, limit: int) -> bool:
    return isinstance(value, str) and len(value) <= limit and is_word(value) is not None


def listed(names: Iterable[str]) -> str:
    return ", ".join(sorted(names))

"""Names of models."""

from __future__ import annotations

import re

_date = re.compile(r"-(?:20\d{2}-?\d{2}-?\d{2}|latest)$")


def is_same_model(one: str, other: str) -> bool:
    """Whether both names are of one model: dated or not, with or without who made it."""
    return _bare(one) == _bare(other)


def _bare(model: str) -> str:
    return _date.sub("", model.rpartition("/")[2].lower())

"""Names that callers give: of agents, sessions, tasks."""

from __future__ import annotations

_LONGEST = 120  # of at most four bytes each: what an index holds


def indexable(name: str) -> str:
    """A name as far as every database can hold it in an index. Most names are just that."""
    if len(name) <= _LONGEST and name.isascii() and "\x00" not in name:
        return name
    return name.encode("utf-8", "replace").decode().replace("\x00", "")[:_LONGEST]

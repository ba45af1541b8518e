"""HTTP to a Perdure server: addresses, bodies, and its errors raised again."""

from __future__ import annotations

from urllib.parse import quote


def segment(name: str) -> str:
    """A name as one segment of a path. ``.`` and ``..`` would otherwise be taken for folders."""
    return quote(name, safe="") if name not in {".", ".."} else name.replace(".", "%2E")

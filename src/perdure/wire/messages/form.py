"""What reading and writing Anthropic Messages must agree on."""

from __future__ import annotations

WIRE = "messages"

#: Image types that the API takes as bytes.
IMAGES = frozenset({"image/jpeg", "image/png", "image/gif", "image/webp"})

PDF = "application/pdf"
PLAIN = "text/plain"


def is_string(role: str) -> bool:
    return role != "assistant"

"""What the bodies of all wire formats are made of."""

from __future__ import annotations

from typing import Any, TypeAlias

PNG = (
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJg"
    "gg=="
)
PDF = "JVBERi0xLjQKJcOkw7zDtsOfCg=="
WAV = "UklGRiQAAABXQVZFZm10IBAAAAABAAEAQB8AAEAfAAABAAgAZGF0YQAAAAA="
EPHEMERAL = {"type": "ephemeral"}


Bodies: TypeAlias = dict[str, list[Any]]


def said(text: str, **more: Any) -> dict[str, Any]:
    return {"type": "text", "text": text, **more}

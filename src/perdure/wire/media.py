"""Bytes in wire formats (base64, data URLs), and words for what a format cannot show."""

from __future__ import annotations

import binascii
from base64 import b64encode
from typing import Any

from perdure.core.messages import ArtifactPointer, Media, Native, ToolCall
from perdure.wire.arguments import text_of

#: An image of a type that nobody named.
IMAGE = "image/*"


def to_base64(data: bytes) -> str:
    return b64encode(data).decode("ascii")


def from_base64(text: Any) -> bytes | None:
    """None if `to_base64` would not give the very same text back."""
    if not isinstance(text, str):
        return None
    try:
        data = binascii.a2b_base64(text, strict_mode=True)
    except ValueError:  # binascii.Error, and text outside ASCII
        return None
    # Strictly read, only unused bits at the end can still differ.
    return data if to_base64(data[-(len(data) % 3 or 3) :]) == text[-4:] else None


def to_url(media: Media) -> str | None:
    """An address or a data URL; None if only a store or API knows where it is."""
    if media.data is not None:
        return f"data:{media.media_type};base64,{to_base64(media.data)}"
    return media.url


def from_url(
    url: str, media_type: str = "", filename: str = "", native: Native | None = None
) -> Media:
    """A data URL becomes bytes if `to_url` gives the same URL back."""
    if url.startswith("data:"):
        kind, found, text = url[5:].partition(";base64,")
        data = from_base64(text) if found and kind and "," not in kind else None
        if data is not None:
            return Media(kind, data=data, filename=filename, native=native or {})
    return Media(media_type, url=url, filename=filename, native=native or {})


def is_image(media: Media) -> bool:
    return media.media_type.startswith("image/")


def stand_in(part: ArtifactPointer | Media) -> str:
    """Words for media that are not available, or that the wire format cannot hold."""
    if isinstance(part, ArtifactPointer):
        line = f"[{part.size} bytes kept as {part.artifact}]"
        return f"{part.head}\n{line}" if part.head else line
    what = " ".join(filter(None, (part.media_type or "file", part.filename)))
    if part.artifact:
        return f"[{what}, kept as {part.artifact}]"
    if part.data is not None:
        return f"[{what}, {len(part.data)} bytes, not shown]"
    return f"[{what}, {part.url or part.file_id or 'not shown'}]"


def arguments_of(call: ToolCall) -> str:
    if call.reference is None or call.arguments:
        return call.arguments
    kept = {"kept_as": call.reference.artifact, "bytes": call.reference.size}
    if call.reference.head:
        kept["begins"] = call.reference.head
    return text_of(kept, objects=True)

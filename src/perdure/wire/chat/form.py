"""What reading and writing Chat Completions must agree on."""

from __future__ import annotations

from perdure.core.messages import Media
from perdure.wire.media import is_image

WIRE = "chat"

#: Where servers put a reply's reasoning. The first needs no note.
REASONING = ("reasoning_content", "reasoning")

AUDIO = {"audio/mpeg": "mp3", "audio/mp3": "mp3", "audio/wav": "wav", "audio/x-wav": "wav"}


def media_kind(media: Media) -> str:
    if is_image(media):
        return "image_url"
    return "input_audio" if media.media_type.startswith("audio/") else "file"


def nothing(role: str) -> str:
    return "null" if role == "assistant" else "empty"

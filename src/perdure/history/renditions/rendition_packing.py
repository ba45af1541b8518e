"""How S and C of a round are stored: together, with the words of the round as dictionary.

On coding transcripts they take 0.05 bytes for each byte of the round, where compressed by
themselves they would take 0.2. Very short ones are stored as they are. Reading needs the round; if
its words have changed, `unpack` raises, and the rendition can be made again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import zstandard

from perdure.core.errors import Corrupted
from perdure.core.messages import ArtifactPointer, Message, Text, ToolCall, ToolResult, sound

_PLAIN, _AGAINST_GROUND = b"\x00", b"\x01"  # The first byte: plain, or packed against `ground`.
#: Shorter than this, a frame takes more than it saves.
_SHORT = 24
_LEVEL = 6
_MAGICLESS = zstandard.FORMAT_ZSTD1_MAGICLESS
_MOST = 64 * 1024 * 1024
_BETWEEN = b"\x00"  # Between S and C; no text holds it (`clean`).
#: Renditions say these where the round does not.
_PHRASES = b" was called and failed: was called: tool \xe2\x86\x92 lines, in all: Assistant: User: "


def ground(messages: Iterable[Message]) -> bytes:
    """The words of a round that its renditions are compressed against. Changing this makes stored
    renditions unreadable: a better one gets a form of its own (see `_AGAINST_GROUND`).
    """
    return _PHRASES + str(sound("\n".join(_lines(messages)))).encode()


def _lines(messages: Iterable[Message]) -> Iterator[str]:
    for message in messages:
        if message.role == "event":
            continue
        who = message.role.capitalize() + (f" ({message.name})" if message.name else "")
        for part in message.parts:
            if isinstance(part, Text):
                yield f"{who}: {part.text}"
            elif isinstance(part, ArtifactPointer):
                yield f"{who}: {part.head}"
            elif isinstance(part, ToolCall):
                yield f"tool {part.name} {part.arguments}"
            elif isinstance(part, ToolResult):
                for inner in part.content:
                    if isinstance(inner, Text):
                        yield f"→ {inner.text}"
                    elif isinstance(inner, ArtifactPointer):
                        yield f"→ {inner.head}"


def clean(text: str) -> str:
    """Without NUL and half surrogate pairs, so that it can be packed."""
    return str(sound(text)).replace("\x00", "\ufffd")


def pack(smooth: str, compact: str, against: bytes) -> bytes:
    """S and C of the round whose `ground` is given. Both have to be `clean`."""
    first = smooth.encode()
    # Of a round too short to shrink, they are the same.
    both = first if smooth == compact else first + _BETWEEN + compact.encode()
    if len(both) < _SHORT:
        return _PLAIN + both
    dictionary = _dictionary(against)
    settings = zstandard.ZstdCompressionParameters.from_level(
        _LEVEL,
        source_size=len(both),
        dict_size=len(against),
        format=_MAGICLESS,
        # It tells, too, whether the words are still those that it was packed against.
        write_checksum=True,
        write_content_size=True,
        write_dict_id=False,
    )
    packed = zstandard.ZstdCompressor(compression_params=settings, dict_data=dictionary).compress(
        both
    )
    return _AGAINST_GROUND + packed if len(packed) < len(both) else _PLAIN + both


def unpack(packed: bytes, against: bytes) -> tuple[str, str]:
    """S and C. Raises `Corrupted` if they cannot be read against these words."""
    form, data = packed[:1], packed[1:]
    try:
        if form == _AGAINST_GROUND:
            tool = zstandard.ZstdDecompressor(dict_data=_dictionary(against), format=_MAGICLESS)
            data = tool.decompress(data, max_output_size=_MOST)
        elif form != _PLAIN:
            raise _unreadable(f"its form {form!r} is unknown")
        smooth, between, compact = data.partition(_BETWEEN)
        return smooth.decode(), (compact if between else smooth).decode()
    except (zstandard.ZstdError, UnicodeDecodeError) as exc:
        raise _unreadable(str(exc)) from exc


def _dictionary(against: bytes) -> zstandard.ZstdCompressionDict:
    return zstandard.ZstdCompressionDict(against, dict_type=zstandard.DICT_TYPE_RAWCONTENT)


def _unreadable(why: str) -> Corrupted:
    return Corrupted(
        f"A rendition cannot be read against the words of its round: {why}.",
        hint="It is made again when it is needed; `perdure renditions make` does so now.",
    )

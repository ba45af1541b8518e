"""Cache breakpoints: where a provider is told that a prefix ends that will be sent again.

Anthropic takes four, and looks for what it has cached at each of them and up to twenty blocks
before. So they stand where a request before this one ended, or one after it will begin to differ:
behind the system text, behind the text of old turns (the next epoch may keep it), where the last
request ended (a round with many calls is more than twenty blocks), and at the end.

OpenAI's models since GPT-5.6 match a prefix only where a breakpoint is. They set one at the newest
message by themselves; ours are behind the system text and the text of old turns, and at the prompt.
Older models, and others behind the same formats, get none: they would refuse the field.

Markers move from request to request. Whether one extends the other is judged without them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from perdure.context.prompt_encoder import EncodedPiece
from perdure.wire.plain import Item, kind_of

#: What Anthropic calls a marker, and OpenAI.
ANTHROPIC, OPENAI = "cache_control", "prompt_cache_breakpoint"
_MOST = 4
_TAKES = frozenset({"text", "image", "document", "tool_use", "tool_result"})
_TEXTS = frozenset({"text", "input_text"})
_version = re.compile(r"gpt-(\d+)(?:\.(\d+))?(?!\d)").match
_FIRST = (5, 6)


def takes_breakpoints(model: str) -> bool:
    found = _version(model.rpartition("/")[2].lower())
    return found is not None and (int(found[1]), int(found[2] or 0)) >= _FIRST


def old_end(encoded: Sequence[EncodedPiece]) -> tuple[int, int] | None:
    """Where the text of old turns ends: the item and the block; None if there is none."""
    at = 0
    for each in encoded:
        if each.piece.old and each.items:
            return at, each.piece.old - 1
        at += len(each.items)
    return None


def mark_messages(system: list[Item], items: list[Item], old: tuple[int, int] | None) -> None:
    """Put Anthropic's markers, four at most, on these blocks and messages."""
    wanted = list[Item]()
    if system:
        wanted.append(system[-1])
    if old is not None:
        wanted += _block(items[old[0]], old[1])
    spoken = [at for at, item in enumerate(items) if item["role"] == "assistant"]
    ends = [at - 1 for at in spoken if at and items[at - 1]["role"] == "user"]
    # The newest first: the end, where the last request ended, and the one before it.
    for at in (len(items) - 1, *reversed(ends[-2:])):
        if len(wanted) < _MOST and at >= 0:
            wanted += [b for b in _block(items[at], None) if all(b is not w for w in wanted)]
    for block in wanted:
        _mark(block, ANTHROPIC, {"type": "ephemeral"})


def mark_openai(items: list[Item], old: tuple[int, int] | None) -> None:
    places = list[tuple[Item, int | None]]()
    places += [(item, None) for item in items if item.get("role") in {"system", "developer"}][:1]
    if old is not None:
        places.append((items[old[0]], old[1]))
    places += [(item, None) for item in reversed(items) if item.get("role") == "user"][:1]
    for item, at in places:
        content = item.get("content")
        if isinstance(content, str):
            content = item["content"] = [{"text": content, "type": "text"}]
        if not isinstance(content, list):
            continue
        blocks = content if at is None else content[: at + 1]
        last = next((b for b in reversed(blocks) if kind_of(b) in _TEXTS), None)
        if last is not None:
            _mark(last, OPENAI, {"mode": "explicit"})


def _block(item: Item, at: int | None) -> list[Item]:
    content: Any = item["content"]
    blocks = content if at is None else content[: at + 1]
    found = next((block for block in reversed(blocks) if kind_of(block) in _TAKES), None)
    return [] if found is None else [found]


def _mark(block: Item, name: str, value: Item) -> None:
    marked = sorted({**block, name: value}.items())  # keys stay in their order
    block.clear()
    block.update(marked)

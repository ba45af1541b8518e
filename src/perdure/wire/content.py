"""The content of a message on the wire: a string, or a list of blocks, or nothing in four ways."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

from perdure.core.errors import InvalidInput
from perdure.core.messages import Part, Text
from perdure.wire.plain import Item

#: A field of a body, and a position in it. Put into words only when something is wrong.
Where: TypeAlias = tuple[str, int]

_NONE = ("absent", "null", "empty")

#: A part that a format cannot say becomes this block, which `spoken` leaves out. Not None: a list
#: from outside may hold it, and gets it back.
SILENCE: Any = object()


def content_of(
    item: Item, where: Where, block: Callable[[Any], Part], name: str = "content"
) -> tuple[list[Part], str]:
    """The parts, and their form: text, list, empty, null or absent. Raises `InvalidInput`."""
    content = item.get(name)
    if isinstance(content, str):
        return ([Text(content)], "text") if content else ([], "empty")
    if isinstance(content, list):
        return [block(each) for each in content], "list"
    if content is None:
        return [], "null" if name in item else "absent"
    raise InvalidInput(
        f"{place(where)} has a {name} that is a {type(content).__name__}.",
        hint="A content is a string or a list of blocks.",
    )


def spoken(blocks: Iterable[Any]) -> list[Any]:
    return [block for block in blocks if block is not SILENCE]


def usual_form(parts: list[Part], *, string: bool, nothing: str) -> str:
    if not parts:
        return nothing
    if string and len(parts) == 1 and type(parts[0]) is Text and not parts[0].native:
        return "text"
    return "list"


def put_content(
    item: Item,
    blocks: list[Any],
    form: str | None,
    *,
    string: bool,
    nothing: str,
    name: str = "content",
) -> None:
    if not blocks:
        form = form if form in _NONE or form == "list" else nothing
    elif _is_bare(blocks):
        form = form if form in {"text", "list"} else ("text" if string else "list")
    else:
        form = "list"
    if form == "list":
        item[name] = blocks
    elif form == "text":
        item[name] = blocks[0]["text"]
    elif form != "absent":
        item[name] = None if form == "null" else ""


def _is_bare(blocks: list[Any]) -> bool:
    if len(blocks) != 1 or not isinstance(blocks[0], dict):
        return False
    text = blocks[0].get("text")
    return isinstance(text, str) and blocks[0] == {"type": "text", "text": text}


def count(usage: Item, *names: str) -> int | None:
    value: Any = usage
    for name in names:
        value = value.get(name) if isinstance(value, dict) else None
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def microseconds(seconds: Any) -> int | None:
    if isinstance(seconds, int | float) and not isinstance(seconds, bool) and 0 < seconds < 1e11:
        return int(seconds * 1_000_000)
    return None


def no_message(where: Where, item: Any, hint: str) -> InvalidInput:
    if not isinstance(item, dict):
        return InvalidInput(f"{place(where)} is a {type(item).__name__}, no message.", hint=hint)
    if "role" not in item:
        return InvalidInput(f"{place(where)} has no role.", hint=hint)
    role = item["role"]
    return InvalidInput(f"{place(where)} has the role {role!r}, which is unknown.", hint=hint)


def place(where: Where) -> str:
    return f"{where[0]}[{where[1]}]"
